//! `hawser local`: an embedded server, a runner, and one job, all in this process.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use hawser_contract::{Engine, Task};
use hawser_dev_server::{EmbeddedHub, HubOptions, Identity, JobKind, JobSpec, LogKeeping};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing_subscriber::Layer as _;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use super::Failure;
use crate::local::area::{self, Area, AreaError};
use crate::local::controller::Finished;
use crate::local::session::{self, LocalJob};
use crate::local::snapshot::{self, Snapshot, SnapshotError};
use crate::local::view::{self, Title, Verb};
use crate::masking::{Rules, SecretStore};
use crate::observe::log_filter::Levels;
use crate::observe::masked_writer::{MaskedWriters, mask_panics};
use crate::runner::{self, Options, RunnerError, Shutdown};
use crate::settings::model::{
    CredentialSettings, JobLogStreamSettings, LoggingSettings, RunnerSettings, ServerSettings, Settings,
    SourceSettings, WorkingDirectorySettings,
};

/// The name of the one runner.
const INSTANCE: &str = "local";

/// How long the runner gets to put its things in order after the job. It has nothing left to do by then.
const FAREWELL: Duration = Duration::from_secs(10);

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The directory to run, with its uncommitted files; without it the shipped example
    directory: Option<PathBuf>,
    /// Stop after the plan and change nothing
    #[arg(long)]
    plan: bool,
    /// Take down what an earlier run has made; with --plan: only show what would go
    #[arg(long)]
    destroy: bool,
    /// Do not ask before anything is changed
    #[arg(long, short)]
    yes: bool,
    /// Value of a variable, as terraform's own -var takes it: HCL for lists and objects, else just text
    #[arg(long = "var", value_name = "NAME=VALUE", value_parser = variable)]
    variables: Vec<(String, String)>,
    /// terraform, tofu or pulumi; without it the one that is installed and fits the directory
    #[arg(long, value_name = "ENGINE", value_parser = engine)]
    engine: Option<Engine>,
    /// Where state and checkouts of local runs are kept [default: HAWSER_LOCAL_DIR, or the user's data directory]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => Ok((name.trim().to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

fn engine(text: &str) -> Result<Engine, String> {
    let known = Engine::ALL.into_iter().find(|engine| engine.program() == text);
    known.ok_or_else(|| "known are terraform, tofu and pulumi".to_owned())
}

pub(super) fn execute(args: Args) -> Result<(), Failure> {
    crate::base::files::keep_private();
    if !args.plan && !args.yes && !view::somebody_is_there() {
        return Err(Failure::usage("stdin is no terminal, so nobody can answer before anything is changed")
            .hint("pass --yes to go ahead without a question, or --plan to only look"));
    }
    let asked = args.data.or_else(|| std::env::var_os(area::DATA_VARIABLE).map(PathBuf::from));
    let data = area::data_directory(asked).map_err(no_place)?;
    let (directory, subject) = match args.directory {
        Some(directory) => (directory.clone(), directory.display().to_string()),
        None => (area::example(&data).map_err(no_place)?, "the example".to_owned()),
    };
    if !directory.is_dir() {
        return Err(Failure::usage(format!("{} is not a directory", directory.display())));
    }
    snapshot::check(&directory).map_err(|error| no_snapshot(&error))?;
    let engine = area::engine(args.engine, &directory).map_err(no_place)?;
    let place = Area::of(&directory, &data).map_err(no_place)?;
    let _lock = place.lock().map_err(no_place)?;
    let runtime = super::runtime()?;
    let snapshot = runtime.block_on(snapshot::take(&directory, &place.repository()));
    let snapshot = snapshot.map_err(|error| no_snapshot(&error))?;
    let rules =
        Rules::new(&JobLogStreamSettings::default()).map_err(|error| Failure::failed(error.to_string()))?;
    let secret_store = SecretStore::new(rules);
    mask_panics(secret_store.clone());
    log_to(&place.log(), secret_store.clone())?;

    let (verb, kind) = match (args.plan, args.destroy) {
        (true, false) => (Verb::Plan, JobKind::Plan),
        (true, true) => (Verb::Plan, JobKind::Tasks(only_plan_the_destroy())),
        (false, false) => (Verb::Apply, JobKind::Apply),
        (false, true) => (Verb::Destroy, JobKind::Destroy),
    };
    let errand = LocalJob {
        title: Title { verb, subject, engine: engine.program() },
        spec: JobSpec {
            engine,
            typed_parameters: args.variables.into_iter().collect(),
            needs_approval: !args.plan,
            ..job(kind, &place, &snapshot)
        },
        yes: args.yes,
        notes: notes(&snapshot),
    };
    let finished = runtime.block_on(work(&place, errand, secret_store));
    // What still runs in the background is nothing that anyone waits for.
    runtime.shutdown_background();
    let log = format!("the runtime log is in {}", place.log().display());
    match finished {
        Ok(Finished::Completed) => Ok(()),
        // The view has said it all.
        Ok(Finished::Failed) => Err(Failure::failed("").hint(log)),
        Ok(Finished::Stopped) => Err(Failure::failed("")),
        Ok(Finished::Left) => Err(Failure::failed("left while the job was still being cancelled")
            .hint("the engine may still be running; the next `hawser local` on this directory waits for it")),
        Err(failure) => Err(failure.hint(log)),
    }
}

