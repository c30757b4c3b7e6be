//! The orchestrator without sockets and clocks.

use hawser_contract::requests::CancelKind;
use hawser_contract::{
    Fault, LogEntry, LogLevel, Outcome, SourceRefresh, SourceRevisionType, SourceType, Success, Task,
};
use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::json;
use uuid::Uuid;

use super::{Action, Event, Orchestrator, Refusal};
use crate::events::{ConnectionId, HubEvent};
use crate::identity::Identity;
use crate::job_record::{JobState, TaskState};
use crate::job_spec::{JobKind, JobSpec};
use crate::reports::Report;
use crate::shared::{HubOptions, LogKeeping};

struct Bench {
    machine: Orchestrator,
    identity: Identity,
    connections: u64,
}

/// The connection and method of each push.
type Pushes = Vec<(u64, &'static str)>;

impl Bench {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut HubOptions)) -> Self {
        let (mut options, identity) = (HubOptions::default(), Identity::generate());
        change(&mut options);
        Self { machine: Orchestrator::new(options, identity.clone()), identity, connections: 0 }
    }

    fn on(&mut self, event: Event) -> Result<Vec<Action>, Refusal> {
        self.machine.on(Timestamp::UNIX_EPOCH, event)
    }

    fn submit(&mut self, spec: JobSpec) -> (Uuid, Pushes) {
        let job = Uuid::new_v4();
        let actions = self.on(Event::Submitted { job, spec: Box::new(spec) }).unwrap();
        (job, pushes(&actions))
    }

    fn connect(&mut self, instance: &str) -> (u64, Pushes) {
        self.connections += 1;
        let connection = ConnectionId(self.connections);
        let actions = self.on(Event::Connected { connection, instance: instance.to_owned() }).unwrap();
        (self.connections, pushes(&actions))
    }

    fn disconnect(&mut self, connection: u64, instance: &str) {
        let connection = ConnectionId(connection);
        self.on(Event::Disconnected { connection, instance: instance.to_owned(), reason: String::new() })
            .unwrap();
    }

    fn report(&mut self, from: (u64, &str), report: Report) -> Result<Vec<Action>, Refusal> {
        let (connection, instance) = (ConnectionId(from.0), from.1.to_owned());
        self.on(Event::Reported { connection, instance, report })
    }

    fn running(&mut self, from: (u64, &str), job: Uuid, task: Task) -> Result<Vec<Action>, Refusal> {
        let runner = self.identity.runner_id;
        self.report(from, Report::Running { job, task, runner, instance: from.1.to_owned() })
    }

    fn outcome(
        &mut self,
        from: (u64, &str),
        job: Uuid,
        task: Task,
        outcome: Outcome,
    ) -> Result<Vec<Action>, Refusal> {
        let call = outcome.clone().of(task, job).call();
        self.report(from, Report::Outcome { job, task, outcome, call })
    }

    fn complete(&mut self, from: (u64, &str), job: Uuid, task: Task) -> Pushes {
        pushes(&self.outcome(from, job, task, success(task)).unwrap())
    }

    fn entry(&self, job: Uuid, task: Task, message: &str) -> LogEntry {
        let spec = spec(JobKind::Apply).metadata();
        assert!(self.machine.snapshot(job).is_some());
        LogEntry {
            job_id: job,
            timestamp: Timestamp::UNIX_EPOCH,
            batch_time_stamp: Timestamp::UNIX_EPOCH,
            stack_id: None,
            namespace_id: None,
            module_id: spec.module_id,
            stack_name: spec.stack_name,
            namespace_name: spec.namespace_name,
            module_name: spec.module_name,
            level: LogLevel::Information,
            message: message.to_owned(),
            task_name: task,
            tags: None,
        }
    }

    fn state(&self, job: Uuid) -> JobState {
        self.machine.snapshot(job).unwrap().state
    }
}

fn spec(kind: JobKind) -> JobSpec {
    JobSpec::new(kind, "https://example.org/x.git")
}

fn success(task: Task) -> Outcome {
    Outcome::Completed(match task {
        Task::GetDefinitiveRevision => Success::Revision("c0ffee".into()),
        Task::GetModule | Task::Init | Task::Validate => Success::Done,
        Task::Variables => Success::Variables(None),
        Task::Plan | Task::PlanDestroy => Success::Plan(Box::default()),
        Task::ApplyFromPlan | Task::DestroyFromPlan => Success::Resources(1),
        Task::Output => Success::Outputs(None),
    })
}

