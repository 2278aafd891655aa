//! The core's loop. [`Core::turn`] runs one turn, which calls each part of the core in a fixed order. The
//! files in `run/` contain the work of a turn for clients, peers, the disk and control requests. The files
//! beside this one contain the decisions.

mod autopilot;
mod clients;
mod control;
mod durability;
mod leadership;
mod membership;
mod observers;
mod peers;
mod probe;
mod questions;
mod snapshots;
mod witness;

pub use probe::Probe;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use consensus::{Fetch, Node};
use log::{EntryPlace, Log};
use machine::Machine;
use numbers::{Index, MemberId, Revision};
use stdx::Gathering;

use super::answers::Answers;
use super::apply::{Apply, ApplyQueue};
use super::attributes::Attributes;
use super::autopilot::Autopilot;
use super::checkpoints::{Checkpoints, Thresholds};
use super::compactions::Compactions;
use super::cpu_pressure::CpuPressure;
use super::disk_space::DiskSpace;
use super::history::History;
use super::index_base::IndexBase;
use super::install::Install;
use super::leadership::Leadership;
use super::leases::{LeaseClocks, LeaseRules};
use super::lifecycle::Lifecycle;
use super::membership::{MemberRules, Membership};
use super::meters::Meters;
use super::observers::Observers;
use super::options::Options;
use super::outgoing::Outgoing;
use super::pace::Pace;
use super::proposals::Proposals;
use super::publication::Publication;
use super::questions::Questions;
use super::reads::Reads;
use super::workers::Workers;
use super::writing::{self, Occasion};
use super::{CoreRequest, Fatal};
use crate::seat::{Borrower, Work};
use crate::shared::Shared;
use storage::checkpointer::Order;
use storage::compaction_hash::Job;
use storage::nospace::Cause;
use storage::terms::Terms;
use storage::values::LogValues;
use telemetry::logging::Logger;

/// Average number of client requests per turn from which on the core yields to other threads before it
/// sleeps, so that their requests can join the next turn. A single client that waits for each answer makes
/// only one request per turn, and must not be delayed.
const GATHERED: u64 = 2;

/// Maximum time for which a stop waits for open requests.
pub(super) const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The parts from which boot builds the core.
pub struct Parts {
    /// State shared with the other threads.
    pub shared: Arc<Shared>,
    /// The member's log for its operator (not the raft log).
    pub logger: Arc<Logger>,
    /// The options of the member that concern the core.
    pub options: Options,
    /// The raft node, restored from the log.
    pub node: Node,
    /// The state, restored from the checkpoint and the log.
    pub machine: Machine,
    /// The raft log, opened.
    pub log: Log,
    /// Index and location of each entry that was read at the start.
    pub locations: VecDeque<EntryPlace>,
    /// Queue of orders to the checkpointer.
    pub orders: SyncSender<Order>,
    /// Queue to the thread that computes the hashes of compactions.
    pub hash_jobs: SyncSender<Job>,
    /// Attributes that this member publishes to the cluster: its name and client URLs.
    pub attributes: (String, Vec<String>),
    /// Bytes of the files of the newest checkpoint.
    pub checkpoint_bytes: u64,
    /// Queue to the thread that reads entries which are no longer in memory, for followers that lag behind.
    pub fetches: SyncSender<Fetch>,
    /// Ids and peer URLs of members of the cluster that are not yet in this member's log.
    pub remotes: Vec<(u64, Vec<String>)>,
    /// Terms of the entries that the checkpoint covers.
    pub terms: Terms,
    /// Limits at which checkpoints are due, and the maximum work of a turn.
    pub thresholds: Thresholds,
    /// The cause of this member's NOSPACE alarm, as far as it is known.
    pub cause: Cause,
    /// Channel that is signaled once this member may serve clients.
    pub ready: SyncSender<()>,
    /// Cache of the index, if it has a memory budget.
    pub index_cache: Option<Arc<mvcc::Cache>>,
}

