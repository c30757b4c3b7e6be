//! The errors that Terraform and OpenTofu print on stderr, in a frame if there is color:
//!
//! ```text
//! ╷
//! │ Error: local-exec provisioner error
//! │
//! │   with terraform_data.a[1],
//! │   on main.tf line 4, in resource "terraform_data" "a":
//! │    4:   provisioner "local-exec" { command = "exit 3" }
//! │
//! │ Error running command 'exit 3': exit status 3. Output:
//! ╵
//! ```
//!
//! Without color, an error starts with its heading after an empty line and ends where the next one starts. The heading may
//! have several lines; the explanation is wrapped. Trace output (`TF_LOG`) may appear anywhere.

use crate::engines::diagnostics::{Diagnostic, on_one_line};

const HEADING: &str = "Error: ";

/// Errors of requests that the engine cancelled because of another error.
const CONSEQUENCE: &str = "Request cancelled";

/// An "error" that only introduces the real ones.
const INTRODUCTION: &str = "Terraform encountered problems during initialisation";

/// The errors in the lines of stderr. Consequences of other errors come last.
pub(super) fn errors<'a>(stderr: impl Iterator<Item = &'a str>) -> Vec<Diagnostic> {
    let mut blocks = blocks(stderr);
    if blocks.len() > 1 {
        blocks.retain(|block| !block[0].starts_with(&format!("{HEADING}{INTRODUCTION}")));
    }
    let (consequences, causes): (Vec<_>, Vec<_>) =
        blocks.iter().partition(|block| block[0].strip_prefix(HEADING) == Some(CONSEQUENCE));
    causes.into_iter().chain(consequences).map(|block| diagnostic(block)).collect()
}

/// The lines of each error, without frames. The first is its heading.
fn blocks<'a>(stderr: impl Iterator<Item = &'a str>) -> Vec<Vec<&'a str>> {
    let mut blocks = Vec::<Vec<&str>>::new();
    // `open`: the current lines belong to the last block. `after_empty`: a heading may follow.
    let (mut framed, mut open, mut after_empty) = (false, false, true);
    for line in stderr.filter(|line| !is_trace(line)).map(str::trim_end) {
        if matches!(line, "╷" | "╵") {
            (framed, open, after_empty) = (line == "╷", false, true);
            continue;
        }
        let text = match line.strip_prefix('│') {
            Some(text) if framed => text.strip_prefix(' ').unwrap_or(text),
            None if framed => continue,
            _ => line,
        };
        let starts = after_empty && (framed || is_heading(text));
        if starts {
            open = text.starts_with(HEADING);
            if open {
                blocks.push(Vec::new());
            }
        }
        if open && let Some(block) = blocks.last_mut() {
            block.push(text);
        }
        after_empty = !framed && text.is_empty();
    }
    for block in &mut blocks {
        block.truncate(block.iter().rposition(|line| !line.is_empty()).map_or(0, |last| last + 1));
    }
    blocks
}

fn is_heading(line: &str) -> bool {
    line.starts_with(HEADING) || line.starts_with("Warning: ")
}

/// `2026-11-18T15:49:37.123Z [TRACE] …`
fn is_trace(line: &str) -> bool {
    let level = line.split_once(" [").filter(|(time, _)| time.starts_with("20") && !time.contains(' '));
    level.is_some_and(|(_, rest)| {
        ["TRACE]", "DEBUG]", "INFO]", "WARN]", "ERROR]"].iter().any(|it| rest.starts_with(it))
    })
}

fn diagnostic(block: &[&str]) -> Diagnostic {
    let mut paragraphs = block.split(|line| line.is_empty());
    let heading = on_one_line(paragraphs.next().unwrap_or_default().iter().copied());
    let heading = heading.strip_prefix(HEADING.trim_end()).unwrap_or(&heading).trim();
    let mut rest = paragraphs.peekable();
    let mut place = String::new();
    if let Some(place_of_error) = rest.next_if(|lines| lines.first().is_some_and(|line| is_place(line))) {
        place = self::place(place_of_error);
    }
    let detail = on_one_line(rest.flatten().copied());
    let reason = match (heading.trim_end_matches([':', '.']), detail.as_str()) {
        (heading, "") => heading.to_owned(),
        (heading, detail) => format!("{heading}: {detail}"),
    };
    Diagnostic::new(&place, &reason, block.join("\n"))
}

