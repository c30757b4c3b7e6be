//! The runner's side: starts supervisors and waits for them.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::{io, thread};

use crate::base::process::{Inherited, search_path};
use crate::base::retry::Delays;
use crate::step::{FolderError, StepFolder};

/// Prefix of the script's variables in the environment of the supervisor, where they must have no effect: an `LD_PRELOAD` of
/// a module must not be loaded into the process that records how its script ended.
const FOR_SCRIPT: &str = "SCRIPT:";

/// Host variables for the supervisor itself besides `ALWAYS` in `base::process`: this program may need its libraries.
const FOR_SUPERVISOR: &str = "LD_*";

/// What the supervisor runs.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The text of a bash script.
    pub script: String,
    pub directory: PathBuf,
    /// The whole environment of the script.
    pub environment: Vec<(OsString, OsString)>,
    /// A lock to hold until the script has ended, even if the runner dies.
    pub held: Option<Arc<File>>,
}

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("cannot enter the working directory {}: {source}", path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("cannot start the supervisor {}: {source}", program.display())]
    Start { program: PathBuf, source: io::Error },
}

/// The path by which this program can be started.
pub fn program() -> PathBuf {
    // This link works even after an upgrade has replaced or removed the file.
    PathBuf::from("/proc/self/exe")
}

/// Starts the supervisor of a step whose script is written, and passes the lock of the step to it. The supervisor outlives
/// this process. Returns its process ID; [`wait`] returns when it is done.
///
/// If the supervisor is killed before it starts the script, there is neither a `supervisor.json` nor an `exit.json`, and the
/// step starts again from `prepare`.
///
/// `module` is the lock of the module's directory. The supervisor holds it too, so that the directory stays locked while the
/// script runs, even if the runner dies. It is passed as the supervisor's stdout, which is otherwise unused. The lock in
/// [`Launch::held`] is passed as its stderr.
pub fn launch(
    program: &Path,
    folder: &StepFolder,
    lock: File,
    module: Option<File>,
    launch: &Launch,
) -> Result<u32, LaunchError> {
    let directory = |source| LaunchError::Directory { path: launch.directory.clone(), source };
    // `spawn` returns the same error for a missing directory and a missing program.
    if !std::fs::metadata(&launch.directory).map_err(directory)?.is_dir() {
        return Err(directory(io::ErrorKind::NotADirectory.into()));
    }
    let failed = |source| LaunchError::Start { program: program.to_owned(), source };
    // The supervisor runs in the script's directory.
    let path = std::path::absolute(folder.path()).map_err(failed)?;
    let held = launch.held.as_ref().map(|file| file.try_clone()).transpose().map_err(failed)?;
    let mut child = Command::new(program)
        .arg0("hawser")
        .arg("supervise")
        .arg(path)
        .current_dir(&launch.directory)
        .env_clear()
        .envs(Inherited::of_this_process().narrowed_to(Some(&[FOR_SUPERVISOR.to_owned()])).into_variables())
        .env("PATH", search_path(&[]))
        .envs(launch.environment.iter().map(|(name, value)| (for_script(name), value)))
        .stdin(Stdio::from(lock))
        .stdout(module.map_or_else(Stdio::null, Stdio::from))
        .stderr(held.map_or_else(Stdio::null, Stdio::from))
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    let pid = child.id();
    // Reaps the supervisor. If no thread can be started, it becomes a zombie, but the step is running.
    let reaper = thread::Builder::new().name(format!("reap-{pid}")).stack_size(64 * 1024);
    if let Err(error) = reaper.spawn(move || child.wait()) {
        tracing::warn!(pid, %error, "failed to start the thread that reaps the supervisor");
    }
    Ok(pid)
}

fn for_script(name: &OsStr) -> OsString {
    let mut prefixed = OsString::from(FOR_SCRIPT);
    prefixed.push(name);
    prefixed
}

/// Called in the supervisor: the environment of its script.
pub(super) fn environment_of_script() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os().filter_map(|(name, value)| {
        let name = name.as_bytes().strip_prefix(FOR_SCRIPT.as_bytes())?;
        Some((OsStr::from_bytes(name).to_owned(), value))
    })
}

/// Waits until no process drives the step, and takes its lock.
pub async fn wait(folder: &StepFolder) -> Result<File, FolderError> {
    let mut delays = Delays::supervisor();
    loop {
        if let Some(lock) = folder.try_lock()? {
            return Ok(lock);
        }
        delays.wait().await;
    }
}
