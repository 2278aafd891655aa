//! The hub: a thread that watches keys and renews leases on the members for all clients together, so that
//! several clients can share one watch or one renewal. It has its own connections to the members. Shards (the
//! threads that serve clients) send it commands, and it puts responses into the outboxes of the clients'
//! streams.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use api::etcdserverpb::watch_request::RequestUnion;
use api::etcdserverpb::{
    LeaseKeepAliveRequest, LeaseKeepAliveResponse, RangeRequest, RangeResponse, ResponseHeader,
    WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse,
};
use api::{Code, Rpc, Status};
use bytes::Bytes;
use client::{CallOptions, Client, Receiver, Sender};
use http::{HeaderName, HeaderValue};
use prost::Message as _;
use stdx::{First, race};
use tokio::sync::mpsc::{self, OwnedPermit};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::{AbortHandle, LocalSet, spawn_local};
use tokio::time::{Instant as Moment, sleep, sleep_until, timeout, timeout_at};

use crate::background::random_share;
use crate::metrics::Metrics;
use crate::namespace::Namespace;
use crate::outbox::Outbox;
use crate::proximity::{CLASS, NOT_SERVING};
use crate::renewals::{Renewal, Renewals};
use crate::watches::{BroadcastId, Caller, Effect, Group, StreamId, Watches};

/// First and longest pause before a broken stream to a member is opened again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));
/// Shortest pause before a stream checks if another endpoint is preferred to its own, and the time that is added to
/// it at random, so that the streams of many proxies do not move to a member at the same time.
const MOVE_PAUSE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(10));
/// Returns the pause before a stream checks if another endpoint is preferred.
fn move_pause() -> Duration {
    MOVE_PAUSE.0 + MOVE_PAUSE.1.mul_f64(random_share())
}

/// Reason why a watch that does not stand is opened at a preferred endpoint.
const MOVES: Status = Status::new(Code::Unavailable, "another endpoint is preferred");
/// Pause before a watch tries again to move after the preferred endpoint has refused it, and the time that is added
/// to it at random.
const REFUSED_PAUSE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(60));
/// Time within which a preferred endpoint must have taken over a watch.
const TAKE_OVER_LIMIT: Duration = Duration::from_secs(5);
/// Interval at which a stream at an endpoint that does not serve looks for another one.
const ESCAPE_INTERVAL: Duration = Duration::from_millis(500);
/// Interval at which an unanswered progress request is repeated, because an etcd member leaves some of these
/// requests unanswered.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);
/// Timeout of the read that checks whether a caller may watch its keys.
const CHECK_LIMIT: Duration = Duration::from_secs(5);
/// Maximum number of renewals of all callers together that are in flight to members. Further ones wait. All
/// renewals can share one connection, and a member closes a connection on which thousands of small messages
/// wait.
const RENEWALS_MAX: usize = 1_000;
/// Capacity of the hub's command queue. Each client stream reserves one slot of the queue while it is open,
/// for the command that ends the stream. Commands and new streams wait while no slot is free.
const COMMANDS_MAX: usize = 1 << 18;
/// Time without renewals of a caller after which its stream to a member is closed. After the same time again,
/// its task ends.
const RENEWALS_IDLE: Duration = Duration::from_secs(60);

/// Command that a shard sends to the hub.
pub(crate) enum Command {
    /// Create a watch.
    Create {
        stream: StreamId,
        outbox: Arc<Outbox>,
        request: Box<WatchCreateRequest>,
        caller: Arc<Caller>,
        /// Used or dropped once the create request has been answered, which wakes the shard's task that waits
        /// for this.
        done: oneshot::Sender<()>,
    },
    /// Cancel the watch with this id. The sender is dropped once the watch is cancelled.
    Cancel(StreamId, i64, oneshot::Sender<()>),
    /// The client of this stream accepts responses again.
    Drained(StreamId),
    /// The client requests the progress of its watches. The sender is dropped once the request is recorded.
    AskProgress(StreamId, oneshot::Sender<()>),
    /// The client's stream of watches has ended.
    Leave(StreamId),
    /// Renew a lease on behalf of a caller.
    Renew(Renewal, Arc<Caller>),
    /// The client's stream of lease renewals, on which it acted as this caller, has ended.
    LeaveRenewals(StreamId, Arc<Caller>),
}

