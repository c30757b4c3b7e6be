//! The claim: `ReportRunningTask` when a step starts. It is a gate: a script that was not started yet waits for the server's
//! answer. After that, and for a script of an earlier process from the start, the same call is a report: it is made
//! periodically, after each reconnect, and when the task is pushed again, and its answer decides nothing.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hawser_contract::Request;
use hawser_contract::names::method;
use hawser_signalr::{CallError, ConnectionStatus};
use tokio::sync::{Notify, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::Executor;
use crate::base::retry;

/// How long to wait for the answer to a report. A claim has no such limit.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// What the scheduler asks of a step while it is driven.
#[derive(Debug, Clone, Default)]
pub(crate) struct StepSignals {
    pub(crate) cancel: CancellationToken,
    /// The task was pushed again: it is claimed or reported at once.
    pub(crate) report_again: Arc<Notify>,
    /// The runner drains: a step that is not claimed yet stays for the next start.
    pub(crate) drain: CancellationToken,
}

/// The answer to a claim.
#[derive(Debug)]
pub(super) enum ClaimAnswer {
    Granted,
    /// The server has refused every attempt. Another runner may be running the task.
    Refused {
        reason: String,
    },
    /// The step was cancelled before an answer came.
    Cancelled,
    /// The runner drains before an answer came.
    Drained,
}

impl Executor {
    /// Claims the step if somebody waits for the answer, and reports it as running until the future is dropped.
    pub(super) async fn keep_reporting(
        &self,
        request: &Request,
        claim: Option<oneshot::Sender<ClaimAnswer>>,
        signals: &StepSignals,
    ) -> Infallible {
        let every = Duration::from_secs(request.common.report_active_job_frequency_seconds.max(1));
        let mut status = self.hub.status();
        let mut last_refusal = None;
        let mut is_reported = claim.is_some();
        if let Some(answered) = claim {
            let answer = self.claim(request, &mut status, signals).await;
            let granted = matches!(answer, ClaimAnswer::Granted);
            let _ = answered.send(answer);
            if !granted {
                // The step ends. A push that comes now is left to the scheduler, which looks for one.
                return std::future::pending().await;
            }
        }
        loop {
            if is_reported {
                let connected = matches!(&*status.borrow(), ConnectionStatus::Connected { .. });
                tokio::select! {
                    () = tokio::time::sleep(every), if connected => {}
                    changed = status.changed() => if changed.is_err() { return std::future::pending().await },
                    () = signals.report_again.notified() => {}
                }
            }
            is_reported = true;
            let (job, task) = (request.common.job_id, request.task.task());
            let report = self.report(request, &mut status, &signals.report_again);
            // A server that forgets one answer must still get the next report.
            match tokio::time::timeout(ANSWER_TIMEOUT, report).await {
                Ok(Ok(())) => last_refusal = None,
                Ok(Err(reason)) if last_refusal.as_ref() != Some(&reason) => {
                    warn!(%job, %task, reason, "server refused report of running task");
                    last_refusal = Some(reason);
                }
                Ok(Err(_)) => {}
                Err(_) => debug!(%job, %task, "report of running task timed out"),
            }
        }
    }

    async fn claim(
        &self,
        request: &Request,
        status: &mut watch::Receiver<ConnectionStatus>,
        signals: &StepSignals,
    ) -> ClaimAnswer {
        let claiming = async {
            let mut delays = retry::CLAIM.into_iter();
            loop {
                let Err(reason) = self.report(request, status, &signals.report_again).await else {
                    return ClaimAnswer::Granted;
                };
                let Some(delay) = delays.next() else { return ClaimAnswer::Refused { reason } };
                let (job, task) = (request.common.job_id, request.task.task());
                debug!(%job, %task, reason, "claim refused, retrying");
                tokio::select! {
                    () = tokio::time::sleep(delay) => {}
                    () = signals.report_again.notified() => delays = retry::CLAIM.into_iter(),
                }
            }
        };
        tokio::select! {
            biased;
            answer = claiming => answer,
            () = signals.cancel.cancelled() => ClaimAnswer::Cancelled,
            () = signals.drain.cancelled() => ClaimAnswer::Drained,
        }
    }

    /// Calls the server until it answers: again after each connect, and at once if the task was pushed again. The connection
    /// decides that a server is gone. Returns the error with which the server refused.
    async fn report(
        &self,
        request: &Request,
        status: &mut watch::Receiver<ConnectionStatus>,
        report_again: &Notify,
    ) -> Result<(), String> {
        let runner = &self.settings.runner;
        let arguments =
            (request.common.job_id, request.task.task().name(), runner.id, runner.instance.as_str());
        loop {
            // Marks the status as seen before the call, so that a connect during it is not missed.
            let connected = matches!(&*status.borrow_and_update(), ConnectionStatus::Connected { .. });
            let call = async {
                match connected {
                    true => self.hub.invoke(method::REPORT_RUNNING_TASK, arguments).await,
                    false => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                answer = call => match answer {
                    Ok(_) => return Ok(()),
                    Err(CallError::Refused(reason)) => return Err(reason),
                    // The status has changed.
                    Err(CallError::Disconnected) => {}
                    Err(error) => return Err(error.to_string()),
                },
                changed = status.changed() => if changed.is_err() { return std::future::pending().await },
                () = report_again.notified() => {}
            }
        }
    }
}
