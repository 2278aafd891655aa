//! The raft node: its decisions are returned as effects for the caller to carry out. [`Node::step`] and
//! [`Node::request`] take events and requests, [`Node::effects`] returns the resulting actions. The node
//! itself carries out nothing.

use std::collections::{BTreeMap, BTreeSet};

use api::raftpb;
use bytes::Bytes;
use numbers::{EntryId, Index, MemberId, Term};
use planted::Bug;
use raft::eraftpb::{self, MessageType};
use raft::{RawNode, SnapshotStatus, StateRole};

use crate::batches::Batches;
use crate::effects::{
    Append, ConfirmedRead, Effects, Others, Progress, ProgressState, Restore, Role, Standing,
};
use crate::entry::{ConfChange, ConfChangeKind, Entry, HardState};
use crate::event::{Broken, Config, Event, Fetch, Refused, Request, Restored};
use crate::followers::Followers;
use crate::leaderless::LeaderlessQueue;
use crate::outbox::Outbox;
use crate::programs::Programs;
use crate::tail::Tail;
use crate::terms::Terms;
use crate::validate;
use crate::wire::{self, BINDS_AND_NO_ETCD, BINDS_PROPOSALS, RUNS_MAINSTAY};

/// Maximum payload bytes of one append, and of entries read back from the log for a follower at a time.
const APPEND_BYTES_MAX: u64 = 1024 * 1024;
/// Maximum number of appends in flight to one follower.
const APPENDS_IN_FLIGHT_MAX: usize = 512;
/// Maximum number of reads for which a leader seeks confirmation at the same time.
const PENDING_READS_MAX: usize = 4096;
/// Maximum number of membership changes forwarded by other members that wait for an earlier one.
const EARLY_CHANGES_MAX: usize = 64;

/// Context of the heartbeats with which a removed leader announces that its removal is committed, and of
/// their answers.
const FAREWELL: &[u8] = b"mainstay farewell";

/// A leader whose own removal has been applied, until enough other members know that it is committed.
///
/// Only a leader announces the commit index, and members that do not know that the removal is committed still
/// count the removed member: of two members, the remaining one would wait for its vote for ever. So the
/// removed leader continues to send entries and heartbeats. To the raft crate the change is not applied yet,
/// because its leader must have a vote. That is safe: the leader takes no more proposals, and any majority of
/// the voters before the change has a member in common with any majority after it.
///
/// Worked example: 1 leads {1, 2} and is removed by entry 7. 2 has acknowledged 7, but the message that
/// announces its commit was lost. 1 sends heartbeats with commit 7 and the context of a farewell; 2 applies
/// entry 7, and its answer repeats the context: 1 steps down.
struct Leaving {
    /// A commit index at or after the removal: a member that has it knows the removal.
    index: Index,
    /// Ids of the members that know the removal.
    told: BTreeSet<u64>,
    /// Tick at which the removal was last announced to each member.
    said: BTreeMap<u64, u64>,
    change: ConfChange,
}

/// One member's raft node.
pub struct Node {
    raw: RawNode<Tail>,
    config: Config,
    ticks: u64,
    /// A hard state that differs only in the commit index: it goes to the log with the next write that is
    /// needed, because a commit index that is lost in a crash is found again.
    unsaved: Option<HardState>,
    /// Commit index up to which [`Node::effects`] has searched for membership changes.
    looked_through: u64,
    /// Committed entries that are given out once the batch with this number is on disk.
    withheld: (u64, Vec<Entry>),
    /// Term and vote as last given out for the log.
    vote: (u64, u64),
    batches: Batches,
    /// The snapshot that is being restored.
    restoring: Option<Restoring>,
    /// Index of the last entry that the caller has applied; raft is notified once that entry is synced, too.
    applied: Index,
    outbox: Outbox,
    followers: Followers,
    /// Reads that arrived before this leader had committed an entry of its term.
    early_reads: Vec<eraftpb::Message>,
    disk_stalled: bool,
    /// Forwarded proposals that wait until a leader is known, for at most two election timeouts; if
    /// `speaks_as_etcd` is set, without a time limit.
    leaderless: LeaderlessQueue,
    /// Membership changes that other members forwarded to this leader while an earlier one may not be applied
    /// yet.
    early_changes: Vec<eraftpb::Message>,
    leaving: Option<Leaving>,
    /// True if the standing has changed in a way that the raft crate does not report.
    stands_anew: bool,
    programs: Programs,
}

/// A snapshot that was given out to be restored and is not synced yet.
struct Restoring {
    /// Index of the last entry in the snapshot.
    index: Index,
    /// Number of the batch that the snapshot belongs to.
    batch: u64,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("id", &self.config.id).field("standing", &self.standing()).finish()
    }
}

fn other(error: impl std::fmt::Display) -> Refused {
    Refused::Other(error.to_string())
}

