//! The runner's side: start a supervisor, and wait for one, whoever has started it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use std::{io, thread};

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::base::process::{Inherited, search_path};
use crate::step::{FolderError, StepFolder};

/// The first pause of [`wait`]; each is longer than the one before, so that the end of a short script is seen at once.
const FIRST_PAUSE: Duration = Duration::from_millis(4);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Stands in front of the names of the script's variables on their way through the supervisor. There they mean nothing: a
/// `LD_PRELOAD` of a module must not be loaded into the process that says how its script ended.
const FOR_SCRIPT: &str = "SCRIPT:";

/// What the supervisor itself gets of the host besides `ALWAYS` in `base::process`: this program may need its libraries.
const FOR_SUPERVISOR: &str = "LD_*";

/// What the supervisor runs.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The text of a bash script.
    pub script: String,
    pub directory: PathBuf,
    /// The whole environment of the script.
    pub environment: Vec<(OsString, OsString)>,
    /// A lock that is to be held until the script has ended, whatever becomes of the runner.
    pub held: Option<Arc<File>>,
}

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("the directory {} to run in cannot be entered: {source}", path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("cannot start the supervisor {}: {source}", program.display())]
    Start { program: PathBuf, source: io::Error },
}

/// This program, as something that can be started.
pub fn program() -> PathBuf {
    // An upgrade may have replaced or removed the file; this link still leads to the program that runs.
    PathBuf::from("/proc/self/exe")
}

/// Starts the supervisor of a step whose script is written and whose lock is held, and hands the lock over to it.
/// It goes on when this process ends. Returns its process id; [`wait`] tells when it is done.
///
/// A supervisor that is killed before it could begin leaves neither `supervisor.json` nor `exit.json`: the step is
/// then, as its stage says, still to be prepared.
///
/// `module` is the lock of the module's directory, which the supervisor holds as well until it ends: a runner that
/// dies must not free the directory for another one while its script goes on. It travels as the supervisor's stdout,
/// which it has no other use for. A lock that the task wants to be held travels as its stderr in the same way.
pub fn launch(
    program: &Path,
    folder: &StepFolder,
    lock: File,
    module: Option<File>,
    launch: &Launch,
) -> Result<u32, LaunchError> {
    let directory = |source| LaunchError::Directory { path: launch.directory.clone(), source };
    // A missing directory and a missing program are one error to the system, but not to a user.
    if !std::fs::metadata(&launch.directory).map_err(directory)?.is_dir() {
        return Err(directory(io::ErrorKind::NotADirectory.into()));
    }
    let failed = |source| LaunchError::Start { program: program.to_owned(), source };
    // The supervisor runs in the script's directory, so a relative path would lead elsewhere.
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
    // It is our child as long as we live, and must not stay behind as a zombie. Should there be no thread to be had,
    // it does, which is better than to call a step failed that runs.
    let reaper = thread::Builder::new().name(format!("reap-{pid}")).stack_size(64 * 1024);
    if let Err(error) = reaper.spawn(move || child.wait()) {
        tracing::warn!("supervisor {pid} will not be reaped: {error}");
    }
    Ok(pid)
}

fn for_script(name: &OsStr) -> OsString {
    let mut marked = OsString::from(FOR_SCRIPT);
    marked.push(name);
    marked
}

/// In the supervisor: the environment that its script is to have.
pub(super) fn environment_of_script() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os().filter_map(|(name, value)| {
        let name = name.as_bytes().strip_prefix(FOR_SCRIPT.as_bytes())?;
        Some((OsStr::from_bytes(name).to_owned(), value))
    })
}

/// Waits until nobody drives the step, and takes its lock. None when `cancel` came first; the step goes on then.
pub async fn wait(folder: &StepFolder, cancel: &CancellationToken) -> Result<Option<File>, FolderError> {
    let mut pause = FIRST_PAUSE;
    loop {
        if let Some(lock) = folder.try_lock()? {
            return Ok(Some(lock));
        }
        if cancel.run_until_cancelled(sleep(pause)).await.is_none() {
            return Ok(None);
        }
        pause = (pause * 3 / 2).min(LONGEST_PAUSE);
    }
}
