//! The preview of a destroy for the job's log, in the format in which Pulumi prints it without `--json`.

use serde_json::Value;

/// The resources that change, and Pulumi's own count of all resources.
pub(super) fn lines(preview: &Value) -> Vec<String> {
    let mut lines = vec!["Previewing destroy:".to_owned(), String::new()];
    for step in preview["steps"].as_array().into_iter().flatten() {
        let (Some(operation), Some(urn)) = (step["op"].as_str(), step["urn"].as_str()) else { continue };
        if operation != SAME {
            lines.push(format!(" {:2} {} {operation}", sign(operation), resource(urn)));
        }
    }
    lines.push("Resources:".to_owned());
    for (operation, count) in preview["changeSummary"].as_object().into_iter().flatten() {
        lines.push(match operation.as_str() {
            SAME => format!("    {count} unchanged"),
            _ => format!("    {} {count} to {operation}", sign(operation)),
        });
    }
    lines
}

const SAME: &str = "same";

fn sign(operation: &str) -> &'static str {
    if operation == "delete" { "-" } else { "~" }
}

/// The type and the name in `urn:pulumi:STACK::PROJECT::PARENT$TYPE::NAME`. A name may contain `::`.
fn resource(urn: &str) -> String {
    let mut parts = urn.splitn(4, "::").skip(2);
    match (parts.next(), parts.next()) {
        (Some(types), Some(name)) => format!("{} {name}", types.rsplit('$').next().unwrap_or(types)),
        _ => urn.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_preview_reads_as_pulumi_prints_it() {
        let preview = json!({
            "steps": [
                {"op": "delete", "urn": "urn:pulumi:dev::p::my:mod:Parent$aws:s3:Bucket::a::b"},
                {"op": "same", "urn": "urn:pulumi:dev::p::aws:s3:Bucket::kept"},
            ],
            "changeSummary": {"delete": 2, "same": 1},
        });
        assert_eq!(
            lines(&preview),
            [
                "Previewing destroy:",
                "",
                " -  aws:s3:Bucket a::b delete",
                "Resources:",
                "    - 2 to delete",
                "    1 unchanged"
            ]
        );
        assert_eq!(lines(&json!({})).last().map(String::as_str), Some("Resources:"));
    }
}
