//! Counts the changes in a plan.

use std::collections::{BTreeMap, BTreeSet};

use hawser_contract::PlanData;
use serde::Deserialize;
use serde_json::Value;

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

#[derive(Debug, Default)]
struct Tally(PlanData);

impl Tally {
    fn resource(&mut self, change: Change) {
        *match change {
            Change::Unchanged => &mut self.0.total_unchanged_count,
            Change::Create => &mut self.0.create_count,
            Change::Modify => &mut self.0.modify_count,
            Change::Destroy => &mut self.0.destroy_count,
            Change::Recreate => &mut self.0.recreate_count,
        } += 1;
    }

    fn output(&mut self, name: String, change: Change) {
        let data = &mut self.0;
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
        let mut data = self.0;
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

/// The counted parts of `show -json`. A missing list may be null.
#[derive(Deserialize)]
pub(super) struct ShownPlan {
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
    /// Reading and forgetting change no resources, so they are not counted.
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

/// Counts a plan of Terraform or OpenTofu.
pub(super) fn count_terraform(plan: ShownPlan) -> PlanData {
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
    tally.finish()
}

/// The change to one resource, which may take several steps.
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

/// The names of the members at a path, or the strings of the array there.
fn names(value: &Value, pointer: &str) -> BTreeSet<String> {
    match value.pointer(pointer) {
        Some(Value::Object(members)) => members.keys().cloned().collect(),
        Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => BTreeSet::new(),
    }
}

/// Counts a plan that `pulumi preview --save-plan` has written.
pub(super) fn count_pulumi(plan: &Value) -> PlanData {
    let mut tally = Tally::default();
    for (urn, resource) in plan["resourcePlans"].as_object().into_iter().flatten() {
        if !is_stack(urn) {
            let steps = names(resource, "/steps");
            pulumi_change(steps.iter().map(String::as_str))
                .into_iter()
                .for_each(|change| tally.resource(change));
            continue;
        }
        // The outputs that the stack is expected to have.
        let mut unchanged = names(resource, "/state");
        for (list, change) in
            [("adds", Change::Create), ("updates", Change::Modify), ("deletes", Change::Destroy)]
        {
            for name in names(resource, &format!("/goal/outputDiff/{list}")) {
                unchanged.remove(&name);
                tally.output(name, change);
            }
        }
        unchanged.into_iter().for_each(|name| tally.output(name, Change::Unchanged));
    }
    tally.finish()
}

/// Counts what `pulumi destroy --preview-only --json` prints.
pub(super) fn count_pulumi_preview(preview: &Value) -> PlanData {
    let mut tally = Tally::default();
    let mut resources: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for step in preview["steps"].as_array().into_iter().flatten() {
        let (Some(operation), Some(urn)) = (step["op"].as_str(), step["urn"].as_str()) else { continue };
        if !is_stack(urn) {
            resources.entry(urn).or_default().push(operation);
        } else if let Some(change) = pulumi_change([operation]) {
            names(step, "/oldState/outputs").into_iter().for_each(|name| tally.output(name, change));
        }
    }
    for steps in resources.into_values() {
        pulumi_change(steps).into_iter().for_each(|change| tally.resource(change));
    }
    tally.finish()
}

#[cfg(test)]
mod tests;
