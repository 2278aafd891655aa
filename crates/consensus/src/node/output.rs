//! Collects the node's effects, which the caller has to carry out.

use api::raftpb;
use numbers::{Index, MemberId, Term};
use planted::Bug;
use raft::StateRole;
use raft::eraftpb::{self, MessageType};

use super::superfluous::drop_superseded;
use super::{Node, Restoring, named};
use crate::effects::{Append, ConfirmedRead, Effects, Restore};
use crate::entry::{ConfChangeKind, Entry, HardState};
use crate::event::Fetch;
use crate::wire::{self, BINDS_AND_NO_ETCD, BINDS_PROPOSALS, RUNS_MAINSTAY};

impl Node {
    /// Returns the actions that result from the events and requests so far; `None` if there is nothing more
    /// to do.
    pub fn effects(&mut self) -> Option<Effects> {
        self.begin_reads();
        self.feed();
        let observer_reads = std::mem::take(&mut self.observer_reads);
        if !self.raw.has_ready() {
            let commit = self.given_out(Vec::new());
            self.assert_order(&commit);
            let quiet = self.outbox.is_empty()
                && !self.followers.has_fetches()
                && !self.feeds.has_fetches()
                && observer_reads.is_empty()
                && !self.stands_anew;
            if quiet && commit.is_empty() {
                return None;
            }
            let status = std::mem::take(&mut self.stands_anew).then(|| self.status());
            return Some(Effects {
                status,
                commit,
                messages: self.outgoing(),
                observer_reads,
                fetches: self.take_fetches(),
                ..Effects::default()
            });
        }
        let mut ready = self.raw.ready();
        let mut effects = Effects::default();
        if ready.ss().is_some() || std::mem::take(&mut self.stands_anew) {
            effects.status = Some(self.status());
        }
        // `Outbox`, not the raft crate, decides which messages wait for which batch. So all messages are
        // taken from the raft crate immediately.
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
                learners: self.without_self(named(&state.learners)),
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
            // The raft crate keeps a record of each batch until its sync is reported. This batch has no data
            // to sync, so its sync is reported immediately.
            self.raw.on_persist_ready(number);
        }
        self.post(messages);
        effects.messages = self.outgoing();
        effects.observer_reads = observer_reads;
        effects.fetches = self.take_fetches();
        Some(effects)
    }

    fn take_fetches(&mut self) -> Vec<Fetch> {
        let mut fetches = self.followers.take_fetches();
        fetches.append(&mut self.feeds.take_fetches());
        fetches
    }

    /// Returns the committed entries that the caller may apply now, in order.
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

    /// Asserts the order of indexes that [`RaftStatus`](crate::RaftStatus) and [`Effects::commit`] promise.
    /// An entry that is given to the caller too early could be applied from a log that may still lose or
    /// replace it.
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

    /// Returns true if an entry that was committed since the last call may remove a member. The new commit
    /// index must then be on disk before this node reports it to any member.
    fn notes_commit_first(&mut self) -> bool {
        // The remaining members may need the removed member's vote until they know that the removal is
        // committed, but the removed member's process ends once it knows. So no member may report, confirm or
        // apply the commit of a removal while a crash could make it forget that commit. Other changes end no
        // member, and any majority before such a change has a member in common with any majority after it, so
        // a forgotten commit is learned again.
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
        drop_superseded(&mut messages);
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
        // Messages to observers have their hints already: what this node announces as a leader does not hold for
        // a feeder whose leader runs etcd.
        for message in messages.iter_mut().filter(|message| !self.feeds.contains(message.to)) {
            let of_this_term = leads && message.term == term;
            message.reject_hint = match message.get_msg_type() {
                MessageType::MsgHeartbeat if no_etcd && of_this_term => BINDS_AND_NO_ETCD,
                // The hint is also set in a heartbeat that is sent after this leader was deposed: otherwise
                // members that do not know the new leader yet would conclude that this leader runs etcd.
                MessageType::MsgHeartbeat => BINDS_PROPOSALS,
                // Only appends that probe the member carry the hint. The many later appends in this term do
                // not need to repeat it.
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
            let is_append = message.get_msg_type() == MessageType::MsgAppend;
            let message = if is_append && message.to == self.witness.id() {
                // An append that was made before this node was deposed is of no use to the witness.
                let leads = self.raw.raft.state == StateRole::Leader && message.term == self.raw.raft.term;
                let message = if leads { self.for_witness(message) } else { None };
                message.and_then(|it| self.followers.offer(it, self.config.bytes_in_flight_max))
            } else if is_append {
                self.followers.offer(message, self.config.bytes_in_flight_max)
            } else {
                Some(message)
            };
            if let Some(message) = message {
                self.outbox.post(message, persisted);
            }
        }
    }
}

/// Returns true if an entry may remove a member. A conf change that cannot be decoded counts as a removal.
fn may_remove(entry: &eraftpb::Entry) -> bool {
    match entry.entry_type {
        eraftpb::EntryType::EntryNormal => false,
        eraftpb::EntryType::EntryConfChange => wire::decode_conf_change(&entry.context)
            .map_or(true, |change| change.kind == ConfChangeKind::Remove),
        eraftpb::EntryType::EntryConfChangeV2 => true,
    }
}

/// Returns a confirmed read in the caller's form; `None` if its context is not 8 bytes long, because then the
/// read was not made by Mainstay.
fn read_of(state: raft::ReadState) -> Option<ConfirmedRead> {
    let context = <[u8; 8]>::try_from(&state.request_ctx[..]).ok()?;
    Some(ConfirmedRead { number: u64::from_be_bytes(context), index: Index(state.index) })
}
