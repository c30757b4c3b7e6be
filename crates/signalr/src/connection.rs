//! One WebSocket, from the handshake to its close: the loop that drives the [`Protocol`].
//!
//! Reading, writing, calls, replies to invocations and timers are awaited concurrently, and none blocks another: the
//! writer has its own queue, calls and replies are only taken when that queue has room, and invocations and the
//! completions of ordered calls go into the [`Inbox`].

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

use crate::activity::{Activity, ActivityStream, watch_activity};
use crate::client::{CallError, Completion, Incoming, Invocation, OutgoingCall, Reply};
use crate::codec::Answer;
use crate::inbox::Inbox;
use crate::protocol::{Action, CloseReason, Event, MAX_INCOMING_BYTES, Protocol};
use crate::timing::Timing;

/// Messages that may wait for the socket.
const WRITE_QUEUE: usize = 16;

/// The initial size of a socket's buffers. Small, because most connections are idle most of the time.
const BUFFER_BYTES: usize = 16 * 1024;

/// Who waits for the completion of a call.
pub(crate) struct Ticket {
    pub(crate) caller: oneshot::Sender<Result<Value, CallError>>,
    /// The tag of an ordered call.
    ordered: Option<u64>,
}

type Sink<S> = SplitSink<WebSocketStream<ActivityStream<S>>, Frame>;
type Frames<S> = SplitStream<WebSocketStream<ActivityStream<S>>>;
type Writer<S> = BoxFuture<'static, Result<Sink<S>, CloseReason>>;

/// The outcome of a connection.
pub(crate) struct ConnectionEnd {
    /// `None` if the session was stopped.
    pub(crate) reason: Option<CloseReason>,
    pub(crate) opened_at: Option<Instant>,
    /// Whether the server accepted a call.
    pub(crate) accepted: bool,
    /// Calls without a completion. The session fails them after it has published the status.
    pub(crate) unanswered: Vec<Ticket>,
    /// Closes the WebSocket if the server is still reachable. Takes a bounded time.
    pub(crate) close: BoxFuture<'static, ()>,
}

/// The parts of a session that a connection uses.
pub(crate) struct Context<'a> {
    pub(crate) timing: &'a Timing,
    pub(crate) max_message_bytes: usize,
    pub(crate) calls: &'a mut mpsc::Receiver<OutgoingCall>,
    pub(crate) inbox: &'a mut Inbox,
    pub(crate) stop: &'a CancellationToken,
}

/// Runs a connection over an upgraded stream to its end. `opened` is called after the handshake.
pub(crate) async fn run<S>(stream: S, context: Context<'_>, opened: impl FnOnce() + Send) -> ConnectionEnd
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (stream, activity) = watch_activity(stream);
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
        protocol: Protocol::new(context.timing, context.max_message_bytes, Instant::now()),
        inbox: context.inbox,
        replies: FuturesUnordered::new(),
        activity,
        opened: Some(opened),
        opened_at: None,
        accepted: false,
    };
    // Leaving this `select!` drops the sender of the writer's queue, which ends the writer.
    let reason = tokio::select! {
        reason = connection.drive(&mut frames, to_writer, context.calls) => Some(reason),
        end = &mut writer => Some(end.err().unwrap_or_else(|| CloseReason::Lost("writer ended".to_owned()))),
        () = context.stop.cancelled() => None,
    };
    let close = match &reason {
        // Only a session that stops waits for the server's close frame.
        None => close(writer, Some(frames), context.timing.close_timeout).boxed(),
        Some(
            CloseReason::Closed { .. }
            | CloseReason::SocketClosed { .. }
            | CloseReason::HandshakeRefused(_)
            | CloseReason::Unreadable(_),
        ) => close(writer, None, context.timing.close_timeout).boxed(),
        // The server is not reachable anymore.
        Some(
            CloseReason::Silence(_)
            | CloseReason::HandshakeTimeout(_)
            | CloseReason::WriteStalled(_)
            | CloseReason::Lost(_),
        ) => std::future::ready(()).boxed(),
    };
    ConnectionEnd {
        reason,
        opened_at: connection.opened_at,
        accepted: connection.accepted,
        unanswered: connection.protocol.abandon(),
        close,
    }
}

