//! A node that applies entries, as a source, and what its state was at each revision.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::etcdserverpb as pb;
use backup::chain::Chain;
use backup::manifest::{HashKv, Position};
use backup::moment::{self, Restored, hash_kv};
use backup::plan::Moment;
use backup::shipper::{Pace, Shipper, Step};
use backup::source::{Fetched, Source, WrittenState};
use backup::store::Store;
use backup::{Collector, Queue, Trouble, with_objects};
use bytes::Bytes;
use disk::{Disk, MemDisk};
use log::{Entry, HardState};
use machine::auth::Auth;
use machine::transfer::TransferWriter;
use machine::{Machine, Members};
use numbers::{Index, MemberId, Revision, Term};
use prost::Message as _;
use storage::Identity;
use storage::restoration::{Restoration, RestoredEntry, RestoredHead};
use storage::terms::Terms;
use testkit::TempDir;

pub const CLUSTER_ID: u64 = 0xab54a98ceb1f0ad2;

/// A node whose entries are made by a test.
pub struct Node {
    state: Mutex<State>,
    stream: String,
    /// Time in milliseconds with which a whole state is dated.
    pub clock_ms: AtomicU64,
}

struct State {
    restoration: Restoration,
    machine: Machine,
    terms: Terms,
    entries: Vec<Entry>,
    /// Index of the first entry that the log still has.
    first: u64,
    term: u64,
    is_current: bool,
    /// HashKV right after the transaction of each revision.
    hashes: BTreeMap<i64, HashKv>,
    /// Hashes of the state after entries.
    states: BTreeMap<u64, u64>,
    seed: u64,
}

impl Node {
    /// Returns a node with an empty state.
    pub fn new(seed: u64, stream: &str) -> Arc<Node> {
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::new(seed));
        let identity = Identity { member_id: 7, cluster_id: CLUSTER_ID };
        let mut restoration =
            Restoration::begin_sized(&disk, Path::new("/node"), identity, 1 << 20).expect("is created");
        let head = RestoredHead {
            compact_revision: Revision::NEVER_COMPACTED,
            index: Index(3),
            term: Term(1),
            leases: Vec::new(),
            alarms: Vec::new(),
            members: Members::default(),
            auth: Auth::default(),
            is_shared: true,
        };
        let filling = restoration.fill(head).expect("is a head");
        let mut machine = filling.finish(None).expect("is a state");
        let hard_state = HardState { term: Term(1), vote: MemberId(0), commit: Index(3) };
        let terms = restoration
            .follow(&mut machine, hard_state, None, &mut std::iter::empty())
            .expect("the log begins");
        let state = State {
            restoration,
            machine,
            terms,
            entries: Vec::new(),
            first: 4,
            term: 1,
            is_current: true,
            hashes: BTreeMap::new(),
            states: BTreeMap::new(),
            seed,
        };
        Arc::new(Node { state: Mutex::new(state), stream: stream.to_owned(), clock_ms: AtomicU64::new(1) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies a request.
    pub fn apply(&self, request: pb::InternalRaftRequest) {
        self.lock().apply(request);
    }

    /// Applies a put.
    pub fn put(&self, key: &str, value: &str) {
        self.apply(put(key, value));
    }

    /// Applies a number of random requests.
    pub fn work(&self, count: usize) {
        let mut state = self.lock();
        for _ in 0..count {
            let request = state.random_request();
            state.apply(request);
        }
    }

    /// Lets the log drop the entries before this index.
    pub fn drop_before(&self, index: u64) {
        let mut state = self.lock();
        state.first = index.max(state.first);
    }

    /// Begins a term.
    pub fn elect(&self) {
        self.lock().term += 1;
    }

    pub fn set_current(&self, is_current: bool) {
        self.lock().is_current = is_current;
    }

    /// Returns HashKV right after each revision.
    pub fn hashes(&self) -> BTreeMap<i64, HashKv> {
        self.lock().hashes.clone()
    }
}

pub fn put(key: &str, value: &str) -> pb::InternalRaftRequest {
    let put =
        pb::PutRequest { key: key.to_owned().into(), value: value.to_owned().into(), ..Default::default() };
    pb::InternalRaftRequest { put: Some(put), ..Default::default() }
}

impl State {
    fn random(&mut self, below: u64) -> u64 {
        self.seed = self.seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.seed >> 33) % below
    }

    fn random_request(&mut self) -> pb::InternalRaftRequest {
        let key = format!("key-{}", self.random(12));
        match self.random(10) {
            0 => {
                let delete = pb::DeleteRangeRequest { key: key.into(), ..Default::default() };
                pb::InternalRaftRequest { delete_range: Some(delete), ..Default::default() }
            }
            1 => {
                let grant = pb::LeaseGrantRequest { ttl: 100, id: 1 + self.random(5) as i64 };
                pb::InternalRaftRequest { lease_grant: Some(grant), ..Default::default() }
            }
            2 => {
                let revoke = pb::LeaseRevokeRequest { id: 1 + self.random(5) as i64 };
                pb::InternalRaftRequest { lease_revoke: Some(revoke), ..Default::default() }
            }
            3 => {
                let revision = self.machine.store.current_revision().0;
                let revision = revision - self.random(5) as i64;
                let compaction = pb::CompactionRequest { revision: revision.max(1), physical: false };
                pb::InternalRaftRequest { compaction: Some(compaction), ..Default::default() }
            }
            4 => {
                let lease = self.random(5) as i64;
                let value = format!("leased {}", self.random(1000));
                let put =
                    pb::PutRequest { key: key.into(), value: value.into(), lease, ..Default::default() };
                pb::InternalRaftRequest { put: Some(put), ..Default::default() }
            }
            5 => {
                let ops = (0..3).map(|n| {
                    let value = format!("of a transaction {}", self.random(1000));
                    let put = pb::PutRequest {
                        key: format!("{key}-{n}").into(),
                        value: value.into(),
                        ..Default::default()
                    };
                    pb::RequestOp { request: Some(pb::request_op::Request::RequestPut(put)) }
                });
                let txn = pb::TxnRequest { success: ops.collect(), ..Default::default() };
                pb::InternalRaftRequest { txn: Some(txn), ..Default::default() }
            }
            _ => {
                let value = format!("value {}", self.random(1_000_000)).repeat(1 + self.random(20) as usize);
                put(&key, &value)
            }
        }
    }

    fn apply(&mut self, mut request: pb::InternalRaftRequest) {
        let index = self.machine.applied_index.0 + 1;
        request.header = Some(pb::RequestHeader { id: index, ..Default::default() });
        let entry = Entry {
            index: Index(index),
            term: Term(self.term),
            entry_type: 0,
            data: request.encode_to_vec().into(),
        };
        let before = self.machine.store.current_revision();
        let hard_state = HardState { term: Term(self.term), vote: MemberId(0), commit: Index(index) };
        let restored = RestoredEntry { applies: true, entry: entry.clone() };
        self.restoration
            .follow_on(&mut self.machine, hard_state, &mut std::iter::once(Ok(restored)), &mut self.terms)
            .expect("is applied");
        self.entries.push(entry);
        let revision = self.machine.store.current_revision();
        if revision > before {
            let values = self.restoration.values();
            let hash = hash_kv(&mut self.machine, &values).expect("is readable");
            self.hashes.insert(revision.0, hash);
        }
        if let Some(hash) = self.machine.state_hash() {
            self.states.insert(index, hash);
        }
    }
}

impl Source for Node {
    fn cluster_id(&self) -> u64 {
        CLUSTER_ID
    }

