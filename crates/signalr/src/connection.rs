//! One WebSocket, from the handshake to its close: the loop that drives the [`Machine`].
//!
//! Reading, writing, calls, answers to pushes and the clock are waited for side by side, and none waits for
//! another: the writer has a queue of its own, calls and answers are only taken when that queue has room, and
//! pushes go into the [`Inbox`].

use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, SplitSink, SplitStream};
use futures::{FutureExt, SinkExt, StreamExt};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error as SocketError, Message as Frame};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::activity::{Meter, Metered, metered};
use crate::client::{CallError, Outgoing, Pushed, Reply};
use crate::codec::Answer;
use crate::inbox::Inbox;
use crate::protocol::{Action, Ending, Event, MAX_INCOMING_BYTES, Machine};
use crate::timing::Timing;

/// Messages that may wait for the socket. Small, because what waits here cannot be overtaken.
const WRITE_QUEUE: usize = 16;

/// What a socket's buffers start with: a runner mostly waits, so they are small.
const BUFFER_BYTES: usize = 16 * 1024;

pub(crate) type Ticket = oneshot::Sender<Result<Value, CallError>>;

type Sink<S> = SplitSink<WebSocketStream<Metered<S>>, Frame>;
type Frames<S> = SplitStream<WebSocketStream<Metered<S>>>;
type Writer<S> = BoxFuture<'static, Result<Sink<S>, Ending>>;

/// What there was of a connection when it is over.
pub(crate) struct Ended {
    /// None when we were told to stop.
    pub(crate) ending: Option<Ending>,
    pub(crate) opened_at: Option<Instant>,
    /// A call was accepted: the server works with us.
    pub(crate) accepted: bool,
    /// Calls that got no answer. The session tells them, after it has published that the line is down.
    pub(crate) unanswered: Vec<Ticket>,
    /// Takes leave of the server, if it can still hear us. Takes a bounded time.
    pub(crate) goodbye: BoxFuture<'static, ()>,
}

/// What a connection works with that outlives it.
pub(crate) struct Context<'a> {
    pub(crate) timing: &'a Timing,
    pub(crate) max_message_bytes: usize,
    pub(crate) calls: &'a mut mpsc::Receiver<Outgoing>,
    pub(crate) inbox: &'a mut Inbox,
    pub(crate) stop: &'a CancellationToken,
}

/// Speaks SignalR over an upgraded stream until one side has enough. `opened` is called after the handshake.
pub(crate) async fn run<S>(stream: S, context: Context<'_>, opened: impl FnOnce() + Send) -> Ended
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (stream, meter) = metered(stream);
    let config = WebSocketConfig::default()
        .max_message_size(Some(MAX_INCOMING_BYTES))
        .max_frame_size(Some(MAX_INCOMING_BYTES))
        .read_buffer_size(BUFFER_BYTES)
        .write_buffer_size(BUFFER_BYTES);
    let socket = WebSocketStream::from_raw_socket(stream, Role::Client, Some(config)).await;
    let (sink, mut frames) = socket.split();
    let (to_writer, queue) = mpsc::channel(WRITE_QUEUE);
    let mut writer = write(sink, queue, context.timing.server_timeout).boxed();

    let mut connection = Connection {
        machine: Machine::new(context.timing, context.max_message_bytes, Instant::now()),
        inbox: context.inbox,
        replies: FuturesUnordered::new(),
        meter,
        opened: Some(opened),
        opened_at: None,
        accepted: false,
    };
    // Leaving this `select!` drops the sender of the writer's queue, so that the writer comes to an end.
    let ending = tokio::select! {
        ending = connection.drive(&mut frames, to_writer, context.calls) => Some(ending),
        end = &mut writer => Some(end.err().unwrap_or_else(|| Ending::Lost("the writer is gone".to_owned()))),
        () = context.stop.cancelled() => None,
    };
    let goodbye = match &ending {
        // Only who stops has the time to hear the server's goodbye.
        None => goodbye(writer, Some(frames), context.timing.close_timeout).boxed(),
        Some(
            Ending::Closed { .. }
            | Ending::SocketClosed { .. }
            | Ending::HandshakeRefused(_)
            | Ending::Unreadable(_),
        ) => goodbye(writer, None, context.timing.close_timeout).boxed(),
        // These cannot hear us any more.
        Some(
            Ending::Silence(_) | Ending::HandshakeTimeout(_) | Ending::WriteStalled(_) | Ending::Lost(_),
        ) => std::future::ready(()).boxed(),
    };
    Ended {
        ending,
        opened_at: connection.opened_at,
        accepted: connection.accepted,
        unanswered: connection.machine.abandon(),
        goodbye,
    }
}