/// The core: one loop, which owns the raft node, the log, the state and the parts of this module. It has its
/// own thread; while that thread sleeps, another thread may run a turn (`seat.rs`).
///
/// **What it is.** A turn takes all requests that have arrived, lets each part do what is due, carries out
/// raft's effects, applies committed entries, publishes one view, and only then replies (invariant I3). It
/// never waits for a peer, and it waits for the disk only in the cases that `writing.rs` describes. Results
/// of peers and disks arrive as requests. Each part (`Reads`, `Proposals`, `Membership` and so on) owns its
/// fields, gets events and the time as arguments, and returns actions, so it is tested without a core. The
/// loop carries out the actions with the functions in `run/`. Small parts of one subject are grouped:
/// `DiskSpace`, `Apply`, `Compactions`, `Publication`, `Pace`, `Lifecycle`, `Workers`.
///
/// **What it trades.** All writes go through one processor core, and requests that arrive during a turn wait
/// for its end. Therefore the work of a turn is limited: the numbers of entries applied, leases checked,
/// questions answered and versions removed have maximums, and the remaining work waits for the next turn. In
/// return a write takes no lock, and `turn` alone determines the order in which the parts work. In the
/// simulation the same seed gives the same run, because time and messages enter only as arguments.
///
/// **What was rejected.** *A thread for each part*: a write would pass through several threads, and
/// publishing before replying would require synchronization between them. *Tasks on one thread*: the executor
/// would decide their order, and shared data would have to be borrowed at run time. *One trait for all
/// parts*, with one type of event and one of effect: each part would have to accept events that it does not
/// know, and the compiler could not tell which effects a part may return.
pub struct Core {
    shared: Arc<Shared>,
    logger: Arc<Logger>,
    options: Options,
    machine: Machine,
    node: Node,
    log: Log,
    history: History,
    workers: Workers,
    apply: Apply,
    proposals: Proposals,
    reads: Reads,
    questions: Questions,
    answers: Answers,
    leases: LeaseClocks,
    membership: Membership,
    observers: Observers,
    attributes: Attributes,
    autopilot: Autopilot,
    leadership: Leadership,
    install: Install,
    outgoing: Outgoing,
    compactions: Compactions,
    space: DiskSpace,
    index_base: IndexBase,
    pace: Pace,
    publication: Publication,
    lifecycle: Lifecycle,
    witness: witness::WitnessReport,
}

