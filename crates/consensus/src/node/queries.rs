//! What the node answers about itself and about the other members.

use numbers::{Index, MemberId, Term};
use planted::Bug;
use raft::StateRole;

use super::{Node, named};
use crate::effects::{OtherPrograms, Progress, ProgressState, RaftStatus, Role};

impl Node {
    /// Returns the present status of the node.
    pub fn status(&self) -> RaftStatus {
        let raft = &self.raw.raft;
        RaftStatus {
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
    /// that is down counts by its last answer. [`OtherPrograms::Unheard`] on members that do not lead.
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
}
