//! The errors that Pulumi prints: on stdout below `Diagnostics:`, with `--json` in the member `diagnostics`, and on stderr
//! if it fails before it runs the program.
//!
//! ```text
//! Diagnostics:
//!   pulumi:pulumi:Stack (program-dev):
//!     error: preview failed
//!
//!   pulumi:index:Stash (a):
//!     error: Preview failed: resource "urn:…" cannot be deleted
//!     because it is protected. …
//!
//! Resources:
//! ```
//!
//! An error may be a heading with a traceback below it. What a language host prints on its own, like type errors of YAML, is
//! no error to Pulumi, even if it is the only reason.

use serde::Deserialize;

use crate::engines::diagnostics::{Diagnostic, EngineOutput, on_one_line};
use crate::step::Stream;

/// The first line of the Python traceback in an error.
const TRACEBACK: &str = "Traceback (most recent call last):";

/// A line of the JSON that Pulumi prints, which contains all lines of the log that follow.
const JSON_MEMBER: &str = "    \"diagnostics\": [";

/// The errors in JSON that Pulumi printed.
#[derive(Debug, Default, Deserialize)]
pub(super) struct JsonReport {
    #[serde(default)]
    diagnostics: Vec<JsonDiagnostic>,
}

#[derive(Debug, Deserialize)]
struct JsonDiagnostic {
    #[serde(default)]
    urn: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    severity: String,
}

/// The errors in the output. `report` is JSON that Pulumi printed to a file.
pub(super) fn errors(output: &EngineOutput, report: Option<JsonReport>) -> Vec<Diagnostic> {
    let stdout: Vec<&str> = output.lines(Stream::Stdout).collect();
    let stderr: Vec<&str> = output.lines(Stream::Stderr).collect();
    let report = report.or_else(|| printed_report(&stdout)).unwrap_or_default();
    let printed = sections(&stdout).into_iter().chain(report.sections()).collect::<Vec<_>>();
    let printed = printed
        .iter()
        .map(|(resource, lines)| (resource.as_str(), lines.iter().map(String::as_str).collect()));
    let sections: Vec<(&str, Vec<&str>)> = printed.chain([("", stderr)]).collect();
    let mut found: Vec<Diagnostic> =
        sections.iter().flat_map(|(resource, lines)| errors_of(resource, lines)).collect();
    if found.is_empty() {
        // All that the program said.
        let said = sections.iter().filter(|(resource, lines)| !resource.is_empty() && !lines.is_empty());
        found = said.map(|(resource, lines)| diagnostic(resource, lines)).collect();
    }
    // Pulumi adds such an error to each failure.
    let (headings, reasons): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|error| is_mere_heading(&error.text));
    if reasons.is_empty() { headings } else { reasons }
}

/// `text` starts with the resource, if there is one.
fn is_mere_heading(text: &str) -> bool {
    let last = text.lines().last().unwrap_or_default();
    let fails = ["error: preview failed", "error: update failed", "error: destroy failed"].contains(&last);
    fails && text.lines().count() <= 2
}

/// The resources below the last `Diagnostics:`, each with its lines.
fn sections(stdout: &[&str]) -> Vec<(String, Vec<String>)> {
    let Some(start) = stdout.iter().rposition(|line| *line == "Diagnostics:") else { return Vec::new() };
    let mut sections: Vec<(String, Vec<String>)> = Vec::new();
    for line in stdout[start + 1..].iter().take_while(|line| line.is_empty() || line.starts_with("  ")) {
        if let Some(text) = line.strip_prefix("    ") {
            if let Some((_, lines)) = sections.last_mut() {
                lines.push(text.trim_end().to_owned());
            }
        } else if let Some(resource) = line.trim().strip_suffix(':') {
            sections.push((resource.to_owned(), Vec::new()));
        }
    }
    sections
}

/// The JSON in the log, of which only the end may be known.
fn printed_report(stdout: &[&str]) -> Option<JsonReport> {
    let start = stdout.iter().rposition(|line| *line == JSON_MEMBER)?;
    let text = format!("[{}", stdout[start + 1..].join("\n"));
    let diagnostics = serde_json::Deserializer::from_str(&text).into_iter().next()?.ok()?;
    Some(JsonReport { diagnostics })
}

impl JsonReport {
    /// The same as [`sections`]. Messages of the language host have one line each.
    fn sections(self) -> Vec<(String, Vec<String>)> {
        let mut sections: Vec<(String, Vec<String>)> = Vec::new();
        for diagnostic in self.diagnostics.into_iter().filter(|it| it.severity.contains("err")) {
            let resource = resource(&diagnostic.urn);
            let message = console::strip_ansi_codes(&diagnostic.message).into_owned();
            let lines = message.trim_end().lines().map(|line| line.trim_end().to_owned());
            match sections.last_mut().filter(|(last, _)| *last == resource) {
                Some((_, known)) => known.extend(lines),
                None => sections.push((resource, lines.collect())),
            }
        }
        sections
    }
}

/// `urn:pulumi:dev::program::pulumi:index:Stash::a` as `pulumi:index:Stash (a)`. Pulumi leaves out the URN of the stack.
fn resource(urn: &str) -> String {
    let mut parts = urn.splitn(4, "::").skip(2);
    match (parts.next().and_then(|types| types.rsplit('$').next()), parts.next()) {
        (Some(kind), Some(name)) => format!("{kind} ({name})"),
        _ => "the stack".to_owned(),
    }
}

