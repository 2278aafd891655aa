//! Answers queries about the node: its status, its log, and what it knows about the other members.

use numbers::{Index, MemberId, Term};
use planted::Bug;
use raft::StateRole;

use super::{Node, named};
use crate::effects::{OtherPrograms, Progress, ProgressState, RaftStatus, Role};

impl Node {
    /// Returns the current status of the node.
    pub fn status(&self) -> RaftStatus {
        let raft = &self.raw.raft;
        RaftStatus {
            role: match raft.state {
                StateRole::Leader if self.leaving.is_none() => Role::Leader,
                StateRole::Leader | StateRole::Follower => Role::Follower,
                StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
            },
            leader: if self.leaving.is_some() { MemberId::NONE } else { MemberId(self.leader()) },
            term: Term(raft.term),
            commit: Index(raft.raft_log.committed),
            last: Index(raft.raft_log.last_index()),
        }
    }

    /// Returns what this leader knows about every member, itself included, ordered by id; empty if this node
    /// does not lead.
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

    /// Returns the member to which this leader is transferring leadership.
    pub fn transferring(&self) -> Option<MemberId> {
        match self.raw.raft.state {
            StateRole::Leader => self.raw.raft.lead_transferee.map(MemberId),
            _ => None,
        }
    }

    /// Returns true if a membership change may be in this leader's log that is not applied yet, so that it accepts
    /// no other one.
    pub fn has_pending_change(&self) -> bool {
        self.raw.raft.has_pending_conf()
    }

    /// Returns true if some forwarded proposals have not been sent yet, because no leader is known or because
    /// this member's own vote is not on disk.
    pub fn keeps_proposals(&self) -> bool {
        !self.leaderless.is_empty() || self.outbox.holds_proposals()
    }

    /// Returns the term of an entry in the log, or of the entry just before the first one; `None` for others.
    pub fn term_of(&self, index: Index) -> Option<Term> {
        let log = &self.raw.raft.raft_log;
        if index.0 > log.last_index() || index.0 + 1 < log.first_index() {
            return None;
        }
        log.term(index.0).ok().map(Term)
    }

    /// Returns index and data of the entries in memory after this index, including the newest, on disk or
    /// not. All unapplied entries are in memory, because only applied entries are dropped
    /// ([`Event::Forgotten`](crate::Event::Forgotten)).
    pub fn data_after(&self, index: Index) -> impl Iterator<Item = (Index, &[u8])> {
        let unstable = &self.raw.raft.raft_log.unstable;
        // Entries that replace others may still be only in the unstable part, so the stable part is used only
        // up to where the unstable part begins.
        let stable = self.raw.store().between(index.0, unstable.offset.saturating_sub(1));
        let unstable = unstable.entries.iter().filter(move |entry| entry.index > index.0);
        stable.chain(unstable).map(|entry| (Index(entry.index), &*entry.data))
    }

    /// Returns the member for which this member voted in its current term; 0 for none.
    pub fn voted_for(&self) -> MemberId {
        MemberId(self.raw.raft.vote)
    }

    /// Returns the index of the newest entry whose sync was reported to raft.
    pub fn synced_index(&self) -> Index {
        Index(self.raw.raft.raft_log.persisted)
    }

    /// Returns the payload bytes of the newest entries, which are kept in memory.
    pub fn tail_bytes(&self) -> usize {
        self.raw.store().bytes
    }

    /// Returns the index of the last entry that is on disk. While entries on disk are being replaced, it is
    /// above [`Node::synced_index`], because the sync is reported to raft later.
    pub fn stored_index(&self) -> Index {
        self.batches.stored()
    }

    /// Returns the index of the first entry that this node can still send to other members, from memory or
    /// from the log.
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
        let mut learners = self.without_self(named(&self.raw.store().conf_state.learners));
        learners.sort_unstable();
        learners
    }

    /// Returns learners without this node if it observes, because an observer is a learner only for its own
    /// raft crate.
    pub(super) fn without_self(&self, mut learners: Vec<MemberId>) -> Vec<MemberId> {
        learners.retain(|id| !self.config.observes || *id != self.config.id);
        learners
    }

    /// Returns the number of entries in memory, and their payload bytes.
    pub fn kept(&self) -> (usize, usize) {
        let tail = self.raw.store();
        (tail.entries.len(), tail.bytes)
    }

    /// Returns true if a proposal made now will enter the log in the current term or never, so that it may be
    /// proposed again once an entry of a newer term is applied. This holds if this node leads, or if the
    /// leader has announced that it binds proposals to its term, as a leader that runs Mainstay does in its
    /// first message of the term. It does not hold if the leader runs etcd, because members that run etcd
    /// pass a late proposal on to a later leader.
    pub fn binds_proposals(&self) -> bool {
        let raft = &self.raw.raft;
        raft.state == StateRole::Leader
            || self.programs.is_bound(raft.term)
            || planted::is(Bug::ProposedAgainAfterEtcd)
    }

    /// Returns which programs the other members run, as shown by their responses to this leader in its term.
    /// A member that is down counts by its last response. Returns [`OtherPrograms::Unheard`] if this node
    /// does not lead.
    pub fn others(&self) -> OtherPrograms {
        if self.raw.raft.state != StateRole::Leader || self.config.speaks_as_etcd {
            return OtherPrograms::Unheard;
        }
        let others = self.raw.raft.prs().iter().filter(|(id, _)| **id != self.config.id.0);
        others.fold(OtherPrograms::Mainstay, |all, (id, _)| match self.runs_mainstay(*id) {
            Some(true) => all,
            Some(false) => OtherPrograms::SomeEtcd,
            None if all == OtherPrograms::SomeEtcd => all,
            None => OtherPrograms::Unheard,
        })
    }

    /// Returns true if every other voter is known not to run etcd, and no learner is known to run it. A
    /// leader knows this from the responses in its term, a follower from the last heartbeat of its leader.
    pub fn has_no_etcd(&self) -> bool {
        let raft = &self.raw.raft;
        if raft.state != StateRole::Leader {
            return self.programs.has_no_etcd(raft.term);
        }
        let voters = raft.prs().conf().voters();
        raft.prs().iter().filter(|(id, _)| **id != self.config.id.0).all(|(id, _)| {
            // A learner that has not responded does not count, because it is possibly not started yet.
            self.runs_mainstay(*id).unwrap_or(!voters.contains(*id))
        })
    }

    /// Returns true if this member has followed a leader that runs etcd since the last call, or since the
    /// start.
    pub fn take_followed_etcd(&mut self) -> bool {
        self.programs.take_followed_etcd()
    }

    /// Returns `Some(true)` if the member's last response to this leader shows that it does not run etcd;
    /// `None` if the member has not responded in this leader's term.
    fn runs_mainstay(&self, id: u64) -> Option<bool> {
        self.programs.runs_mainstay(id, self.raw.raft.term)
    }
}
