//! Lets a leader that has applied its own removal tell the other members of the removal before its process
//! ends.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use numbers::Index;
use planted::Bug;
use raft::StateRole;
use raft::eraftpb::{self, MessageType};

use super::Node;
use crate::entry::{ConfChange, ConfChangeKind};

/// Context of the heartbeats with which a removed leader announces that its removal is committed, and of the
/// responses to them.
pub(super) const FAREWELL: &[u8] = b"mainstay farewell";

/// State of a leader whose own removal has been applied, until enough other members know that the removal is
/// committed.
///
/// Only a leader announces the commit index, and members that do not know that the removal is committed still
/// count the removed member for their quorum. In a cluster of two members, the remaining one could not be
/// elected without the removed member's vote. So the removed leader continues to send entries and heartbeats.
/// The raft crate is not notified yet that the change was applied, because it requires a leader with a vote.
/// That is safe: the leader accepts no more proposals, and any majority of the voters before the change has a
/// member in common with any majority after it.
///
/// Worked example: member 1 leads {1, 2} and is removed by entry 7. Member 2 has acknowledged entry 7, but
/// the message that announces its commit was lost. Member 1 sends heartbeats with commit index 7 and the
/// context [`FAREWELL`]. Member 2 applies entry 7 and responds with the same context, and member 1 steps
/// down.
pub(super) struct Farewell {
    /// Commit index when the removal was applied. A member that knows this commit index knows of the removal.
    index: Index,
    /// Ids of the members that know of the removal.
    told: BTreeSet<u64>,
    /// Tick at which the removal was last announced, by member.
    said: BTreeMap<u64, u64>,
    change: ConfChange,
}

impl Farewell {
    /// Begins the farewell of a leader that has applied its own removal. `index` is the commit index at this
    /// time: a member that knows this commit index knows of the removal.
    pub(super) fn new(index: Index, change: ConfChange) -> Farewell {
        Farewell { index, told: BTreeSet::new(), said: BTreeMap::new(), change }
    }

    /// Records that a member knows of the removal.
    pub(super) fn acknowledged(&mut self, id: u64) {
        self.told.insert(id);
    }
}

impl Node {
    /// Returns true if the change removes this node while it leads a cluster with other voters.
    pub(super) fn must_take_leave(&self, change: ConfChange) -> bool {
        let own = self.config.id.0;
        self.leaving.is_none()
            && change == (ConfChange { kind: ConfChangeKind::Remove, node: self.config.id })
            && self.raw.raft.state == StateRole::Leader
            && self.raw.store().conf_state.voters.iter().any(|id| *id != own)
            && !planted::is(Bug::RemovedLeaderSilent)
    }

    /// Returns true while this node, which has applied its own removal as a leader, makes sure that a
    /// majority of the other voters knows of the removal. Its process should continue until then, but only
    /// for a limited number of election timeouts.
    pub fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// Announces the committed removal to the members that have the entry of the removal. Once enough members
    /// know of the removal, it is applied in this node's raft crate, too.
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
            // The change was checked when it was applied to the member list, and it leaves other voters, so
            // the raft crate accepts it.
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
