//! Members in one thread, with the simplest possible links: messages arrive at once, unless a member is cut off.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::future::Future;
use std::io::{self, Write};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant, UNIX_EPOCH};

use ::http::{Request, Response};
use api::raftpb::Message;
use api::{Rpc, Status, etcdserverpb as pb};
use bytes::Bytes;
use clock::{Clock, HandClock};
use config::{Config, Invocation, parse};
use disk::MemDisk;
use mainstay_server::stepped::{Beginning, Going, Setup, Stepped, Switches, Thresholds};
use peer::{Figures, Handler as _, RequestError, SnapshotForm, SnapshotOutcome, SnapshotSource, Target};
use prost::Message as _;
use replica::peer_links::{PeerLinks, ResponseFuture};
use telemetry::logging::{Format, Level, Logger};
use tokio::sync::oneshot;

/// An item in transit between members.
enum Letter {
    Messages {
        to: u64,
        messages: Vec<Message>,
    },
    Snapshot {
        message: Message,
        source: Box<dyn SnapshotSource>,
    },
    /// The receiver has reported which part of the snapshot it holds already.
    Opened {
        message: Message,
        source: Box<dyn SnapshotSource>,
        /// The answer of the receiver; `None` if it runs etcd.
        held: Option<Response<Bytes>>,
    },
    /// The receiver has taken the snapshot, or refused it.
    Taken {
        from: u64,
        to: u64,
        delivered: bool,
    },
    Request {
        to: u64,
        request: Request<Bytes>,
        answer: oneshot::Sender<Result<Response<Bytes>, RequestError>>,
    },
}

/// Callback that returns true if an arriving message is to be lost.
pub type Losing = Box<dyn FnMut(&Message) -> bool + Send>;

/// Callback that changes a snapshot in transit: its message and its pieces.
pub type Spoiling = Box<dyn FnMut(&mut Message, &mut Vec<io::Result<Bytes>>) + Send>;

/// Callback that answers a request in place of its receiver; `None` leaves the request to the receiver.
pub type Answering = Box<dyn FnMut(&Request<Bytes>) -> Option<Response<Bytes>> + Send>;

/// Items in transit, reachable members, and the trace of everything sent or logged.
#[derive(Default)]
pub struct Post {
    letters: VecDeque<Letter>,
    /// Time since when each member is reachable, by its own clock; the key is the member id.
    up: BTreeMap<u64, Instant>,
    /// Number of snapshot transfers to interrupt half way.
    pub breaks: u32,
    /// If set, snapshots are sent as databases, as between members that run etcd, and this callback may change each.
    pub databases: Option<Spoiling>,
    /// True if receivers of snapshots do not announce which formats they read, as those of earlier releases.
    pub formats_unannounced: bool,
    /// Formats of the snapshots that were sent in our own form, in order.
    pub formats: Vec<u8>,
    /// True if no member knows that another is connected, although messages arrive.
    pub strangers: bool,
    /// Releases that members report, by member id.
    pub releases: BTreeMap<u64, (u32, u32)>,
    /// Decides for each arriving message whether it is lost.
    pub loses: Option<Losing>,
    /// Answers requests outside of raft, in place of a member that runs etcd.
    pub answers: Option<Answering>,
    /// Reasons why snapshots were refused, in order.
    pub refused: Vec<String>,
    pub trace: Vec<String>,
}

type Shared = Arc<Mutex<Post>>;

fn lock(post: &Shared) -> MutexGuard<'_, Post> {
    post.lock().expect("nobody panicked")
}

struct Links {
    /// Number of the member's place, for the trace.
    number: u64,
    /// Id of the member, known once the member is open.
    id: Arc<AtomicU64>,
    post: Shared,
}

impl PeerLinks for Links {
    fn send(&self, messages: Vec<Message>) {
        let mut post = lock(&self.post);
        for message in messages {
            let to = message.to.unwrap_or(0);
            let _ = writeln!(post.trace_line(), "{:x}: {message:?}", self.number);
            post.letters.push_back(Letter::Messages { to, messages: vec![message] });
        }
    }

