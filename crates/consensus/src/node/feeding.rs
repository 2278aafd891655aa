//! Feeds observers: processes outside of the cluster's membership that follow its log.
//!
//! Any node can be a feeder, whether it leads or not, and an observer can feed others. The feeder sends its
//! observers the entries that it has applied, in the messages with which a leader feeds its followers. So an
//! observer's raft is a follower whose leader is its feeder. What keeps observers out of raft:
//!
//! * **No vote, no quorum.** An observer is in no configuration of the cluster. Its acknowledgements reach only
//!   the [`Feeds`](crate::feeds::Feeds) of its feeder, never the raft crate, so they count for no commit, and no term of an observer
//!   reaches a member.
//! * **Only what is applied.** An observer never has an entry that the cluster could lose, so its log is never
//!   replaced, and it can go to another feeder at any time.
//! * **Its term is its feeder's.** Terms protect votes, and an observer has none. So it also takes a lower term
//!   from a new feeder, as long as its own log has no entry of a newer one. Its proposals are then bound to the
//!   term that its feeder knows.
//! * **Reads.** The feeder returns an observer's question with the effects ([`ObserverRead`]), and its caller
//!   lets it share a round with the reads of its own clients.
//! * **Proposals** are passed on to the leader with the term to which they are bound (`receiving.rs`).
//!
//! The heartbeat of a feeder has in its context the id of the cluster's leader (8 bytes, big-endian), for
//! clients who ask for it, and the number of feeders before this one (1 byte), so that observers that feed each
//! other in a circle notice it.

use bytes::Bytes;
use numbers::{Index, MemberId};
use planted::Bug;
use raft::eraftpb::{self, MessageType};

use super::{APPEND_BYTES_MAX, Node, other};
use crate::effects::{ObserverRead, Progress};
use crate::entry::Entry;
use crate::event::{Fetch, Refusal};
use crate::feeds::Feed;
use crate::upstream::Upstream;
use crate::wire::{self, BINDS_PROPOSALS};

/// Maximum number of observers' reads that wait for the caller. Further ones are refused.
const OBSERVER_READS_MAX: usize = 4096;

/// Length of the number of an observer's read.
const CONTEXT_BYTES: usize = 8;

/// Number of ticks after which a feeder with another history is looked at again: it may have been mended.
const FOREIGN_TICKS: u64 = 600;

/// Types of the messages that a feeder sends to its observers.
const FROM_FEEDER: [MessageType; 4] = [
    MessageType::MsgAppend,
    MessageType::MsgHeartbeat,
    MessageType::MsgSnapshot,
    MessageType::MsgReadIndexResp,
];

/// Maximum number of feeders between an observer and a member, its own included. Observers that feed each other
/// in a circle exceed it; then they know no leader.
const DEPTH_MAX: u8 = 8;

impl Node {
    /// Returns the node that may send this one appends and snapshots: the leader, or the feeder of an
    /// observer. [`MemberId::NONE`] if it is not known or was silent for too long.
    pub fn source(&self) -> MemberId {
        if self.leaving.is_some() { MemberId::NONE } else { MemberId(self.raw.raft.leader_id) }
    }

    /// Returns the leader of the cluster; 0 for none.
    pub(super) fn leader(&self) -> u64 {
        match (self.config.observes, self.raw.raft.leader_id) {
            (_, 0) => 0,
            (true, _) => self.upstream.leader,
            (false, leader) => leader,
        }
    }

    /// Returns what this node knows about the observers that it feeds, by id.
    pub fn observers(&self) -> Vec<Progress> {
        self.feeds.progress(self.ticks, self.silence_max())
    }

    /// Returns true if this node feeds any observer.
    pub fn feeds_observers(&self) -> bool {
        !self.feeds.is_empty()
    }

    /// Returns the number of feeders between this observer and a member, including its own feeder; 0 if this
    /// node is a member or knows no feeder.
    pub fn feed_depth(&self) -> u8 {
        self.upstream.depth
    }

    fn silence_max(&self) -> u64 {
        2 * self.config.election_ticks as u64
    }

    pub(super) fn add_observer(&mut self, id: MemberId) {
        // The entries of a witness have no payloads.
        if id != MemberId::NONE && id != self.config.id && !self.config.is_witness {
            self.feeds.add(id.0, self.raw.raft.raft_log.applied + 1, self.ticks);
        }
    }

