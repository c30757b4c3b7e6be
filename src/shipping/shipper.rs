//! The loop that ships for all steps of the runner.
//!
//! Everything that happens (a command, an answer, a change of the line, a time) wakes the loop, which then lets each
//! job's first step in turn ([`round_robin`](super::round_robin)) send one batch, until the window is full or nobody has anything to
//! send. What a step wants to send is its [`step_stream`](super::step_stream)'s to decide.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt as _;
use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::FuturesUnordered;
use hawser_signalr::{CallError, ConnectionStatus, HubClient};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Duration, Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::error;

use super::batch::BatchLimits;
use super::cap_watch::CapWatch;
use super::handle::{ShipperCommand, ShipperHandle, ShippingStatus};
use super::round_robin::{LaneId, RoundRobin};
use super::step_stream::{Next, Reaction, ShippedStep, StepStream};
use crate::masking::SecretStore;
use crate::settings::Settings;
use crate::settings::model::JobLogStreamSettings;
use crate::step::{StepStore, StoreError};

/// Calls that may be unanswered in all. A claim or a cancel answer waits behind no more than these.
const WINDOW: usize = 8;
const QUEUED_COMMANDS: usize = 64;
/// A connection that failed a call is not used again, unless it claims to live for this long.
const DISTRUST: Duration = Duration::from_secs(5);

#[derive(Debug, Clone)]
pub struct ShippingSettings {
    pub job_log_stream: JobLogStreamSettings,
    /// `Server.MaxMessageBytes`
    pub max_message_bytes: usize,
}

impl From<&Settings> for ShippingSettings {
    fn from(settings: &Settings) -> Self {
        Self {
            job_log_stream: settings.job_log_stream.clone(),
            max_message_bytes: settings.server.max_message_bytes,
        }
    }
}

#[derive(Debug)]
struct Answered {
    lane: LaneId,
    call: u64,
    generation: u64,
    answer: Result<(), CallError>,
}

#[derive(Debug)]
struct Removed {
    name: String,
    waiting: Vec<oneshot::Sender<()>>,
    result: Result<(), StoreError>,
}

/// Says that the shipper has ended, in whatever way.
struct SayStopped(Arc<watch::Sender<ShippingStatus>>);

impl Drop for SayStopped {
    fn drop(&mut self) {
        self.0.send_modify(|status| status.stopped = true);
    }
}

/// Ships for all steps of a runner.
#[derive(Debug)]
pub struct Shipper {
    line: HubClient,
    line_status: watch::Receiver<ConnectionStatus>,
    store: Arc<StepStore>,
    policy: BatchLimits,
    max_message_bytes: usize,
    secret_store: SecretStore,
    stop: CancellationToken,
    status: Arc<watch::Sender<ShippingStatus>>,
    lanes: BTreeMap<LaneId, StepStream>,
    turns: RoundRobin,
    answers: FuturesUnordered<BoxFuture<'static, Answered>>,
    removals: FuturesUnordered<BoxFuture<'static, Removed>>,
    last_id: u64,
    draining: bool,
    distrusted: Option<(u64, Instant)>,
    cap: CapWatch,
}

impl Shipper {
    /// Starts shipping, until the token is cancelled.
    pub fn start(
        line: HubClient,
        store: Arc<StepStore>,
        settings: &ShippingSettings,
        secret_store: SecretStore,
        stop: CancellationToken,
    ) -> ShipperHandle {
        let (commands, received) = mpsc::channel(QUEUED_COMMANDS);
        let status = Arc::new(watch::Sender::new(ShippingStatus::default()));
        let shipper = Self {
            line_status: line.status(),
            line,
            store,
            policy: BatchLimits::new(&settings.job_log_stream, settings.max_message_bytes),
            max_message_bytes: settings.max_message_bytes,
            secret_store,
            stop,
            status: Arc::clone(&status),
            lanes: BTreeMap::new(),
            turns: RoundRobin::default(),
            answers: FuturesUnordered::new(),
            removals: FuturesUnordered::new(),
            last_id: 0,
            draining: false,
            distrusted: None,
            cap: CapWatch::new(settings.job_log_stream.max_unsent_bytes, Instant::now()),
        };
        tokio::spawn(shipper.run(received));
        ShipperHandle { commands, status }
    }

