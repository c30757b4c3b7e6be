//! Runs a helper program (git, `terraform show -json`) to its end and keeps what it said.
//!
//! It inherits the host's environment without the runner's own part ([`Inherited`]).
//! No shell, no terminal: the arguments go to the program as they are, and its stdin is empty or a file. The
//! program leads a process group of its own. When it is cancelled, runs out of time or says too much, the whole
//! group is interrupted, killed after a grace, and waited for: an error is only returned when nothing of it
//! runs any more. The exit code alone decides whether it worked.
//!
//! Long work that must survive the runner is not for this module; that is what the supervisor is for.

mod find;
mod group;
mod inherited;
mod lines;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{Fuse, FusedFuture as _};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;

pub use find::{NotFound, find_only_in, find_program, search_path};
use group::Group;
#[cfg(feature = "testing")]
pub use inherited::ALWAYS;
pub use inherited::{Inherited, is_the_runners_own};
use lines::{LastLines, read_lines};

/// A plan of a large estate as JSON fits; a runaway program does not.
const DEFAULT_MAX_STDOUT: usize = 256 * 1024 * 1024;
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);
const DEFAULT_GRACE: Duration = Duration::from_secs(5);
/// A daemon that the program left behind may hold the pipes open for ever; what it says is not awaited. Whether what was read
/// by then is all that was to come, nobody knows: that does not pass for the program's answer.
const PIPES_AFTER_EXIT: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    #[error(transparent)]
    NotFound(#[from] NotFound),
    #[error("cannot start {program} to {purpose}")]
    Start { program: String, purpose: String, source: io::Error },
    #[error("lost the connection to {program} while it was to {purpose}")]
    Pipe { program: String, purpose: String, source: io::Error },
    #[error("{program} failed to {purpose}: {}{}", how_it_ended(.status), said(.stderr))]
    Failed { program: String, purpose: String, status: ExitStatus, stderr: Vec<String> },
    #[error("{program} took longer than {} s to {purpose} and was stopped{}", .after.as_secs(), said(.stderr))]
    TimedOut { program: String, purpose: String, after: Duration, stderr: Vec<String> },
    #[error("{program} printed more than {limit} bytes when asked to {purpose} and was stopped")]
    TooMuchOutput { program: String, purpose: String, limit: usize },
    #[error(
        "{program} has ended, but something that it started still holds its output open {} s later: nobody can tell whether \
         what it printed, when asked to {purpose}, is all of it, so it is not used",
        PIPES_AFTER_EXIT.as_secs()
    )]
    Unfinished { program: String, purpose: String },
    #[error("cancelled while {program} was to {purpose}")]
    Cancelled { program: String, purpose: String },
}

impl ProcessError {
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Self::Cancelled { .. })
    }
}

fn how_it_ended(status: &ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("ended by signal {signal}"),
        (None, None) => "ended in an unknown way".to_owned(),
    }
}

fn said(stderr: &[String]) -> String {
    if stderr.is_empty() { String::new() } else { format!("\n{}", stderr.join("\n")) }
}

/// What a program that exited with 0 has said.
#[derive(Debug)]
pub struct ProgramOutput {
    stdout: Result<Vec<u8>, ProcessError>,
}

impl ProgramOutput {
    /// What it printed, to its end. Who does not ask for it does not care whether that has come.
    pub fn stdout(self) -> Result<Vec<u8>, ProcessError> {
        self.stdout
    }

    pub fn text(self) -> Result<String, ProcessError> {
        Ok(String::from_utf8_lossy(&self.stdout()?).into_owned())
    }
}

/// A program with its arguments, about to be run.
#[derive(Debug)]
pub struct Tool {
    program: PathBuf,
    /// Completes the sentence "git failed to …".
    purpose: String,
    command: Command,
    timeout: Duration,
    /// How long an interrupted program may take before it is killed.
    grace: Duration,
    max_stdout: usize,
    clean: fn(&str) -> String,
}

impl Tool {
    /// `purpose` completes the sentence "cannot start git to …" and must hold no secret.
    pub fn new(program: impl Into<PathBuf>, purpose: impl Into<String>) -> Self {
        let program = program.into();
        let command = Command::new(&program);
        Self::by(program, purpose.into(), command)
    }

