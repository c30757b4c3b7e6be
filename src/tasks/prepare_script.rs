//! Prepares a task that runs a script: checks the saved settings, finds the engine, writes inputs and the script.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hawser_contract::{EngineTask, Fault, Task};
use uuid::Uuid;

use super::planned::Planned;
use super::{Prepared, TaskContext, TaskError, fault, init, plugins, results};
use crate::base::confined_dir::ConfinedDir;
use crate::base::process::{Inherited, ProgramOutput, Tool, find_only_in, find_program};
use crate::engines::directory::EngineDirectory;
use crate::engines::environment::{Environment, is_code_to_bash};
use crate::engines::{COPY, Engine, EngineCommands, Preparation, REMOVE, ResultPaths, flags};
use crate::masking::Rules;
use crate::script::Script;
use crate::settings::Settings;
use crate::step::{Facts, Scratch};
use crate::supervisor::Launch;
use crate::workspace::{LastTask, PrivateFile, Workspace};

/// If an engine does not print its version in time, the task continues without it.
const VERSION_TIMEOUT: Duration = Duration::from_secs(20);

/// The module of a task that runs a script.
#[derive(Debug)]
pub(super) struct OpenModule<'a> {
    pub context: &'a TaskContext,
    pub task: &'a EngineTask,
    pub engine: Arc<dyn Engine>,
    pub workspace: Workspace,
    /// The init directory: where the engine runs.
    pub directory: PathBuf,
    pub paths: ResultPaths,
    /// The private folder with its path, opened.
    private: (PathBuf, ConfinedDir),
}

pub(super) async fn prepare(context: &TaskContext, task: &EngineTask) -> Result<Prepared, TaskError> {
    let module = OpenModule::open(context, task)?;
    module.engine.check_flags(&task.flags)?;
    let variables = if task.task == Task::Init {
        init::save_settings(&module)?;
        task.init.resolved_env_vars.clone()
    } else {
        module.workspace.load_environment()?
    };
    if task.task.applies() {
        Planned::check(&module).await?;
    }
    if task.task == Task::Output && !task.extra_file_names.is_empty() {
        results::record_extra_outputs(&module).await?;
    }
    module.launch(&variables).await
}

impl<'a> OpenModule<'a> {
    pub(super) fn open(context: &'a TaskContext, task: &'a EngineTask) -> Result<Self, TaskError> {
        let engine = context.engines.get(&task.engine)?;
        let workspace = context.workspace()?;
        let (directory, tree) = (workspace.init_dir(), workspace.tree()?);
        let private = (workspace.private_dir(), tree.private_made()?);
        let paths = ResultPaths::new(&private.0, context.folder.path())?;
        Ok(Self { context, task, engine, workspace, directory, paths, private })
    }

    /// Accesses a file that the script reads or writes, in the module's private folder or in the step folder.
    fn at<T>(&self, path: &Path, work: impl FnOnce(&ConfinedDir, &OsStr) -> io::Result<T>) -> io::Result<T> {
        let name = path.file_name().unwrap_or_default();
        match path.parent() {
            Some(folder) if folder == self.private.0 => work(&self.private.1, name),
            folder => work(&ConfinedDir::open(folder.unwrap_or(Path::new("/")))?, name),
        }
    }

