//! The data of `hawser local`: one private area for each directory, which the next run finds again.
//!
//! ```text
//! {data}/{name}-{hash}/       the area of one directory; name and hash are derived from its absolute path
//!   source.git/               snapshots of the directory
//!   work/                     the runner's working directory, which contains the engine's local state
//!   temp/                     scratch space
//!   hawser.log                the runtime log of the last run
//!   engine                    the name of the engine of the last run
//!   lock                      held during a run
//! {data}/examples/hello/      the built-in example
//! ```
//!
//! Without a remote backend, the state is in `work`, so `--destroy` finds the resources of an earlier apply, and nothing is
//! ever written to the user's directory. Inside its module the directory is at its absolute path, which does not change
//! when the directory becomes part of a repository.

use std::cmp::Reverse;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use hawser_contract::{EngineName, EngineTask, FlagLists, Task};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::{LocalError, failed};
use crate::base::digest::hex;
use crate::base::files::{create_private_dir_all, write_private_atomic};
use crate::base::lock::{self, LockMode};
use crate::base::process;
use crate::engines::Engines;
use crate::settings::model::WorkingDirectorySettings;

/// The environment variable with the data directory.
pub const DATA_VARIABLE: &str = "HAWSER_LOCAL_DIR";

/// The stack of all local modules.
pub const STACK: &str = "local";

/// The file with the engine of the last run.
const ENGINE: &str = "engine";

const EXAMPLE: [(&str, &str); 3] = [
    ("main.tf", include_str!("../../examples/hello/main.tf")),
    ("variables.tf", include_str!("../../examples/hello/variables.tf")),
    ("outputs.tf", include_str!("../../examples/hello/outputs.tf")),
];

/// The area of one directory.
#[derive(Debug)]
pub struct Area {
    /// Absolute, without symlinks.
    pub directory: PathBuf,
    pub namespace: String,
    pub module: String,
    pub root: PathBuf,
    hash: [u8; 32],
}

impl Area {
    /// Finds or creates the area of `directory`, which is absolute and without symlinks, in `data`.
    pub fn of(directory: PathBuf, data: &Path) -> Result<Self, LocalError> {
        let (hash, namespace, module) = names(&directory);
        let root = root(&directory, data);
        create_private_dir_all(&root).map_err(failed("create", &root))?;
        let root = root.canonicalize().map_err(failed("find", &root))?;
        Ok(Self { directory, namespace, module, root, hash })
    }

    pub fn repository(&self) -> PathBuf {
        self.root.join("source.git")
    }

    /// Where the runner checks out the snapshot.
    pub fn checkout(&self) -> PathBuf {
        self.folders().working_directory.join(STACK).join(&self.namespace).join(&self.module)
    }

    pub fn folders(&self) -> WorkingDirectorySettings {
        folders(&self.root)
    }

    pub fn log(&self) -> PathBuf {
        self.root.join("hawser.log")
    }

    pub fn remember_engine(&self, engine: &EngineName) -> Result<(), LocalError> {
        let path = self.root.join(ENGINE);
        write_private_atomic(&path, engine.as_str().as_bytes()).map_err(failed("write", &path))
    }

    /// The ID of the runner, which is always the same for an area. So a run finds the steps of an earlier run that was
    /// killed, and waits for them.
    pub fn runner_id(&self) -> Uuid {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&self.hash[16..]);
        uuid::Builder::from_random_bytes(bytes).into_uuid()
    }

    /// Prevents a second run on the same directory.
    pub fn lock(&self) -> Result<lock::OwnLock, LocalError> {
        let path = self.root.join("lock");
        let lock = lock::try_own(&path, LockMode::Alone).map_err(failed("lock", &path))?;
        lock.ok_or_else(|| LocalError::Busy { directory: self.directory.clone() })
    }
}

fn root(directory: &Path, data: &Path) -> PathBuf {
    let (_, namespace, module) = names(directory);
    data.join(format!("{module}-{namespace}"))
}

/// The engine of the last run, which the next one keeps, because another engine may not read its state. The area may not
/// exist yet.
pub fn last_engine(directory: &Path, data: &Path) -> Option<EngineName> {
    let name = std::fs::read_to_string(root(directory, data).join(ENGINE)).ok()?;
    known_engine(&name).ok()
}

/// The runner's directories in an area.
pub fn folders(root: &Path) -> WorkingDirectorySettings {
    WorkingDirectorySettings { working_directory: root.join("work"), temp_directory: root.join("temp") }
}

/// The modules of all areas, each with the root of its area.
pub fn modules(data: &Path) -> Vec<(String, PathBuf)> {
    let entries = std::fs::read_dir(data).into_iter().flatten().flatten();
    let mut modules: Vec<_> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let (module, namespace) = name.rsplit_once('-')?;
            let is_area = folders(&entry.path()).working_directory.is_dir();
            is_area.then(|| (format!("{STACK}/{namespace}/{module}"), entry.path()))
        })
        .collect();
    modules.sort();
    modules
}

