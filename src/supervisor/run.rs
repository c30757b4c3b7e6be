//! The supervisor's main loop: feeds events to `lifecycle` and carries out its actions. While the script is running, it writes
//! nothing to the disk itself, so that a slow disk does not delay a cancel: `recorder` and `output` write in threads of their
//! own. It reads `cancel.json` once, right after the start.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, PipeWriter, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hawser_contract::requests::CancelKind;
use jiff::Timestamp;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process_group, pidfd_send_signal, wait};
use tokio::sync::mpsc;

use super::client::environment_of_script;
use super::gate::{Asked, Gate};
use super::lifecycle::{Action, Event, Lifecycle, Stage, StopReason, exit};
use super::linux::{self, ProcessInfo};
use super::output::{OutputLog, Pump, SharedLog, lock};
use super::question::Question;
use super::recorder::{Recorded, Recorder};
use super::session::{Signals, inherited_lock, leave_session, module_lock};
use crate::base::process::find_program;
use crate::base::retry::Delays;
use crate::step::{Exit, FolderError, ScriptPhase, StepFolder, Stream, SupervisorNote};

/// How long the results may be read before the log says so. Engines print nothing while they do that.
const LONG_READ: Duration = Duration::from_secs(3);
/// Enough for the exit, the last records and the outcome.
const RESERVE: usize = 64 * 1024;
/// How long to retry writing the exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// Each sweep of a kill finds processes that were forked during the one before.
const SWEEPS: usize = 5;
/// How many processes to list in a message.
const MAX_LISTED: usize = 10;

/// The message if phase `engine` cannot be recorded.
const NOT_RECORDED: &str =
    "Error: hawser cannot write to the step folder (is the disk full?), so the engine was not run";

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

/// Runs the script of a step. Does nothing if it was started before. After a graceful cancel, the script is killed when
/// `cancel_grace` has passed.
pub fn run(folder: &StepFolder, cancel_grace: Duration) -> Result<(), SuperviseError> {
    leave_session();
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
        let (exit, cancelled) = match RunningScript::start(folder, cancel_grace) {
            Ok(script) => script.supervise(signals).await,
            Err(error) => (Exit::Failure(error.to_string()), None),
        };
        release_reserve(folder);
        write_exit(folder, &exit, cancelled).await
    })
}

/// The running script.
#[derive(Debug)]
struct RunningScript {
    folder: StepFolder,
    lifecycle: Lifecycle,
    /// The script's process, which is also its process group.
    pid: Pid,
    /// The script's process is reaped, so its number may be reused.
    reaped: bool,
    /// The process that has become the last engine command.
    engine: Option<OwnedFd>,
    log: SharedLog,
    recorder: Recorder,
    pump: JoinHandle<()>,
    /// Dropped to stop the pump.
    stop: PipeWriter,
    events: mpsc::Receiver<Event>,
    asked: mpsc::Receiver<Asked>,
    recorded: mpsc::Receiver<Recorded>,
    /// When to log that the results are being read.
    long_read: Option<Instant>,
    warned_of_wrapper: bool,
}

impl RunningScript {
    /// Starts the script. Everything else that can fail is done first.
    fn start(folder: &StepFolder, cancel_grace: Duration) -> Result<Self, SuperviseError> {
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
        let gate = Gate::open(folder.path()).map_err(failed("open the gate"))?;

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
        let (recorded_sender, recorded) = mpsc::channel(1);
        let recorder =
            Recorder::start(folder, Arc::clone(&log), recorded_sender).map_err(failed("start a thread"))?;

        let mut command = Command::new(bash);
        command.arg(&script).arg(&gate.program).arg(&gate.address);
        let module_lock = module_lock().map_err(failed("pass on the module lock"))?;
        command.args(module_lock.as_ref().map(|lock| lock.as_raw_fd().to_string()));
        let (sender, asked) = mpsc::channel(1);
        tokio::spawn(gate.listen(sender));
        let note = SupervisorNote {
            pid: std::process::id(),
            started: Timestamp::now(),
            boot_id: linux::boot_id(),
            start_time: linux::proc_is_ours().then(|| linux::start_time(getpid())).flatten(),
        };
        folder.set_supervisor(&note)?;
        let child = command
            .env_clear()
            .envs(environment_of_script())
            .stdin(Stdio::null())
            .stdout(stdout_of_script)
            .stderr(stderr_of_script)
            .process_group(0)
            .spawn()
            .map_err(failed("start the script with bash"))?;
        Ok(Self {
            folder: folder.clone(),
            lifecycle: Lifecycle::new(cancel_grace),
            pid: Pid::from_child(&child),
            reaped: false,
            engine: None,
            log,
            recorder,
            pump,
            stop,
            events,
            asked,
            recorded,
            long_read: None,
            warned_of_wrapper: false,
        })
    }

