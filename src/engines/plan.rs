//! What a plan would do, counted from the plan itself.

use std::collections::{BTreeMap, BTreeSet};

use hawser_contract::PlanData;
use serde::Deserialize;

use super::{EngineError, ResultFile, read_json};
use crate::workspace::stored_state::is_stack;

/// What happens to one resource or output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Unchanged,
    Create,
    Modify,
    Destroy,
    Recreate,
}

/// Adds up changes.
#[derive(Debug, Default)]
struct Tally {
    data: PlanData,
}

impl Tally {
    fn resource(&mut self, change: Change) {
        let data = &mut self.data;
        *match change {
            Change::Unchanged => &mut data.total_unchanged_count,
            Change::Create => &mut data.create_count,
            Change::Modify => &mut data.modify_count,
            Change::Destroy => &mut data.destroy_count,
            Change::Recreate => &mut data.recreate_count,
        } += 1;
    }

    fn output(&mut self, name: String, change: Change) {
        let data = &mut self.data;
        match change {
            Change::Unchanged => &mut data.outputs_unchanged_list,
            Change::Create => &mut data.outputs_create_list,
            Change::Modify => &mut data.outputs_modify_list,
            Change::Destroy => &mut data.outputs_destroy_list,
            Change::Recreate => &mut data.outputs_recreate_list,
        }
        .push(name);
    }

    fn finish(self) -> PlanData {
        let mut data = self.data;
        let changed = data.modify_count + data.recreate_count;
        data.total_count_after = data.total_unchanged_count + changed + data.create_count;
        data.total_count_before = data.total_unchanged_count + changed + data.destroy_count;
        data.total_changed_count = changed + data.create_count + data.destroy_count;
        let count = |names: &[String]| names.len() as u64;
        data.outputs_total_unchanged_count = count(&data.outputs_unchanged_list);
        data.outputs_create_count = count(&data.outputs_create_list);
        data.outputs_modify_count = count(&data.outputs_modify_list);
        data.outputs_destroy_count = count(&data.outputs_destroy_list);
        data.outputs_recreate_count = count(&data.outputs_recreate_list);
        data.outputs_total_changed_count = data.outputs_create_count
            + data.outputs_modify_count
            + data.outputs_destroy_count
            + data.outputs_recreate_count;
        data.outputs_total_count = data.outputs_total_changed_count + data.outputs_total_unchanged_count;
        data
    }
}

/// A plan in one line.
pub fn summary(data: &PlanData) -> String {
    format!(
        "Plan: {} to create, {} to modify, {} to recreate, {} to destroy, {} unchanged; outputs: {} of {} change",
        data.create_count,
        data.modify_count,
        data.recreate_count,
        data.destroy_count,
        data.total_unchanged_count,
        data.outputs_total_changed_count,
        data.outputs_total_count,
    )
}

/// The members of `show -json` that are counted. Null stands for a missing list now and then.
#[derive(Deserialize)]
struct ShownPlan {
    resource_changes: Option<Vec<ResourceChange>>,
    output_changes: Option<BTreeMap<String, Actions>>,
}

#[derive(Deserialize)]
struct ResourceChange {
    #[serde(default)]
    mode: String,
    change: Actions,
}

#[derive(Deserialize)]
struct Actions {
    actions: Vec<String>,
}

impl Actions {
    /// Reading and forgetting change nothing out there and count nowhere.
    fn change(&self) -> Option<Change> {
        let has = |action: &str| self.actions.iter().any(|it| it == action);
        match (has("create"), has("delete"), has("update"), has("no-op")) {
            (true, true, _, _) => Some(Change::Recreate),
            (true, false, _, _) => Some(Change::Create),
            (false, true, _, _) => Some(Change::Destroy),
            (_, _, true, _) => Some(Change::Modify),
            (_, _, _, true) => Some(Change::Unchanged),
            _ => None,
        }
    }
}

/// Counts a plan of Terraform or OpenTofu, as `show -json` gives it.
pub fn read_terraform(path: impl Into<ResultFile>) -> Result<PlanData, EngineError> {
    let plan: ShownPlan = read_json("the plan as JSON", path)?;
    let mut tally = Tally::default();
    let resources = plan.resource_changes.unwrap_or_default();
    for change in resources.iter().filter(|it| it.mode != "data").filter_map(|it| it.change.change()) {
        tally.resource(change);
    }
    for (name, actions) in plan.output_changes.unwrap_or_default() {
        if let Some(change) = actions.change() {
            tally.output(name, change);
        }
    }
    Ok(tally.finish())
}

