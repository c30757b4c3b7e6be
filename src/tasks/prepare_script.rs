//! Preparing a task that runs a script: hooks are checked, the engine is found, inputs and script are written.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hawser_contract::{EngineTask, Fault, Task, TaskRequest};
use tokio_util::sync::CancellationToken;

use super::{Prepared, TaskContext, TaskError, fault, plugins};
use crate::base::blocking::blocking;
use crate::base::confined_dir::{ConfinedDir, EntryKind};
use crate::base::files::write_private_atomic;
use crate::base::process::{Inherited, ProgramOutput, Tool, find_only_in, find_program};
use crate::engines::environment::{Environment, is_code_to_bash};
use crate::engines::{COPY, Engine, EngineError, InputFile, REMOVE, ResultPaths, StateExport, flags};
use crate::script::Script;
use crate::settings::Settings;
use crate::step::{Facts, Scratch};
use crate::supervisor::Launch;
use crate::workspace::{PrivateFile, Workspace};

/// An engine that does not say its version within this time is run all the same.
const VERSION_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a stack gets to tell its state after its update was stopped.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(60);
const LARGEST_EXPORT: usize = 256 * 1024 * 1024;

/// A module that is being worked in.
#[derive(Debug)]
pub(super) struct OpenModule<'a> {
    pub context: &'a TaskContext,
    pub task: &'a EngineTask,
    pub engine: Arc<dyn Engine>,
    pub workspace: Workspace,
    /// The init directory: where the engine runs.
    pub directory: PathBuf,
    pub places: ResultPaths,
    /// The private folder with its path, opened.
    private: (PathBuf, ConfinedDir),
}

impl<'a> OpenModule<'a> {
    pub(super) fn open(context: &'a TaskContext, task: &'a EngineTask) -> Result<Self, TaskError> {
        let engine = context.engines.get(&task.engine)?;
        let workspace = Workspace::new(&context.settings.working_directory, &context.common.metadata)?;
        let (directory, tree) = (workspace.init_dir(), workspace.tree()?);
        let private = (workspace.private_dir(), tree.private_made()?);
        let places = ResultPaths::new(&private.0, context.folder.path())?;
        Ok(Self { context, task, engine, workspace, directory, places, private })
    }

    /// Does something in the folder of a file that the script reads or writes: the module's private one, or the step's.
    fn at<T>(&self, path: &Path, work: impl FnOnce(&ConfinedDir, &OsStr) -> io::Result<T>) -> io::Result<T> {
        let name = path.file_name().unwrap_or_default();
        match path.parent() {
            Some(folder) if folder == self.private.0 => work(&self.private.1, name),
            folder => work(&ConfinedDir::open(folder.unwrap_or(Path::new("/")))?, name),
        }
    }

    /// Whether a file that the script is to read is there, and is one.
    pub(super) fn is_file(&self, path: &Path) -> bool {
        self.at(path, ConfinedDir::kind).is_ok_and(|kind| kind == Some(EntryKind::File))
    }