    /// Lets an observer follow another feeder. Nothing that the earlier one sent is lost.
    pub(super) fn follow_feeder(&mut self, feeder: MemberId, silence_max: u64) {
        if self.config.observes && self.upstream.feeder != feeder.0 {
            self.upstream = Upstream { feeder: feeder.0, ..Upstream::default() };
            self.lose_feeder();
        }
        self.upstream.silence_max = silence_max;
    }

    fn lose_feeder(&mut self) {
        let term = self.raw.raft.term;
        self.raw.raft.become_follower(term, 0);
        (self.upstream.leader, self.upstream.depth) = (0, 0);
        self.stands_anew = true;
    }

    /// Counts a tick: sends the heartbeats of a feeder. An observer whose feeder is silent for two election
    /// timeouts knows no leader any more.
    pub(super) fn tick_feeds(&mut self) {
        let raft = &self.raw.raft;
        let silence_max = self.silence_max().max(self.upstream.silence_max);
        if self.config.observes && raft.leader_id != 0 && raft.election_elapsed as u64 >= silence_max {
            self.lose_feeder();
        }
        if self.ticks.is_multiple_of(FOREIGN_TICKS) {
            self.upstream.is_foreign = false;
        }
        let raft = &self.raw.raft;
        if self.feeds.is_empty()
            || raft.term == 0
            || !self.ticks.is_multiple_of(self.config.heartbeat_ticks as u64)
        {
            return;
        }
        let (term, persisted) = (raft.term, raft.raft_log.persisted);
        let depth =
            if self.config.observes && self.upstream.depth == 0 { DEPTH_MAX } else { self.upstream.depth };
        let standing = Bytes::from([&self.leader().to_be_bytes()[..], &[depth]].concat());
        let hint = if self.binds_proposals() { BINDS_PROPOSALS } else { 0 };
        for to in self.feeds.ids() {
            // The commit index travels with the appends: an observer that has lost the end of its log must not
            // hear of a commit index beyond it.
            let mut beat = eraftpb::Message {
                to,
                from: self.config.id.0,
                term,
                reject_hint: hint,
                context: standing.clone(),
                ..Default::default()
            };
            beat.set_msg_type(MessageType::MsgHeartbeat);
            self.outbox.post(beat, persisted);
        }
    }

    /// Sends each observer what it lacks.
    pub(super) fn feed(&mut self) {
        if self.feeds.is_empty() || self.raw.raft.term == 0 || self.restoring.is_some() {
            return;
        }
        let mut feeds = std::mem::take(&mut self.feeds);
        let bytes_max = feeds.bytes_max(self.config.bytes_in_flight_max);
        for id in feeds.ids() {
            let takes_snapshot = feeds.takes_snapshot();
            let Some(feed) = feeds.get_mut(id) else { continue };
            while let Some(message) = self.next_for(id, feed, bytes_max, takes_snapshot) {
                let persisted = self.raw.raft.raft_log.persisted;
                self.outbox.post(message, persisted);
            }
        }
        // Old entries are read for observers that can take some.
        let before_index = self.raw.store().before_index;
        let behind: Vec<Fetch> = feeds
            .iter_mut()
            .filter(|(_, feed)| {
                feed.takes_entries(bytes_max) && feed.next() <= before_index && !feed.has_fetched()
            })
            .map(|(id, feed)| Fetch {
                to: MemberId(id),
                first: Index(feed.next()),
                last: Index(before_index + 1),
                bytes_max: APPEND_BYTES_MAX,
            })
            .collect();
        for fetch in behind {
            feeds.fetch(fetch);
        }
        self.feeds = feeds;
    }