/// A job on the snapshot, in the area's own module.
fn job(kind: JobKind, place: &Area, snapshot: &Snapshot) -> JobSpec {
    let mut spec = JobSpec::new(kind, snapshot.url.clone());
    spec.source.source_revision.clone_from(&snapshot.commit);
    spec.stack_name = area::STACK.to_owned();
    spec.namespace_name.clone_from(&place.namespace);
    spec.module_name.clone_from(&place.module);
    spec.subdirectory = Some(snapshot.subdirectory.clone()).filter(|inside| !inside.is_empty());
    spec
}

fn notes(snapshot: &Snapshot) -> Vec<String> {
    let state = "The state in the directory is not used: hawser local keeps a state of its own.";
    if snapshot.leaves_state_behind { vec![state.to_owned()] } else { Vec::new() }
}

fn only_plan_the_destroy() -> Vec<Task> {
    JobKind::Destroy.tasks().into_iter().filter(|task| *task != Task::DestroyFromPlan).collect()
}

/// The hub and the runner, for as long as the job takes.
async fn work(place: &Area, errand: LocalJob, secret_store: SecretStore) -> Result<Finished, Failure> {
    let identity = Identity { runner_id: place.runner_id(), ..Identity::generate() };
    let options = HubOptions {
        identity: Some(identity.clone()),
        // Steps that a killed run left behind are finished first; nobody waits for what they report.
        acknowledge_unknown_jobs: true,
        // They are shown as they come, and nothing is kept of them: a job may write for hours.
        logs: LogKeeping::Events,
        ..HubOptions::default()
    };
    let hub = EmbeddedHub::start(options).await.map_err(|error| Failure::temporary(error.to_string()))?;
    let settings = settings(place, &hub, identity)?;
    secret_store.learn_own(&settings, std::env::vars_os());
    let options = Options::of_this_program();
    let (shutdown, asked) = watch::channel(Shutdown::No);
    let mut runner = tokio::spawn(runner::run(settings, secret_store, options, asked, |_| {}));

    let finished = session::run(&hub, errand, gone(&mut runner)).await;
    if !matches!(finished, Ok(Finished::Left)) && !runner.is_finished() {
        shutdown.send_replace(Shutdown::Drain);
        // Its result does not matter any more: the job is over and told.
        let _ = tokio::time::timeout(FAREWELL, &mut runner).await;
        hub.shutdown().await;
    }
    finished.map_err(|error| Failure::temporary(format!("cannot listen for signals: {error}")))
}

