//! The raft node of one member. [`Node::step`] and [`Node::request`] take events and requests;
//! [`Node::effects`] returns the resulting actions, which the caller carries out.

mod farewell;
mod feeding;
mod followers;
mod output;
mod queries;
mod reads;
mod receiving;
mod superfluous;
mod witness;

use bytes::Bytes;
use numbers::{EntryId, Index, MemberId};
use planted::Bug;
use raft::eraftpb::{self, MessageType};
use raft::{RawNode, SnapshotStatus, StateRole};

use self::farewell::Farewell;
use self::superfluous::Acknowledged;
use crate::batches::Batches;
use crate::effects::ObserverRead;
use crate::entry::{ConfChange, ConfChangeKind, Entry, HardState};
use crate::event::{Config, Event, NodeBug, Refusal, Request, RestoredState};
use crate::feeds::Feeds;
use crate::followers::Followers;
use crate::leaderless::LeaderlessQueue;
use crate::outbox::Outbox;
use crate::programs::Programs;
use crate::tail::Tail;
use crate::terms::Terms;
use crate::upstream::Upstream;
use crate::validate;
use crate::wire;
use crate::witness::{Held, Witness};

/// Maximum payload bytes of one append, and of one fetch of old entries for a follower.
const APPEND_BYTES_MAX: u64 = 1024 * 1024;
/// Maximum number of appends in flight to one follower.
const APPENDS_IN_FLIGHT_MAX: usize = 512;

/// One member's raft node.
pub struct Node {
    raw: RawNode<Tail>,
    config: Config,
    ticks: u64,
    /// A hard state in which only the commit index has changed. It is written together with the next data,
    /// because a commit index that is lost in a crash is learned again from the leader.
    unsaved: Option<HardState>,
    /// Commit index up to which [`Node::effects`] has searched for membership changes.
    looked_through: u64,
    /// Committed entries that are returned as effects once the batch with this number is on disk.
    withheld: (u64, Vec<Entry>),
    /// Term and vote of the last hard state that was given to the caller for the log.
    vote: (u64, u64),
    batches: Batches,
    /// The snapshot that is being restored.
    restoring: Option<Restoring>,
    /// Index of the last entry that the caller has applied. It is reported to raft once that entry is also
    /// synced.
    applied: Index,
    outbox: Outbox,
    followers: Followers,
    /// Reads that this leader has received and not begun to confirm.
    reads: Vec<eraftpb::Message>,
    acknowledged: Acknowledged,
    disk_stalled: bool,
    /// Forwarded proposals that wait until a leader is known, for at most two election timeouts (without a
    /// time limit if `speaks_as_etcd` is set).
    leaderless: LeaderlessQueue,
    /// Membership changes that other members have forwarded to this leader, and that wait because an earlier
    /// change is possibly not applied yet.
    early_changes: Vec<eraftpb::Message>,
    leaving: Option<Farewell>,
    /// True if the status has changed in a way that the raft crate does not report, so that the next effects
    /// must contain the status.
    stands_anew: bool,
    programs: Programs,
    /// The observers that this node feeds.
    feeds: Feeds,
    /// Reads of these observers that wait for the caller.
    observer_reads: Vec<ObserverRead>,
    /// If this node observes: where its entries come from.
    upstream: Upstream,
    /// The witness of the cluster, and whether this leader counts it.
    witness: Witness,
    /// Entries for the witness that it may not have yet.
    held: Option<Held>,
}

/// A snapshot that was given to the caller to be restored and is not synced yet.
struct Restoring {
    /// Index of the last entry in the snapshot.
    index: Index,
    /// Number of the batch to which the snapshot belongs.
    batch: u64,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("id", &self.config.id).field("status", &self.status()).finish()
    }
}

fn other(error: impl std::fmt::Display) -> Refusal {
    Refusal::Other(error.to_string())
}