    /// Writes the inputs of the engine and turns its commands into what the supervisor runs.
    pub(super) async fn launch(
        &self,
        variables: &BTreeMap<String, String>,
        warnings: Vec<String>,
    ) -> Result<Prepared, TaskError> {
        let (task, engine) = (self.task, &*self.engine);
        engine.check_flags(&task.flags)?;
        self.write_inputs()?;
        let mut work = engine.commands(task, &self.places)?;
        let mut environment = environment(self.context, engine, variables);
        for (name, value) in &work.environment {
            environment.set(name, value);
        }
        if !variables.contains_key("TMPDIR") {
            self.give_scratch(&mut environment)?;
        }
        // An earlier Init may have been allowed more than this runner allows now.
        if task.task != Task::Init {
            self.context.policy.check_variables(variables.keys().map(String::as_str))?;
            if engine.remembers_backend() {
                let note = self.workspace.load_backend_note()?;
                self.context.policy.check_saved_backend(note.settings.as_deref())?;
            }
        }
        let engine_version = self.say_version(&environment).await?;
        let source_commit = self.workspace.local_commit();
        self.context.note_facts(&Facts { engine_version, source_commit });
        for name in variables.keys().filter(|name| is_code_to_bash(name)) {
            self.context.warn(&format!("The variable {name} is left out: bash would run or obey its value"));
        }
        let unknown = flags::unknown_flags(&task.flags);
        for warning in unknown.chain(std::mem::take(&mut work.warnings)).chain(warnings) {
            self.context.warn(&warning);
        }
        let held = match task.task {
            Task::Init => plugins::share(self, &mut environment, &mut work).await?,
            _ => None,
        };
        for path in work.writes.iter().map(Path::new) {
            self.at(path, ConfinedDir::remove_file).map_err(|error| {
                let path = path.display();
                Fault::new(format!("cannot remove {path}, which an earlier task left: {error}"))
            })?;
        }
        // A hook may have its own PATH, or a function of that name; what an engine has done is not lost by it.
        for name in [COPY, REMOVE] {
            if let Ok(program) = find_program(name, &environment.path())
                && let Some(program) = program.to_str()
            {
                let commands = work.collect.iter_mut().chain(&mut work.publish);
                let words = commands.filter_map(|command| command.words.first_mut());
                words.filter(|word| *word == name).for_each(|word| program.clone_into(word));
            }
        }
        // Bash keeps the mode of a file that is there when it sends output to it.
        for path in work.engine.iter().chain(&work.collect).filter_map(|command| command.stdout.as_deref()) {
            self.at(path, |folder, name| folder.write(name, b""))
                .map_err(|error| Fault::new(format!("cannot create {}: {error}", path.display())))?;
        }
        let TaskContext { common, folder, .. } = self.context;
        let [before, after] = task.hooks();
        let script = Script {
            title: format!("{} of job {}, written by hawser", task.task, common.job_id),
            before,
            engine: work.engine,
            collect: work.collect,
            publish: work.publish,
            collect_after_failure: work.collect_after_failure,
            after,
        };
        let script = script.text(&folder.part_path(), &folder.cancel_path())?;
        if let Some(file) = script_file(task.task) {
            self.workspace.write_private(file, script.as_bytes())?;
        }
        let directory = self.directory.clone();
        Ok(Prepared::Run(Launch { script, directory, environment: environment.into_variables(), held }))
    }

    fn write_inputs(&self) -> Result<(), TaskError> {
        for input in self.engine.inputs(self.task, &self.places)? {
            match input {
                InputFile::Private(file, text) => {
                    self.workspace.write_private(file, text.as_bytes())?;
                }
                InputFile::Step(path, text) => write_private_atomic(path.as_ref(), text.as_bytes())
                    .map_err(|error| Fault::new(format!("cannot write {path}: {error}")))?,
            }
        }
        Ok(())
    }

    fn give_scratch(&self, environment: &mut Environment) -> Result<(), TaskError> {
        let temp_directory = &self.context.settings.working_directory.temp_directory;
        let scratch = Scratch::of(temp_directory, &self.context.folder);
        match scratch.make() {
            Ok(Some(folder)) => environment.set_scratch(folder),
            Ok(None) => tracing::warn!(
                "WorkingDirectory.TempDirectory ({}) is too long a path for the sockets of an engine: \
                 scripts use the system's own place for temporary files",
                temp_directory.display()
            ),
            Err(error) => {
                let place = temp_directory.display();
                return Err(Fault::new(format!("cannot make scratch space in {place}: {error}")).into());
            }
        }
        Ok(())
    }

    /// Reads the state after a task that was stopped: no part of its script runs after a cancel.
    pub(super) async fn export_state(&self, export: &StateExport) -> Result<(), TaskError> {
        let environment = environment(self.context, &*self.engine, &self.workspace.load_environment()?);
        let program = find_program(self.engine.name().as_str(), &environment.path())?;
        let variables = environment.variables().map(|(name, value)| (name.clone(), value.clone()));
        let exported = Tool::new(&program, "export the state of the stack")
            .args(&export.arguments)
            .environment(variables)
            .current_dir(&self.directory)
            .timeout(EXPORT_TIMEOUT)
            .max_stdout(LARGEST_EXPORT)
            // The job is cancelled already; this is what is still done for it.
            .run(&CancellationToken::new())
            .await
            .and_then(ProgramOutput::stdout)
            .map_err(|error| Fault::new(fault::sentence(&error)))?;
        let file = export.file;
        let collected = self.places.collected(file);
        self.at(Path::new(&collected), |step, name| step.write(name, &exported))
            .map_err(|error| Fault::new(format!("cannot write {collected}: {error}")))?;
        // The one for people to look at. What is said of the stack does not depend on it.
        if let Err(error) = self.workspace.write_private(file, &exported) {
            self.context.warn(&format!("There is no copy of the state for you: {}", fault::sentence(&error)));
        }
        Ok(())
    }

