//! Checks that the processor time and the memory for a request to a single-member cluster are limited by the
//! sizes of request and response. The measured work includes the member's connection handling, raft and the
//! log.
//!
//! The time budget is the sum of a time for each byte of request and response, a time for each key that the
//! request may visit, and a constant. The memory budget is a sum of the same kind. Work that grows faster
//! exceeds the budget.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant, UNIX_EPOCH};

use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::watch_request::RequestUnion;
use api::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
    WatchCreateRequest, WatchProgressRequest, WatchRequest,
};
use api::{Rpc, Status, raftpb};
use bytes::Bytes;
use clock::{Clock, HandClock};
use config::{Invocation, parse};
use disk::MemDisk;
use front::TrySend;
use peer::{Figures, RequestError, SnapshotSource, Target};
use prost::Message as _;
use replica::peer_links::{PeerLinks, ResponseFuture};
use server::stepped::{Requests, Responses, Setup, Stepped, Switches, Thresholds};
use telemetry::logging::{Format, Level, Logger};

use crate::meter::{Cost, measure};
use crate::script::{Scribe, Script};

/// Number of keys in the member's store.
const KEYS: usize = 400;
const VALUE_BYTES: usize = 300;
/// Maximum number of requests that one input sends.
const REQUESTS_MAX: usize = 10;
const OPS_MAX: u8 = 24;
const WATCHES_MAX: usize = 4096;

/// Peer links of a member without peers.
struct Nobody;

impl PeerLinks for Nobody {
    fn send(&self, _: Vec<raftpb::Message>) {}

    fn set_members(&self, _: Vec<(u64, Vec<String>)>) {}

    fn send_snapshot(&self, _: raftpb::Message, _: Box<dyn SnapshotSource>) {}

    fn active_since(&self, _: u64) -> Option<Instant> {
        None
    }

    fn release(&self, _id: u64) -> Option<(u32, u32)> {
        None
    }

    fn request(&self, _: Target, _: http::Request<Bytes>, _: Duration) -> ResponseFuture {
        Box::pin(async { Err(RequestError::Stopping) })
    }

    fn figures(&self) -> Figures {
        Figures::default()
    }

    fn close(&self) {}
}

/// The only member of a cluster, and the clock that the test sets.
struct World {
    member: Stepped,
    clock: Arc<HandClock>,
}

impl World {
    fn new() -> World {
        let clock = HandClock::new(Instant::now(), UNIX_EPOCH + Duration::from_secs(1_700_000_000));
        let args = ["--name=m", "--data-dir=/m", "--initial-cluster=m=http://10.0.0.1:2380"];
        let more =
            ["--initial-advertise-peer-urls=http://10.0.0.1:2380", "--listen-peer-urls=http://10.0.0.1:2380"];
        let args: Vec<String> = args.iter().chain(&more).map(|arg| (*arg).to_owned()).collect();
        let Ok(Invocation::Serve(parsed)) = parse(&args, &[]) else { panic!("the options are sound") };
        let logger = Logger::by(Clock::by_hand(&clock), Level::Error, Format::Json, Vec::new());
        let member = Stepped::open(Setup {
            config: parsed.config,
            disk: Arc::new(MemDisk::new(1)),
            logger: Arc::new(logger),
            links: Arc::new(Nobody),
            clock: Arc::clone(&clock),
            seed: 1,
            segment_bytes: 4 << 20,
            thresholds: Thresholds::of(100_000, 4 << 20),
            beginning: None,
            switches: Switches::default(),
        });
        let mut world = World { member: member.expect("opens"), clock };
        for _ in 0..10_000 {
            if world.member.is_ready() {
                break;
            }
            world.go_on();
        }
        for first in (0..KEYS).step_by(100) {
            let puts = (first..first + 100).map(|n| op(Request::RequestPut(put(n, VALUE_BYTES))));
            let request = TxnRequest { success: puts.collect(), ..TxnRequest::default() };
            world.call(Rpc::KvTxn, request.encode_to_vec().into()).expect("is taken");
        }
        world
    }

    /// Lets the member do pending work, in at most four rounds. If there is none, advances the clock.
    fn go_on(&mut self) {
        let mut any = false;
        for _ in 0..4 {
            if self.member.wants_turn() || self.member.next_turn().is_zero() {
                self.member.turn().expect("the member goes on");
                any = true;
            }
            if self.member.log_wants_turn() {
                self.member.log_turn();
                any = true;
            }
            any |= self.member.checkpointer_step() | self.member.hasher_step();
            if self.member.wants_poll() {
                self.member.poll_tasks();
                any = true;
            }
        }
        if !any {
            let timer = self.member.next_timer().unwrap_or(Duration::from_millis(10));
            self.clock.advance(
                timer
                    .min(self.member.next_turn())
                    .clamp(Duration::from_micros(10), Duration::from_millis(10)),
            );
        }
    }

