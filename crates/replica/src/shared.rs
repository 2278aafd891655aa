//! What all threads of a member share: its identity, its present state, and the ways to the core.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use api::error;
use api::etcdserverpb::{AlarmType, ResponseHeader};
use api::{Code, Status};
use arc_swap::ArcSwap;
use machine::{Alarms, Members};
use mvcc::View;
use tokio::sync::oneshot;

use crate::arrivals::Arrivals;
use crate::attendance::Attendance;
use crate::core::{CoreRequest, Reply, RequestId};
use crate::inbox::{Inbox, Outbox};
use crate::long_reads::LongReads;
use crate::peer_links::PeerLinks;
use clock::Clock;
use storage::Identity;
use storage::compaction_hash::CompactionHashes;
use storage::readers::Readers;
use telemetry::callers::Callers;
use telemetry::slow_requests::SlowRequests;

/// The state of a member after one batch of entries: what every read is answered from.
pub struct Published {
    /// Keys and values.
    pub view: Arc<View>,
    /// The last entry applied.
    pub applied_index: u64,
    /// The term of that entry.
    pub applied_term: u64,
    /// The newest committed entry.
    pub commit_index: u64,
    /// The member that leads, or 0.
    pub leader: u64,
    /// Whether this state may answer linearizable reads by itself: this member is the only voter, leads, and has
    /// applied an entry of its own term. Every acknowledged write is then in the newest published state.
    pub reads_local: bool,
    /// Alarms raised.
    pub alarms: Arc<Alarms>,
    /// The members.
    pub members: Arc<Members>,
    /// Bytes of everything not compacted away.
    pub in_use_bytes: u64,
    /// Changes above this revision are all there, whatever has been compacted: what a compaction makes unreadable is
    /// removed only after this was raised.
    pub removed_through: i64,
}

impl Published {
    /// Whether the CORRUPT alarm names this member: what it holds is not what the others hold, and clients must not
    /// be told of it.
    pub fn is_quarantined(&self, member_id: u64) -> bool {
        self.alarms.is_raised(AlarmType::Corrupt as i32, member_id)
    }
}

/// Bytes of commands that may wait for the log to take them.
const PROPOSAL_BYTES_MAX: usize = 512 << 20;

/// What a proposal is answered with that no leader was there to take.
const NEVER_PROPOSED: Status = Status::new(Code::DeadlineExceeded, "context deadline exceeded");

/// The leader that is known, or 0, and when leaders came and went.
#[derive(Clone, Copy, Default)]
struct Leadership {
    leader: u64,
    elected: Option<Instant>,
    lost: Option<Instant>,
}

/// What all threads of a member share.
pub struct Shared {
    /// Who this is.
    pub identity: Identity,
    /// The newest state.
    pub state: ArcSwap<Published>,
    /// The limits and intervals that requests are held against.
    pub limits: Limits,
    /// To the core.
    pub core: Arc<Inbox<CoreRequest>>,
    /// From the core, one for each shard.
    pub shards: Vec<Outbox<Reply>>,
    /// Reads values from the log.
    pub values: log::Values,
    /// Reads them for threads that must not wait for a disk.
    pub readers: Arc<Readers>,
    /// What time it is.
    pub clock: Clock,
    /// The zone this member is in, by its flag; empty: none.
    pub zone: String,
    /// Whether threads may be started. Where they may not, what takes long is done on the spot.
    pub threads: bool,
    /// All metrics.
    pub metrics: Arc<telemetry::metrics::Metrics>,
    /// Room for other members' messages.
    pub arrivals: Arrivals,
    /// Which shards serve watches: one without any need not hear of every change.
    pub attendance: Attendance,
    /// Who calls.
    pub callers: Callers,
    /// Requests worth naming.
    pub slow_requests: SlowRequests,
    /// When the member was started.
    pub began: Instant,
    /// The hashes of the last compactions.
    pub compaction_hashes: CompactionHashes,
    /// Readers that take long.
    pub long_reads: Arc<LongReads>,
    /// Bytes of commands on their way to the core, or waiting there for the log to take them.
    proposal_bytes: AtomicUsize,
    /// The data directory's bytes on disk: log and checkpoints.
    disk_bytes: AtomicU64,
    /// The ways to the other members, once there are some.
    peers: OnceLock<Arc<dyn PeerLinks>>,
    /// What all clients together may make this member hold, once it serves them.
    client_memory: OnceLock<front::Budget>,
    leadership: Mutex<Leadership>,
    /// Whether a read that arrives should wake the core.
    wakes_for_reads: AtomicBool,
    /// Request ids given out.
    next_request: AtomicU64,
    /// Lease ids given out.
    next_lease: AtomicI64,
}

/// The limits that requests are held against.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of a proposal.
    pub request_bytes_max: usize,
    /// Operations of a transaction.
    pub txn_ops_max: usize,
    /// Bytes that the store may hold; `None` for no limit.
    pub quota_bytes: Option<u64>,
    /// How long a request may wait for the log.
    pub request_timeout: std::time::Duration,
    /// How long followers wait for a leader, at the least.
    pub election_timeout: std::time::Duration,
    /// The shortest TTL of a lease that this member grants, in seconds.
    pub lease_ttl_min: i64,
    /// How often a watch hears of progress.
    pub progress_interval: std::time::Duration,
    /// Requests slower than this are logged.
    pub slow_request: std::time::Duration,
    /// Whether the time of every call is counted (`--metrics extensive`).
    pub times_calls: bool,
}

