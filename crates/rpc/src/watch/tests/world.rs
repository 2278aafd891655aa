//! A member without a core: a store that the test writes to, its hub, and clients at the other end of the
//! streams.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use api::Status;
use api::etcdserverpb::watch_request::RequestUnion;
use api::etcdserverpb::{
    WatchCancelRequest, WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse,
};
use api::mvccpb::event::EventType;
use api::mvccpb::{Event, KeyValue};
use bytes::{Bytes, BytesMut};
use disk::MemDisk;
use front::{LocalBoxFuture, Messages, Room, TrySend};
use machine::{Alarms, Members, ReadError, Values};
use mvcc::{KeyRange, Location, Store, Value};
use numbers::{ClusterId, Index, LeaseId, MemberId, Revision, Seconds, Term};
use prost::Message as _;

use crate::watch::{Anyone, Hub, Permit, Requests, Responses};
use replica::shared::{
    Clients, CoreQueues, Data, Diagnostics, Limits, LogEventQueue, Member, Published, Shared,
};
use storage::Identity;
use storage::readers::{Readers, Reading, place_of};
use storage::values::Source;
use telemetry::callers::Caller;
use telemetry::metrics::{Metrics, MetricsDetail};

/// Values that repeat one byte, which depends on the location.
#[derive(Default)]
pub struct Repeated {
    /// True if the disk fails.
    pub broken: Cell<bool>,
    /// Number of values that were read.
    pub reads: Cell<usize>,
    /// True if no value is in memory. Each has to be fetched, which takes no time.
    pub absent: Cell<bool>,
    /// The values of this revision and of later ones are in memory all the same.
    pub at_hand_from: Cell<Option<Revision>>,
    readers: Option<Arc<Readers>>,
}

impl Values for Repeated {
    fn read_into(&self, value: Value, out: &mut BytesMut) -> Result<(), ReadError> {
        if self.broken.get() {
            return Err(ReadError::Failed("the disk is on fire".to_owned()));
        }
        self.reads.set(self.reads.get() + 1);
        out.resize(out.len() + value.len as usize, value.location.segment() as u8);
        Ok(())
    }
}

impl Source for Repeated {
    fn read_at_hand(&self, value: Value, out: &mut BytesMut) -> Result<bool, ReadError> {
        let is_new = |from: Revision| i64::from(value.location.offset()) >= from.0;
        let is_at_hand = !self.absent.get() || self.at_hand_from.get().is_some_and(is_new);
        if is_at_hand { self.read_into(value, out).map(|()| true) } else { Ok(false) }
    }

    fn fetch(&self, values: &[Value]) -> Option<Reading> {
        let arrived = values.iter().map(|value| {
            let mut out = BytesMut::new();
            let read = self.read_into(*value, &mut out);
            (place_of(*value), read.map(|()| out.freeze()))
        });
        self.readers.as_ref().map(|readers| readers.arrived(arrived.collect()))
    }
}

/// A member without a core.
pub struct World {
    pub store: Store,
    pub shared: Arc<Shared>,
    pub values: Rc<Repeated>,
    pub hub: Rc<Hub>,
    /// All events so far, with their previous values.
    pub history: Vec<Event>,
    live: BTreeMap<Vec<u8>, KeyValue>,
    leader: u64,
    /// Published revision through which removals may have taken everything.
    pub removed_through: Revision,
    /// Users and roles that are published with the state.
    pub auth: machine::auth::Auth,
    _log: log::Log,
}

impl World {
    pub fn new(request_bytes_max: usize, progress_interval: Duration) -> World {
        let options = log::Options { by_hand: true, ..log::Options::new("/log", ClusterId(1), MemberId(2)) };
        let disk = Arc::new(MemDisk::new(1));
        let (log, _) = log::Log::open(options, disk, Index(1), &mut |_| {}, Box::new(|_| {})).expect("opens");
        let mut store = Store::new();
        let limits = Limits {
            election_timeout: std::time::Duration::from_secs(1),
            lease_ttl_min: Seconds(2),
            request_bytes_max,
            txn_ops_max: 128,
            quota_bytes: None,
            request_timeout: Duration::from_secs(7),
            progress_interval,
            slow_request: Duration::from_secs(1),
            slow_apply: Duration::from_secs(1),
            times_calls: false,
        };
        let metrics = Arc::new(Metrics::new(&[], MetricsDetail::Basic));
        let state = published(&mut store, 2, Revision(-1));
        let identity = Identity { member_id: 2, cluster_id: 1 };
        let member = Member::new(identity, limits);
        let diagnostics = Diagnostics::new(metrics, member.clock.now());
        let (core, data) = (CoreQueues::new(&LogEventQueue::default(), 1), Data::new(log.values(), true));
        let shared = Shared::new(member, Clients::default(), state, core, data, diagnostics, 1);
        let shared = Arc::new(shared);
        let readers = Some(Readers::by_hand(log.values()));
        let values = Rc::new(Repeated { readers, ..Repeated::default() });
        let hub = Hub::new(Arc::clone(&shared), 0, values.clone());
        World {
            store,
            shared,
            values,
            hub,
            history: Vec::new(),
            live: BTreeMap::new(),
            leader: 2,
            removed_through: Revision(-1),
            auth: machine::auth::Auth::default(),
            _log: log,
        }
    }