/// Sends the queued messages and then the WebSocket's close frame, as the .NET client does.
async fn close<S>(writer: Writer<S>, frames: Option<Frames<S>>, patience: Duration)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let close = async {
        let mut sink = writer.await.ok()?;
        let frame = CloseFrame { code: CloseCode::Normal, reason: "".into() };
        // If the server closed first, this only sends the response to that.
        let _ = sink.send(Frame::Close(Some(frame))).await;
        sink.close().await.ok()?;
        let mut frames = frames?;
        while let Some(Ok(frame)) = frames.next().await
            && !frame.is_close()
        {}
        Some(())
    };
    if timeout(patience, close).await.is_err() {
        debug!("closing the WebSocket timed out");
    }
}

/// Writes the queued messages until the queue is closed.
async fn write<S>(
    mut sink: Sink<S>,
    mut queue: mpsc::Receiver<String>,
    patience: Duration,
) -> Result<Sink<S>, CloseReason>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(text) = queue.recv().await {
        within(patience, sink.feed(Frame::text(text))).await?;
        // Under load, several messages are flushed at once.
        if queue.is_empty() {
            within(patience, sink.flush()).await?;
        }
    }
    Ok(sink)
}

async fn within(
    patience: Duration,
    write: impl Future<Output = Result<(), SocketError>>,
) -> Result<(), CloseReason> {
    match timeout(patience, write).await {
        Ok(done) => done.map_err(|error| CloseReason::Lost(error.to_string())),
        Err(_) => Err(CloseReason::WriteStalled(patience)),
    }
}

struct Connection<'a, O> {
    protocol: Protocol<Ticket>,
    inbox: &'a mut Inbox,
    /// Invocations for whose result the server waits.
    replies: FuturesUnordered<BoxFuture<'static, (String, Answer)>>,
    activity: Activity,
    opened: Option<O>,
    opened_at: Option<Instant>,
    accepted: bool,
}

/// A message to write.
enum ToSend {
    Call(OutgoingCall),
    Reply(String, Answer),
}

