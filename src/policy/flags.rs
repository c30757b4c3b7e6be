//! Flags by the names of the contract.

use hawser_contract::enums::WireEnum;
use hawser_contract::{Engine, Flag, FlagLists, PulumiFlag, TaskRequest, TerraformFlag, engine_of};

use crate::engines::flags::is_on;

/// A flag that a task would put on its engine's command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GivenFlag {
    pub(super) name: &'static str,
    pub(super) value_may_be_a_flag: bool,
}

/// The flags of a task that reach its engine: those of the other engine's lists never do, and neither do
/// entries that nobody knows. Init's old switches are flags like all others.
pub(super) fn given(task: &TaskRequest) -> Vec<GivenFlag> {
    let mut given = Vec::new();
    if let TaskRequest::Init(init) = task
        && init.engine != Engine::Pulumi
    {
        let switches = &init.flags;
        for (asked, flag) in [
            (switches.auto_upgrade_enabled, TerraformFlag::Upgrade),
            (switches.auto_reconfigure_enabled, TerraformFlag::Reconfigure),
            (switches.auto_migrate_enabled, TerraformFlag::MigrateState),
        ] {
            if asked {
                given.push(GivenFlag { name: flag.name(), value_may_be_a_flag: false });
            }
        }
    }
    let Some(lists) = lists_of(task) else { return given };
    match engine_of(task) {
        Some(Engine::Pulumi) => {
            given.extend(lists.pulumi_flags.known.iter().map(|flag| of(flag, true)));
            given.extend(lists.pulumi_array_flags.known.iter().map(|flag| of(flag, true)));
        }
        _ => {
            given.extend(lists.terraform_flags.known.iter().map(|flag| of(flag, false)));
            given.extend(lists.terraform_array_flags.known.iter().map(|flag| of(flag, false)));
        }
    }
    given
}

fn of<T: WireEnum>(flag: &Flag<T>, value_is_an_argument: bool) -> GivenFlag {
    let dash = flag.value.as_deref().is_some_and(|value| value.starts_with('-'));
    GivenFlag { name: flag.flag.name(), value_may_be_a_flag: value_is_an_argument && dash }
}

fn lists_of(task: &TaskRequest) -> Option<FlagLists> {
    match task {
        TaskRequest::Init(init) => Some(init.backend_configuration.flag_lists()),
        TaskRequest::Plan(_, flags)
        | TaskRequest::PlanDestroy(_, flags)
        | TaskRequest::ApplyFromPlan(_, flags)
        | TaskRequest::DestroyFromPlan(_, flags)
        | TaskRequest::Output(_, flags) => Some(flags.clone()),
        TaskRequest::GetDefinitiveRevision(_)
        | TaskRequest::GetModule(..)
        | TaskRequest::Validate(_)
        | TaskRequest::Variables(_) => None,
    }
}

/// A flag that makes a task other than apply and destroy write to a state.
pub(super) fn that_changes_state(task: &TaskRequest) -> Option<&'static str> {
    let lists = lists_of(task)?;
    if engine_of(task) == Some(Engine::Pulumi) {
        let flag = PulumiFlag::SkipPreview;
        return is_on(&lists.pulumi_flags.known, flag).then(|| flag.name());
    }
    let TaskRequest::Init(init) = task else { return None };
    let given = &lists.terraform_flags.known;
    if init.flags.auto_migrate_enabled {
        return Some(TerraformFlag::MigrateState.name());
    }
    let changing = [TerraformFlag::MigrateState, TerraformFlag::ForceCopy];
    changing.into_iter().find(|flag| is_on(given, *flag)).map(WireEnum::name)
}

/// Whether an engine reads more arguments out of a variable of this name.
pub(super) fn is_arguments_to_an_engine(name: &str) -> bool {
    ["TF_CLI_ARGS", "PULUMI_OPTION_"].iter().any(|start| name.starts_with(start))
}
