//! The command line: what can be asked for, and which exit code and hint each failure gets.

mod clean;
mod exit;
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

pub use exit::Failure;

/// A self-hosted runner for Terraform, OpenTofu and Pulumi.
#[derive(Debug, Parser)]
#[command(name = "hawser", version, about, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Connect to the server and work off its jobs
    Run(run::Args),
    /// Take a directory through a whole job on this machine, with an embedded server
    Local(local::Args),
    /// Run the embedded server on its own, for trying runners against it
    Hub(hub::Args),
    /// Submit jobs to `hawser hub`, list, follow and cancel them
    Job(job::Args),
    /// Remove what old jobs have left in the working directory
    Clean(clean::Args),
    /// Print the effective settings and the layer that each came from
    Settings(settings::Args),
    /// Print the JSON Schema of the settings, or of the hub contract
    Schema(schema::Args),
    #[command(hide = true)]
    Supervise(supervise::Args),
}

pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return exit::usage(&error),
    };
    let done = match cli.command {
        Command::Run(args) => run::execute(args),
        Command::Local(args) => local::execute(args),
        Command::Hub(args) => hub::execute(args),
        Command::Job(args) => job::execute(args),
        Command::Clean(args) => clean::execute(args),
        Command::Settings(args) => settings::execute(args),
        Command::Schema(args) => schema::execute(args),
        Command::Supervise(args) => supervise::execute(args),
    };
    exit::code(done)
}

/// The runtime of every command that does I/O.
fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::temporary(format!("cannot start the async runtime: {error}")))
}