/// Handle of the hub. When the last handle is dropped, the hub's thread ends.
#[derive(Clone)]
pub(crate) struct Hub(mpsc::Sender<Command>);

/// A reserved slot of the hub's command queue, and the command that ends a client stream. Dropping this value
/// sends the command. Because of the reservation, sending never has to wait for space in the queue.
pub(crate) struct Leaving(Option<(OwnedPermit<Command>, Command)>);

impl Drop for Leaving {
    fn drop(&mut self) {
        if let Some((place, command)) = self.0.take() {
            place.send(command);
        }
    }
}

impl Hub {
    /// Starts the hub's thread. `client` is called on that thread. If a member does not answer a renewal
    /// within `renewal_limit`, the stream to this member is closed and another member is used.
    ///
    /// # Errors
    /// Returns an error if the thread or its runtime cannot be created.
    pub(crate) fn start(
        client: impl FnOnce() -> Client + Send + 'static,
        namespace: Option<Namespace>,
        metrics: Arc<Metrics>,
        renewal_limit: Duration,
    ) -> std::io::Result<Hub> {
        let (commands, taken) = mpsc::channel(COMMANDS_MAX);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("hub".to_owned()).spawn(move || {
            let local = LocalSet::new();
            local.block_on(&runtime, async move {
                let driver = Rc::new(Driver {
                    client: client(),
                    metrics,
                    renewal_limit,
                    watches: RefCell::new(Watches::new(namespace)),
                    tasks: RefCell::default(),
                    renewals: RefCell::default(),
                    places: Arc::new(Semaphore::new(RENEWALS_MAX)),
                });
                driver.run(taken).await;
            });
        })?;
        Ok(Hub(commands))
    }

    /// Sends a command as soon as the queue has space. Returns false if the hub has ended, which happens only
    /// when the process ends.
    pub(crate) async fn send(&self, command: Command) -> bool {
        self.0.send(command).await.is_ok()
    }

    /// Reserves a slot of the command queue for the end of a stream. The command `end` is sent when the
    /// returned value is dropped. Returns `None` if the hub has ended.
    pub(crate) async fn begin(&self, end: Command) -> Option<Leaving> {
        let place = self.0.clone().reserve_owned().await.ok()?;
        Some(Leaving(Some((place, end))))
    }
}

/// Running task of a broadcast (a watch on a member for one or more clients), and the signal that makes the
/// task request the watch's progress from the member.
struct Running {
    task: AbortHandle,
    asked: Rc<Notify>,
}

/// Watch of a broadcast on a member.
struct OpenWatch {
    sender: Sender,
    receiver: Receiver,
    endpoint: String,
    /// First revision of the watch; 0 if it began with the first event after it was opened.
    start_revision: i64,
}

struct Driver {
    client: Client,
    metrics: Arc<Metrics>,
    /// Time within which a member must send its next response while renewals are in flight.
    renewal_limit: Duration,
    watches: RefCell<Watches>,
    tasks: RefCell<HashMap<BroadcastId, Running>>,
    renewals: RefCell<HashMap<Arc<Caller>, Rc<Lane>>>,
    /// Permits for renewals: each renewal that is in flight to a member, of any caller, holds one.
    places: Arc<Semaphore>,
}

impl Driver {
    async fn run(self: Rc<Driver>, mut commands: mpsc::Receiver<Command>) {
        while let Some(command) = commands.recv().await {
            {
                let mut watches = self.watches.borrow_mut();
                match command {
                    Command::Create { stream, outbox, request, caller, done } => {
                        watches.create(stream, &outbox, &request, &caller, done);
                    }
                    Command::Cancel(stream, id, _done) => watches.cancel(stream, id),
                    Command::Drained(stream) => watches.drained(stream),
                    Command::AskProgress(stream, _done) => watches.ask_progress(stream),
                    Command::Leave(stream) => watches.leave(stream),
                    Command::Renew(renewal, caller) => self.renew(renewal, caller),
                    Command::LeaveRenewals(stream, caller) => self.leave_renewals(stream, &caller),
                }
            }
            self.carry_out();
        }
    }

