//! What a test that checks a member from outside looks at.

use consensus::Role;
use machine::StateTrail;

use super::Core;

/// Where a member stands, between two turns of its core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The member.
    pub id: u64,
    /// Its part in the present term.
    pub role: Role,
    /// The present term.
    pub term: u64,
    /// Whom it voted for in that term; 0 for nobody.
    pub vote: u64,
    /// The leader it knows of; 0 for none.
    pub leader: u64,
    /// Whether it leads and has applied an entry of its own term.
    pub settled: bool,
    /// The newest entry it knows to be committed.
    pub commit: u64,
    /// The last entry it has applied.
    pub applied: u64,
    /// The term of that entry.
    pub applied_term: u64,
    /// The first entry that it can still give to others.
    pub first_index: u64,
    /// The last entry of its log, synced or not.
    pub last_index: u64,
    /// The entries up to here are on disk, as far as it counts itself for a quorum.
    pub synced_index: u64,
    /// The last entry on disk; beyond `synced_index` while what is on disk is being replaced.
    pub stored_index: u64,
    /// The members with a vote, as its raft counts them, in order.
    pub voters: Vec<u64>,
    /// Those without.
    pub learners: Vec<u64>,
    /// The store's revision.
    pub revision: i64,
    /// The store's compact revision; -1 for none.
    pub compact_revision: i64,
    /// The hash of the state after the last entry applied; see [`machine::Machine::state_hash`].
    pub state_hash: Option<u64>,
    /// The last entry in the newest durable checkpoint that this run knows of.
    pub checkpoint: u64,
    /// Whether it is receiving another member's state, or has not saved one that it took over.
    pub installing: bool,
    /// Bytes of log written since the newest checkpoint was ordered, and those after which another is due however few
    /// entries they are.
    pub unsaved_bytes: (u64, u64),
    /// Readers that take long and have not come to their end.
    pub long_readers: usize,
    /// Segments that nothing durable needs and that are not deleted, since views or a state that is received may.
    pub pending_delete: usize,
    /// States that were replaced or are of no use, and parts of some, that are not on their way to be dropped yet.
    pub discarded: usize,
    /// The leases that exist.
    pub leases: usize,
    /// The leases whose clocks run here.
    pub lease_clocks: usize,
    /// Rounds of linearizable reads that were begun and are not answered, and all reads and renewals that wait, in a round
    /// or for one.
    pub reads: (usize, usize),
    /// Bytes of the index, what waits to be freed included.
    pub index_bytes: u64,
    /// Versions that were superseded or are deletions, and are not removed yet.
    pub removable: usize,
}

impl Core {
    /// Where the member stands.
    pub fn probe(&self) -> Probe {
        let standing = self.node.standing();
        Probe {
            id: self.shared.identity.member_id,
            role: standing.role,
            term: standing.term,
            vote: self.node.voted_for(),
            leader: standing.leader,
            settled: self.leadership.has_settled(),
            commit: standing.commit,
            applied: self.machine.applied_index,
            applied_term: self.machine.applied_term,
            first_index: self.node.first_index(),
            last_index: standing.last,
            synced_index: self.node.synced_index(),
            stored_index: self.node.stored_index(),
            voters: self.node.voters(),
            learners: self.node.learners(),
            revision: self.machine.store.current_revision(),
            compact_revision: self.machine.store.compact_revision(),
            state_hash: self.machine.state_hash(),
            checkpoint: self.checkpoints.applied_index(),
            installing: self.install.is_busy(),
            unsaved_bytes: self.checkpoints.unsaved_bytes(self.log.figures().written_bytes()),
            long_readers: self.shared.long_reads.figures().0,
            pending_delete: self.segments.pending_delete(),
            discarded: self.install.discarded(),
            leases: self.machine.leases.len(),
            lease_clocks: self.leases.running(),
            reads: self.reads.figures(),
            index_bytes: self.machine.store.stats().bytes,
            removable: self.machine.store.stats().removable,
        }
    }

    /// The term of an entry that is in the log, or right before its first one.
    pub fn entry_term(&self, index: u64) -> Option<u64> {
        self.node.term_of(index)
    }

    /// The hashes of the state after the entries from this one on, as far as they are kept.
    pub fn state_trail(&self, from: u64) -> StateTrail {
        self.machine.state_trail(from)
    }
}
