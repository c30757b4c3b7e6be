//! The loop that ships all steps of the runner.
//!
//! Every event (a command, an answer, a change of the connection, a timer) wakes the loop. It then lets the first step of each
//! job send one batch in turn ([`round_robin`](super::round_robin)), until the window is full or nothing is left to send.
//! The [`step_stream`](super::step_stream) of a step decides what to send.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt as _;
use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::FuturesUnordered;
use hawser_signalr::{CallError, ConnectionStatus, HubClient};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::error;

use super::batch::BatchLimits;
use super::cap_watch::CapWatch;
use super::handle::{ShipperCommand, ShipperHandle, ShippingStatus};
use super::round_robin::{RoundRobin, StreamId};
use super::step_stream::{Next, Reaction, ShippedStep, StepStream};
use super::window::Payload;
use crate::masking::SecretStore;
use crate::settings::model::JobLogStreamSettings;
use crate::step::StepStore;

/// The maximum of unanswered calls. A claim or the answer to a cancel waits for no more than these.
const WINDOW: usize = 8;
const QUEUED_COMMANDS: usize = 64;
/// How long to avoid a connection after a failed call on it.
const DISTRUST: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Answered {
    stream: StreamId,
    call: u64,
    generation: u64,
    answer: Result<(), CallError>,
}

/// Ships all steps of a runner.
#[derive(Debug)]
pub struct Shipper {
    hub: HubClient,
    connection_status: watch::Receiver<ConnectionStatus>,
    store: Arc<StepStore>,
    limits: BatchLimits,
    secret_store: SecretStore,
    stop: CancellationToken,
    status: Arc<watch::Sender<ShippingStatus>>,
    streams: BTreeMap<StreamId, StepStream>,
    turns: RoundRobin,
    answers: FuturesUnordered<BoxFuture<'static, Answered>>,
    /// Step folders that are being removed.
    removals: JoinSet<()>,
    last_id: u64,
    draining: bool,
    distrusted: Option<(u64, Instant)>,
    cap: CapWatch,
}

impl Shipper {
    /// Starts shipping, until the token is cancelled.
    pub fn start(
        hub: HubClient,
        store: Arc<StepStore>,
        settings: &JobLogStreamSettings,
        max_message_bytes: usize,
        secret_store: SecretStore,
        stop: CancellationToken,
    ) -> ShipperHandle {
        let (commands, received) = mpsc::channel(QUEUED_COMMANDS);
        let status = Arc::new(watch::Sender::new(ShippingStatus::default()));
        let shipper = Self {
            connection_status: hub.status(),
            hub,
            store,
            limits: BatchLimits::new(settings, max_message_bytes),
            secret_store,
            stop,
            status: Arc::clone(&status),
            streams: BTreeMap::new(),
            turns: RoundRobin::default(),
            answers: FuturesUnordered::new(),
            removals: JoinSet::new(),
            last_id: 0,
            draining: false,
            distrusted: None,
            cap: CapWatch::new(settings.max_unsent_bytes, Instant::now()),
        };
        tokio::spawn(shipper.run(received));
        ShipperHandle { commands, status }
    }

    async fn run(mut self, mut commands: mpsc::Receiver<ShipperCommand>) {
        let stop = self.stop.clone();
        let mut hub_open = true;
        loop {
            let wake = self.pump().await;
            self.report();
            tokio::select! {
                () = stop.cancelled() => break,
                Some(command) = commands.recv() => self.on_command(command),
                Some(answered) = self.answers.next() => {
                    self.take_answer(answered);
                    // All pending answers, so that the position is saved once.
                    while let Some(Some(answered)) = self.answers.next().now_or_never() {
                        self.take_answer(answered);
                    }
                    self.streams.values_mut().for_each(StepStream::save);
                }
                Some(_) = self.removals.join_next() => self.count_shipped(),
                changed = self.connection_status.changed(), if hub_open => hub_open = changed.is_ok(),
                () = until(wake) => {}
            }
        }
    }

    fn on_command(&mut self, command: ShipperCommand) {
        match command {
            ShipperCommand::Add(step) => self.add(step),
            ShipperCommand::Concluded(folder) => {
                if let Some(stream) = self.streams.values_mut().find(|stream| stream.step.folder == folder) {
                    stream.conclude();
                }
            }
            ShipperCommand::Drain => {
                self.draining = true;
                self.streams.values_mut().for_each(StepStream::start_over);
            }
        }
    }

    fn add(&mut self, step: ShippedStep) {
        if self.streams.values().any(|stream| stream.step.folder == step.folder) {
            return self.count_shipped();
        }
        let id = self.new_id();
        self.turns.add(step.labels.as_ref().map(|labels| labels.job_id), step.folder.sequence(), id);
        self.streams
            .insert(id, StepStream::new(step, self.limits.clone(), &self.secret_store, Instant::now()));
    }

    fn new_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// The generation of a usable connection, or when to check again.
    fn connection(&mut self, now: Instant) -> Result<u64, Option<Instant>> {
        let ConnectionStatus::Connected { generation } = *self.connection_status.borrow_and_update() else {
            return Err(None);
        };
        match self.distrusted {
            Some((failed, until)) if failed == generation && until > now => Err(Some(until)),
            _ => Ok(generation),
        }
    }

