//! State that all threads of a member share: the member's identity, the newest published state
//! ([`Published`]), and the queues to and from the core ([`Shared`]). Only the core publishes.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use api::error;
use api::etcdserverpb::{AlarmType, ResponseHeader};
use api::{Code, Status};
use arc_swap::ArcSwap;
use machine::auth::Auth;
use machine::{Alarms, Members};
use mvcc::View;
use numbers::{Index, LeaseId, Revision, Seconds, Term};
use tokio::sync::oneshot;

use crate::arrivals::Arrivals;
use crate::attendance::Attendance;
use crate::browsers::Browsers;
use crate::core::Core;
use crate::credentials::Credentials;
use crate::expensive::ExpensiveCalls;
use crate::inbox::{Inbox, Outbox};
use crate::long_reads::LongReads;
use crate::peer_links::PeerLinks;
use crate::renewals::Renewals;
use crate::requests::{CoreRequest, Reply, RequestId};
use crate::seat::Seat;
use crate::stages::Stages;
use clock::Clock;
use storage::Identity;
use storage::compaction_hash::CompactionHashes;
use storage::readers::Readers;
use telemetry::audit::AuditLog;
use telemetry::callers::Callers;
use telemetry::heavy_hitters::HeavyHitters;
use telemetry::slow_requests::SlowRequests;
use telemetry::tracing::Tracer;

/// The state of a member after one batch of entries. Every read is answered from one such state.
///
/// `applied_index` is never beyond `commit_index`, `removed_through` never beyond the view's revision, and
/// none of `applied_index`, `applied_term` and `commit_index` is smaller than in a state published before: a
/// client that has seen one state never gets an answer from an older one. Both indexes are raft log indexes:
/// entries up to `applied_index` are synced by this member, or are part of a snapshot that it has installed;
/// entries up to `commit_index` are synced by a majority, which need not include this member.
pub struct Published {
    /// Keys and values.
    pub view: Arc<View>,
    /// Index of the last entry applied.
    pub applied_index: Index,
    /// Raft term of the entry at [`Self::applied_index`].
    pub applied_term: Term,
    /// Index of the newest entry known to be committed.
    pub commit_index: Index,
    /// Id of the leader; 0 if none is known.
    pub leader: u64,
    /// True if this state answers linearizable reads without a ReadIndex round: this member is the only
    /// voter, leads, and has applied an entry of its own term. Every acknowledged write is then in the newest
    /// published state.
    pub reads_local: bool,
    /// Alarms that are raised.
    pub alarms: Arc<Alarms>,
    /// Members of the cluster.
    pub members: Arc<Members>,
    /// Users and roles.
    pub auth: Arc<Auth>,
    /// Bytes of all keys and values that are not compacted.
    pub in_use_bytes: u64,
    /// All versions above this revision are still present in memory, even compacted ones: versions are
    /// removed only after this revision was raised and published.
    pub removed_through: Revision,
}

impl Published {
    /// Asserts that this state may be published after `earlier`.
    pub fn assert_follows(&self, earlier: &Published) {
        let (applied, commit) = (self.applied_index, self.commit_index);
        assert!(applied <= commit, "entry {applied} is applied, but only {commit} is committed");
        assert!(
            earlier.applied_index <= applied && earlier.applied_term <= self.applied_term,
            "entry {} was published as applied, now {applied}",
            earlier.applied_index
        );
        assert!(
            earlier.commit_index <= commit,
            "entry {} was published as committed, now {commit}",
            earlier.commit_index
        );
        debug_assert!(self.removed_through <= self.view.snapshot().current_revision());
    }

    /// Returns true if the CORRUPT alarm names this member: its data differ from the other members' data, and
    /// clients must not read them.
    pub fn is_quarantined(&self, member_id: u64) -> bool {
        self.alarms.is_raised(AlarmType::Corrupt as i32, member_id)
    }
}

/// Maximum bytes of commands that wait for the log.
const PROPOSAL_BYTES_MAX: usize = 512 << 20;

