//! Counts the changes in a plan.

use std::collections::BTreeMap;

use hawser_contract::PlanData;
use serde::Deserialize;

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
pub(super) struct Tally(PlanData);

impl Tally {
    pub(super) fn resource(&mut self, change: Change) {
        *match change {
            Change::Unchanged => &mut self.0.total_unchanged_count,
            Change::Create => &mut self.0.create_count,
            Change::Modify => &mut self.0.modify_count,
            Change::Destroy => &mut self.0.destroy_count,
            Change::Recreate => &mut self.0.recreate_count,
        } += 1;
    }

    pub(super) fn output(&mut self, name: String, change: Change) {
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

    pub(super) fn finish(self) -> PlanData {
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

#[cfg(test)]
mod tests;
