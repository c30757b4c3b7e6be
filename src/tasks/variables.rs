//! Variables: the variables that the module declares, parsed from its files. No engine runs.

use hawser_contract::{EngineTask, Success};

use super::results::read;
use super::{Prepared, TaskContext, TaskError};
use crate::step::Facts;

pub(super) async fn prepare(context: &TaskContext, task: &EngineTask) -> Result<Prepared, TaskError> {
    let workspace = context.workspace()?;
    let tree = workspace.tree()?;
    context.note_facts(&Facts { engine_version: None, source_commit: workspace.local_commit() });
    let extra_files = tree.placed_extra_files(&task.extra_file_names);
    let engine = context.engines.get(&task.engine)?;
    let declares = engine.declares_variables();
    let declarations = read(move || engine.declarations(&tree)).await?;
    for warning in &declarations.warnings {
        context.warn(warning);
    }
    let now = jiff::Timestamp::now().as_millisecond();
    let set = declarations.variable_set(context.common.metadata.module_id, &extra_files, now);
    let count = set.as_ref().map_or(0, |set| set.variables.len());
    context.info(&match count {
        // Its parameters need no declaration.
        0 if !declares => {
            format!("Variables of {} are not listed; parameters become configuration values", task.engine)
        }
        0 => "The module declares no variables".to_owned(),
        1 => "The module declares 1 variable".to_owned(),
        count => format!("The module declares {count} variables"),
    });
    Ok(Prepared::Finished(Success::Variables(set)))
}