    fn set_members(&self, members: Vec<(u64, Vec<String>)>) {
        let _ = writeln!(lock(&self.post).trace_line(), "{:x}: members {members:?}", self.number);
    }

    fn send_snapshot(&self, message: Message, source: Box<dyn SnapshotSource>) {
        lock(&self.post).letters.push_back(Letter::Snapshot { message, source });
    }

    fn active_since(&self, id: u64) -> Option<Instant> {
        let post = lock(&self.post);
        let own = post.up.get(&self.id.load(Ordering::Relaxed)).filter(|_| !post.strangers)?;
        post.up.get(&id).map(|other| *other.max(own))
    }

    fn release(&self, id: u64) -> Option<(u32, u32)> {
        lock(&self.post).releases.get(&id).copied()
    }

    fn request(&self, target: Target, request: Request<Bytes>, _timeout: Duration) -> ResponseFuture {
        let (answer, answered) = oneshot::channel();
        if let Target::Member(to) = target {
            lock(&self.post).letters.push_back(Letter::Request { to, request, answer });
        }
        Box::pin(async move { answered.await.unwrap_or(Err(RequestError::Stopping)) })
    }

    fn figures(&self) -> Figures {
        Figures::default()
    }

    fn close(&self) {}
}

impl Post {
    fn trace_line(&mut self) -> &mut String {
        self.trace.push(String::new());
        self.trace.last_mut().expect("was just pushed")
    }
}

/// Writes a member's log lines to the trace.
struct Lines(u64, Shared);

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut post = lock(&self.1);
        let _ = write!(post.trace_line(), "{:x}: {}", self.0, String::from_utf8_lossy(line));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Size of a log segment in bytes, unless the place sets another.
const SEGMENT_BYTES: u32 = 16 << 10;

/// A place at which a member can run.
pub struct Place {
    config: Config,
    number: u64,
    pub disk: MemDisk,
    pub clock: Arc<HandClock>,
    pub member: Option<Stepped>,
    /// If true, the log gets no turns, as if the disk did not return from an fsync.
    pub log_held: bool,
    /// If true, the checkpointer gets no turns.
    pub checkpointer_held: bool,
    /// Test switches; take effect with the next start.
    pub switches: Switches,
    /// Size of a log segment in bytes; takes effect with the next start.
    pub segment_bytes: u32,
    /// Number of entries that one turn of the core applies at most; takes effect with the next start.
    pub applied_per_turn: u64,
    /// Number of items that one turn of the core visits for requests about the state; takes effect with the
    /// next start.
    pub questions_per_turn: u64,
    /// Time when the log last got a turn only to check its disk.
    looked: Instant,
    /// Identity and first entries of a member that joins others.
    beginning: Option<Beginning>,
    /// Id of the member, once it has run.
    pub id: u64,
}

/// The places of the members, and the links between them.
pub struct World {
    pub places: Vec<Place>,
    pub post: Shared,
}

/// Thresholds so low that a few dozen entries cause checkpoints and reclaim space.
pub const THRESHOLDS: Thresholds = Thresholds {
    checkpoint_log_bytes: 32 << 10,
    checkpoint_entries: 40,
    checkpoint_age: Duration::from_secs(60),
    checkpoint_quiet: Duration::from_secs(60),
    reclaim_dead_bytes: 24 << 10,
    applied_per_turn: 2048,
    applied_per_turn_unled: 2048,
    questions_per_turn: 2048,
    note_interval: Duration::from_secs(60),
};

fn config(number: usize, members: usize, options: &[&str]) -> Config {
    let url = |n: usize| format!("http://10.0.0.{n}:2380");
    let all: Vec<String> = (1..=members).map(|n| format!("m{n}={}", url(n))).collect();
    let mut args = vec![
        format!("--name=m{number}"),
        format!("--data-dir=/m{number}"),
        format!("--initial-cluster={}", all.join(",")),
        format!("--initial-advertise-peer-urls={}", url(number)),
        format!("--listen-peer-urls={}", url(number)),
        format!("--listen-client-urls=http://10.0.0.{number}:2379"),
        format!("--advertise-client-urls=http://10.0.0.{number}:2379"),
    ];
    args.extend(options.iter().map(|option| (*option).to_owned()));
    match parse(&args, &[]) {
        Ok(Invocation::Serve(parsed)) => parsed.config,
        other => panic!("{other:?}"),
    }
}

