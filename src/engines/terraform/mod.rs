//! Terraform and OpenTofu, which differ only in their names and in the files that they read.

pub mod commands;
mod creations;
mod diagnostics;
mod leftovers;
pub mod locks;
pub mod plugin_cache;
mod shown;
mod variables;

use std::path::Path;

use hawser_contract::enums::WireEnum as _;
use hawser_contract::{EngineName, EngineTask, FlagLists, OutputValue, PlanData, Task, TerraformFlag};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::declarations::Declarations;
use super::diagnostics::{Diagnostic, EngineOutput};
use super::directory::EngineDirectory;
use super::failed_step::{FailedStep, Leftovers};
use super::flags::{self, GivenFlag, is_on};
use super::{
    BackendChange, Direction, Engine, EngineCommands, EngineError, ResultPaths, SHOWN_PLAN, SHOWN_STATE,
    outputs, plan_counts,
};
use crate::step::Stream;
use crate::workspace::{PrivateFile, Tree, Workspace};
use commands::Program;
use plugin_cache::PluginCache;
use shown::ShownJson;

#[derive(Debug)]
pub struct Terraform {
    name: EngineName,
    install_hint: &'static str,
    /// Whether it reads `.tofu` files too.
    reads_tofu: bool,
    /// Whether variables may be used in backends, module sources and encryption, so that every command needs their values.
    evaluates_early: bool,
}

impl Terraform {
    pub fn hashicorp() -> Self {
        Self {
            name: EngineName::TERRAFORM,
            install_hint: "install Terraform: https://developer.hashicorp.com/terraform/install",
            reads_tofu: false,
            evaluates_early: false,
        }
    }

    pub fn tofu() -> Self {
        Self {
            name: EngineName::TOFU,
            install_hint: "install OpenTofu: https://opentofu.org/docs/intro/install/",
            reads_tofu: true,
            evaluates_early: true,
        }
    }
}

/// The switches of Init that are set, as flags.
fn switches(task: &EngineTask) -> impl Iterator<Item = TerraformFlag> {
    let switches = &task.init.flags;
    let flags = [
        (switches.auto_upgrade_enabled, TerraformFlag::Upgrade),
        (switches.auto_reconfigure_enabled, TerraformFlag::Reconfigure),
        (switches.auto_migrate_enabled, TerraformFlag::MigrateState),
    ];
    flags.into_iter().filter(|(set, _)| *set).map(|(_, flag)| flag)
}

impl Engine for Terraform {
    fn name(&self) -> EngineName {
        self.name.clone()
    }

