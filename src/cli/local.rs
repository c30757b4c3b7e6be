//! `hawser local`: runs an embedded server, a runner, and one job in this process.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hawser_contract::{EngineName, FlagLists, Task};
use hawser_dev_server::{
    EmbeddedHub, HubOptions, Identity, JobKind, JobSpec, LOG_PERIOD_SECONDS, LogKeeping,
};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::flags::FlagOptions;
use super::{Failure, name_and_value, overrides};
use crate::local::LocalError;
use crate::local::area::{self, Area};
use crate::local::controller::Finished;
use crate::local::session::{self, LocalJob};
use crate::local::snapshot::{self, Snapshot};
use crate::local::user_paths::UserPaths;
use crate::local::view::{self, Title, Verb};
use crate::masking::{Rules, SecretStore};
use crate::observe::log_filter;
use crate::observe::masked_writer::mask_panics;
use crate::runner::{self, Options, RunnerError, Shutdown};
use crate::settings::model::{JobLogStreamSettings, LoggingSettings, Settings};
use crate::settings::{self, SettingsInputs};

/// The instance name of the runner.
const INSTANCE: &str = "local";

const STATE_NOTE: &str = "The state in the directory is not used: hawser local keeps its own state.";

/// How long the runner may take to drain after the job.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Directory to run, including uncommitted files [default: a built-in example]
    directory: Option<PathBuf>,
    /// Plan without changing anything
    #[arg(long)]
    plan: bool,
    /// Destroy the resources of earlier runs; with --plan, only plan the destroy
    #[arg(long)]
    destroy: bool,
    /// Do not ask before changing anything
    #[arg(long, short)]
    yes: bool,
    /// Value of a variable, in the syntax of terraform's -var: HCL for lists and objects, otherwise plain text
    #[arg(long = "var", value_name = "NAME=VALUE", value_parser = name_and_value)]
    variables: Vec<(String, String)>,
    #[command(flatten)]
    flags: FlagOptions,
    /// terraform, tofu, or pulumi [default: the one of the last run on this directory, or else the first of tofu,
    /// terraform, and pulumi that fits the directory and is installed]
    #[arg(long, value_name = "ENGINE", value_parser = area::known_engine)]
    engine: Option<EngineName>,
    /// Pulumi stack, which is created if it does not exist [default: snapcd]
    #[arg(long, value_name = "NAME")]
    stack: Option<String>,
    /// Directory for state and checkouts of local runs [default: HAWSER_LOCAL_DIR, or the user's data directory]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

pub(super) fn execute(args: Args) -> Result<(), Failure> {
    crate::base::files::keep_private();
    let data = args.data.or_else(|| std::env::var_os(area::DATA_VARIABLE).map(PathBuf::from));
    let data = area::data_directory(data)?;
    let (directory, subject) = match args.directory {
        Some(directory) => (directory.clone(), directory.display().to_string()),
        None => (area::example(&data)?, "the example".to_owned()),
    };
    let (directory, names) = snapshot::check(&directory)?;
    if !args.plan && !args.yes && !view::can_ask() {
        return Err(Failure::usage("cannot ask for approval, because stdin is not a terminal")
            .hint("pass --yes to approve all changes, or --plan to change nothing"));
    }
    let engine = area::engine(args.engine, area::last_engine(&directory, &data), &names)?;
    let stack = match args.stack {
        None => FlagLists::default(),
        Some(stack) => area::stack_flags(&engine, &stack)
            .ok_or_else(|| Failure::usage(format!("{engine} has no stacks")).hint("remove --stack"))?,
    };
    let flags = args.flags.lists(&engine, stack)?;
    let area = Area::of(directory, &data)?;
    let _lock = area.lock()?;
    area.remember_engine(&engine)?;
    let runtime = super::runtime()?;
    let snapshot = runtime.block_on(snapshot::take(&area.directory, &names, &area.repository()))?;
    let rules =
        Rules::new(&JobLogStreamSettings::default()).map_err(|error| Failure::failed(error.to_string()))?;
    let secret_store = SecretStore::new(rules);
    mask_panics(secret_store.clone());
    log_to(&area.log(), secret_store.clone())?;

    let (verb, kind) = match (args.plan, args.destroy) {
        (true, false) => (Verb::Plan, JobKind::Plan),
        (true, true) => (Verb::Plan, JobKind::Tasks(plan_destroy_tasks())),
        (false, false) => (Verb::Apply, JobKind::Apply),
        (false, true) => (Verb::Destroy, JobKind::Destroy),
    };
    let checkout = area.checkout().join(&snapshot.subdirectory);
    let local_job = LocalJob {
        paths: UserPaths {
            checkout: checkout.components().collect::<PathBuf>().display().to_string(),
            directory: area.directory.clone(),
            subject: subject.clone(),
            snapshot: snapshot.url.clone(),
        },
        title: Title { verb, subject, engine: engine.to_string() },
        yes: args.yes,
        notes: Vec::from_iter(snapshot.leaves_state_behind.then(|| STATE_NOTE.to_owned())),
        spec: JobSpec {
            declares_variables: area::declares_variables(&engine),
            engine,
            flags,
            typed_parameters: args.variables.into_iter().collect(),
            needs_approval: !args.plan,
            ..job_spec(kind, &area, snapshot)
        },
    };
    let finished = runtime.block_on(run_job(&area, local_job, secret_store));
    runtime.shutdown_background();
    let log = format!("the runtime log is in {}", area.log().display());
    match finished {
        Ok(Finished::Completed) => Ok(()),
        // The view has shown the reason.
        Ok(Finished::Failed | Finished::Stopped) => Err(Failure::failed("")),
        Ok(Finished::RunnerFailed) => Err(Failure::failed("").hint(log)),
        Ok(Finished::Left) => Err(Failure::failed("exited before the job was cancelled")
            .hint("the engine may still be running; the next `hawser local` on this directory waits for it")),
        Err(failure) => Err(failure.hint(log)),
    }
}