    fn stream(&self) -> String {
        self.stream.clone()
    }

    fn position(&self) -> Position {
        let state = self.lock();
        Position {
            index: state.machine.applied_index.0,
            term: state.machine.applied_term.0,
            revision: state.machine.store.current_revision().0,
            compact_revision: state.machine.store.compact_revision().0,
            time_ms: 0,
        }
    }

    fn is_current(&self) -> bool {
        self.lock().is_current
    }

    fn entries(&self, from: u64, to: u64, bytes_max: u64) -> Result<Fetched, Trouble> {
        let state = self.lock();
        if from < state.first {
            return Ok(Fetched::Gone);
        }
        let mut bytes = 0;
        let entries = state.entries.iter().filter(|entry| (from..=to).contains(&entry.index.0));
        let taken = entries.take_while(|entry| {
            bytes += entry.data.len() as u64;
            bytes <= bytes_max || bytes == entry.data.len() as u64
        });
        Ok(Fetched::Entries(taken.cloned().collect()))
    }

    fn term(&self, index: u64) -> Option<u64> {
        let state = self.lock();
        state.entries.iter().find(|entry| entry.index.0 == index).map(|entry| entry.term.0)
    }

    fn state_hash(&self, index: u64) -> Option<u64> {
        self.lock().states.get(&index).copied()
    }

