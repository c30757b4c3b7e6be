//! The state of a stack as `pulumi stack export` prints it.

use serde::Deserialize;

use crate::engines::{EngineError, ResultFile, read_json};
use crate::workspace::stored_state::is_stack;

#[derive(Deserialize)]
struct StackExport {
    deployment: Option<StackDeployment>,
}

#[derive(Deserialize, Default)]
struct StackDeployment {
    resources: Option<Vec<PulumiResource>>,
    pending_operations: Option<Vec<Operation>>,
}

#[derive(Deserialize)]
struct PulumiResource {
    urn: String,
    /// Read, not managed: what a data source is to Terraform.
    #[serde(default)]
    external: bool,
}

#[derive(Deserialize)]
struct Operation {
    r#type: String,
    resource: PulumiResource,
}

fn read(file: impl Into<ResultFile>) -> Result<StackDeployment, EngineError> {
    let export: StackExport = read_json("the exported state", file)?;
    Ok(export.deployment.unwrap_or_default())
}

/// Counts the managed resources, without the stack itself.
pub(super) fn count_resources(export: impl Into<ResultFile>) -> Result<u64, EngineError> {
    let resources = read(export)?.resources.unwrap_or_default();
    Ok(resources.iter().filter(|resource| !resource.external && !is_stack(&resource.urn)).count() as u64)
}

/// The operations that Pulumi began and did not see end, each as `creating urn:…`.
pub(super) fn pending_operations(export: impl Into<ResultFile>) -> Result<Vec<String>, EngineError> {
    let pending = read(export)?.pending_operations.unwrap_or_default();
    Ok(pending.iter().map(|it| format!("{} {}", it.r#type, it.resource.urn)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn file(value: &Value) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), value.to_string()).unwrap();
        file
    }

    #[test]
    fn a_pulumi_stack_counts_all_but_itself_and_what_it_only_reads() {
        let export = json!({"version": 3, "deployment": {"resources": [
            {"urn": "urn:pulumi:dev::p::pulumi:pulumi:Stack::p-dev"},
            {"urn": "urn:pulumi:dev::p::pulumi:providers:random::default", "custom": true},
            {"urn": "urn:pulumi:dev::p::random:index:Pet::pet", "custom": true},
            {"urn": "urn:pulumi:dev::p::aws:ec2:Vpc::v", "custom": true, "external": true},
        ]}});
        assert_eq!(count_resources(file(&export).path().to_str().unwrap()).unwrap(), 2);
        let empty = json!({"version": 3, "deployment": {"manifest": {}}});
        assert_eq!(count_resources(file(&empty).path().to_str().unwrap()).unwrap(), 0);
    }
}
