//! Pulumi, the real one.

use hawser_contract::{FlagLists, PlanData, Success, Task};

use crate::support::pulumi::{pulumi_init, pulumi_module, pulumi_plan, pulumi_task};
use crate::support::steps::Ran;

#[track_caller]
fn counts(ran: Ran) -> PlanData {
    match ran.completed() {
        Success::Plan(data) => *data,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_program_runs_from_init_to_destroy() {
    let Some(bench) = pulumi_module(
        "resources:
  a:
    type: pulumi:index:Stash
    properties: {input: one}
outputs:
  text: ${a.output}
",
    ) else {
        return;
    };
    let none = FlagLists::default;
    bench.run(pulumi_init(&bench, &[])).await.completed();
    assert_eq!(counts(bench.run(pulumi_plan(Task::Plan, &[], none())).await).create_count, 1);
    let apply = pulumi_task(Task::ApplyFromPlan, none());
    assert_eq!(bench.run(apply).await.completed(), Success::Resources(1));
    match bench.run(pulumi_task(Task::Output, none())).await.completed() {
        Success::Outputs(Some(set)) => assert_eq!(set.outputs[0].value, "one"),
        other => panic!("{other:?}"),
    }
    let planned = bench.run(pulumi_plan(Task::PlanDestroy, &[], none())).await;
    assert_eq!(counts(planned).destroy_count, 1);
    let destroy = pulumi_task(Task::DestroyFromPlan, none());
    assert_eq!(bench.run(destroy).await.completed(), Success::Resources(0));
}