    async fn run(mut self, mut commands: mpsc::Receiver<ShipperCommand>) {
        let _say_stopped = SayStopped(Arc::clone(&self.status));
        let stop = self.stop.clone();
        let mut line_open = true;
        loop {
            let wake = self.pump().await;
            self.report();
            tokio::select! {
                () = stop.cancelled() => break,
                Some(command) = commands.recv() => self.obey(command),
                Some(answered) = self.answers.next() => {
                    self.take_answer(answered);
                    // Those that came in the meantime too, so that the place is noted once for all of them.
                    while let Some(Some(answered)) = self.answers.next().now_or_never() {
                        self.take_answer(answered);
                    }
                    self.lanes.values_mut().for_each(StepStream::save);
                }
                Some(removed) = self.removals.next() => self.forget(removed),
                changed = self.line_status.changed(), if line_open => line_open = changed.is_ok(),
                () = until(wake) => {}
            }
        }
    }

    fn obey(&mut self, command: ShipperCommand) {
        match command {
            ShipperCommand::Add { step, done } => self.add(step, done),
            ShipperCommand::Concluded { name } => {
                if let Some(lane) = self.lanes.values_mut().find(|lane| lane.step.folder.name() == name) {
                    lane.conclude();
                }
            }
            ShipperCommand::Drain => {
                self.draining = true;
                self.lanes.values_mut().for_each(StepStream::start_over);
            }
        }
    }

    fn add(&mut self, step: ShippedStep, done: oneshot::Sender<()>) {
        if let Some(lane) = self.lanes.values_mut().find(|lane| lane.step.folder == step.folder) {
            lane.waiting.push(done);
            self.status.send_modify(|status| status.steps -= 1);
            return;
        }
        let id = self.new_id();
        self.turns.add(step.labels.as_ref().map(|labels| labels.job_id), step.sequence, id);
        let mut lane = StepStream::new(step, &self.secret_store, Instant::now());
        lane.waiting.push(done);
        self.lanes.insert(id, lane);
    }

    fn new_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// The connection that calls may be made on, if there is one; otherwise when to look again.
    fn connection(&mut self, now: Instant) -> Result<u64, Option<Instant>> {
        let ConnectionStatus::Connected { generation } = *self.line_status.borrow_and_update() else {
            return Err(None);
        };
        match self.distrusted {
            Some((failed, until)) if failed == generation && until > now => Err(Some(until)),
            _ => Ok(generation),
        }
    }

    /// Sends what can be sent now and returns when to look again, if time alone can change anything.
    async fn pump(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let mut wake = self.cap.keep_below(&mut self.lanes, now);
        for lane in self.lanes.values_mut() {
            lane.expire(now);
            wake = earlier(wake, lane.deadline());
        }
        let generation = match self.connection(now) {
            Ok(generation) => generation,
            Err(again) => return earlier(wake, again),
        };
        let mut unanswered: usize = self.lanes.values().map(StepStream::in_flight).sum();
        let mut idle = 0;
        while idle < self.turns.jobs() && unanswered < WINDOW {
            let Some(id) = self.turns.next() else { break };
            idle += 1;
            let call = self.new_id();
            let Some(lane) = self.lanes.get_mut(&id) else { continue };
            match lane.next(call, &self.policy, self.max_message_bytes, now) {
                Next::Send { method, arguments } => {
                    idle = 0;
                    unanswered += 1;
                    wake = earlier(wake, lane.deadline());
                    if !self.send(id, call, generation, &method, arguments).await {
                        break;
                    }
                }
                Next::At(time) => wake = earlier(wake, Some(time)),
                Next::Wait => {}
                Next::Gone => {
                    if let Some(lane) = self.take_out(id) {
                        let name = lane.step.folder.name();
                        self.forget(Removed { name, waiting: lane.waiting, result: Ok(()) });
                    }
                }
                Next::GiveUp { reason } => {
                    if let Some(lane) = self.take_out(id) {
                        self.store.set_aside(&lane.step.folder, &reason);
                        self.status.send_modify(|status| status.steps -= 1);
                    }
                }
            }
        }
        wake
    }

