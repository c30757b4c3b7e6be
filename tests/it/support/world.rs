//! A hub in this process, git repositories, and runners as separate processes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use hawser_contract::Task;
use hawser_dev_server::{HubOptions, JobKind, JobSnapshot, JobSpec};
use tempfile::TempDir;
use uuid::Uuid;

use super::eventually::{eventually, in_time};
use super::faulty_hub::FaultyHub;
use super::git::git_in;

/// The program under test.
pub(crate) const HAWSER: &str = env!("CARGO_BIN_EXE_hawser");

/// How long a whole job may take.
pub(crate) const JOB_LIMIT: Duration = Duration::from_secs(180);

/// A module with nothing to apply.
pub(crate) const EMPTY: &[(&str, &str)] = &[("main.tf", "output \"x\" {\n  value = 1\n}\n")];

pub(crate) struct World {
    pub(crate) dir: TempDir,
    pub(crate) hub: FaultyHub,
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with(HubOptions::default()).await
    }

    pub(crate) async fn with(options: HubOptions) -> Self {
        let hub = FaultyHub::start(options).await;
        Self { dir: tempfile::tempdir().expect("a temporary directory"), hub }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A git repository with one commit that contains these files.
    pub(crate) fn repository(&self, name: &str, files: &[(&str, &str)]) -> String {
        let path = self.path(name);
        for (file, contents) in files {
            let file = path.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, contents).unwrap();
        }
        git_in(&path, &["init", "-q", "-b", "main"]);
        git_in(&path, &["add", "-A"]);
        git_in(&path, &["commit", "-q", "-m", "first"]);
        path.display().to_string()
    }

    /// A runner process with a separate working directory.
    pub(crate) fn runner(&self, instance: &str) -> Runner {
        self.runner_with(instance, &[])
    }

    /// A runner process with more settings, as environment variables.
    pub(crate) fn runner_with(&self, instance: &str, settings: &[(&str, &str)]) -> Runner {
        self.runner_from(instance, |command| {
            command.envs(settings.iter().copied());
        })
    }

    /// A runner process with an adjusted command.
    pub(crate) fn runner_from(&self, instance: &str, adjust: impl FnOnce(&mut Command)) -> Runner {
        let working = self.path(&format!("work-{instance}"));
        let log = self.path(&format!("{instance}.log"));
        let out = fs::OpenOptions::new().create(true).append(true).open(&log).unwrap();
        let mut command = Command::new(HAWSER);
        command
            .arg("run")
            .current_dir(self.dir.path())
            .env("WorkingDirectory__WorkingDirectory", &working)
            .env("WorkingDirectory__TempDirectory", working.join(".temp"))
            .env("JobLogStream__PeriodSeconds", "1")
            .env("NO_COLOR", "1")
            // The user's git settings may change what git checks out.
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .envs(self.hub.identity().runner_variables(&self.hub.url(), instance))
            .stdin(Stdio::null())
            .stdout(out.try_clone().unwrap())
            .stderr(out);
        adjust(&mut command);
        Runner::start(command, working, log)
    }

    pub(crate) async fn connected(&self, count: usize) {
        in_time("the runners are connected", self.hub.runners_until(count)).await;
    }

    /// Waits for a job to end.
    pub(crate) async fn ended(&self, job: Uuid) -> JobSnapshot {
        let ended = tokio::time::timeout(JOB_LIMIT, self.hub.ended(job)).await;
        ended.unwrap_or_else(|_| panic!("the job did not end in {JOB_LIMIT:?}"))
    }

    /// The messages of a job's log, in the order of their arrival.
    pub(crate) fn messages(&self, job: Uuid) -> Vec<String> {
        self.hub.logs(job, 0).iter().map(|entry| entry.message.to_string()).collect()
    }

    pub(crate) fn assert_no_violation(&self) {
        let violations = self.hub.violations();
        assert!(violations.is_empty(), "the hub saw violations: {violations:#?}");
    }
}

/// A job for the module with this name.
pub(crate) fn job(kind: JobKind, url: &str, module: &str) -> JobSpec {
    let mut spec = JobSpec::new(kind, url);
    spec.module_name = module.to_owned();
    spec
}

/// A job with one task that waits for a file.
pub(crate) fn waiting(world: &World, url: &str, module: &str, gate: &Path) -> JobSpec {
    let mut spec = job(JobKind::Tasks(vec![Task::GetModule, Task::Init, Task::Validate]), url, module);
    spec.source.source_definitive_revision = Some(git_in(Path::new(url), &["rev-parse", "HEAD"]));
    let ran = world.path(&format!("{module}.ran"));
    spec.hooks.validate_before =
        // A script that is still waiting when its test ends exits when the test's folder is removed.
        Some(format!(
            "touch '{}'; while [ -d '{}' ] && [ ! -e '{}' ]; do sleep 0.05; done",
            ran.display(),
            world.dir.path().display(),
            gate.display()
        ));
    spec
}

/// `hawser run` as a process. Killed when dropped.
pub(crate) struct Runner {
    command: Command,
    pub(crate) child: Child,
    pub(crate) working: PathBuf,
    pub(crate) log: PathBuf,
}

impl Runner {
    pub(crate) fn start(mut command: Command, working: PathBuf, log: PathBuf) -> Self {
        let child = command.spawn().expect("hawser run starts");
        Self { command, child, working, log }
    }

    /// Starts it again with the same command. Kills it first if it is still running.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.child = self.command.spawn().expect("hawser run starts");
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// `kill -9`: the process is gone when this returns.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    pub(crate) async fn exit(&mut self) -> ExitStatus {
        eventually("the runner exits", || self.child.try_wait().unwrap()).await
    }

    /// The peak memory of the process, in bytes.
    pub(crate) fn peak_memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }

    /// The step folder of a task.
    pub(crate) fn step(&self, job: Uuid, task: Task) -> Option<PathBuf> {
        let key = format!("{job}.{task}");
        self.steps().into_iter().find(|step| step.to_string_lossy().ends_with(&key))
    }

    /// The current step folders.
    pub(crate) fn steps(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let Ok(records) = fs::read_dir(self.working.join(".hawser")) else { return found };
        for record in records.flatten() {
            for instance in fs::read_dir(record.path()).into_iter().flatten().flatten() {
                let steps = fs::read_dir(instance.path().join("steps"));
                found.extend(steps.into_iter().flatten().flatten().map(|entry| entry.path()));
            }
        }
        found
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- {} ---\n{}", self.log.display(), self.log());
        }
    }
}