    /// Creates the script and its environment.
    async fn launch(&self, variables: &BTreeMap<String, String>) -> Result<Prepared, TaskError> {
        let (context, task, engine) = (self.context, self.task, &*self.engine);
        if let Some((path, text)) = engine.input(task, &self.paths)? {
            self.write(Path::new(&path), text.as_bytes())?;
        }
        // An older plan must not be applied with the variables of this one.
        if matches!(task.task, Task::Plan | Task::PlanDestroy)
            && let Some(plan) = engine.plan_files(task.task).first()
        {
            self.remove(Path::new(&self.paths.private(*plan)))?;
        }
        for (file, text) in engine.kept_files(task, &self.workspace.tree()?)? {
            match task.task {
                Task::Init => self.workspace.stage(file, text.as_bytes())?,
                _ => self.workspace.tree()?.write_private(file, text.as_bytes())?,
            }
        }
        let mut work = engine.commands(task, &self.paths)?;
        let mut environment = environment(&context.settings, engine, variables);
        if !variables.contains_key("TMPDIR") {
            self.give_scratch(&mut environment)?;
        }
        // The policy may be stricter now than when Init ran.
        if task.task != Task::Init {
            context.policy.check_variables(variables.keys().map(String::as_str))?;
            let note = self.workspace.load_backend_note()?;
            context.policy.check_saved_backend(note.settings.as_deref())?;
        }
        let engine_version = self.log_version(&environment).await?;
        self.prepare_engine(&mut work, &mut environment, engine_version.as_deref())?;
        let source_commit = self.workspace.local_commit();
        context.note_facts(&Facts { engine_version, source_commit });
        for name in variables.keys().filter(|name| is_code_to_bash(name)) {
            context.warn(&format!("Ignoring variable {name}: bash would execute its value"));
        }
        let unknown = flags::unknown_flags(&task.flags);
        for warning in unknown.chain(std::mem::take(&mut work.warnings)) {
            context.warn(&warning);
        }
        let directory = EngineDirectory::new(&self.workspace, &environment, task.hooks()[0].is_some());
        let warn = |line: &str| context.warn(line);
        engine.before_task(task, &self.workspace, &directory, context.common.job_id, &warn)?;
        let held = match task.task {
            Task::Init => plugins::share(self, &mut environment, &mut work).await?,
            _ => None,
        };
        for path in &work.writes {
            self.remove(Path::new(path))?;
        }
        // A hook may change PATH or define a function with that name. The results of the engine must not depend on that.
        for name in [COPY, REMOVE] {
            if let Ok(program) = find_program(name, &environment.path())
                && let Some(program) = program.to_str()
            {
                let commands = work.collect.iter_mut().chain(&mut work.publish);
                let words = commands.filter_map(|command| command.words.first_mut());
                words.filter(|word| *word == name).for_each(|word| program.clone_into(word));
            }
        }
        // bash redirects output to existing files without changing their mode, so the files are created here.
        let stdout = work.engine.iter().chain(&work.collect).filter_map(|command| command.stdout.as_deref());
        let retries = work.engine.iter().filter_map(|command| command.retry.as_deref());
        for path in stdout.chain(retries.map(|retry| retry.stderr.as_path())) {
            self.write(path, b"")?;
        }
        let TaskContext { common, .. } = context;
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
        let script = script.text()?;
        // A copy for the user to read.
        self.workspace.write_private(script_file(task.task), script.as_bytes())?;
        self.workspace.note_task(LastTask {
            job: common.job_id,
            task: task.task,
            engine: task.engine.clone(),
            has_hook: before.is_some(),
            variables: variables.clone(),
            place: directory.into_place(),
        })?;
        Ok(Prepared::Run(Launch {
            script,
            directory: self.directory.clone(),
            environment: environment.into_variables(),
            held,
            cancel_grace: Duration::from_secs(context.settings.runner.cancel_grace_seconds),
        }))
    }

    /// Adds what the engine prepares, and selects the module's backend.
    fn prepare_engine(
        &self,
        work: &mut EngineCommands,
        environment: &mut Environment,
        version: Option<&str>,
    ) -> Result<(), TaskError> {
        let rules = Rules::new(&self.context.settings.job_log_stream);
        let rules = rules.map_err(|error| Fault::new(error.to_string()))?;
        let own = self.engine.prepare(
            self.task,
            &Preparation {
                paths: &self.paths,
                workspace: &self.workspace,
                environment,
                version,
                rules: &rules,
            },
        )?;
        for (path, text) in &own.files {
            self.write(Path::new(path), text.as_bytes())?;
        }
        own.notes.iter().chain(&work.notes).for_each(|note| self.context.info(note));
        work.engine.splice(0..0, own.engine);
        work.publish.extend(own.publish);
        work.warnings.extend(own.warnings);
        for (name, value) in self.engine.backend_variables(self.task, &self.paths)? {
            environment.set(name, value);
        }
        Ok(())
    }

    /// Writes a file that the script or a conclusion reads.
    fn write(&self, path: &Path, contents: &[u8]) -> Result<(), Fault> {
        let written = self.at(path, |folder, name| folder.write(name, contents));
        written.map_err(|error| Fault::new(format!("failed to write {}: {error}", path.display())))
    }

    /// Removes a file of an earlier task, if there is one.
    fn remove(&self, path: &Path) -> Result<(), Fault> {
        let removed = self.at(path, ConfinedDir::remove_file);
        removed.map(drop).map_err(|error| {
            let path = path.display();
            Fault::new(format!("failed to remove {path} of an earlier task: {error}"))
        })
    }

