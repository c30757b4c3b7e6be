//! `hawser run`: the runner itself.

use std::io;
use std::sync::Once;
use std::time::{Duration, Instant};

use tokio::signal::unix::SignalKind;
use tokio::sync::watch;
use tracing::{debug, info, warn};

use super::overrides::Overrides;
use super::{Failure, pid1};
use crate::base::signals::Signals;
use crate::masking::SecretStore;
use crate::observe::masked_writer::mask_panics;
use crate::runner::{self, Options, RunnerError, Shutdown};
use crate::step::StoreError;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    overrides: Overrides,
}

pub(super) fn execute(args: Args) -> Result<(), Failure> {
    if pid1::is_pid1() {
        return pid1::execute();
    }
    crate::base::files::keep_private();
    let loaded = args.overrides.load()?;
    let secret_store = SecretStore::of_this_process(&loaded.settings)
        .map_err(|error| Failure::settings(error.to_string()))?;
    mask_panics(secret_store.clone());
    crate::observe::log_filter::init(&loaded.settings.logging, None, secret_store.clone())
        .map_err(|error| Failure::temporary(error.to_string()))?;
    for warning in &loaded.warnings {
        warn!(%warning, "settings warning");
    }
    info!(
        version = env!("CARGO_PKG_VERSION"),
        instance = loaded.settings.runner.instance,
        server = %loaded.settings.server.url,
        "runner started"
    );
    let (request, shutdown) = watch::channel(Shutdown::No);
    listen_for_signals(request)?;
    let runtime = super::runtime()?;
    let result = runtime.block_on(async {
        let mut requested = shutdown.clone();
        tokio::spawn(async move {
            if requested.wait_for(|requested| *requested > Shutdown::No).await.is_ok() {
                notify(&[sd_notify::NotifyState::Stopping]);
            }
        });
        let options = Options::of_this_program();
        let ready = Once::new();
        let masking = secret_store.clone();
        runner::run(loaded.settings, secret_store.clone(), options, shutdown, move |status| {
            // The first status comes when all step folders have been recovered.
            ready.call_once(|| notify(&[sd_notify::NotifyState::Ready]));
            notify(&[sd_notify::NotifyState::Status(&masking.masker().text(status))]);
        })
        .await
        .map_err(|error| failure(error, &secret_store))
    });
    // A thread may hang on its disk. The next start recovers its work from the step folders, as after a crash.
    runtime.shutdown_background();
    result
}

#[expect(clippy::needless_pass_by_value, reason = "used with map_err")]
fn failure(error: RunnerError, secret_store: &SecretStore) -> Failure {
    let message = secret_store.masker().text(&error.to_string()).into_owned();
    match error {
        RunnerError::Setup(_) => Failure::settings(message),
        RunnerError::Store(StoreError::Folder(_)) => {
            Failure::temporary(message).hint("make sure that WorkingDirectory.WorkingDirectory is writable")
        }
        RunnerError::Store(_) | RunnerError::Part(_) => Failure::temporary(message),
    }
}

/// Signals within this time of the first one count as one request: `timeout`, for example, signals the process and then
/// its group.
const SAME_REQUEST: Duration = Duration::from_millis(500);

/// How long the runner may take to exit after the second signal. It takes a second if something hangs, and longer only if
/// a thread hangs that everything else waits for.
const EXIT_TIMEOUT: Duration = Duration::from_secs(3);

/// The first SIGTERM or SIGINT requests a drain, the second an immediate exit. This is a separate thread because on one
/// processor the runtime has a single worker thread, and a hanging disk under it must not block signals.
fn listen_for_signals(request: watch::Sender<Shutdown>) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::temporary(format!("cannot listen for signals: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let context = runtime.enter();
    let mut signals = Signals::listen(&[SignalKind::terminate(), SignalKind::interrupt()]).map_err(failed)?;
    drop(context);
    let listen = async move {
        let mut first: Option<Instant> = None;
        loop {
            signals.next().await;
            match first {
                None => drop(request.send_replace(Shutdown::Drain)),
                Some(at) if at.elapsed() < SAME_REQUEST => {
                    debug!("repeated signal ignored");
                }
                Some(_) => {
                    request.send_replace(Shutdown::Now);
                    tokio::time::sleep(EXIT_TIMEOUT).await;
                    // The next start recovers from the step folders, as after a crash.
                    std::process::exit(0);
                }
            }
            first.get_or_insert_with(Instant::now);
        }
    };
    let thread = std::thread::Builder::new().name("signals".to_owned());
    thread.spawn(move || runtime.block_on(listen)).map(drop).map_err(failed)
}

/// Notifies systemd, if it started this process.
fn notify(states: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(false, states) {
        debug!(%error, "failed to notify systemd");
    }
}