/// The errors of a resource. Each starts with `error:`, or `Error:` in the output of a language host.
fn errors_of(resource: &str, lines: &[&str]) -> Vec<Diagnostic> {
    let starts = |line: &str| line.starts_with("error: ") || line.starts_with("Error: ");
    let (mut errors, mut open, mut in_heading) = (Vec::<Vec<&str>>::new(), false, false);
    for line in lines {
        // Node prints the error itself below the heading.
        if starts(line) && !in_heading {
            errors.push(Vec::new());
            open = true;
        }
        open &= !line.starts_with("warning: ");
        if open && let Some(error) = errors.last_mut() {
            error.push(line);
        }
        in_heading = line.ends_with(':') && starts(line);
    }
    errors.iter().map(|error| diagnostic(resource, error)).collect()
}

fn diagnostic(resource: &str, lines: &[&str]) -> Diagnostic {
    let reason = match lines.iter().rposition(|line| *line == TRACEBACK) {
        Some(start) => {
            let cause = lines[start + 1..].iter().copied().skip_while(|line| line.starts_with(' '));
            on_one_line(lines.iter().copied().take(1).chain(cause))
        }
        None => on_one_line(lines.iter().copied().filter(|line| !line.trim_start().starts_with("at "))),
    };
    let reason = reason.strip_prefix("error: ").unwrap_or(&reason);
    Diagnostic::new(resource, reason, [&[resource], lines].concat().join("\n").trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summaries(stdout: &str, stderr: &str) -> Vec<String> {
        let of = |stream, text: &str| text.lines().map(|line| (stream, line.to_owned())).collect::<Vec<_>>();
        let output = EngineOutput([of(Stream::Stdout, stdout), of(Stream::Stderr, stderr)].concat());
        errors(&output, None).into_iter().map(|error| error.summary).collect()
    }

    #[test]
    fn a_mere_heading_does_not_hide_the_errors_of_resources() {
        let stdout = "Diagnostics:\n  pulumi:pulumi:Stack (program-dev):\n    error: preview failed\n\n  pulumi:index:Stash (a):\n    \
            error: cannot be deleted\n    because it is protected\n\n  pulumi:index:Stash (b):\n    warning: old\n    \
            error: b fails\n    warning: older\n\nResources:\n    3 errored\n";
        let expected = [
            "pulumi:index:Stash (a): cannot be deleted because it is protected",
            "pulumi:index:Stash (b): b fails",
        ];
        assert_eq!(summaries(stdout, ""), expected);
        let alone = "Diagnostics:\n  pulumi:pulumi:Stack (p-dev):\n    error: update failed\n\nResources:\n";
        assert_eq!(summaries(alone, ""), ["pulumi:pulumi:Stack (p-dev): update failed"]);
    }

    #[test]
    fn the_last_line_of_a_traceback_is_the_reason() {
        let python = "Diagnostics:\n  pulumi:pulumi:Stack (p-dev):\n    error: Program failed with an unhandled exception:\n    \
            Traceback (most recent call last):\n      File \"/m/__main__.py\", line 3, in <module>\n        \
            raise ValueError(\"boom\")\n    ValueError: boom\n";
        let expected =
            "pulumi:pulumi:Stack (p-dev): Program failed with an unhandled exception: ValueError: boom";
        assert_eq!(summaries(python, ""), [expected]);
        let node = "Diagnostics:\n  pulumi:pulumi:Stack (p-dev):\n    error: Running program '/m' failed with an unhandled \
            exception:\n    Error: boom\n        at Object.<anonymous> (/m/index.js:1:7)\n        at Module._compile\n";
        let expected = "pulumi:pulumi:Stack (p-dev): Running program '/m' failed with an unhandled exception: Error: boom";
        assert_eq!(summaries(node, ""), [expected]);
    }

    #[test]
    fn without_an_error_the_words_of_the_program_are_the_reason() {
        let stdout = "Diagnostics:\n  pulumi:pulumi:Stack (p-dev):\n    Property bad does not exist\n      on Pulumi.yaml line 6:\n";
        assert_eq!(
            summaries(stdout, ""),
            ["pulumi:pulumi:Stack (p-dev): Property bad does not exist on Pulumi.yaml line 6:"]
        );
        let early = "warning: old version\nerror: validating stack config: 'need' is missing\n";
        assert_eq!(summaries("", early), ["validating stack config: 'need' is missing"]);
        assert_eq!(summaries("Updating (dev):\n", "hello\n"), Vec::<String>::new());
    }

    #[test]
    fn errors_in_json_are_read_even_if_its_start_is_missing() {
        let stdout = r#"    "diagnostics": [
        {
            "urn": "urn:pulumi:dev::program::a:b:C$pulumi:index:Stash::b",
            "message": "error: cannot be deleted\nbecause it is protected\n",
            "severity": "error"
        },
        {
            "message": "error: preview failed\n",
            "severity": "error"
        }
    ],
    "duration": 745556
}"#;
        assert_eq!(
            summaries(stdout, ""),
            ["pulumi:index:Stash (b): cannot be deleted because it is protected"]
        );
    }
}
