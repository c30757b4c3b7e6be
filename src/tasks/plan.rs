//! Plan and PlanDestroy.

use std::sync::Arc;

use hawser_contract::{EngineTask, Success};

use super::prepare_script::{OpenModule, places, read};
use super::{Prepared, TaskContext, TaskError};
use crate::engines::{Engine, plan};

pub(super) async fn prepare(context: &TaskContext, task: &EngineTask) -> Result<Prepared, TaskError> {
    let module = OpenModule::open(context, task)?;
    let variables = module.workspace.load_environment()?;
    let warnings = module.engine.plan_warning(&module.workspace).into_iter().collect();
    module.launch(&variables, warnings).await
}

pub(super) async fn conclude(
    context: &TaskContext,
    engine: &Arc<dyn Engine>,
    task: &EngineTask,
) -> Result<Success, TaskError> {
    let (places, engine, task) = (places(context)?, Arc::clone(engine), task.task);
    let (data, lines) = read(move || engine.read_plan(task, &places)).await?;
    for line in lines {
        context.info(&line);
    }
    context.info(&plan::summary(&data));
    Ok(Success::Plan(Box::new(data)))
}