/// The name of the module for a directory, which is absolute and without symlinks.
pub fn module_of(directory: &Path) -> String {
    let (_, namespace, module) = names(directory);
    format!("{STACK}/{namespace}/{module}")
}

/// The hash of a directory, its namespace and its module.
fn names(directory: &Path) -> ([u8; 32], String, String) {
    let hash: [u8; 32] = Sha256::digest(directory.as_os_str().as_bytes()).into();
    let module = safe_name(&directory.file_name().unwrap_or_default().to_string_lossy(), "module");
    (hash, hex(&hash[..5]), module)
}

/// The directory of all areas: `path` or the user's data directory. It may not exist yet.
pub fn data_directory(path: Option<PathBuf>) -> Result<PathBuf, LocalError> {
    match path {
        Some(path) => Ok(path),
        None => Ok(dirs::data_local_dir().ok_or(LocalError::NoData)?.join("hawser").join("local")),
    }
}

/// Writes the built-in example to `data`, so that its state is the same from every current directory.
pub fn example(data: &Path) -> Result<PathBuf, LocalError> {
    let directory = data.join("examples").join("hello");
    create_private_dir_all(&directory).map_err(failed("create", &directory))?;
    for (name, contents) in EXAMPLE {
        let path = directory.join(name);
        write_private_atomic(&path, contents.as_bytes()).map_err(failed("write", &path))?;
    }
    Ok(directory)
}

/// The requested engine, the one of the last run, or the first installed one that fits a directory with these files.
pub fn engine(
    requested: Option<EngineName>,
    last: Option<EngineName>,
    names: &[OsString],
) -> Result<EngineName, LocalError> {
    choose(requested, last, names, is_installed)
}

pub fn is_installed(engine: &EngineName) -> bool {
    process::find_program(engine.as_str(), &[]).is_ok()
}

fn choose(
    requested: Option<EngineName>,
    last: Option<EngineName>,
    names: &[OsString],
    installed: impl Fn(&EngineName) -> bool,
) -> Result<EngineName, LocalError> {
    let fitting = requested.map_or_else(
        || {
            let fitting = fitting_engines(names);
            // The files may have been replaced by those for another engine.
            last.filter(|last| fitting.contains(last)).map_or(fitting, |last| vec![last])
        },
        |engine| vec![engine],
    );
    let found = fitting.iter().find(|engine| installed(engine)).cloned();
    found.ok_or(LocalError::NoEngine { engines: fitting })
}

/// The engines that can run in a directory with these files.
pub fn fitting_engines(names: &[OsString]) -> Vec<EngineName> {
    let engines = Engines::default();
    let using = |name: &OsString| -> Vec<EngineName> {
        let name = name.to_string_lossy();
        engines.iter().filter(|engine| engine.uses_file(&name)).map(|engine| engine.name()).collect()
    };
    // A file that several engines use leaves the choice between them, so it decides.
    let order = |name: &EngineName| engines.iter().position(|engine| engine.name() == *name);
    let fitting = names.iter().map(using).filter(|fitting| !fitting.is_empty());
    fitting.min_by_key(|fitting| (Reverse(fitting.len()), order(&fitting[0]))).unwrap_or_default()
}

/// Parses the name of an engine that `hawser local` can run.
pub fn known_engine(name: &str) -> Result<EngineName, String> {
    let engine = name.parse::<EngineName>().map_err(|error| error.to_string())?;
    let engines = Engines::default();
    engines
        .get(&engine)
        .map_err(|_| format!("unknown engine {name:?}: expected one of {}", engines.names()))?;
    Ok(engine)
}

/// Whether modules for an engine declare their variables.
pub fn declares_variables(engine: &EngineName) -> bool {
    Engines::default().get(engine).is_ok_and(|engine| engine.declares_variables())
}

/// The flags that select a stack of an engine; `None` if it has no stacks.
pub fn stack_flags(engine: &EngineName, stack: &str) -> Option<FlagLists> {
    Engines::default().get(engine).ok()?.stack_flags(stack)
}

/// Whether an engine has one of these flags. An unknown engine may have any.
pub fn knows_flags(engine: &EngineName, flags: &FlagLists) -> bool {
    let task = EngineTask { flags: flags.clone(), ..EngineTask::new(Task::Plan, engine.clone()) };
    Engines::default().get(engine).map_or(true, |engine| !engine.given_flags(&task).is_empty())
}

/// Whether the reason of a failure, of any engine, is a variable without a value.
pub fn lacks_variable(reason: &str) -> bool {
    Engines::default().iter().any(|engine| engine.lacks_variable(reason))
}