    fn state(&self, write: &mut dyn FnMut(Bytes) -> Result<(), Trouble>) -> Result<WrittenState, Trouble> {
        let mut at = self.position();
        at.time_ms = self.clock_ms.load(Ordering::Relaxed);
        let state_hash = self.state_hash(at.index);
        let mut state = self.lock();
        let values = state.restoration.values();
        let view = state.machine.store.publish();
        let mut writer = TransferWriter::new(view, state.machine.head(), Revision(0));
        while let Some(chunk) = writer.next_chunk(&values).expect("is readable") {
            write(chunk)?;
        }
        let hash_kv = hash_kv(&mut state.machine, &values).ok();
        Ok(WrittenState { at, state_hash, hash_kv })
    }
}

/// A node with what ships its log, driven by hand.
pub struct Backup {
    pub node: Arc<Node>,
    pub collector: Collector,
    pub queue: Queue,
    pub shipper: Shipper,
    /// The clock that never jumps, in milliseconds.
    pub now_ms: u64,
    /// Difference of the clock that may jump.
    pub wall_offset_ms: i64,
}

pub fn pace() -> Pace {
    Pace { idle_ms: 1000, manifests_per_catalog: 5, takeover_ms: 10_000, look_ms: 1000, ..Pace::default() }
}

impl Backup {
    /// Starts to ship the log of a node under a name.
    pub fn start(node: &Arc<Node>, store: &Arc<impl Store + 'static>, id: &str, now_ms: u64) -> Backup {
        Backup::start_with(node, store, id, now_ms, pace())
    }

    /// Starts like [`Backup::start`], with another pace.
    pub fn start_with(
        node: &Arc<Node>,
        store: &Arc<impl Store + 'static>,
        id: &str,
        now_ms: u64,
        pace: Pace,
    ) -> Backup {
        let queue = Queue::in_memory();
        let source: Arc<dyn Source> = Arc::clone(node) as _;
        let store: Arc<dyn Store> = Arc::clone(store) as _;
        Backup {
            node: Arc::clone(node),
            collector: Collector::new(CLUSTER_ID, 0),
            queue: queue.clone(),
            shipper: Shipper::new(store, source, queue, id.to_owned(), pace, false),
            now_ms,
            wall_offset_ms: 1_000_000,
        }
    }

    fn wall_ms(&self) -> u64 {
        self.now_ms.saturating_add_signed(self.wall_offset_ms)
    }

    /// Lets 100 ms pass, reads and ships.
    pub fn step(&mut self) -> Result<Step, Trouble> {
        self.now_ms += 100;
        let wall_ms = self.wall_ms();
        self.node.clock_ms.store(wall_ms, Ordering::Relaxed);
        self.collector.step(&*self.node, &self.queue, wall_ms, self.now_ms, false)?;
        self.shipper.step(wall_ms, self.now_ms)
    }

    /// Steps until the chain has all entries. Panics if it never does.
    pub fn settle(&mut self) {
        for _ in 0..1000 {
            let stepped = self.step();
            let reached = self.shipper.reached().map_or(0, |(at, _)| at.index);
            if stepped.is_ok() && reached == self.node.position().index {
                return;
            }
        }
        panic!("does not settle: {:?}", self.step());
    }
}

pub fn cluster() -> String {
    format!("{CLUSTER_ID:016x}")
}

/// Restores a moment into a directory of its own.
pub fn restore(store: &impl Store, moment: Moment) -> Result<(Restored, HashKv), Trouble> {
    let dir = TempDir::new("backup-restore");
    restore_in(dir.path(), store, moment)
}

/// Restores a moment into a directory, which may contain what an earlier attempt has fetched.
pub fn restore_in(dir: &Path, store: &impl Store, moment: Moment) -> Result<(Restored, HashKv), Trouble> {
    let cluster = cluster();
    let plan = Chain { store, cluster: &cluster }.plan(moment)?;
    let cache = backup::Cache { path: dir.join("cache"), keeps: true };
    let work = dir.join("work");
    match std::fs::remove_dir_all(&work) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{error}"),
        _ => {}
    }
    let mut restored = with_objects(store, &cluster, &plan, &cache, |fetch| {
        moment::restore(&plan, CLUSTER_ID, &work, fetch, None, &mut |_| {})
    })?;
    let hash = hash_kv(&mut restored.machine, &restored.values)?;
    Ok((restored, hash))
}

/// Asserts that some moments are restored exactly as they were, among them the newest.
pub fn assert_restores(store: &impl Store, node: &Node, count: usize) {
    let hashes = node.hashes();
    let chain_of = cluster();
    let chain = Chain { store, cluster: &chain_of };
    let head = chain.head_or_refuse().expect("there is a backup");
    let from = chain.epochs(&head).expect("are listed").first().map_or(0, |(_, from, _)| from.revision);
    let all: Vec<(&i64, &HashKv)> = hashes.range(from + 1..).collect();
    let step = (all.len() / count).max(1);
    for (revision, hash) in all.iter().rev().step_by(step) {
        let (_, restored) = restore(store, Moment::Revision(**revision))
            .unwrap_or_else(|trouble| panic!("revision {revision}: {trouble}"));
        assert_eq!(restored, **hash, "revision {revision}");
    }
}