fn pushes(actions: &[Action]) -> Pushes {
    let push = |action: &Action| match action {
        Action::Push { connection, method, .. } => Some((connection.0, *method)),
        _ => None,
    };
    actions.iter().filter_map(push).collect()
}

fn notes(actions: &[Action]) -> Vec<&HubEvent> {
    fn note(action: &Action) -> Option<&HubEvent> {
        match action {
            Action::Record(event) => Some(event),
            _ => None,
        }
    }
    actions.iter().filter_map(note).collect()
}

#[test]
fn an_apply_runs_its_eight_tasks_in_order_on_one_runner() {
    let mut bench = Bench::new();
    let (a, _) = bench.connect("a");
    let (job, mut pushed) = bench.submit(spec(JobKind::Apply));
    for task in JobKind::Apply.tasks() {
        assert_eq!(pushed, [(a, task.pushed_as())]);
        bench.running((a, "a"), job, task).unwrap();
        pushed = bench.complete((a, "a"), job, task);
    }
    assert_eq!(pushed, []);
    let snapshot = bench.machine.snapshot(job).unwrap();
    assert_eq!(snapshot.state, JobState::Completed);
    assert_eq!(snapshot.definitive_revision.as_deref(), Some("c0ffee"));
    assert!(snapshot.tasks.iter().all(|task| task.state == TaskState::Completed));
}

#[test]
fn a_plan_ends_after_the_plan_and_a_destroy_has_its_own_tasks() {
    assert_eq!(JobKind::Plan.tasks().last(), Some(&Task::Plan));
    assert_eq!(JobKind::Destroy.tasks()[5..], [Task::PlanDestroy, Task::DestroyFromPlan]);
}

#[test]
fn a_job_is_queued_until_a_runner_connects() {
    let mut bench = Bench::new();
    let (job, pushed) = bench.submit(spec(JobKind::Plan));
    assert_eq!(pushed, []);
    assert_eq!(bench.state(job), JobState::Queued);
    let (a, pushed) = bench.connect("a");
    assert_eq!(pushed, [(a, "GetDefinitiveRevision")]);
    assert_eq!(bench.state(job), JobState::Running);
}

#[test]
fn the_first_task_goes_to_all_runners_and_the_first_report_wins_the_job() {
    let mut bench = Bench::new();
    let ((a, _), (b, _)) = (bench.connect("a"), bench.connect("b"));
    let (job, pushed) = bench.submit(spec(JobKind::Plan));
    assert_eq!(pushed, [(a, "GetDefinitiveRevision"), (b, "GetDefinitiveRevision")]);
    let claim = bench.running((b, "b"), job, Task::GetDefinitiveRevision).unwrap();
    assert!(matches!(notes(&claim)[0], HubEvent::Claimed { instance, .. } if instance == "b"));
    // The claim of the slower runner is refused, and what it reports is acknowledged and changes nothing.
    let late = bench.running((a, "a"), job, Task::GetDefinitiveRevision);
    assert!(matches!(late, Err(Refusal::ClaimLost { .. })), "{late:?}");
    let late =
        bench.outcome((a, "a"), job, Task::GetDefinitiveRevision, success(Task::GetDefinitiveRevision));
    assert!(matches!(notes(&late.unwrap())[..], [HubEvent::ClaimLost { .. }]));
    assert_eq!(bench.complete((b, "b"), job, Task::GetDefinitiveRevision), [(b, "GetModule")]);
    let late = bench.outcome((a, "a"), job, Task::GetDefinitiveRevision, Outcome::Faulted(Fault::new("x")));
    assert!(matches!(notes(&late.unwrap())[..], [HubEvent::ClaimLost { .. }]));
    // Only the winner may report on later tasks.
    assert!(matches!(bench.running((a, "a"), job, Task::GetModule), Err(Refusal::NeverPushed { .. })));
    assert_eq!(bench.state(job), JobState::Running);
}

