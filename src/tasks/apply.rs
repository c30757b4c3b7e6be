//! ApplyFromPlan and DestroyFromPlan.

use std::path::Path;

use hawser_contract::{Engine, Fault, FlagLists, Success};

use super::prepare_script::{OpenModule, environment, places, read};
use super::shape::ScriptTask;
use super::{Prepared, TaskContext, TaskError, rescue};
use crate::engines::terraform::{self, Direction};
use crate::engines::{pulumi, state};
use crate::workspace::PrivateFile;

pub(super) async fn prepare(
    context: &TaskContext,
    shape: &ScriptTask<'_>,
    direction: Direction,
    flags: &FlagLists,
) -> Result<Prepared, TaskError> {
    let module = OpenModule::open(context)?;
    let variables = module.workspace.load_environment()?;
    let places = &module.places;
    let plan = match (shape.engine, direction) {
        (Engine::Pulumi, Direction::Apply) => Some(places.pulumi_plan()),
        // Pulumi has no plan of a destroy that it could be held to.
        (Engine::Pulumi, Direction::Destroy) => None,
        _ => Some(direction.plan_file(places)),
    };
    if let Some(plan) = plan.filter(|plan| !module.is_file(Path::new(plan))) {
        let needed = if direction == Direction::Apply { "Plan" } else { "PlanDestroy" };
        return Err(Fault::new(format!("there is no plan at {plan}: run {needed} first")).into());
    }
    let work = match shape.engine {
        Engine::Pulumi => pulumi::apply(direction, flags, places),
        engine => {
            let environment = environment(context, engine, &variables);
            let place = rescue::EngineDirectory::new(&module.workspace, &environment, shape.before.is_some());
            rescue::set_aside(context, &module.workspace, &place, engine)?;
            terraform::apply(engine, direction, flags, places)
        }
    };
    module.launch(shape, &variables, false, work).await
}

/// How many resources the state holds now.
pub(super) async fn resources(context: &TaskContext, shape: &ScriptTask<'_>) -> Result<u64, TaskError> {
    let places = places(context)?;
    let engine = shape.engine;
    read(move || match engine {
        Engine::Pulumi => state::read_pulumi(places.open_collected(PrivateFile::PulumiExport)),
        _ => state::read_terraform(places.open_shown_state()),
    })
    .await
}

pub(super) async fn conclude(context: &TaskContext, shape: &ScriptTask<'_>) -> Result<Success, TaskError> {
    if shape.removes_stack() {
        return Ok(Success::Resources(0));
    }
    Ok(Success::Resources(resources(context, shape).await?))
}
