//! The commands of a task, and the files that they write and read.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use super::EngineError;
use crate::base::confined_dir::{ConfinedDir, open_regular};
use crate::script::{EngineCommand, ScriptError};
use crate::workspace::PrivateFile;

/// The programs that scripts copy and remove files with.
pub const COPY: &str = "cp";
pub const REMOVE: &str = "rm";

/// What a script does for one task of one engine.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct EngineCommands {
    pub engine: Vec<EngineCommand>,
    pub collect: Vec<EngineCommand>,
    /// Copies of results for people, who know them by their names in the private folder. No result depends on them.
    pub publish: Vec<EngineCommand>,
    pub collect_after_failure: bool,
    /// Files that the engine writes by itself. They are removed beforehand: what an earlier task left there must
    /// not pass for what this one did. Those that take a command's stdout are emptied anyway.
    pub writes: Vec<String>,
    /// For the log of the job: flags that were left out.
    pub warnings: Vec<String>,
    /// Variables that count before those of the module.
    pub environment: Vec<(&'static str, &'static str)>,
}

/// The files that commands write and read, named by absolute paths: a hook may change the working directory.
#[derive(Debug, Clone)]
pub struct ResultPaths {
    private: String,
    step: String,
}

impl ResultPaths {
    /// `private` is the runner's folder in the init directory, `step` the folder of the step. What `conclude` reads is in the
    /// latter, and is removed with it: the module's folder may be another's between the end of a script and its conclusion.
    pub fn new(private: &Path, step: &Path) -> Result<Self, EngineError> {
        let text = |path: &Path| {
            path.to_str().map(str::to_owned).ok_or_else(|| ScriptError::Path { path: path.to_owned() })
        };
        Ok(Self { private: text(private)?, step: text(step)? })
    }

    pub(super) fn private(&self, file: PrivateFile) -> String {
        format!("{}/{}", self.private, file.name())
    }

    pub fn inputs(&self) -> String {
        self.private(PrivateFile::Inputs)
    }

    /// The plan that Plan writes and ApplyFromPlan reads.
    pub fn plan(&self) -> String {
        self.private(PrivateFile::Plan)
    }

    pub fn destroy_plan(&self) -> String {
        self.private(PrivateFile::Destroy)
    }

    pub fn pulumi_plan(&self) -> String {
        self.private(PrivateFile::PulumiPlan)
    }

    /// The step's own copy of a result that also stands in the private folder, under the same name.
    pub fn collected(&self, file: PrivateFile) -> String {
        format!("{}/{}", self.step, file.name())
    }

    /// Opens that copy.
    pub fn open_collected(&self, file: PrivateFile) -> ResultFile {
        self.open(self.collected(file))
    }

    /// Opens a file of the step. A hook can find the step's folder, so a link in the file's place is not followed.
    fn open(&self, path: String) -> ResultFile {
        let name = Path::new(&path).file_name().unwrap_or_default();
        let opened = ConfinedDir::open(Path::new(&self.step)).and_then(|step| step.open_file(name));
        ResultFile::new(path, opened)
    }

    /// Puts a result that was printed into the step's folder where people look for it.
    pub(super) fn publish(&self, file: PrivateFile) -> EngineCommand {
        copy(self.collected(file), self.private(file))
    }

    /// Keeps a result that an engine has put into the private folder.
    pub(super) fn collect(&self, file: PrivateFile) -> EngineCommand {
        copy(self.private(file), self.collected(file))
    }

    pub fn oidc_token(&self) -> String {
        format!("{}/oidc-token", self.step)
    }

    /// The plan as JSON.
    pub fn shown_plan(&self) -> String {
        format!("{}/plan.json", self.step)
    }

    pub fn open_shown_plan(&self) -> ResultFile {
        self.open(self.shown_plan())
    }

    /// The state as JSON.
    pub fn shown_state(&self) -> String {
        format!("{}/state.json", self.step)
    }

    pub fn open_shown_state(&self) -> ResultFile {
        self.open(self.shown_state())
    }

    /// The names of the outputs that extra files declare.
    pub fn extra_outputs(&self) -> String {
        format!("{}/extra-outputs.json", self.step)
    }

    pub fn open_extra_outputs(&self) -> ResultFile {
        self.open(self.extra_outputs())
    }
}

/// The copy has the mode of the original: one that we made is private too, what an engine made is so by its folder. Its place is to be among the [`writes`](EngineCommands::writes): what
/// is there is written into, whatever its mode.
fn copy(from: String, to: String) -> EngineCommand {
    EngineCommand::new([COPY.to_owned(), "--".to_owned(), from, to])
}

/// What an Output task does: the command prints the outputs.
pub(super) fn printed_output(command: EngineCommand, places: &ResultPaths) -> EngineCommands {
    let file = PrivateFile::Output;
    EngineCommands {
        engine: vec![command.stdout(places.collected(file).into())],
        publish: vec![places.publish(file)],
        writes: vec![places.private(file)],
        ..EngineCommands::default()
    }
}

/// A file that an engine has written, with where it is. Who knows the folder that it must not be outside of opens it.
#[derive(Debug)]
pub struct ResultFile {
    path: PathBuf,
    opened: io::Result<File>,
}

impl ResultFile {
    pub fn new(path: impl Into<PathBuf>, opened: io::Result<File>) -> Self {
        Self { path: path.into(), opened }
    }

    pub(super) fn open(self, what: &'static str) -> Result<(PathBuf, File), EngineError> {
        match self.opened {
            Ok(file) => Ok((self.path, file)),
            Err(source) => Err(EngineError::Read { what, path: self.path, source }),
        }
    }
}

/// A file of the step, or of a test.
impl<T: AsRef<str> + ?Sized> From<&T> for ResultFile {
    fn from(path: &T) -> Self {
        let path = Path::new(path.as_ref());
        Self::new(path, open_regular(path))
    }
}

/// Reads a JSON file that may be large. `what` says what it is, for the error.
pub(super) fn read_json<T: DeserializeOwned>(
    what: &'static str,
    file: impl Into<ResultFile>,
) -> Result<T, EngineError> {
    let (path, file) = file.into().open(what)?;
    serde_json::from_reader(BufReader::with_capacity(64 * 1024, file)).map_err(|source| EngineError::Json {
        what,
        path,
        source,
    })
}
