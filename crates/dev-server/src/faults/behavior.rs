//! How each fault is caused.

use std::future::pending;
use std::ops::ControlFlow;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use hawser_signalr::codec::Message;
use hawser_signalr::server::WriteError;
use serde_json::value::RawValue;
use tokio::time::sleep;

use super::{Fault, Moment};
use crate::connection::{Connection, Outgoing, SocketWriter};
use crate::events::HubEvent;
use crate::shared::Shared;

impl Shared {
    /// The fault that is due at this moment, recorded as an event.
    pub(crate) fn fault(&self, moment: &Moment, instance: Option<&str>) -> Option<Fault> {
        let fault = self.faults().on(moment, instance)?;
        let what = format!("{fault:?} at {moment:?}");
        self.record(HubEvent::Misbehaved { instance: instance.map(str::to_owned), what });
        Some(fault)
    }

    pub(crate) fn request_fault(&self, moment: &Moment, instance: Option<&str>) -> Option<Response> {
        match self.fault(moment, instance)? {
            Fault::Refuse(reason) => Some((StatusCode::SERVICE_UNAVAILABLE, reason).into_response()),
            _ => None,
        }
    }
}

impl Connection {
    pub(crate) async fn call_with_fault(
        &self,
        fault: Fault,
        invocation_id: Option<String>,
        method: &str,
        arguments: &RawValue,
    ) -> ControlFlow<String> {
        let proceed = ControlFlow::Continue(());
        match &fault {
            Fault::DropBefore => return cut(),
            Fault::Lose => return proceed,
            Fault::Refuse(error) => {
                self.answer(invocation_id, Err(error.clone())).await;
                return proceed;
            }
            _ => {}
        }
        let answer = self.call(invocation_id.as_deref(), method, arguments);
        match &fault {
            Fault::DropAfter => return cut(),
            Fault::Forget => return proceed,
            Fault::Delay(time) => sleep(*time).await,
            Fault::Stall => {
                self.send(Outgoing::Stall).await;
                return pending().await;
            }
            _ => {}
        }
        self.answer(invocation_id, answer).await;
        match fault {
            Fault::Close { error, allow_reconnect } => {
                self.send(Outgoing::Message(Message::Close { error, allow_reconnect })).await;
                pending().await
            }
            Fault::StopReading => self.stall().await,
            Fault::Send(rubbish) => {
                self.send(Outgoing::Raw(rubbish.frame())).await;
                proceed
            }
            _ => proceed,
        }
    }

    pub(crate) async fn push_with_fault(
        &self,
        fault: Fault,
        push: &Message,
        writer: &mut SocketWriter,
    ) -> Result<ControlFlow<String>, WriteError> {
        match fault {
            Fault::Lose => return Ok(ControlFlow::Continue(())),
            Fault::DropBefore => return Ok(cut()),
            Fault::Stall => return self.stall().await,
            _ => {}
        }
        writer.send(push).await?;
        Ok(if fault == Fault::DropAfter { cut() } else { ControlFlow::Continue(()) })
    }

    /// Hangs until the connection is cut. The instance name becomes free, because the hub no longer notices when the
    /// client leaves.
    pub(crate) async fn stall<T>(&self) -> T {
        self.reservation.release();
        pending().await
    }
}

fn cut() -> ControlFlow<String> {
    ControlFlow::Break("cut off by the hub".to_owned())
}
