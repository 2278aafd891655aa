//! Summarizes the state of the core, for tests that check a member from outside.

use consensus::Role;
use machine::StateTrail;
use numbers::{Index, Revision, Term};

use super::Core;

/// State of a member's core between two turns, for the simulation and for tests. The fields form a flat list,
/// so that tests can compare and print each of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Id of the member.
    pub id: u64,
    /// Raft role of the member in the term [`Self::term`].
    pub role: Role,
    /// Current raft term of the member.
    pub term: Term,
    /// Id of the member for which this member voted in the current term; 0 for none.
    pub vote: u64,
    /// Id of the leader that the member knows; 0 for none.
    pub leader: u64,
    /// True if the member leads and has applied an entry of its own term.
    pub settled: bool,
    /// Index of the newest entry that the member knows to be committed.
    pub commit: Index,
    /// Index of the last entry that the member has applied.
    pub applied: Index,
    /// Raft term of the entry at `applied`.
    pub applied_term: Term,
    /// Index of the first entry that the member can still send to others.
    pub first_index: Index,
    /// Index of the last entry of the member's log, synced or not.
    pub last_index: Index,
    /// Index up to which the member has reported its log as synced to raft, so that the entries count for a
    /// quorum.
    pub synced_index: Index,
    /// Index of the last entry on disk. Above `synced_index` while entries on disk are being replaced.
    pub stored_index: Index,
    /// Ids of the voters in the configuration of the raft node, in ascending order.
    pub voters: Vec<u64>,
    /// Ids of the learners, in ascending order.
    pub learners: Vec<u64>,
    /// Current revision of the store.
    pub revision: Revision,
    /// Compact revision of the store; -1 for none.
    pub compact_revision: Revision,
    /// Hash of the state after the last applied entry; see [`machine::Machine::state_hash`].
    pub state_hash: Option<u64>,
    /// Applied index of the newest durable checkpoint that this run knows of.
    pub checkpoint: Index,
    /// True if the member is receiving another member's state, or has installed one and not yet saved a
    /// checkpoint of it.
    pub installing: bool,
    /// Log bytes written since the newest checkpoint was ordered, and the limit at which the next checkpoint
    /// is due even if these bytes contain few entries.
    pub unsaved_bytes: (u64, u64),
    /// Number of readers that read a state slice by slice and have not ended.
    pub long_readers: usize,
    /// Number of segments that wait to be deleted: no durable file needs them, but views or a state being
    /// received may.
    pub pending_delete: usize,
    /// Number of states, complete or partial, that were replaced or are useless and that wait to be given to
    /// the checkpointer, which drops them.
    pub discarded: usize,
    /// Number of leases.
    pub leases: usize,
    /// Number of leases whose deadlines this member tracks; 0 unless it leads.
    pub lease_clocks: usize,
    /// Number of ReadIndex rounds that were begun and are not answered, and number of all requests that wait
    /// for a round to begin, to be confirmed or to be answered.
    pub reads: (usize, usize),
    /// Bytes of the index, including those that wait to be freed.
    pub index_bytes: u64,
    /// Number of versions that will be removable by a compaction: superseded versions and tombstones.
    pub removable: usize,
    /// True if the member leads and counts the witness: no other machine must be lost now.
    pub counts_witness: bool,
    /// True if the member knows that it is no longer part of its cluster, and is about to end.
    pub is_removed: bool,
}

impl Core {
    /// Returns the state of the core between two turns.
    pub fn probe(&self) -> Probe {
        let raft_status = self.node.status();
        Probe {
            id: self.shared.member.identity.member_id,
            role: raft_status.role,
            term: raft_status.term,
            vote: self.node.voted_for().0,
            leader: raft_status.leader.0,
            settled: self.leadership.has_settled(),
            commit: raft_status.commit,
            applied: self.machine.applied_index,
            applied_term: self.machine.applied_term,
            first_index: self.node.first_index(),
            last_index: raft_status.last,
            synced_index: self.node.synced_index(),
            stored_index: self.node.stored_index(),
            voters: self.node.voters().into_iter().map(|id| id.0).collect(),
            learners: self.node.learners().into_iter().map(|id| id.0).collect(),
            revision: self.machine.store.current_revision(),
            compact_revision: self.machine.store.compact_revision(),
            state_hash: self.machine.state_hash(),
            checkpoint: self.space.checkpoints.applied_index(),
            installing: self.install.is_busy(),
            unsaved_bytes: self.space.checkpoints.unsaved_bytes(self.log.figures().written_bytes()),
            long_readers: self.shared.data.long_reads.figures().0,
            pending_delete: self.space.segments.pending_delete(),
            discarded: self.install.discarded(),
            leases: self.machine.leases.len(),
            lease_clocks: self.leases.running(),
            reads: self.reads.figures(),
            index_bytes: self.machine.store.stats().bytes,
            removable: self.machine.store.stats().removable,
            counts_witness: self.node.counts_witness(),
            is_removed: self.membership.is_removed(),
        }
    }

    /// Returns the term of an entry in the log, or of the entry just before the first one; `None` for others.
    pub fn entry_term(&self, index: Index) -> Option<Term> {
        self.node.term_of(index)
    }

    /// Returns the hashes of the state after each entry from this index on, as far as they are still stored.
    pub fn state_trail(&self, from: Index) -> StateTrail {
        self.machine.state_trail(from)
    }
}
