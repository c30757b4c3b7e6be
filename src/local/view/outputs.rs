//! The outputs at the end of a job.

use hawser_contract::{OutputSet, OutputValue};
use serde_json::Value;

use super::Paint;
use super::text::clean;

/// A value that would make a line longer than this is split into several lines.
const WIDTH: usize = 80;

/// The outputs, aligned. Sensitive values are masked.
pub(super) fn lines(set: &OutputSet, paint: Paint) -> Vec<String> {
    let mut lines = vec![paint.bold("Outputs")];
    if set.outputs.is_empty() {
        lines.push(paint.dim("  none"));
    }
    let names: Vec<String> = set.outputs.iter().map(|output| clean(&output.name, false)).collect();
    let widest = names.iter().map(|name| console::measure_text_width(name)).max().unwrap_or(0).min(28);
    let room = WIDTH.saturating_sub(widest + 4);
    for (name, output) in names.iter().zip(&set.outputs) {
        let padding = " ".repeat(widest.saturating_sub(console::measure_text_width(name)));
        let mut before = format!("  {}{padding}  ", paint.cyan(name));
        if output.sensitive == Some(true) {
            lines.push(format!("{before}{}", paint.dim("(sensitive)")));
            continue;
        }
        for line in value(output, room).lines() {
            lines.push(format!("{before}{}", clean(line, false)).trim_end().to_owned());
            before = " ".repeat(widest + 4);
        }
    }
    lines
}

/// A readable value: strings unchanged, everything else as JSON, on several lines only if it does not fit on one.
fn value(output: &OutputValue, room: usize) -> String {
    if output.kind == "string" {
        return if output.value.is_empty() { "\"\"".to_owned() } else { output.value.clone() };
    }
    let Ok(json) = serde_json::from_str::<Value>(&output.value) else { return output.value.clone() };
    let short = json.to_string();
    if short.len() <= room { short } else { serde_json::to_string_pretty(&json).unwrap_or(short) }
}