/// A job for the snapshot, in the module of the area.
fn job_spec(kind: JobKind, area: &Area, snapshot: Snapshot) -> JobSpec {
    let mut spec = JobSpec::new(kind, snapshot.url);
    spec.source.source_revision = snapshot.commit;
    spec.stack_name = area::STACK.to_owned();
    spec.namespace_name.clone_from(&area.namespace);
    spec.module_name.clone_from(&area.module);
    spec.subdirectory = Some(snapshot.subdirectory).filter(|path| !path.is_empty());
    spec
}

fn plan_destroy_tasks() -> Vec<Task> {
    JobKind::Destroy.tasks().into_iter().filter(|task| *task != Task::DestroyFromPlan).collect()
}

/// Runs the hub and the runner until the job ends.
async fn run_job(area: &Area, local_job: LocalJob, secret_store: SecretStore) -> Result<Finished, Failure> {
    let identity = Identity { runner_id: area.runner_id(), ..Identity::generate() };
    let options = HubOptions {
        identity: Some(identity.clone()),
        // Steps of an earlier run that was killed finish first. Their jobs are unknown to this hub.
        acknowledge_unknown_jobs: true,
        // Log entries are shown as they arrive and not kept, because a job may write for hours.
        logs: LogKeeping::Events,
        ..HubOptions::default()
    };
    let hub = EmbeddedHub::start(options).await.map_err(|error| Failure::temporary(error.to_string()))?;
    let settings = settings(area, &hub, &identity)?;
    secret_store.learn_own(&settings, std::env::vars_os());
    let options = Options::of_this_program();
    let (shutdown, requested) = watch::channel(Shutdown::No);
    let mut runner = tokio::spawn(runner::run(settings, secret_store, options, requested, |_| {}));

    let finished = session::run(&hub, local_job, runner_end(&mut runner)).await;
    if !matches!(finished, Ok(Finished::Left)) && !runner.is_finished() {
        shutdown.send_replace(Shutdown::Drain);
        // The job has ended, so the result of the runner does not matter.
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, &mut runner).await;
        hub.shutdown().await;
    }
    finished.map_err(|error| Failure::temporary(format!("cannot listen for signals: {error}")))
}

/// Waits until the runner ends, and returns why.
async fn runner_end(runner: &mut JoinHandle<Result<(), RunnerError>>) -> String {
    match runner.await {
        Ok(Ok(())) => "no reason given".to_owned(),
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    }
}

/// The settings of the runner, loaded from values instead of files and this process's environment.
fn settings(area: &Area, hub: &EmbeddedHub, identity: &Identity) -> Result<Settings, Failure> {
    let folders = area.folders();
    let mut environment: Vec<(&str, OsString)> = vec![
        ("Runner__MaxConcurrentSteps", "1".into()),
        ("WorkingDirectory__WorkingDirectory", folders.working_directory.into()),
        ("WorkingDirectory__TempDirectory", folders.temp_directory.into()),
        // The snapshot is already on this disk.
        ("Source__CacheEnabled", "false".into()),
        ("JobLogStream__PeriodSeconds", LOG_PERIOD_SECONDS.to_string().into()),
    ];
    let connection = identity.runner_variables(&hub.url(), INSTANCE);
    environment.extend(connection.into_iter().map(|(name, value)| (name, value.into())));
    let inputs = SettingsInputs {
        working_dir: area.root.clone(),
        environment: environment.into_iter().map(|(name, value)| (name.into(), value)).collect(),
        ..SettingsInputs::default()
    };
    settings::load(&inputs).map(|loaded| loaded.settings).map_err(|error| overrides::failure(&error))
}

/// Writes the runtime log to a file, because stdout belongs to the view.
fn log_to(path: &Path, secret_store: SecretStore) -> Result<(), Failure> {
    let failed = |error: String| {
        Failure::temporary(format!("cannot write the runtime log {}: {error}", path.display()))
    };
    let file = File::create(path).map_err(|error| failed(error.to_string()))?;
    log_filter::init(&LoggingSettings::default(), Some(file), secret_store)
        .map_err(|error| failed(error.to_string()))
}

impl From<LocalError> for Failure {
    fn from(error: LocalError) -> Self {
        let message = error.to_string();
        match error {
            LocalError::NoEngine { engines } => {
                let hints: Vec<&str> = engines.iter().map(area::engine_hint).collect();
                Self::unavailable(message).hint(hints.join("\n      "))
            }
            LocalError::NoData => Self::settings(message).hint("set HAWSER_LOCAL_DIR, or pass --data"),
            LocalError::Busy { .. } => {
                Self::temporary(message).hint("wait until it ends, or stop it with Ctrl-C")
            }
            LocalError::NotADirectory { .. } | LocalError::NoConfiguration { .. } => Self::usage(message)
                .hint("pass a directory that contains a Terraform, OpenTofu, or Pulumi project"),
            LocalError::AllIgnored { .. } => {
                Self::usage(message).hint("`git check-ignore --verbose *` in that directory prints the rule")
            }
            LocalError::NoGit => {
                Self::unavailable(message).hint("install git: https://git-scm.com/downloads")
            }
            LocalError::Io { .. } | LocalError::Git(_) => Self::failed(message),
        }
    }
}