    /// As [`new`](Self::new), for a program whose files are to have the modes that they have elsewhere, and not those of
    /// this process, see [`super::files::keep_private`].
    pub fn with_usual_modes(program: impl Into<PathBuf>, purpose: impl Into<String>) -> Self {
        let program = program.into();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "umask 022; exec \"$0\" \"$@\""]).arg(&program);
        Self::by(program, purpose.into(), command)
    }

    fn by(program: PathBuf, purpose: String, mut command: Command) -> Self {
        command.env_clear().envs(Inherited::of_this_process().into_variables());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        Self {
            program,
            purpose,
            command,
            timeout: DEFAULT_TIMEOUT,
            grace: DEFAULT_GRACE,
            max_stdout: DEFAULT_MAX_STDOUT,
            clean: str::to_owned,
        }
    }

    pub fn args(mut self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.command.args(arguments);
        self
    }

    pub fn current_dir(mut self, folder: &Path) -> Self {
        self.command.current_dir(folder);
        self
    }

    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub fn envs(mut self, all: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        self.command.envs(all);
        self
    }

    /// Gives the program exactly these variables, instead of what it would inherit.
    pub fn environment(mut self, all: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        self.command.env_clear().envs(all);
        self
    }

    pub fn env_remove(mut self, name: impl AsRef<OsStr>) -> Self {
        self.command.env_remove(name);
        self
    }

    pub fn stdin(mut self, file: File) -> Self {
        self.command.stdin(file);
        self
    }

    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    pub fn max_stdout(mut self, bytes: usize) -> Self {
        self.max_stdout = bytes;
        self
    }

    /// Passes every line of stderr through `clean` before anyone sees it, to take secrets out.
    pub fn clean_lines(mut self, clean: fn(&str) -> String) -> Self {
        self.clean = clean;
        self
    }

    pub async fn run(mut self, cancel: &CancellationToken) -> Result<ProgramOutput, ProcessError> {
        if cancel.is_cancelled() {
            return Err(self.fail(Stop::Cancelled, Vec::new()));
        }
        let mut child = match self.command.spawn() {
            Ok(child) => child,
            Err(source) => {
                let (program, purpose) = self.names();
                return Err(ProcessError::Start { program, purpose, source });
            }
        };
        let group = Group::led_by(&child);
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());

        let (mut said, mut is_whole, mut tail) = (Vec::new(), false, LastLines::default());
        let (limit, clean) = (self.max_stdout, self.clean);
        let ended = {
            let reading = async {
                let stdout = async {
                    read_bounded(stdout, &mut said, limit).await?;
                    is_whole = true;
                    Ok(())
                };
                let stderr = async {
                    let Some(stderr) = stderr else { return Ok(()) };
                    read_lines(stderr, |line| tail.push(clean(line))).await.map_err(Stop::Pipe)
                };
                tokio::try_join!(stdout, stderr).map(|_| ())
            };
            let mut reading = pin!(reading.fuse());
            let ended = tokio::select! {
                biased;
                () = cancel.cancelled() => Err(Stop::Cancelled),
                () = tokio::time::sleep(self.timeout) => Err(Stop::TimedOut),
                ended = run_to_end(&mut child, reading.as_mut()) => ended,
            };
            if ended.is_err() {
                group.end(&mut child, reading.as_mut(), self.grace).await;
            }
            ended
        };
        group.leave();
        match ended {
            Ok(status) if status.success() => {
                let (program, purpose) = self.names();
                let unfinished = || ProcessError::Unfinished { program, purpose };
                Ok(ProgramOutput { stdout: is_whole.then_some(said).ok_or_else(unfinished) })
            }
            Ok(status) => {
                let (program, purpose) = self.names();
                Err(ProcessError::Failed { program, purpose, status, stderr: tail.into_lines() })
            }
            Err(stop) => Err(self.fail(stop, tail.into_lines())),
        }
    }

    fn names(&self) -> (String, String) {
        let name = self.program.file_name().unwrap_or(self.program.as_os_str());
        (name.to_string_lossy().into_owned(), self.purpose.clone())
    }

    fn fail(&self, stop: Stop, stderr: Vec<String>) -> ProcessError {
        let (program, purpose) = self.names();
        match stop {
            Stop::Cancelled => ProcessError::Cancelled { program, purpose },
            Stop::TimedOut => ProcessError::TimedOut { program, purpose, after: self.timeout, stderr },
            Stop::TooMuch => ProcessError::TooMuchOutput { program, purpose, limit: self.max_stdout },
            Stop::Pipe(source) => ProcessError::Pipe { program, purpose, source },
        }
    }
}

/// Why a program was not left alone until it ended.
#[derive(Debug)]
enum Stop {
    Cancelled,
    TimedOut,
    TooMuch,
    Pipe(io::Error),
}

type Reading<'a, F> = Pin<&'a mut Fuse<F>>;

async fn run_to_end<F>(child: &mut Child, mut reading: Reading<'_, F>) -> Result<ExitStatus, Stop>
where
    F: Future<Output = Result<(), Stop>>,
{
    tokio::select! {
        status = child.wait() => {
            let status = status.map_err(Stop::Pipe)?;
            if !reading.is_terminated()
                && let Ok(read) = tokio::time::timeout(PIPES_AFTER_EXIT, reading).await
            {
                read?;
            }
            Ok(status)
        }
        read = &mut reading => {
            read?;
            child.wait().await.map_err(Stop::Pipe)
        }
    }
}

async fn read_bounded(
    from: Option<impl AsyncRead + Unpin>,
    into: &mut Vec<u8>,
    limit: usize,
) -> Result<(), Stop> {
    let Some(from) = from else { return Ok(()) };
    let over = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    from.take(over).read_to_end(into).await.map_err(Stop::Pipe)?;
    if into.len() > limit { Err(Stop::TooMuch) } else { Ok(()) }
}

#[cfg(test)]
pub(crate) mod interrupts;
#[cfg(test)]
mod tests;