impl World {
    /// Creates a world with this many places, in which no member runs yet.
    pub fn new(members: usize, seed: u64, options: &[&str]) -> World {
        let epoch = Instant::now();
        let places = (1..=members)
            .map(|number| Place {
                config: config(number, members, options),
                number: number as u64,
                disk: MemDisk::new(seed ^ (number as u64) << 32),
                clock: HandClock::new(epoch, UNIX_EPOCH + Duration::from_secs(1_700_000_000)),
                member: None,
                log_held: false,
                checkpointer_held: false,
                switches: Switches::default(),
                segment_bytes: SEGMENT_BYTES,
                applied_per_turn: THRESHOLDS.applied_per_turn,
                questions_per_turn: THRESHOLDS.questions_per_turn,
                looked: epoch,
                beginning: None,
                id: 0,
            })
            .collect();
        World { places, post: Shared::default() }
    }

    /// Sets the options of a member; they take effect with its next start.
    pub fn set_options(&mut self, at: usize, options: &[&str]) {
        let members = self.places.len();
        self.places[at].config = config(at + 1, members, options);
    }

    /// Starts the members of all places in which none runs, and waits until they are ready to serve.
    pub fn start_all(&mut self) {
        for at in 0..self.places.len() {
            if self.places[at].member.is_none() {
                self.start(at).expect("starts");
            }
        }
        self.until("all are ready", |world| world.members().all(Stepped::is_ready));
    }

    /// Adds a place for a member that joins the others. Returns its index.
    pub fn add_place(&mut self, beginning: Beginning) -> usize {
        let number = self.places.len() + 1;
        let clock = HandClock::new(self.places[0].clock.now(), self.places[0].clock.wall());
        self.places.push(Place {
            config: config(number, number, &["--initial-cluster-state=existing"]),
            number: number as u64,
            disk: MemDisk::new(number as u64),
            clock,
            member: None,
            log_held: false,
            checkpointer_held: false,
            switches: Switches::default(),
            segment_bytes: SEGMENT_BYTES,
            applied_per_turn: THRESHOLDS.applied_per_turn,
            questions_per_turn: THRESHOLDS.questions_per_turn,
            looked: self.places[0].clock.now(),
            beginning: Some(beginning),
            id: 0,
        });
        number - 1
    }

    /// Creates a world with this many members that are ready to serve.
    pub fn started(members: usize, seed: u64, options: &[&str]) -> World {
        let mut world = World::new(members, seed, options);
        world.start_all();
        world
    }

    pub fn members(&self) -> impl Iterator<Item = &Stepped> {
        self.places.iter().filter_map(|place| place.member.as_ref())
    }

    pub fn member(&self, at: usize) -> &Stepped {
        self.places[at].member.as_ref().expect("runs")
    }

    /// Starts or restarts the member of a place.
    pub fn start(&mut self, at: usize) -> Result<(), String> {
        let place = &mut self.places[at];
        let lines = Box::new(Lines(place.number, Arc::clone(&self.post)));
        let clock = Clock::by_hand(&place.clock);
        // Some time passes between two runs of a process.
        place.clock.advance(Duration::from_millis(20));
        let id = Arc::new(AtomicU64::new(0));
        let links = Links { number: place.number, id: Arc::clone(&id), post: Arc::clone(&self.post) };
        let member = Stepped::open(Setup {
            config: place.config.clone(),
            disk: Arc::new(place.disk.clone()),
            logger: Arc::new(Logger::by(clock, Level::Info, Format::Json, vec![lines])),
            links: Arc::new(links),
            clock: Arc::clone(&place.clock),
            seed: place.number,
            segment_bytes: place.segment_bytes,
            thresholds: Thresholds {
                applied_per_turn: place.applied_per_turn,
                applied_per_turn_unled: place.applied_per_turn,
                questions_per_turn: place.questions_per_turn,
                ..THRESHOLDS
            },
            beginning: place.beginning.clone(),
            switches: place.switches,
        })
        .map_err(|error| error.to_string())?;
        place.id = member.identity().member_id;
        id.store(place.id, Ordering::Relaxed);
        place.member = Some(member);
        lock(&self.post).up.insert(place.id, place.clock.now());
        Ok(())
    }

