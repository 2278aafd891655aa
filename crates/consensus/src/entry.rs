//! Defines entries, hard states and membership changes in the form that other crates use.

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
    /// Raft term in which the entry was proposed.
    pub term: Term,
    /// Index of the entry, counted from 1.
    pub index: Index,
    /// Type of `data`.
    pub kind: EntryKind,
    /// The payload, in etcd's encoding.
    pub data: Bytes,
}

impl fmt::Debug for Entry {
    /// Formats the payload only as its length, because the payload may contain values and password hashes.
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

/// State that a node needs after a crash, in addition to the entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    /// The newest raft term that this member has seen.
    pub term: Term,
    /// Member for which this member voted in `term`; 0 for none.
    pub vote: MemberId,
    /// The commit index that this member knows.
    pub commit: Index,
}

/// Kind of a membership change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfChangeKind {
    /// Adds a voter, or promotes a learner to one.
    AddVoter,
    /// Adds a member that receives the log and has no vote.
    AddLearner,
    /// Removes a voter or a learner.
    Remove,
    /// Changes only attributes that do not concern voting, such as an address.
    Update,
}

/// A membership change as raft sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfChange {
    /// Kind of the change.
    pub kind: ConfChangeKind,
    /// Id of the member that the change concerns.
    pub node: MemberId,
}

impl ConfChange {
    /// Returns the change in the raft crate's form. The raft crate's numbers for the kinds of change differ
    /// from etcd's, so this form is never written to a disk or sent to a peer. An update is encoded as the
    /// removal of the id 0, which changes nothing.
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
    /// Returns the entry in the raft crate's form. For a conf change, the bytes in etcd's encoding are stored
    /// in `context`, because the raft crate uses `data` for its own encoding.
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
