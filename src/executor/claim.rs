//! The claim: `ReportRunningTask` when a step starts, periodically while it runs, and after each reconnect.

use std::convert::Infallible;
use std::time::Duration;

use hawser_contract::Request;
use hawser_contract::names::method;
use hawser_signalr::{CallError, ConnectionStatus};
use tokio::sync::Notify;
use tracing::{debug, warn};

use super::Executor;

/// How long to wait for the answer to a report.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

impl Executor {
    /// Reports a step as running until the future is dropped. `report_now` triggers an extra report.
    pub(super) async fn keep_reporting(&self, request: &Request, report_now: &Notify) -> Infallible {
        let every = Duration::from_secs(request.common.report_active_job_frequency_seconds.max(1));
        let mut status = self.hub.status();
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
                () = report_now.notified() => {}
            }
        }
    }

    async fn report(&self, request: &Request, last_refusal: &mut Option<String>) {
        let (job, task) = (request.common.job_id, request.task.task());
        let runner = &self.settings.runner;
        let arguments = (job, task.name(), runner.id, &runner.instance);
        let answer = self.hub.invoke(method::REPORT_RUNNING_TASK, arguments);
        // A server that forgets one answer must still get the next report.
        let Ok(answer) = tokio::time::timeout(ANSWER_TIMEOUT, answer).await else {
            return debug!(%job, %task, "report of running task timed out");
        };
        match answer {
            Ok(_) => *last_refusal = None,
            Err(CallError::Refused(reason)) if last_refusal.as_ref() != Some(&reason) => {
                warn!(%job, %task, reason, "server refused report of running task");
                *last_refusal = Some(reason);
            }
            Err(error) => debug!(%job, %task, %error, "failed to report running task"),
        }
    }
}
