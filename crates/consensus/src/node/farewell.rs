//! A leader whose removal is applied: it makes the removal known before it ends.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use numbers::Index;
use planted::Bug;
use raft::StateRole;
use raft::eraftpb::{self, MessageType};

use super::Node;
use crate::entry::{ConfChange, ConfChangeKind};

/// Context of the heartbeats with which a removed leader announces that its removal is committed, and of
/// their answers.
pub(super) const FAREWELL: &[u8] = b"mainstay farewell";

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
pub(super) struct Farewell {
    /// A commit index at or after the removal: a member that has it knows the removal.
    index: Index,
    /// Ids of the members that know the removal.
    told: BTreeSet<u64>,
    /// Tick at which the removal was last announced to each member.
    said: BTreeMap<u64, u64>,
    change: ConfChange,
}

impl Farewell {
    /// Returns the state of a leader that has applied its own removal. `index` is the commit index at this time,
    /// so a member that has it knows the removal.
    pub(super) fn new(index: Index, change: ConfChange) -> Farewell {
        Farewell { index, told: BTreeSet::new(), said: BTreeMap::new(), change }
    }

    /// Records that a member knows the removal.
    pub(super) fn acknowledged(&mut self, id: u64) {
        self.told.insert(id);
    }
}

impl Node {
    /// Returns true if a change removes this node while it leads others.
    pub(super) fn must_take_leave(&self, change: ConfChange) -> bool {
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
    pub(super) fn settle_leaving(&mut self) {
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
}