impl Node {
    /// Starts a node from the restored state.
    ///
    /// # Errors
    ///
    /// Configuration and restored state contradict each other; the text gives the reason.
    pub fn new(config: Config, restored: Restored) -> Result<Node, Refused> {
        let (voters, learners) = (bare(restored.voters), bare(restored.learners));
        validate::check_members(&voters, &learners)?;
        let numbers = [restored.applied.0, restored.hard_state.term.0, restored.applied_term.0];
        if numbers.iter().any(|n| *n > wire::NUMBER_MAX) {
            return Err(other("a term or an index beyond all measure"));
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
            // The checkpoint has a newer term than the log; in that term no vote was given.
            tail.hard_state.term = restored.applied_term.0;
            tail.hard_state.vote = 0;
        }
        // A commit index is not synced for its own sake, so the checkpoint may contain a newer one; and it
        // may cover entries beyond a log whose unsynced end was lost.
        tail.hard_state.commit = restored.hard_state.commit.clamp(restored.applied, last_entry).0;
        let entries: Vec<eraftpb::Entry> = restored.entries.iter().map(Entry::to_raft).collect();
        for (at, entry) in entries.iter().enumerate() {
            let expected = restored.applied.next() + at as u64;
            if entry.index != expected.0 {
                return Err(Refused::Other(format!("the log has no entry {expected}")));
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
            // `batch_append` stays off: it joins appends into one without any limit on its bytes.
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
            early_reads: Vec::new(),
            disk_stalled: false,
            leaderless: LeaderlessQueue::default(),
            early_changes: Vec::new(),
            leaving: None,
            stands_anew: false,
            programs: Programs::default(),
        };
        node.settle_timeout();
        Ok(node)
    }

    /// Takes one event.
    ///
    /// # Errors
    ///
    /// The event contradicts the node's state: a bug of this program.
    pub fn step(&mut self, event: Event) -> Result<(), Broken> {
        let outcome = self.take(event);
        self.settle();
        outcome
    }

    /// Handles a request of a client or a peer.
    ///
    /// # Errors
    ///
    /// The request is refused, and nothing has changed.
    pub fn request(&mut self, request: Request) -> Result<(), Refused> {
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
        self.settle_reads();
    }

    fn take(&mut self, event: Event) -> Result<(), Broken> {
        match event {
            Event::Ticked => self.tick(),
            Event::LogSynced(number) => return self.synced(number),
            Event::Applied(index) => {
                let committed = Index(self.raw.raft.raft_log.committed);
                if index > committed {
                    return Err(Broken(format!("entry {index} is applied, committed is {committed}")));
                }
                self.applied = self.applied.max(index);
                self.settle_applied();
            }
            Event::ConfChanged(change)
                if planted::is(Bug::RemovedVoterCounted) && change.kind == ConfChangeKind::Remove => {}
            Event::ConfChanged(change) if self.must_take_leave(change) => {
                self.early_reads.clear();
                // The remaining members need not answer this node.
                self.raw.raft.set_check_quorum(false);
                self.stands_anew = true;
                self.leaving = Some(Leaving {
                    index: Index(self.raw.raft.raft_log.committed),
                    told: BTreeSet::new(),
                    said: BTreeMap::new(),
                    change,
                });
            }
            Event::ConfChanged(change) => self.change_conf(change)?,
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
            Event::PeerUnreachable(id) => self.raw.report_unreachable(id.0),
            Event::SnapshotReported { to, delivered } => {
                let status = if delivered { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
                self.raw.report_snapshot(to.0, status);
            }
            Event::Fetched { fetch, entries } => self.fetched(fetch, &entries),
            Event::DiskStalled(stalled) => {
                self.disk_stalled = stalled;
                if stalled && self.raw.raft.state != StateRole::Leader {
                    self.stand_down();
                }
            }
        }
        Ok(())
    }

    fn consider(&mut self, request: Request) -> Result<(), Refused> {
        if self.leaving.is_some() && !matches!(request, Request::Receive(_)) {
            return Err(Refused::NoLeader);
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
                if self.raw.raft.leader_id == 0 {
                    return Err(Refused::NoLeader);
                }
                let data = Bytes::copy_from_slice(&context.to_be_bytes());
                let mut message = eraftpb::Message::default();
                message.set_msg_type(MessageType::MsgReadIndex);
                message.set_entries(vec![eraftpb::Entry { data, ..Default::default() }].into());
                self.read(message)
            }
            Request::Transfer(to) => {
                if self.raw.raft.leader_id == 0 {
                    return Err(Refused::NoLeader);
                }
                if !self.raw.raft.prs().conf().voters().contains(to.0) {
                    return Err(Refused::Other(format!("member {to:x} has no vote and cannot lead")));
                }
                self.raw.transfer_leader(to.0);
                Ok(())
            }
        }
    }

    fn change_conf(&mut self, change: ConfChange) -> Result<(), Broken> {
        let state = self.raw.apply_conf_change(&change.to_raft()).map_err(|e| Broken(e.to_string()))?;
        self.raw.mut_store().conf_state = state;
        // A leader without a vote must not count itself, and the raft crate cannot lead without doing that.
        if !self.raw.raft.promotable() {
            self.stand_down();
        }
        Ok(())
    }

    /// Returns true if a change removes this node while it leads others.
    fn must_take_leave(&self, change: ConfChange) -> bool {
        let own = self.config.id.0;
        self.leaving.is_none()
            && change == (ConfChange { kind: ConfChangeKind::Remove, node: self.config.id })
            && self.raw.raft.state == StateRole::Leader
            && self.raw.store().conf_state.voters.iter().any(|id| *id != own)
            && !planted::is(Bug::RemovedLeaderSilent)
    }

    /// Returns true while this node, whose removal it has applied as a leader, makes sure that a majority of
    /// the other members knows of the removal. Its process should continue until then, for some election
    /// timeouts.
    pub fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// Announces the committed removal to the members that have its entry; once enough know it, it is applied
    /// here, too.
    fn settle_leaving(&mut self) {
        let Some(leaving) = &mut self.leaving else { return };
        let own = self.config.id.0;
        let raft = &self.raw.raft;
        let leads = raft.state == StateRole::Leader;
        let others = self.raw.store().conf_state.voters.iter().filter(|id| **id != own);
        let told = others.clone().filter(|id| leaving.told.contains(id)).count();
        if !leads || told > others.count() / 2 {
            let change = leaving.change;
            self.leaving = None;
            self.raw.raft.set_check_quorum(true);
            // The removal was checked when it was applied: the other voters are left.
            let changed = self.change_conf(change);
            assert!(changed.is_ok(), "a committed removal with voters left can be applied: {changed:?}");
            return;
        }
        let (term, committed, persisted) = (raft.term, raft.raft_log.committed, raft.raft_log.persisted);
        for (id, progress) in raft.prs().iter() {
            let knows = *id == own || leaving.told.contains(id) || progress.matched < leaving.index.0;
            if knows || leaving.said.insert(*id, self.ticks) == Some(self.ticks) {
                continue;
            }
            let mut message = eraftpb::Message {
                to: *id,
                from: own,
                term,
                commit: progress.matched.min(committed),
                context: Bytes::from_static(FAREWELL),
                ..eraftpb::Message::default()
            };
            message.set_msg_type(MessageType::MsgHeartbeat);
            self.outbox.post(message, persisted);
        }
    }

    /// Becomes a follower without a leader in the same term, unless it is a follower already.
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
            && !self.disk_stalled
            // Raft searches for conf changes between the applied and the committed index, and a snapshot that
            // is not restored yet leaves a gap there.
            && self.restoring.is_none()
            // A candidate states which entries its log has. A sole voter becomes leader at once, and the raft
            // crate requires that its log is synced by then.
            && log.persisted == log.last_index()
    }

