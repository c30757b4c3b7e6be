//! The state of a stack as `pulumi stack export` prints it.

use serde::Deserialize;

use crate::workspace::stored_state::is_stack;

#[derive(Deserialize)]
pub(super) struct StackExport {
    deployment: Option<StackDeployment>,
}

#[derive(Deserialize)]
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

impl StackExport {
    /// The number of managed resources, without the stack itself.
    pub(super) fn resources(&self) -> u64 {
        let resources = self.deployment.iter().flat_map(|it| &it.resources).flatten();
        resources.filter(|resource| !resource.external && !is_stack(&resource.urn)).count() as u64
    }

    /// The operations that Pulumi started and did not finish, each as `creating urn:…`.
    pub(super) fn pending_operations(&self) -> Vec<String> {
        let pending = self.deployment.iter().flat_map(|it| &it.pending_operations).flatten();
        pending.map(|it| format!("{} {}", it.r#type, it.resource.urn)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_stack_itself_and_external_resources_are_not_counted() {
        let export = json!({"version": 3, "deployment": {"resources": [
            {"urn": "urn:pulumi:dev::p::pulumi:pulumi:Stack::p-dev"},
            {"urn": "urn:pulumi:dev::p::pulumi:providers:random::default", "custom": true},
            {"urn": "urn:pulumi:dev::p::random:index:Pet::pet", "custom": true},
            {"urn": "urn:pulumi:dev::p::aws:ec2:Vpc::v", "custom": true, "external": true},
        ]}});
        assert_eq!(serde_json::from_value::<StackExport>(export).unwrap().resources(), 2);
        let empty = json!({"version": 3, "deployment": {"manifest": {}}});
        assert_eq!(serde_json::from_value::<StackExport>(empty).unwrap().resources(), 0);
    }
}