impl Node {
    /// Starts a node from the restored state.
    ///
    /// # Errors
    ///
    /// Returns a refusal with the reason if the configuration and the restored state contradict each other.
    pub fn new(config: Config, restored: RestoredState) -> Result<Node, Refusal> {
        let (voters, mut learners) = (bare(restored.voters), bare(restored.learners));
        validate::check_members(&voters, &learners)?;
        if config.is_witness && config.observes {
            return Err(other("an observer that is a witness"));
        }
        if voters.contains(&config.id.0) && config.is_witness != (restored.witness == config.id) {
            return Err(other(
                "a witness that the cluster has as a member with data, or the other way round",
            ));
        }
        if config.observes {
            if voters.contains(&config.id.0) || learners.contains(&config.id.0) {
                return Err(other("an observer that is a member"));
            }
            // The raft crate installs no snapshot for a node that is not in the configuration, so an observer
            // is a learner in its own eyes only.
            if !voters.is_empty() {
                learners.push(config.id.0);
            }
        }
        let numbers = [restored.applied.0, restored.hard_state.term.0, restored.applied_term.0];
        if numbers.iter().any(|n| *n > wire::NUMBER_MAX) {
            return Err(other("a term or an index that is impossibly large"));
        }
        let mut tail = Tail {
            before_index: restored.applied.0,
            applied: restored.applied.0,
            terms: Terms::restore(
                &restored.terms,
                EntryId { index: restored.applied, term: restored.applied_term },
            )?,
            ..Tail::default()
        };
        let first_index =
            if restored.first_index == Index(0) { restored.applied.next() } else { restored.first_index };
        tail.first_index = first_index.max(tail.terms.first().next()).min(restored.applied.next()).0;
        tail.conf_state.voters = voters;
        tail.conf_state.learners = learners;
        let last_entry = restored.applied + restored.entries.len() as u64;
        tail.hard_state.term = restored.hard_state.term.0;
        tail.hard_state.vote = restored.hard_state.vote.0;
        if restored.applied_term > restored.hard_state.term {
            // The checkpoint has a newer term than the log. A vote in that term would be in the log, so this
            // member has not voted in it.
            tail.hard_state.term = restored.applied_term.0;
            tail.hard_state.vote = 0;
        }
        // The commit index in the log may be older than the applied index of the checkpoint, because no sync
        // is made only for a new commit index. It may also be beyond the end of the log, because a crash may
        // have lost the unsynced end of the log. So it is clamped to the entries that exist.
        tail.hard_state.commit = restored.hard_state.commit.clamp(restored.applied, last_entry).0;
        let entries: Vec<eraftpb::Entry> = restored.entries.iter().map(Entry::to_raft).collect();
        for (at, entry) in entries.iter().enumerate() {
            let expected = restored.applied.next() + at as u64;
            if entry.index != expected.0 {
                return Err(Refusal::Other(format!("the log has no entry {expected}")));
            }
        }
        tail.append(&entries);
        let vote = (tail.hard_state.term, tail.hard_state.vote);
        let looked_through = tail.hard_state.commit;

        let raft_config = raft::Config {
            id: config.id.0,
            election_tick: config.election_ticks,
            heartbeat_tick: config.heartbeat_ticks,
            applied: restored.applied.0,
            max_size_per_msg: APPEND_BYTES_MAX,
            max_inflight_msgs: APPENDS_IN_FLIGHT_MAX,
            check_quorum: true,
            pre_vote: config.pre_vote,
            // `batch_append` stays off, because it joins appends into one message without a limit on its
            // bytes.
            ..raft::Config::default()
        };
        if config.id == MemberId::NONE {
            return Err(other("a member with the id 0"));
        }
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let raw = RawNode::new(&raft_config, tail, &logger).map_err(other)?;
        let mut node = Node {
            raw,
            config,
            ticks: 0,
            unsaved: None,
            looked_through,
            withheld: (0, Vec::new()),
            vote,
            batches: Batches::new(last_entry),
            restoring: None,
            applied: restored.applied,
            outbox: Outbox::default(),
            followers: Followers::default(),
            reads: Vec::new(),
            acknowledged: Acknowledged::default(),
            disk_stalled: false,
            leaderless: LeaderlessQueue::default(),
            early_changes: Vec::new(),
            leaving: None,
            stands_anew: false,
            programs: Programs::default(),
            feeds: Feeds::default(),
            observer_reads: Vec::new(),
            upstream: Upstream::default(),
            witness: Witness::new(restored.witness.0),
            held: None,
        };
        node.settle_timeout();
        Ok(node)
    }