    /// Carries out the effects that the state machine [`Watches`] has requested, and updates the metrics.
    fn carry_out(self: &Rc<Driver>) {
        let effects = self.watches.borrow_mut().take_effects();
        for effect in effects {
            match effect {
                Effect::Open(id, group) => {
                    let asked = Rc::new(Notify::new());
                    let driver = self.clone();
                    let task = spawn_local({
                        let asked = asked.clone();
                        async move { driver.keep_open(id, &group, &asked).await }
                    });
                    let running = Running { task: task.abort_handle(), asked };
                    self.tasks.borrow_mut().insert(id, running);
                }
                Effect::Close(id) => {
                    if let Some(running) = self.tasks.borrow_mut().remove(&id) {
                        // This code may run in the task that it aborts. Such a task ends only at its next
                        // await point, so the remaining effects are still carried out.
                        running.task.abort();
                    }
                }
                Effect::AskProgress(id) => {
                    if let Some(running) = self.tasks.borrow().get(&id) {
                        running.asked.notify_one();
                    }
                }
                Effect::Check(group) => {
                    let driver = self.clone();
                    spawn_local(async move { driver.check(group).await });
                }
            }
        }
        let mut watches = self.watches.borrow_mut();
        let coalescing = i64::try_from(watches.coalescing()).unwrap_or(i64::MAX);
        self.metrics.watchers_coalescing.store(coalescing, Relaxed);
        self.metrics.events_coalescing.fetch_add(std::mem::take(&mut watches.coalesced), Relaxed);
    }

