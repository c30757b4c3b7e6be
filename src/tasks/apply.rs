//! ApplyFromPlan and DestroyFromPlan.

use std::path::Path;
use std::sync::Arc;

use hawser_contract::{EngineTask, Fault, Success, Task};

use super::prepare_script::{OpenModule, environment, places, read};
use super::{Prepared, TaskContext, TaskError};
use crate::engines::Engine;
use crate::engines::directory::EngineDirectory;

pub(super) async fn prepare(context: &TaskContext, task: &EngineTask) -> Result<Prepared, TaskError> {
    let module = OpenModule::open(context, task)?;
    let variables = module.workspace.load_environment()?;
    let plan = module.engine.plan_file(task.task, &module.places);
    if let Some(plan) = plan.filter(|plan| !module.is_file(Path::new(plan))) {
        let needed = if task.task == Task::ApplyFromPlan { Task::Plan } else { Task::PlanDestroy };
        return Err(Fault::new(format!("there is no plan at {plan}: run {needed} first")).into());
    }
    let environment = environment(context, &*module.engine, &variables);
    let directory = EngineDirectory::new(&module.workspace, &environment, task.hooks()[0].is_some());
    let warn = |line: &str| context.warn(line);
    module.engine.before_apply(&module.workspace, &directory, context.common.job_id, &warn)?;
    module.launch(&variables, Vec::new()).await
}

/// Counts the resources in the state.
pub(super) async fn resources(context: &TaskContext, engine: &Arc<dyn Engine>) -> Result<u64, TaskError> {
    let (places, engine) = (places(context)?, Arc::clone(engine));
    read(move || engine.count_resources(&places)).await
}

pub(super) async fn conclude(
    context: &TaskContext,
    engine: &Arc<dyn Engine>,
    task: &EngineTask,
) -> Result<Success, TaskError> {
    if engine.removes_state(task) {
        return Ok(Success::Resources(0));
    }
    Ok(Success::Resources(resources(context, engine).await?))
}
