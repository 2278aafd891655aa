//! Entries and states as the rest of the product sees them.

use std::fmt;

use bytes::Bytes;
use numbers::{Index, MemberId, Term};
use raft::eraftpb;

/// The type of an entry's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// Bytes of an `InternalRaftRequest`; empty for the entry that a new leader appends.
    Normal,
    /// Bytes of etcd's `ConfChange`.
    ConfChange,
}

/// One entry of the raft log.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// The term in which it was proposed.
    pub term: Term,
    /// Index of the entry, counted from 1.
    pub index: Index,
    /// Type of `data`.
    pub kind: EntryKind,
    /// The payload, etcd's bytes.
    pub data: Bytes,
}

impl fmt::Debug for Entry {
    /// The payload is told by its length: values, and hashes of passwords, are in it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Entry { term, index, kind, data } = self;
        f.debug_struct("Entry")
            .field("term", term)
            .field("index", index)
            .field("kind", kind)
            .field("bytes", &data.len())
            .finish()
    }
}

/// The state that a node must find again after a crash, besides entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    /// The newest term seen.
    pub term: Term,
    /// Member that this member voted for in that term; 0 for none.
    pub vote: MemberId,
    /// The newest index known to be committed.
    pub commit: Index,
}

/// The effect of a membership change on the voters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfChangeKind {
    /// Adds a voter, or makes one of a learner.
    AddVoter,
    /// Adds a member that receives the log and has no vote.
    AddLearner,
    /// Removes a member of either kind.
    Remove,
    /// Changes nothing about voting: a new address, say.
    Update,
}

/// A membership change as raft sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfChange {
    /// Effect of the change.
    pub kind: ConfChangeKind,
    /// Id of the member that it concerns.
    pub node: MemberId,
}

impl ConfChange {
    /// The form that the raft crate understands. Its numbers for the kinds differ from etcd's, so this never goes to
    /// a disk or a peer. An update is spelled as the removal of nobody, which changes nothing.
    pub(crate) fn to_raft(self) -> eraftpb::ConfChange {
        let mut change = eraftpb::ConfChange::default();
        change.set_node_id(self.node.0);
        match self.kind {
            ConfChangeKind::AddVoter => change.set_change_type(eraftpb::ConfChangeType::AddNode),
            ConfChangeKind::AddLearner => change.set_change_type(eraftpb::ConfChangeType::AddLearnerNode),
            ConfChangeKind::Remove => change.set_change_type(eraftpb::ConfChangeType::RemoveNode),
            ConfChangeKind::Update => {
                change.set_change_type(eraftpb::ConfChangeType::RemoveNode);
                change.set_node_id(0);
            }
        }
        change
    }
}

impl Entry {
    /// The raft crate's form: a conf change carries etcd's bytes in `context`, for raft reads `data` itself.
    pub(crate) fn to_raft(&self) -> eraftpb::Entry {
        let mut entry =
            eraftpb::Entry { term: self.term.0, index: self.index.0, ..eraftpb::Entry::default() };
        match self.kind {
            EntryKind::Normal => entry.data = self.data.clone(),
            EntryKind::ConfChange => {
                entry.entry_type = eraftpb::EntryType::EntryConfChange;
                entry.context = self.data.clone();
            }
        }
        entry
    }

    pub(crate) fn from_raft(entry: eraftpb::Entry) -> Entry {
        let (kind, data) = match entry.entry_type {
            eraftpb::EntryType::EntryNormal => (EntryKind::Normal, entry.data),
            eraftpb::EntryType::EntryConfChange | eraftpb::EntryType::EntryConfChangeV2 => {
                (EntryKind::ConfChange, entry.context)
            }
        };
        Entry { term: Term(entry.term), index: Index(entry.index), kind, data }
    }
}
