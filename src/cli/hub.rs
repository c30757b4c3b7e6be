//! `hawser hub`: the embedded server by itself, to try out runners.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use hawser_dev_server::{
    DataError, EmbeddedHub, Events, HubData, HubEvent, HubOptions, LOG_PERIOD_SECONDS, ListeningNote,
    Recorded,
};

use super::{Failure, out, stop_signal};
use crate::script::quote::quote;

/// The data directory of `hawser hub`, where `hawser job` looks for it too.
pub(super) const DEFAULT_DATA: &str = ".hawser-hub";

/// How many events are kept. They are printed as they arrive.
const KEPT_EVENTS: usize = 10_000;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Address and port to listen on; port 0 selects a free port
    #[arg(long, default_value = "127.0.0.1:8900", value_name = "ADDRESS:PORT", value_parser = address)]
    listen: SocketAddr,
    /// Directory for the hub's identity and secrets, created at the first start; git ignores it
    #[arg(long, default_value = DEFAULT_DATA, value_name = "DIR")]
    data: PathBuf,
    /// Keep nothing on disk, and create new credentials at every start
    #[arg(long, alias = "state-less", conflicts_with = "data")]
    stateless: bool,
    /// How long a token is valid
    #[arg(long, default_value_t = 3600, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    token_lifetime: u64,
    /// Push a running task again when its runner reconnects
    #[arg(long)]
    redispatch: bool,
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "expected an IP address and a port, such as 127.0.0.1:8900".to_owned())
}

pub(super) fn execute(args: Args) -> Result<(), Failure> {
    crate::base::files::keep_private();
    super::runtime()?.block_on(serve(args))
}

async fn serve(args: Args) -> Result<(), Failure> {
    let (_lock, data) = if args.stateless {
        (None, HubData::generate())
    } else {
        let lock = HubData::lock(&args.data).map_err(data_failure)?;
        (Some(lock), HubData::load_or_create(&args.data).map_err(data_failure)?)
    };
    if let Some(path) = &data.was_open {
        out::aside(format_args!(
            "warning: other users of this machine could read {}, which holds the hub's secrets. Only its owner can \
             now. To replace the secrets, delete the file and restart the hub.",
            path.display()
        ));
    }
    let hub = EmbeddedHub::start(HubOptions {
        listen: args.listen,
        identity: Some(data.identity.clone()),
        admin_token: Some(data.admin_token.clone()),
        token_lifetime: Duration::from_secs(args.token_lifetime),
        redispatch_on_reconnect: args.redispatch,
        // Jobs do not outlive this process. A runner must not get stuck with a result for an unknown job.
        acknowledge_unknown_jobs: true,
        keep_events: KEPT_EVENTS,
        ..HubOptions::default()
    })
    .await
    .map_err(|error| {
        Failure::unavailable(error.to_string())
            .hint("another `hawser hub` may be running; use another address with --listen")
    })?;
    let url = reachable_url(hub.address());
    let note = (!args.stateless).then(|| ListeningNote::write(&args.data, &url));
    let _note = note.transpose().map_err(data_failure)?;
    // A signal sent as soon as the instructions are out must not kill the process.
    let stop = stop_signal()?;
    print_instructions(&hub, &url, &args, &data);
    let events = hub.events();
    tokio::select! {
        () = print_events(events) => {}
        _ = stop => {}
    }
    hub.shutdown().await;
    Ok(())
}

#[expect(clippy::needless_pass_by_value, reason = "used with map_err")]
fn data_failure(error: DataError) -> Failure {
    let message = error.to_string();
    let failure = match error {
        DataError::InUse { .. } => Failure::temporary(message),
        _ => Failure::failed(message),
    };
    failure.hint("use another directory with --data")
}

/// Replaces the unspecified address, which cannot be connected to, with loopback.
fn reachable_url(address: SocketAddr) -> String {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::from(std::net::Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::from(std::net::Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    format!("http://{}", SocketAddr::new(ip, address.port()))
}

fn print_instructions(hub: &EmbeddedHub, url: &str, args: &Args, data: &HubData) {
    let identity = hub.identity();
    out::line(format_args!("The hub is listening at {url}\n"));
    if !hub.address().ip().is_loopback() {
        out::line("It is for testing only: tokens and jobs are sent to this address without encryption.\n");
    }
    out::line("A runner connects with this appsettings.json (each runner needs a different Instance):\n");
    out::line(format_args!("{:#}\n", identity.runner_settings(url, "runner-1")));
    out::line("or with these environment variables:\n");
    for (name, value) in identity.runner_variables(url, "runner-1") {
        out::line(format_args!("export {name}={value}"));
    }
    out::line(format_args!("export JobLogStream__PeriodSeconds={LOG_PERIOD_SECONDS}"));
    if hub.address().ip().is_unspecified() {
        let port = hub.address().port();
        out::line(format_args!(
            "\nA runner on another machine needs this machine's address in Server.Url: http://ADDRESS:{port}"
        ));
    }
    out::line("\nSubmit a job with:\n");
    if args.stateless {
        out::line(format_args!("export {}={}", super::job::TOKEN_VARIABLE, data.admin_token));
        out::line(format_args!("hawser job apply --hub {url} SOURCE\n"));
    } else {
        // Absolute, so that the command works in every directory.
        let data = std::path::absolute(&args.data).unwrap_or_else(|_| args.data.clone());
        out::line(format_args!("hawser job apply --data {} SOURCE\n", quote(&data.to_string_lossy())));
    }
}

/// Prints all events, forever.
async fn print_events(mut events: Events) {
    loop {
        let Recorded { at, event, .. } = events.next().await;
        // The entries of a batch are separate events.
        if matches!(event, HubEvent::LogBatch { .. }) {
            continue;
        }
        out::untrusted_line(&format!("{} {event}", at.strftime("%H:%M:%S")));
    }
}