impl Core {
    /// Builds a core from its parts.
    pub fn new(parts: Parts) -> Core {
        let now = parts.shared.member.clock.now();
        let shards = parts.shared.core.outboxes.len();
        let applied = parts.machine.applied_index;
        let compacted = parts.machine.store.compact_revision();
        let batch = (parts.options.compaction_batch_limit, parts.options.compaction_sleep_interval);
        let advances = parts.options.initial_election_tick_advance;
        let own = parts.shared.member.identity.member_id;
        let attributes = Attributes::new(own, parts.attributes, parts.options.election_timeout / 2);
        let member_rules = MemberRules {
            own,
            strict: parts.options.strict_reconfig_check,
            learners_max: parts.options.max_learners,
            election_timeout: parts.options.election_timeout,
            request_timeout: parts.shared.member.limits.request_timeout,
        };
        let membership = Membership::new(member_rules, &parts.machine.members, parts.remotes);
        let saved = (applied, parts.checkpoint_bytes);
        let checkpoints = Checkpoints::new(parts.thresholds, parts.options.snapshot_count, saved, now);
        let rules = LeaseRules {
            ttl_min: parts.shared.member.limits.lease_ttl_min,
            request_timeout: parts.shared.member.limits.request_timeout,
            grace: parts.options.election_timeout,
            note_interval: parts.thresholds.note_interval,
            expire: parts.options.leases_expire,
        };
        let cpu = if parts.shared.member.threads { CpuPressure::here(now) } else { CpuPressure::none(now) };
        let values = LogValues::fetched_by(&parts.shared.data.readers, parts.shared.data.values.clone());
        let meters = Meters::new(Arc::clone(&parts.shared.diagnostics.metrics));
        Core {
            logger: parts.logger,
            history: History::new(parts.log.entries(), parts.locations, parts.terms, now),
            workers: Workers { checkpointer: parts.orders, catch_up: parts.fetches, hasher: parts.hash_jobs },
            apply: Apply { queue: ApplyQueue::new(&parts.shared.core.inbox), values, meters },
            proposals: Proposals::new(now, parts.options.batch_fsync_window),
            reads: Reads::default(),
            questions: Questions::default(),
            answers: Answers::new(shards),
            leases: LeaseClocks::new(
                rules,
                Arc::clone(&parts.shared.renewals),
                Arc::clone(&parts.shared.diagnostics.metrics),
                now,
            ),
            membership,
            observers: Observers::new(parts.options.observes),
            attributes,
            autopilot: Autopilot::new(parts.shared.member.autopilot, parts.options.election_timeout, now),
            leadership: Leadership::new(advances, now),
            install: Install::default(),
            outgoing: Outgoing::default(),
            compactions: Compactions::new(parts.options.auto_compaction, compacted, batch, now),
            space: DiskSpace::new(&parts.log, MemberId(own), parts.cause, checkpoints, now),
            index_base: IndexBase::new(parts.index_cache),
            pace: Pace::new(cpu, now),
            publication: Publication::new(&parts.machine),
            lifecycle: Lifecycle::new(parts.ready),
            witness: witness::WitnessReport::default(),
            options: parts.options,
            machine: parts.machine,
            node: parts.node,
            log: parts.log,
            shared: parts.shared,
        }
    }

    /// Runs turns until the core is asked to stop.
    ///
    /// # Errors
    ///
    /// Returns an error if the member cannot continue: the disk failed, or an entry cannot be applied. No
    /// write was acknowledged that is not on disk.
    pub fn run(mut self) -> Result<(), Fatal> {
        let shared = Arc::clone(&self.shared);
        shared.core.inbox.receive_here();
        let mut gathering = Gathering::new(GATHERED);
        let mut others_first = false;
        self.begin();
        let mut core = shared.core.seat.sit_down(self);
        let outcome = loop {
            let (mut patience, mut wanted) = core.before_sleep();
            if others_first && !patience.is_zero() && shared.core.inbox.is_short_of(wanted) {
                let began = Instant::now();
                std::thread::yield_now();
                let took = began.elapsed();
                gathering.gave_way(took);
                core.pace.cpu.gave_way(took);
                (patience, wanted) = core.before_sleep();
            }
            if let Some(outcome) = core.sleep(&shared.core.inbox, patience, wanted) {
                break outcome;
            }
            let requests = core.take(&shared.core.inbox).iter();
            let clients = requests.filter(|request| matches!(request, CoreRequest::Client(_)));
            others_first = gathering.turn(clients.count() as u64);
            if let Some(outcome) = core.turn() {
                break outcome;
            }
        };
        let mut core = core.leave();
        core.leases.open_to_shards(false);
        core.space.moves.end(&core.workers.checkpointer);
        shared.core.inbox.close();
        outcome
    }

    /// Prepares the first turn: passes the list of members to the connections with other members.
    pub fn begin(&mut self) {
        self.tell_members();
    }

    /// Returns the time for which the core may sleep before its next turn, and the number of waiting requests
    /// from which on it should be woken earlier. Also tells the shards which requests should wake the core.
    pub fn before_sleep(&self) -> (Duration, usize) {
        self.shared.core.set_wakes_for_reads(self.reads.is_idle());
        self.shared.core.set_wakes_for_writes(self.proposals.gathers_logins_only());
        self.patience()
    }

    /// Returns true if the log has work to do. Only for a log without its own thread, as in a simulation.
    pub fn log_wants_turn(&self) -> bool {
        self.log.wants_turn()
    }

