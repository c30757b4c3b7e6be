//! The claim: `ReportRunningTask` when a step starts, again and again while it runs, and at once after each
//! connect.

use std::convert::Infallible;
use std::time::Duration;

use hawser_contract::Request;
use hawser_contract::names::method;
use hawser_signalr::{CallError, ConnectionStatus, HubClient};
use tokio::sync::Notify;
use tracing::{debug, warn};
use uuid::Uuid;

/// So long an answer to a report is waited for.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Who reports.
#[derive(Debug, Clone)]
pub(crate) struct Claimer {
    pub(crate) line: HubClient,
    pub(crate) runner_id: Uuid,
    pub(crate) instance: String,
}

impl Claimer {
    /// Reports a step as running until the future is dropped. `again` asks for one more report now.
    pub(crate) async fn keep_reporting(&self, request: &Request, again: &Notify) -> Infallible {
        let every = Duration::from_secs(request.common.report_active_job_frequency_seconds.max(1));
        let mut status = self.line.status();
        let mut last_refusal = None;
        loop {
            // Marks the status as seen before the report, so that a connect during it is not missed.
            let connected = matches!(&*status.borrow_and_update(), ConnectionStatus::Connected { .. });
            if connected {
                self.report(request, &mut last_refusal).await;
            }
            tokio::select! {
                () = tokio::time::sleep(every), if connected => {}
                changed = status.changed() => if changed.is_err() { return std::future::pending().await },
                () = again.notified() => {}
            }
        }
    }

    async fn report(&self, request: &Request, last_refusal: &mut Option<String>) {
        let (job_id, task) = (request.common.job_id, request.task.task());
        let arguments = (job_id, task.name(), self.runner_id, &self.instance);
        let answer = self.line.invoke(method::REPORT_RUNNING_TASK, arguments);
        // A server that forgets one answer must still get the next report.
        let Ok(answer) = tokio::time::timeout(ANSWER_TIMEOUT, answer).await else {
            return debug!(%job_id, %task, "the report of a running task was not answered");
        };
        match answer {
            Ok(_) => *last_refusal = None,
            Err(CallError::Refused(reason)) if last_refusal.as_ref() != Some(&reason) => {
                warn!(%job_id, %task, "the server refused the report of a running task: {reason}");
                *last_refusal = Some(reason);
            }
            Err(error) => debug!(%job_id, %task, "a running task could not be reported: {error}"),
        }
    }
}
