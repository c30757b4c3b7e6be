//! Terraform and OpenTofu, which differ only in their names and in which files they read.

mod advice;
pub mod commands;
mod leftovers;
pub mod locks;
pub mod plugin_cache;
mod shown;

use std::path::Path;

use hawser_contract::enums::WireEnum as _;
use hawser_contract::{EngineName, EngineTask, FlagLists, OutputValue, PlanData, Task, TerraformFlag};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::declarations::Declarations;
use super::directory::EngineDirectory;
use super::failed_step::{FailedStep, Leftovers};
use super::flags::{self, GivenFlag, is_on};
use super::{Direction, Engine, EngineCommands, EngineError, InputFile, ResultPaths, outputs, plan};
use crate::workspace::{PrivateFile, Tree, Workspace};
use plugin_cache::PluginCache;

#[derive(Debug)]
pub struct Terraform {
    name: EngineName,
    install_hint: &'static str,
    /// Whether it reads `.tofu` files too.
    reads_tofu: bool,
}

impl Terraform {
    pub fn hashicorp() -> Self {
        Self {
            name: EngineName::TERRAFORM,
            install_hint: "install Terraform: https://developer.hashicorp.com/terraform/install",
            reads_tofu: false,
        }
    }

    pub fn tofu() -> Self {
        Self {
            name: EngineName::TOFU,
            install_hint: "install OpenTofu: https://opentofu.org/docs/intro/install/",
            reads_tofu: true,
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
        let switches = switches(task).map(|flag| GivenFlag { name: flag.name(), value_may_be_a_flag: false });
        let plain = task.flags.terraform_flags.known.iter().map(|flag| GivenFlag::new(flag, false));
        let array = task.flags.terraform_array_flags.known.iter().map(|flag| GivenFlag::new(flag, false));
        switches.chain(plain).chain(array).collect()
    }

    fn state_changing_flag(&self, task: &EngineTask) -> Option<&'static str> {
        if task.task != Task::Init {
            return None;
        }
        let given = |flag: &TerraformFlag| is_on(&task.flags.terraform_flags.known, *flag);
        let switch = switches(task).find(|flag| *flag == TerraformFlag::MigrateState);
        let flag = switch
            .or_else(|| [TerraformFlag::MigrateState, TerraformFlag::ForceCopy].into_iter().find(given));
        flag.map(TerraformFlag::name)
    }

    fn backend_settings(&self, init: &EngineTask) -> Vec<String> {
        commands::backend_settings(init)
    }

    fn remembers_backend(&self) -> bool {
        true
    }

    fn forgets_backend(&self, init: &EngineTask) -> bool {
        commands::answers_no(init)
    }

    fn inputs(&self, task: &EngineTask, _paths: &ResultPaths) -> Result<Vec<InputFile>, EngineError> {
        Ok(match task.task {
            Task::Plan | Task::PlanDestroy => {
                vec![InputFile::Private(PrivateFile::Inputs, commands::inputs(&task.resolved_parameters)?)]
            }
            _ => Vec::new(),
        })
    }

    fn commands(&self, task: &EngineTask, paths: &ResultPaths) -> Result<EngineCommands, EngineError> {
        let (program, direction) = (self.name.as_str(), Direction::of(task.task));
        Ok(match task.task {
            Task::Init => commands::init(program, task),
            Task::Plan | Task::PlanDestroy => commands::plan(program, direction, &task.flags, paths),
            Task::ApplyFromPlan | Task::DestroyFromPlan => {
                commands::apply(program, direction, &task.flags, paths)
            }
            Task::Output => commands::output(program, &task.flags, paths),
            _ => commands::validate(program),
        })
    }

    fn plan_file(&self, task: Task, paths: &ResultPaths) -> Option<String> {
        Some(commands::plan_file(Direction::of(task), paths))
    }

    fn declarations(&self, folder: &Path, tree: &Tree) -> Result<Declarations, EngineError> {
        Declarations::of_module(folder, tree, self.reads_tofu)
    }

    fn read_plan(&self, _task: Task, paths: &ResultPaths) -> Result<(PlanData, Vec<String>), EngineError> {
        Ok((plan::read_terraform(paths.open_shown_plan())?, Vec::new()))
    }

    fn count_resources(&self, paths: &ResultPaths) -> Result<u64, EngineError> {
        shown::count_resources(paths.open_shown_state())
    }

    fn parse_outputs(&self, printed: &[u8]) -> Result<Vec<OutputValue>, serde_json::Error> {
        outputs::parse_terraform(printed)
    }

    fn sensitive_outputs(
        &self,
        task: Task,
        paths: &ResultPaths,
    ) -> Option<Result<Vec<Box<RawValue>>, EngineError>> {
        match task {
            Task::Plan | Task::PlanDestroy => Some(shown::sensitive_outputs(&paths.shown_plan())),
            Task::ApplyFromPlan | Task::DestroyFromPlan => {
                Some(shown::sensitive_outputs(&paths.shown_state()))
            }
            _ => None,
        }
    }

    fn failure_hint(&self, lines: &[String]) -> Option<&'static str> {
        let asks_to_migrate = |line: &String| line.contains("Can't ask approval for state migration");
        lines.iter().any(asks_to_migrate).then_some(
            "The backend has changed and there is state: set the flag MigrateState to take the state along, or \
             Reconfigure to leave it",
        )
    }

    fn to_check(&self, task: Task) -> &'static str {
        advice::to_check(task)
    }

    fn before_apply(
        &self,
        workspace: &Workspace,
        directory: &EngineDirectory,
        job_id: Uuid,
        warn: &dyn Fn(&str),
    ) -> Result<(), EngineError> {
        leftovers::set_aside(&self.name, workspace, directory, job_id, warn)
    }

    fn plan_warning(&self, workspace: &Workspace) -> Option<String> {
        leftovers::reminder(workspace)
    }

    fn leftovers(&self, step: &FailedStep) -> Leftovers {
        leftovers::find(&self.name, step)
    }

    fn plugin_cache(&self, working_directory: &Path) -> Option<PluginCache> {
        Some(PluginCache::of(self.name.as_str(), working_directory))
    }
}
