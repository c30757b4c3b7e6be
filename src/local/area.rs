//! Where `hawser local` keeps what it needs: one private area per directory, found again by the next run.
//!
//! ```text
//! {data}/{name}-{hash}/       the area of one directory; name and hash come from its absolute path
//!   source.git/               snapshots of the directory
//!   work/                     the runner's working directory; the engine's local state lies in it
//!   temp/                     scratch space
//!   hawser.log                the runtime log of the last run
//!   lock                      held while a run is at work
//! {data}/examples/hello/      the example inside the program, for whoever has no directory at hand
//! ```
//!
//! The state of a module without a remote backend lives in `work`, so `--destroy` finds what an apply made,
//! and nothing is ever written into the user's own directory. Inside its module the directory is at its absolute path, which
//! stays the same when the directory becomes part of a repository.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use hawser_contract::Engine;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::base::files::{create_private_dir_all, write_private_atomic};
use crate::base::lock::{self, LockMode};
use crate::base::process;

/// The environment variable that names another data directory.
pub const DATA_VARIABLE: &str = "HAWSER_LOCAL_DIR";

/// The stack that the directory's module is in.
pub const STACK: &str = "local";

const EXAMPLE: [(&str, &str); 3] = [
    ("main.tf", include_str!("../../examples/hello/main.tf")),
    ("variables.tf", include_str!("../../examples/hello/variables.tf")),
    ("outputs.tf", include_str!("../../examples/hello/outputs.tf")),
];

#[derive(Debug, thiserror::Error)]
pub enum AreaError {
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("no place for local data is known: neither HAWSER_LOCAL_DIR nor a home directory is set")]
    NoData,
    #[error("another hawser local is at work on {}", directory.display())]
    Busy { directory: PathBuf },
    #[error("no engine is installed: looked for {} on PATH", programs(engines))]
    NoEngine { engines: Vec<Engine> },
    #[error("{engine} is not installed, or not on PATH")]
    EngineMissing { engine: Engine },
}

fn programs(engines: &[Engine]) -> String {
    engines.iter().map(|engine| engine.program()).collect::<Vec<_>>().join(" and ")
}

/// The area of one directory.
#[derive(Debug)]
pub struct Area {
    /// Absolute, without symlinks.
    pub directory: PathBuf,
    pub namespace: String,
    pub module: String,
    root: PathBuf,
    hash: [u8; 32],
}

impl Area {
    /// Finds, or makes, the area of `directory` in `data`.
    pub fn of(directory: &Path, data: &Path) -> Result<Self, AreaError> {
        let directory = directory.canonicalize().map_err(failed("find", directory))?;
        let hash: [u8; 32] = Sha256::digest(directory.as_os_str().as_bytes()).into();
        let namespace: String = hash.iter().take(5).map(|byte| format!("{byte:02x}")).collect();
        let module = safe_name(&directory);
        let root = data.join(format!("{module}-{namespace}"));
        create_private_dir_all(&root).map_err(failed("create", &root))?;
        let root = root.canonicalize().map_err(failed("find", &root))?;
        Ok(Self { directory, namespace, module, root, hash })
    }

    pub fn repository(&self) -> PathBuf {
        self.root.join("source.git")
    }

    pub fn working_directory(&self) -> PathBuf {
        self.root.join("work")
    }

    pub fn temp_directory(&self) -> PathBuf {
        self.root.join("temp")
    }

    pub fn log(&self) -> PathBuf {
        self.root.join("hawser.log")
    }

    /// The identity of the area's runner. It stays the same, so that a run finds the steps that an earlier one
    /// left behind when it was killed, and waits for them.
    pub fn runner_id(&self) -> Uuid {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&self.hash[16..]);
        uuid::Builder::from_random_bytes(bytes).into_uuid()
    }

    /// Keeps a second run on the same directory out for as long as it is held.
    pub fn lock(&self) -> Result<lock::OwnLock, AreaError> {
        let path = self.root.join("lock");
        let held = lock::try_own(&path, LockMode::Alone).map_err(failed("lock", &path))?;
        held.ok_or_else(|| AreaError::Busy { directory: self.directory.clone() })
    }
}

/// The directory that holds all areas: what was asked for, or the user's data directory. It may not be there yet.
pub fn data_directory(asked: Option<PathBuf>) -> Result<PathBuf, AreaError> {
    match asked {
        Some(path) => Ok(path),
        None => Ok(dirs::data_local_dir().ok_or(AreaError::NoData)?.join("hawser").join("local")),
    }
}

/// The example inside this program, written out: the same one, with the same state, wherever the user stands.
pub fn example(data: &Path) -> Result<PathBuf, AreaError> {
    let written = data.join("examples").join("hello");
    create_private_dir_all(&written).map_err(failed("create", &written))?;
    for (name, contents) in EXAMPLE {
        let path = written.join(name);
        write_private_atomic(&path, contents.as_bytes()).map_err(failed("write", &path))?;
    }
    Ok(written)
}

