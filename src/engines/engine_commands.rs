//! The commands of a task, and the files that they write and read.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use serde::de::DeserializeOwned;

use super::EngineError;
use crate::base::confined_dir::{ConfinedDir, is_missing};
use crate::script::{EngineCommand, ScriptError};
use crate::workspace::{PrivateFile, STAGED};

/// The programs with which scripts copy and remove files.
pub const COPY: &str = "cp";
pub const REMOVE: &str = "rm";

/// Files in the step folder: the plan and the state as JSON, the names of the outputs in extra files, the token for a login.
pub const SHOWN_PLAN: &str = "plan.json";
pub const SHOWN_STATE: &str = "state.json";
pub const EXTRA_OUTPUTS: &str = "extra-outputs.json";
pub const OIDC_TOKEN: &str = "oidc-token";

/// What a script does for one task of one engine.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct EngineCommands {
    pub engine: Vec<EngineCommand>,
    pub collect: Vec<EngineCommand>,
    /// Copies results to the private folder, where users look for them. No result depends on these copies.
    pub publish: Vec<EngineCommand>,
    /// Whether to collect after a failure too. Then a failure to collect does not fail the task.
    pub collect_after_failure: bool,
    /// Files that the engine writes by itself. They are removed first, so that no file of an earlier task is taken for a
    /// result of this one. Files that receive the stdout of a command are emptied anyway.
    pub writes: Vec<String>,
    /// Flags that were left out, for the job's log.
    pub warnings: Vec<String>,
    /// Other lines for the job's log.
    pub notes: Vec<String>,
    /// Files to write before the script starts, in the private folder or the step folder.
    pub files: Vec<(String, String)>,
}

/// The files that commands write and read, as absolute paths, because a hook may change the working directory.
#[derive(Debug, Clone)]
pub struct ResultPaths {
    private: String,
    step: String,
}

impl ResultPaths {
    /// `private` is the module's private folder, `step` the step folder. `conclude` only reads files in the step folder: another
    /// task may use the module between the end of the script and its conclusion.
    pub fn new(private: &Path, step: &Path) -> Result<Self, EngineError> {
        let text = |path: &Path| {
            path.to_str().map(str::to_owned).ok_or_else(|| ScriptError::Path { path: path.to_owned() })
        };
        Ok(Self { private: text(private)?, step: text(step)? })
    }

    pub fn private(&self, file: PrivateFile) -> String {
        format!("{}/{}", self.private, file.name())
    }

    /// The directory that contains the private folder: where the engine runs.
    pub fn module(&self) -> &Path {
        Path::new(&self.private).parent().unwrap_or(Path::new("/"))
    }

    /// The path of a file in the step folder. A copy of a private file has the same name.
    pub fn step(&self, name: &str) -> String {
        format!("{}/{name}", self.step)
    }

    /// Reads a file in the step folder. Hooks can write to that folder, so symlinks are not followed.
    pub fn read<T>(&self, name: &str, read: impl FnOnce(File) -> io::Result<T>) -> Result<T, EngineError> {
        let opened =
            ConfinedDir::open(Path::new(&self.step)).and_then(|step| step.open_file(OsStr::new(name)));
        opened.and_then(read).map_err(|source| EngineError::Read { path: self.step(name).into(), source })
    }

    /// The module's private folder.
    pub fn private_folder(&self) -> &str {
        &self.private
    }

    /// Where an Init stores what later tasks use if it succeeds.
    pub fn staged_folder(&self) -> String {
        format!("{}/{STAGED}", self.private)
    }

    /// Reads a JSON file of the private folder. `None` if it does not exist.
    pub fn read_private_json<T: DeserializeOwned>(
        &self,
        file: PrivateFile,
    ) -> Result<Option<T>, EngineError> {
        let opened = ConfinedDir::open(Path::new(&self.private))
            .and_then(|folder| folder.open_file(OsStr::new(file.name())));
        let read = opened.and_then(|file| Ok(serde_json::from_reader(BufReader::new(file))?));
        match read {
            Err(error) if is_missing(&error) => Ok(None),
            read => {
                read.map(Some).map_err(|source| EngineError::Read { path: self.private(file).into(), source })
            }
        }
    }

    /// Reads a JSON file in the step folder, which may be large.
    pub fn read_json<T: DeserializeOwned>(&self, name: &str) -> Result<T, EngineError> {
        self.read(name, |file| Ok(serde_json::from_reader(BufReader::with_capacity(64 * 1024, file))?))
    }

    /// Reads JSON that an engine has printed. OpenTofu prints warnings about its own configuration on stdout, before the JSON.
    pub fn read_printed_json<T: DeserializeOwned>(&self, name: &str) -> Result<T, EngineError> {
        self.read(name, |file| {
            let mut reader = BufReader::with_capacity(64 * 1024, file);
            skip_to_object(&mut reader)?;
            Ok(serde_json::from_reader(reader)?)
        })
    }

    /// Whether a private file exists and is not empty.
    pub fn has_text(&self, file: PrivateFile) -> bool {
        let opened =
            ConfinedDir::open(Path::new(&self.private)).and_then(|it| it.open_file(OsStr::new(file.name())));
        opened.and_then(|file| file.metadata()).is_ok_and(|found| found.len() > 0)
    }

    /// Copies a result from the step folder to the private folder.
    pub(super) fn publish(&self, file: PrivateFile) -> EngineCommand {
        copy(self.step(file.name()), self.private(file))
    }

    /// Copies a result from the private folder to the step folder.
    pub(super) fn collect(&self, file: PrivateFile) -> EngineCommand {
        copy(self.private(file), self.step(file.name()))
    }
}

/// Skips the lines before the first one that starts with `{`.
pub(super) fn skip_to_object(reader: &mut impl BufRead) -> io::Result<()> {
    while reader.fill_buf()?.first().is_some_and(|first| *first != b'{') {
        reader.skip_until(b'\n')?;
    }
    Ok(())
}

/// The copy has the mode of the original. If the target exists, it keeps its own mode, so the target must be listed in
/// [`writes`](EngineCommands::writes).
fn copy(from: String, to: String) -> EngineCommand {
    EngineCommand::new([COPY.to_owned(), "--".to_owned(), from, to])
}

/// A command that prints its result, which becomes a file in both folders.
pub(super) fn printed(file: PrivateFile, command: EngineCommand, paths: &ResultPaths) -> EngineCommands {
    EngineCommands {
        engine: vec![command.stdout(paths.step(file.name()).into())],
        publish: vec![paths.publish(file)],
        writes: vec![paths.private(file)],
        ..EngineCommands::default()
    }
}
