//! The supervisor's main loop: feeds events to `lifecycle` and carries out its actions.

use std::fs::{self, File, OpenOptions};
use std::io::{self, PipeWriter, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use hawser_contract::requests::CancelKind;
use jiff::Timestamp;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, wait};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use super::client::environment_of_script;
use super::hold::StoppedProcesses;
use super::interrupt::{Interrupts, ProcessInfo};
use super::lifecycle::{Action, Event, InterruptReason, Lifecycle, exit};
use super::linux;
use super::output::{OutputLog, Pump, SharedLog, lock};
use super::session::{Signals, inherited_lock, leave_session};
use super::stuck::Stuck;
use crate::base::process::find_program;
use crate::base::retry::Delays;
use crate::step::{COLLECT, CancelledBy, Exit, FolderError, StepFolder, Stream, SupervisorNote};

/// How often to check for `cancel.json`. A cancel must reach the engine within a second.
const TICK: Duration = Duration::from_millis(100);
/// How many ticks the results may be read before the log says so. Engines print nothing while they do that.
const LONG_READ: u32 = 30;
/// How often to check for processes that have missed an interrupt.
const LOOK: Duration = Duration::from_millis(500);
/// Enough for the exit, the last records and the outcome.
const RESERVE: usize = 64 * 1024;
/// How long to retry writing the exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// Each sweep of a kill finds processes that were forked during the one before.
const SWEEPS: usize = 5;
/// How many processes to list in a message.
const MAX_LISTED: usize = 10;

#[derive(Debug, thiserror::Error)]
pub enum SuperviseError {
    #[error("stdin is not the lock of {}, or another process holds it: only the runner starts supervisors", folder.display())]
    NotOurs { folder: PathBuf },
    #[error("the step was cancelled before its script started")]
    Cancelled,
    #[error("cannot start the script: bash is not on the PATH of the runner")]
    NoBash,
    #[error("cannot {action}: {source}")]
    Io { action: &'static str, source: io::Error },
    #[error(transparent)]
    Folder(#[from] FolderError),
}

fn failed(action: &'static str) -> impl FnOnce(io::Error) -> SuperviseError {
    move |source| SuperviseError::Io { action, source }
}

/// Runs the script of a step. Does nothing if it was started before.
pub fn run(folder: &StepFolder) -> Result<(), SuperviseError> {
    let _lock = inherited_lock(folder)
        .map_err(failed("inherit the step's lock"))?
        .ok_or_else(|| SuperviseError::NotOurs { folder: folder.path().to_owned() })?;
    if folder.supervisor()?.is_some() || folder.exit()?.is_some() {
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed("start the event loop"))?;
    runtime.block_on(async {
        let signals = Signals::catch().map_err(failed("catch signals"))?;
        leave_session();
        let exit = match RunningScript::start(folder) {
            Ok(script) => script.supervise(signals).await,
            Err(error) => Exit::Failure(error.to_string()),
        };
        release_reserve(folder);
        write_exit(folder, &exit).await
    })
}

/// The running script.
#[derive(Debug)]
struct RunningScript<'a> {
    folder: &'a StepFolder,
    /// The script's process, which is also its process group.
    pid: Pid,
    /// The script's process is reaped, so its number may be reused.
    reaped: bool,
    log: SharedLog,
    pump: JoinHandle<()>,
    /// Dropped to stop the pump.
    stop: PipeWriter,
    events: mpsc::Receiver<Event>,
    /// Identifies the last `cancel.json` that was read.
    cancel_seen: Option<(u64, SystemTime)>,
    /// Set once the script was interrupted.
    interrupted: Option<Interrupted>,
    /// The number of ticks in which the script was reading the results of the engine.
    reading: u32,
}

/// The state after an interrupt.
#[derive(Debug)]
struct Interrupted {
    /// Set until the script has noticed the interrupt. After that, it only starts its clean-up.
    again: Option<Interrupts>,
    stuck: Stuck,
    /// The time of the last check.
    looked: Instant,
}

impl<'a> RunningScript<'a> {
    /// Starts the script. Everything else that can fail is done first.
    fn start(folder: &'a StepFolder) -> Result<Self, SuperviseError> {
        if folder.cancel()?.is_some() {
            return Err(SuperviseError::Cancelled);
        }
        reserve(folder).map_err(FolderError::io("reserve disk space in", folder.path()))?;
        let script = folder.script_path();
        File::open(&script).map_err(FolderError::io("read", &script))?;
        let writer = folder.writer()?;
        // Uses the host's PATH, because the script's PATH may come from the server.
        let bash = find_program("bash", &[]).map_err(|_| SuperviseError::NoBash)?;
        linux::adopt_orphans().map_err(failed("adopt orphaned processes"))?;

        let (stdout, stdout_of_script) = io::pipe().map_err(failed("create a pipe"))?;
        let (stderr, stderr_of_script) = io::pipe().map_err(failed("create a pipe"))?;
        let (stop_reader, stop) = io::pipe().map_err(failed("create a pipe"))?;
        // `OutputLost` and `Closed`, each sent once.
        let (sender, events) = mpsc::channel(2);
        let log = Arc::new(Mutex::new(OutputLog::new(writer, sender.clone())));
        let pump = Pump::new(stdout, stderr, stop_reader, Arc::clone(&log));
        let pump = thread::Builder::new()
            .spawn(move || {
                pump.run();
                let _ = sender.blocking_send(Event::Closed);
            })
            .map_err(failed("start a thread"))?;

        let note =
            SupervisorNote { pid: std::process::id(), started: Timestamp::now(), boot_id: linux::boot_id() };
        folder.set_supervisor(&note)?;
        let child = Command::new(bash)
            .arg(&script)
            .env_clear()
            .envs(environment_of_script())
            .stdin(Stdio::null())
            .stdout(stdout_of_script)
            .stderr(stderr_of_script)
            .process_group(0)
            .spawn()
            .map_err(failed("start the script with bash"))?;
        let pid = Pid::from_child(&child);
        Ok(Self {
            folder,
            pid,
            reaped: false,
            log,
            pump,
            stop,
            events,
            cancel_seen: None,
            interrupted: None,
            reading: 0,
        })
    }