/// Answer to a proposal that timed out while there was no leader.
const NEVER_PROPOSED: Status = Status::new(Code::DeadlineExceeded, "context deadline exceeded");

/// Id of the known leader, or 0, and the times of the last changes.
#[derive(Clone, Copy, Default)]
struct Leadership {
    leader: u64,
    elected: Option<Instant>,
    lost: Option<Instant>,
}

/// State and queues that all threads of a member share.
pub struct Shared {
    /// Ids of this member and its cluster.
    pub identity: Identity,
    /// The newest published state.
    pub state: ArcSwap<Published>,
    /// Limits and intervals that requests are checked against.
    pub limits: Limits,
    /// Queue of requests to the core.
    pub core: Arc<Inbox<CoreRequest>>,
    /// Lends the core's work to shards; in use while the core runs on a thread.
    pub seat: Seat<Core>,
    /// Queues of replies from the core, one for each shard.
    pub shards: Vec<Outbox<Reply>>,
    /// Reads values from the log.
    pub values: log::Values,
    /// Reads values on separate threads, for threads that must not wait for a disk.
    pub readers: Arc<Readers>,
    /// The member's clock.
    pub clock: Clock,
    /// The release of etcd that this member presents.
    pub api_version: &'static str,
    /// Zone of this member, from its flag; empty if it has none.
    pub zone: String,
    /// True if clients have to show a certificate.
    pub clients_show_certificates: bool,
    /// True if profiles (pprof) are served.
    pub pprof: bool,
    /// True if the metrics include the heaviest prefixes, users and clients.
    pub heavy_hitters_in_metrics: bool,
    /// True if threads may be started. Otherwise the calling thread does long work itself.
    pub threads: bool,
    /// Tokens and passwords of users.
    pub credentials: Arc<Credentials>,
    /// All metrics.
    pub metrics: Arc<telemetry::metrics::Metrics>,
    /// Limits the memory of messages from other members that wait for the core.
    pub arrivals: Arrivals,
    /// Records which shards serve watches, so that the core wakes no other shard for a change.
    pub attendance: Attendance,
    /// Hosts and origins of HTTP requests that are answered.
    pub browsers: Browsers,
    /// True if calls in JSON are served under `/v3/`.
    pub gateway: bool,
    /// Limits the rate of expensive calls of each client.
    pub expensive: ExpensiveCalls,
    /// Figures per client address.
    pub callers: Callers,
    /// Expensive requests, and who sent them.
    pub slow_requests: SlowRequests,
    /// Prefixes, users and clients that cause the most load.
    pub heavy_hitters: HeavyHitters,
    /// Renewals of leases by shards, without the core.
    pub renewals: Arc<Renewals>,
    /// Times at which the newest log entries passed each stage.
    pub stages: Stages,
    /// Memory that the core holds.
    pub memory: CoreMemory,
    /// Decides which calls are traced, if any are.
    pub tracer: OnceLock<Arc<Tracer>>,
    /// The audit log, if configured, and a flag: true if it also records calls that change nothing.
    pub audit: OnceLock<(Arc<AuditLog>, bool)>,
    /// Time when the member was started.
    pub began: Instant,
    /// Hashes of the last compactions, for HashKV.
    pub compaction_hashes: CompactionHashes,
    /// Readers that read a state slice by slice, and the versions that compaction must keep for them.
    pub long_reads: Arc<LongReads>,
    /// Bytes of commands that are on the way to the core, or that wait in the core for the log.
    proposal_bytes: AtomicUsize,
    /// Bytes of the data directory on disk: log and checkpoints.
    disk_bytes: AtomicU64,
    /// Connections with the other members; set once they exist.
    peers: OnceLock<Arc<dyn PeerLinks>>,
    /// Budget of memory for all clients together; set once clients are served.
    client_memory: OnceLock<accounting::Budget>,
    leadership: Mutex<Leadership>,
    /// True if an arriving read should wake the core.
    wakes_for_reads: AtomicBool,
    /// True if an arriving write should wake the core.
    wakes_for_writes: AtomicBool,
    /// Counter of command ids.
    next_command: AtomicU64,
    /// Counter of lease ids.
    next_lease: AtomicI64,
}

