//! The environment of a step's script.
//!
//! It consists of the host's environment, without the runner's own variables and limited by `Engine.EnvironmentAllowList`
//! ([`Inherited`]), the variables that keep an engine from prompting, and the module's variables, which take precedence.
//! `TMPDIR` is the step's scratch space. `PATH` starts with `Engine.AdditionalBinaryPaths` and has absolute entries only.
//! Variables whose value bash would run before the script are left out ([`is_code_to_bash`]).

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use crate::base::process::Inherited;

/// A path without programs.
const NO_FOLDER: &str = "/dev/null";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment {
    variables: BTreeMap<OsString, OsString>,
}

impl Environment {
    /// `engine` is [`super::Engine::environment`], `module` the variables of the last Init.
    pub fn new(
        engine: &[(&str, &str)],
        host: Inherited,
        module: &BTreeMap<String, String>,
        additional_paths: &[PathBuf],
    ) -> Self {
        let mut variables: BTreeMap<_, _> = host.into_variables().into_iter().collect();
        let mut add = |name: &str, value: &str| variables.insert(name.into(), value.into());
        for (name, value) in engine {
            add(name, value);
        }
        for (name, value) in module.iter().filter(|(name, _)| !is_code_to_bash(name)) {
            add(name, value);
        }
        let mut environment = Self { variables };
        let given = environment.path();
        // A folder with a colon in its name cannot be in PATH.
        let joined = std::env::join_paths(additional_paths.iter().chain(&given));
        if let Ok(path) = joined.or_else(|_| std::env::join_paths(&given)) {
            // bash takes an empty PATH for the working directory.
            let path = if path.is_empty() { NO_FOLDER.into() } else { path };
            environment.set("PATH", path);
        }
        environment
    }

    /// The folders in which programs are found.
    pub fn path(&self) -> Vec<PathBuf> {
        // Empty and relative entries would lead into the checkout.
        let folders =
            self.variables.get(OsStr::new("PATH")).map(|path| std::env::split_paths(path).collect());
        let folders: Vec<PathBuf> = folders.unwrap_or_default();
        folders.into_iter().filter(|folder| folder.is_absolute()).collect()
    }

    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.variables.get(OsStr::new(name)).map(OsString::as_os_str)
    }

    pub fn set(&mut self, name: &str, value: impl Into<OsString>) {
        self.variables.insert(name.into(), value.into());
    }

    pub fn remove(&mut self, name: &str) {
        self.variables.remove(OsStr::new(name));
    }

    pub fn into_variables(self) -> Vec<(OsString, OsString)> {
        self.variables.into_iter().collect()
    }
}

/// Whether bash takes the value of this variable as code (a file name with substitutions, a function, a prompt) or as its own
/// options. Such values would bypass the pre-approval of hooks.
pub fn is_code_to_bash(name: &str) -> bool {
    matches!(name, "BASH_ENV" | "SHELLOPTS" | "BASHOPTS" | "PS4") || name.starts_with("BASH_FUNC_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::Engine as _;
    use crate::engines::terraform::Terraform;

    fn host(pairs: &[(&str, &str)]) -> Inherited {
        Inherited::new(pairs.iter().map(|(name, value)| (name.into(), value.into())))
    }

    fn module(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn get(environment: &Environment, name: &str) -> Option<String> {
        environment.variables.get(OsStr::new(name)).map(|value| value.to_string_lossy().into_owned())
    }

    #[test]
    fn the_modules_variables_win_and_additional_paths_come_first() {
        let environment = Environment::new(
            Terraform::hashicorp().environment(),
            host(&[("PATH", "/host"), ("A", "host")]),
            &module(&[("A", "module"), ("PATH", ".:/module::/b:bin:../c"), ("TF_INPUT", "0")]),
            &["/opt/engines".into()],
        );
        assert_eq!(get(&environment, "A").unwrap(), "module");
        assert_eq!(get(&environment, "PATH").unwrap(), "/opt/engines:/module:/b");
        assert_eq!(get(&environment, "TF_IN_AUTOMATION").unwrap(), "1");
        let no_place = [PathBuf::from("/with:colon")];
        let environment = Environment::new(&[], host(&[]), &module(&[("PATH", ".:/module")]), &no_place);
        assert_eq!(get(&environment, "PATH").unwrap(), "/module");
    }

    #[test]
    fn an_empty_path_does_not_search_the_checkout() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/bin/echo", folder.path().join("tool")).unwrap();
        for path in [".", ":bin:", ""] {
            let environment = Environment::new(&[], host(&[]), &module(&[("PATH", path)]), &[]);
            let mut bash = std::process::Command::new("/bin/bash");
            bash.args(["-c", "tool found"]).env_clear().envs(environment.into_variables());
            let output = bash.current_dir(folder.path()).output().unwrap();
            assert_eq!(output.status.code(), Some(127), "{path:?}: {output:?}");
        }
    }

    #[test]
    fn bash_does_not_run_the_values_of_variables() {
        let code = "$(echo run >&2)";
        let module = module(&[
            ("BASH_ENV", code),
            ("BASH_FUNC_hello%%", "() { echo run; }"),
            ("SHELLOPTS", "xtrace"),
            ("PS4", code),
            ("A", code),
        ]);
        let host = Inherited::new(std::env::vars_os().filter(|(name, _)| name == "PATH"));
        let environment = Environment::new(&[], host, &module, &[]);
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script");
        std::fs::write(&script, "declare -F hello; set -x; printf '%s' \"$A\"").unwrap();
        let mut bash = std::process::Command::new("bash");
        let output = bash.arg(&script).env_clear().envs(environment.into_variables()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), code);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.lines().all(|line| line.starts_with("+ ")), "{said}");
    }
}
