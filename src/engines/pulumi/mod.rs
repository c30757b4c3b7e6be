//! Pulumi.

mod backend;
pub mod commands;
mod config;
mod counts;
mod default_stack;
mod dependencies;
mod diagnostics;
pub mod flags;
mod leftovers;
mod outputs;
mod preview;
mod project;
mod state;

use std::path::Path;

use hawser_contract::{
    CommandTask, EngineName, EngineTask, Flag, FlagLists, OutputValue, PlanData, PulumiFlag, Task,
};
use uuid::Uuid;

use super::diagnostics::{Diagnostic, EngineOutput};
use super::directory::EngineDirectory;
use super::failed_step::{FailedStep, Leftovers};
use super::flags::{GivenFlag, is_on};
use super::{
    BackendChange, Direction, Engine, EngineCommands, EngineError, OIDC_TOKEN, Preparation, ResultPaths,
};
use crate::workspace::{PrivateFile, Tree, Workspace};
use backend::ChosenBackend;
use config::SetParameters;
use counts::{DestroyPreview, SavedPlan};
use serde_json::json;
use state::StackExport;

#[derive(Debug)]
pub struct Pulumi;

impl Engine for Pulumi {
    fn name(&self) -> EngineName {
        EngineName::PULUMI
    }

    fn install_hint(&self) -> &'static str {
        "install Pulumi: https://www.pulumi.com/docs/install/"
    }

    fn uses_file(&self, name: &str) -> bool {
        name == "Pulumi.yaml" || name == "Pulumi.yml"
    }

    fn declares_variables(&self) -> bool {
        false
    }

    /// Init saves the stack for all later tasks.
    fn stack_flags(&self, name: &str) -> Option<FlagLists> {
        let flag = Flag { task: Some(CommandTask::Init), ..Flag::new(PulumiFlag::StackName, Some(name)) };
        Some(FlagLists { pulumi_flags: vec![flag].into(), ..FlagLists::default() })
    }

    fn environment(&self) -> &'static [(&'static str, &'static str)] {
        &[("PULUMI_SKIP_UPDATE_CHECK", "true")]
    }

    fn verb(&self, task: Task) -> &'static str {
        match task {
            Task::Init => "stack select",
            Task::Validate | Task::Plan => "preview",
            Task::PlanDestroy => "destroy --preview-only",
            Task::ApplyFromPlan => "up",
            Task::DestroyFromPlan => "destroy",
            _ => "stack output",
        }
    }

    fn check_flags(&self, flags: &FlagLists) -> Result<(), EngineError> {
        flags::check(flags)
    }

    fn given_flags(&self, task: &EngineTask) -> Vec<GivenFlag> {
        let flags = &task.flags.pulumi_flags.known;
        let plain = flags.iter().map(|it| GivenFlag {
            changes_state: it.flag == PulumiFlag::SkipPreview && is_on(flags, it.flag),
            ..GivenFlag::new(it, true)
        });
        let array = task.flags.pulumi_array_flags.known.iter().map(|flag| GivenFlag::new(flag, true));
        plain.chain(array).collect()
    }

    /// Every Init logs in again.
    fn backend_change(&self, init: &EngineTask) -> BackendChange {
        let url = backend::login_url(&init.flags);
        let settings = url.into_iter().map(|url| format!("CloudUrl={url}")).collect();
        BackendChange { settings, replaces: true }
    }

    fn backend_variables(
        &self,
        task: &EngineTask,
        paths: &ResultPaths,
    ) -> Result<Vec<(&'static str, String)>, EngineError> {
        Ok(ChosenBackend::of(task, paths)?.variables(task, paths))
    }

    fn prepare(&self, task: &EngineTask, at: &Preparation<'_>) -> Result<EngineCommands, EngineError> {
        match task.task {
            Task::Init => {
                let chosen = ChosenBackend::of_init(task);
                backend::copy_login(&chosen, at.paths, at.environment)?;
                let other = at.environment.get(backend::BACKEND_URL);
                let other = other.filter(|url| chosen.backend.as_deref().is_some_and(|own| *url != own));
                let warnings = other.map(|_| {
                    format!("ignoring variable {}: the flags choose another backend", backend::BACKEND_URL)
                });
                let warnings = warnings.into_iter().collect();
                Ok(EngineCommands { warnings, ..EngineCommands::default() })
            }
            Task::Validate | Task::Output => Ok(EngineCommands::default()),
            _ => config::prepare(task, at),
        }
    }

    fn secret_flags<'a>(&self, task: &'a EngineTask) -> Vec<&'a str> {
        if task.task == Task::Init { commands::oidc_token(task).into_iter().collect() } else { Vec::new() }
    }

    fn input(&self, task: &EngineTask, paths: &ResultPaths) -> Result<Option<(String, String)>, EngineError> {
        if task.task != Task::Init {
            return Ok(None);
        }
        commands::check_init(task)?;
        Ok(commands::oidc_token(task).map(|token| (paths.step(OIDC_TOKEN), token.to_owned())))
    }

    fn kept_files(&self, task: &EngineTask, _tree: &Tree) -> Result<Vec<(PrivateFile, String)>, EngineError> {
        let chosen = (task.task == Task::Init).then(|| json!(ChosenBackend::of_init(task)).to_string());
        Ok(chosen.map(|text| (PrivateFile::PULUMI_BACKEND, text)).into_iter().collect())
    }

    fn commands(&self, task: &EngineTask, paths: &ResultPaths) -> Result<EngineCommands, EngineError> {
        if task.task == Task::Init {
            let mut work = commands::init(task, paths);
            work.engine.extend(dependencies::install(task, paths.module()));
            return Ok(work);
        }
        let chosen = ChosenBackend::of(task, paths)?;
        let (direction, stack) = (Direction::of(task.task), chosen.stack(&task.flags));
        Ok(match task.task {
            Task::Plan | Task::PlanDestroy => commands::plan(direction, stack, &task.flags, paths),
            Task::ApplyFromPlan | Task::DestroyFromPlan => {
                commands::apply(direction, stack, &task.flags, paths)
            }
            Task::Output => commands::output(stack, &task.flags, paths),
            _ => {
                // Plans do not survive a new revision, which may need other parameters.
                let plans = [PrivateFile::PULUMI_PLAN, PrivateFile::DESTROY_PREVIEW];
                let planned = plans.iter().any(|plan| Path::new(&paths.private(*plan)).is_file());
                let set = SetParameters::load(paths)?;
                commands::validate(stack, set.complete_for(stack).filter(|_| planned))
            }
        })
    }

    /// A destroy has no plan file.
    fn plan_files(&self, task: Task) -> Vec<PrivateFile> {
        match Direction::of(task) {
            Direction::Apply => vec![PrivateFile::PULUMI_PLAN],
            Direction::Destroy => Vec::new(),
        }
    }

    fn read_plan(&self, task: Task, paths: &ResultPaths) -> Result<(PlanData, Vec<String>), EngineError> {
        match Direction::of(task) {
            Direction::Apply => {
                let plan: SavedPlan = paths.read_json(PrivateFile::PULUMI_PLAN.name())?;
                Ok((plan.count(), Vec::new()))
            }
            Direction::Destroy => {
                let file = PrivateFile::DESTROY_PREVIEW.name();
                let preview: DestroyPreview = paths.read_json(file)?;
                Ok((preview.count(), preview::lines(&paths.read_json(file)?)))
            }
        }
    }

    fn count_resources(&self, paths: &ResultPaths) -> Result<u64, EngineError> {
        Ok(paths.read_json::<StackExport>(PrivateFile::PULUMI_EXPORT.name())?.resources())
    }

    fn removes_state(&self, task: &EngineTask) -> bool {
        task.task == Task::DestroyFromPlan && commands::removes_stack(&task.flags)
    }

    fn parse_outputs(&self, printed: &[u8]) -> Result<Vec<OutputValue>, serde_json::Error> {
        outputs::parse(printed)
    }

    fn mark_sensitive(&self, outputs: &mut [OutputValue], paths: &ResultPaths) -> Result<(), EngineError> {
        outputs::mark_sensitive(outputs, paths)
    }

    /// A preview of a destroy prints JSON to a file.
    fn diagnostics(&self, task: Task, output: &EngineOutput, paths: &ResultPaths) -> Vec<Diagnostic> {
        let report = (task == Task::PlanDestroy)
            .then(|| paths.read_json(PrivateFile::DESTROY_PREVIEW.name()).ok())
            .flatten();
        diagnostics::errors(output, report)
    }

    fn failure_hint(&self, lines: &[String]) -> Option<&'static str> {
        let has_no_backend = |line: &String| line.contains("PULUMI_ACCESS_TOKEN must be set for login");
        lines.iter().any(has_no_backend).then_some(
            "No backend is configured: run `pulumi login` as the runner's user, set the flag CloudUrl on Init, or set \
             PULUMI_BACKEND_URL (with file:///DIRECTORY, set PULUMI_CONFIG_PASSPHRASE too)",
        )
    }

    /// The words of Pulumi itself, and those of its libraries for programs.
    fn lacks_variable(&self, reason: &str) -> bool {
        ["is missing configuration value", "Missing required configuration variable"]
            .iter()
            .any(|text| reason.contains(text))
    }

    fn before_task(
        &self,
        task: &EngineTask,
        workspace: &Workspace,
        _directory: &EngineDirectory,
        _job_id: Uuid,
        warn: &dyn Fn(&str),
    ) -> Result<(), EngineError> {
        if task.task == Task::Init {
            default_stack::shared_with(task, workspace).iter().for_each(|line| warn(line));
        }
        Ok(())
    }

    fn to_check(&self, task: Task) -> &'static str {
        leftovers::to_check(task)
    }

    fn leftovers(&self, step: &FailedStep) -> Leftovers {
        leftovers::find(step, self.removes_state(&step.task))
    }
}