    fn tick(&mut self) {
        self.ticks += 1;
        let raft = &mut self.raw.raft;
        let due = raft.state != StateRole::Leader
            && raft.election_elapsed + 1 >= raft.randomized_election_timeout();
        if due && !self.may_campaign() {
            // Time is counted all the same, so that the node does not stick to a leader that is gone.
            self.raw.raft.election_elapsed += 1;
        } else {
            self.raw.tick();
        }
    }

    fn propose(&mut self, entries: Vec<eraftpb::Entry>) -> Result<(), Refused> {
        if self.raw.raft.leader_id == 0 {
            return Err(Refused::NoLeader);
        }
        if self.transferring().is_some() {
            return Err(Refused::Transferring);
        }
        let mut message = eraftpb::Message::default();
        message.set_msg_type(MessageType::MsgPropose);
        message.from = self.config.id.0;
        message.entries = entries.into();
        if self.binds_proposals() && !self.config.speaks_as_etcd {
            // Binds the proposal to the leader of this term, see `is_for_another_term`.
            message.context = Bytes::copy_from_slice(&self.raw.raft.term.to_be_bytes());
        }
        match self.raw.raft.step(message) {
            Ok(()) => Ok(()),
            Err(raft::Error::ProposalDropped) => Err(Refused::NoLeader),
            Err(e) => Err(other(e)),
        }
    }

    /// Returns true if a proposal made now gets into the log in the present term or never, so that it may be
    /// proposed again once an entry of a newer term is applied. This holds if this node leads, or if the
    /// leader has announced it. It does not hold for etcd's members, which pass a late proposal on to the
    /// leader of that time. A leader is not known to bind proposals before its first message of the term has
    /// arrived.
    pub fn binds_proposals(&self) -> bool {
        let raft = &self.raw.raft;
        raft.state == StateRole::Leader
            || self.programs.is_bound(raft.term)
            || planted::is(Bug::ProposedAgainAfterEtcd)
    }

    /// Returns the programs that the other members run, by their answers to this leader in its term; a member
    /// that is down counts by its last answer. [`Others::Unheard`] on members that do not lead.
    pub fn others(&self) -> Others {
        if self.raw.raft.state != StateRole::Leader || self.config.speaks_as_etcd {
            return Others::Unheard;
        }
        let others = self.raw.raft.prs().iter().filter(|(id, _)| **id != self.config.id.0);
        others.fold(Others::Mainstay, |all, (id, _)| match self.runs_mainstay(*id) {
            Some(true) => all,
            Some(false) => Others::SomeEtcd,
            None if all == Others::SomeEtcd => all,
            None => Others::Unheard,
        })
    }

    /// Returns true if every other voter is known not to run etcd, and no learner is known to run it: by
    /// their answers to this leader in its term, or by the last heartbeat of the leader that this member
    /// follows.
    pub fn has_no_etcd(&self) -> bool {
        let raft = &self.raw.raft;
        if raft.state != StateRole::Leader {
            return self.programs.has_no_etcd(raft.term);
        }
        let voters = raft.prs().conf().voters();
        raft.prs().iter().filter(|(id, _)| **id != self.config.id.0).all(|(id, _)| {
            // A learner that was just added may not have been started.
            self.runs_mainstay(*id).unwrap_or(!voters.contains(*id))
        })
    }

    /// Returns true if this member has followed a leader that runs etcd since it was started, or since the
    /// last call.
    pub fn take_followed_etcd(&mut self) -> bool {
        self.programs.take_followed_etcd()
    }