/// Memory that the core holds, as the core counts it. The core updates the figures in turns in which the log
/// or the state has changed.
#[derive(Debug, Default)]
pub struct CoreMemory {
    /// Number of records, nodes and separators of the index, including those that are only reachable from
    /// held views.
    pub index_objects: AtomicU64,
    /// Bytes of the records, nodes and separators that [`Self::index_objects`] counts.
    pub index_bytes: AtomicU64,
    /// Bytes of the newest entries of the log, which are kept in memory for followers.
    pub window_bytes: AtomicU64,
    /// Bytes of entries that wait to be written to the log, or to be applied.
    pub queued_bytes: AtomicU64,
}

/// Limits and intervals that requests are checked against.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Maximum bytes of a proposal.
    pub request_bytes_max: usize,
    /// Maximum number of operations in a transaction.
    pub txn_ops_max: usize,
    /// Maximum bytes of the store; `None` for no limit.
    pub quota_bytes: Option<u64>,
    /// Time that a request may wait for its entry to be applied.
    pub request_timeout: std::time::Duration,
    /// Minimum time that a follower waits for a leader before it starts an election.
    pub election_timeout: std::time::Duration,
    /// The shortest TTL of a lease that this member grants, in seconds.
    pub lease_ttl_min: Seconds,
    /// Interval between two progress notifications of a watch.
    pub progress_interval: std::time::Duration,
    /// Requests that take longer than this are logged.
    pub slow_request: std::time::Duration,
    /// Ranges that take longer than this are logged.
    pub slow_apply: std::time::Duration,
    /// True if the time of every call is counted (`--metrics extensive`).
    pub times_calls: bool,
}

impl Shared {
    /// Builds the shared state. `seed` makes request and lease ids differ between runs of a member.
    #[allow(clippy::too_many_arguments, reason = "called once, with the parts that boot made")]
    pub fn new(
        identity: Identity,
        state: Published,
        limits: Limits,
        shards: usize,
        core: Arc<Inbox<CoreRequest>>,
        values: log::Values,
        metrics: Arc<telemetry::metrics::Metrics>,
        seed: u64,
    ) -> Shared {
        // Same layout as etcd's request ids: 16 bits of the member id, 40 bits of the seed (in etcd, of the
        // time), 8 bits of a counter.
        let request = ((identity.member_id & 0xffff) << 48) | ((seed & 0xff_ffff_ffff) << 8);
        let lease = i64::try_from(request & (i64::MAX as u64)).unwrap_or(1).max(1);
        Shared {
            identity,
            state: ArcSwap::from_pointee(state),
            limits,
            core,
            seat: Seat::default(),
            shards: (0..shards).map(|_| Outbox::default()).collect(),
            readers: Readers::new(values.clone()),
            values,
            clock: Clock::real(),
            credentials: Arc::new(Credentials::simple(Clock::real(), Box::new(identity::system_entropy()))),
            api_version: api::API_VERSION,
            zone: String::new(),
            clients_show_certificates: false,
            pprof: false,
            heavy_hitters_in_metrics: false,
            threads: true,
            metrics,
            arrivals: Arrivals::default(),
            attendance: Attendance::new(shards),
            browsers: Browsers::default(),
            gateway: true,
            expensive: ExpensiveCalls::default(),
            callers: Callers::default(),
            slow_requests: SlowRequests::default(),
            heavy_hitters: HeavyHitters::new(Instant::now()),
            renewals: Arc::new(Renewals::new(Instant::now())),
            stages: Stages::default(),
            memory: CoreMemory::default(),
            tracer: OnceLock::new(),
            audit: OnceLock::new(),
            began: Instant::now(),
            compaction_hashes: CompactionHashes::default(),
            long_reads: Arc::default(),
            proposal_bytes: AtomicUsize::new(0),
            disk_bytes: AtomicU64::new(0),
            peers: OnceLock::new(),
            client_memory: OnceLock::new(),
            leadership: Mutex::default(),
            wakes_for_reads: AtomicBool::new(true),
            wakes_for_writes: AtomicBool::new(false),
            next_command: AtomicU64::new(request),
            next_lease: AtomicI64::new(lease),
        }
    }

