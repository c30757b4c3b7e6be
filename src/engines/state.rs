//! How many resources a state holds.

use serde::Deserialize;

use super::{EngineError, ResultFile, read_json};
use crate::workspace::stored_state::is_stack;

#[derive(Deserialize)]
struct ShownState {
    values: Option<StateValues>,
}

#[derive(Deserialize)]
struct StateValues {
    root_module: Option<StateModule>,
}

#[derive(Deserialize)]
struct StateModule {
    resources: Option<Vec<StateResource>>,
    child_modules: Option<Vec<StateModule>>,
}

#[derive(Deserialize)]
struct StateResource {
    #[serde(default)]
    mode: String,
}

impl StateModule {
    fn managed(&self) -> u64 {
        let own =
            self.resources.iter().flatten().filter(|resource| resource.mode == "managed").count() as u64;
        own + self.child_modules.iter().flatten().map(Self::managed).sum::<u64>()
    }
}

/// The managed resources in a state of Terraform or OpenTofu, as `show -json` gives it.
pub fn read_terraform(path: impl Into<ResultFile>) -> Result<u64, EngineError> {
    let state: ShownState = read_json("the state as JSON", path)?;
    Ok(state.values.and_then(|values| values.root_module).map_or(0, |root| root.managed()))
}

#[derive(Deserialize)]
struct StackExport {
    deployment: Option<StackDeployment>,
}

#[derive(Deserialize)]
struct StackDeployment {
    resources: Option<Vec<PulumiResource>>,
}

#[derive(Deserialize)]
struct PulumiResource {
    urn: String,
    /// Read, not made: what a data source is to Terraform.
    #[serde(default)]
    external: bool,
}

/// The resources in the state of a Pulumi stack, as `pulumi stack export` gives it; the stack itself is none.
pub fn read_pulumi(path: impl Into<ResultFile>) -> Result<u64, EngineError> {
    let export: StackExport = read_json("the exported state", path)?;
    let resources = export.deployment.and_then(|deployment| deployment.resources).unwrap_or_default();
    Ok(resources.iter().filter(|resource| !resource.external && !is_stack(&resource.urn)).count() as u64)
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
    fn managed_resources_of_all_modules_count_and_data_does_not() {
        let managed = || json!({"mode": "managed"});
        let state = json!({"values": {"root_module": {
            "resources": [managed(), managed(), {"mode": "data"}],
            "child_modules": [
                {"resources": [managed()], "child_modules": [{"resources": [managed(), {"mode": "data"}]}]},
                {},
            ],
        }}});
        assert_eq!(read_terraform(file(&state).path().to_str().unwrap()).unwrap(), 4);
        for empty in [json!({"format_version": "1.0"}), json!({"values": {"root_module": {}}})] {
            assert_eq!(read_terraform(file(&empty).path().to_str().unwrap()).unwrap(), 0);
        }
    }

    #[test]
    fn a_pulumi_stack_counts_all_but_itself_and_what_it_only_reads() {
        let export = json!({"version": 3, "deployment": {"resources": [
            {"urn": "urn:pulumi:dev::p::pulumi:pulumi:Stack::p-dev"},
            {"urn": "urn:pulumi:dev::p::pulumi:providers:random::default", "custom": true},
            {"urn": "urn:pulumi:dev::p::random:index:Pet::pet", "custom": true},
            {"urn": "urn:pulumi:dev::p::aws:ec2:Vpc::v", "custom": true, "external": true},
        ]}});
        assert_eq!(read_pulumi(file(&export).path().to_str().unwrap()).unwrap(), 2);
        let empty = json!({"version": 3, "deployment": {"manifest": {}}});
        assert_eq!(read_pulumi(file(&empty).path().to_str().unwrap()).unwrap(), 0);
    }
}