/// A plan that `pulumi preview --save-plan` has written.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PulumiPlan {
    resource_plans: Option<BTreeMap<String, ResourcePlan>>,
}

#[derive(Deserialize)]
struct ResourcePlan {
    #[serde(default)]
    steps: Vec<String>,
    goal: Option<Goal>,
    /// The outputs that the resource is expected to have.
    state: Option<BTreeMap<String, serde::de::IgnoredAny>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Goal {
    output_diff: Option<OutputDiff>,
}

#[derive(Deserialize)]
struct OutputDiff {
    adds: Option<BTreeMap<String, serde::de::IgnoredAny>>,
    deletes: Option<Vec<String>>,
    updates: Option<BTreeMap<String, serde::de::IgnoredAny>>,
}

/// What `pulumi destroy --preview-only --json` prints.
#[derive(Deserialize)]
struct PulumiPreview {
    steps: Option<Vec<PreviewStep>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PreviewStep {
    op: String,
    urn: String,
    old_state: Option<OldState>,
}

#[derive(Deserialize)]
struct OldState {
    outputs: Option<BTreeMap<String, serde::de::IgnoredAny>>,
}

/// A resource counts once, whatever number of steps it takes.
fn pulumi_change<'a>(steps: impl IntoIterator<Item = &'a str>) -> Option<Change> {
    let steps: BTreeSet<&str> = steps.into_iter().collect();
    let any = |wanted: &[&str]| wanted.iter().any(|it| steps.contains(it));
    if any(&["replace", "create-replacement", "delete-replaced", "import-replacement"])
        || (any(&["create"]) && any(&["delete"]))
    {
        Some(Change::Recreate)
    } else if any(&["create", "import"]) {
        Some(Change::Create)
    } else if any(&["delete"]) {
        Some(Change::Destroy)
    } else if any(&["update"]) {
        Some(Change::Modify)
    } else if any(&["same"]) {
        Some(Change::Unchanged)
    } else {
        None
    }
}

/// Counts a plan of Pulumi.
pub fn read_pulumi(path: impl Into<ResultFile>) -> Result<PlanData, EngineError> {
    let plan: PulumiPlan = read_json("the plan", path)?;
    let mut tally = Tally::default();
    for (urn, resource) in plan.resource_plans.unwrap_or_default() {
        if !is_stack(&urn) {
            if let Some(change) = pulumi_change(resource.steps.iter().map(String::as_str)) {
                tally.resource(change);
            }
            continue;
        }
        let mut unchanged: BTreeSet<String> = resource.state.unwrap_or_default().into_keys().collect();
        if let Some(diff) = resource.goal.and_then(|goal| goal.output_diff) {
            let changes = diff.adds.unwrap_or_default().into_keys().map(|name| (name, Change::Create));
            let updates = diff.updates.unwrap_or_default().into_keys().map(|name| (name, Change::Modify));
            let deletes = diff.deletes.unwrap_or_default().into_iter().map(|name| (name, Change::Destroy));
            for (name, change) in changes.chain(updates).chain(deletes) {
                unchanged.remove(&name);
                tally.output(name, change);
            }
        }
        for name in unchanged {
            tally.output(name, Change::Unchanged);
        }
    }
    Ok(tally.finish())
}

/// Counts the preview of a destroy by Pulumi; the second part is a line for each resource, for people to read.
pub fn read_pulumi_preview(path: impl Into<ResultFile>) -> Result<(PlanData, Vec<String>), EngineError> {
    let preview: PulumiPreview = read_json("the preview", path)?;
    let mut tally = Tally::default();
    let mut resources: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for step in preview.steps.unwrap_or_default() {
        if is_stack(&step.urn) {
            let outputs = step.old_state.and_then(|state| state.outputs).unwrap_or_default();
            if let Some(change) = pulumi_change([step.op.as_str()]) {
                outputs.into_keys().for_each(|name| tally.output(name, change));
            }
        } else {
            resources.entry(step.urn).or_default().push(step.op);
        }
    }
    let mut lines = Vec::new();
    for (urn, steps) in resources {
        let Some(change) = pulumi_change(steps.iter().map(String::as_str)) else { continue };
        tally.resource(change);
        if change != Change::Unchanged {
            lines.push(format!("  {} {urn}", steps.join("+")));
        }
    }
    Ok((tally.finish(), lines))
}

#[cfg(test)]
mod tests;