    /// Returns the connections with the other members; `None` before they exist.
    pub fn peers(&self) -> Option<&Arc<dyn PeerLinks>> {
        self.peers.get()
    }

    /// Sets the connections with the other members. Boot calls it once.
    pub fn set_peers(&self, peers: Arc<dyn PeerLinks>) {
        // Boot calls this once, before anything runs, so the value cannot be set already.
        let _ = self.peers.set(peers);
    }

    /// Returns the memory budget of all clients together; `None` if no front end serves them.
    pub fn client_memory(&self) -> Option<&accounting::Budget> {
        self.client_memory.get()
    }

    /// Sets the memory budget of clients, who are served from now on.
    pub fn set_client_memory(&self, budget: accounting::Budget) {
        // Called once, before any client is served, so the value cannot be set already.
        let _ = self.client_memory.set(budget);
    }

    /// Records which member leads; 0 if none is known. The core calls it when the leader changes.
    pub fn leader_is(&self, leader: u64, now: Instant) {
        let mut leadership = self.leadership.lock().unwrap_or_else(PoisonError::into_inner);
        leadership.leader = leader;
        if leader == 0 {
            leadership.lost = Some(now);
        } else {
            leadership.elected = Some(now);
        }
    }

    /// Returns true if an arriving read should wake the core. It need not while other reads wait for the next
    /// ReadIndex round, or while a round is in flight whose end wakes the core.
    pub fn wakes_for_reads(&self) -> bool {
        self.wakes_for_reads.load(Ordering::SeqCst)
    }

    /// Sets what [`Shared::wakes_for_reads`] returns. The core calls it before it sleeps.
    pub fn set_wakes_for_reads(&self, wakes: bool) {
        self.wakes_for_reads.store(wakes, Ordering::SeqCst);
    }

    /// Returns true if an arriving write should wake the core at once: the core sleeps only to gather logins.
    pub fn wakes_for_writes(&self) -> bool {
        self.wakes_for_writes.load(Ordering::SeqCst)
    }

    /// Sets what [`Shared::wakes_for_writes`] returns. The core calls it before it sleeps.
    pub fn set_wakes_for_writes(&self, wakes: bool) {
        if self.wakes_for_writes() != wakes {
            self.wakes_for_writes.store(wakes, Ordering::SeqCst);
        }
    }

    /// Returns true if members may run etcd 3.4 or older, see [`Members::are_before_3_5`]. Decided by the
    /// cluster version; while no version is decided, by the releases that the members have announced.
    pub fn may_be_before_3_5(&self, members: &Members) -> bool {
        match members.storage_version() {
            Some(_) => members.are_before_3_5(),
            None => self.has_told_before_3_5(members),
        }
    }

    /// Returns true if a member has announced a release before 3.5.
    pub fn has_told_before_3_5(&self, members: &Members) -> bool {
        let release = |id: &u64| self.peers().and_then(|peers| peers.release(*id));
        members.by_id.keys().any(|id| release(id).is_some_and(|release| release < (3, 5)))
    }