    /// Runs one transaction: a put for each change with a value length, a deletion for each without.
    pub fn write(&mut self, changes: &[(&str, Option<usize>)]) {
        let mut writer = self.store.begin();
        let revision = writer.revision();
        for (key, value) in changes {
            let previous = self.live.get(key.as_bytes()).cloned();
            let kv = match value {
                Some(len) => {
                    let fill = (revision.0 % 251) as u32;
                    let location = Location::new(fill, revision.0 as u32);
                    writer.put(key.as_bytes(), Value { location, len: *len as u32, crc: 0 }, LeaseId::NONE);
                    let kv = KeyValue {
                        key: key.as_bytes().to_vec().into(),
                        create_revision: previous.as_ref().map_or(revision.0, |kv| kv.create_revision),
                        mod_revision: revision.0,
                        version: previous.as_ref().map_or(1, |kv| kv.version + 1),
                        value: vec![fill as u8; *len].into(),
                        lease: 0,
                    };
                    self.live.insert(key.as_bytes().to_vec(), kv.clone());
                    kv
                }
                None => {
                    if writer.delete_range(KeyRange::single(key.as_bytes()), |_| {}) == 0 {
                        continue;
                    }
                    self.live.remove(key.as_bytes());
                    KeyValue {
                        key: key.as_bytes().to_vec().into(),
                        mod_revision: revision.0,
                        ..KeyValue::default()
                    }
                }
            };
            let kind = if value.is_some() { EventType::Put } else { EventType::Delete };
            self.history.push(Event { r#type: kind as i32, kv: Some(kv), prev_kv: previous });
        }
        writer.finish();
    }

    /// Puts one key.
    pub fn put(&mut self, key: &str, value_len: usize) {
        self.write(&[(key, Some(value_len))]);
    }

    /// Publishes what was written, as the core does after a batch.
    pub fn publish(&mut self) {
        let mut state = published(&mut self.store, self.leader, self.removed_through);
        state.auth = Arc::new(self.auth.clone());
        self.shared.state.store(Arc::new(state));
    }

    /// Publishes, and lets the hub deliver everything.
    pub fn advance(&mut self) {
        self.publish();
        self.hub.advance();
        while self.work() {}
    }

    /// Removes versions that compactions made unreadable, as far as readers allow that, as if the time
    /// `later` had passed.
    pub fn remove(&mut self, later: Duration) {
        let compacted = self.store.compact_revision();
        let removable =
            self.shared.data.long_reads.removable(compacted, false, self.shared.member.clock.now() + later);
        self.removed_through = compacted;
        while !self.store.compact_step_through(removable.through, 1000, |_| {}).done {
            if removable.through < compacted {
                break;
            }
        }
        self.publish();
    }

    /// Runs one turn of the shard's own task. Returns true if there is more work.
    pub fn work(&self) -> bool {
        let woken = Arc::new(Flag(AtomicBool::new(false)));
        self.hub.poll_work(&mut Context::from_waker(&Waker::from(Arc::clone(&woken))));
        woken.0.load(Ordering::Relaxed)
    }

    /// Publishes a state without a leader.
    pub fn lose_leader(&mut self) {
        self.leader = 0;
        self.publish();
    }

    /// Returns a client with a stream. `credit` is the number of responses that the client's window allows.
    pub fn client(&self, credit: usize) -> Client {
        self.client_with(credit, false)
    }

    /// Does the same as [`World::client`]; with `needs_leader` the stream requires a leader.
    pub fn client_with(&self, credit: usize, needs_leader: bool) -> Client {
        self.client_permitted(credit, needs_leader, Box::new(Anyone))
    }

    /// Does the same as [`World::client_with`], with the rights of `permit`.
    pub fn client_permitted(&self, credit: usize, needs_leader: bool, permit: Box<dyn Permit>) -> Client {
        let pipe = Rc::new(Pipe::default());
        pipe.credit.set(credit);
        let closed = Box::pin(poll_closed(pipe.clone()));
        let hub = Rc::clone(&self.hub);
        let caller = Arc::<Caller>::default();
        let future = hub.serve(
            needs_leader,
            (Arc::clone(&caller), permit, None),
            Requester(pipe.clone()),
            Responder(pipe.clone()),
            closed,
        );
        let hub = Rc::clone(&self.hub);
        let flag = Arc::new(Flag(AtomicBool::new(true)));
        Client { pipe, hub, caller, future: Some(future), flag, result: None }
    }

    pub fn gauges(&self) -> (i64, i64, i64, i64) {
        let mvcc = &self.shared.diagnostics.metrics.mvcc;
        let of = |gauge: &telemetry::metrics::Gauge| gauge.value();
        (of(&mvcc.watch_streams), of(&mvcc.watchers), of(&mvcc.slow_watchers), of(&mvcc.pending_events))
    }
}

fn published(store: &mut Store, leader: u64, removed_through: Revision) -> Published {
    Published {
        view: store.publish(),
        applied_index: Index(1),
        applied_term: Term(3),
        commit_index: Index(1),
        leader,
        reads_local: true,
        alarms: Arc::new(Alarms::default()),
        members: Arc::new(Members::default()),
        auth: Arc::default(),
        in_use_bytes: 0,
        removed_through,
        is_wrong: false,
    }
}

/// Runs clients until all of them are idle. They read history, but receive no new changes.
pub fn settle<'a>(clients: impl IntoIterator<Item = &'a mut Client>) {
    let mut clients: Vec<_> = clients.into_iter().collect();
    for _ in 0..1_000_000 {
        let mut any = false;
        for client in &mut clients {
            any |= client.poll_if_woken();
        }
        any |= clients.first().is_some_and(|client| !client.hub.read_some());
        if !any {
            return;
        }
    }
    panic!("the clients never come to rest");
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The two directions of a stream.
#[derive(Default)]
pub struct Pipe {
    requests: RefCell<VecDeque<Bytes>>,
    half_closed: Cell<bool>,
    stopped: Cell<bool>,
    pub opened: Cell<bool>,
    pub credit: Cell<usize>,
    /// Number of bytes that the client's window allows; `None` for no limit. Responses are taken as long as
    /// there is `credit`, even if the window is used up, as by the buffer of a stream.
    pub window: Cell<Option<usize>>,
    /// Maximum number of bytes of the window that leave in the stream's next turns.
    pub soon_max: Cell<Option<usize>>,
    /// Bytes that wait at the connection, which are sent with [`Pipe::take`]; `None` if none ever wait.
    pub backlog: Cell<Option<usize>>,
    pub responses: RefCell<VecDeque<Bytes>>,
    /// Number of short responses in each call that offered several together.
    pub together: RefCell<Vec<usize>>,
    server: RefCell<Option<Waker>>,
    reader: RefCell<Option<Waker>>,
}

impl Pipe {
    fn wake_server(&self) {
        if let Some(waker) = self.server.take() {
            waker.wake();
        }
    }

    /// Returns the number of bytes that the client can take now.
    fn room(&self) -> Room {
        if let Some(backlog) = self.backlog.get() {
            let of = |max: usize| max.saturating_sub(backlog);
            return Room { soon: of(64 << 10), most: of(512 << 10) };
        }
        let most = self.window.get().unwrap_or(usize::MAX);
        Room { soon: self.soon_max.get().map_or(most, |soon| soon.min(most)), most }
    }

    /// Lets the connection send this many of the bytes that wait.
    pub fn take(&self, bytes: usize) {
        let left = self.backlog.get().unwrap_or(0).saturating_sub(bytes);
        self.backlog.set(Some(left));
        if left == 0 {
            self.wake_server();
        }
    }

    /// Sends a request.
    pub fn request(&self, union: RequestUnion) {
        self.raw(WatchRequest { request_union: Some(union) }.encode_to_vec().into());
    }

    /// Sends arbitrary bytes as a request.
    pub fn raw(&self, message: Bytes) {
        self.requests.borrow_mut().push_back(message);
        self.wake_server();
    }

    /// Waits for a response.
    pub async fn response(&self) -> WatchResponse {
        std::future::poll_fn(|cx| match self.responses.borrow_mut().pop_front() {
            Some(bytes) => Poll::Ready(WatchResponse::decode(bytes).expect("decodes")),
            None => {
                self.reader.replace(Some(cx.waker().clone()));
                Poll::Pending
            }
        })
        .await
    }
}

async fn poll_closed(pipe: Rc<Pipe>) {
    std::future::poll_fn(|_| if pipe.stopped.get() { Poll::Ready(()) } else { Poll::Pending }).await;
}

pub struct Requester(Rc<Pipe>);

impl Requests for Requester {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        if let Some(message) = self.0.requests.borrow_mut().pop_front() {
            return Poll::Ready(Ok(Some(message)));
        }
        if self.0.half_closed.get() {
            return Poll::Ready(Ok(None));
        }
        self.0.server.replace(Some(cx.waker().clone()));
        Poll::Pending
    }
}

pub struct Responder(Rc<Pipe>);

impl Responses for Responder {
    fn open(&mut self) -> Result<(), Status> {
        self.0.opened.set(true);
        Ok(())
    }

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        if self.0.credit.get() > 0 && self.0.backlog.get().is_none_or(|backlog| backlog < 512 << 10) {
            return Poll::Ready(Ok(()));
        }
        self.0.server.replace(Some(cx.waker().clone()));
        Poll::Pending
    }