    /// Returns the next message for an observer; `None` if there is nothing to send now.
    fn next_for(
        &self,
        id: u64,
        feed: &mut Feed,
        bytes_max: usize,
        takes_snapshot: bool,
    ) -> Option<eraftpb::Message> {
        let tail = self.raw.store();
        let log = &self.raw.raft.raft_log;
        let applied =
            if planted::is(Bug::UnappliedFed) { log.last_index().min(tail.last()) } else { log.applied };
        if feed.take_check() {
            return self.check_for(id, feed);
        }
        let is_probe = feed.wants_probe();
        let has_news = feed.next() <= applied;
        if !(is_probe || has_news && feed.takes_entries(bytes_max)) {
            return None;
        }
        let before = feed.next() - 1;
        // An observer may be ahead of this node. Then it is asked about the newest entry here.
        let before = if is_probe { before.min(applied) } else { before };
        let term = if before == 0 { Some(0) } else { tail.term_of(before) };
        let (Some(log_term), true) = (term, before + 1 >= tail.first_index) else {
            let takes_it = takes_snapshot && feed.takes_snapshot(self.ticks);
            return if takes_it { self.snapshot_for(id, feed) } else { None };
        };
        let entries = if is_probe {
            Vec::new()
        } else if before >= tail.before_index {
            crate::tail::limited(tail.between(before, applied), APPEND_BYTES_MAX)
        } else {
            feed.next_fetched(APPEND_BYTES_MAX)
        };
        if is_probe {
            feed.probed(before);
        } else if entries.is_empty() {
            return None;
        }
        feed.sent(&entries, self.ticks);
        let mut append = eraftpb::Message {
            to: id,
            from: self.config.id.0,
            term: self.raw.raft.term,
            log_term,
            index: before,
            commit: applied,
            // With any hint the observer acknowledges a probe that tells it nothing new (`superfluous.rs`).
            reject_hint: u64::from(is_probe),
            ..Default::default()
        };
        append.set_msg_type(MessageType::MsgAppend);
        append.set_entries(entries.into());
        Some(append)
    }

    /// Returns an append without entries after all that was sent. The observer refuses it if something before it is
    /// missing, and says where to go on.
    fn check_for(&self, id: u64, feed: &Feed) -> Option<eraftpb::Message> {
        let before = feed.next() - 1;
        let log_term = self.raw.store().term_of(before)?;
        let mut append = eraftpb::Message {
            to: id,
            from: self.config.id.0,
            term: self.raw.raft.term,
            log_term,
            index: before,
            commit: before,
            reject_hint: 1,
            ..Default::default()
        };
        append.set_msg_type(MessageType::MsgAppend);
        Some(append)
    }

    fn snapshot_for(&self, id: u64, feed: &mut Feed) -> Option<eraftpb::Message> {
        let mut snapshot = raft::Storage::snapshot(self.raw.store(), 0, id).ok()?;
        let learners = &mut snapshot.mut_metadata().mut_conf_state().learners;
        learners.retain(|learner| !self.config.observes || *learner != self.config.id.0);
        feed.snapshot(snapshot.get_metadata().index);
        let mut message = eraftpb::Message {
            to: id,
            from: self.config.id.0,
            term: self.raw.raft.term,
            ..Default::default()
        };
        message.set_msg_type(MessageType::MsgSnapshot);
        message.set_snapshot(snapshot);
        Some(message)
    }

    /// Takes the answer to a fetch for an observer.
    pub(super) fn fetched_for_observer(&mut self, fetch: Fetch, entries: &[Entry]) {
        let sound = self.has_these(fetch, entries);
        let entries = entries.iter().filter(|_| sound).map(Entry::to_raft);
        self.feeds.fetched(fetch, entries);
    }

    /// Returns true if an observer that this node feeds has sent this message. If two observers feed each
    /// other by mistake, the type of a message shows which of the two it is for.
    pub(super) fn is_of_observer(&self, message: &eraftpb::Message) -> bool {
        self.feeds.contains(message.from) && !FROM_FEEDER.contains(&message.get_msg_type())
    }

    /// Handles a message of an observer that this node feeds.
    pub(super) fn receive_of_observer(&mut self, mut message: eraftpb::Message) -> Result<(), Refusal> {
        let (tick, ticks_max) = (self.ticks, self.config.election_ticks as u64);
        let own_term = self.raw.raft.term;
        let Some(feed) = self.feeds.get_mut(message.from) else { return Ok(()) };
        match message.get_msg_type() {
            // The observer knows a newer term. This is how it refuses what is older; it tells nothing about its
            // log. The next heartbeat may lower its term.
            MessageType::MsgAppendResponse if message.term > own_term => feed.unreachable(),
            MessageType::MsgAppendResponse if message.reject => {
                feed.refused(message.index, message.reject_hint, tick);
            }
            MessageType::MsgAppendResponse => feed.acknowledged(message.index, tick),
            MessageType::MsgHeartbeatResponse => feed.answered_heartbeat(tick, ticks_max),
            MessageType::MsgReadIndex => {
                if self.observer_reads.len() >= OBSERVER_READS_MAX {
                    return Err(other("too many reads of observers wait"));
                }
                let context = message.take_entries().into_iter().next().map(|entry| entry.data);
                let Some(context) = context.filter(|context| context.len() == CONTEXT_BYTES) else {
                    return Err(other("a read of an observer without a number"));
                };
                self.observer_reads.push(ObserverRead { from: MemberId(message.from), context });
            }
            kind => return Err(other(format!("{} of an observer", wire::name(kind)))),
        }
        Ok(())
    }

