//! The API of `hawser job`: submit, list, show, follow, approve, reject and cancel. Only for this machine.
//!
//! Every request needs the admin token as a bearer token and must come from a loopback address.
//! `follow` is a long poll. The hub counts its changes, and answers when the count differs from the caller's `seen`.

use std::net::SocketAddr;
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

use crate::job_record::JobSnapshot;
use crate::job_spec::JobSpec;
use crate::orchestrator::{Event, Refusal};
use crate::shared::Shared;

/// The root of the API.
pub(super) const ADMIN_PATH: &str = "/admin/jobs";

/// How long `follow` waits.
const FOLLOW_WAIT: Duration = Duration::from_secs(20);

/// The most log entries in one response of `follow`.
const FOLLOW_ENTRIES: usize = 2000;

/// A log entry for display.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LogLine {
    pub at: Timestamp,
    pub task: String,
    pub level: LogLevel,
    pub message: String,
}

/// The response of `follow`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FollowAnswer {
    pub job: JobSnapshot,
    pub logs: Vec<LogLine>,
    /// The next `from`.
    pub next: usize,
    /// The next `seen`.
    pub progress: String,
    /// Instance names of the connected runners.
    pub runners: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Follow {
    #[serde(default)]
    from: usize,
    /// [`FollowAnswer::progress`] of the last response.
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
        // Not `layer`, which would also apply to unknown paths.
        .route_layer(middleware::from_fn(
            move |peer: ConnectInfo<SocketAddr>, request: Request, next: Next| {
                let expected = expected.clone();
                async move { guard(&expected, peer, request, next).await }
            },
        ))
        .with_state(Arc::clone(shared))
}

async fn guard(
    expected: &str,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    if !peer.ip().to_canonical().is_loopback() {
        return (StatusCode::FORBIDDEN, "the admin API is for this machine only").into_response();
    }
    let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    if given != Some(expected) {
        return (StatusCode::UNAUTHORIZED, "the admin token is missing or wrong").into_response();
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
    let mut changes = shared.changes();
    let news = changes.wait_for(|count| seen.as_deref() != Some(&*count.to_string()));
    // After a timeout the answer has no news.
    let _ = tokio::time::timeout(FOLLOW_WAIT, news).await;
    // Read before the snapshot, so that no change is missed.
    let progress = changes.borrow().to_string();
    let core = shared.core();
    let Some(snapshot) = core.orchestrator.snapshot(job) else { return refusal(&Refusal::UnknownJob(job)) };
    let entries = core.orchestrator.logs(job, from).unwrap_or_default();
    let logs: Vec<_> = entries.iter().take(FOLLOW_ENTRIES).map(|entry| line(entry)).collect();
    let next = from + logs.len();
    let runners = core.orchestrator.runners();
    Json(FollowAnswer { job: snapshot, logs, next, progress, runners }).into_response()
}

fn line(entry: &LogEntry) -> LogLine {
    LogLine {
        at: entry.timestamp,
        task: entry.task_name.to_string(),
        level: entry.level,
        message: entry.message.clone(),
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
