//! Warns if a module shares its stack with another one because neither names it: a destroy of one would destroy both.
//!
//! The modules that use the default stack are in `{WorkingDirectory}/.hawser/pulumi-default-stack.json`. A module that is not
//! in it yet, because two tasks wrote the file at the same time, is added by its next Init.

use std::collections::BTreeMap;
use std::fs;

use hawser_contract::{EngineTask, PulumiFlag};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::backend::{BACKEND_URL, DEFAULT_STACK, STACK, login_url};
use super::project::Project;
use crate::base::digest::hex;
use crate::base::files::{create_private_dir_all, write_private_atomic};
use crate::engines::flags::value_of;
use crate::workspace::Workspace;

const FILE: &str = "pulumi-default-stack.json";

/// Modules with equal values share the default stack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct UsedStack {
    project: String,
    /// A hash, because the URL may contain credentials.
    backend: String,
}

/// Records the module of an Init, and returns a warning if another module has the same stack.
pub(super) fn shared_with(init: &EngineTask, workspace: &Workspace) -> Option<String> {
    // Above the stack, the namespace, and the module.
    let working_directory = workspace.module_root().ancestors().nth(3)?;
    let folder = working_directory.join(".hawser");
    let file = folder.join(FILE);
    let read = fs::read(&file).unwrap_or_default();
    let known: BTreeMap<String, UsedStack> = serde_json::from_slice(&read).unwrap_or_default();
    let mut used = known.clone();
    used.retain(|module, _| module != workspace.module() && working_directory.join(module).is_dir());
    let own = used_by(init, workspace);
    let others = used.iter().filter(|(_, other)| Some(*other) == own.as_ref());
    let others: Vec<&str> = others.map(|(module, _)| module.as_str()).collect();
    let warning = own.as_ref().filter(|_| !others.is_empty()).map(|own| {
        format!(
            "No stack name is set, and the stack {DEFAULT_STACK} of the project {} is also used by {}: they share one state. \
             Set the flag StackName for each of them",
            own.project,
            others.join(", ")
        )
    });
    used.extend(own.map(|own| (workspace.module().to_owned(), own)));
    if used != known {
        let written = create_private_dir_all(&folder)
            .and_then(|()| write_private_atomic(&file, &serde_json::to_vec(&used)?));
        if let Err(error) = written {
            tracing::warn!(path = %file.display(), %error, "failed to record the stack of a module");
        }
    }
    warning
}

/// `None` if the Init names its stack.
fn used_by(init: &EngineTask, workspace: &Workspace) -> Option<UsedStack> {
    let (flags, variables) = (&init.flags.pulumi_flags.known, &init.init.resolved_env_vars);
    let is_named = value_of(flags, PulumiFlag::StackName).is_some() || variables.contains_key(STACK);
    if is_named {
        return None;
    }
    let project = Project::read(&workspace.init_dir())?.value(&["name"])?;
    let backend = login_url(&init.flags);
    let backend = backend.or_else(|| variables.get(BACKEND_URL).map(String::as_str)).unwrap_or_default();
    Some(UsedStack { project, backend: hex(&Sha256::digest(backend)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::model::WorkingDirectorySettings;
    use hawser_contract::{EngineName, Flag, FlagLists, Metadata, Task};

    #[test]
    fn only_modules_with_the_same_project_backend_and_default_stack_share_it() {
        let root = tempfile::tempdir().unwrap();
        let workspace = |module: &str, project: &str| {
            let settings = WorkingDirectorySettings {
                working_directory: root.path().to_owned(),
                temp_directory: root.path().join("temp"),
            };
            let metadata = Metadata {
                stack_name: "s".into(),
                namespace_name: "n".into(),
                module_name: module.into(),
                module_id: uuid::Uuid::nil(),
                source_subdirectory: None,
            };
            let workspace = Workspace::new(&settings, &metadata).unwrap();
            fs::create_dir_all(workspace.init_dir()).unwrap();
            fs::write(workspace.init_dir().join("Pulumi.yaml"), format!("name: {project}\n")).unwrap();
            workspace
        };
        let init = |flags: &[(PulumiFlag, &str)]| {
            let flags = flags.iter().map(|(flag, value)| Flag::new(*flag, Some(*value)));
            let flags = FlagLists { pulumi_flags: flags.collect::<Vec<_>>().into(), ..FlagLists::default() };
            EngineTask { flags, ..EngineTask::new(Task::Init, EngineName::PULUMI) }
        };
        let (a, b) = (workspace("a", "web"), workspace("b", "web"));
        assert_eq!(shared_with(&init(&[]), &a), None);
        assert_eq!(shared_with(&init(&[]), &a), None);
        let warning = shared_with(&init(&[]), &b).unwrap();
        assert!(
            warning.contains("the stack snapcd of the project web") && warning.contains("s/n/a"),
            "{warning}"
        );
        assert!(shared_with(&init(&[]), &a).unwrap().contains("s/n/b"));
        assert_eq!(shared_with(&init(&[]), &workspace("c", "database")), None);
        assert_eq!(shared_with(&init(&[(PulumiFlag::CloudUrl, "s3://x")]), &workspace("d", "web")), None);

        // As soon as all but one name their stack, or are gone, that one has it for itself.
        assert_eq!(shared_with(&init(&[(PulumiFlag::StackName, "dev")]), &b), None);
        assert_eq!(shared_with(&init(&[]), &a), None);
        assert!(shared_with(&init(&[]), &b).is_some());
        fs::remove_dir_all(a.module_root()).unwrap();
        assert_eq!(shared_with(&init(&[]), &b), None);
    }
}
