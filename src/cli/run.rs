//! `hawser run`: the program as it is deployed.

use std::io;
use std::sync::Once;
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing::{debug, info, warn};

use super::overrides::Overrides;
use super::{Failure, pid1};
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
    if pid1::is_this() {
        return pid1::execute();
    }
    crate::base::files::keep_private();
    let loaded = args.overrides.load()?;
    let secret_store = SecretStore::of_this_process(&loaded.settings)
        .map_err(|error| Failure::settings(error.to_string()))?;
    mask_panics(secret_store.clone());
    crate::observe::log_filter::init(&loaded.settings.logging, secret_store.clone())
        .map_err(|error| Failure::temporary(error.to_string()))?;
    for warning in &loaded.warnings {
        warn!("{warning}");
    }
    info!(
        version = env!("CARGO_PKG_VERSION"),
        instance = loaded.settings.runner.instance,
        server = %loaded.settings.server.url,
        "hawser starts"
    );
    let (ask, asked) = watch::channel(Shutdown::No);
    listen_for_signals(ask)?;
    let runtime = super::runtime()?;
    let ended = runtime.block_on(async {
        let mut told = asked.clone();
        tokio::spawn(async move {
            if told.wait_for(|asked| *asked > Shutdown::No).await.is_ok() {
                notify(&[sd_notify::NotifyState::Stopping]);
            }
        });
        let options = Options::of_this_program();
        let ready = Once::new();
        let told = secret_store.clone();
        runner::run(loaded.settings, secret_store.clone(), options, asked, move |status| {
            // The first word comes when the step folders are open and what they held is taken up.
            ready.call_once(|| notify(&[sd_notify::NotifyState::Ready]));
            notify(&[sd_notify::NotifyState::Status(&told.masker().text(status))]);
        })
        .await
        .map_err(|error| failure(error, &secret_store))
    });
    // A thread may hang with its disk. Whatever a thread has not done yet is as
    // after a crash: the next start finds it in the folders.
    runtime.shutdown_background();
    ended
}

#[expect(clippy::needless_pass_by_value, reason = "it is made for map_err")]
fn failure(error: RunnerError, secret_store: &SecretStore) -> Failure {
    let message = secret_store.masker().text(&error.to_string()).into_owned();
    match error {
        RunnerError::Setup(_) => Failure::settings(message),
        RunnerError::Store(StoreError::Io { .. }) => Failure::temporary(message)
            .hint("the folder is below WorkingDirectory.WorkingDirectory, which must be writable"),
        RunnerError::Store(_) | RunnerError::Part(_) => Failure::temporary(message),
    }
}

/// Signals that come closer together than this are one wish: `timeout`, for one, signals the process and then its
/// group.
const ONE_WISH: Duration = Duration::from_millis(500);

/// How long the runner gets to leave at once. It takes a second when something hangs, unless what hangs is a thread that
/// everything else is waiting for.
const LEAVING: Duration = Duration::from_secs(3);

/// The first SIGTERM or SIGINT asks for a drain, the second to leave now. In a thread of its own: with one processor the
/// runner has one thread for everything that does not wait, and a disk that hangs under it must not make it deaf.
fn listen_for_signals(ask: watch::Sender<Shutdown>) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::temporary(format!("cannot listen for signals: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let context = runtime.enter();
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    drop(context);
    let listen = async move {
        let mut first: Option<Instant> = None;
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            match first {
                None => drop(ask.send_replace(Shutdown::Drain)),
                Some(at) if at.elapsed() < ONE_WISH => {
                    debug!("a signal right after the first changes nothing");
                }
                Some(_) => {
                    ask.send_replace(Shutdown::Now);
                    tokio::time::sleep(LEAVING).await;
                    // All is as after a crash: the next start finds it in the folders.
                    std::process::exit(0);
                }
            }
            first.get_or_insert_with(Instant::now);
        }
    };
    let thread = std::thread::Builder::new().name("signals".to_owned());
    thread.spawn(move || runtime.block_on(listen)).map(drop).map_err(failed)
}

/// Tells systemd, if it is there.
fn notify(states: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(false, states) {
        debug!("systemd could not be told: {error}");
    }
}