    /// Ends the member as by a power failure: kill -9, and the loss of unsynced writes.
    pub fn crash(&mut self, at: usize) {
        self.kill(at);
        self.places[at].disk.crash();
    }

    /// Ends the member as by kill -9.
    pub fn kill(&mut self, at: usize) {
        let place = &mut self.places[at];
        place.member = None;
        lock(&self.post).up.remove(&place.id);
    }

    /// Cuts a member off, or reconnects it.
    pub fn cut(&mut self, at: usize, cut: bool) {
        let id = self.places[at].id;
        let mut post = lock(&self.post);
        if cut {
            post.up.remove(&id);
        } else {
            post.up.insert(id, self.places[at].clock.now());
        }
    }

    /// Does all work that is possible now. Returns true if there was any.
    ///
    /// # Errors
    ///
    /// The reason why a member cannot continue.
    pub fn work(&mut self) -> Result<bool, String> {
        let mut worked = false;
        for place in &mut self.places {
            let Some(member) = &mut place.member else { continue };
            if member.wants_turn() || member.next_turn().is_zero() {
                worked = true;
                if member.turn().map_err(|fatal| fatal.to_string())? == Going::Ended {
                    place.member = None;
                    continue;
                }
            }
            if member.log_wants_turn() && !place.log_held {
                worked = true;
                member.log_turn();
            }
            worked |= !place.checkpointer_held && member.checkpointer_step();
            worked |= member.hasher_step();
            worked |= member.catch_up_step();
            if member.wants_poll() {
                worked = true;
                member.poll_tasks();
            }
        }
        let letters = std::mem::take(&mut lock(&self.post).letters);
        worked |= !letters.is_empty();
        for letter in letters {
            self.deliver(letter);
        }
        Ok(worked)
    }

    fn reached(&self, id: u64) -> Option<&Stepped> {
        let up = lock(&self.post).up.contains_key(&id);
        self.places.iter().find(|place| up && place.id == id)?.member.as_ref()
    }