#[test]
fn a_pinned_job_goes_to_its_runner_only() {
    let mut bench = Bench::new();
    let (_, (b, _)) = (bench.connect("a"), bench.connect("b"));
    let pinned = JobSpec { instance: Some("b".into()), ..spec(JobKind::Plan) };
    assert_eq!(bench.submit(pinned).1, [(b, "GetDefinitiveRevision")]);
    let elsewhere = JobSpec { instance: Some("c".into()), ..spec(JobKind::Plan) };
    let (job, pushed) = bench.submit(elsewhere);
    assert_eq!(pushed, []);
    assert_eq!(bench.state(job), JobState::Queued);
    let (c, pushed) = bench.connect("c");
    assert_eq!(pushed, [(c, "GetDefinitiveRevision")]);
}

#[test]
fn an_unreported_task_is_pushed_again_and_a_running_one_is_not() {
    let mut bench = Bench::new();
    let (first, _) = bench.connect("a");
    let (job, _) = bench.submit(spec(JobKind::Plan));
    bench.disconnect(first, "a");
    let (second, pushed) = bench.connect("a");
    assert_eq!(pushed, [(second, "GetDefinitiveRevision")]);
    bench.running((second, "a"), job, Task::GetDefinitiveRevision).unwrap();
    bench.disconnect(second, "a");
    assert_eq!(bench.connect("a").1, []);
}

#[test]
fn redispatch_on_reconnect_pushes_a_running_task_again() {
    let mut bench = Bench::with(|options| options.redispatch_on_reconnect = true);
    let (first, _) = bench.connect("a");
    let (job, _) = bench.submit(spec(JobKind::Plan));
    bench.running((first, "a"), job, Task::GetDefinitiveRevision).unwrap();
    bench.disconnect(first, "a");
    let (second, pushed) = bench.connect("a");
    assert_eq!(pushed, [(second, "GetDefinitiveRevision")]);
}

#[test]
fn the_next_task_waits_until_its_runner_reconnects() {
    let mut bench = Bench::new();
    let (first, _) = bench.connect("a");
    let (job, _) = bench.submit(spec(JobKind::Plan));
    bench.connect("b");
    bench.running((first, "a"), job, Task::GetDefinitiveRevision).unwrap();
    bench.disconnect(first, "a");
    // The result was in flight when the connection was lost.
    assert_eq!(bench.complete((first, "a"), job, Task::GetDefinitiveRevision), []);
    let (again, pushed) = bench.connect("a");
    assert_eq!(pushed, [(again, "GetModule")]);
}

#[test]
fn a_duplicate_result_is_acknowledged_and_ignored() {
    let mut bench = Bench::new();
    let (a, _) = bench.connect("a");
    let (job, _) = bench.submit(spec(JobKind::Plan));
    bench.complete((a, "a"), job, Task::GetDefinitiveRevision);
    let again = bench
        .outcome((a, "a"), job, Task::GetDefinitiveRevision, success(Task::GetDefinitiveRevision))
        .unwrap();
    assert!(matches!(notes(&again)[..], [HubEvent::DuplicateResult { .. }]));
    assert_eq!(pushes(&again), []);
}

#[test]
fn a_fault_fails_the_job_and_names_the_task() {
    let mut bench = Bench::new();
    let (a, _) = bench.connect("a");
    let (job, _) = bench.submit(JobSpec::single(Task::Init, "x"));
    let actions =
        bench.outcome((a, "a"), job, Task::Init, Outcome::Faulted(Fault::new("no such backend"))).unwrap();
    assert_eq!(pushes(&actions), []);
    assert_eq!(bench.state(job), JobState::Failed { error: "Init: no such backend".into() });
}

#[test]
fn logs_are_kept_in_order_and_refused_after_the_result() {
    let mut bench = Bench::new();
    let (a, _) = bench.connect("a");
    let (job, _) = bench.submit(spec(JobKind::Plan));
    let task = Task::GetDefinitiveRevision;
    let (one, two) = (bench.entry(job, task, "one"), bench.entry(job, task, "two"));
    bench.report((a, "a"), Report::Logs(vec![one.clone(), two])).unwrap();
    let kept: Vec<_> = bench.machine.logs(job, 0).unwrap().iter().map(|it| it.message.to_string()).collect();
    assert_eq!(kept, ["one", "two"]);
    let early = bench.entry(job, Task::Plan, "too early");
    assert!(matches!(
        bench.report((a, "a"), Report::Logs(vec![one.clone(), early])),
        Err(Refusal::NotOutstanding { task: Task::Plan, .. })
    ));
    assert_eq!(bench.machine.logs(job, 2).unwrap().len(), 0, "a batch is refused as a whole");
    bench.complete((a, "a"), job, task);
    let late = bench.report((a, "a"), Report::Logs(vec![one.clone()]));
    assert_eq!(late, Err(Refusal::AlreadyEnded { job, task }));
    // After a lost connection the runner does not know whether its last batch and result arrived.
    bench.disconnect(a, "a");
    let (again, _) = bench.connect("a");
    let repeated = bench.report((again, "a"), Report::Logs(vec![one.clone()])).unwrap();
    assert!(matches!(notes(&repeated)[..], [HubEvent::LogsRepeated { entries: 1, .. }]));
    bench.outcome((again, "a"), job, task, success(task)).unwrap();
    assert!(bench.report((again, "a"), Report::Logs(vec![one])).is_err());
}