    /// Returns true if the log does not have all the free space that it needs for its next segment and its
    /// reserve.
    pub fn log_lacks_space(&self) -> bool {
        self.log.space() != log::Space::Ample
    }

    /// Lets the log do its work, with at most `batches_max` batches in one write. Only for a log without its
    /// own thread, as in a simulation.
    pub fn log_turn(&mut self, batches_max: usize) {
        self.log.turn_of(batches_max);
    }

    /// Runs one turn: takes `requests`, carries out what follows from them, and does all work that is due.
    /// Returns true if the core has ended.
    ///
    /// # Errors
    ///
    /// Returns an error if the member cannot continue: the disk failed, or an entry cannot be applied.
    pub fn turn(&mut self, requests: &mut Vec<CoreRequest>, now: Instant) -> Result<bool, Fatal> {
        if self.lifecycle.is_parked() {
            return self.parked_turn(requests, now);
        }
        let is_led = self.leadership.leader() != MemberId::NONE;
        let thresholds = self.space.checkpoints.thresholds();
        self.apply.queue.begin_turn(if is_led {
            thresholds.applied_per_turn
        } else {
            thresholds.applied_per_turn_unled
        });
        planted::begin(planted::Measure::Applied);
        for request in requests.drain(..) {
            self.take(request, now)?;
        }
        if let Some(fatal) = self.observers.take_verdict() {
            self.end_service(&fatal, now);
        }
        self.space.room.retry(&mut self.log)?;
        let proposed = self.propose_gathered(now);
        self.hold_departures(now);
        self.propose_change(now);
        self.start_round(proposed, now);
        self.tick(now)?;
        self.lease_slices(now);
        let writes_here = self.writes_here(self.proposals.open(), now);
        self.log.owner_writes(writes_here);
        self.carry_out(now)?;
        self.finish_rounds(now);
        if self.observers.take_answered() {
            // The answers leave in this turn, not with the next one.
            self.carry_out(now)?;
        }
        let leases_as_of = self.pace.writing.leases_as_of(now);
        self.leases.look(self.machine.applied_index, self.node.status().commit, leases_as_of);
        self.remove_slice(now);
        self.work_on_index(now);
        self.check_index()?;
        // The calls from here on rely on this publication: after it, the newest view shows the same state as
        // the machine, unless an entry is partly applied.
        self.publish();
        self.send_published();
        self.note_stages(now);
        self.answer_questions(now);
        self.answer();
        if writes_here && let Some(took) = self.log.write_here(writing::FEW_BYTES) {
            self.pace.writing.took(took, now);
        }
        if self.lifecycle.is_parked() {
            return Ok(false);
        }
        // The replaced state is given to the checkpointer before the checkpoint of the new state is ordered,
        // so that its memory is freed before that long work begins.
        self.release_discarded();
        self.order_checkpoint(now);
        self.delete_pending();
        if self.membership.has_left(self.node.is_leaving(), now) {
            return Ok(true);
        }
        Ok(self.lifecycle.stopping().is_some_and(|since| {
            // A member that has transferred leadership continues until another leader is known, because
            // members that run etcd may still send it proposals, which it has to forward.
            let waited = now.saturating_duration_since(since);
            let succeeded = !self.lifecycle.has_resigned()
                || self.node.status().leader != MemberId::NONE
                || waited > 2 * self.shared.member.limits.election_timeout;
            let idle = self.proposals.open() == 0
                && !self.proposals.has_gathered()
                && self.lifecycle.has_handed_over()
                && succeeded
                && self.node.transferring().is_none()
                && !self.node.keeps_proposals();
            idle || waited > STOP_TIMEOUT
        }))
    }