    /// Keeps the watch of a broadcast open on a member, and opens it again whenever it breaks, until the
    /// broadcast has ended.
    async fn keep_open(self: &Rc<Driver>, id: BroadcastId, group: &Group, asked: &Notify) {
        let mut pause = PAUSE.0;
        loop {
            let began = Instant::now();
            let Err(status) = self.watch(id, group, asked).await else { return };
            let again = self.watches.borrow_mut().broken(id, &status);
            self.carry_out();
            if !again {
                return;
            }
            if began.elapsed() > PAUSE.1 {
                pause = PAUSE.0;
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Runs the watch of a broadcast on a member, and moves it to another one that is preferred. Returns `Ok` when
    /// the broadcast has ended.
    async fn watch(self: &Rc<Driver>, id: BroadcastId, group: &Group, asked: &Notify) -> Result<(), Status> {
        let Some(mut open) = self.open_watch(id, group).await? else { return Ok(()) };
        loop {
            match self.serve_watch(id, group, asked, open).await? {
                Some((next, responses)) => {
                    // The new watch may repeat events, which watchers skip that have got them.
                    for response in responses {
                        self.watches.borrow_mut().told(id, response);
                        self.carry_out();
                    }
                    open = next;
                }
                None => return Ok(()),
            }
            if self.watches.borrow().start_of(id).is_none() {
                return Ok(());
            }
        }
    }

    /// Opens a stream to a member and asks for the watch of a broadcast. Returns `None` if the broadcast has ended.
    async fn open_watch(&self, id: BroadcastId, group: &Group) -> Result<Option<OpenWatch>, Status> {
        let ((mut sender, receiver), endpoint) =
            self.client.forward_stream_somewhere(Rpc::Watch, &options_of(&group.caller)).await?;
        let Some(start_revision) = self.watches.borrow().start_of(id) else { return Ok(None) };
        let create = WatchCreateRequest {
            key: group.key.clone(),
            range_end: group.range_end.clone(),
            start_revision,
            progress_notify: true,
            prev_kv: group.wants_previous,
            ..WatchCreateRequest::default()
        };
        send(&mut sender, RequestUnion::CreateRequest(create)).await?;
        Ok(Some(OpenWatch { sender, receiver, endpoint, start_revision }))
    }

    /// Passes on what a member sends for the watch of a broadcast. Returns `None` when the broadcast has ended.
    /// Returns the watch on another member, with its first responses, as soon as that one has taken over.
    async fn serve_watch(
        self: &Rc<Driver>,
        id: BroadcastId,
        group: &Group,
        asked: &Notify,
        open: OpenWatch,
    ) -> Result<Option<(OpenWatch, Vec<WatchResponse>)>, Status> {
        let OpenWatch { mut sender, mut receiver, endpoint, .. } = open;
        let mut successor = std::pin::pin!(self.successor(id, group, asked, &endpoint));
        loop {
            let wants = self.watches.borrow().wants_progress(id);
            let tick = async {
                match wants {
                    true => {
                        _ = race(std::pin::pin!(asked.notified()), std::pin::pin!(sleep(PROGRESS_INTERVAL)))
                            .await
                    }
                    false => asked.notified().await,
                }
            };
            let next = {
                let message = std::pin::pin!(receiver.next());
                race(race(message, std::pin::pin!(tick)), successor.as_mut()).await
            };
            match next {
                First::Right(successor) => return successor.map(Some),
                First::Left(First::Left(message)) => {
                    let response = watch_response(message?)?;
                    self.watches.borrow_mut().told(id, response);
                    self.carry_out();
                    if self.watches.borrow().start_of(id).is_none() {
                        return Ok(None);
                    }
                }
                First::Left(First::Right(())) => {
                    send(&mut sender, RequestUnion::ProgressRequest(WatchProgressRequest {})).await?;
                }
            }
        }
    }

    /// Waits until another endpoint should be used than that of an open watch and has taken the watch over, and
    /// returns the watch there. The open watch goes on meanwhile, and also if the other endpoint refuses: events
    /// that nobody has got may be compacted there, or the token of the caller may have expired since the watch
    /// was opened.
    ///
    /// # Errors
    ///
    /// Returns an error if there is nothing to be lost by closing the watch first: its member has not confirmed it,
    /// or does not serve, so that the other one's refusal is the truth about it.
    async fn successor(
        &self,
        id: BroadcastId,
        group: &Group,
        asked: &Notify,
        endpoint: &str,
    ) -> Result<(OpenWatch, Vec<WatchResponse>), Status> {
        let mut due = Moment::now() + move_pause();
        loop {
            self.outranked(endpoint, due).await;
            if !self.watches.borrow().is_created(id) {
                return Err(MOVES);
            }
            // The revision at which the broadcast goes on rises with events only, so that without any it may be
            // compacted. The progress of the open watch makes it current.
            asked.notify_one();
            sleep(PROGRESS_INTERVAL).await;
            match timeout(TAKE_OVER_LIMIT, self.take_over(id, group, endpoint)).await {
                Ok(Ok(Some(taken))) => return Ok(taken),
                // It did not answer or its connection broke, so that nothing is known about the watch.
                Err(_) => {}
                Ok(Err(status)) if matches!(status.code, Code::Unavailable | Code::DeadlineExceeded) => {}
                Ok(_) if !self.serves(endpoint) => return Err(MOVES),
                Ok(_) => {
                    due = Moment::now() + REFUSED_PAUSE.0 + REFUSED_PAUSE.1.mul_f64(random_share());
                }
            }
            sleep(PAUSE.1).await;
        }
    }

    /// Opens the watch of a broadcast at a preferred endpoint. Returns the watch with its first responses, which
    /// show that it stands; `None` if that endpoint refuses it.
    async fn take_over(
        &self,
        id: BroadcastId,
        group: &Group,
        endpoint: &str,
    ) -> Result<Option<(OpenWatch, Vec<WatchResponse>)>, Status> {
        let Some(mut open) = self.open_watch(id, group).await? else { return Ok(None) };
        if open.endpoint == endpoint {
            return Ok(None);
        }
        let mut responses = Vec::new();
        loop {
            // A member confirms a watch that begins at a compacted revision, and then cancels it. So a response
            // after the confirmation is needed if the watch begins in the past.
            match timeout(PROGRESS_INTERVAL, open.receiver.next()).await {
                Err(_) => {
                    send(&mut open.sender, RequestUnion::ProgressRequest(WatchProgressRequest {})).await?
                }
                Ok(message) => {
                    let response = watch_response(message?)?;
                    if response.canceled {
                        return Ok(None);
                    }
                    // Nothing that is still to come can be compacted. Members tell of no progress before they
                    // reach it.
                    let revision = response.header.map_or(0, |header| header.revision);
                    let stands = !response.created || open.start_revision > revision;
                    responses.push(response);
                    if stands {
                        return Ok(Some((open, responses)));
                    }
                    send(&mut open.sender, RequestUnion::ProgressRequest(WatchProgressRequest {})).await?;
                }
            }
        }
    }

    /// Waits until another endpoint should be used than the one at which a stream was opened: at once if that one
    /// does not serve, else not before a moment. Round trips alone move no stream.
    async fn outranked(&self, endpoint: &str, mut due: Moment) {
        let Some(preference) = self.client.preference() else {
            return std::future::pending().await;
        };
        let mut changes = preference.changes();
        loop {
            changes.mark_unchanged();
            let serves = self.serves(endpoint);
            let is_due = due <= Moment::now();
            if (is_due || !serves) && self.client.is_outranked(endpoint, CLASS) {
                return;
            }
            if is_due {
                due = Moment::now() + move_pause();
            }
            // The one to use may not be connected yet, of which no change of ranks tells.
            let next = if serves { due } else { Moment::now() + ESCAPE_INTERVAL };
            let changed = async {
                if changes.changed().await.is_err() {
                    std::future::pending().await
                }
            };
            race(changed, sleep_until(next)).await;
        }
    }

    /// Returns true unless the questions to an endpoint have shown that it does not serve.
    fn serves(&self, endpoint: &str) -> bool {
        self.client.preference().is_none_or(|preference| preference.rank(endpoint) < NOT_SERVING)
    }

    /// Checks whether the caller of a group may watch the group's keys: reads the keys with the group's
    /// credentials, and retries until a member has answered.
    async fn check(self: &Rc<Driver>, group: Rc<Group>) {
        let request = RangeRequest {
            key: group.key.clone(),
            range_end: group.range_end.clone(),
            serializable: true,
            count_only: true,
            limit: 1,
            ..RangeRequest::default()
        };
        let message: Bytes = request.encode_to_vec().into();
        let outcome = loop {
            let options = options_of(&group.caller).within(CHECK_LIMIT);
            match self.client.forward(Rpc::KvRange, &options, message.clone()).await {
                Ok(answer) => {
                    break RangeResponse::decode(answer)
                        .map(|answer| answer.header.unwrap_or_default())
                        .map_err(|error| Status::with(Code::Internal, error.to_string()));
                }
                Err(status) if matches!(status.code, Code::Unavailable | Code::DeadlineExceeded) => {
                    sleep(PAUSE.1).await;
                }
                Err(status) => break Err(status),
            }
        };
        let outcome: Result<ResponseHeader, &Status> = match &outcome {
            Ok(header) => Ok(*header),
            Err(status) => Err(status),
        };
        self.watches.borrow_mut().checked(&group, outcome);
        self.carry_out();
    }

    fn renew(self: &Rc<Driver>, renewal: Renewal, caller: Arc<Caller>) {
        let mut all = self.renewals.borrow_mut();
        let lane = all.entry(caller).or_insert_with_key(|caller| {
            let lane = Rc::new(Lane::default());
            let (driver, caller, own) = (self.clone(), caller.clone(), lane.clone());
            spawn_local(async move { driver.keep_renewing(&caller, &own).await });
            lane
        });
        lane.renewals.borrow_mut().add(renewal);
        lane.changed.notify_one();
    }

    fn leave_renewals(&self, stream: StreamId, caller: &Caller) {
        if let Some(lane) = self.renewals.borrow().get(caller) {
            lane.renewals.borrow_mut().leave(stream);
        }
    }

    /// Renews leases on behalf of one caller, over one stream to a member at a time. Returns when the caller
    /// has requested no renewals for at least [`RENEWALS_IDLE`].
    async fn keep_renewing(&self, caller: &Caller, lane: &Lane) {
        let mut pause = PAUSE.0;
        loop {
            while lane.renewals.borrow().is_idle() {
                let added = timeout(RENEWALS_IDLE, lane.changed.notified()).await;
                // A renewal that was added between this check and the removal would be lost with the lane.
                // None can be added: this thread also handles the commands, and there is no await point in
                // between.
                if added.is_err() && lane.renewals.borrow().is_idle() {
                    self.renewals.borrow_mut().remove(caller);
                    return;
                }
            }
            let began = Instant::now();
            if let Err(status) = self.renew_on_stream(caller, lane).await {
                lane.renewals.borrow_mut().broken(&status);
                if began.elapsed() > PAUSE.1 {
                    pause = PAUSE.0;
                }
                sleep(pause).await;
                pause = (pause * 2).min(PAUSE.1);
            }
        }
    }

    /// Runs one stream of renewals to a member. Returns `Ok` if the stream was closed because it was idle or another
    /// endpoint is preferred, or if no stream could be opened; in that case the streams of the waiting clients were
    /// ended.
    async fn renew_on_stream(&self, caller: &Caller, lane: &Lane) -> Result<(), Status> {
        let ((mut sender, mut receiver), endpoint) =
            match self.client.forward_stream_somewhere(Rpc::LeaseKeepAlive, &options_of(caller)).await {
                Ok(open) => open,
                Err(status) => {
                    // Opening the stream took up to some seconds already, so do not let the clients wait for
                    // another attempt: end their streams.
                    lane.renewals.borrow_mut().end(&status);
                    return Ok(());
                }
            };
        let late = || Status::new(Code::Unavailable, "the member did not answer a renewal in time");
        // Start of the current wait for a response, to which `renewal_limit` applies: the time of the
        // member's last response, or the time at which a renewal was sent while none was in flight. `None` if
        // no renewal is in flight.
        let mut waits_since: Option<Moment> = None;
        let mut outranked = std::pin::pin!(self.outranked(&endpoint, Moment::now() + move_pause()));
        loop {
            if !lane.renewals.borrow().has_asked() {
                waits_since = None;
            }
            let next = {
                let answer = std::pin::pin!(async {
                    match waits_since {
                        None => receiver.next().await,
                        Some(since) => timeout_at(since + self.renewal_limit, receiver.next())
                            .await
                            .unwrap_or_else(|_| Err(late())),
                    }
                });
                let place = std::pin::pin!(timeout(RENEWALS_IDLE, self.place_for(lane)));
                race(race(answer, place), outranked.as_mut()).await
            };
            let next = match next {
                First::Left(next) => next,
                // Renewals in flight are sent again at the preferred endpoint: a second one does no harm, and the
                // answer to the first may never come.
                First::Right(()) => {
                    lane.renewals.borrow_mut().moved();
                    sleep(PAUSE.0).await;
                    return Ok(());
                }
            };
            match next {
                First::Left(answer) => {
                    let answer =
                        answer?.ok_or(Status::new(Code::Unavailable, "the member ended the renewals"))?;
                    let response = LeaseKeepAliveResponse::decode(answer.clone()).map_err(|error| {
                        let text = format!("grpc: failed to unmarshal the received message: {error}");
                        Status::with(Code::Internal, text)
                    })?;
                    lane.renewals.borrow_mut().answered(response.id, &answer);
                    waits_since = Some(Moment::now());
                }
                First::Right(Ok(place)) => {
                    let lease = lane.renewals.borrow_mut().next(place);
                    if let Some(id) = lease {
                        let request = LeaseKeepAliveRequest { id }.encode_to_vec().into();
                        let sent = timeout(self.renewal_limit, sender.send(request)).await;
                        sent.unwrap_or_else(|_| Err(late()))?;
                        waits_since.get_or_insert_with(Moment::now);
                    }
                }
                First::Right(Err(_)) if lane.renewals.borrow().is_idle() => return Ok(()),
                First::Right(Err(_)) => {}
            }
        }
    }

    /// Waits until this caller has a renewal to send and the limits allow it, and returns the permit for the
    /// renewal.
    async fn place_for(&self, lane: &Lane) -> OwnedSemaphorePermit {
        loop {
            while !lane.renewals.borrow().has_more() {
                lane.changed.notified().await;
            }
            if let Ok(place) = self.places.clone().acquire_owned().await {
                return place;
            }
        }
    }
}

/// Renewals of one caller, and the signal that wakes the task which sends these renewals to a member.
#[derive(Default)]
struct Lane {
    renewals: RefCell<Renewals>,
    changed: Notify,
}

/// Returns the options for calls to members on behalf of a caller.
fn options_of(caller: &Caller) -> CallOptions {
    let mut options = CallOptions::default();
    for (name, value) in &caller.credentials {
        if let Ok(mut value) = HeaderValue::from_maybe_shared(value.clone()) {
            value.set_sensitive(true);
            options.metadata.push((HeaderName::from_static(name), value));
        }
    }
    if caller.requires_leader {
        options = options.with(HeaderName::from_static("hasleader"), HeaderValue::from_static("true"));
    }
    options
}

fn watch_response(message: Option<Bytes>) -> Result<WatchResponse, Status> {
    let message = message.ok_or(Status::new(Code::Unavailable, "the member ended the watches"))?;
    WatchResponse::decode(message).map_err(|error| {
        let text = format!("grpc: failed to unmarshal the received message: {error}");
        Status::with(Code::Internal, text)
    })
}

async fn send(sender: &mut Sender, request: RequestUnion) -> Result<(), Status> {
    sender.send(WatchRequest { request_union: Some(request) }.encode_to_vec().into()).await
}