    async fn supervise(mut self, mut signals: Signals) -> (Exit, Option<CancelKind>) {
        if let Some(limitation) = linux::limitation() {
            self.say(Stream::Warning, limitation);
        }
        let mut events = Vec::new();
        // A runner that found no supervisor to signal has recorded its cancel. It looks again after that, see `client`.
        if let Ok(Some(cancel)) = self.folder.cancel() {
            events.push(Event::Cancel(cancel.kind));
        }
        let (ended, lost, cancelled) = 'running: loop {
            for event in events.drain(..) {
                for action in self.lifecycle.on(event, Instant::now()) {
                    if let Action::Finish { ended, lost, cancelled } = action {
                        break 'running (ended, lost, cancelled);
                    }
                    self.act(&action);
                }
            }
            let deadline = self.lifecycle.deadline().into_iter().chain(self.long_read).min();
            tokio::select! {
                // Cancels come before questions.
                biased;
                _ = signals.kill.recv() => events.push(Event::Cancel(CancelKind::Kill)),
                _ = signals.cancel.recv() => events.push(Event::Cancel(CancelKind::Graceful)),
                _ = signals.terminate.recv() => events.push(Event::Terminated),
                _ = signals.child.recv() => self.reap(&mut events),
                Some(event) = self.events.recv() => events.push(event),
                Some((asked, written)) = self.recorded.recv() => self.answer(asked, &written),
                Some(asked) = self.asked.recv() => self.ask(asked),
                () = sleep_until(deadline) => {
                    self.report_reading();
                    self.reap(&mut events);
                    events.push(Event::Tick);
                }
            }
        };
        // Nothing answers questions anymore. Otherwise the recorder would wait for room in this channel.
        self.recorded.close();
        self.recorder.finish();
        drop(self.stop);
        let _ = self.pump.join();
        release_reserve(&self.folder);
        let finished = lock(&self.log).finish();
        (exit(ended, lost.or_else(|| finished.err().map(|error| error.to_string()))), cancelled)
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

    /// A question is recorded before it is answered with yes.
    fn ask(&self, asked: Asked) {
        match self.lifecycle.allows(&asked.question) {
            true => self.recorder.record(asked),
            false => asked.no(""),
        }
    }

    /// The question is recorded. A cancel may have arrived meanwhile.
    fn answer(&mut self, asked: Asked, written: &io::Result<()>) {
        if !self.lifecycle.allows(&asked.question) {
            return asked.no("");
        }
        if let Question::Phase { phase, .. } = &asked.question {
            // Without this record, there would be no trace of the engine.
            if *phase == ScriptPhase::Engine && written.is_err() {
                return asked.no(NOT_RECORDED);
            }
            self.long_read = (*phase == ScriptPhase::Collect).then(|| Instant::now() + LONG_READ);
        }
        self.lifecycle.granted(&asked.question);
        if let Question::Engine { wrapper, .. } = &asked.question {
            // From here on a cancel reaches this process, before or after it has become the engine.
            self.engine = asked.process.try_clone().ok();
            if self.engine.is_none() {
                return asked.no("Error: hawser has too many open files, so the command was not run");
            }
            self.warn_of(wrapper.as_deref());
        }
        asked.yes();
    }

    fn warn_of(&mut self, wrapper: Option<&OsStr>) {
        if let Some(wrapper) = wrapper.filter(|_| !std::mem::replace(&mut self.warned_of_wrapper, true)) {
            let message = format!(
                "{} is a script: a cancel interrupts only the script itself, so it must `exec` the engine",
                Path::new(wrapper).display()
            );
            self.say(Stream::Warning, &message);
        }
    }

    /// Logs that the results are being read, if that takes long.
    fn report_reading(&mut self) {
        if self.long_read.is_some_and(|at| Instant::now() >= at) {
            self.long_read = None;
            self.say(Stream::Information, "Reading the results");
        }
    }

    /// Sends signals before it logs them.
    fn act(&mut self, action: &Action) {
        match action {
            Action::Stop(stage, reason) => self.stop(*stage, *reason),
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

    /// One signal to what runs. Bash never gets an interrupt: it may swallow it, or loop on it.
    fn stop(&self, stage: Stage, reason: StopReason) {
        let sent = match stage {
            Stage::Between => "nothing more of the script is started",
            Stage::Hook => {
                if !self.reaped {
                    let _ = kill_process_group(self.pid, Signal::TERM);
                }
                "SIGTERM sent to the hook"
            }
            Stage::Engine => {
                // Fails if the command has just ended.
                let sent = self.engine.as_ref().map(|engine| pidfd_send_signal(engine, Signal::INT));
                if matches!(sent, Some(Ok(()))) {
                    "interrupt sent"
                } else {
                    "nothing more of the script is started"
                }
            }
        };
        let (stream, why) = match reason {
            StopReason::Cancelled => (Stream::Information, "the job is being cancelled"),
            StopReason::Terminated => (
                Stream::Warning,
                "the supervisor received SIGTERM, because the runner is shutting down and \
                 Runner.DrainTimeoutSeconds has passed, or the machine is",
            ),
            StopReason::OutputLost => (Stream::Error, "failed to write the output"),
        };
        self.say(stream, &format!("{sent}: {why}"));
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
        self.recorder.say(stream, message);
    }
}

/// Never, without a deadline.
async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
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
async fn write_exit(
    folder: &StepFolder,
    exit: &Exit,
    cancelled: Option<CancelKind>,
) -> Result<(), SuperviseError> {
    let start = Instant::now();
    let mut delays = Delays::exit();
    while let Err(error) = folder.set_exit(exit, cancelled) {
        // If the folder is gone, the exit is not needed.
        if start.elapsed() >= EXIT_TIMEOUT || !folder.path().is_dir() {
            return Err(error.into());
        }
        delays.wait().await;
    }
    Ok(())
}