    async fn supervise(mut self, mut signals: Signals) -> Exit {
        let mut lifecycle = Lifecycle::default();
        if let Some(limitation) = linux::limitation() {
            self.say(Stream::Warning, limitation);
        }
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let (ended, lost) = 'running: loop {
            let mut events = Vec::new();
            tokio::select! {
                _ = signals.child.recv() => self.reap(&mut events),
                _ = signals.terminate.recv() => events.push(Event::Terminated),
                Some(event) = self.events.recv() => events.push(event),
                _ = tick.tick() => {
                    events.extend(self.cancel());
                    self.reap(&mut events);
                    self.interrupt_again();
                    self.report_reading();
                    events.push(Event::Tick);
                }
            }
            for event in events {
                for action in lifecycle.on(event, Instant::now()) {
                    if let Action::Finish { ended, lost } = action {
                        break 'running (ended, lost);
                    }
                    self.act(&action);
                }
            }
        };
        drop(self.stop);
        let _ = self.pump.join();
        release_reserve(self.folder);
        let finished = lock(&self.log).finish();
        exit(ended, lost.or_else(|| finished.err().map(|error| error.to_string())))
    }

    /// Reaps the script and adopted orphans that have exited.
    fn reap(&mut self, events: &mut Vec<Event>) {
        let childless = loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.pid => {
                    self.reaped = true;
                    let signal = status.terminating_signal().map(Exit::Signal);
                    let code = || Exit::Code(status.exit_status().unwrap_or_default());
                    events.push(Event::Ended(signal.unwrap_or_else(code)));
                }
                Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
                Ok(None) => break false,
                Err(_) => break true,
            }
        };
        if linux::is_alone(self.pid, childless) {
            events.push(Event::Alone);
        }
    }

    /// Logs once that the results are being read, if that takes long.
    fn report_reading(&mut self) {
        if self.reading < LONG_READ && self.folder.part().as_deref() == Some(COLLECT) {
            self.reading += 1;
            if self.reading == LONG_READ {
                self.say(Stream::Information, "Reading the results");
            }
        }
    }

    /// A cancel that was requested since the last check.
    fn cancel(&mut self) -> Option<Event> {
        let metadata = fs::metadata(self.folder.cancel_path()).ok()?;
        let seen = (metadata.ino(), metadata.modified().ok()?);
        if self.cancel_seen.replace(seen) == Some(seen) {
            return None;
        }
        match self.folder.cancel() {
            Ok(None) => None,
            Ok(Some(cancel)) => Some(Event::Cancel {
                kind: cancel.kind,
                kill_after: cancel.kill_after_seconds.map(Duration::from_secs),
                by: cancel.by,
            }),
            // Probably written by a newer runner. It is a cancel of some kind.
            Err(error) => {
                self.say(Stream::Warning, &format!("{error}; treating it as a graceful cancel"));
                Some(Event::Cancel { kind: CancelKind::Graceful, kill_after: None, by: CancelledBy::Server })
            }
        }
    }

    /// Sends signals before it writes to the log, because the disk may be slow.
    fn act(&mut self, action: &Action) {
        match action {
            Action::Interrupt(reason) => {
                self.interrupt();
                let (stream, why) = match reason {
                    InterruptReason::Cancelled => (Stream::Information, "the job is being cancelled"),
                    InterruptReason::Drained => {
                        (Stream::Warning, "the runner is shutting down, and Runner.DrainTimeoutSeconds has passed")
                    }
                    InterruptReason::Terminated => (Stream::Warning, "the supervisor received SIGTERM"),
                    InterruptReason::OutputLost => (Stream::Error, "failed to write the output"),
                };
                self.say(stream, &format!("interrupt sent: {why}"));
            }
            Action::EndLeftovers => {
                let left = linux::signal_all(self.pid, Signal::TERM);
                if !left.is_empty() {
                    let message = format!("the script left {} running; terminating", listed(&left));
                    self.say(Stream::Warning, &message);
                }
            }
            Action::Kill { first } => {
                self.kill();
                if *first {
                    self.say(Stream::Warning, "kill sent to every process of the step");
                }
            }
            Action::LogUnkillable => {
                let message = format!("still running after the kill: {}", listed(&linux::living()));
                self.say(Stream::Warning, &message);
            }
            Action::LogHeldOpen => self.say(
                Stream::Warning,
                "the script's output is still held open by a process outside the step; its further output is discarded",
            ),
            Action::Finish { .. } => {}
        }
    }

    fn interrupt(&mut self) {
        if self.reaped {
            return;
        }
        let (held, before) = StoppedProcesses::of(self.pid);
        let _ = kill_process_group(self.pid, Signal::INT);
        let after = linux::members(self.pid);
        drop(held);
        let again = Interrupts::new(self.pid, getpid(), &before, &after);
        self.interrupted =
            Some(Interrupted { again: Some(again), stuck: Stuck::default(), looked: Instant::now() });
    }

    /// Interrupts the processes that have missed the interrupt, and kills shells that loop on it.
    fn interrupt_again(&mut self) {
        let Some(interrupted) = &mut self.interrupted else { return };
        if interrupted.looked.elapsed() < LOOK {
            return;
        }
        interrupted.looked = Instant::now();
        let now = linux::members(self.pid);
        // Checked after the list is made, see `interrupt`.
        let noticed = fs::metadata(self.folder.noticed_path()).is_ok_and(|file| file.len() > 0);
        if self.reaped {
            self.interrupted = None;
            return;
        }
        if noticed {
            interrupted.again = None;
        }
        let missed = interrupted.again.as_mut().map(|again| again.missed(&now)).unwrap_or_default();
        let stuck = interrupted.stuck.find(&now);
        for process in &missed {
            let _ = kill_process(process.pid, Signal::INT);
        }
        for process in &stuck {
            let _ = kill_process(process.pid, Signal::KILL);
        }
        if !missed.is_empty() {
            let message = format!("interrupt sent to {}, which had missed it", listed(&missed));
            self.say(Stream::Information, &message);
        }
        if !stuck.is_empty() {
            let message = format!("kill sent to {}, which was looping on the interrupt", listed(&stuck));
            self.say(Stream::Warning, &message);
        }
    }

    fn kill(&self) {
        // The group first, all at once, so that its processes cannot escape by forking.
        if !self.reaped {
            let _ = kill_process_group(self.pid, Signal::KILL);
        }
        let mut known = Vec::new();
        for _ in 0..SWEEPS {
            let running = linux::signal_all(self.pid, Signal::KILL);
            if running.iter().all(|process| known.contains(&process.pid)) {
                break;
            }
            known.extend(running.iter().map(|process| process.pid));
        }
    }

    fn say(&self, stream: Stream, message: &str) {
        lock(&self.log).say(stream, message);
    }
}

