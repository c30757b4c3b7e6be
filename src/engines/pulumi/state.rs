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

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PulumiResource {
    urn: String,
    /// Read, not managed: what a data source is to Terraform.
    external: bool,
    /// The old copy of a replaced resource, which Pulumi failed to delete. The new copy has the same URN.
    delete: bool,
    /// Deleted for a replacement that was not created.
    pending_replacement: bool,
}

#[derive(Deserialize)]
struct Operation {
    r#type: String,
    resource: PulumiResource,
}

/// Whether Pulumi's summary counts a resource: not the stack itself, which we do not count either, and not the providers that
/// Pulumi adds by itself, which are named `default…`.
pub(super) fn is_counted(urn: &str) -> bool {
    let mut parts = urn.splitn(4, "::").skip(2);
    let kind = parts.next().and_then(|types| types.rsplit('$').next()).unwrap_or_default();
    let is_default = parts.next().is_some_and(|name| name.starts_with("default"));
    let is_default_provider = is_default && kind.starts_with("pulumi:providers:");
    !is_stack(urn) && !is_default_provider
}

impl StackExport {
    /// The number of managed resources that exist.
    pub(super) fn resources(&self) -> u64 {
        let resources = self.deployment.iter().flat_map(|it| &it.resources).flatten();
        let exists = |it: &&PulumiResource| !it.external && !it.delete && !it.pending_replacement;
        resources.filter(exists).filter(|it| is_counted(&it.urn)).count() as u64
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
    fn only_managed_resources_that_exist_are_counted() {
        let export = json!({"version": 3, "deployment": {"resources": [
            {"urn": "urn:pulumi:dev::p::pulumi:pulumi:Stack::p-dev"},
            {"urn": "urn:pulumi:dev::p::pulumi:providers:random::default", "custom": true},
            {"urn": "urn:pulumi:dev::p::pulumi:providers:random::default_4_0", "custom": true},
            {"urn": "urn:pulumi:dev::p::pulumi:providers:random::mine", "custom": true},
            {"urn": "urn:pulumi:dev::p::random:index:Pet::default", "custom": true},
            {"urn": "urn:pulumi:dev::p::random:index:Pet::default", "custom": true, "delete": true},
            {"urn": "urn:pulumi:dev::p::random:index:Pet::pet", "custom": true, "pendingReplacement": true},
            {"urn": "urn:pulumi:dev::p::my:index:Component::c", "custom": false},
            {"urn": "urn:pulumi:dev::p::aws:ec2:Vpc::v", "custom": true, "external": true},
        ]}});
        assert_eq!(serde_json::from_value::<StackExport>(export).unwrap().resources(), 3);
        let empty = json!({"version": 3, "deployment": {"manifest": {}}});
        assert_eq!(serde_json::from_value::<StackExport>(empty).unwrap().resources(), 0);
    }
}