#[test]
fn a_log_entry_with_a_wrong_name_is_refused() {
    let mut bench = Bench::new();
    let (a, _) = bench.connect("a");
    let (job, _) = bench.submit(spec(JobKind::Plan));
    let right = bench.entry(job, Task::GetDefinitiveRevision, "x");
    let wrong = [
        LogEntry { stack_name: "other".into(), ..right.clone() },
        LogEntry { namespace_name: "other".into(), ..right.clone() },
        LogEntry { module_name: "other".into(), ..right.clone() },
        LogEntry { module_id: Uuid::nil(), ..right.clone() },
    ];
    for entry in wrong {
        assert!(matches!(
            bench.report((a, "a"), Report::Logs(vec![entry])),
            Err(Refusal::WrongModule { .. })
        ));
    }
    let unknown = LogEntry { job_id: Uuid::nil(), ..right };
    assert_eq!(bench.report((a, "a"), Report::Logs(vec![unknown])), Err(Refusal::UnknownJob(Uuid::nil())));
}

#[test]
fn a_running_report_must_name_the_runner_of_its_connection() {
    let mut bench = Bench::new();
    let (a, _) = bench.connect("a");
    let (job, _) = bench.submit(spec(JobKind::Plan));
    let (task, runner) = (Task::GetDefinitiveRevision, bench.identity.runner_id);
    for (runner, instance) in [(runner, "b"), (Uuid::nil(), "a")] {
        let report = Report::Running { job, task, runner, instance: instance.into() };
        assert!(matches!(bench.report((a, "a"), report), Err(Refusal::WrongRunner { .. })));
    }
    bench.complete((a, "a"), job, task);
    assert_eq!(bench.running((a, "a"), job, task), Err(Refusal::AlreadyEnded { job, task }));
}

#[test]
fn a_queued_job_is_cancelled_directly_and_a_running_one_by_its_runner() {
    let mut bench = Bench::new();
    let (queued, _) = bench.submit(spec(JobKind::Plan));
    bench.on(Event::CancelAsked { job: queued, kind: CancelKind::Graceful }).unwrap();
    assert_eq!(bench.state(queued), JobState::Cancelled);
    assert!(matches!(
        bench.on(Event::CancelAsked { job: queued, kind: CancelKind::Kill }),
        Err(Refusal::JobEnded { .. })
    ));

    let (a, _) = bench.connect("a");
    let (job, _) = bench.submit(spec(JobKind::Plan));
    bench.running((a, "a"), job, Task::GetDefinitiveRevision).unwrap();
    let early = Report::CancelAnswered { job, kind: CancelKind::Graceful };
    assert!(matches!(bench.report((a, "a"), early.clone()), Err(Refusal::CancelNotPushed { .. })));
    let asked = bench.on(Event::CancelAsked { job, kind: CancelKind::Graceful }).unwrap();
    assert_eq!(pushes(&asked), [(a, "CancelGraceful")]);
    // A cancel is pushed again after a reconnect until it is answered.
    bench.disconnect(a, "a");
    let (b, pushed) = bench.connect("a");
    assert_eq!(pushed, [(b, "CancelGraceful")]);
    bench.report((b, "a"), early).unwrap();
    bench.disconnect(b, "a");
    let (c, pushed) = bench.connect("a");
    assert_eq!(pushed, []);
    let killed = bench.on(Event::CancelAsked { job, kind: CancelKind::Kill }).unwrap();
    assert_eq!(pushes(&killed), [(c, "CancelKill")]);
    bench.outcome((c, "a"), job, Task::GetDefinitiveRevision, Outcome::Cancelled).unwrap();
    assert_eq!(bench.state(job), JobState::Cancelled);
    bench.report((c, "a"), Report::CancelAnswered { job, kind: CancelKind::Kill }).unwrap();
}

