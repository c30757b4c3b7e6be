//! The backend and the stack that Init chose. They are kept with the module (`pulumi.json`) and given to every later command:
//! what Pulumi itself remembers is one login for all modules of the user, and the stack that was selected last. An Init that
//! fails changes neither these files nor the login ([`crate::workspace::STAGED`]).
//!
//! `PULUMI_BACKEND_URL` takes precedence over any login. `PULUMI_CREDENTIALS_PATH` is where Pulumi stores the login
//! (`credentials.json`, and the default organization in `config.json`). For a module that logs in, this is its private folder,
//! so that the operator's own login never changes. Plugins stay in `PULUMI_HOME`, which all modules share.

use std::ffi::OsStr;
use std::fs::File;
use std::path::PathBuf;

use hawser_contract::{EngineTask, FlagLists, PulumiFlag, Task};
use serde::{Deserialize, Serialize};

use crate::base::confined_dir::{ConfinedDir, is_missing, read_limited};
use crate::engines::environment::Environment;
use crate::engines::flags::{is_on, value_of};
use crate::engines::{EngineError, ResultPaths};
use crate::workspace::PrivateFile;

pub(super) const BACKEND_URL: &str = "PULUMI_BACKEND_URL";
pub(super) const STACK: &str = "PULUMI_STACK";
const CREDENTIALS_PATH: &str = "PULUMI_CREDENTIALS_PATH";
const HOME: &str = "PULUMI_HOME";

/// What `pulumi login --local` and a plain `pulumi login` stand for.
const LOCAL: &str = "file://~";
const CLOUD: &str = "https://api.pulumi.com";

/// The stack of a module without the flag StackName.
pub(super) const DEFAULT_STACK: &str = "snapcd";

const LARGEST_LOGIN: u64 = 4 * 1024 * 1024;

/// `pulumi.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ChosenBackend {
    /// The URL, which may contain credentials. `None` if Init did not log in: the login of the operator applies.
    pub backend: Option<String>,
    pub stack: String,
}

/// The URL that the flags of an Init log in to.
pub(super) fn login_url(flags: &FlagLists) -> Option<&str> {
    let given = &flags.pulumi_flags.known;
    if let Some(url) = value_of(given, PulumiFlag::CloudUrl) {
        Some(url)
    } else if is_on(given, PulumiFlag::LoginLocal) {
        Some(LOCAL)
    } else {
        is_on(given, PulumiFlag::LoginCloud).then_some(CLOUD)
    }
}

impl ChosenBackend {
    pub(super) fn of_init(init: &EngineTask) -> Self {
        let named = value_of(&init.flags.pulumi_flags.known, PulumiFlag::StackName);
        let named = named.or_else(|| init.init.resolved_env_vars.get(STACK).map(String::as_str));
        let stack = named.filter(|name| !name.is_empty()).unwrap_or(DEFAULT_STACK).to_owned();
        Self { backend: login_url(&init.flags).map(str::to_owned), stack }
    }

    /// What this Init chooses, or what the last one chose.
    pub(super) fn of(task: &EngineTask, paths: &ResultPaths) -> Result<Self, EngineError> {
        if task.task == Task::Init {
            return Ok(Self::of_init(task));
        }
        let file = PrivateFile::PULUMI_BACKEND;
        let found = paths.read_private_json(file)?;
        found.ok_or_else(|| EngineError::NotInitialized { path: paths.private(file).into() })
    }

    /// The stack of a task, which may name another one than Init.
    pub(super) fn stack<'a>(&'a self, flags: &'a FlagLists) -> &'a str {
        value_of(&flags.pulumi_flags.known, PulumiFlag::StackName).unwrap_or(&self.stack)
    }

    pub(super) fn variables(&self, task: &EngineTask, paths: &ResultPaths) -> Vec<(&'static str, String)> {
        let mut variables = vec![(STACK, self.stack(&task.flags).to_owned())];
        if let Some(url) = &self.backend {
            let is_init = task.task == Task::Init;
            let login = if is_init { paths.staged_folder() } else { paths.private_folder().to_owned() };
            variables.push((BACKEND_URL, url.clone()));
            variables.push((CREDENTIALS_PATH, login));
        }
        variables
    }
}

/// Gives a module that logs in a copy of the operator's login, so that it may log in to where the operator is logged in.
/// `operator` is the environment without the module's own backend.
pub(super) fn copy_login(
    chosen: &ChosenBackend,
    paths: &ResultPaths,
    operator: &Environment,
) -> Result<(), EngineError> {
    let from = chosen.backend.as_ref().and_then(|_| login_folder(operator));
    let Some(from) = from else { return Ok(()) };
    let folder = PathBuf::from(paths.staged_folder());
    for file in [PrivateFile::PULUMI_CREDENTIALS, PrivateFile::PULUMI_ACCOUNT] {
        let name = OsStr::new(file.name());
        let read = File::open(from.join(name)).and_then(|it| read_limited(it, LARGEST_LOGIN));
        let copied = match read {
            Ok(text) => ConfinedDir::open(&folder).and_then(|to| to.write(name, &text)),
            Err(error) if is_missing(&error) => Ok(()),
            Err(error) => Err(error),
        };
        copied.map_err(|source| EngineError::Login { path: folder.join(name), source })?;
    }
    Ok(())
}

fn login_folder(operator: &Environment) -> Option<PathBuf> {
    let set = |name| operator.get(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || Some(set("HOME")?.join(".pulumi"));
    set(CREDENTIALS_PATH).or_else(|| set(HOME)).or_else(home)
}
