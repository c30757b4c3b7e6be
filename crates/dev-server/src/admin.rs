//! The API behind `hawser job`: submit, look, follow, approve and cancel. For this machine only.
//!
//! Every request needs the admin token as a bearer token and must come from a loopback address.
//! `follow` answers as soon as there is something new: log entries beyond `from`, or other [`progress`] than the
//! caller has `seen`.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{ConnectInfo, Path, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use hawser_contract::requests::CancelKind;
use hawser_contract::{LogEntry, LogLevel};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use crate::job_record::{JobSnapshot, JobState};
use crate::job_spec::JobSpec;
use crate::listener::Peer;
use crate::orchestrator::{Event, Refusal};
use crate::shared::Shared;

/// Where the API begins.
pub(super) const ADMIN_PATH: &str = "/admin/jobs";

/// How long `follow` waits for something new.
const FOLLOW_WAIT: Duration = Duration::from_secs(20);

/// How many entries one answer of `follow` has at most.
const FOLLOW_ENTRIES: usize = 2000;

/// One log entry, as far as a reader at the terminal cares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LogLine {
    pub at: Timestamp,
    pub task: String,
    pub level: LogLevel,
    pub message: String,
}

/// What `follow` answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FollowAnswer {
    pub job: JobSnapshot,
    pub logs: Vec<LogLine>,
    /// Where to go on.
    pub next: usize,
    /// Changes whenever the job or one of its tasks has moved, or what it may wait for.
    pub progress: String,
    /// Instance names of the connected runners.
    pub runners: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Follow {
    #[serde(default)]
    from: usize,
    /// [`FollowAnswer::progress`] of the last answer.
    #[serde(default)]
    seen: Option<String>,
}

#[derive(Debug, Deserialize)]
struct CancelBody {
    kind: CancelKind,
}

pub(super) fn router(shared: &Arc<Shared>, token: &str) -> Router {
    let expected = format!("Bearer {token}");
    Router::new()
        .route(ADMIN_PATH, post(submit).get(list))
        .route(&format!("{ADMIN_PATH}/{{job}}"), get(show))
        .route(&format!("{ADMIN_PATH}/{{job}}/follow"), get(follow))
        .route(&format!("{ADMIN_PATH}/{{job}}/cancel"), post(cancel))
        .route(&format!("{ADMIN_PATH}/{{job}}/approve"), post(approve))
        .route(&format!("{ADMIN_PATH}/{{job}}/reject"), post(reject))
        // Not `layer`, which would also answer for every path that the hub does not know.
        .route_layer(middleware::from_fn(move |peer: ConnectInfo<Peer>, request: Request, next: Next| {
            let expected = expected.clone();
            async move { guard(&expected, peer, request, next).await }
        }))
        .with_state(Arc::clone(shared))
}

async fn guard(
    expected: &str,
    ConnectInfo(peer): ConnectInfo<Peer>,
    request: Request,
    next: Next,
) -> Response {
    if !peer.0.ip().to_canonical().is_loopback() {
        return (StatusCode::FORBIDDEN, "the admin API is for this machine only").into_response();
    }
    let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    if given != Some(expected) {
        return (StatusCode::UNAUTHORIZED, "the admin token is missing or not this hub's").into_response();
    }
    next.run(request).await
}

async fn submit(State(shared): State<Arc<Shared>>, Json(spec): Json<JobSpec>) -> Response {
    let job = shared.submit(spec);
    (StatusCode::CREATED, Json(json!({ "jobId": job }))).into_response()
}

async fn list(State(shared): State<Arc<Shared>>) -> Json<Vec<JobSnapshot>> {
    Json(shared.core().orchestrator.snapshots())
}

async fn show(State(shared): State<Arc<Shared>>, Path(job): Path<Uuid>) -> Response {
    match shared.core().orchestrator.snapshot(job) {
        Some(snapshot) => Json(snapshot).into_response(),
        None => refusal(&Refusal::UnknownJob(job)),
    }
}

async fn follow(
    State(shared): State<Arc<Shared>>,
    Path(job): Path<Uuid>,
    Query(Follow { from, seen }): Query<Follow>,
) -> Response {
    let news = shared.wait_for(|core| {
        let Some(snapshot) = core.orchestrator.snapshot(job) else { return Some(None) };
        let logs = core.orchestrator.logs(job, from).unwrap_or_default();
        let runners = core.orchestrator.runners();
        let moved = seen.as_deref() != Some(&progress(&snapshot, &runners));
        (!logs.is_empty() || moved || snapshot.state.is_ended()).then_some(Some((snapshot, logs, runners)))
    });
    let found = match tokio::time::timeout(FOLLOW_WAIT, news).await {
        Ok(found) => found,
        Err(_) => {
            let core = shared.core();
            let snapshot = core.orchestrator.snapshot(job);
            snapshot.map(|snapshot| (snapshot, Vec::new(), core.orchestrator.runners()))
        }
    };
    let Some((job_now, mut entries, runners)) = found else { return refusal(&Refusal::UnknownJob(job)) };
    entries.truncate(FOLLOW_ENTRIES);
    let next = from + entries.len();
    let logs = entries.iter().map(|entry| line(entry)).collect();
    let progress = progress(&job_now, &runners);
    Json(FollowAnswer { job: job_now, logs, next, progress, runners }).into_response()
}

/// A short text that differs whenever the job's state or a task's state does, and while the job waits for a runner whenever
/// one comes or goes.
fn progress(job: &JobSnapshot, runners: &[String]) -> String {
    let reached = job.tasks.iter().filter(|task| task.ended_at.is_some()).count();
    let begun = job.tasks.iter().filter(|task| task.started_at.is_some()).count();
    let waits = match job.state {
        JobState::Queued => {
            // A name may hold anything, and this goes into a URL.
            let mut hash = DefaultHasher::new();
            runners.hash(&mut hash);
            format!("{:x}", hash.finish())
        }
        JobState::AwaitingApproval => "approval".to_owned(),
        _ => String::new(),
    };
    format!("{reached}-{begun}-{waits}")
}

fn line(entry: &LogEntry<'_>) -> LogLine {
    LogLine {
        at: entry.timestamp,
        task: entry.task_name.to_string(),
        level: entry.level,
        message: entry.message.to_string(),
    }
}

async fn cancel(
    State(shared): State<Arc<Shared>>,
    Path(job): Path<Uuid>,
    Json(CancelBody { kind }): Json<CancelBody>,
) -> Response {
    done(shared.act(Event::CancelAsked { job, kind }))
}

async fn approve(State(shared): State<Arc<Shared>>, Path(job): Path<Uuid>) -> Response {
    done(shared.act(Event::Approved { job }))
}

async fn reject(State(shared): State<Arc<Shared>>, Path(job): Path<Uuid>) -> Response {
    done(shared.act(Event::Rejected { job }))
}

fn done(result: Result<(), Refusal>) -> Response {
    match result {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => refusal(&error),
    }
}

fn refusal(refusal: &Refusal) -> Response {
    let status =
        if matches!(refusal, Refusal::UnknownJob(_)) { StatusCode::NOT_FOUND } else { StatusCode::CONFLICT };
    (status, refusal.to_string()).into_response()
}
