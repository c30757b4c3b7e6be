//! Runs a helper program (git, `terraform show -json`) and captures its output.
//!
//! The program inherits the host's environment without the runner's own variables ([`Inherited`]). There is no shell and
//! no terminal: arguments are passed unchanged, and stdin is empty or a file. The program leads its own process group. If
//! it is cancelled, times out or prints too much, the whole group is interrupted and, after a grace period, killed. `run`
//! returns only when the group is gone. The exit code alone decides between success and failure.
//!
//! Long work that must survive the runner belongs to the supervisor instead.

mod find;
mod group;
mod inherited;
mod lines;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
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

/// Enough for the JSON plan of a large deployment.
const DEFAULT_MAX_STDOUT: usize = 256 * 1024 * 1024;
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);
/// The time between the interrupt and the kill.
const GRACE: Duration = Duration::from_secs(5);
/// A daemon that the program left behind may hold the pipes open forever. Output that is not complete by then does not
/// count as the program's answer.
const PIPES_AFTER_EXIT: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    #[error(transparent)]
    NotFound(#[from] NotFound),
    #[error("{program} failed to {purpose}: {}{}", describe(.status), last_lines(.stderr))]
    Failed { program: String, purpose: String, status: ExitStatus, stderr: Vec<String> },
    #[error("{program} could not {purpose}: {stop}{}", last_lines(.stderr))]
    Stopped { program: String, purpose: String, stop: Stop, stderr: Vec<String> },
}

/// Why a program did not run to its end, or why its output cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    #[error("cannot start it: {0}")]
    Start(io::Error),
    #[error("cannot read its output: {0}")]
    Pipe(io::Error),
    #[error("it took longer than {} s and was stopped", .0.as_secs())]
    TimedOut(Duration),
    #[error("it printed more than {0} bytes and was stopped")]
    TooMuchOutput(usize),
    #[error("it exited, but a process that it started still holds its output open, which may be incomplete")]
    Unfinished,
    #[error("cancelled")]
    Cancelled,
}

impl ProcessError {
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Self::Stopped { stop: Stop::Cancelled, .. })
    }
}

fn describe(status: &ExitStatus) -> String {
    status.code().map_or_else(|| status.to_string(), |code| format!("exit code {code}"))
}

fn last_lines(stderr: &[String]) -> String {
    if stderr.is_empty() { String::new() } else { format!("\n{}", stderr.join("\n")) }
}

/// The output of a program that exited with 0.
#[derive(Debug)]
pub struct ProgramOutput {
    stdout: Result<Vec<u8>, ProcessError>,
}

impl ProgramOutput {
    /// Returns an error if the output is incomplete, which does not matter to callers that ignore it.
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
    max_stdout: usize,
    clean: fn(&str) -> String,
}

impl Tool {
    /// `purpose` completes the sentence "git could not …" and must not contain secrets.
    pub fn new(program: impl Into<PathBuf>, purpose: impl Into<String>) -> Self {
        let program = program.into();
        let command = Command::new(&program);
        Self::by(program, purpose.into(), command)
    }

    /// Like [`new`](Self::new), for a program that creates files with the usual modes instead of private ones, see
    /// [`super::files::keep_private`].
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

    /// Replaces the inherited environment.
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

    /// Passes every line of stderr through `clean`, which removes secrets.
    pub fn clean_lines(mut self, clean: fn(&str) -> String) -> Self {
        self.clean = clean;
        self
    }

    pub async fn run(mut self, cancel: &CancellationToken) -> Result<ProgramOutput, ProcessError> {
        if cancel.is_cancelled() {
            return Err(self.stopped(Stop::Cancelled, Vec::new()));
        }
        let mut child = self.command.spawn().map_err(|error| self.stopped(Stop::Start(error), Vec::new()))?;
        let group = Group::led_by(&child);
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());

        let (mut output, mut is_complete, mut tail) = (Vec::new(), false, LastLines::default());
        let (limit, clean) = (self.max_stdout, self.clean);
        let ended = {
            let reading = async {
                let stdout = async {
                    read_bounded(stdout, &mut output, limit).await?;
                    is_complete = true;
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
                () = tokio::time::sleep(self.timeout) => Err(Stop::TimedOut(self.timeout)),
                ended = run_to_end(&mut child, reading.as_mut()) => ended,
            };
            if ended.is_err() {
                group.end(&mut child, reading.as_mut(), GRACE).await;
            }
            ended
        };
        group.leave();
        match ended {
            Ok(status) if status.success() => {
                let unfinished = || self.stopped(Stop::Unfinished, Vec::new());
                Ok(ProgramOutput { stdout: is_complete.then_some(output).ok_or_else(unfinished) })
            }
            Ok(status) => {
                let (program, purpose) = (self.name(), self.purpose);
                Err(ProcessError::Failed { program, purpose, status, stderr: tail.into_lines() })
            }
            Err(stop) => Err(self.stopped(stop, tail.into_lines())),
        }
    }

    fn name(&self) -> String {
        let name = self.program.file_name().unwrap_or(self.program.as_os_str());
        name.to_string_lossy().into_owned()
    }

    fn stopped(&self, stop: Stop, stderr: Vec<String>) -> ProcessError {
        ProcessError::Stopped { program: self.name(), purpose: self.purpose.clone(), stop, stderr }
    }
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
    if into.len() > limit { Err(Stop::TooMuchOutput(limit)) } else { Ok(()) }
}

#[cfg(test)]
pub(crate) mod tests;