    fn deliver(&self, letter: Letter) {
        let post = Arc::clone(&self.post);
        match letter {
            Letter::Messages { to, mut messages } => {
                let from = messages.first().and_then(|message| message.from).unwrap_or(0);
                if let Some(loses) = &mut lock(&post).loses {
                    messages.retain(|message| !loses(message));
                }
                if let (Some(_), Some(member)) = (self.reached(from), self.reached(to)) {
                    member.peering().received(&mut messages);
                }
            }
            Letter::Request { to, request, answer } => {
                let answered = lock(&post).answers.as_mut().and_then(|answers| answers(&request));
                if let Some(answered) = answered {
                    let _ = answer.send(Ok(answered));
                    return;
                }
                let Some(member) = self.reached(to) else { return };
                let answered = member.peering().http(request);
                member.spawn(async move {
                    let _ = answer.send(Ok(answered.await));
                });
            }
            Letter::Snapshot { message, source } => {
                let (from, to) = (message.from.unwrap_or(0), message.to.unwrap_or(0));
                let Some(member) = self.reached(to) else {
                    lock(&post).letters.push_back(Letter::Taken { from, to, delivered: false });
                    return;
                };
                let request = Request::get("/mainstay/snapshot?format=2").body(Bytes::new()).expect("is one");
                let answered = member.peering().http(request);
                member.spawn(async move {
                    let mut answered = answered.await;
                    if lock(&post).formats_unannounced {
                        answered.headers_mut().remove(replica::transfer::FORMAT_HEADER);
                    }
                    let held = Some(answered).filter(|response| response.status() == 200);
                    let as_database = lock(&post).databases.is_some();
                    let held = held.filter(|_| !as_database);
                    lock(&post).letters.push_back(Letter::Opened { message, source, held });
                });
            }
            Letter::Opened { mut message, mut source, held } => {
                let (from, to) = (message.from.unwrap_or(0), message.to.unwrap_or(0));
                let opened = source.open(held).expect("opens");
                let form = opened.form;
                if let (SnapshotForm::Etcd, Some(snapshot)) = (form, &mut message.snapshot) {
                    snapshot.data = Some(opened.data);
                }
                let mut pieces: Vec<io::Result<Bytes>> = opened.pieces.collect();
                let mut office = lock(&post);
                if let (SnapshotForm::Own, Some(Ok(first))) = (form, pieces.first()) {
                    office.formats.extend(first.get(8));
                }
                if let Some(spoil) = &mut office.databases {
                    spoil(&mut message, &mut pieces);
                }
                if office.breaks > 0 {
                    office.breaks -= 1;
                    pieces.truncate(pieces.len() / 2);
                    pieces.push(Err(io::ErrorKind::ConnectionReset.into()));
                }
                drop(office);
                let Some(member) = self.reached(to) else {
                    lock(&post).letters.push_back(Letter::Taken { from, to, delivered: false });
                    return;
                };
                let taken = match form {
                    SnapshotForm::Own => member.receive_snapshot(message, pieces),
                    SnapshotForm::Etcd => member.receive_database(message, pieces),
                };
                member.spawn(async move {
                    let taken = taken.await;
                    let delivered = taken.is_ok();
                    lock(&post).refused.extend(taken.err().map(|error| error.to_string()));
                    lock(&post).letters.push_back(Letter::Taken { from, to, delivered });
                });
            }
            Letter::Taken { from, to, delivered } => {
                if let Some(member) = self.reached(from) {
                    let outcome =
                        if delivered { SnapshotOutcome::Delivered } else { SnapshotOutcome::Failed };
                    member.peering().snapshot_sent(to, outcome);
                }
            }
        }
    }

    /// Advances time to the next event. A log checks every second whether its disk has free space again.
    pub fn wait(&mut self) {
        for place in &mut self.places {
            let now = place.clock.now();
            if let Some(member) = &mut place.member
                && !place.log_held
                && now.saturating_duration_since(place.looked) >= Duration::from_secs(1)
            {
                place.looked = now;
                member.log_turn();
            }
        }
        let next = |place: &Place| {
            let member = place.member.as_ref()?;
            Some(member.next_timer().map_or(member.next_turn(), |timer| timer.min(member.next_turn())))
        };
        let step = self.places.iter().filter_map(next).min().unwrap_or_default();
        for place in &self.places {
            place.clock.advance(step.clamp(Duration::from_micros(100), Duration::from_millis(50)));
        }
    }

    /// Runs the world until the condition holds.
    pub fn until(&mut self, what: &str, mut is: impl FnMut(&World) -> bool) {
        for _ in 0..100_000 {
            if is(self) {
                return;
            }
            if !self.work().expect("all go on") {
                self.wait();
            }
        }
        let post = lock(&self.post);
        if let Some(path) = std::env::var_os("MAINSTAY_TRACE") {
            std::fs::write(path, post.trace.concat()).expect("is written");
        }
        let last = &post.trace[post.trace.len().saturating_sub(40)..];
        panic!("it never came so far that {what}:\n{}", last.concat());
    }

    /// Runs a future to its end, while the members work.
    pub fn run<T>(&mut self, future: impl Future<Output = T>) -> T {
        self.try_run(future).expect("all go on")
    }