    fn try_send(&mut self, message: Bytes) -> Result<(), TrySend> {
        let credit = self.0.credit.get();
        assert!(credit > 0, "sent without asking for room");
        self.0.credit.set(credit - 1);
        self.0.backlog.set(self.0.backlog.get().map(|backlog| backlog + message.len()));
        self.0.window.set(self.0.window.get().map(|window| window.saturating_sub(message.len())));
        self.0.responses.borrow_mut().push_back(message);
        if let Some(waker) = self.0.reader.take() {
            waker.wake();
        }
        Ok(())
    }

    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        if self.0.room().soon > 0 {
            return Poll::Ready(Ok(()));
        }
        self.0.server.replace(Some(cx.waker().clone()));
        Poll::Pending
    }

    fn room(&self) -> Box<dyn Fn() -> Room> {
        let pipe = Rc::clone(&self.0);
        Box::new(move || pipe.room())
    }

    /// Takes as many messages as the credit allows.
    fn try_send_messages(&mut self, mut messages: Messages) -> Result<(), TrySend<Messages>> {
        self.0.together.borrow_mut().push(messages.len());
        while self.0.credit.get() > 0
            && let Some(message) = messages.pop()
        {
            self.try_send(message).map_err(|_| TrySend::Closed)?;
        }
        if messages.is_empty() { Ok(()) } else { Err(TrySend::Full(messages)) }
    }
}