/// `2 processes (sleep 71, server 75)`.
fn listed(processes: &[ProcessInfo]) -> String {
    let name = |process: &ProcessInfo| format!("{} {}", process.name, process.pid.as_raw_pid());
    let mut names: Vec<String> = processes.iter().take(MAX_LISTED).map(name).collect();
    if processes.len() > MAX_LISTED {
        names.push("…".to_owned());
    }
    let noun = if processes.len() == 1 { "process" } else { "processes" };
    format!("{} {noun} ({})", processes.len(), names.join(", "))
}

/// Reserves disk space, so that the end of the step can be recorded on a full disk.
fn reserve(folder: &StepFolder) -> io::Result<()> {
    let mut file =
        OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(folder.reserve_path())?;
    file.write_all(&[0; RESERVE])
}

fn release_reserve(folder: &StepFolder) {
    // If this fails, so does the next write, which reports the error.
    let _ = fs::remove_file(folder.reserve_path());
}

/// Writes the exit, and retries for a while.
async fn write_exit(folder: &StepFolder, exit: &Exit) -> Result<(), SuperviseError> {
    let start = Instant::now();
    let mut delays = Delays::exit();
    while let Err(error) = folder.set_exit(exit) {
        // If the folder is gone, the exit is not needed.
        if start.elapsed() >= EXIT_TIMEOUT || !folder.path().is_dir() {
            return Err(error.into());
        }
        delays.wait().await;
    }
    Ok(())
}