/// Sends what is queued and then the WebSocket's close frame, as the .NET client does.
async fn goodbye<S>(writer: Writer<S>, frames: Option<Frames<S>>, patience: Duration)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let close = async {
        let mut sink = writer.await.ok()?;
        let frame = CloseFrame { code: CloseCode::Normal, reason: "".into() };
        // When the server closed first, this only sends the answer to that.
        let _ = sink.send(Frame::Close(Some(frame))).await;
        sink.close().await.ok()?;
        let mut frames = frames?;
        while let Some(Ok(frame)) = frames.next().await
            && !frame.is_close()
        {}
        Some(())
    };
    if timeout(patience, close).await.is_err() {
        debug!("the server did not answer our goodbye");
    }
}

/// Writes what is queued until the queue is closed.
async fn write<S>(
    mut sink: Sink<S>,
    mut queue: mpsc::Receiver<String>,
    patience: Duration,
) -> Result<Sink<S>, Ending>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(text) = queue.recv().await {
        within(patience, sink.feed(Frame::text(text))).await?;
        // Under load several messages go out at once.
        if queue.is_empty() {
            within(patience, sink.flush()).await?;
        }
    }
    Ok(sink)
}

async fn within(
    patience: Duration,
    write: impl Future<Output = Result<(), SocketError>>,
) -> Result<(), Ending> {
    match timeout(patience, write).await {
        Ok(done) => done.map_err(|error| Ending::Lost(error.to_string())),
        Err(_) => Err(Ending::WriteStalled(patience)),
    }
}

struct Connection<'a, O> {
    machine: Machine<Ticket>,
    inbox: &'a mut Inbox,
    /// Pushed invocations that wait for their answer.
    replies: FuturesUnordered<BoxFuture<'static, (String, Answer)>>,
    meter: Meter,
    opened: Option<O>,
    opened_at: Option<Instant>,
    accepted: bool,
}

/// What the loop waits for besides frames.
enum ToSend {
    Call(Outgoing),
    Reply(String, Answer),
}