    /// Returns true if the core should write the appended batch to the log on its own thread in this turn.
    /// `proposals` is the number of open proposals. The result of the write arrives as a request, as if the
    /// log's thread had written.
    fn writes_here(&self, proposals: usize, now: Instant) -> bool {
        // The member list in the state is not enough, so raft is asked, too: on a member that catches up, the
        // list may be from the time when the cluster had one member.
        let is_alone = self.shared.member.threads
            && !self.lifecycle.is_stopping()
            && self.machine.members.by_id.len() == 1
            && self.leads_alone();
        let occasion = Occasion { is_alone, proposals, queued_bytes: self.log.queued_bytes() };
        self.pace.writing.is_for_core(occasion, now)
    }

    /// Records which log entries have passed which stage. Called before the writes among these entries are
    /// answered.
    fn note_stages(&mut self, now: Instant) {
        let raft_status = self.node.status();
        let published = match self.machine.is_whole() {
            true => (self.machine.applied_index, self.machine.store.current_revision()),
            false => (Index(0), Revision(0)),
        };
        if let Some(positions) = self.publication.note(raft_status, published) {
            let shared = &self.shared;
            shared.diagnostics.stages.turn(positions, now, || shared.member.clock.now());
            self.count_memory();
        }
    }

    /// Publishes counts and sizes of the objects in the core's memory.
    fn count_memory(&self) {
        let set = |figure: &AtomicU64, value: u64| figure.store(value, Ordering::Relaxed);
        let (memory, index) = (&self.shared.diagnostics.memory, self.machine.store.allocated());
        set(&memory.index_objects, index.versions() + index.nodes() + index.separators());
        set(&memory.index_bytes, index.bytes());
        set(&memory.index_pinned_bytes, self.machine.store.stats().pinned_bytes);
        set(&memory.window_bytes, self.node.tail_bytes() as u64);
        set(&memory.queued_bytes, self.queued_bytes() as u64);
    }

    /// Returns the time for which the core may sleep, and the number of waiting requests from which on it
    /// should be woken earlier.
    fn patience(&self) -> (Duration, usize) {
        let now = self.shared.member.clock.now();
        let mut patience = self.pace.left(now);
        if let Some(left) = self.compactions.removal.wait(now) {
            patience = patience.min(left);
        }
        if let Some(left) = self.round_waits(now) {
            patience = patience.min(left);
        }
        let has_index_work = self.machine.is_whole() && self.index_base.has_work(&self.machine.store);
        if has_index_work
            || self.lease_slices_wait()
            || self.has_to_apply()
            || self.questions.is_due(self.machine.is_whole())
        {
            patience = Duration::ZERO;
        }
        match self.batching_wait(now) {
            // The waiting proposals cannot be made before a sync ends or a leader is known, and both events
            // wake the core. So no number of further requests should wake it.
            _ if self.proposals.is_held_back() && !self.has_room_again() => (patience, usize::MAX),
            Some((more, left)) if self.proposals.has_gathered() => (patience.min(left), more),
            _ if self.proposals.has_gathered() => (Duration::ZERO, 1),
            _ => (patience, 1),
        }
    }
}

impl Work for Core {
    type Item = CoreRequest;
    type End = Result<(), Fatal>;

    fn turn(&mut self, requests: &mut Vec<CoreRequest>) -> Option<Result<(), Fatal>> {
        let now = self.shared.member.clock.now();
        match Core::turn(self, requests, now) {
            Ok(false) => None,
            Ok(true) => Some(Ok(())),
            Err(why) => Some(Err(why)),
        }
    }

    fn before_sleep(&mut self) -> (Duration, usize) {
        Core::before_sleep(self)
    }

    /// In a cluster, lends the core to the threads of the other members and of the log. A member
    /// without others lends the core to a shard if no other work is in flight and the core would itself write
    /// to the log a write that arrives now.
    fn borrower(&self) -> Borrower {
        if self.lifecycle.is_parked() || self.lifecycle.is_stopping() || !self.machine.is_whole() {
            Borrower::None
        } else if self.machine.members.by_id.len() > 1 {
            Borrower::ClusterThreads
        } else if self.proposals.open() == 0 && self.writes_here(1, self.shared.member.clock.now()) {
            Borrower::Shard
        } else {
            Borrower::None
        }
    }
}