    /// Answers a read of an observer: it may be served once the observer has applied the entries up to
    /// `index`.
    pub(super) fn answer_observer(&mut self, read: ObserverRead, index: Index) {
        if !self.feeds.contains(read.from.0) {
            return;
        }
        let raft = &self.raw.raft;
        let (term, persisted) = (raft.term, raft.raft_log.persisted);
        let mut answer = eraftpb::Message {
            to: read.from.0,
            from: self.config.id.0,
            term,
            index: index.0,
            ..Default::default()
        };
        answer.set_msg_type(MessageType::MsgReadIndexResp);
        answer.set_entries(vec![eraftpb::Entry { data: read.context, ..Default::default() }].into());
        self.outbox.post(answer, persisted);
    }

    /// Takes over a lower term of the feeder, if this observer's log has no entry of a newer one. Only
    /// heartbeats change the term, because they arrive in order. The caller has checked the message.
    pub(super) fn take_term_of_feeder(&mut self, message: &eraftpb::Message) {
        let raft = &mut self.raw.raft;
        if message.get_msg_type() == MessageType::MsgHeartbeat
            && message.term < raft.term
            && message.term > 0
            && message.term >= raft.raft_log.last_term()
        {
            raft.become_follower(message.term, message.from);
        }
    }

    /// Prepares a message of the feeder for the raft crate of this observer. Refuses messages of others, and
    /// those that contradict what this observer has applied.
    pub(super) fn prepare_for_observer(&mut self, message: &mut eraftpb::Message) -> Result<(), Refusal> {
        use MessageType as M;
        let kind = message.get_msg_type();
        if message.from != self.upstream.feeder {
            return Err(other(format!(
                "{} of {:x}, which is not the feeder",
                wire::name(kind),
                message.from
            )));
        }
        if !FROM_FEEDER.contains(&kind) {
            return Err(other(format!("{} to an observer", wire::name(kind))));
        }
        if self.upstream.is_foreign {
            return Err(other("a message of a feeder with another history"));
        }
        let log = &self.raw.raft.raft_log;
        // The raft crate says 0 for entries whose term is not known any more.
        let contradicts = |index: u64, term: u64| {
            index > 0 && index <= log.committed && log.term(index).is_ok_and(|own| own != 0 && own != term)
        };
        let entries = message.entries.iter().map(|entry| (entry.index, entry.term));
        let before = (kind == M::MsgAppend).then_some((message.index, message.log_term));
        let snapshot = message.has_snapshot().then(|| {
            let metadata = message.get_snapshot().get_metadata();
            (metadata.index, metadata.term)
        });
        let entries = entries.filter(|_| kind == M::MsgAppend);
        if let Some((index, term)) = entries.chain(before).chain(snapshot).find(|(i, t)| contradicts(*i, *t))
        {
            self.upstream.is_foreign = true;
            self.lose_feeder();
            return Err(Refusal::OtherHistory { index: Index(index), term });
        }
        match kind {
            M::MsgSnapshot => {
                // The raft crate installs a snapshot only if it names this node.
                let id = self.config.id.0;
                let learners = &mut message.mut_snapshot().mut_metadata().mut_conf_state().learners;
                if !learners.contains(&id) {
                    learners.push(id);
                }
            }
            M::MsgHeartbeat => {
                let (leader, depth) = match message.context.split_last_chunk::<1>() {
                    Some((leader, [depth])) => {
                        (<[u8; 8]>::try_from(leader).map_or(0, u64::from_be_bytes), *depth)
                    }
                    None => (0, DEPTH_MAX),
                };
                // Behind too many feeders there may be no member at all. The entries are taken all the same.
                let (leader, depth) = if depth < DEPTH_MAX { (leader, depth + 1) } else { (0, 0) };
                self.upstream.depth = depth;
                if leader != self.upstream.leader {
                    self.upstream.leader = leader;
                    self.stands_anew = true;
                }
            }
            _ => {}
        }
        Ok(())
    }
}