    /// Runs a future like [`World::run`].
    ///
    /// # Errors
    ///
    /// The reason why a member cannot continue.
    pub fn try_run<T>(&mut self, future: impl Future<Output = T>) -> Result<T, String> {
        let mut future = Box::pin(future);
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..100_000 {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return Ok(output);
            }
            if !self.work()? {
                self.wait();
            }
        }
        panic!("the call never ended");
    }

    /// Makes a call at the member of a place.
    pub fn call<Q: prost::Message, A: prost::Message + Default>(
        &mut self,
        at: usize,
        rpc: Rpc,
        request: &Q,
    ) -> Result<A, Status> {
        let answer = self.member(at).call(rpc, request.encode_to_vec().into());
        self.run(answer).map(|bytes| A::decode(bytes).expect("decodes"))
    }

    /// Runs several calls concurrently. Returns their responses in the same order.
    pub fn run_all<T>(&mut self, futures: Vec<impl Future<Output = T>>) -> Vec<T> {
        let mut open: Vec<_> = futures.into_iter().map(|future| (Box::pin(future), None)).collect();
        self.run(std::future::poll_fn(move |context| {
            for (future, answer) in open.iter_mut().filter(|(_, answer)| answer.is_none()) {
                if let Poll::Ready(output) = future.as_mut().poll(context) {
                    *answer = Some(output);
                }
            }
            if open.iter().any(|(_, answer)| answer.is_none()) {
                return Poll::Pending;
            }
            Poll::Ready(open.iter_mut().filter_map(|(_, answer)| answer.take()).collect())
        }))
    }

    /// Transfers leadership to the member of a place, on a client's request.
    pub fn lead(&mut self, at: usize) {
        let leader = self.leader().expect("somebody leads");
        if leader != at {
            let request = pb::MoveLeaderRequest { target_id: self.places[at].id };
            let _: pb::MoveLeaderResponse =
                self.call(leader, Rpc::MaintenanceMoveLeader, &request).expect("leadership moves");
        }
        self.until("it leads", |world| world.leader() == Some(at));
    }

    /// Returns everything that was sent and logged so far, as text.
    pub fn text(&self) -> String {
        lock(&self.post).trace.concat()
    }

    /// Sets which messages are lost from now on; `None` for no losses.
    pub fn lose(&self, loses: Option<Losing>) {
        lock(&self.post).loses = loses;
    }

    pub fn put(&mut self, at: usize, key: &str, value: &[u8]) -> Result<pb::PutResponse, Status> {
        let request =
            pb::PutRequest { key: key.to_owned().into(), value: value.to_vec().into(), ..Default::default() };
        self.call(at, Rpc::KvPut, &request)
    }

    pub fn get(&mut self, at: usize, key: &str) -> Option<Vec<u8>> {
        let request = pb::RangeRequest { key: key.to_owned().into(), ..Default::default() };
        let found: pb::RangeResponse = self.call(at, Rpc::KvRange, &request).expect("answers");
        found.kvs.into_iter().next().map(|kv| kv.value.to_vec())
    }

    /// Returns the place of the leader.
    pub fn leader(&self) -> Option<usize> {
        self.places.iter().position(|place| place.member.as_ref().is_some_and(|m| m.probe().settled))
    }

    /// Does all work that is possible without advancing time.
    ///
    /// # Errors
    ///
    /// The reason why a member cannot continue.
    pub fn settle(&mut self) -> Result<(), String> {
        while self.work()? {}
        Ok(())
    }
}

/// Both ends of a watch stream.
#[derive(Clone, Default)]
pub struct Stream {
    requests: Rc<RefCell<VecDeque<Bytes>>>,
    /// True if the client reads no more responses.
    pub is_shut: Rc<Cell<bool>>,
    pub responses: Rc<RefCell<Vec<pb::WatchResponse>>>,
}

impl Stream {
    pub fn ask(&self, request: &pb::WatchRequest) {
        self.requests.borrow_mut().push_back(request.encode_to_vec().into());
    }
}

impl mainstay_server::stepped::Requests for Stream {
    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        match self.requests.borrow_mut().pop_front() {
            Some(request) => Poll::Ready(Ok(Some(request))),
            None => Poll::Pending,
        }
    }
}

impl mainstay_server::stepped::Responses for Stream {
    fn open(&mut self) -> Result<(), Status> {
        Ok(())
    }

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        if self.is_shut.get() { Poll::Pending } else { Poll::Ready(Ok(())) }
    }

    fn try_send(&mut self, message: Bytes) -> Result<(), front::TrySend> {
        self.responses.borrow_mut().push(pb::WatchResponse::decode(message).expect("decodes"));
        Ok(())
    }
}