    fn run<T>(&mut self, future: impl Future<Output = T>) -> T {
        let mut future = Box::pin(future);
        for _ in 0..1_000_000 {
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return output;
            }
            self.go_on();
        }
        panic!("a call never ended");
    }

    fn call(&mut self, rpc: Rpc, request: Bytes) -> Result<Bytes, Status> {
        let call = self.member.call(rpc, request);
        self.run(call)
    }
}

fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

fn key(n: usize) -> Bytes {
    format!("k{n:05}").into()
}

fn put(n: usize, value_bytes: usize) -> PutRequest {
    PutRequest { key: key(n), value: vec![7; value_bytes].into(), ..PutRequest::default() }
}

/// Generates a range from the script: one key, some keys, or all keys.
fn keys(script: &mut Script<'_>) -> (Bytes, Bytes) {
    let first = usize::from(script.u16()) % (KEYS + 50);
    match script.below(4) {
        0 => (key(first), Bytes::new()),
        1 => (key(first), key(first + usize::from(script.u8()))),
        2 => (key(first), Bytes::from_static(b"\0")),
        _ => (Bytes::from_static(b"\0"), Bytes::from_static(b"\0")),
    }
}

fn range(script: &mut Script<'_>) -> RangeRequest {
    let (key, range_end) = keys(script);
    let flags = script.u8();
    let some = |set: bool, number: i64| if set { number } else { 0 };
    let (limit, revision) = (i64::from(script.u8()), i64::from(script.u8()));
    RangeRequest {
        key,
        range_end,
        limit: some(flags & 1 > 0, limit),
        revision: some(flags & 2 > 0, revision),
        sort_order: i32::from(flags >> 2) % 3,
        sort_target: i32::from(script.below(5)),
        serializable: flags & 16 > 0,
        keys_only: flags & 32 > 0,
        count_only: flags & 64 > 0,
        min_mod_revision: some(flags & 128 > 0, revision),
        ..RangeRequest::default()
    }
}

fn operation(script: &mut Script<'_>) -> Request {
    match script.below(4) {
        0 => {
            let (n, len) = (usize::from(script.u16()) % KEYS, usize::from(script.u16()) % 4000);
            Request::RequestPut(PutRequest { prev_kv: script.flip(), ..put(n, len) })
        }
        1 => {
            let (key, range_end) = keys(script);
            Request::RequestDeleteRange(DeleteRangeRequest { key, range_end, prev_kv: script.flip() })
        }
        _ => Request::RequestRange(range(script)),
    }
}

/// Panics if the work cost more than its budget, which depends on the number of bytes of request and
/// response, and on the number of keys that the work may visit (`looks`).
fn hold(what: &str, cost: Cost, bytes: usize, looks: usize) {
    let cpu_max = Duration::from_millis(150) + Duration::from_nanos((300 * bytes + 4000 * looks) as u64);
    assert!(cost.cpu <= cpu_max, "{what} took {:?} for {bytes} bytes and {looks} keys", cost.cpu);
    let held_max = (16 << 20) + 8 * bytes + 512 * looks;
    assert!(
        cost.peak_bytes <= held_max,
        "{what} held {} bytes for {bytes} and {looks} keys",
        cost.peak_bytes
    );
}

/// Both ends of a watch stream.
#[derive(Clone, Default)]
struct Stream {
    requests: Rc<RefCell<VecDeque<Bytes>>>,
    /// Number of responses, and their total size in bytes.
    heard: Rc<RefCell<(usize, usize)>>,
}

impl Requests for Stream {
    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        match self.requests.borrow_mut().pop_front() {
            Some(request) => Poll::Ready(Ok(Some(request))),
            None => Poll::Pending,
        }
    }
}

impl Responses for Stream {
    fn open(&mut self) -> Result<(), Status> {
        Ok(())
    }

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn try_send(&mut self, message: Bytes) -> Result<(), TrySend> {
        let mut heard = self.heard.borrow_mut();
        *heard = (heard.0 + 1, heard.1 + message.len());
        Ok(())
    }
}

