//! The command line. [`exit`] decides the exit code and prints the hint of every failure.

mod clean;
mod exec;
mod exit;
mod flags;
mod gate;
mod hub;
mod job;
mod local;
mod out;
mod overrides;
mod pid1;
mod run;
mod schema;
mod settings;
mod supervise;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tokio::signal::unix::SignalKind;

use crate::base::signals::Signals;
pub use exit::Failure;

/// A self-hosted runner for Terraform, OpenTofu, and Pulumi.
#[derive(Debug, Parser)]
#[command(name = "hawser", version, about, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Connect to the server and run its jobs
    Run(run::Args),
    /// Run a complete job for a directory on this machine, with an embedded server
    Local(local::Args),
    /// Run the embedded server by itself, to try out runners
    Hub(hub::Args),
    /// Submit, list, follow, and cancel jobs on `hawser hub`
    Job(job::Args),
    Exec(exec::ExecArgs),
    Shell(exec::ShellArgs),
    /// Remove leftovers of old jobs from the working directory
    Clean(clean::Args),
    /// Print the effective settings and the source of each
    Settings(settings::Args),
    /// Print the JSON Schema of the settings or of the hub contract
    Schema(schema::Args),
    #[command(hide = true)]
    Supervise(supervise::Args),
}

pub fn main() -> ExitCode {
    let mut own = std::env::args_os().skip(1);
    if own.next().is_some_and(|command| command == gate::COMMAND) {
        return gate::execute(own);
    }
    let (arguments, command) = exec::split(std::env::args_os());
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => return exit::usage(&error),
    };
    let result = match cli.command {
        Command::Run(args) => run::execute(args),
        Command::Local(args) => local::execute(args),
        Command::Hub(args) => hub::execute(args),
        Command::Job(args) => job::execute(args),
        Command::Exec(args) => exec::execute(args, &command),
        Command::Shell(args) => exec::shell(args),
        Command::Clean(args) => clean::execute(args),
        Command::Settings(args) => settings::execute(args),
        Command::Schema(args) => schema::execute(args),
        Command::Supervise(args) => supervise::execute(args),
    };
    exit::code(result)
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::temporary(format!("cannot start the async runtime: {error}")))
}

/// Listens for SIGINT and SIGTERM from now on. The future returns the number of the first one.
fn stop_signal() -> Result<impl Future<Output = u8>, Failure> {
    let mut signals = Signals::listen(&[SignalKind::interrupt(), SignalKind::terminate()])
        .map_err(|error| Failure::temporary(format!("cannot listen for signals: {error}")))?;
    Ok(async move { u8::try_from(signals.next().await.as_raw_value()).unwrap_or_default() })
}

/// The value of an option such as `--var`.
fn name_and_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => Ok((name.trim().to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}