/// A client with a stream.
pub struct Client {
    pub pipe: Rc<Pipe>,
    hub: Rc<Hub>,
    /// Statistics of the client's address, which no other client shares.
    pub caller: Arc<Caller>,
    pub future: Option<LocalBoxFuture<Result<(), Status>>>,
    flag: Arc<Flag>,
    /// Result of the stream, once it has ended.
    pub result: Option<Result<(), Status>>,
}

impl Client {
    /// Returns the size in bytes of the future that serves the stream.
    pub fn future_bytes(&self) -> usize {
        self.future.as_ref().map_or(0, |future| size_of_val(&**future))
    }

    /// Polls the stream once, if it was woken.
    pub fn step(&mut self) -> bool {
        self.poll_if_woken()
    }

    fn poll_if_woken(&mut self) -> bool {
        let Some(future) = &mut self.future else { return false };
        if !self.flag.0.swap(false, Ordering::Relaxed) {
            return false;
        }
        let waker = Waker::from(Arc::clone(&self.flag));
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            self.result = Some(result);
            self.future = None;
        }
        true
    }

    pub fn create(&self, request: WatchCreateRequest) {
        self.pipe.request(RequestUnion::CreateRequest(request));
    }

    pub fn cancel(&self, watch_id: i64) {
        self.pipe.request(RequestUnion::CancelRequest(WatchCancelRequest { watch_id }));
    }

    pub fn ask_progress(&self) {
        self.pipe.request(RequestUnion::ProgressRequest(WatchProgressRequest {}));
    }

    /// Opens the client's window for more responses.
    pub fn allow(&self, credit: usize) {
        self.pipe.credit.set(self.pipe.credit.get().saturating_add(credit));
        self.pipe.wake_server();
    }

    /// Sets the number of bytes that the client's window allows.
    pub fn set_window(&self, bytes: usize) {
        self.pipe.window.set(Some(bytes));
        self.pipe.wake_server();
    }

    pub fn half_close(&self) {
        self.pipe.half_closed.set(true);
        self.pipe.wake_server();
    }

    /// Stops the server, from the point of view of this stream.
    pub fn stop_server(&self) {
        self.pipe.stopped.set(true);
        self.pipe.wake_server();
    }

    /// Returns all responses received since the last call.
    pub fn received(&self) -> Vec<WatchResponse> {
        let bytes = self.pipe.responses.take();
        bytes.into_iter().map(|bytes| WatchResponse::decode(bytes).expect("decodes")).collect()
    }
}

/// Runs one iteration of the shard's event loop between two checks of its sockets: every woken task has one
/// turn. Returns true if there is more work.
pub fn round(world: &World, clients: &mut [Client]) -> bool {
    let mut more = world.work();
    for client in clients {
        more |= client.step();
    }
    more
}

/// Returns a request to watch one key, or a range.
pub fn watch(key: &str, range_end: &str) -> WatchCreateRequest {
    WatchCreateRequest {
        key: key.as_bytes().to_vec().into(),
        range_end: range_end.as_bytes().to_vec().into(),
        ..WatchCreateRequest::default()
    }
}