    /// Returns `Some(true)` if this member's last answer to this leader shows that it does not run etcd;
    /// `None` if it has not answered in this leader's term.
    fn runs_mainstay(&self, id: u64) -> Option<bool> {
        self.programs.runs_mainstay(id, self.raw.raft.term)
    }

    /// Records the program that a member runs, from its answer to this leader.
    fn note_answer(&mut self, from: u64, term: u64, hint: u64) {
        let raft = &self.raw.raft;
        if raft.state != StateRole::Leader || raft.term != term || raft.prs().get(from).is_none() {
            return;
        }
        self.programs.answered(from, term, hint == RUNS_MAINSTAY);
    }

    fn propose_conf_change(&mut self, change: crate::ConfChange, data: Bytes) -> Result<(), Refused> {
        // The raft crate would append an empty entry instead, and no caller would learn of it.
        if self.raw.raft.state == StateRole::Leader && self.raw.raft.has_pending_conf() {
            return Err(other("an earlier membership change may not be applied yet"));
        }
        let entry = wire::conf_change_entry(change, data)?;
        self.propose(vec![entry])
    }

    /// Takes a read of a client or a follower. The raft crate's leader drops reads that arrive before it has
    /// committed an entry of its term, because it does not know the commit index before that; here they wait.
    fn read(&mut self, message: eraftpb::Message) -> Result<(), Refused> {
        let raft = &mut self.raw.raft;
        if raft.pending_read_count() + self.early_reads.len() >= PENDING_READS_MAX {
            return Err(other("too many reads wait for confirmation"));
        }
        if raft.state == StateRole::Leader && !raft.commit_to_current_term() {
            self.early_reads.push(message);
            return Ok(());
        }
        raft.step(message).map_err(other)
    }

    fn is_early_change(&self, message: &eraftpb::Message) -> bool {
        let raft = &self.raw.raft;
        raft.state == StateRole::Leader
            && raft.has_pending_conf()
            && message.entries.iter().any(|entry| entry.entry_type == eraftpb::EntryType::EntryConfChange)
    }

    fn settle_changes(&mut self) {
        if self.early_changes.is_empty() {
            return;
        }
        if self.raw.raft.state != StateRole::Leader || self.leaving.is_some() {
            self.early_changes.clear();
        } else if !self.raw.raft.has_pending_conf() && self.transferring().is_none() {
            let message = self.early_changes.remove(0);
            // A dropped change counts as lost by the network.
            let _ = self.raw.raft.step(message);
        }
    }

    fn settle_reads(&mut self) {
        if self.early_reads.is_empty() {
            return;
        }
        if self.raw.raft.state != StateRole::Leader {
            self.early_reads.clear();
        } else if self.raw.raft.commit_to_current_term() {
            for message in std::mem::take(&mut self.early_reads) {
                let taken = self.raw.raft.step(message);
                assert!(taken.is_ok(), "a leader takes reads");
            }
        }
    }

    fn receive(&mut self, message: raftpb::Message) -> Result<(), Refused> {
        let mut message = wire::message_to_raft(message)?;
        if message.get_msg_type() == MessageType::MsgPropose && message.term != 0 {
            if self.config.speaks_as_etcd && message.term != self.raw.raft.term {
                return Err(Refused::NoLeader);
            }
            message.context = Bytes::copy_from_slice(&message.term.to_be_bytes());
            message.term = 0;
        }
        validate::check(&message, &self.raw)?;
        let (kind, from, term) = (message.get_msg_type(), message.from, message.term);
        let hint = message.reject_hint;
        let no_etcd = kind == MessageType::MsgHeartbeat && hint == BINDS_AND_NO_ETCD;
        let binds = (hint == BINDS_PROPOSALS || no_etcd)
            && matches!(kind, MessageType::MsgAppend | MessageType::MsgHeartbeat)
            && !self.config.speaks_as_etcd;
        match kind {
            MessageType::MsgHeartbeatResponse => self.note_answer(from, term, hint),
            MessageType::MsgAppendResponse if !message.reject => self.note_answer(from, term, hint),
            _ => {}
        }
        if let Some(leaving) = &mut self.leaving {
            match kind {
                MessageType::MsgPropose | MessageType::MsgReadIndex | MessageType::MsgTransferLeader => {
                    return Err(Refused::NoLeader);
                }
                MessageType::MsgHeartbeatResponse
                    if message.term == self.raw.raft.term && message.context[..] == *FAREWELL =>
                {
                    leaving.told.insert(from);
                }
                _ => {}
            }
        }
        match kind {
            // The leader takes proposals again if no member campaigns.
            MessageType::MsgTimeoutNow if !self.may_campaign() => return Ok(()),
            MessageType::MsgTransferLeader if message.term == self.raw.raft.term => message.term = 0,
            MessageType::MsgReadIndex => return self.read(message),
            // A member that binds its proposal to a term learns of a new leader and proposes again. etcd's
            // members do not: without this, each of their clients would wait for its timeout, as it does
            // where etcd leads.
            MessageType::MsgPropose if self.transferring().is_some() => {
                let may_keep = !self.config.speaks_as_etcd && wire::bound_term(&message).is_none();
                let is_kept = may_keep && self.wait_for_leader(message);
                return if is_kept { Ok(()) } else { Err(Refused::Transferring) };
            }
            MessageType::MsgPropose if self.config.speaks_as_etcd => return self.pass_on(message),
            MessageType::MsgPropose if self.is_for_another_term(&message) => {
                return Err(Refused::NoLeader);
            }
            MessageType::MsgPropose if self.raw.raft.leader_id == 0 => {
                return if self.wait_for_leader(message) { Ok(()) } else { Err(Refused::NoLeader) };
            }
            // The raft crate would append an empty entry instead.
            MessageType::MsgPropose if self.is_early_change(&message) => {
                if self.early_changes.len() >= EARLY_CHANGES_MAX {
                    return Err(other("too many membership changes wait"));
                }
                self.early_changes.push(message);
                return Ok(());
            }
            // As etcd's members do: the next receiver sees the forwarding member as the sender.
            MessageType::MsgPropose if self.raw.raft.state != StateRole::Leader => {
                message.from = self.config.id.0;
            }
            _ => {}
        }
        match self.raw.step(message) {
            Ok(()) => {}
            Err(raft::Error::ProposalDropped) => return Err(Refused::NoLeader),
            Err(e) => return Err(other(e)),
        }
        if self.raw.raft.leader_id == from && self.raw.raft.term == term {
            if binds {
                self.programs.binds(term);
            }
            if kind == MessageType::MsgHeartbeat {
                let is_etcd = !binds && !self.config.speaks_as_etcd;
                self.programs.heartbeat(term, no_etcd, is_etcd);
            }
        }
        if kind == MessageType::MsgHeartbeatResponse
            && let Some(append) = self.followers.nudge(from, self.ticks)
        {
            let persisted = self.raw.raft.raft_log.persisted;
            self.outbox.post(append, persisted);
        }
        Ok(())
    }

