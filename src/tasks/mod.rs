//! The tasks of a job. Each has up to three parts:
//!
//! * `prepare` fetches, writes inputs and makes the script; it is safe to repeat.
//! * `execute` is the script, under the supervisor; it survives the runner and runs at most once.
//! * `conclude` reads what the engine left behind (plan, state, outputs); it is safe to repeat.
//!
//! Tasks that need no script (revision, module, variables) are finished when they are prepared.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::contract::{Common, Fault, Success};
use crate::settings::Settings;
use crate::step::{Folder, Stream};

/// What a task may use.
#[derive(Debug, Clone)]
pub struct Context {
    pub settings: Arc<Settings>,
    pub common: Common,
    pub folder: Folder,
    /// Cancelled when somebody asks for the job to be stopped, gracefully or not.
    pub cancel: CancellationToken,
    /// For registries.
    pub http: reqwest::Client,
}

/// What `prepare` comes to.
#[derive(Debug)]
pub enum Prepared {
    /// The task needs no script and is done.
    Finished(Success),
    /// This is to be run under the supervisor.
    Run(Launch),
}

/// What the supervisor runs.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The text of a bash script.
    pub script: String,
    pub directory: PathBuf,
    /// The whole environment of the script.
    pub environment: Vec<(OsString, OsString)>,
}

/// Why a task did not complete.
#[derive(Debug)]
pub enum TaskError {
    Cancelled,
    Faulted(Fault),
}

impl From<Fault> for TaskError {
    fn from(fault: Fault) -> Self {
        Self::Faulted(fault)
    }
}

impl Context {
    pub fn info(&self, message: &str) {
        self.say(Stream::Information, message);
    }

    pub fn warn(&self, message: &str) {
        self.say(Stream::Warning, message);
    }

    pub fn error(&self, message: &str) {
        self.say(Stream::Error, message);
    }

    /// Adds a line of the runner's own to the job's log.
    fn say(&self, stream: Stream, message: &str) {
        let said = self
            .folder
            .writer()
            .map_err(|error| error.to_string())
            .and_then(|mut writer| writer.say(stream, message).map_err(|error| error.to_string()));
        if let Err(error) = said {
            tracing::error!(step = self.folder.name(), "a line for the job's log could not be kept: {error}");
        }
    }
}
