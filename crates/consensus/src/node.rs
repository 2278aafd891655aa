//! The node: raft's decisions, as effects for others to carry out. [`Node::step`] and [`Node::request`] take what happened and
//! what is wanted, [`Node::effects`] returns what follows. It carries out nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque, btree_map};

use api::raftpb;
use bytes::Bytes;
use numbers::{EntryId, Index, MemberId, Term};
use planted::Bug;
use raft::eraftpb::{self, MessageType};
use raft::{RawNode, SnapshotStatus, StateRole};

use crate::effects::{
    Append, ConfirmedRead, Effects, Others, Progress, ProgressState, Restore, Role, Standing,
};
use crate::entry::{ConfChange, ConfChangeKind, Entry, HardState};
use crate::event::{Broken, Config, Event, Fetch, Refused, Request, Restored};
use crate::outbox::Outbox;
use crate::tail::Tail;
use crate::terms::Terms;
use crate::validate;
use crate::window::Window;
use crate::wire::{self, BINDS_AND_NO_ETCD, BINDS_PROPOSALS, RUNS_MAINSTAY};

/// Payload bytes of one append, and of what is read back from the log for a follower at a time.
const APPEND_BYTES_MAX: u64 = 1024 * 1024;
/// Appends under way to one follower.
const APPENDS_IN_FLIGHT_MAX: usize = 512;
/// Reads for which a leader seeks confirmation at the same time.
const PENDING_READS_MAX: usize = 4096;
/// Membership changes that others forwarded and that wait for an earlier one.
const EARLY_CHANGES_MAX: usize = 64;
/// Forwarded proposals that wait until it is settled who leads.
const LEADERLESS_MAX: usize = 1024;
/// Bytes of forwarded proposals that wait until it is settled who leads: they are sent at once, and half of what may wait for
/// a member is left to others.
const LEADERLESS_BYTES_MAX: usize = 8 << 20;

/// Memory of an entry besides its bytes.
const ENTRY_BYTES: usize = 64;

/// In the heartbeats by which a leader that was removed tells that its removal is committed, and in their answers.
const FAREWELL: &[u8] = b"mainstay farewell";

/// A leader whose own removal has been applied, until enough others know that it is committed.
///
/// Only a leader tells others what is committed, and those who do not know yet that the removal is go on counting the
/// removed member: of two, the one that is left would wait for its vote for ever. So the removed leader goes on
/// sending entries and heartbeats. To the raft crate the change is not applied yet, since its leader cannot be without
/// a vote. That is safe: the leader takes no more proposals, and any majority of the voters before the change has a
/// member in common with any majority after it.
///
/// Worked example: 1 leads {1, 2} and is removed by entry 7. 2 has acknowledged 7, but the message that says that it is
/// committed was lost. 1 sends heartbeats with commit 7 and the context of a farewell; 2 applies entry 7, and its answer
/// repeats the context: 1 steps down.
struct Leaving {
    /// Known to be committed: the removal is at or before this index.
    index: Index,
    /// The members that know.
    told: BTreeSet<u64>,
    /// The tick at which each was told last.
    said: BTreeMap<u64, u64>,
    change: ConfChange,
}

