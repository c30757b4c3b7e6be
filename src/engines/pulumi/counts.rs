//! Counts the changes in a plan or in the preview of a destroy, like Pulumi's own summary but without the stack.
//!
//! A replacement takes several steps, of which Pulumi only counts `replace`. The others (`create-replacement`,
//! `delete-replaced`, `remove-pending-replace`) also complete an earlier replacement that failed: a resource with the steps
//! `same` and `delete-replaced` is unchanged. A read resource is not managed, so it is not counted.

use std::collections::{BTreeMap, BTreeSet};

use hawser_contract::PlanData;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::state::is_counted;
use crate::engines::plan_counts::{Change, Tally};
use crate::workspace::stored_state::is_stack;

/// The change to one resource. A destroy that runs the program first has further steps before each `delete`.
fn change<'a>(steps: impl IntoIterator<Item = &'a str>) -> Option<Change> {
    let steps: BTreeSet<&str> = steps.into_iter().collect();
    [
        ("replace", Change::Recreate),
        ("delete", Change::Destroy),
        ("create", Change::Create),
        ("import", Change::Create),
        ("update", Change::Modify),
        ("same", Change::Unchanged),
    ]
    .into_iter()
    .find_map(|(step, change)| steps.contains(step).then_some(change))
}

type Names = BTreeMap<String, IgnoredAny>;

/// A plan that `pulumi preview --save-plan` has written.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SavedPlan {
    #[serde(default)]
    resource_plans: BTreeMap<String, ResourcePlan>,
}

#[derive(Deserialize)]
struct ResourcePlan {
    #[serde(default)]
    steps: Vec<String>,
    goal: Option<Goal>,
    /// The expected outputs.
    state: Option<Names>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Goal {
    #[serde(default)]
    output_diff: OutputDiff,
}

#[derive(Default, Deserialize)]
struct OutputDiff {
    #[serde(default)]
    adds: Names,
    #[serde(default)]
    updates: Names,
    #[serde(default)]
    deletes: Vec<String>,
}

impl SavedPlan {
    pub(super) fn count(self) -> PlanData {
        let mut tally = Tally::default();
        for (urn, resource) in self.resource_plans {
            if is_stack(&urn) {
                resource.count_outputs(&mut tally);
            } else if is_counted(&urn)
                && let Some(change) = change(resource.steps.iter().map(String::as_str))
            {
                tally.resource(change);
            }
        }
        tally.finish()
    }
}

impl ResourcePlan {
    /// Counts the outputs of the stack.
    fn count_outputs(self, tally: &mut Tally) {
        let OutputDiff { adds, updates, deletes } =
            self.goal.map(|goal| goal.output_diff).unwrap_or_default();
        let mut unchanged = self.state.unwrap_or_default();
        let changed = [
            (adds.into_keys().collect(), Change::Create),
            (updates.into_keys().collect(), Change::Modify),
            (deletes, Change::Destroy),
        ];
        for (names, change) in changed {
            for name in names {
                unchanged.remove(&name);
                tally.output(name, change);
            }
        }
        unchanged.into_keys().for_each(|name| tally.output(name, Change::Unchanged));
    }
}

/// What `pulumi destroy --preview-only --json --show-sames` prints.
#[derive(Deserialize)]
pub(super) struct DestroyPreview {
    #[serde(default)]
    steps: Vec<PreviewStep>,
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
    #[serde(default)]
    outputs: Names,
}

impl DestroyPreview {
    pub(super) fn count(self) -> PlanData {
        let mut tally = Tally::default();
        let mut resources: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut outputs = Names::new();
        for step in self.steps {
            if is_stack(&step.urn) {
                outputs.extend(step.old_state.map(|state| state.outputs).unwrap_or_default());
            }
            resources.entry(step.urn).or_default().push(step.op);
        }
        for (urn, steps) in resources {
            let Some(change) = change(steps.iter().map(String::as_str)) else { continue };
            if is_stack(&urn) {
                std::mem::take(&mut outputs).into_keys().for_each(|name| tally.output(name, change));
            } else if is_counted(&urn) {
                tally.resource(change);
            }
        }
        tally.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn count(plan: Value) -> PlanData {
        serde_json::from_value::<SavedPlan>(plan).unwrap().count()
    }

    #[test]
    fn outputs_are_counted_by_what_happens_to_them() {
        let data = count(json!({"resourcePlans": {"urn:pulumi:dev::proj::pulumi:pulumi:Stack::proj-dev": {
            "steps": ["update"],
            "goal": {"outputDiff": {"adds": {"new": 1}, "updates": {"changed": 2}, "deletes": ["gone"]}},
            "state": {"new": 1, "changed": 2, "kept": 3},
        }}}));
        assert_eq!(data.outputs_create_list, ["new"]);
        assert_eq!(data.outputs_modify_list, ["changed"]);
        assert_eq!(data.outputs_destroy_list, ["gone"]);
        assert_eq!(data.outputs_unchanged_list, ["kept"]);
        assert_eq!((data.total_changed_count, data.total_unchanged_count), (0, 0));
        assert_eq!(count(json!({"resourcePlans": {}})), PlanData::default());
    }

    #[test]
    fn reads_and_steps_of_an_earlier_replacement_are_not_counted() {
        let urn = |name: &str| format!("urn:pulumi:dev::proj::aws:s3/bucket:Bucket::{name}");
        let data = count(json!({"resourcePlans": {
            urn("a"): {"steps": ["import"]},
            urn("b"): {"steps": ["read"]},
            urn("c"): {"steps": ["refresh"]},
            urn("d"): {"steps": ["delete-replaced"]},
            urn("e"): {"steps": ["update", "delete-replaced"]},
            urn("f"): {"steps": ["delete-replaced", "remove-pending-replace"]},
            urn("Stack::pulumi:pulumi:Stack"): {"steps": ["same"]},
        }}));
        assert_eq!((data.create_count, data.modify_count, data.total_unchanged_count), (1, 1, 1));
        assert_eq!((data.recreate_count, data.destroy_count), (0, 0));
    }

    /// Printed by Pulumi 3.250.
    #[test]
    fn a_destroy_that_runs_the_program_counts_each_resource_once() {
        let preview = json!({"steps": [
            {"op": "same", "urn": "urn:pulumi:dev::p::pulumi:pulumi:Stack::p-dev", "oldState": {"outputs": {"o": 1}}},
            {"op": "same", "urn": "urn:pulumi:dev::p::pulumi:index:Stash::a"},
            {"op": "delete", "urn": "urn:pulumi:dev::p::pulumi:index:Stash::a"},
            {"op": "delete", "urn": "urn:pulumi:dev::p::pulumi:pulumi:Stack::p-dev", "oldState": {"outputs": {"o": 1}}},
        ]});
        let data = serde_json::from_value::<DestroyPreview>(preview).unwrap().count();
        assert_eq!((data.destroy_count, data.total_count_before, data.total_count_after), (1, 1, 0));
        assert_eq!((data.outputs_destroy_list, data.outputs_total_count), (vec!["o".to_owned()], 1));
    }
}
