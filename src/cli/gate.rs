//! `hawser gate SOCKET QUESTION…`: asks the supervisor whether the script of a step may go on. Only that script calls it, so it is
//! neither in the help nor parsed with the other commands.
//!
//! ```text
//! phase NAME                                            enters a phase
//! next                                                  goes on in the phase
//! engine [--private] [--as NAME] PROGRAM ARGUMENT…      becomes an engine command
//! ```
//!
//! After yes, the gate exits with 0, or becomes the engine by `exec`: same process, environment, limits and directory. After
//! no, and if it cannot ask, it exits with 130, as an interrupted program does.
//!
//! The supervisor may interrupt this process from the moment of its yes. An interrupt must then end it, or be received by the
//! engine. A handler would swallow it, and Go programs die of an interrupt that is pending when they start. So it has its
//! default effect, also if a hook ignores it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use rustix::fs::Mode;
use rustix::process::{Signal, umask};
use tokio::signal::unix::{SignalKind, signal};

use crate::script::bash_script::{NO_PROGRAM, PLACE_VARIABLES};
use crate::step::ScriptPhase;
use crate::supervisor::{self, Question, YES};

pub(super) const COMMAND: &str = "gate";

/// The exit codes of shells for an interrupted program, and for programs that cannot be found, or not be run.
const INTERRUPTED: u8 = 130;
const NOT_FOUND: u8 = 127;
const NOT_RUN: u8 = 126;

/// The arguments after `gate`.
pub(super) fn execute(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let (socket, question) = (arguments.next().unwrap_or_default(), arguments.next().unwrap_or_default());
    let mut engine = None;
    let question = match question.to_str() {
        Some("phase") => {
            let phase = arguments.next();
            let phase = phase.as_deref().and_then(OsStr::to_str).and_then(ScriptPhase::from_word);
            phase.map(|phase| Question::Phase { phase, place: place() })
        }
        Some("next") => Some(Question::Next),
        Some("engine") => EngineWords::read(arguments).map(|words| {
            let (name, wrapper) = (words.name.clone(), find(&words.program).filter(|file| is_script(file)));
            engine = Some(words);
            Question::Engine { name, wrapper: wrapper.map(PathBuf::into_os_string) }
        }),
        _ => None,
    };
    let Some(question) = question else {
        say("hawser: only the script of a step can use this command");
        return ExitCode::from(64);
    };
    let allowed = heed_interrupts(engine.is_some()).and_then(|()| ask(Path::new(&socket), &question));
    match (allowed, engine) {
        (Ok(None), None) => ExitCode::SUCCESS,
        (Ok(None), Some(engine)) => engine.become_it(),
        (Ok(Some(reason)), _) if !reason.is_empty() => {
            say(&reason);
            ExitCode::FAILURE
        }
        (Ok(Some(_)), _) => ExitCode::from(INTERRUPTED),
        (Err(error), _) => {
            say(&format!("hawser: cannot reach the supervisor of this step: {error}"));
            ExitCode::from(INTERRUPTED)
        }
    }
}

/// An engine command and how to run it.
struct EngineWords {
    /// Whether its files are for the user only.
    private: bool,
    name: String,
    program: OsString,
    arguments: Vec<OsString>,
}

impl EngineWords {
    fn read(mut arguments: impl Iterator<Item = OsString>) -> Option<Self> {
        let (mut private, mut name) = (false, String::new());
        loop {
            let word = arguments.next()?;
            match word.to_str() {
                Some("--private") => private = true,
                Some("--as") => name = arguments.next()?.into_string().ok()?,
                _ => return Some(Self { private, name, program: word, arguments: arguments.collect() }),
            }
        }
    }

    fn become_it(self) -> ExitCode {
        if self.private {
            umask(Mode::from_raw_mode(0o077));
        }
        let error = Command::new(&self.program).args(self.arguments).exec();
        let program = self.program.display();
        if find(&self.program).is_some() {
            say(&format!("hawser: cannot run {program}: {error}"));
            return ExitCode::from(NOT_RUN);
        }
        let path = std::env::var_os("PATH");
        let path = path.as_ref().map_or("not set".into(), |path| path.to_string_lossy());
        say(&format!("hawser: {NO_PROGRAM} {program} in PATH ({path})"));
        ExitCode::from(NOT_FOUND)
    }
}

/// Returns `None` after yes, otherwise the reason.
fn ask(socket: &Path, question: &Question) -> io::Result<Option<String>> {
    let mut connection = UnixStream::connect(socket)?;
    connection.write_all(&question.encode())?;
    connection.shutdown(Shutdown::Write)?;
    let mut answer = [0];
    connection.read_exact(&mut answer)?;
    if answer == [YES] {
        return Ok(None);
    }
    let mut reason = String::new();
    connection.read_to_string(&mut reason)?;
    Ok(Some(reason))
}

/// Gives an ignored interrupt its default effect. Only an `exec` can do that without unsafe code: it resets handlers. So the
/// gate starts again, before it asks.
fn heed_interrupts(necessary: bool) -> io::Result<()> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    if !necessary || ignored & (1 << (Signal::INT.as_raw() - 1)) == 0 {
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let _guard = runtime.enter();
    let _handler = signal(SignalKind::interrupt())?;
    Err(Command::new(supervisor::program()).args(std::env::args_os().skip(1)).exec())
}

/// The directory and [`PLACE_VARIABLES`], each followed by a NUL byte.
fn place() -> Vec<u8> {
    let directory = std::env::current_dir().unwrap_or_default();
    // As the user sees it, with the names of symlinks.
    let logical = std::env::var_os("PWD").map(PathBuf::from).filter(|logical| {
        logical.is_absolute() && logical.canonicalize().is_ok_and(|physical| physical == directory)
    });
    let variables = PLACE_VARIABLES.map(|name| std::env::var_os(name).unwrap_or_default());
    let values = std::iter::once(logical.unwrap_or(directory).into_os_string()).chain(variables);
    values.flat_map(|value| [value.as_bytes(), b"\0"].concat()).collect()
}

/// The file of a program, as `exec` finds it.
fn find(program: &OsStr) -> Option<PathBuf> {
    let is_file = |path: &PathBuf| path.is_file();
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program)).filter(is_file);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let executable =
        |path: &PathBuf| is_file(path) && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok();
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(executable)
}

fn is_script(file: &Path) -> bool {
    let mut start = [0; 2];
    File::open(file).and_then(|mut file| file.read_exact(&mut start)).is_ok() && start == *b"#!"
}

/// A hook may have closed stderr.
fn say(message: &str) {
    let _ = writeln!(io::stderr(), "{message}");
}