/// The engine that was asked for if it is installed, otherwise the first installed one that fits the directory.
pub fn engine(asked: Option<Engine>, directory: &Path) -> Result<Engine, AreaError> {
    choose(asked, directory, |engine| process::find_program(engine.program(), &[]).is_ok())
}

fn choose(
    asked: Option<Engine>,
    directory: &Path,
    installed: impl Fn(Engine) -> bool,
) -> Result<Engine, AreaError> {
    if let Some(engine) = asked {
        return if installed(engine) { Ok(engine) } else { Err(AreaError::EngineMissing { engine }) };
    }
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed("list", directory))?.flatten() {
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    let any = |suffixes: &[&str]| names.iter().any(|name| suffixes.iter().any(|it| name.ends_with(it)));
    let fitting: &[Engine] = if any(&[".tf", ".tf.json"]) {
        &[Engine::Tofu, Engine::Terraform]
    } else if any(&[".tofu", ".tofu.json"]) {
        &[Engine::Tofu]
    } else if names.iter().any(|name| name == "Pulumi.yaml" || name == "Pulumi.yml") {
        &[Engine::Pulumi]
    } else {
        // The snapshot says what is missing.
        &[Engine::Tofu, Engine::Terraform]
    };
    let found = fitting.iter().copied().find(|engine| installed(*engine));
    found.ok_or_else(|| AreaError::NoEngine { engines: fitting.to_vec() })
}

/// How to get an engine.
pub fn engine_hint(engine: Engine) -> &'static str {
    match engine {
        Engine::Terraform => "install Terraform: https://developer.hashicorp.com/terraform/install",
        Engine::Tofu => "install OpenTofu: https://opentofu.org/docs/intro/install/",
        Engine::Pulumi => "install Pulumi: https://www.pulumi.com/docs/install/",
    }
}

/// The last part of the path as a name that every file system and every server takes.
fn safe_name(directory: &Path) -> String {
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    let safe = |letter: char| if letter.is_ascii_alphanumeric() || letter == '_' { letter } else { '-' };
    let name: String = name.chars().map(safe).take(40).collect();
    let name = name.trim_matches('-');
    if name.is_empty() { "module".to_owned() } else { name.to_owned() }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> AreaError {
    let path = path.to_owned();
    move |source| AreaError::Io { action, path, source }
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
        let place = |name: &str| Area::of(&home.path().join(name), &data).unwrap();
        let (first, again, other) = (place("a/app"), place("a/../a/app"), place("b/app"));
        assert_eq!(first.working_directory(), again.working_directory());
        assert_eq!(first.runner_id(), again.runner_id());
        assert_eq!((first.module.as_str(), other.module.as_str()), ("app", "app"));
        assert_ne!(first.working_directory(), other.working_directory());
        assert_ne!(first.runner_id(), other.runner_id());
        assert_eq!(place("b/ö x").module, "x");
        assert_eq!(fs::metadata(&first.root).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_second_run_on_the_same_directory_is_kept_out_until_the_first_has_ended() {
        let home = tempfile::tempdir().unwrap();
        let place = Area::of(home.path(), &home.path().join("data")).unwrap();
        let held = place.lock().unwrap();
        assert!(matches!(place.lock(), Err(AreaError::Busy { .. })));
        drop(held);
        place.lock().unwrap();
    }

    #[test]
    fn the_engine_is_the_one_asked_for_or_an_installed_one_that_fits() {
        let only = |engine: Engine| move |it: Engine| it == engine;
        let directory = |file: &str| {
            let directory = tempfile::tempdir().unwrap();
            fs::write(directory.path().join(file), "").unwrap();
            directory
        };
        let (tf, tofu, pulumi) = (directory("main.tf"), directory("main.tofu"), directory("Pulumi.yaml"));
        let both = |it: Engine| it != Engine::Pulumi;
        assert_eq!(choose(None, tf.path(), both).unwrap(), Engine::Tofu);
        assert_eq!(choose(None, tf.path(), only(Engine::Terraform)).unwrap(), Engine::Terraform);
        assert_eq!(choose(Some(Engine::Terraform), tf.path(), both).unwrap(), Engine::Terraform);
        assert_eq!(choose(None, pulumi.path(), only(Engine::Pulumi)).unwrap(), Engine::Pulumi);

        let error = choose(Some(Engine::Tofu), tf.path(), only(Engine::Terraform)).unwrap_err().to_string();
        assert!(error.contains("tofu is not installed"), "{error}");
        choose(None, tofu.path(), only(Engine::Terraform)).unwrap_err();
        let error = choose(None, tf.path(), |_| false).unwrap_err().to_string();
        assert!(error.contains("tofu and terraform"), "{error}");
    }

    #[test]
    fn the_example_inside_the_program_is_the_one_in_the_project() {
        let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/hello");
        let mut names: Vec<_> = fs::read_dir(shipped).unwrap().map(|it| it.unwrap().file_name()).collect();
        names.retain(|name| name.to_string_lossy().ends_with(".tf"));
        assert_eq!(names.len(), EXAMPLE.len(), "{names:?}");
        let data = tempfile::tempdir().unwrap();
        assert!(example(data.path()).unwrap().starts_with(data.path()));
    }
}