impl Shared {
    /// Puts together what boot prepared. `seed` makes request and lease ids differ between runs of a member.
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
        // etcd's request ids: 16 bits of the member, 40 of the time, 8 to count from there.
        let request = ((identity.member_id & 0xffff) << 48) | ((seed & 0xff_ffff_ffff) << 8);
        let lease = i64::try_from(request & (i64::MAX as u64)).unwrap_or(1).max(1);
        Shared {
            identity,
            state: ArcSwap::from_pointee(state),
            limits,
            core,
            shards: (0..shards).map(|_| Outbox::default()).collect(),
            readers: Readers::new(values.clone()),
            values,
            clock: Clock::real(),
            zone: String::new(),
            threads: true,
            metrics,
            arrivals: Arrivals::default(),
            attendance: Attendance::new(shards),
            callers: Callers::default(),
            slow_requests: SlowRequests::default(),
            began: Instant::now(),
            compaction_hashes: CompactionHashes::default(),
            long_reads: Arc::default(),
            proposal_bytes: AtomicUsize::new(0),
            disk_bytes: AtomicU64::new(0),
            peers: OnceLock::new(),
            client_memory: OnceLock::new(),
            leadership: Mutex::default(),
            wakes_for_reads: AtomicBool::new(true),
            next_request: AtomicU64::new(request),
            next_lease: AtomicI64::new(lease),
        }
    }

    /// The ways to the other members.
    pub fn peers(&self) -> Option<&Arc<dyn PeerLinks>> {
        self.peers.get()
    }

    /// Told once by boot.
    pub fn set_peers(&self, peers: Arc<dyn PeerLinks>) {
        // There is one call of this, before anything runs.
        let _ = self.peers.set(peers);
    }

    /// What all clients together may make this member hold; `None` where no front serves them.
    pub fn client_memory(&self) -> Option<&front::Budget> {
        self.client_memory.get()
    }

    /// Clients are served from now on, within this budget.
    pub fn set_client_memory(&self, budget: front::Budget) {
        // There is one call of this, before anything is served.
        let _ = self.client_memory.set(budget);
    }

    /// The core heard of another leader, or of none.
    pub fn leader_is(&self, leader: u64, now: Instant) {
        let mut leadership = self.leadership.lock().unwrap_or_else(PoisonError::into_inner);
        leadership.leader = leader;
        if leader == 0 {
            leadership.lost = Some(now);
        } else {
            leadership.elected = Some(now);
        }
    }

    /// Whether a read that arrives should wake the core; not while others wait for the next round to begin, or one is
    /// under way, whose end wakes it.
    pub fn wakes_for_reads(&self) -> bool {
        self.wakes_for_reads.load(Ordering::SeqCst)
    }

    /// The core says which it is, before it sleeps.
    pub fn set_wakes_for_reads(&self, wakes: bool) {
        self.wakes_for_reads.store(wakes, Ordering::SeqCst);
    }

    /// etcd's words for a proposal that was not answered in time: they say whose fault it may be.
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

    /// Asks the core from a thread that is no shard.
    ///
    /// # Errors
    ///
    /// When the core has ended.
    pub async fn ask<R: Into<CoreRequest>>(
        &self,
        ask: impl FnOnce(RequestId) -> R + Send + 'static,
    ) -> Result<Reply, Status> {
        let (sender, receiver) = oneshot::channel();
        self.core.send(CoreRequest::Outside(sender, Box::new(|request_id| ask(request_id).into())));
        receiver.await.map_err(|_| error::STOPPED)
    }

    /// Wakes a shard for the state just published, if anything there watches.
    pub fn wake_watches(&self, shard: usize) {
        if self.attendance.is_watched(shard) {
            self.shards[shard].wake();
        }
    }

    /// A shard's watches have been told of everything up to this revision.
    pub fn saw(&self, shard: usize, revision: i64) {
        self.attendance.saw(shard, revision);
    }

    /// Whether all watches, on whatever shard, have been told of everything up to this revision.
    pub fn all_saw(&self, revision: i64) -> bool {
        self.attendance.all_saw(revision)
    }

    /// Counts a command that is about to be put to the core.
    ///
    /// # Errors
    ///
    /// etcd's `too many requests`, when what waits already takes `PROPOSAL_BYTES_MAX`.
    pub fn admit_proposal(&self, bytes: usize) -> Result<(), Status> {
        let before = self.proposal_bytes.fetch_add(bytes, Ordering::Relaxed);
        if before > 0 && before + bytes > PROPOSAL_BYTES_MAX {
            self.proposal_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Err(error::TOO_MANY_REQUESTS);
        }
        Ok(())
    }

    /// A command that was counted has gone to the log, or was refused.
    pub fn proposal_taken(&self, bytes: usize) {
        self.proposal_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// A command that had been taken waits once more.
    pub fn proposal_again(&self, bytes: usize) {
        self.proposal_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes of the data directory's files, as far as they are in use.
    pub fn disk_bytes(&self) -> u64 {
        self.disk_bytes.load(Ordering::Relaxed)
    }

    /// See [`Shared::disk_bytes`].
    pub fn set_disk_bytes(&self, bytes: u64) {
        self.disk_bytes.store(bytes, Ordering::Relaxed);
    }

    /// A fresh request id; never 0.
    pub fn request_id(&self) -> u64 {
        self.next_request.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A fresh lease id; positive.
    pub fn lease_id(&self) -> i64 {
        (self.next_lease.fetch_add(1, Ordering::Relaxed) & i64::MAX).max(1)
    }

    /// A header for an answer from this member.
    pub fn header(&self, revision: i64, raft_term: u64) -> ResponseHeader {
        ResponseHeader {
            cluster_id: self.identity.cluster_id,
            member_id: self.identity.member_id,
            revision,
            raft_term,
        }
    }
}