    /// Returns etcd's error for a proposal made at `since` that was not answered in time. The text depends on
    /// whether the leader or the connection to it was lost since then.
    pub fn timed_out(&self, since: Instant) -> Status {
        let Leadership { leader, elected, lost } =
            *self.leadership.lock().unwrap_or_else(PoisonError::into_inner);
        if leader == 0 && lost.is_none_or(|lost| lost <= since) {
            return NEVER_PROPOSED;
        }
        if let Some(elected) = elected
            && since < elected
            && since + 2 * self.limits.election_timeout > elected
        {
            return error::TIMEOUT_DUE_TO_LEADER_FAIL;
        }
        let connected = |id: u64| {
            id == self.identity.member_id
                || self.peers().is_some_and(|p| p.active_since(id).is_some_and(|at| at <= since))
        };
        let reached = match leader {
            0 => true,
            leader if leader == self.identity.member_id => {
                let voters = self.state.load().members.voters();
                voters.iter().filter(|id| connected(**id)).count() > voters.len() / 2
            }
            leader => connected(leader),
        };
        if reached { error::TIMEOUT } else { error::TIMEOUT_DUE_TO_CONNECTION_LOST }
    }

    /// Sends a request to the core from a thread that is not a shard, and returns the reply.
    ///
    /// # Errors
    ///
    /// Returns `error::STOPPED` if the core has ended.
    pub async fn ask<R: Into<CoreRequest>>(
        &self,
        ask: impl FnOnce(RequestId) -> R + Send + 'static,
    ) -> Result<Reply, Status> {
        let (sender, receiver) = oneshot::channel();
        self.core.send(CoreRequest::Outside(sender, Box::new(|request_id| ask(request_id).into())));
        receiver.await.map_err(|_| error::STOPPED)
    }

    /// Wakes a shard for the state just published, if it serves watches.
    pub fn wake_watches(&self, shard: usize) {
        if self.attendance.is_watched(shard) {
            self.shards[shard].wake();
        }
    }

    /// Records that all watches of a shard were notified of everything up to this revision.
    pub fn saw(&self, shard: usize, revision: Revision) {
        self.attendance.saw(shard, revision);
    }

    /// Returns true if the watches of all shards were notified of everything up to this revision.
    pub fn all_saw(&self, revision: Revision) -> bool {
        self.attendance.all_saw(revision)
    }

    /// Counts a command that is about to be sent to the core.
    ///
    /// # Errors
    ///
    /// etcd's `too many requests`, if the waiting commands already take `PROPOSAL_BYTES_MAX`.
    pub fn admit_proposal(&self, bytes: usize) -> Result<(), Status> {
        let before = self.proposal_bytes.fetch_add(bytes, Ordering::Relaxed);
        if before > 0 && before + bytes > PROPOSAL_BYTES_MAX {
            self.proposal_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Err(error::TOO_MANY_REQUESTS);
        }
        Ok(())
    }

    /// Uncounts a command that the log has taken, or that was refused.
    pub fn proposal_taken(&self, bytes: usize) {
        self.proposal_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Counts a command again that waits to be proposed once more.
    pub fn proposal_again(&self, bytes: usize) {
        self.proposal_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes in use of the data directory's files.
    pub fn disk_bytes(&self) -> u64 {
        self.disk_bytes.load(Ordering::Relaxed)
    }

    /// Returns the database size that clients see: the bytes on disk, but at least `in_use_bytes`. The two
    /// numbers are counted separately, and newly written data may not be in the files yet; clients must never
    /// see a part that exceeds the whole.
    pub fn db_size(&self, in_use_bytes: u64) -> u64 {
        self.disk_bytes().max(in_use_bytes)
    }

    /// Sets what [`Shared::disk_bytes`] returns.
    pub fn set_disk_bytes(&self, bytes: u64) {
        self.disk_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Returns a new id, never 0, for a command or for a ReadIndex round. A command's entry is recognized by
    /// this id when it is applied.
    pub fn command_id(&self) -> u64 {
        self.next_command.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns a new lease id; positive.
    pub fn lease_id(&self) -> LeaseId {
        LeaseId((self.next_lease.fetch_add(1, Ordering::Relaxed) & i64::MAX).max(1))
    }

    /// Returns the header of an answer from this member.
    pub fn header(&self, revision: Revision, raft_term: Term) -> ResponseHeader {
        ResponseHeader {
            cluster_id: self.identity.cluster_id,
            member_id: self.identity.member_id,
            revision: revision.0,
            raft_term: raft_term.0,
        }
    }
}
