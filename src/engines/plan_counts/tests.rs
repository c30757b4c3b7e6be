use serde_json::{Value, json};

use super::*;

fn terraform(value: &Value) -> PlanData {
    count_terraform(serde_json::from_value(value.clone()).unwrap())
}

#[test]
fn each_kind_of_change_counts_where_the_contract_says() {
    let change = |actions: &[&str]| json!({"mode": "managed", "change": {"actions": actions, "before": {}}});
    let data = terraform(&json!({
        "format_version": "1.2",
        "resource_changes": [
            change(&["no-op"]), change(&["create"]), change(&["create"]), change(&["update"]),
            change(&["delete"]), change(&["delete"]), change(&["delete"]),
            change(&["delete", "create"]), change(&["create", "delete"]),
            change(&["read"]), change(&["forget"]), change(&["something-new"]),
            {"mode": "data", "change": {"actions": ["read"]}},
            {"mode": "data", "change": {"actions": ["no-op"]}},
        ],
        "output_changes": {
            "a": {"actions": ["create"]}, "b": {"actions": ["no-op"]}, "c": {"actions": ["update"]},
            "d": {"actions": ["delete"]}, "e": {"actions": ["delete", "create"]}, "f": {"actions": ["forget"]},
        },
    }));
    assert_eq!(
        data,
        PlanData {
            total_count_after: 1 + 1 + 2 + 2,
            total_count_before: 1 + 1 + 2 + 3,
            total_changed_count: 2 + 1 + 3 + 2,
            total_unchanged_count: 1,
            create_count: 2,
            modify_count: 1,
            destroy_count: 3,
            recreate_count: 2,
            outputs_total_count: 5,
            outputs_total_changed_count: 4,
            outputs_total_unchanged_count: 1,
            outputs_create_count: 1,
            outputs_modify_count: 1,
            outputs_destroy_count: 1,
            outputs_recreate_count: 1,
            outputs_unchanged_list: vec!["b".into()],
            outputs_create_list: vec!["a".into()],
            outputs_modify_list: vec!["c".into()],
            outputs_destroy_list: vec!["d".into()],
            outputs_recreate_list: vec!["e".into()],
        }
    );
}

#[test]
fn an_empty_plan_has_no_changes_and_an_invalid_one_is_an_error() {
    assert_eq!(terraform(&json!({"resource_changes": null})), PlanData::default());
    for rubbish in [json!([]), json!({"resource_changes": [{}]}), json!(null)] {
        assert!(serde_json::from_value::<ShownPlan>(rubbish).is_err());
    }
    let paths = crate::engines::ResultPaths::new("/no/such".as_ref(), "/no/such".as_ref()).unwrap();
    let error = paths.read_json::<Value>("plan.json").unwrap_err().to_string();
    assert!(error.contains("/no/such/plan.json"), "{error}");
}
