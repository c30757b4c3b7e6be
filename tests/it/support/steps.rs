//! Runs tasks as the runner does, without a server.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use hawser::engines::Engines;
use hawser::masking::{Rules, SecretStore};
use hawser::policy::Policy;
use hawser::settings::Settings;
use hawser::step::{CancelledBy, Exit, RecordReader, RecordRef, StepFolder, Stream};
use hawser::supervisor::{self, Launch};
use hawser::tasks::{Prepared, TaskContext, TaskError, conclude, prepare};
use hawser_contract::requests::CancelKind;
use hawser_contract::{Common, EngineName, Metadata, Success, TaskRequest};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::eventually::{eventually_blocking, eventually_or};
use super::real_engines::RealEngine;
use super::world::HAWSER;

/// A runner's working directory with one module in it.
pub(crate) struct Bench {
    pub(crate) root: tempfile::TempDir,
    pub(crate) settings: serde_json::Value,
    /// Runs every task, whichever engine its request names.
    engine: Option<EngineName>,
    steps: AtomicU32,
    job: AtomicU32,
}

/// A task that was prepared, executed, and concluded.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) result: Result<Success, TaskError>,
    /// The job's log: the stream of each line and its text.
    pub(crate) log: Vec<(Stream, String)>,
}

impl Ran {
    #[track_caller]
    pub(crate) fn completed(self) -> Success {
        match self.result {
            Ok(success) => success,
            Err(error) => panic!("{error:?}\n{:#?}", self.log),
        }
    }

    #[track_caller]
    pub(crate) fn faulted(self) -> hawser_contract::Fault {
        match self.result {
            Err(TaskError::Faulted(fault) | TaskError::Refused { fault, .. }) => fault,
            other => panic!("{other:?}\n{:#?}", self.log),
        }
    }

    pub(crate) fn says(&self, text: &str) -> bool {
        self.log.iter().any(|(_, line)| line.contains(text))
    }
}

/// Interrupt a script when its log contains this text.
pub(crate) struct Interrupt<'a> {
    pub(crate) at: &'a str,
    pub(crate) kind: CancelKind,
}

impl Bench {
    /// The module folder contains these files, as if GetModule had fetched them.
    pub(crate) fn new(files: &[(&str, &str)]) -> Self {
        let root = tempfile::tempdir().unwrap();
        let bench = Self {
            settings: json!({
                "Runner": {
                    "Id": Uuid::from_u128(1), "OrganizationId": Uuid::from_u128(2), "Instance": "test",
                    "Credentials": {"ClientId": "id", "ClientSecret": "hush"},
                },
                "Server": {"Url": "http://localhost:1/"},
                "WorkingDirectory": {
                    "WorkingDirectory": root.path().join("work"), "TempDirectory": root.path().join("temp"),
                },
            }),
            root,
            engine: None,
            steps: AtomicU32::new(0),
            job: AtomicU32::new(3),
        };
        if !files.is_empty() {
            fs::create_dir_all(bench.module()).unwrap();
        }
        for (name, text) in files {
            bench.write(name, text);
        }
        bench
    }

    /// A module for this engine: it runs every task, whichever engine the request names. The engine does not see the
    /// variables of the person who runs the tests.
    pub(crate) fn of(engine: &RealEngine, files: &[(&str, &str)]) -> Self {
        let mut bench = Self::new(files).with_engine(engine);
        bench.settings["Engine"]["EnvironmentAllowList"] = json!([]);
        bench.engine = Some(engine.name.clone());
        bench
    }

    pub(crate) fn module(&self) -> PathBuf {
        self.root.path().join("work/stack/space/module")
    }

    pub(crate) fn private(&self, name: &str) -> PathBuf {
        self.module().join(".snapcd").join(name)
    }