    /// Hands a call to the line. False when the line is closed or the shipper is to stop.
    async fn send(
        &mut self,
        lane: LaneId,
        call: u64,
        generation: u64,
        method: &str,
        arguments: String,
    ) -> bool {
        let started = tokio::select! {
            () = self.stop.cancelled() => return false,
            started = self.line.start(method, arguments) => started,
        };
        match started {
            Ok(pending) => {
                let answered = async move {
                    Answered { lane, call, generation, answer: pending.answer().await.map(drop) }
                };
                self.answers.push(answered.boxed());
                true
            }
            Err(error) => {
                self.take_answer(Answered { lane, call, generation, answer: Err(error) });
                false
            }
        }
    }

    fn take_answer(&mut self, Answered { lane: id, call, generation, answer }: Answered) {
        let now = Instant::now();
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        match lane.answered(call, answer, now) {
            Reaction::Nothing => {}
            Reaction::Disconnected => self.distrusted = Some((generation, now + DISTRUST)),
            Reaction::Finished => {
                let Some(StepStream { step, waiting, .. }) = self.take_out(id) else { return };
                let name = step.folder.name();
                // At once, and not when the disk gets to it: the server may push the same again from now on, and
                // that is new.
                match self.store.retire(&step.folder) {
                    Ok(gone) => {
                        let store = Arc::clone(&self.store);
                        let discarding = tokio::task::spawn_blocking(move || store.discard(&gone));
                        let removed = async move {
                            // A thread that fails has said so itself, and the next start removes the rest.
                            let _ = discarding.await;
                            Removed { name, waiting, result: Ok(()) }
                        };
                        self.removals.push(removed.boxed());
                    }
                    Err(error) => self.forget(Removed { name, waiting, result: Err(error) }),
                }
            }
        }
    }

    fn take_out(&mut self, id: LaneId) -> Option<StepStream> {
        self.turns.remove(id);
        self.lanes.remove(&id)
    }

    fn forget(&self, Removed { name, waiting, result }: Removed) {
        if let Err(error) = result {
            error!(step = name, "{error}; the next start will send its result again");
        }
        for done in waiting {
            // Nobody has to wait for it.
            let _ = done.send(());
        }
        self.status.send_modify(|status| status.steps -= 1);
    }

    /// Steps that have ended and cannot be shipped as things are.
    fn stuck(&self) -> usize {
        if !self.draining {
            return 0;
        }
        let of_queue = |queue: Vec<LaneId>| {
            let lanes: Vec<&StepStream> = queue.iter().filter_map(|id| self.lanes.get(id)).collect();
            let is_stuck = lanes.first().is_some_and(|first| first.is_stuck());
            if is_stuck { lanes.iter().filter(|lane| lane.has_outcome()).count() } else { 0 }
        };
        self.turns.queues().map(of_queue).sum()
    }

    fn report(&self) {
        let connected = matches!(*self.line_status.borrow(), ConnectionStatus::Connected { .. });
        let unanswered = self.lanes.values().map(StepStream::in_flight).sum();
        let buffered_bytes = self.lanes.values().map(StepStream::buffered).sum();
        let problem = self.lanes.values().find_map(|lane| Some((lane.step.folder.name(), lane.problem()?)));
        let stuck = self.stuck();
        self.status.send_if_modified(|status| {
            let new = ShippingStatus {
                steps: status.steps,
                stuck,
                stopped: status.stopped,
                unanswered,
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
