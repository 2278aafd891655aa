//! Confirms reads with a quorum: the ReadIndex algorithm of Ongaro's thesis (6.4), for the reads of this
//! node's clients and for those that other members forward to this leader.
//!
//! The raft crate sends a heartbeat to every member for each read. This module saves most of these messages:
//!
//! * **The asker's acknowledgement.** A follower that forwards a read in the leader's term shows with that
//!   message what its response to a heartbeat would show: after the read began, it had not moved to a newer
//!   term. In a cluster of three the leader and the asker are a quorum, so the leader answers immediately.
//!   The message names the asker's term in its entry, which members that run etcd and older versions of
//!   Mainstay neither set nor read: their reads are confirmed by heartbeats.
//! * **Shared heartbeats.** Reads that this leader receives before its next effects are confirmed by one
//!   heartbeat to each member, which leaves after all of these reads have begun.
//!
//! # Example: three members; member 1 leads in term 4 and has committed entry 100
//!
//! ```text
//! member 2 forwards a read, which names term 4    members 1 and 2 are a quorum:
//!                                                 answered with index 100, no other message is sent
//! member 2 forwards a read, which names term 3    it was sent before member 2 followed this leader:
//! and a client of member 1 reads                  one heartbeat to each member confirms both
//! ```

use raft::StateRole;
use raft::eraftpb::{self, MessageType};

use super::{Node, other};
use crate::event::Refusal;

/// Maximum number of reads for which a leader awaits confirmation at the same time. Further reads are
/// refused.
const PENDING_READS_MAX: usize = 4096;

impl Node {
    /// Takes a read of a client or of another member. A leader confirms it with the next effects; a follower
    /// forwards it to the leader.
    pub(super) fn read(&mut self, message: eraftpb::Message) -> Result<(), Refusal> {
        let raft = &mut self.raw.raft;
        if raft.pending_read_count() + self.reads.len() >= PENDING_READS_MAX {
            return Err(other("too many reads wait for confirmation"));
        }
        if raft.state == StateRole::Leader {
            self.reads.push(message);
            return Ok(());
        }
        raft.step(message).map_err(other)
    }

    /// Returns the term that a read of this node's own clients names, see the module documentation.
    pub(super) fn term_of_asker(&self) -> u64 {
        if self.config.speaks_as_etcd { 0 } else { self.raw.raft.term }
    }

    /// Begins to confirm the reads that this leader has received since the last effects. They wait while this
    /// leader has not committed an entry of its own term, because it does not know the commit index before;
    /// the raft crate would drop them. If this node does not lead any more, they are dropped: their members
    /// ask the next leader.
    pub(super) fn begin_reads(&mut self) {
        if self.reads.is_empty() {
            return;
        }
        if self.raw.raft.state != StateRole::Leader {
            self.reads.clear();
            return;
        }
        if !self.raw.raft.commit_to_current_term() {
            return;
        }
        let mut need_heartbeats = false;
        for read in std::mem::take(&mut self.reads) {
            if self.is_confirmed_by_asker(&read) {
                self.answer(read);
                continue;
            }
            let raft = &mut self.raw.raft;
            if raft.prs().is_singleton() {
                // A sole voter confirms the read at once.
                let taken = raft.step(read);
                assert!(taken.is_ok(), "a leader takes reads");
            } else {
                let (committed, id) = (raft.raft_log.committed, raft.id);
                raft.read_only.add_request(committed, read, id);
                need_heartbeats = true;
            }
        }
        if need_heartbeats {
            // These heartbeats confirm all reads that wait, because they carry the context of the newest.
            self.raw.ping();
        }
    }

    /// Returns true if another member has forwarded this read in this leader's term, and the two are a
    /// quorum.
    fn is_confirmed_by_asker(&self, read: &eraftpb::Message) -> bool {
        let (raft, asker) = (&self.raw.raft, read.from);
        let in_this_term = read.entries.first().is_some_and(|entry| entry.term == raft.term);
        if asker == 0 || asker == raft.id || !in_this_term || self.config.speaks_as_etcd {
            return false;
        }
        raft.prs().has_quorum(&[raft.id, asker].into_iter().collect())
    }

    /// Answers a read that another member has forwarded.
    fn answer(&mut self, mut read: eraftpb::Message) {
        let raft = &mut self.raw.raft;
        let mut answer = eraftpb::Message::default();
        answer.set_msg_type(MessageType::MsgReadIndexResp);
        (answer.to, answer.from, answer.term) = (read.from, raft.id, raft.term);
        answer.index = raft.raft_log.committed;
        answer.set_entries(read.take_entries());
        // The raft crate's queue, and not the outbox: the answer tells the commit index, which may have to be
        // on disk first (`Node::notes_commit_first`).
        raft.msgs.push(answer);
    }
}