    /// Sends what can be sent now. Returns when to check again, if only time can change the result.
    async fn pump(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let mut wake = self.cap.keep_below(&mut self.streams, now);
        for stream in self.streams.values_mut() {
            stream.expire(now);
            wake = earlier(wake, stream.deadline());
        }
        let generation = match self.connection(now) {
            Ok(generation) => generation,
            Err(again) => return earlier(wake, again),
        };
        let mut unanswered: usize = self.streams.values().map(StepStream::in_flight).sum();
        let mut idle = 0;
        while idle < self.turns.jobs() && unanswered < WINDOW {
            let Some(id) = self.turns.next() else { break };
            idle += 1;
            let call = self.new_id();
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            match stream.next(call, now) {
                Next::Send { method, arguments, payload } => {
                    idle = 0;
                    unanswered += 1;
                    wake = earlier(wake, stream.deadline());
                    // Intake learns of acknowledged results in their order among the pushes.
                    let ordered = (payload == Payload::Result).then(|| stream.step.folder.sequence());
                    if !self.send((id, call, generation), &method, arguments, ordered).await {
                        break;
                    }
                }
                Next::At(time) => wake = earlier(wake, Some(time)),
                Next::Wait => {}
                Next::Gone => {
                    // The next step of the job has its turn now.
                    idle = 0;
                    if let Some(stream) = self.take_out(id) {
                        self.store.acknowledged(stream.step.folder.sequence());
                    }
                    self.count_shipped();
                }
                Next::GiveUp { reason } => {
                    idle = 0;
                    if let Some(stream) = self.take_out(id) {
                        self.store.set_aside(&stream.step.folder, &reason);
                        self.count_shipped();
                    }
                }
            }
        }
        wake
    }

    /// Starts a call. False if the client is closed or the shipper stops.
    async fn send(
        &mut self,
        (stream, call, generation): (StreamId, u64, u64),
        method: &str,
        arguments: String,
        ordered: Option<u64>,
    ) -> bool {
        let start = async {
            match ordered {
                Some(sequence) => self.hub.start_ordered(method, arguments, sequence).await,
                None => self.hub.start(method, arguments).await,
            }
        };
        let started = tokio::select! {
            () = self.stop.cancelled() => return false,
            started = start => started,
        };
        match started {
            Ok(pending) => {
                let answered = async move {
                    Answered { stream, call, generation, answer: pending.answer().await.map(drop) }
                };
                self.answers.push(answered.boxed());
                true
            }
            Err(error) => {
                self.take_answer(Answered { stream, call, generation, answer: Err(error) });
                false
            }
        }
    }

    fn take_answer(&mut self, Answered { stream: id, call, generation, answer }: Answered) {
        let now = Instant::now();
        let Some(stream) = self.streams.get_mut(&id) else { return };
        match stream.answered(call, answer, now) {
            Reaction::Nothing => {}
            Reaction::Disconnected => self.distrusted = Some((generation, now + DISTRUST)),
            Reaction::Finished => {
                let Some(StepStream { step, .. }) = self.take_out(id) else { return };
                match self.store.retire(&step.folder) {
                    Ok(gone) => {
                        let store = Arc::clone(&self.store);
                        self.removals.spawn_blocking(move || store.discard(&gone));
                    }
                    Err(error) => {
                        let step = step.folder.name();
                        error!(step, %error, "failed to remove shipped step, its result will be sent again after a restart");
                        self.count_shipped();
                    }
                }
            }
        }
    }

    fn take_out(&mut self, id: StreamId) -> Option<StepStream> {
        self.turns.remove(id);
        self.streams.remove(&id)
    }

    fn count_shipped(&self) {
        self.status.send_modify(|status| status.steps -= 1);
    }

    /// The number of ended steps that cannot be shipped at the moment.
    fn stuck(&self) -> usize {
        if !self.draining {
            return 0;
        }
        let of_queue = |queue: Vec<StreamId>| {
            let streams: Vec<&StepStream> = queue.iter().filter_map(|id| self.streams.get(id)).collect();
            let is_stuck = streams.first().is_some_and(|first| first.is_stuck());
            if is_stuck { streams.iter().filter(|stream| stream.has_outcome()).count() } else { 0 }
        };
        self.turns.queues().map(of_queue).sum()
    }

    fn report(&self) {
        let connected = matches!(*self.connection_status.borrow(), ConnectionStatus::Connected { .. });
        let buffered_bytes = self.streams.values().map(StepStream::buffered).sum();
        let problem =
            self.streams.values().find_map(|stream| Some((stream.step.folder.name(), stream.problem()?)));
        let stuck = self.stuck();
        self.status.send_if_modified(|status| {
            let new = ShippingStatus {
                steps: status.steps,
                stuck,
                buffered_bytes,
                connected,
                problem: problem.map(|(step, problem)| format!("{step}: {problem}")),
            };
            let changed = *status != new;
            *status = new;
            changed
        });
    }
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

async fn until(wake: Option<Instant>) {
    match wake {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