#[test]
fn no_task_follows_one_that_completed_despite_a_cancel() {
    let mut bench = Bench::new();
    let (a, _) = bench.connect("a");
    let (job, _) = bench.submit(spec(JobKind::Plan));
    bench.on(Event::CancelAsked { job, kind: CancelKind::Graceful }).unwrap();
    assert_eq!(bench.complete((a, "a"), job, Task::GetDefinitiveRevision), []);
    assert_eq!(bench.state(job), JobState::Cancelled);
}

#[test]
fn an_apply_with_approval_waits_after_the_plan() {
    let mut bench = Bench::new();
    let (a, _) = bench.connect("a");
    let asking = JobSpec { needs_approval: true, ..spec(JobKind::Apply) };
    for approve in [true, false] {
        let (job, _) = bench.submit(asking.clone());
        assert!(matches!(bench.on(Event::Approved { job }), Err(Refusal::NotAwaitingApproval { .. })));
        for task in &JobKind::Apply.tasks()[..5] {
            bench.complete((a, "a"), job, *task);
        }
        assert_eq!(bench.complete((a, "a"), job, Task::Plan), []);
        assert_eq!(bench.state(job), JobState::AwaitingApproval);
        let decision = if approve { Event::Approved { job } } else { Event::Rejected { job } };
        let pushed = pushes(&bench.on(decision).unwrap());
        if approve {
            assert_eq!(pushed, [(a, "ApplyFromPlan")]);
        } else {
            assert_eq!(pushed, []);
            assert_eq!(bench.state(job), JobState::Rejected);
        }
    }
}

#[test]
fn a_refresh_goes_to_one_runner_and_its_answer_is_matched() {
    let mut bench = Bench::new();
    let refresh = SourceRefresh {
        organization_id: bench.identity.organization_id,
        source_url: "u".into(),
        source_revision: "main".into(),
        source_type: SourceType::Git,
        source_revision_type: SourceRevisionType::Default,
    };
    let ask = |instance: Option<&str>| Event::RefreshAsked {
        refresh: refresh.clone(),
        instance: instance.map(str::to_owned),
    };
    assert_eq!(bench.on(ask(None)), Err(Refusal::NoRunner));
    let ((a, _), (b, _)) = (bench.connect("a"), bench.connect("b"));
    assert_eq!(pushes(&bench.on(ask(None)).unwrap()), [(a, "SourceRefresh")]);
    let answer = |revision: &str| Report::Refreshed {
        source: vec![json!("u"), json!(revision), json!(0), json!(0)],
        result: Ok("c0ffee".into()),
    };
    for wrong in [((a, "a"), "other"), ((b, "b"), "main")] {
        assert!(matches!(bench.report(wrong.0, answer(wrong.1)), Err(Refusal::RefreshNotPushed { .. })));
    }
    let answered = bench.report((a, "a"), answer("main")).unwrap();
    assert!(matches!(notes(&answered)[..], [HubEvent::RefreshEnded { .. }]));
    assert_eq!(pushes(&bench.on(ask(Some("b"))).unwrap()), [(b, "SourceRefresh")]);
}

#[test]
fn reports_on_unknown_jobs_are_refused_unless_the_hub_is_lenient() {
    let job = Uuid::new_v4();
    let mut bench = Bench::new();
    let (a, _) = bench.connect("a");
    assert_eq!(bench.running((a, "a"), job, Task::Plan), Err(Refusal::UnknownJob(job)));
    let mut bench = Bench::with(|options| options.acknowledge_unknown_jobs = true);
    let (a, _) = bench.connect("a");
    let taken = bench.running((a, "a"), job, Task::Plan).unwrap();
    assert!(matches!(notes(&taken)[..], [HubEvent::UnknownJob { .. }]));
}