/// Why the runner ended though nobody asked it to.
async fn gone(runner: &mut JoinHandle<Result<(), RunnerError>>) -> String {
    match runner.await {
        Ok(Ok(())) => "without a reason".to_owned(),
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    }
}

fn settings(place: &Area, hub: &EmbeddedHub, identity: Identity) -> Result<Settings, Failure> {
    let url = hub.url().parse().map_err(|error| Failure::temporary(format!("{}: {error}", hub.url())))?;
    Ok(Settings {
        runner: RunnerSettings {
            id: identity.runner_id,
            organization_id: identity.organization_id,
            instance: INSTANCE.to_owned(),
            credentials: CredentialSettings {
                client_id: identity.client_id,
                client_secret: identity.client_secret,
            },
            max_concurrent_steps: 1,
            drain_timeout_seconds: None,
            cancel_grace_seconds: 600,
        },
        server: ServerSettings {
            url,
            ca_file: None,
            max_message_bytes: HubOptions::default().max_message_bytes,
            refuse_plain_http: false,
            dangerously_accept_any_certificate: false,
        },
        working_directory: WorkingDirectorySettings {
            working_directory: place.working_directory(),
            temp_directory: place.temp_directory(),
        },
        hooks_preapproval: Default::default(),
        engine: Default::default(),
        // The snapshot is on this disk already.
        source: SourceSettings { cache_enabled: false, ..Default::default() },
        // Somebody is watching: a second is long enough to wait for a full batch.
        job_log_stream: JobLogStreamSettings { period_seconds: 1, ..Default::default() },
        policy: Default::default(),
        audit: Default::default(),
        logging: LoggingSettings::default(),
    })
}

/// The runtime log goes to a file: stdout belongs to the view.
fn log_to(path: &Path, secret_store: SecretStore) -> Result<(), Failure> {
    let failed =
        |error: String| Failure::temporary(format!("cannot write the log {}: {error}", path.display()));
    let file = File::create(path).map_err(|error| failed(error.to_string()))?;
    let layer = tracing_subscriber::fmt::layer()
        .with_ansi(false)
        .with_writer(MaskedWriters::new(Mutex::new(file), secret_store))
        .with_filter(Levels::new(&LoggingSettings::default()));
    tracing_subscriber::registry().with(layer).try_init().map_err(|error| failed(error.to_string()))
}

fn no_place(error: AreaError) -> Failure {
    let message = error.to_string();
    match error {
        AreaError::NoEngine { engines } => {
            let hints: Vec<&str> = engines.into_iter().map(area::engine_hint).collect();
            Failure::unavailable(message).hint(hints.join("\n      "))
        }
        AreaError::EngineMissing { engine } => Failure::unavailable(message).hint(area::engine_hint(engine)),
        AreaError::NoData => Failure::settings(message).hint("set HAWSER_LOCAL_DIR, or pass --data"),
        AreaError::Busy { .. } => {
            Failure::temporary(message).hint("wait for it to end, or stop it with Ctrl-C")
        }
        AreaError::Io { .. } => Failure::failed(message),
    }
}

fn no_snapshot(error: &SnapshotError) -> Failure {
    let message = error.to_string();
    match error {
        SnapshotError::NotADirectory { .. } | SnapshotError::NoConfiguration { .. } => {
            Failure::usage(message)
                .hint("name a directory with a Terraform, OpenTofu or Pulumi project in it")
        }
        SnapshotError::AllIgnored { .. } => {
            Failure::usage(message).hint("`git check-ignore --verbose *.tf` in it names the rule")
        }
        SnapshotError::NoGit => {
            Failure::unavailable(message).hint("install git: https://git-scm.com/downloads")
        }
        SnapshotError::Io { .. } | SnapshotError::Git(_) => Failure::failed(message),
    }
}