/// One member's raft node.
pub struct Node {
    raw: RawNode<Tail>,
    config: Config,
    ticks: u64,
    /// A hard state whose only news is the commit index: it goes to the log with the next thing that has to, for a
    /// commit index that is lost in a crash is found again.
    unsaved: Option<HardState>,
    /// The commit index up to which [`Node::effects`] has looked for changes of the members.
    looked_through: u64,
    /// Committed entries that are given out once this batch is on disk.
    withheld: (u64, Vec<Entry>),
    /// Term and vote as last given out for the log.
    vote: (u64, u64),
    /// The newest batch of raft's decisions, whether it had something for the log or not.
    batch: u64,
    /// The batches given out for the log and not synced yet.
    unsynced: VecDeque<Unsynced>,
    /// The last entry of the newest batch that is synced.
    stored: Index,
    /// The snapshot that is being restored.
    restoring: Option<Restoring>,
    /// Last entry that the caller has applied; raft is told once it is synced too.
    applied: Index,
    outbox: Outbox,
    /// By follower; only while leading.
    windows: BTreeMap<u64, Window>,
    /// The term in which `windows` and the fetches began.
    windows_term: u64,
    /// Fetches without an answer, by follower.
    fetching: BTreeMap<u64, Fetch>,
    /// Fetches not given out yet.
    fetches: Vec<Fetch>,
    /// Reads that came before this leader had committed anything in its term.
    early_reads: Vec<eraftpb::Message>,
    disk_stalled: bool,
    /// Forwarded proposals that wait until it is settled who leads, for two election timeouts at most: those of etcd's members.
    /// In a node that speaks as etcd's, all proposals, for as long as it takes.
    leaderless: Vec<eraftpb::Message>,
    /// Bytes of `leaderless`.
    leaderless_bytes: usize,
    /// The tick in which the first of them came.
    leaderless_since: u64,
    /// Membership changes that others forwarded to this leader while an earlier one may not be applied yet.
    early_changes: Vec<eraftpb::Message>,
    leaving: Option<Leaving>,
    /// True if the standing has changed in a way that the raft crate does not tell.
    stands_anew: bool,
    /// The term whose leader has said that it binds proposals to their term.
    bound_term: u64,
    /// The term whose leader's last heartbeat has said that no voter runs etcd.
    no_etcd_term: u64,
    /// True if a leader that runs etcd was followed, see [`Node::take_followed_etcd`].
    followed_etcd: bool,
    /// By member: whether its last answer has said that it does not run etcd. Only while leading.
    runs_mainstay: BTreeMap<u64, bool>,
    /// The term that these answers belong to.
    answers_term: u64,
}

/// A snapshot that was given out to be restored and is not synced yet.
struct Restoring {
    /// Index of the entry.
    index: Index,
    /// The number of the batch that it comes with.
    batch: u64,
}