impl<O: FnOnce()> Connection<'_, O> {
    async fn drive<S>(
        &mut self,
        frames: &mut Frames<S>,
        to_writer: mpsc::Sender<String>,
        calls: &mut mpsc::Receiver<OutgoingCall>,
    ) -> CloseReason
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        // If the queue is full, other messages are on their way, and a ping is not needed.
        let send_if_room = |text| drop(to_writer.try_send(text));
        let mut reason = self.handle(Event::Start, send_if_room);
        while reason.is_none() {
            let deadline = self.protocol.deadline().unwrap_or_else(Instant::now);
            reason = tokio::select! {
                frame = frames.next(), if !self.inbox.is_full() => self.frame(frame),
                (permit, what) = next_to_send(&to_writer, calls, &mut self.replies) => {
                    let mut permit = Some(permit);
                    self.send(what, |text| if let Some(permit) = permit.take() { permit.send(text) })
                }
                () = self.inbox.make_room() => None,
                () = sleep_until(deadline) => {
                    // Silence means nothing while reads are paused or a large frame is being received.
                    if self.activity.changed() || self.inbox.is_full() {
                        self.handle(Event::Activity, send_if_room);
                    }
                    self.handle(Event::Tick, send_if_room)
                }
            };
        }
        reason.unwrap_or_else(|| CloseReason::Lost("unknown reason".to_owned()))
    }

    fn frame(&mut self, frame: Option<Result<Frame, SocketError>>) -> Option<CloseReason> {
        let no_send = |_| {};
        match frame {
            Some(Ok(Frame::Text(text))) => {
                self.activity.changed();
                self.handle(Event::Received(text.as_bytes()), no_send)
            }
            Some(Ok(Frame::Binary(bytes))) => {
                self.activity.changed();
                self.handle(Event::Received(&bytes), no_send)
            }
            Some(Ok(Frame::Ping(payload) | Frame::Pong(payload))) => {
                self.activity.discount(payload.len());
                None
            }
            Some(Ok(Frame::Close(frame))) => {
                let (code, text) = frame.map_or((1005, String::new()), |frame| {
                    (frame.code.into(), frame.reason.as_str().to_owned())
                });
                Some(CloseReason::SocketClosed { code, text })
            }
            Some(Ok(Frame::Frame(_))) => None,
            Some(Err(error @ (SocketError::Capacity(_) | SocketError::Utf8(_)))) => {
                Some(CloseReason::Unreadable(error.to_string()))
            }
            Some(Err(error)) => Some(CloseReason::Lost(error.to_string())),
            None => Some(CloseReason::Lost("connection closed by the server".to_owned())),
        }
    }

    fn send(&mut self, what: ToSend, send: impl FnMut(String)) -> Option<CloseReason> {
        match what {
            ToSend::Call(OutgoingCall { method, arguments, answer, ordered }) => {
                let ticket = Ticket { caller: answer, ordered };
                let call = Event::Call { method: &method, arguments: &arguments, ticket };
                self.handle(call, send)
            }
            ToSend::Reply(invocation_id, answer) => self.handle(Event::Reply { invocation_id, answer }, send),
        }
    }

    fn handle(&mut self, event: Event<'_, Ticket>, mut send: impl FnMut(String)) -> Option<CloseReason> {
        for action in self.protocol.on(event, Instant::now()) {
            match action {
                Action::Send(text) => send(text),
                Action::Opened => {
                    self.opened_at = Some(Instant::now());
                    if let Some(opened) = self.opened.take() {
                        opened();
                    }
                }
                Action::Invocation { target, arguments, invocation_id } => {
                    let reply = invocation_id.map(|id| self.expect_reply(id));
                    self.inbox.put(Incoming::Invocation(Invocation { target, arguments, reply }));
                }
                Action::Decline { invocation_id, reason } => {
                    self.replies.push(std::future::ready((invocation_id, Err(reason))).boxed());
                }
                Action::Answer(Ticket { caller, ordered }, result) => {
                    self.accepted |= result.is_ok();
                    match ordered {
                        Some(tag) => self.inbox.put(Incoming::Completion(Completion { tag, result, caller })),
                        // The caller may have stopped waiting.
                        None => drop(caller.send(result)),
                    }
                }
                Action::End(reason) => return Some(reason),
            }
        }
        None
    }

    fn expect_reply(&mut self, invocation_id: String) -> Reply {
        let (reply, answer) = Reply::new();
        let answer = answer.map(|answer| {
            let answer = answer.unwrap_or_else(|_| Err("client returned no result".to_owned()));
            (invocation_id, answer)
        });
        self.replies.push(answer.boxed());
        reply
    }
}

/// The next call or reply, and room for it in the writer's queue. Cancellation-safe.
async fn next_to_send<'a>(
    to_writer: &'a mpsc::Sender<String>,
    calls: &mut mpsc::Receiver<OutgoingCall>,
    replies: &mut FuturesUnordered<BoxFuture<'static, (String, Answer)>>,
) -> (mpsc::Permit<'a, String>, ToSend) {
    let Ok(permit) = to_writer.reserve().await else {
        // The writer has ended, which ends the connection elsewhere.
        return std::future::pending().await;
    };
    let what = tokio::select! {
        Some(call) = calls.recv() => ToSend::Call(call),
        Some((id, answer)) = replies.next() => ToSend::Reply(id, answer),
        // There are no callers and no pending replies.
        else => std::future::pending().await,
    };
    (permit, what)
}