/// Opens a stream with many watches, and writes keys that they watch.
fn watches(world: &mut World, script: &mut Script<'_>) {
    let (shape, flags) = (script.below(4), script.u8());
    let count = (1usize << script.below(13)).min(WATCHES_MAX);
    let begin = i64::from(script.u8());
    let writes: Vec<Request> = (0..=script.below(4)).map(|_| operation(script)).collect();
    let stream = Stream::default();
    let mut asked = 0;
    for n in 0..count {
        let (first, end) = match shape {
            0 => (key(1), Bytes::new()),
            1 => (key(n % KEYS), key(n % KEYS + 1)),
            2 => (key(n % KEYS), Bytes::from_static(b"\0")),
            _ => (key(KEYS / 2 - n % (KEYS / 2)), key(KEYS / 2 + n)),
        };
        let create = WatchCreateRequest {
            key: first,
            range_end: end,
            start_revision: if flags & 1 > 0 { begin } else { 0 },
            prev_kv: flags & 2 > 0,
            fragment: flags & 4 > 0,
            progress_notify: flags & 8 > 0,
            ..WatchCreateRequest::default()
        };
        let request =
            WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }.encode_to_vec();
        asked += request.len();
        stream.requests.borrow_mut().push_back(request.into());
    }
    let progress =
        WatchRequest { request_union: Some(RequestUnion::ProgressRequest(WatchProgressRequest {})) };
    stream.requests.borrow_mut().push_back(progress.encode_to_vec().into());
    let (_, cost) = measure(|| {
        let mut serving =
            world.member.watch(false, stream.clone(), stream.clone(), std::future::pending::<()>());
        let mut rest = |world: &mut World| {
            // Lets the member work until 20 rounds have brought no further response.
            let mut quiet = 0;
            while quiet < 20 {
                let before = *stream.heard.borrow();
                let _ = Pin::new(&mut serving).poll(&mut Context::from_waker(Waker::noop()));
                world.go_on();
                quiet = if *stream.heard.borrow() == before { quiet + 1 } else { 0 };
            }
        };
        rest(world);
        let request = TxnRequest { success: writes.into_iter().map(op).collect(), ..TxnRequest::default() };
        let _ = world.call(Rpc::KvTxn, request.encode_to_vec().into());
        rest(world);
        drop(serving);
    });
    let (responses, heard) = *stream.heard.borrow();
    // Watches that begin in the past read the history. One read serves up to 256 watches; the budget allows
    // one for each 64.
    hold("a stream of watches", cost, asked + heard, 8 * (count + responses) + KEYS * (1 + count / 64));
}

/// Fuzz target: sends the requests of a script, and checks the cost of each.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let mut world = World::new();
    for _ in 0..REQUESTS_MAX {
        if script.is_done() {
            break;
        }
        let (rpc, request, ops) = match script.below(6) {
            0 => (Rpc::KvRange, range(&mut script).encode_to_vec(), 1),
            1 => (Rpc::KvPut, put(usize::from(script.u16()) % KEYS, 1000).encode_to_vec(), 1),
            2 => {
                let (key, range_end) = keys(&mut script);
                let delete = DeleteRangeRequest { key, range_end, prev_kv: script.flip() };
                (Rpc::KvDeleteRange, delete.encode_to_vec(), 1)
            }
            3 => {
                let count = script.below(OPS_MAX);
                let success: Vec<_> = (0..count).map(|_| op(operation(&mut script))).collect();
                (
                    Rpc::KvTxn,
                    TxnRequest { success, ..TxnRequest::default() }.encode_to_vec(),
                    usize::from(count) + 1,
                )
            }
            4 => {
                let revision = i64::from(script.u8());
                (Rpc::KvCompact, CompactionRequest { revision, physical: script.flip() }.encode_to_vec(), 1)
            }
            _ => {
                watches(&mut world, &mut script);
                continue;
            }
        };
        let asked = request.len();
        let (answered, cost) = measure(|| world.call(rpc, request.into()).map_or(0, |answer| answer.len()));
        // A request may visit old versions of keys too, so allow four visits per key and operation.
        hold(rpc.path(), cost, asked + answered, ops * 4 * KEYS);
    }
}

/// Returns ranges in every order, transactions of many ranges, and streams of many watches.
pub fn seeds() -> Vec<Vec<u8>> {
    let all =
        |scribe: Scribe, flags: u8, target: u8| scribe.raw(&[0, 0]).u8(3).u8(flags).u8(7).u8(3).u8(target);
    let sorted =
        (0..5).fold(Scribe::default(), |scribe, target| all(scribe.u8(0), 4 << (target % 2), target));
    let ranges = (0..20).fold(Scribe::default().u8(3).u8(20), |scribe, n| all(scribe.u8(2), n << 2, n % 5));
    let deletes = Scribe::default().u8(3).u8(2).u8(1).raw(&[0, 0]).u8(3).u8(1);
    let watch = |shape: u8, flags: u8| {
        let scribe = Scribe::default().u8(5).u8(shape).u8(flags).u8(12).u8(2).u8(1);
        let puts = (0..2u8).fold(scribe, |scribe, n| scribe.u8(0).raw(&[n, 0, 100, 0]).u8(1));
        puts.u8(4).u8(3).u8(1).done()
    };
    let mut seeds = vec![sorted.done(), ranges.done(), all(deletes.u8(2), 0, 0).done()];
    seeds.extend([(0, 0), (0, 1), (1, 3), (2, 15), (3, 1)].map(|(shape, flags)| watch(shape, flags)));
    seeds
}