    fn give_scratch(&self, environment: &mut Environment) -> Result<(), TaskError> {
        let temp_directory = &self.context.settings.working_directory.temp_directory;
        let scratch = Scratch::of(temp_directory, &self.context.folder);
        match scratch.make() {
            Ok(Some(folder)) => environment.set("TMPDIR", folder),
            Ok(None) => tracing::warn!(
                path = %temp_directory.display(),
                "WorkingDirectory.TempDirectory too long for engine sockets, using system temporary directory"
            ),
            Err(error) => {
                let folder = temp_directory.display();
                return Err(
                    Fault::new(format!("failed to create a scratch folder in {folder}: {error}")).into()
                );
            }
        }
        Ok(())
    }

    /// Logs the engine, its version and the directory, as the first line of the job's first step in this module. A missing
    /// engine fails the task, unless a before hook may install it.
    async fn log_version(&self, environment: &Environment) -> Result<Option<String>, TaskError> {
        let name = self.engine.name();
        // Without the trailing slash of an empty subdirectory.
        let directory = self.directory.components().collect::<PathBuf>();
        let directory = directory.display();
        // The script does not use the runner's own PATH.
        let program = match find_only_in(name.as_str(), &environment.path()) {
            Ok(program) => program,
            Err(missing) if self.task.hooks()[0].is_some() => {
                self.context.warn(&format!("{missing}; the before hook may install it"));
                return Ok(None);
            }
            Err(missing) => return Err(missing.into()),
        };
        let asked = Tool::new(&program, "print its version")
            .args(self.engine.version_arguments())
            .environment(environment.clone().into_variables())
            // Terraform would ask its vendor for updates.
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
                let line = format!("{name} {version} ({program}) in {directory}");
                let logged = LoggedEngine { job: self.context.common.job_id, line };
                // If the note cannot be read or written, the line is logged once more.
                let tree = self.workspace.tree()?;
                if !tree.read_json(PrivateFile::ENGINE).is_ok_and(|earlier| earlier.as_ref() == Some(&logged))
                {
                    self.context.info(&logged.line);
                    let _ = tree.write_json(PrivateFile::ENGINE, &logged);
                }
                Ok(Some(version))
            }
            Err(error) if error.is_cancelled() => Err(TaskError::Cancelled),
            Err(error) => {
                let reason = fault::sentence(&error);
                self.context.warn(&format!("Failed to get the version of {name} ({program}): {reason}"));
                Ok(None)
            }
        }
    }
}

/// `engine.json`: the line about the engine that the last job has logged.
#[derive(PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct LoggedEngine {
    job: Uuid,
    line: String,
}

fn version(said: &str) -> String {
    #[derive(serde::Deserialize)]
    struct Version {
        terraform_version: String,
    }
    // OpenTofu prints problems with its own settings before the JSON.
    let json = said.find("\n{").map_or(said, |at| &said[at..]);
    match serde_json::from_str::<Version>(json) {
        Ok(version) => version.terraform_version,
        Err(_) => said.lines().next().unwrap_or_default().trim().trim_start_matches('v').to_owned(),
    }
}

/// The environment of an engine and its hooks.
pub(super) fn environment(
    settings: &Settings,
    engine: &dyn Engine,
    variables: &BTreeMap<String, String>,
) -> Environment {
    let Settings { runner, engine: own, .. } = settings;
    let host = Inherited::of_this_process()
        .without_secret(&runner.credentials.client_secret)
        .narrowed_to(own.environment_allow_list.as_deref());
    Environment::new(engine.environment(), host, variables, &own.additional_binary_paths)
}

fn script_file(task: Task) -> PrivateFile {
    match task {
        Task::Init => PrivateFile::INIT_SCRIPT,
        Task::Plan => PrivateFile::PLAN_SCRIPT,
        Task::PlanDestroy => PrivateFile::PLAN_DESTROY_SCRIPT,
        Task::ApplyFromPlan => PrivateFile::APPLY_SCRIPT,
        Task::DestroyFromPlan => PrivateFile::DESTROY_SCRIPT,
        Task::Output => PrivateFile::OUTPUT_SCRIPT,
        _ => PrivateFile::VALIDATE_SCRIPT,
    }
}