    /// The step's first line: which engine, which version, where. An engine that is not there fails the task, unless a
    /// before hook may still bring it.
    async fn say_version(&self, environment: &Environment) -> Result<Option<String>, TaskError> {
        let name = self.engine.name();
        // Joined to an empty subdirectory a path ends in a slash.
        let place = self.directory.components().collect::<PathBuf>();
        let place = place.display();
        // The runner's own PATH is nothing to the script.
        let program = match find_only_in(name.as_str(), &environment.path()) {
            Ok(program) => program,
            Err(missing) if self.task.hooks()[0].is_some() => {
                self.context.warn(&format!("{missing}; it may still come by the before hook"));
                return Ok(None);
            }
            Err(missing) => return Err(missing.into()),
        };
        let variables = environment.variables().map(|(name, value)| (name.clone(), value.clone()));
        let asked = Tool::new(&program, "say its version")
            .args(self.engine.version_arguments())
            .environment(variables)
            // Nobody waits for a word from the vendor.
            .env("CHECKPOINT_DISABLE", "1")
            .current_dir(&self.directory)
            .timeout(VERSION_TIMEOUT)
            .run(&self.context.cancel)
            .await
            .and_then(ProgramOutput::text);
        let program = program.display();
        match asked {
            Ok(said) => {
                let version = version(&said);
                self.context.info(&format!("{name} {version} ({program}) in {place}"));
                Ok(Some(version))
            }
            Err(error) if error.is_cancelled() => Err(TaskError::Cancelled),
            Err(error) => {
                let reason = fault::sentence(&error);
                self.context
                    .warn(&format!("{name} ({program}) in {place} does not say its version: {reason}"));
                Ok(None)
            }
        }
    }
}

fn version(said: &str) -> String {
    #[derive(serde::Deserialize)]
    struct Version {
        terraform_version: String,
    }
    match serde_json::from_str::<Version>(said) {
        Ok(version) => version.terraform_version,
        Err(_) => said.lines().next().unwrap_or_default().trim().trim_start_matches('v').to_owned(),
    }
}

/// What an engine and its hooks are given, with these variables of the module.
pub(super) fn environment(
    context: &TaskContext,
    engine: &dyn Engine,
    variables: &BTreeMap<String, String>,
) -> Environment {
    let Settings { runner, engine: own, .. } = &*context.settings;
    let host = Inherited::of_this_process()
        .without_secret(&runner.credentials.client_secret)
        .narrowed_to(own.environment_allow_list.as_deref());
    Environment::new(engine.environment(), host, variables, &own.additional_binary_paths)
}

/// Where the script has put its results. The module's folder is not looked at, because none of them is read from there: what
/// became of it since the engine ran says nothing about what the engine did.
pub(super) fn places(context: &TaskContext) -> Result<ResultPaths, TaskError> {
    let workspace = Workspace::new(&context.settings.working_directory, &context.common.metadata)?;
    Ok(ResultPaths::new(&workspace.private_dir(), context.folder.path())?)
}

/// Reads what an engine left behind; files may be large, so not on a thread of the runtime.
pub(super) async fn read<T: Send + 'static>(
    reading: impl FnOnce() -> Result<T, EngineError> + Send + 'static,
) -> Result<T, TaskError> {
    match blocking(reading).await {
        Ok(read) => Ok(read?),
        Err(error) => Err(Fault::new(format!("a thread that was to read a file failed: {error}")).into()),
    }
}

/// Somebody wants a script of a task that has none.
pub(super) fn no_script(request: &TaskRequest) -> TaskError {
    Fault::new(format!("{} runs no script: there is nothing to conclude", request.task())).into()
}

/// Where a copy of the script of a task is kept for people to read.
fn script_file(task: Task) -> Option<PrivateFile> {
    Some(match task {
        Task::GetDefinitiveRevision | Task::GetModule | Task::Variables => return None,
        Task::Init => PrivateFile::InitScript,
        Task::Validate => PrivateFile::ValidateScript,
        Task::Plan => PrivateFile::PlanScript,
        Task::PlanDestroy => PrivateFile::PlanDestroyScript,
        Task::ApplyFromPlan => PrivateFile::ApplyScript,
        Task::DestroyFromPlan => PrivateFile::DestroyScript,
        Task::Output => PrivateFile::OutputScript,
    })
}