    /// Returns true if a forwarded proposal is bound to a term in which this node does not lead. The
    /// forwarding member may then conclude, from the first entry of a newer term, that the proposal never got
    /// into the log, and propose it again: so it must not get there in another way. Proposals of etcd's
    /// members have no term; they are taken at any time.
    fn is_for_another_term(&self, message: &eraftpb::Message) -> bool {
        if planted::is(Bug::ForwardedInAnyTerm) {
            return false;
        }
        let raft = &self.raw.raft;
        wire::bound_term(message).is_some_and(|term| term != raft.term || raft.state != StateRole::Leader)
    }

    /// Takes a forwarded proposal as etcd's members do: like this member's own proposal, which may reach a
    /// leader in any term.
    fn pass_on(&mut self, mut message: eraftpb::Message) -> Result<(), Refused> {
        message.context = Bytes::new();
        if self.raw.raft.leader_id == 0 {
            self.wait_for_leader(message);
            return Ok(());
        }
        message.from = self.config.id.0;
        self.raw.raft.step(message).map_err(other)
    }

    /// Keeps a forwarded proposal until a leader is known. Returns false if the limits are reached.
    fn wait_for_leader(&mut self, mut message: eraftpb::Message) -> bool {
        message.from = self.config.id.0;
        self.leaderless.push(message, self.ticks)
    }

    fn settle_leaderless(&mut self) {
        if self.leaderless.is_empty() {
            return;
        }
        let waited = self.leaderless.waited(self.ticks);
        if waited > 2 * self.config.election_ticks as u64 && !self.config.speaks_as_etcd {
            self.leaderless.take();
        } else if self.raw.raft.leader_id != 0 && self.transferring().is_none() && self.leaving.is_none() {
            for message in self.leaderless.take() {
                if self.is_early_change(&message) && self.early_changes.len() < EARLY_CHANGES_MAX {
                    self.early_changes.push(message);
                    continue;
                }
                // A proposal that is dropped now is lost, as in etcd.
                let _ = self.raw.raft.step(message);
            }
        }
    }