    /// Handles one event.
    ///
    /// # Errors
    ///
    /// Returns an error if the event contradicts the state of the node, which is a bug of Mainstay.
    pub fn step(&mut self, event: Event) -> Result<(), NodeBug> {
        let outcome = self.take(event);
        self.settle();
        outcome
    }

    /// Handles a request of a client or a peer.
    ///
    /// # Errors
    ///
    /// Returns a refusal if the node does not accept the request. The node is then unchanged.
    pub fn request(&mut self, request: Request) -> Result<(), Refusal> {
        let outcome = self.consider(request);
        self.settle();
        outcome
    }

    fn settle(&mut self) {
        self.settle_timeout();
        self.settle_leaderless();
        self.settle_leaving();
        self.settle_changes();
        self.settle_followers();
        self.settle_witness();
    }

    fn take(&mut self, event: Event) -> Result<(), NodeBug> {
        match event {
            Event::Ticked => self.tick(),
            Event::LogSynced(number) => return self.synced(number),
            Event::Applied(index) => {
                let committed = Index(self.raw.raft.raft_log.committed);
                if index > committed {
                    return Err(NodeBug(format!("entry {index} is applied, committed is {committed}")));
                }
                self.applied = self.applied.max(index);
                self.settle_applied();
            }
            Event::ConfChanged(change)
                if planted::is(Bug::RemovedVoterCounted) && change.kind == ConfChangeKind::Remove => {}
            Event::ConfChanged(change) if self.must_take_leave(change) => {
                self.reads.clear();
                // Members that know of the removal need not answer this node, so it must not step down
                // because of missing answers.
                self.raw.raft.set_check_quorum(false);
                self.stands_anew = true;
                self.leaving = Some(Farewell::new(Index(self.raw.raft.raft_log.committed), change));
            }
            Event::ConfChanged(change) => {
                if change == (ConfChange { kind: ConfChangeKind::AddVoter, node: self.config.id }) {
                    self.check_kind(self.witness() == self.config.id)?;
                }
                self.change_conf(change)?;
            }
            Event::Forgotten(index) => {
                let index = index.0.min(self.raw.raft.raft_log.applied);
                self.raw.mut_store().forget(index);
            }
            Event::Discarded(first) => {
                let first = first.0.min(self.raw.raft.raft_log.applied + 1);
                self.raw.mut_store().discard(first);
            }
            Event::StepDownRequested => {
                if self.raw.raft.state == StateRole::Leader {
                    self.stand_down();
                }
            }
            Event::PeerUnreachable(id) if id == self.config.id => {}
            Event::PeerUnreachable(id) => match self.feeds.get_mut(id.0) {
                Some(feed) => feed.unreachable(),
                None => self.raw.report_unreachable(id.0),
            },
            Event::SnapshotReported { to, delivered } => {
                if let Some(feed) = self.feeds.get_mut(to.0) {
                    feed.snapshot_ended(delivered, self.ticks, self.config.election_ticks as u64);
                    return Ok(());
                }
                let status = if delivered { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
                self.raw.report_snapshot(to.0, status);
            }
            Event::Fetched { fetch, entries } if self.feeds.contains(fetch.to.0) => {
                self.fetched_for_observer(fetch, &entries);
            }
            Event::Fetched { fetch, entries } => self.fetched(fetch, &entries),
            Event::ObserverAdded(id) => self.add_observer(id),
            Event::ObserverRemoved(id) => self.feeds.remove(id.0),
            Event::FeederChosen { feeder, silence_max } => self.follow_feeder(feeder, silence_max),
            Event::WitnessSet(id) => {
                if id == self.config.id {
                    self.check_kind(true)?;
                }
                self.witness.set(id.0);
            }
            Event::DiskRecovered => self.disk_stalled = false,
            Event::DiskStalled => {
                self.disk_stalled = true;
                if self.raw.raft.state != StateRole::Leader {
                    self.stand_down();
                }
            }
        }
        Ok(())
    }

    fn consider(&mut self, request: Request) -> Result<(), Refusal> {
        if self.leaving.is_some() && !matches!(request, Request::Receive(_)) {
            return Err(Refusal::NoLeader);
        }
        match request {
            Request::Propose(commands) => {
                if commands.is_empty() {
                    return Ok(());
                }
                let entries = commands.into_iter().map(|data| eraftpb::Entry { data, ..Default::default() });
                self.propose(entries.collect())
            }
            Request::ProposeConfChange(change, data) => self.propose_conf_change(change, data),
            Request::Campaign => {
                if !self.may_campaign() {
                    return Err(other("this member must not campaign now"));
                }
                self.raw.campaign().map_err(other)
            }
            Request::Receive(message) => self.receive(message),
            Request::Read(context) => {
                if self.leader() == 0 {
                    return Err(Refusal::NoLeader);
                }
                let data = Bytes::copy_from_slice(&context.to_be_bytes());
                let mut message = eraftpb::Message::default();
                message.set_msg_type(MessageType::MsgReadIndex);
                let term = self.term_of_asker();
                message.set_entries(vec![eraftpb::Entry { data, term, ..Default::default() }].into());
                self.read(message)
            }
            Request::AnswerObserver(read, index) => {
                self.answer_observer(read, index);
                Ok(())
            }
            Request::Transfer(to) => {
                if self.raw.raft.leader_id == 0 {
                    return Err(Refusal::NoLeader);
                }
                if !self.raw.raft.prs().conf().voters().contains(to.0) {
                    return Err(Refusal::Other(format!("member {to:x} has no vote and cannot lead")));
                }
                if to == self.witness() && !planted::is(Bug::WitnessCampaigns) {
                    return Err(Refusal::Other(format!("member {to:x} is a witness and cannot lead")));
                }
                self.raw.transfer_leader(to.0);
                Ok(())
            }
        }
    }

    fn change_conf(&mut self, change: ConfChange) -> Result<(), NodeBug> {
        let state = self.raw.apply_conf_change(&change.to_raft()).map_err(|e| NodeBug(e.to_string()))?;
        self.raw.mut_store().conf_state = state;
        // A leader that has no vote must not count itself for a quorum, but the raft crate always does. So
        // such a member must not lead.
        if !self.raw.raft.promotable() {
            self.stand_down();
        }
        Ok(())
    }

    /// Becomes a follower without a leader in the same term, unless this node is a follower already.
    fn stand_down(&mut self) {
        if self.raw.raft.state != StateRole::Follower {
            let term = self.raw.raft.term;
            self.raw.raft.become_follower(term, 0);
        }
    }

    /// Returns true if this node may start an election now.
    fn may_campaign(&self) -> bool {
        let log = &self.raw.raft.raft_log;
        self.raw.raft.promotable()
            && !self.never_leads()
            && !self.disk_stalled
            // Before an election, raft searches for conf changes between the applied and the committed index.
            // A snapshot that is not restored yet leaves a gap in that range, so no election may begin.
            && self.restoring.is_none()
            // A candidate announces which entries its log has, so these must be on disk. Also, a sole voter
            // becomes leader immediately, and the raft crate requires that the log of a new leader is synced.
            && log.persisted == log.last_index()
    }

    fn tick(&mut self) {
        self.ticks += 1;
        let raft = &mut self.raw.raft;
        let due = raft.state != StateRole::Leader
            && raft.election_elapsed + 1 >= raft.randomized_election_timeout();
        if due && !self.may_campaign() {
            // No election begins, but the time still counts. Otherwise this node would regard a leader that
            // is gone as alive, and would ignore the vote requests of other members.
            self.raw.raft.election_elapsed += 1;
        } else {
            self.raw.tick();
        }
        self.tick_feeds();
    }

    fn propose(&mut self, entries: Vec<eraftpb::Entry>) -> Result<(), Refusal> {
        if self.leader() == 0 {
            return Err(Refusal::NoLeader);
        }
        if self.transferring().is_some() {
            return Err(Refusal::Transferring);
        }
        let mut message = eraftpb::Message::default();
        message.set_msg_type(MessageType::MsgPropose);
        message.from = self.config.id.0;
        message.entries = entries.into();
        if self.binds_proposals() && !self.config.speaks_as_etcd {
            // The context binds the proposal to the leader of this term, see `is_for_another_term`.
            message.context = Bytes::copy_from_slice(&self.raw.raft.term.to_be_bytes());
        }
        match self.raw.raft.step(message) {
            Ok(()) => Ok(()),
            Err(raft::Error::ProposalDropped) => Err(Refusal::NoLeader),
            Err(e) => Err(other(e)),
        }
    }

    fn propose_conf_change(&mut self, change: crate::ConfChange, data: Bytes) -> Result<(), Refusal> {
        // The change is refused here, because the raft crate would append an empty entry instead of it, and
        // the caller would not learn that the change was lost.
        if self.raw.raft.state == StateRole::Leader && self.raw.raft.has_pending_conf() {
            return Err(other("an earlier membership change may not be applied yet"));
        }
        if change.kind == ConfChangeKind::Remove
            && self.raw.raft.state == StateRole::Leader
            && !self.may_remove(change.node)
        {
            return Err(other("the member has what the others may lack, because the witness counts"));
        }
        let entry = wire::conf_change_entry(change, data)?;
        self.propose(vec![entry])
    }

    fn synced(&mut self, number: u64) -> Result<(), NodeBug> {
        self.batches.synced(number)?;
        // The raft crate identifies synced entries by index and term. If an entry is overwritten and later
        // appended again with the same index and term, the raft crate would take the old copy on disk for the
        // new one. But a crash may leave the overwriting batch on disk and lose the new entry. So the raft
        // crate is not notified of syncs while a batch that replaces entries is in flight.
        if !self.batches.are_replacing() || planted::is(Bug::OverwrittenCountsAsSynced) {
            self.raw.on_persist_ready(self.batches.synced_through());
        }
        if let Some(restored) = self.restoring.take_if(|restoring| restoring.batch <= number) {
            self.applied = self.applied.max(restored.index);
        }
        self.settle_applied();
        self.outbox.synced(number);
        Ok(())
    }

    /// Reports the applied index to raft, but not beyond the synced entries.
    fn settle_applied(&mut self) {
        let log = &self.raw.raft.raft_log;
        let applied = self.applied.0.min(log.committed).min(log.persisted);
        if applied > log.applied {
            self.raw.advance_apply_to(applied);
            self.raw.mut_store().applied = applied;
        }
    }

    /// Replaces the raft crate's random election timeout by a function of the seed, the term and the time for
    /// which the node has run, so that a run can be repeated, and two members with equal timeouts in one term
    /// have different timeouts in the next.
    fn settle_timeout(&mut self) {
        let ticks = self.config.election_ticks as u64;
        let mut x = self.config.seed
            ^ self.raw.raft.term.rotate_left(17)
            ^ (self.ticks / (2 * ticks)).rotate_left(41);
        // The finalizer of SplitMix64 (Steele, Lea, Flood 2014), which mixes the bits.
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^= x >> 31;
        let timeout = ticks + x % ticks;
        self.raw
            .raft
            .set_randomized_election_timeout(usize::try_from(timeout).unwrap_or(self.config.election_ticks));
    }
}

/// Returns the ids of members as the raft crate uses them.
fn bare(ids: Vec<MemberId>) -> Vec<u64> {
    ids.into_iter().map(|id| id.0).collect()
}

fn named(ids: &[u64]) -> Vec<MemberId> {
    ids.iter().copied().map(MemberId).collect()
}