pub fn engine_hint(engine: &EngineName) -> &'static str {
    Engines::default().get(engine).map_or("", |engine| engine.install_hint())
}

/// A readable name that is valid for every file system and every server.
pub fn safe_name(text: &str, fallback: &str) -> String {
    let safe = |letter: char| if letter.is_ascii_alphanumeric() || letter == '_' { letter } else { '-' };
    let name: String = text.chars().map(safe).take(40).collect();
    let name = name.trim_matches('-');
    if name.is_empty() { fallback.to_owned() } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_directory_always_has_the_same_private_area_and_two_never_share_one() {
        let home = tempfile::tempdir().unwrap();
        let data = home.path().join("data");
        for name in ["a/app", "b/app", "b/ö x"] {
            fs::create_dir_all(home.path().join(name)).unwrap();
        }
        let area = |name: &str| Area::of(home.path().join(name).canonicalize().unwrap(), &data).unwrap();
        let (first, again, other) = (area("a/app"), area("a/../a/app"), area("b/app"));
        assert_eq!(first.folders().working_directory, again.folders().working_directory);
        assert_eq!(first.runner_id(), again.runner_id());
        assert_eq!((first.module.as_str(), other.module.as_str()), ("app", "app"));
        assert_ne!(first.folders().working_directory, other.folders().working_directory);
        assert_ne!(first.runner_id(), other.runner_id());
        assert_eq!(area("b/ö x").module, "x");
        assert_eq!(fs::metadata(&first.root).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_second_run_on_the_same_directory_is_refused_until_the_first_ends() {
        let home = tempfile::tempdir().unwrap();
        let area = Area::of(home.path().to_owned(), &home.path().join("data")).unwrap();
        let lock = area.lock().unwrap();
        assert!(matches!(area.lock(), Err(LocalError::Busy { .. })));
        drop(lock);
        area.lock().unwrap();
    }

    #[test]
    fn the_engine_is_the_requested_one_or_an_installed_one_that_fits() {
        let only = |engine: EngineName| move |other: &EngineName| *other == engine;
        let (tf, tofu, pulumi) = (["main.tf".into()], ["main.tofu".into()], ["Pulumi.yaml".into()]);
        let both = |engine: &EngineName| *engine != EngineName::PULUMI;
        assert_eq!(choose(None, None, &tf, both).unwrap(), EngineName::TOFU);
        assert_eq!(choose(None, None, &tf, only(EngineName::TERRAFORM)).unwrap(), EngineName::TERRAFORM);
        assert_eq!(
            choose(Some(EngineName::TERRAFORM), Some(EngineName::TOFU), &tf, both).unwrap(),
            EngineName::TERRAFORM
        );
        assert_eq!(choose(None, None, &pulumi, only(EngineName::PULUMI)).unwrap(), EngineName::PULUMI);

        let last = |engine: EngineName, names: &[OsString]| choose(None, Some(engine), names, both);
        assert_eq!(last(EngineName::TERRAFORM, &tf).unwrap(), EngineName::TERRAFORM);
        assert_eq!(last(EngineName::TERRAFORM, &tofu).unwrap(), EngineName::TOFU, "it does not fit");
        // Another engine may not read the state.
        choose(None, Some(EngineName::TOFU), &tf, only(EngineName::TERRAFORM)).unwrap_err();

        let error =
            choose(Some(EngineName::TOFU), None, &tf, only(EngineName::TERRAFORM)).unwrap_err().to_string();
        assert!(error.contains("tofu not found"), "{error}");
        choose(None, None, &tofu, only(EngineName::TERRAFORM)).unwrap_err();
        let error = choose(None, None, &tf, |_| false).unwrap_err().to_string();
        assert!(error.contains("tofu and terraform"), "{error}");
    }

    #[test]
    fn an_area_remembers_the_engine_of_its_last_run() {
        let home = tempfile::tempdir().unwrap();
        let data = home.path().join("data");
        assert_eq!(last_engine(home.path(), &data), None);
        assert!(!data.exists());
        let area = Area::of(home.path().to_owned(), &data).unwrap();
        for engine in [EngineName::TOFU, EngineName::TERRAFORM] {
            area.remember_engine(&engine).unwrap();
            assert_eq!(last_engine(home.path(), &data), Some(engine));
        }
    }

    #[test]
    fn the_built_in_example_is_the_one_in_the_repository() {
        let example_dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/hello");
        let mut names: Vec<_> =
            fs::read_dir(example_dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.retain(|name| name.to_string_lossy().ends_with(".tf"));
        assert_eq!(names.len(), EXAMPLE.len(), "{names:?}");
        let data = tempfile::tempdir().unwrap();
        assert!(example(data.path()).unwrap().starts_with(data.path()));
    }
}