#[test]
fn the_number_of_entries_is_known_without_logs() {
    let mut bench = Bench::with(|options| options.logs = LogKeeping::Events);
    let (a, _) = bench.connect("a");
    let (job, _) = bench.submit(spec(JobKind::Plan));
    let entries = ["abc", "def"].map(|text| bench.entry(job, Task::GetDefinitiveRevision, text)).to_vec();
    let actions = bench.report((a, "a"), Report::Logs(entries)).unwrap();
    let shown = |action: &Action| matches!(action, Action::Logs(entries) if entries.len() == 2);
    assert!(actions.iter().any(shown));
    assert!(bench.machine.logs(job, 0).unwrap().is_empty());
    let summary = bench.machine.snapshot(job).unwrap().logs;
    assert_eq!((summary.count, summary.last.as_deref()), (2, Some("def")));
}

#[derive(Debug, Clone)]
enum Step {
    Connect(u8),
    Disconnect(u8),
    Submit(bool),
    Cancel(u8, bool),
    Running(u8, u8, u8),
    Finish(u8, u8, u8, u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..3u8).prop_map(Step::Connect),
        (0..3u8).prop_map(Step::Disconnect),
        any::<bool>().prop_map(Step::Submit),
        (0..3u8, any::<bool>()).prop_map(|(job, kill)| Step::Cancel(job, kill)),
        (0..3u8, 0..3u8, 0..10u8).prop_map(|(who, job, task)| Step::Running(who, job, task)),
        (0..3u8, 0..3u8, 0..10u8, 0..8u8).prop_map(|(who, job, task, how)| Step::Finish(who, job, task, how)),
    ];
    proptest::collection::vec(step, 0..120)
}

proptest! {
    /// For any events in any order: an ended job does not change, at most one runner has a job, and pushes only go to open
    /// connections.
    #[test]
    fn invariants_hold_for_any_order_of_events(steps in steps()) {
        let mut bench = Bench::new();
        let mut up: [Option<u64>; 3] = [None; 3];
        let mut jobs: Vec<Uuid> = Vec::new();
        for step in steps {
            let before: Vec<_> = jobs.iter().map(|job| bench.machine.snapshot(*job).unwrap()).collect();
            let name = |who: u8| ["a", "b", "c"][usize::from(who)];
            let pick = |index: u8| jobs.get(usize::from(index)).copied();
            let actions = match step {
                Step::Connect(who) if up[usize::from(who)].is_none() => {
                    let (connection, pushed) = bench.connect(name(who));
                    up[usize::from(who)] = Some(connection);
                    prop_assert!(pushed.iter().all(|(to, _)| *to == connection));
                    Vec::new()
                }
                Step::Disconnect(who) => {
                    if let Some(connection) = up[usize::from(who)].take() {
                        bench.disconnect(connection, name(who));
                    }
                    Vec::new()
                }
                Step::Submit(pinned) if jobs.len() < 3 => {
                    let job = Uuid::new_v4();
                    jobs.push(job);
                    let instance = pinned.then(|| "b".to_owned());
                    let spec = Box::new(JobSpec { instance, ..spec(JobKind::Apply) });
                    bench.on(Event::Submitted { job, spec }).unwrap()
                }
                Step::Cancel(job, kill) => {
                    let kind = if kill { CancelKind::Kill } else { CancelKind::Graceful };
                    pick(job).map_or(Vec::new(), |job| {
                        bench.on(Event::CancelAsked { job, kind }).unwrap_or_default()
                    })
                }
                Step::Running(who, job, task) => match (up[usize::from(who)], pick(job)) {
                    (Some(connection), Some(job)) => bench
                        .running((connection, name(who)), job, Task::ALL[usize::from(task)])
                        .unwrap_or_default(),
                    _ => Vec::new(),
                },
                Step::Finish(who, job, task, how) => match (up[usize::from(who)], pick(job)) {
                    (Some(connection), Some(job)) => {
                        let task = Task::ALL[usize::from(task)];
                        let outcome = match how {
                            0 => Outcome::Cancelled,
                            1 => Outcome::Faulted(Fault::new("x")),
                            _ => success(task),
                        };
                        bench.outcome((connection, name(who)), job, task, outcome).unwrap_or_default()
                    }
                    _ => Vec::new(),
                },
                _ => Vec::new(),
            };
            for (to, _) in pushes(&actions) {
                prop_assert!(up.contains(&Some(to)));
            }
            for old in before {
                let new = bench.machine.snapshot(old.id).unwrap();
                if old.state.is_ended() {
                    prop_assert_eq!(&old.state, &new.state);
                }
                if old.owner.is_some() {
                    prop_assert_eq!(&old.owner, &new.owner);
                }
            }
        }
    }
}
