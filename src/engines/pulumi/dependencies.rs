//! Installs the packages of a program in Node or Python, if they are missing.
//!
//! Only if Init has no hooks: hooks may install them in their own way, or later. The other languages fetch their packages when
//! the program starts.

use std::path::Path;

use hawser_contract::EngineTask;

use super::commands::command;
use super::project::Project;
use crate::script::EngineCommand;

/// The command for an Init in a directory, if packages are missing.
pub(super) fn install(init: &EngineTask, directory: &Path) -> Option<EngineCommand> {
    let has_hooks = init.hooks().iter().any(Option::is_some);
    let install = || command(&["install", "--non-interactive"], []).known_as("pulumi install");
    (!has_hooks && are_missing(directory)).then(install)
}

fn are_missing(directory: &Path) -> bool {
    let Some(project) = Project::read(directory) else { return false };
    let runtime = project.value(&["runtime"]).or_else(|| project.value(&["runtime", "name"]));
    match runtime.as_deref() {
        // Node looks in all folders above, too.
        Some("nodejs") => {
            let has = |name| directory.ancestors().any(|above| above.join(name).exists());
            directory.join("package.json").exists() && !has("node_modules")
        }
        // Without a virtual environment, Python's own packages are used.
        Some("python") => {
            let option = |name| project.value(&["runtime", "options", name]);
            let uv = || option("toolchain").filter(|it| it == "uv").map(|_| ".venv".to_owned());
            option("virtualenv").or_else(uv).is_some_and(|folder| !directory.join(folder).exists())
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_contract::{EngineName, Task};
    use std::fs;

    #[test]
    fn packages_are_installed_if_they_are_missing_and_no_hook_may_install_them() {
        let folder = tempfile::tempdir().unwrap();
        let module = folder.path().join("module");
        fs::create_dir(&module).unwrap();
        let write = |name: &str, text: &str| fs::write(module.join(name), text).unwrap();
        let init = EngineTask::new(Task::Init, EngineName::PULUMI);
        let with_hook = EngineTask { after_hook: Some("npm ci".to_owned()), ..init.clone() };
        let installs = |init| install(init, &module).is_some();
        assert!(!installs(&init));
        write("Pulumi.yaml", "name: x\nruntime: nodejs\n");
        assert!(!installs(&init));
        write("package.json", "{}");
        assert!(installs(&init));
        assert!(!installs(&with_hook));
        fs::create_dir(folder.path().join("node_modules")).unwrap();
        assert!(!installs(&init));

        for runtime in ["yaml", "python", "go"] {
            write("Pulumi.yaml", &format!("name: x\nruntime: {runtime}\n"));
            assert!(!installs(&init), "{runtime}");
        }
        write("Pulumi.yaml", "name: x\nruntime:\n  name: python\n  options:\n    virtualenv: venv\n");
        assert!(installs(&init));
        fs::create_dir(module.join("venv")).unwrap();
        assert!(!installs(&init));
        write("Pulumi.yaml", "name: x\nruntime:\n  name: python\n  options:\n    toolchain: uv\n");
        assert!(installs(&init));
    }
}
