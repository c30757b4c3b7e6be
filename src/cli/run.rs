//! `hawser run`: the program as it is deployed.

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing::{debug, info, warn};

use super::{Failure, overrides::Overrides};
use crate::runner::{self, Options, RunnerError, Shutdown};
use crate::settings;
use crate::step::StoreError;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    overrides: Overrides,
}

pub(super) fn execute(args: Args) -> Result<(), Failure> {
    let loaded = args.overrides.load()?;
    settings::levels::init(&loaded.settings.logging)
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
    super::runtime()?.block_on(async {
        let (ask, asked) = watch::channel(Shutdown::No);
        listen_for_signals(ask)?;
        notify(&[sd_notify::NotifyState::Ready]);
        let mut told = asked.clone();
        tokio::spawn(async move {
            if told.wait_for(|asked| *asked > Shutdown::No).await.is_ok() {
                notify(&[sd_notify::NotifyState::Stopping]);
            }
        });
        let options = Options::of_this_program().map_err(|error| Failure::temporary(error.to_string()))?;
        runner::run(loaded.settings, options, asked, |status| {
            notify(&[sd_notify::NotifyState::Status(status)]);
        })
        .await
        .map_err(failure)
    })
}

#[expect(clippy::needless_pass_by_value, reason = "it is made for map_err")]
fn failure(error: RunnerError) -> Failure {
    let message = error.to_string();
    match error {
        RunnerError::Setup(_) => Failure::settings(message),
        RunnerError::Store(StoreError::Io { .. }) => Failure::temporary(message)
            .hint("the folder is below WorkingDirectory.WorkingDirectory, which must be writable"),
        RunnerError::Store(_) | RunnerError::Program(_) => Failure::temporary(message),
    }
}

/// The first SIGTERM or SIGINT asks for a drain, the second to leave now.
fn listen_for_signals(ask: watch::Sender<Shutdown>) -> Result<(), Failure> {
    let listen = |kind| {
        signal(kind).map_err(|error| Failure::temporary(format!("cannot listen for signals: {error}")))
    };
    let (mut terminate, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    tokio::spawn(async move {
        for wish in [Shutdown::Drain, Shutdown::Now] {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            ask.send_replace(wish);
        }
        // Dropping the sender would look like a lost listener; there is nothing more to ask for.
        std::future::pending::<()>().await;
    });
    Ok(())
}

/// Tells systemd, if it is there.
fn notify(states: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(false, states) {
        debug!("systemd could not be told: {error}");
    }
}
