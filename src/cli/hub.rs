//! `hawser hub`: the embedded server on its own, for trying runners against it.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use hawser_dev_server::{
    DataError, EmbeddedHub, Events, HubData, HubEvent, HubOptions, LOG_PERIOD_SECONDS, ListeningNote,
    Recorded,
};
use tokio::signal::unix::{SignalKind, signal};

use super::{Failure, out};

/// Where `hawser hub` keeps its identity and `hawser job` looks for it.
pub(super) const DEFAULT_DATA: &str = ".hawser-hub";

/// Events that are kept for the terminal; they are printed as they come.
const KEPT_EVENTS: usize = 10_000;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Address and port to listen on; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:8900", value_name = "ADDRESS:PORT", value_parser = address)]
    listen: SocketAddr,
    /// Directory with the hub's identity and secrets, made at the first start; git ignores it
    #[arg(long, default_value = DEFAULT_DATA, value_name = "DIR")]
    data: PathBuf,
    /// Keep nothing on disk: new credentials at every start
    #[arg(long, alias = "state-less", conflicts_with = "data")]
    stateless: bool,
    /// How long a token is good for
    #[arg(long, default_value_t = 3600, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    token_lifetime: u64,
    /// Push a running task again when its runner reconnects
    #[arg(long)]
    redispatch: bool,
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "write an IP address and a port, such as 127.0.0.1:8900".to_owned())
}

pub(super) fn execute(args: Args) -> Result<(), Failure> {
    crate::base::files::keep_private();
    super::runtime()?.block_on(serve(args))
}

async fn serve(args: Args) -> Result<(), Failure> {
    // Held until the end.
    let (_lock, data) = if args.stateless {
        (None, HubData::generate())
    } else {
        let lock = HubData::lock(&args.data).map_err(no_data)?;
        (Some(lock), HubData::load_or_create(&args.data).map_err(no_data)?)
    };
    if let Some(path) = &data.was_open {
        out::aside(format_args!(
            "warning: {} was open to others on this machine, who may know the hub's secrets; now it is its owner's alone \
             (remove it to get new secrets at the next start)",
            path.display()
        ));
    }
    let hub = EmbeddedHub::start(HubOptions {
        listen: args.listen,
        identity: Some(data.identity.clone()),
        admin_token: Some(data.admin_token.clone()),
        token_lifetime: Duration::from_secs(args.token_lifetime),
        redispatch_on_reconnect: args.redispatch,
        // Jobs do not outlive this process; a runner that still has a result for one must not be stuck with it.
        acknowledge_unknown_jobs: true,
        keep_events: KEPT_EVENTS,
        ..HubOptions::default()
    })
    .await
    .map_err(|error| {
        Failure::unavailable(error.to_string())
            .hint("another `hawser hub` may be running already; another address can be named with --listen")
    })?;
    let url = reachable_url(hub.address());
    let _note = if args.stateless {
        None
    } else {
        let note = ListeningNote::write(&args.data, &url);
        Some(note.map_err(no_data)?)
    };
    introduce(&hub, &url, &args, &data);
    let events = hub.events();
    tokio::select! {
        () = print_events(events) => {}
        stopped = stop_signal() => stopped?,
    }
    hub.shutdown().await;
    Ok(())
}

#[expect(clippy::needless_pass_by_value, reason = "it is made for map_err")]
fn no_data(error: DataError) -> Failure {
    let message = error.to_string();
    let failure = match error {
        DataError::InUse { .. } => Failure::temporary(message),
        _ => Failure::failed(message),
    };
    failure.hint("another directory can be named with --data")
}

/// Listening on all addresses is no address to connect to.
fn reachable_url(address: SocketAddr) -> String {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::from(std::net::Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::from(std::net::Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    format!("http://{}", SocketAddr::new(ip, address.port()))
}

fn introduce(hub: &EmbeddedHub, url: &str, args: &Args, data: &HubData) {
    let identity = hub.identity();
    out::line(format_args!("The hub listens at {url}\n"));
    if !hub.address().ip().is_loopback() {
        out::line(
            "It is for trying things out: whoever reaches this address sees tokens and jobs in the clear.\n",
        );
    }
    out::line("A runner connects with this appsettings.json (each runner with an Instance of its own):\n");
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
    } else if args.data.as_os_str() == DEFAULT_DATA {
        out::line("hawser job apply SOURCE\n");
    } else {
        out::line(format_args!("hawser job apply --data {} SOURCE\n", args.data.display()));
    }
}

/// Prints what happens, for ever.
async fn print_events(mut events: Events) {
    loop {
        let Recorded { at, event, .. } = events.next().await;
        // The entries follow one by one.
        if matches!(event, HubEvent::LogBatch { .. }) {
            continue;
        }
        out::foreign_line(&format!("{} {event}", at.strftime("%H:%M:%S")));
    }
}

async fn stop_signal() -> Result<(), Failure> {
    let listen = |kind| {
        signal(kind).map_err(|error| Failure::temporary(format!("cannot listen for signals: {error}")))
    };
    let (mut interrupt, mut terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}
