//! The environment of a step's script.
//!
//! It is the host's, without what is the runner's own and narrowed by `Engine.EnvironmentAllowList` ([`Inherited`]),
//! plus the module's variables, plus what keeps an engine from asking questions.
//! `TMPDIR` is the step's own scratch space. The module's variables win, but `Engine.AdditionalBinaryPaths` stand in front of any PATH, of which only absolute entries count,
//! and what bash would run or obey before the script begins is left out ([`is_code_to_bash`]).

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::base::process::Inherited;

/// Where no program is.
const NO_FOLDER: &str = "/dev/null";

/// A whole environment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment {
    variables: BTreeMap<OsString, OsString>,
}

impl Environment {
    /// `engine` is what the engine needs ([`super::Engine::environment`]), `host` is what may be known of the runner's environment, `module` what came with Init.
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
        environment.put_in_front_of_path(additional_paths);
        environment
    }

    fn put_in_front_of_path(&mut self, additional: &[PathBuf]) {
        let given = self.path();
        // A folder with a colon in its name cannot stand in PATH; then what is there is all there is.
        let joined = std::env::join_paths(additional.iter().chain(&given));
        if let Ok(path) = joined.or_else(|_| std::env::join_paths(&given)) {
            // To bash, an empty PATH is the working directory.
            let path = if path.is_empty() { NO_FOLDER.into() } else { path };
            self.variables.insert("PATH".into(), path);
        }
    }

    /// The folders in which programs are found.
    pub fn path(&self) -> Vec<PathBuf> {
        // An empty entry would mean the working directory, which holds whatever a repository holds, and a relative one is
        // below it.
        let folders =
            self.variables.get(OsStr::new("PATH")).map(|path| std::env::split_paths(path).collect());
        let folders: Vec<PathBuf> = folders.unwrap_or_default();
        folders.into_iter().filter(|folder| folder.is_absolute()).collect()
    }

    /// Gives the script its own place for temporary files.
    pub fn set_scratch(&mut self, folder: &Path) {
        self.variables.insert("TMPDIR".into(), folder.into());
    }

    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.variables.get(OsStr::new(name)).map(OsString::as_os_str)
    }

    pub fn set(&mut self, name: &str, value: impl Into<OsString>) {
        self.variables.insert(name.into(), value.into());
    }

    pub fn into_variables(self) -> Vec<(OsString, OsString)> {
        self.variables.into_iter().collect()
    }

    pub fn variables(&self) -> impl Iterator<Item = (&OsString, &OsString)> {
        self.variables.iter()
    }
}

/// Whether bash takes the value of this variable for code (a file name with substitutions, a function, a prompt) or for its
/// own options. No value from the server is, and none gets past the pre-approval of hooks in this way.
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
    fn the_modules_variables_win_and_additional_paths_stand_in_front() {
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
    fn a_path_without_a_folder_does_not_lead_into_the_checkout() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/bin/echo", folder.path().join("tool")).unwrap();
        for path in [".", ":bin:", ""] {
            let environment = Environment::new(&[], host(&[]), &module(&[("PATH", path)]), &[]);
            let mut bash = std::process::Command::new("/bin/bash");
            bash.args(["-c", "tool found"]).env_clear().envs(environment.variables());
            let output = bash.current_dir(folder.path()).output().unwrap();
            assert_eq!(output.status.code(), Some(127), "{path:?}: {output:?}");
        }
    }

    #[test]
    fn bash_runs_nothing_that_a_variable_of_the_module_holds() {
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
        let output = bash.arg(&script).env_clear().envs(environment.variables()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), code);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.lines().all(|line| line.starts_with("+ ")), "{said}");
    }
}
