//! Pulumi.

pub mod commands;
mod leftovers;
mod state;

use hawser_contract::enums::WireEnum as _;
use hawser_contract::{EngineName, EngineTask, FlagLists, OutputValue, PlanData, PulumiFlag, Task};

use super::failed_step::{FailedStep, Leftovers};
use super::flags::{self, GivenFlag, is_on, value_of};
use super::{
    Direction, Engine, EngineCommands, EngineError, InputFile, ResultPaths, StateExport, outputs, plan,
};
use crate::workspace::PrivateFile;

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
        flags::check_pulumi(flags)
    }

    fn given_flags(&self, task: &EngineTask) -> Vec<GivenFlag> {
        let plain = task.flags.pulumi_flags.known.iter().map(|flag| GivenFlag::new(flag, true));
        plain
            .chain(task.flags.pulumi_array_flags.known.iter().map(|flag| GivenFlag::new(flag, true)))
            .collect()
    }

    fn state_changing_flag(&self, task: &EngineTask) -> Option<&'static str> {
        let flag = PulumiFlag::SkipPreview;
        is_on(&task.flags.pulumi_flags.known, flag).then(|| flag.name())
    }

    /// Where Pulumi logs in.
    fn backend_settings(&self, init: &EngineTask) -> Vec<String> {
        let url = value_of(&init.flags.pulumi_flags.known, PulumiFlag::CloudUrl);
        url.into_iter().map(|url| format!("CloudUrl={url}")).collect()
    }

    fn secret_flags<'a>(&self, task: &'a EngineTask) -> Vec<&'a str> {
        if task.task == Task::Init { commands::oidc_token(task).into_iter().collect() } else { Vec::new() }
    }

    fn inputs(&self, task: &EngineTask, paths: &ResultPaths) -> Result<Vec<InputFile>, EngineError> {
        if task.task != Task::Init {
            return Ok(Vec::new());
        }
        commands::check_init(task)?;
        let token = commands::oidc_token(task);
        Ok(token.map(|token| InputFile::Step(paths.oidc_token(), token.to_owned())).into_iter().collect())
    }

    fn commands(&self, task: &EngineTask, paths: &ResultPaths) -> Result<EngineCommands, EngineError> {
        let direction = Direction::of(task.task);
        Ok(match task.task {
            Task::Init => commands::init(task, paths),
            Task::Plan | Task::PlanDestroy => {
                commands::plan(direction, &task.resolved_parameters, &task.flags, paths)?
            }
            Task::ApplyFromPlan | Task::DestroyFromPlan => commands::apply(direction, &task.flags, paths),
            Task::Output => commands::output(&task.flags, paths),
            _ => commands::validate(),
        })
    }

    /// A destroy has no plan file.
    fn plan_file(&self, task: Task, paths: &ResultPaths) -> Option<String> {
        (Direction::of(task) == Direction::Apply).then(|| paths.pulumi_plan())
    }

    fn read_plan(&self, task: Task, paths: &ResultPaths) -> Result<(PlanData, Vec<String>), EngineError> {
        match Direction::of(task) {
            Direction::Apply => {
                Ok((plan::read_pulumi(paths.open_collected(PrivateFile::PulumiPlan))?, Vec::new()))
            }
            Direction::Destroy => {
                plan::read_pulumi_preview(paths.open_collected(PrivateFile::DestroyPreview))
            }
        }
    }

    fn count_resources(&self, paths: &ResultPaths) -> Result<u64, EngineError> {
        state::count_resources(paths.open_collected(PrivateFile::PulumiExport))
    }

    fn removes_state(&self, task: &EngineTask) -> bool {
        task.task == Task::DestroyFromPlan && commands::removes_stack(&task.flags)
    }

    fn parse_outputs(&self, printed: &[u8]) -> Result<Vec<OutputValue>, serde_json::Error> {
        outputs::parse_pulumi(printed)
    }

    fn to_check(&self, task: Task) -> &'static str {
        leftovers::to_check(task)
    }

    fn state_export(&self, task: &EngineTask) -> Option<StateExport> {
        let arguments = ["stack", "export"].map(str::to_owned).into_iter();
        let arguments = arguments.chain(commands::export_arguments(&task.flags)).collect();
        task.task.applies().then_some(StateExport { arguments, file: PrivateFile::PulumiExport })
    }

    fn leftovers(&self, step: &FailedStep) -> Leftovers {
        leftovers::find(step, self.removes_state(&step.task))
    }
}
