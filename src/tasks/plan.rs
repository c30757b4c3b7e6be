//! Plan and PlanDestroy.

use std::collections::BTreeMap;

use hawser_contract::{Engine, FlagLists, PlanData, Success};

use super::prepare_script::{OpenModule, places, read};
use super::shape::ScriptTask;
use super::{Prepared, TaskContext, TaskError, rescue};
use crate::engines::terraform::{self, Direction};
use crate::engines::{plan, pulumi};
use crate::workspace::PrivateFile;

pub(super) async fn prepare(
    context: &TaskContext,
    shape: &ScriptTask<'_>,
    direction: Direction,
    parameters: &BTreeMap<String, String>,
    flags: &FlagLists,
) -> Result<Prepared, TaskError> {
    let module = OpenModule::open(context)?;
    let variables = module.workspace.load_environment()?;
    let mut work = match shape.engine {
        Engine::Pulumi => pulumi::plan(direction, parameters, flags, &module.places)?,
        engine => {
            let inputs = terraform::inputs(parameters)?;
            module.workspace.write_private(PrivateFile::Inputs, inputs.as_bytes())?;
            terraform::plan(engine, direction, flags, &module.places)
        }
    };
    work.warnings.extend(rescue::reminder(&module.workspace));
    module.launch(shape, &variables, false, work).await
}

pub(super) async fn conclude(
    context: &TaskContext,
    shape: &ScriptTask<'_>,
    direction: Direction,
) -> Result<Success, TaskError> {
    let places = places(context)?;
    let engine = shape.engine;
    let (data, lines): (PlanData, Vec<String>) = read(move || match (engine, direction) {
        (Engine::Pulumi, Direction::Apply) => {
            Ok((plan::read_pulumi(places.open_collected(PrivateFile::PulumiPlan))?, Vec::new()))
        }
        (Engine::Pulumi, Direction::Destroy) => {
            plan::read_pulumi_preview(places.open_collected(PrivateFile::DestroyPreview))
        }
        _ => Ok((plan::read_terraform(places.open_shown_plan())?, Vec::new())),
    })
    .await?;
    for line in lines {
        context.info(&line);
    }
    context.info(&plan::summary(&data));
    Ok(Success::Plan(Box::new(data)))
}