    fn synced(&mut self, number: u64) -> Result<(), Broken> {
        self.batches.synced(number)?;
        // The raft crate identifies synced entries by index and term. If an entry was overwritten and written
        // again, it would confuse the new entry with the one on disk, although the overwriting may still
        // reach the disk and the rest be lost. So it is not notified of any sync while an overwriting batch
        // is in flight.
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

    /// Reports to raft the applied index, limited to synced entries.
    fn settle_applied(&mut self) {
        let log = &self.raw.raft.raft_log;
        let applied = self.applied.0.min(log.committed).min(log.persisted);
        if applied > log.applied {
            self.raw.advance_apply_to(applied);
            self.raw.mut_store().applied = applied;
        }
    }

    fn fetched(&mut self, fetch: Fetch, entries: &[Entry]) {
        if !self.followers.fetched(fetch) {
            return;
        }
        let tail = self.raw.store();
        let sound = entries.iter().enumerate().all(|(at, entry)| {
            entry.index == fetch.first + at as u64
                && entry.index < fetch.last
                && tail.term_of(entry.index.0) == Some(entry.term.0)
        });
        // Entries that cannot be read are requested again when the follower answers the next heartbeat.
        if entries.is_empty() || !sound {
            return;
        }
        let entries = entries.iter().map(Entry::to_raft).collect();
        self.raw.mut_store().fetched.insert(fetch.to.0, entries);
        // The first turn sends the entries that were read; the second requests the entries after them, so
        // that the disk reads while the network sends.
        for turn in 0..2 {
            let before_index = self.raw.store().before_index;
            let ready = self.raw.raft.prs().get(fetch.to.0).is_some_and(|progress| {
                !progress.is_paused() && (turn == 0 || progress.next_idx <= before_index)
            });
            if ready {
                self.raw.raft.send_append(fetch.to.0);
            }
        }
    }

    /// Returns the actions that result from the events so far; `None` once nothing more is to be done.
    pub fn effects(&mut self) -> Option<Effects> {
        if !self.raw.has_ready() {
            let commit = self.given_out(Vec::new());
            self.assert_order(&commit);
            let quiet = self.outbox.is_empty() && !self.followers.has_fetches() && !self.stands_anew;
            if quiet && commit.is_empty() {
                return None;
            }
            let standing = std::mem::take(&mut self.stands_anew).then(|| self.standing());
            return Some(Effects {
                standing,
                commit,
                messages: self.outgoing(),
                fetches: self.followers.take_fetches(),
                ..Effects::default()
            });
        }
        let mut ready = self.raw.ready();
        let mut effects = Effects::default();
        if ready.ss().is_some() || std::mem::take(&mut self.stands_anew) {
            effects.standing = Some(self.standing());
        }
        // `Outbox` decides which messages wait for which batch, not the raft crate.
        let mut messages = ready.take_messages();
        messages.append(&mut ready.take_persisted_messages());
        let committed = ready.take_committed_entries();
        effects.reads = ready.take_read_states().into_iter().filter_map(read_of).collect();
        let hard_state = ready.hs().cloned();
        let number = ready.number();
        self.batches.made(number);
        if !ready.snapshot().is_empty() {
            let metadata = ready.snapshot().get_metadata().clone();
            self.raw.mut_store().restore(&metadata);
            self.withheld.1.clear();
            self.restoring = Some(Restoring { index: Index(metadata.index), batch: number });
            let state = metadata.get_conf_state();
            effects.restore = Some(Restore {
                index: Index(metadata.index),
                term: Term(metadata.term),
                voters: named(&state.voters),
                learners: named(&state.learners),
            });
        }
        let entries = ready.take_entries();
        let last = self.raw.store().last();
        let replaces = effects.restore.is_some() || entries.first().is_some_and(|entry| entry.index <= last);
        self.raw.mut_store().append(&entries);
        if let Some(hs) = &hard_state {
            self.unsaved =
                Some(HardState { term: Term(hs.term), vote: MemberId(hs.vote), commit: Index(hs.commit) });
            self.raw.mut_store().hard_state = hs.clone();
        }
        let notes_commit = self.notes_commit_first();
        if notes_commit {
            self.withheld.0 = number;
        }
        effects.commit = self.given_out(committed);
        self.assert_order(&effects.commit);
        let must_sync = ready.must_sync() || notes_commit;
        self.raw.advance_append_async(ready);
        if must_sync {
            let vote = hard_state.map_or(self.vote, |hs| (hs.term, hs.vote));
            self.outbox.appended(number, vote != self.vote || notes_commit);
            self.vote = vote;
            self.batches.appended(number, Index(self.raw.store().last()), replaces);
            let entries = entries.into_iter().map(Entry::from_raft).collect();
            effects.append = Some(Append { number, entries, hard_state: self.unsaved.take() });
        } else if self.batches.are_synced() {
            // The raft crate keeps a record of each batch until it is notified of the sync.
            self.raw.on_persist_ready(number);
        }
        self.post(messages);
        effects.messages = self.outgoing();
        effects.fetches = self.followers.take_fetches();
        Some(effects)
    }

    /// Returns the committed entries that may be applied, in order.
    fn given_out(&mut self, committed: Vec<eraftpb::Entry>) -> Vec<Entry> {
        let committed = committed.into_iter().map(Entry::from_raft);
        let (batch, withheld) = &mut self.withheld;
        if self.outbox.is_synced(*batch) {
            if withheld.is_empty() {
                return committed.collect();
            }
            let mut all = std::mem::take(withheld);
            all.extend(committed);
            return all;
        }
        withheld.extend(committed);
        Vec::new()
    }

    /// Asserts the order of positions that [`Standing`] and [`Effects::commit`] promise. An entry given out
    /// earlier would be applied from a log that may still lose or replace it.
    fn assert_order(&self, given_out: &[Entry]) {
        let log = &self.raw.raft.raft_log;
        let (commit, last, synced) = (Index(log.committed), Index(log.last_index()), Index(log.persisted));
        assert!(commit <= last, "entry {commit} is committed, but the log ends with entry {last}");
        let (Some(first), Some(newest)) = (given_out.first(), given_out.last()) else { return };
        let index = newest.index;
        assert!(index <= commit, "entry {index} is to be applied, but only {commit} is committed");
        assert!(index <= synced, "entry {index} is to be applied, but only {synced} is synced here");
        assert_eq!(index - first.index + 1, given_out.len() as u64, "entries are given out without a gap");
    }

    /// Returns true if the commit index has to be on disk before it is reported to any member, because it has
    /// reached the removal of a member. The remaining members may need the removed member's vote until they
    /// know that the removal is committed, but the removed member ends once it knows. So no member reports,
    /// confirms or applies the commit of a removal while it might still forget it. Other changes end no
    /// member, and the majorities before and after one of them have a member in common: their commit may be
    /// forgotten and found again.
    fn notes_commit_first(&mut self) -> bool {
        let committed = self.raw.raft.raft_log.committed;
        let looked_through = std::mem::replace(&mut self.looked_through, committed);
        let mut entries = self.raw.store().between(looked_through, committed);
        entries.any(may_remove) && !planted::is(Bug::RemovalToldUnnoted)
    }

    fn outgoing(&mut self) -> Vec<raftpb::Message> {
        let mut messages = self.outbox.take();
        if self.config.speaks_as_etcd {
            return messages.into_iter().map(wire::message_from_raft).collect();
        }
        for message in &mut messages {
            let answers = match message.get_msg_type() {
                MessageType::MsgHeartbeatResponse => true,
                MessageType::MsgAppendResponse => !message.reject,
                _ => false,
            };
            if answers {
                message.reject_hint = RUNS_MAINSTAY;
            }
        }
        let (leads, term) = (self.raw.raft.state == StateRole::Leader, self.raw.raft.term);
        let is_heartbeat = |message: &eraftpb::Message| message.get_msg_type() == MessageType::MsgHeartbeat;
        let no_etcd = leads && messages.iter().any(is_heartbeat) && self.has_no_etcd();
        for message in &mut messages {
            let of_this_term = leads && message.term == term;
            message.reject_hint = match message.get_msg_type() {
                MessageType::MsgHeartbeat if no_etcd && of_this_term => BINDS_AND_NO_ETCD,
                // Set also in a heartbeat that is sent after this leader was deposed: members that do not
                // know that yet would take it for a leader that runs etcd.
                MessageType::MsgHeartbeat => BINDS_PROPOSALS,
                // Only the first append of a term carries it; later ones are many.
                MessageType::MsgAppend if of_this_term && self.is_probed(message.to) => BINDS_PROPOSALS,
                _ => continue,
            };
        }
        messages.into_iter().map(wire::message_from_raft).collect()
    }

    /// Returns true if this leader does not know yet which entries the member has.
    fn is_probed(&self, id: u64) -> bool {
        let progress = self.raw.raft.prs().get(id);
        progress.is_some_and(|progress| progress.state == raft::ProgressState::Probe)
    }

    fn post(&mut self, messages: Vec<eraftpb::Message>) {
        let persisted = self.raw.raft.raft_log.persisted;
        for message in messages {
            let message = if message.get_msg_type() == MessageType::MsgAppend {
                self.followers.offer(message, self.config.bytes_in_flight_max)
            } else {
                Some(message)
            };
            if let Some(message) = message {
                self.outbox.post(message, persisted);
            }
        }
    }

    /// Brings windows and fetches in line with raft's view of the followers.
    fn settle_followers(&mut self) {
        let raft = &self.raw.raft;
        let leads = raft.state == StateRole::Leader;
        if self.followers.begin_term(raft.term, leads) {
            let tail = self.raw.mut_store();
            tail.fetched.clear();
            if !leads {
                tail.wanted.get_mut().clear();
                return;
            }
        }
        let persisted = self.raw.raft.raft_log.persisted;
        let progress = self.raw.raft.prs();
        self.followers.retain(|id| progress.get(id).is_some());
        for (id, window) in self.followers.windows() {
            let Some(progress) = progress.get(id) else { continue };
            if progress.state != raft::ProgressState::Replicate {
                window.clear();
            }
            for append in window.acknowledge(progress.matched, self.config.bytes_in_flight_max) {
                self.outbox.post(append, persisted);
            }
        }
        self.settle_fetches();
    }

    /// Decides which entries to read back from the log, and drops fetched entries that are sent.
    fn settle_fetches(&mut self) {
        let tail = self.raw.mut_store();
        if tail.wanted.get_mut().is_empty() && tail.fetched.is_empty() {
            return;
        }
        let mut wanted = std::mem::take(self.raw.mut_store().wanted.get_mut());
        wanted.sort_unstable();
        wanted.dedup();
        let last = Index(self.raw.store().before_index + 1);
        let mut behind: Vec<(u64, u64)> = self
            .raw
            .raft
            .prs()
            .iter()
            .filter(|(id, progress)| **id != self.config.id.0 && wanted.contains(&progress.next_idx))
            .map(|(id, progress)| (*id, progress.next_idx))
            .collect();
        behind.sort_unstable();
        for (to, first) in behind {
            let fetch = Fetch { to: MemberId(to), first: Index(first), last, bytes_max: APPEND_BYTES_MAX };
            self.followers.fetch(fetch);
        }
        let next: BTreeMap<u64, u64> =
            self.raw.raft.prs().iter().map(|(id, progress)| (*id, progress.next_idx)).collect();
        self.raw.mut_store().fetched.retain(|id, entries| {
            match (next.get(id), entries.first(), entries.last()) {
                (Some(next), Some(first), Some(last)) => (first.index..=last.index).contains(next),
                _ => false,
            }
        });
    }

    /// Returns the present standing of the node.
    pub fn standing(&self) -> Standing {
        let raft = &self.raw.raft;
        Standing {
            role: match raft.state {
                StateRole::Leader if self.leaving.is_none() => Role::Leader,
                StateRole::Leader | StateRole::Follower => Role::Follower,
                StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
            },
            leader: if self.leaving.is_some() { MemberId::NONE } else { MemberId(raft.leader_id) },
            term: Term(raft.term),
            commit: Index(raft.raft_log.committed),
            last: Index(raft.raft_log.last_index()),
        }
    }

    /// Returns a leader's knowledge of every member, itself included, by id; empty on other members.
    pub fn progress(&self) -> Vec<Progress> {
        let raft = &self.raw.raft;
        if raft.state != StateRole::Leader {
            return Vec::new();
        }
        let learners = raft.prs().conf().learners();
        let mut all: Vec<Progress> = raft
            .prs()
            .iter()
            .map(|(id, progress)| Progress {
                id: MemberId(*id),
                matched: Index(progress.matched),
                next: Index(progress.next_idx),
                is_learner: learners.contains(id),
                recently_active: progress.recent_active || *id == self.config.id.0,
                state: match progress.state {
                    raft::ProgressState::Probe => ProgressState::Probe,
                    raft::ProgressState::Replicate => ProgressState::Replicate,
                    raft::ProgressState::Snapshot => {
                        ProgressState::Snapshot { index: Index(progress.pending_snapshot) }
                    }
                },
            })
            .collect();
        all.sort_unstable_by_key(|progress| progress.id);
        all
    }

    /// Returns the member to which this leader is handing over.
    pub fn transferring(&self) -> Option<MemberId> {
        match self.raw.raft.state {
            StateRole::Leader => self.raw.raft.lead_transferee.map(MemberId),
            _ => None,
        }
    }

    /// Returns true if forwarded proposals wait until a leader is known, or until this member's own vote is
    /// on disk.
    pub fn keeps_proposals(&self) -> bool {
        !self.leaderless.is_empty() || self.outbox.holds_proposals()
    }

    /// Returns the term of an entry that is in the log, or right before its first one.
    pub fn term_of(&self, index: Index) -> Option<Term> {
        let log = &self.raw.raft.raft_log;
        if index.0 > log.last_index() || index.0 + 1 < log.first_index() {
            return None;
        }
        log.term(index.0).ok().map(Term)
    }

    /// Returns index and data of the entries in memory after this index, including the newest, on disk or
    /// not. Every entry that is not applied is among them: only applied entries leave memory
    /// ([`Event::Forgotten`]).
    pub fn data_after(&self, index: Index) -> impl Iterator<Item = (Index, &[u8])> {
        let unstable = &self.raw.raft.raft_log.unstable;
        // Entries that replace others may not be in the stable part yet.
        let stable = self.raw.store().between(index.0, unstable.offset.saturating_sub(1));
        let unstable = unstable.entries.iter().filter(move |entry| entry.index > index.0);
        stable.chain(unstable).map(|entry| (Index(entry.index), &*entry.data))
    }

    /// Returns the member that this member voted for in its term; 0 for none.
    pub fn voted_for(&self) -> MemberId {
        MemberId(self.raw.raft.vote)
    }

    /// Returns the index of the newest entry that this member has reported to raft as synced.
    pub fn synced_index(&self) -> Index {
        Index(self.raw.raft.raft_log.persisted)
    }

    /// Returns the payload bytes of the newest entries, which are kept in memory.
    pub fn tail_bytes(&self) -> usize {
        self.raw.store().bytes
    }

    /// Returns the index of the last entry that is on disk. While entries on disk are being replaced, raft is
    /// notified of it later.
    pub fn stored_index(&self) -> Index {
        self.batches.stored()
    }

    /// Returns the first index that this node can still send to other members, from memory or from the log.
    pub fn first_index(&self) -> Index {
        Index(self.raw.raft.raft_log.first_index())
    }

    /// Returns the ids of the voters, in ascending order.
    pub fn voters(&self) -> Vec<MemberId> {
        let mut voters = named(&self.raw.store().conf_state.voters);
        voters.retain(|id| self.leaving.is_none() || *id != self.config.id);
        voters.sort_unstable();
        voters
    }

    /// Returns the ids of the learners, in ascending order.
    pub fn learners(&self) -> Vec<MemberId> {
        let mut learners = named(&self.raw.store().conf_state.learners);
        learners.sort_unstable();
        learners
    }

    /// Returns the number of entries in memory, and their payload bytes.
    pub fn kept(&self) -> (usize, usize) {
        let tail = self.raw.store();
        (tail.entries.len(), tail.bytes)
    }

    /// Replaces the raft crate's random election timeout by a function of the seed, the term and the time for
    /// which the node has run, so that a run can be repeated, and two members that collide once do not
    /// collide for ever.
    fn settle_timeout(&mut self) {
        let ticks = self.config.election_ticks as u64;
        let mut x = self.config.seed
            ^ self.raw.raft.term.rotate_left(17)
            ^ (self.ticks / (2 * ticks)).rotate_left(41);
        // SplitMix64's finalizer (Steele, Lea, Flood 2014).
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

/// Returns true if an entry may remove a member. An entry that cannot be decoded counts as a removal.
fn may_remove(entry: &eraftpb::Entry) -> bool {
    match entry.entry_type {
        eraftpb::EntryType::EntryNormal => false,
        eraftpb::EntryType::EntryConfChange => wire::decode_conf_change(&entry.context)
            .map_or(true, |change| change.kind == ConfChangeKind::Remove),
        eraftpb::EntryType::EntryConfChangeV2 => true,
    }
}

/// Returns a confirmed read in the caller's form; `None` for a context that this program's reads do not have.
fn read_of(state: raft::ReadState) -> Option<ConfirmedRead> {
    let context = <[u8; 8]>::try_from(&state.request_ctx[..]).ok()?;
    Some(ConfirmedRead { number: u64::from_be_bytes(context), index: Index(state.index) })
}