fn is_place(line: &str) -> bool {
    line.starts_with("  with ") || line.starts_with("  on ")
}

/// `terraform_data.a[1] (main.tf:4)`
fn place(lines: &[&str]) -> String {
    let address =
        lines.iter().find_map(|line| line.strip_prefix("  with ")).map(|it| it.trim_end_matches(','));
    let file = lines.iter().find_map(|line| {
        let (file, rest) = line.strip_prefix("  on ")?.split_once(" line ")?;
        let number: String = rest.chars().take_while(char::is_ascii_digit).collect();
        Some(format!("{file}:{number}"))
    });
    match (address, file) {
        (Some(address), Some(file)) => format!("{address} ({file})"),
        (Some(address), None) => address.to_owned(),
        (None, file) => file.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summaries(stderr: &str) -> Vec<String> {
        errors(stderr.lines()).into_iter().map(|error| error.summary).collect()
    }

    const FRAMED: &str = "There are some problems with the CLI configuration:\n╷\n│ Warning: Unable to open\n│\n│ Error: no\n╵\n
╷
│ Error: local-exec provisioner error
│ 
│   with terraform_data.a[1],
│   on main.tf line 4, in resource \"terraform_data\" \"a\":
2026-11-18T15:49:37.123Z [TRACE] statemgr: here
│    4:   provisioner \"local-exec\" {}
│     ├────────────────
│     │ var.s is \"x\"
│ 
│ Error running command 'exit 3': exit
│ status 3. Output: hello
│ 
│ Error: inner
│ 
╵
╷
│ Error: creating Thing:
│ \toperation error
│ 
│   with provider[\"registry.terraform.io/hashicorp/aws\"],
╵
";

    #[test]
    fn each_frame_is_an_error_with_its_place_and_explanation() {
        let expected = [
            "terraform_data.a[1] (main.tf:4): local-exec provisioner error: Error running command 'exit 3': exit status 3. \
             Output: hello Error: inner",
            "provider[\"registry.terraform.io/hashicorp/aws\"]: creating Thing: operation error",
        ];
        assert_eq!(summaries(FRAMED), expected);
        let text = &errors(FRAMED.lines())[1].text;
        assert_eq!(
            text,
            "Error: creating Thing:\n\toperation error\n\n  with provider[\"registry.terraform.io/hashicorp/aws\"],"
        );
    }

    #[test]
    fn errors_without_color_have_no_frames() {
        let plain = "\nError: first\n\n  on a b.tf line 12:\n  12: x\n\nOutput:\nError: inner\n\n\nWarning: careful\n\nno\n\n\
            Error: second\n";
        assert_eq!(summaries(plain), ["a b.tf:12: first: Output: Error: inner", "second"]);
        assert_eq!(summaries("Error parsing flags\nusage: …\n"), Vec::<String>::new());
    }

    #[test]
    fn a_cancelled_request_comes_after_its_cause() {
        let said = "╷\n│ Error: Request cancelled\n│ \n│ The request was cancelled.\n╵\n╷\n│ Error: Plugin did not respond\n╵\n";
        assert_eq!(
            summaries(said),
            ["Plugin did not respond", "Request cancelled: The request was cancelled."]
        );
    }

    #[test]
    fn an_introduction_is_not_an_error() {
        let said = "╷\n│ Error: Terraform encountered problems during initialisation, including problems\n│ with the configuration, \
            described below.\n╵\n╷\n│ Error: Invalid expression\n│ \n│   on main.tf line 2:\n│    2: x\n╵\n";
        assert_eq!(summaries(said), ["main.tf:2: Invalid expression"]);
    }
}