/// A batch that was given out for the log and is not synced yet.
struct Unsynced {
    number: u64,
    /// The last entry of the log once it is synced.
    last: Index,
    /// True if it replaces what is in the log.
    replaces: bool,
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
    /// Starts a node from what was restored.
    ///
    /// # Errors
    ///
    /// When configuration and restored state do not go together; the text says why.
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
            // The checkpoint knows of a newer term than the log; in that term no vote was given.
            tail.hard_state.term = restored.applied_term.0;
            tail.hard_state.vote = 0;
        }
        // A commit index is not synced for its own sake, so the checkpoint may know a newer one; and it may name
        // entries beyond a log whose unsynced tail was lost.
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
            // Not `batch_append`: it joins appends into one without any limit on its bytes.
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
            batch: 0,
            unsynced: VecDeque::new(),
            stored: last_entry,
            restoring: None,
            applied: restored.applied,
            outbox: Outbox::default(),
            windows: BTreeMap::new(),
            windows_term: 0,
            fetching: BTreeMap::new(),
            fetches: Vec::new(),
            early_reads: Vec::new(),
            disk_stalled: false,
            leaderless: Vec::new(),
            leaderless_bytes: 0,
            leaderless_since: 0,
            early_changes: Vec::new(),
            leaving: None,
            stands_anew: false,
            bound_term: 0,
            no_etcd_term: 0,
            followed_etcd: false,
            runs_mainstay: BTreeMap::new(),
            answers_term: 0,
        };
        node.settle_timeout();
        Ok(node)
    }

    /// Takes one event.
    ///
    /// # Errors
    ///
    /// The event contradicts what the node knows: a bug of this program.
    pub fn step(&mut self, event: Event) -> Result<(), Broken> {
        let outcome = self.take(event);
        self.settle();
        outcome
    }

    /// Does what a client or a peer wants.
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
                // The members that are left need not hear from this one.
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
        // A leader without a vote must not count itself, and the raft crate cannot lead without doing so.
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

    /// Returns true while this node, whose removal it has applied as a leader, makes sure that a majority of the
    /// others knows of it. Its process should go on until then, for some election timeouts.
    pub fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// Tells those who have the removal that it is committed; once enough know, it is applied here too.
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
            // It was checked when it was applied: the other voters are left.
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

    /// Becomes a follower of nobody in the same term, unless it follows already.
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
            // Raft looks for conf changes between what is applied and what is committed, and a snapshot that is not
            // restored yet leaves a hole there.
            && self.restoring.is_none()
            // A candidate says that it has its log. A sole voter becomes leader at once, and the raft crate insists
            // that its log is synced by then.
            && log.persisted == log.last_index()
    }

    fn tick(&mut self) {
        self.ticks += 1;
        let raft = &mut self.raw.raft;
        let due = raft.state != StateRole::Leader
            && raft.election_elapsed + 1 >= raft.randomized_election_timeout();
        if due && !self.may_campaign() {
            // Time goes on, so that it does not hold on to a leader that is gone.
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
            // For a leader of this term only, see `is_for_another_term`.
            message.context = Bytes::copy_from_slice(&self.raw.raft.term.to_be_bytes());
        }
        match self.raw.raft.step(message) {
            Ok(()) => Ok(()),
            Err(raft::Error::ProposalDropped) => Err(Refused::NoLeader),
            Err(e) => Err(other(e)),
        }
    }

    /// Returns true if what is proposed now gets into the log in the present term or never, so that it may be proposed
    /// again once an entry of a newer term is applied: where this node leads, or where the leader has said so. etcd's
    /// members do not: a proposal that comes late is passed on to the leader of that time. A leader is not known to bind
    /// proposals before its first message of the term has come.
    pub fn binds_proposals(&self) -> bool {
        let raft = &self.raw.raft;
        raft.state == StateRole::Leader
            || self.bound_term == raft.term
            || planted::is(Bug::ProposedAgainAfterEtcd)
    }

    /// Returns what the other members run, as far as they have answered this leader in its term; a member that is down counts
    /// by its last answer. [`Others::Unheard`] on other members.
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

    /// Returns true if every other voter is known not to run etcd, and no learner is known to: from their answers to this
    /// leader in its term, or from the last heartbeat of the leader that this member follows.
    pub fn has_no_etcd(&self) -> bool {
        let raft = &self.raw.raft;
        if raft.state != StateRole::Leader {
            return self.no_etcd_term == raft.term;
        }
        let voters = raft.prs().conf().voters();
        raft.prs().iter().filter(|(id, _)| **id != self.config.id.0).all(|(id, _)| {
            // A learner that was only just added may not have been started.
            self.runs_mainstay(*id).unwrap_or(!voters.contains(*id))
        })
    }

    /// Returns true if this member has followed a leader that runs etcd since it was started, or since the last call.
    pub fn take_followed_etcd(&mut self) -> bool {
        std::mem::take(&mut self.followed_etcd)
    }

    /// Returns whether this member's last answer to this leader has said that it does not run etcd; `None` if none has come
    /// in its term.
    fn runs_mainstay(&self, id: u64) -> Option<bool> {
        let answers = self.answers_term == self.raw.raft.term;
        self.runs_mainstay.get(&id).copied().filter(|_| answers)
    }

    /// Remembers what a member's answer to this leader says of its program.
    fn note_answer(&mut self, from: u64, term: u64, hint: u64) {
        let raft = &self.raw.raft;
        if raft.state != StateRole::Leader || raft.term != term || raft.prs().get(from).is_none() {
            return;
        }
        if self.answers_term != term {
            self.answers_term = term;
            self.runs_mainstay.clear();
        }
        self.runs_mainstay.insert(from, hint == RUNS_MAINSTAY);
    }

    fn propose_conf_change(&mut self, change: crate::ConfChange, data: Bytes) -> Result<(), Refused> {
        // The raft crate would put an empty entry in its place, and nobody would hear of it.
        if self.raw.raft.state == StateRole::Leader && self.raw.raft.has_pending_conf() {
            return Err(other("an earlier membership change may not be applied yet"));
        }
        let entry = wire::conf_change_entry(change, data)?;
        self.propose(vec![entry])
    }

    /// Takes a read, a client's or a follower's. The raft crate's leader drops those that come before it has
    /// committed something in its term, for only then it knows what is committed; here they wait for that.
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
            // One that is dropped counts as lost on its way.
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
            // The leader takes proposals again when nobody campaigns.
            MessageType::MsgTimeoutNow if !self.may_campaign() => return Ok(()),
            MessageType::MsgTransferLeader if message.term == self.raw.raft.term => message.term = 0,
            MessageType::MsgReadIndex => return self.read(message),
            // Who names a term hears of a new leader and proposes again. etcd's members do not: each client would wait in vain
            // until its time is up, as it does where etcd leads.
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
            // The raft crate would put an empty entry in its place.
            MessageType::MsgPropose if self.is_early_change(&message) => {
                if self.early_changes.len() >= EARLY_CHANGES_MAX {
                    return Err(other("too many membership changes wait"));
                }
                self.early_changes.push(message);
                return Ok(());
            }
            // As etcd's members do: to the next it comes from the one who passed it on.
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
                self.bound_term = term;
            }
            if kind == MessageType::MsgHeartbeat {
                self.no_etcd_term = if no_etcd { term } else { 0 };
                self.followed_etcd |= !binds && !self.config.speaks_as_etcd;
            }
        }
        if kind == MessageType::MsgHeartbeatResponse
            && let Some(window) = self.windows.get_mut(&from)
            && let Some(append) = window.nudge(self.ticks)
        {
            let persisted = self.raw.raft.raft_log.persisted;
            self.outbox.post(append, persisted);
        }
        Ok(())
    }

    /// Returns true if a forwarded proposal names a term that this node does not lead in. Who forwarded it may then
    /// conclude, from the first entry of a newer term, that it never got into the log, and propose it again: so it must
    /// not get there by another way. etcd's members name no term; theirs are taken whenever they come.
    fn is_for_another_term(&self, message: &eraftpb::Message) -> bool {
        if planted::is(Bug::ForwardedInAnyTerm) {
            return false;
        }
        let raft = &self.raw.raft;
        wire::bound_term(message).is_some_and(|term| term != raft.term || raft.state != StateRole::Leader)
    }

    /// Takes a forwarded proposal as etcd's members do: as if it were this member's own, by whatever way and in
    /// whatever term it gets to a leader.
    fn pass_on(&mut self, mut message: eraftpb::Message) -> Result<(), Refused> {
        message.context = Bytes::new();
        if self.raw.raft.leader_id == 0 {
            self.wait_for_leader(message);
            return Ok(());
        }
        message.from = self.config.id.0;
        self.raw.raft.step(message).map_err(other)
    }

    /// Keeps a forwarded proposal until it is settled who leads. Returns false if there is no room for it.
    fn wait_for_leader(&mut self, mut message: eraftpb::Message) -> bool {
        let bytes: usize =
            message.entries.iter().map(|entry| entry.data.len() + entry.context.len() + ENTRY_BYTES).sum();
        let fits =
            self.leaderless.len() < LEADERLESS_MAX && self.leaderless_bytes + bytes <= LEADERLESS_BYTES_MAX;
        if fits {
            if self.leaderless.is_empty() {
                self.leaderless_since = self.ticks;
            }
            message.from = self.config.id.0;
            self.leaderless_bytes += bytes;
            self.leaderless.push(message);
        }
        fits
    }

    fn settle_leaderless(&mut self) {
        if self.leaderless.is_empty() {
            return;
        }
        let waited = self.ticks - self.leaderless_since;
        if waited > 2 * self.config.election_ticks as u64 && !self.config.speaks_as_etcd {
            self.leaderless.clear();
            self.leaderless_bytes = 0;
        } else if self.raw.raft.leader_id != 0 && self.transferring().is_none() && self.leaving.is_none() {
            self.leaderless_bytes = 0;
            for message in std::mem::take(&mut self.leaderless) {
                if self.is_early_change(&message) && self.early_changes.len() < EARLY_CHANGES_MAX {
                    self.early_changes.push(message);
                    continue;
                }
                // What is dropped now is lost, as in etcd.
                let _ = self.raw.raft.step(message);
            }
        }
    }

    fn synced(&mut self, number: u64) -> Result<(), Broken> {
        if number > self.batch {
            return Err(Broken(format!("batch {number} is synced, the last one was {}", self.batch)));
        }
        while let Some(batch) = self.unsynced.front()
            && batch.number <= number
        {
            self.stored = batch.last;
            self.unsynced.pop_front();
        }
        // The raft crate knows what is synced by index and term, and takes an entry that was overwritten and written
        // again for the one that is on disk, though the overwriting may yet reach the disk and the rest be lost. So
        // it hears of no sync while an overwriting is under way.
        if self.unsynced.iter().all(|batch| !batch.replaces) || planted::is(Bug::OverwrittenCountsAsSynced) {
            // Batches that had nothing for the log are as good as synced together with the one before them.
            self.raw.on_persist_ready(self.unsynced.front().map_or(self.batch, |next| next.number - 1));
        }
        if let Some(restored) = self.restoring.take_if(|restoring| restoring.batch <= number) {
            self.applied = self.applied.max(restored.index);
        }
        self.settle_applied();
        self.outbox.synced(number);
        Ok(())
    }

    /// Tells raft what is applied, as far as it is synced too.
    fn settle_applied(&mut self) {
        let log = &self.raw.raft.raft_log;
        let applied = self.applied.0.min(log.committed).min(log.persisted);
        if applied > log.applied {
            self.raw.advance_apply_to(applied);
            self.raw.mut_store().applied = applied;
        }
    }

    fn fetched(&mut self, fetch: Fetch, entries: &[Entry]) {
        if self.fetching.get(&fetch.to.0) != Some(&fetch) {
            return;
        }
        self.fetching.remove(&fetch.to.0);
        let tail = self.raw.store();
        let sound = entries.iter().enumerate().all(|(at, entry)| {
            entry.index == fetch.first + at as u64
                && entry.index < fetch.last
                && tail.term_of(entry.index.0) == Some(entry.term.0)
        });
        // What cannot be read is asked for again when the follower answers the next heartbeat.
        if entries.is_empty() || !sound {
            return;
        }
        let entries = entries.iter().map(Entry::to_raft).collect();
        self.raw.mut_store().fetched.insert(fetch.to.0, entries);
        // The first turn sends what was read; the second asks for what comes after it, so that the disk reads while
        // the network sends.
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

    /// Returns what follows from the events so far; `None` once there is nothing more to do.
    pub fn effects(&mut self) -> Option<Effects> {
        if !self.raw.has_ready() {
            let commit = self.given_out(Vec::new());
            self.assert_order(&commit);
            let quiet = self.outbox.is_empty() && self.fetches.is_empty() && !self.stands_anew;
            if quiet && commit.is_empty() {
                return None;
            }
            let standing = std::mem::take(&mut self.stands_anew).then(|| self.standing());
            return Some(Effects {
                standing,
                commit,
                messages: self.outgoing(),
                fetches: std::mem::take(&mut self.fetches),
                ..Effects::default()
            });
        }
        let mut ready = self.raw.ready();
        let mut effects = Effects::default();
        if ready.ss().is_some() || std::mem::take(&mut self.stands_anew) {
            effects.standing = Some(self.standing());
        }
        // Which messages wait for what is not the raft crate's to say: see `Outbox`.
        let mut messages = ready.take_messages();
        messages.append(&mut ready.take_persisted_messages());
        let committed = ready.take_committed_entries();
        effects.reads = ready.take_read_states().into_iter().filter_map(read_of).collect();
        let hard_state = ready.hs().cloned();
        let number = ready.number();
        self.batch = number;
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
            self.unsynced.push_back(Unsynced { number, last: Index(self.raw.store().last()), replaces });
            let entries = entries.into_iter().map(Entry::from_raft).collect();
            effects.append = Some(Append { number, entries, hard_state: self.unsaved.take() });
        } else if self.unsynced.is_empty() {
            // The raft crate keeps a record of each batch until it hears that it is synced.
            self.raw.on_persist_ready(number);
        }
        self.post(messages);
        effects.messages = self.outgoing();
        effects.fetches = std::mem::take(&mut self.fetches);
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

    /// Asserts the order of positions that [`Standing`] and [`Effects::commit`] promise. An entry that is given out earlier
    /// would be applied from a log that may still lose or replace it.
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

    /// Returns true if the commit index has to be on disk before it is reported to any member, since it has come to the
    /// removal of a member. The remaining members may need the removed one's vote until they know that the removal is
    /// committed, but the removed one ends once it knows. So no member reports, confirms or applies the commit of a
    /// removal while it might forget it itself. Other changes end no member, and the majorities before and after one of
    /// them have a member in common: their commit may be forgotten and found again.
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
                // Also one that leaves after this leader was deposed: members that have not heard of that would take it for
                // one of etcd.
                MessageType::MsgHeartbeat => BINDS_PROPOSALS,
                // The first of a term; later ones are many.
                MessageType::MsgAppend if of_this_term && self.is_probed(message.to) => BINDS_PROPOSALS,
                _ => continue,
            };
        }
        messages.into_iter().map(wire::message_from_raft).collect()
    }

    /// Returns true if this leader does not know yet what the member has.
    fn is_probed(&self, id: u64) -> bool {
        let progress = self.raw.raft.prs().get(id);
        progress.is_some_and(|progress| progress.state == raft::ProgressState::Probe)
    }

    fn post(&mut self, messages: Vec<eraftpb::Message>) {
        let persisted = self.raw.raft.raft_log.persisted;
        for message in messages {
            let message = if message.get_msg_type() == MessageType::MsgAppend {
                let window = self.windows.entry(message.to).or_default();
                window.offer(message, self.config.bytes_in_flight_max)
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
        let term = raft.term;
        if raft.state != StateRole::Leader || self.windows_term != term {
            self.windows_term = term;
            self.windows.clear();
            self.fetching.clear();
            self.fetches.clear();
            let leads = raft.state == StateRole::Leader;
            let tail = self.raw.mut_store();
            tail.fetched.clear();
            if !leads {
                tail.wanted.get_mut().clear();
                return;
            }
        }
        let persisted = self.raw.raft.raft_log.persisted;
        let progress = self.raw.raft.prs();
        self.windows.retain(|id, _| progress.get(*id).is_some());
        for (id, window) in &mut self.windows {
            let Some(progress) = progress.get(*id) else { continue };
            if progress.state != raft::ProgressState::Replicate {
                window.clear();
            }
            for append in window.acknowledge(progress.matched, self.config.bytes_in_flight_max) {
                self.outbox.post(append, persisted);
            }
        }
        self.fetching.retain(|id, _| progress.get(*id).is_some());
        self.settle_fetches();
    }

    /// Decides what to read back from the log, and drops what was read and is sent.
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
            if let btree_map::Entry::Vacant(free) = self.fetching.entry(to) {
                let fetch =
                    Fetch { to: MemberId(to), first: Index(first), last, bytes_max: APPEND_BYTES_MAX };
                free.insert(fetch);
                self.fetches.push(fetch);
            }
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

    /// Returns a leader's knowledge of every member, itself included, by id; nothing on other members.
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

    /// Returns true if forwarded proposals wait until it is settled who leads, or until this member's own vote is on disk.
    pub fn keeps_proposals(&self) -> bool {
        !self.leaderless.is_empty() || self.outbox.holds_proposals()
    }

    /// The term of an entry that is in the log, or right before its first one.
    pub fn term_of(&self, index: Index) -> Option<Term> {
        let log = &self.raw.raft.raft_log;
        if index.0 > log.last_index() || index.0 + 1 < log.first_index() {
            return None;
        }
        log.term(index.0).ok().map(Term)
    }

    /// Returns index and data of the entries behind this one that are kept in memory, the newest included, whether they are on
    /// disk or not. Every entry that is not applied is among them: only what is applied leaves memory ([`Event::Forgotten`]).
    pub fn data_after(&self, index: Index) -> impl Iterator<Item = (Index, &[u8])> {
        let unstable = &self.raw.raft.raft_log.unstable;
        // Entries that replace others may not have taken their places yet.
        let stable = self.raw.store().between(index.0, unstable.offset.saturating_sub(1));
        let unstable = unstable.entries.iter().filter(move |entry| entry.index > index.0);
        stable.chain(unstable).map(|entry| (Index(entry.index), &*entry.data))
    }

    /// Returns the member that this member voted for in its term; 0 for none.
    pub fn voted_for(&self) -> MemberId {
        MemberId(self.raw.raft.vote)
    }

    /// The newest index of which this member has told raft that it is on disk.
    pub fn synced_index(&self) -> Index {
        Index(self.raw.raft.raft_log.persisted)
    }

    /// Returns the bytes of the newest entries' payloads, which are kept in memory.
    pub fn tail_bytes(&self) -> usize {
        self.raw.store().bytes
    }

    /// Returns the last entry that is on disk. Raft is told of it later while entries on disk are being replaced.
    pub fn stored_index(&self) -> Index {
        self.stored
    }

    /// The first index that this node can still give to others, from memory or from the log.
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

    /// Entries and payload bytes kept in memory.
    pub fn kept(&self) -> (usize, usize) {
        let tail = self.raw.store();
        (tail.entries.len(), tail.bytes)
    }

    /// Replaces the raft crate's random election timeout by ours: a function of the seed, the term and how long the
    /// node has run, so that a run repeats, and two members that collide once do not collide for ever.
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

/// The ids of members as the raft crate has them.
fn bare(ids: Vec<MemberId>) -> Vec<u64> {
    ids.into_iter().map(|id| id.0).collect()
}

fn named(ids: &[u64]) -> Vec<MemberId> {
    ids.iter().copied().map(MemberId).collect()
}

/// Returns true if an entry may remove a member. What cannot be read counts as a removal.
fn may_remove(entry: &eraftpb::Entry) -> bool {
    match entry.entry_type {
        eraftpb::EntryType::EntryNormal => false,
        eraftpb::EntryType::EntryConfChange => wire::decode_conf_change(&entry.context)
            .map_or(true, |change| change.kind == ConfChangeKind::Remove),
        eraftpb::EntryType::EntryConfChangeV2 => true,
    }
}

/// A confirmed read as the caller knows it; `None` for a context that no read of ours has.
fn read_of(state: raft::ReadState) -> Option<ConfirmedRead> {
    let context = <[u8; 8]>::try_from(&state.request_ctx[..]).ok()?;
    Some(ConfirmedRead { number: u64::from_be_bytes(context), index: Index(state.index) })
}