impl<O: FnOnce()> Connection<'_, O> {
    async fn drive<S>(
        &mut self,
        frames: &mut Frames<S>,
        to_writer: mpsc::Sender<String>,
        calls: &mut mpsc::Receiver<Outgoing>,
    ) -> Ending
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        // A full queue means that something is on its way, which serves as well as a ping.
        let send_if_room = |text| drop(to_writer.try_send(text));
        let mut ending = self.happened(Event::Start, send_if_room);
        while ending.is_none() {
            let deadline = self.machine.deadline().unwrap_or_else(Instant::now);
            ending = tokio::select! {
                frame = frames.next(), if !self.inbox.is_full() => self.frame(frame),
                (permit, what) = next_to_send(&to_writer, calls, &mut self.replies) => {
                    let mut permit = Some(permit);
                    self.send(what, |text| if let Some(permit) = permit.take() { permit.send(text) })
                }
                () = self.inbox.make_room() => None,
                () = sleep_until(deadline) => {
                    // While we do not read, or are in the middle of a large frame, silence proves nothing.
                    if self.meter.moved() || self.inbox.is_full() {
                        self.happened(Event::Heard, send_if_room);
                    }
                    self.happened(Event::Tick, send_if_room)
                }
            };
        }
        ending.unwrap_or_else(|| Ending::Lost("the connection ended without a reason".to_owned()))
    }

    fn frame(&mut self, frame: Option<Result<Frame, SocketError>>) -> Option<Ending> {
        let no_send = |_| {};
        match frame {
            Some(Ok(Frame::Text(text))) => {
                self.meter.moved();
                self.happened(Event::Received(text.as_bytes()), no_send)
            }
            Some(Ok(Frame::Binary(bytes))) => {
                self.meter.moved();
                self.happened(Event::Received(&bytes), no_send)
            }
            Some(Ok(Frame::Ping(payload) | Frame::Pong(payload))) => {
                self.meter.discount(payload.len());
                None
            }
            Some(Ok(Frame::Close(frame))) => {
                let (code, text) = frame.map_or((1005, String::new()), |frame| {
                    (frame.code.into(), frame.reason.as_str().to_owned())
                });
                Some(Ending::SocketClosed { code, text })
            }
            Some(Ok(Frame::Frame(_))) => None,
            Some(Err(error @ (SocketError::Capacity(_) | SocketError::Utf8(_)))) => {
                Some(Ending::Unreadable(error.to_string()))
            }
            Some(Err(error)) => Some(Ending::Lost(error.to_string())),
            None => Some(Ending::Lost("the server hung up".to_owned())),
        }
    }

    fn send(&mut self, what: ToSend, send: impl FnMut(String)) -> Option<Ending> {
        match what {
            ToSend::Call(Outgoing { method, arguments, answer }) => {
                let call = Event::Call { method: &method, arguments: &arguments, ticket: answer };
                self.happened(call, send)
            }
            ToSend::Reply(invocation_id, answer) => {
                self.happened(Event::Replied { invocation_id, answer }, send)
            }
        }
    }

    fn happened(&mut self, event: Event<'_, Ticket>, mut send: impl FnMut(String)) -> Option<Ending> {
        for action in self.machine.on(event, Instant::now()) {
            match action {
                Action::Send(text) => send(text),
                Action::Opened => {
                    self.opened_at = Some(Instant::now());
                    if let Some(opened) = self.opened.take() {
                        opened();
                    }
                }
                Action::Push { target, arguments, invocation_id } => {
                    let reply = invocation_id.map(|id| self.expect_reply(id));
                    self.inbox.put(Pushed { target, arguments, received: std::time::Instant::now(), reply });
                }
                Action::Decline { invocation_id, reason } => {
                    self.replies.push(std::future::ready((invocation_id, Err(reason))).boxed());
                }
                // Who does not wait for the answer any more needs none.
                Action::Answer(ticket, answer) => {
                    self.accepted |= answer.is_ok();
                    drop(ticket.send(answer));
                }
                Action::End(ending) => return Some(ending),
            }
        }
        None
    }

    fn expect_reply(&mut self, invocation_id: String) -> Reply {
        let (reply, answer) = Reply::new();
        let answer = answer.map(|answer| {
            let answer = answer.unwrap_or_else(|_| Err("the runner gave no answer".to_owned()));
            (invocation_id, answer)
        });
        self.replies.push(answer.boxed());
        reply
    }
}

/// The next call or answer, and the room for it in the writer's queue. Nothing is lost when this is dropped.
async fn next_to_send<'a>(
    to_writer: &'a mpsc::Sender<String>,
    calls: &mut mpsc::Receiver<Outgoing>,
    replies: &mut FuturesUnordered<BoxFuture<'static, (String, Answer)>>,
) -> (mpsc::Permit<'a, String>, ToSend) {
    let Ok(permit) = to_writer.reserve().await else {
        // The writer is gone, which ends the connection elsewhere.
        return std::future::pending().await;
    };
    let what = tokio::select! {
        Some(call) = calls.recv() => ToSend::Call(call),
        Some((id, answer)) = replies.next() => ToSend::Reply(id, answer),
        // No caller is left, and no push waits for an answer.
        else => std::future::pending().await,
    };
    (permit, what)
}