    fn install_hint(&self) -> &'static str {
        self.install_hint
    }

    fn uses_file(&self, name: &str) -> bool {
        let ends = |endings: [&str; 2]| endings.iter().any(|ending| name.ends_with(ending));
        ends([".tf", ".tf.json"]) || self.reads_tofu && ends([".tofu", ".tofu.json"])
    }

    fn version_arguments(&self) -> &'static [&'static str] {
        &["version", "-json"]
    }

    fn environment(&self) -> &'static [(&'static str, &'static str)] {
        &[("TF_IN_AUTOMATION", "1"), ("TF_INPUT", "0")]
    }

    fn prompt_variables(&self) -> &'static [&'static str] {
        &["TF_INPUT"]
    }

    fn verb(&self, task: Task) -> &'static str {
        match task {
            Task::Init => "init",
            Task::Validate => "validate",
            Task::Plan => "plan",
            Task::PlanDestroy => "plan -destroy",
            Task::ApplyFromPlan => "apply",
            Task::DestroyFromPlan => "apply (destroy)",
            _ => "output",
        }
    }

    fn check_flags(&self, flags: &FlagLists) -> Result<(), EngineError> {
        flags::check_terraform(flags)
    }

    fn given_flags(&self, task: &EngineTask) -> Vec<GivenFlag> {
        let flags = &task.flags.terraform_flags.known;
        let migrates = |flag| matches!(flag, TerraformFlag::MigrateState | TerraformFlag::ForceCopy);
        let switches = switches(task).map(|flag| GivenFlag {
            name: flag.name(),
            changes_state: migrates(flag),
            ..GivenFlag::default()
        });
        let plain = flags.iter().map(|it| GivenFlag {
            changes_state: task.task == Task::Init && migrates(it.flag) && is_on(flags, it.flag),
            fetches_module: it.flag == TerraformFlag::FromModule,
            ..GivenFlag::new(it, false)
        });
        let array = task.flags.terraform_array_flags.known.iter().map(|flag| GivenFlag::new(flag, false));
        switches.chain(plain).chain(array).collect()
    }

    fn backend_change(&self, init: &EngineTask) -> BackendChange {
        BackendChange { settings: commands::backend_settings(init), replaces: commands::answers_no(init) }
    }

    fn input(&self, task: &EngineTask, paths: &ResultPaths) -> Result<Option<(String, String)>, EngineError> {
        Ok(match task.task {
            Task::Plan | Task::PlanDestroy => {
                Some((paths.private(PrivateFile::INPUTS), commands::inputs(&task.resolved_parameters)?))
            }
            _ => None,
        })
    }

    fn kept_files(&self, task: &EngineTask, tree: &Tree) -> Result<Vec<(PrivateFile, String)>, EngineError> {
        match task.task {
            Task::Init | Task::Plan | Task::PlanDestroy => {
                variables::kept(task, tree, &self.declarations(tree)?, self.evaluates_early)
            }
            _ => Ok(Vec::new()),
        }
    }

    fn command_variables(&self, init_variables: &Path) -> Vec<(String, String)> {
        if self.evaluates_early { variables::for_commands(init_variables) } else { Vec::new() }
    }

    fn commands(&self, task: &EngineTask, paths: &ResultPaths) -> Result<EngineCommands, EngineError> {
        let program = Program { name: self.name.as_str(), evaluates_early: self.evaluates_early, paths };
        let direction = Direction::of(task.task);
        Ok(match task.task {
            Task::Init => commands::init(program, task),
            Task::Plan | Task::PlanDestroy => commands::plan(program, direction, &task.flags),
            Task::ApplyFromPlan | Task::DestroyFromPlan => commands::apply(program, direction, &task.flags),
            Task::Output => commands::output(program, &task.flags),
            _ => commands::validate(program),
        })
    }

    fn plan_files(&self, task: Task) -> Vec<PrivateFile> {
        let direction = Direction::of(task);
        vec![commands::plan_file(direction), variables::of_apply(direction)]
    }

    fn declarations(&self, tree: &Tree) -> Result<Declarations, EngineError> {
        Declarations::of_module(tree, self.reads_tofu)
    }

    fn read_plan(&self, _task: Task, paths: &ResultPaths) -> Result<(PlanData, Vec<String>), EngineError> {
        Ok((plan_counts::count_terraform(paths.read_printed_json(SHOWN_PLAN)?), Vec::new()))
    }

    fn count_resources(&self, paths: &ResultPaths) -> Result<u64, EngineError> {
        Ok(paths.read_printed_json::<ShownJson>(SHOWN_STATE)?.resources())
    }

    fn parse_outputs(&self, printed: &[u8]) -> Result<Vec<OutputValue>, serde_json::Error> {
        outputs::parse_terraform(printed)
    }

    fn sensitive_outputs(
        &self,
        task: Task,
        paths: &ResultPaths,
    ) -> Option<Result<Vec<Box<RawValue>>, EngineError>> {
        let file = match task {
            Task::Plan | Task::PlanDestroy => SHOWN_PLAN,
            Task::ApplyFromPlan | Task::DestroyFromPlan => SHOWN_STATE,
            _ => return None,
        };
        Some(paths.read_printed_json(file).map(ShownJson::sensitive_values))
    }

    fn diagnostics(&self, _task: Task, output: &EngineOutput, _paths: &ResultPaths) -> Vec<Diagnostic> {
        diagnostics::errors(output.lines(Stream::Stderr))
    }

    fn failure_hint(&self, lines: &[String]) -> Option<&'static str> {
        // Init without a flag, with a flag but without an answer, and every other task.
        const CHANGED: [&str; 3] = [
            "Error: Backend configuration changed",
            commands::MIGRATION_PROMPT,
            "Reason: Backend configuration",
        ];
        let has_changed = |line: &String| CHANGED.iter().any(|text| line.contains(text));
        lines.iter().any(has_changed).then_some(
            "The backend has changed: on Init, set the flag MigrateState to migrate the state, or Reconfigure to leave it where \
             it is",
        )
    }

    fn lacks_variable(&self, reason: &str) -> bool {
        reason.contains("No value for required variable")
    }

    fn to_check(&self, task: Task) -> &'static str {
        leftovers::to_check(task)
    }

    fn before_task(
        &self,
        task: &EngineTask,
        workspace: &Workspace,
        directory: &EngineDirectory,
        job_id: Uuid,
        warn: &dyn Fn(&str),
    ) -> Result<(), EngineError> {
        match task.task {
            Task::Plan | Task::PlanDestroy => {
                leftovers::reminder(workspace).iter().for_each(|line| warn(line));
            }
            Task::ApplyFromPlan | Task::DestroyFromPlan => {
                self.set_aside(workspace, directory, job_id, warn)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn leftovers(&self, step: &FailedStep) -> Leftovers {
        self.find_leftovers(step)
    }

    fn plugin_cache(&self, working_directory: &Path) -> Option<PluginCache> {
        Some(PluginCache::of(self.name.as_str(), working_directory))
    }
}
