//! The plan as a small table, and the outputs.

use hawser_contract::{OutputSet, OutputValue, PlanData};
use serde_json::Value;

use super::Paint;
use super::text::{clean, plural};

/// A column of the plan table: its heading, the sign before a number, and the color of a number.
type Column = (&'static str, &'static str, fn(Paint, &str) -> String);

const COLUMNS: [Column; 5] = [
    ("create", "+", |paint, text| paint.green(text)),
    ("change", "~", |paint, text| paint.yellow(text)),
    ("replace", "-/+", |paint, text| paint.magenta(text)),
    ("destroy", "-", |paint, text| paint.red(text)),
    ("unchanged", "", |_, text| text.to_owned()),
];
const FIRST: usize = 10;
const GAP: usize = 3;
/// A value that would make a line longer than this is split into several lines.
const WIDTH: usize = 80;

/// The planned changes to resources and outputs as a table of counts.
pub(super) fn plan(data: &PlanData, paint: Paint) -> Vec<String> {
    let resources = [
        data.create_count,
        data.modify_count,
        data.recreate_count,
        data.destroy_count,
        data.total_unchanged_count,
    ];
    let outputs = [
        data.outputs_create_count,
        data.outputs_modify_count,
        data.outputs_recreate_count,
        data.outputs_destroy_count,
        data.outputs_total_unchanged_count,
    ];
    let headings: String = COLUMNS.iter().map(|(heading, _, _)| right(heading, heading)).collect();
    let width = FIRST + COLUMNS.iter().map(|(heading, _, _)| heading.len() + GAP).sum::<usize>();
    let rule = if paint.is_colored() { "─" } else { "-" }.repeat(width);
    let row = |name: &str, counts: [u64; 5]| {
        let mut line = format!("{name:FIRST$}");
        for ((heading, sign, color), count) in COLUMNS.into_iter().zip(counts) {
            let cell =
                if count == 0 { right("0", heading) } else { right(&format!("{sign}{count}"), heading) };
            line.push_str(&if count == 0 { paint.dim(&cell) } else { color(paint, &cell) });
        }
        line
    };
    vec![
        format!("{}{}", paint.bold(&format!("{:FIRST$}", "Plan")), paint.dim(&headings)),
        paint.dim(&rule),
        row("resources", resources),
        row("outputs", outputs),
    ]
}

/// Aligns a cell to the right under its heading.
fn right(cell: &str, heading: &str) -> String {
    format!("{cell:>width$}", width = heading.len() + GAP)
}

/// The plan in a few words.
pub(super) fn plan_summary(data: &PlanData) -> String {
    let parts = [
        (data.create_count, "to create"),
        (data.modify_count, "to change"),
        (data.recreate_count, "to replace"),
        (data.destroy_count, "to destroy"),
    ];
    let changes: Vec<String> =
        parts.iter().filter(|(count, _)| *count > 0).map(|(count, verb)| format!("{count} {verb}")).collect();
    match (changes.is_empty(), data.outputs_total_changed_count) {
        (false, _) => changes.join(", "),
        (true, 0) => "no changes".to_owned(),
        (true, outputs) => format!("{} to change", plural(outputs, "output")),
    }
}

/// The outputs, aligned. Sensitive values are masked.
pub(super) fn outputs(set: &OutputSet, paint: Paint) -> Vec<String> {
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