    /// Where the module's rescued files are.
    pub(crate) fn rescued(&self) -> PathBuf {
        self.root.path().join("work/.hawser/rescued/stack/space/module")
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.module().join(name), text).unwrap();
    }

    /// A command line for a user's shell that knows nothing of the module but has the runner's settings and `hawser`.
    pub(crate) fn shell(&self, line: &str) -> Command {
        let marker = self.module().join(".git/hawser.json");
        fs::create_dir_all(marker.parent().unwrap()).unwrap();
        fs::write(marker, json!({"commit": "0", "folder": "", "init": ""}).to_string()).unwrap();
        let etc = self.root.path().join("etc");
        fs::create_dir_all(&etc).unwrap();
        fs::write(etc.join("appsettings.json"), self.settings.to_string()).unwrap();
        let mut shell = Command::new("bash");
        shell.args(["-c", line]).current_dir(etc).env("PATH", with_hawser());
        shell.env_remove("TF_WORKSPACE").env_remove("TF_DATA_DIR");
        shell
    }

    /// Runs a command line that a message advises.
    #[track_caller]
    pub(crate) fn run_by_hand(&self, line: &str) -> String {
        let ran = self.shell(line).stdin(Stdio::null()).output().unwrap();
        assert!(ran.status.success(), "{line}: {}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).unwrap()
    }

    /// Puts a real engine in front of PATH.
    pub(crate) fn with_engine(mut self, engine: &RealEngine) -> Self {
        self.settings["Engine"] = json!({"AdditionalBinaryPaths": [engine.folder]});
        self
    }

    /// The next tasks belong to this job.
    pub(crate) fn of_job(&self, job: u32) -> &Self {
        self.job.store(job, Ordering::Relaxed);
        self
    }

    pub(crate) fn context(&self) -> TaskContext {
        let step = self.steps.fetch_add(1, Ordering::Relaxed);
        let folder = self.root.path().join(format!("step {step}"));
        fs::create_dir_all(&folder).unwrap();
        let _ = rustls::crypto::ring::default_provider().install_default();
        let settings: Settings = serde_json::from_value(self.settings.clone()).unwrap();
        TaskContext {
            policy: Arc::new(Policy::new(&settings)),
            settings: Arc::new(settings),
            common: Common {
                job_id: Uuid::from_u128(self.job.load(Ordering::Relaxed).into()),
                organization_id: Uuid::from_u128(2),
                metadata: Metadata {
                    stack_name: "stack".into(),
                    namespace_name: "space".into(),
                    module_name: "module".into(),
                    module_id: Uuid::from_u128(4),
                    source_subdirectory: None,
                },
                report_active_job_frequency_seconds: 60,
            },
            folder: StepFolder::at(folder),
            cancel: CancellationToken::new(),
            engines: Engines::default(),
            http: reqwest::Client::new(),
            secrets: SecretStore::new(Rules::new(&Default::default()).unwrap()).job(None),
            held: std::sync::Weak::new(),
        }
    }

    /// The request as [`Self::run`] runs it.
    pub(crate) fn request(&self, mut request: TaskRequest) -> TaskRequest {
        if let (TaskRequest::Engine(task), Some(engine)) = (&mut request, &self.engine) {
            task.engine = engine.clone();
        }
        request
    }

    /// Prepare, execute, conclude.
    pub(crate) async fn run(&self, request: TaskRequest) -> Ran {
        self.run_interrupted(request, None).await
    }

    pub(crate) async fn run_interrupted(
        &self,
        request: TaskRequest,
        interrupt: Option<Interrupt<'_>>,
    ) -> Ran {
        let (context, request) = (self.context(), self.request(request));
        // The scheduler checks hooks before a task is prepared.
        let hooks = request.hooks().into_iter().flatten();
        let prepared = match context.policy.check_hooks(hooks) {
            Ok(()) => prepare(&context, &request).await,
            Err(refusal) => Err(refusal.into()),
        };
        let result = match prepared {
            Ok(Prepared::Finished(success)) => Ok(success),
            Ok(Prepared::Run(launch)) => {
                let exit = execute(&context.folder, &launch, interrupt.as_ref());
                let result = conclude(&context, &request, &exit).await;
                let again = conclude(&context, &request, &exit).await;
                assert_eq!(result.is_ok(), again.is_ok(), "conclude is not safe to repeat: {again:?}");
                result
            }
            Err(error) => Err(error),
        };
        Ran { result, log: log(&context.folder) }
    }

    /// Prepares and executes, but does not conclude, like a runner that was stopped in between.
    pub(crate) async fn executed(&self, request: TaskRequest) -> Executed {
        let (context, request) = (self.context(), self.request(request));
        let Ok(Prepared::Run(launch)) = prepare(&context, &request).await else {
            panic!("there is no script to run")
        };
        let exit = execute(&context.folder, &launch, None);
        Executed { context, request, exit }
    }
}

/// PATH with the program under test.
pub(crate) fn with_hawser() -> OsString {
    let own = Path::new(HAWSER).parent().unwrap().to_owned();
    let path = std::env::var_os("PATH").unwrap();
    std::env::join_paths([own].into_iter().chain(std::env::split_paths(&path))).unwrap()
}

/// A task whose script has exited.
pub(crate) struct Executed {
    context: TaskContext,
    request: TaskRequest,
    exit: Exit,
}

impl Executed {
    pub(crate) fn folder(&self) -> &Path {
        self.context.folder.path()
    }

    pub(crate) async fn concluded(&self) -> Ran {
        let result = conclude(&self.context, &self.request, &self.exit).await;
        Ran { result, log: log(&self.context.folder) }
    }
}

pub(crate) fn log(folder: &StepFolder) -> Vec<(Stream, String)> {
    records(folder)
        .into_iter()
        .map(|it| (it.stream, String::from_utf8_lossy(&it.text).into_owned()))
        .collect()
}

#[derive(Debug)]
pub(crate) struct LogRecord {
    pub(crate) micros: i64,
    pub(crate) stream: Stream,
    pub(crate) text: Vec<u8>,
    pub(crate) continues: bool,
}

/// The complete records of `output.log`.
pub(crate) fn records(folder: &StepFolder) -> Vec<LogRecord> {
    let mut reader = RecordReader::new(folder.output_path(), 0);
    let mut records = Vec::new();
    while let Some(found) = reader.peek(false).unwrap() {
        let RecordRef { micros, stream, text, continues } = found.record;
        let next = found.next;
        records.push(LogRecord { micros, stream, text: text.to_vec(), continues });
        reader.pass(next);
    }
    records
}

/// Runs a script with a supervisor, as the runner does.
pub(crate) fn execute(folder: &StepFolder, launch: &Launch, interrupt: Option<&Interrupt<'_>>) -> Exit {
    folder.set_script(&launch.script).unwrap();
    let lock = folder.try_lock().unwrap().expect("the lock is free");
    supervisor::launch(Path::new(HAWSER), folder, lock, None, launch).unwrap();
    if let Some(Interrupt { at, kind }) = interrupt {
        eventually_blocking(&format!("{at:?} in the log"), || {
            log(folder).iter().any(|(_, line)| line.contains(*at))
        });
        supervisor::cancel(folder, *kind, CancelledBy::Server);
    }
    let ended = || folder.try_lock().unwrap();
    let lock = eventually_or(ended, || {
        supervisor::cancel(folder, CancelKind::Kill, CancelledBy::Server);
        panic!("the script does not end:\n{}\n{:#?}", launch.script, log(folder));
    });
    lock.unlock().unwrap();
    folder.exit().unwrap().expect("the supervisor has recorded the exit")
}
