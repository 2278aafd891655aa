//! Translates between etcd's raft messages and those of the raft crate.
//!
//! The two protocols share their field numbers up to field 12 and differ after it, and an entry of a conf
//! change carries different bytes. Therefore nothing that the raft crate encodes is used outside of this
//! crate.

use api::raftpb;
use bytes::Bytes;
use numbers::MemberId;
use prost::Message as _;
use protobuf::Message as _;
use raft::eraftpb;

use crate::entry::{ConfChange, ConfChangeKind};
use crate::event::Refusal;

/// Maximum index and term that are accepted from peers. A message with a higher number is refused, so that
/// the sum of two numbers cannot overflow.
pub(crate) const NUMBER_MAX: u64 = 1 << 62;

/// Value of the field `rejectHint` in a leader's `MsgApp` or `MsgHeartbeat`: it announces that this leader
/// accepts a forwarded proposal only in the term that the proposal contains, and never passes it on. Members
/// that run etcd set the field to 0 in these messages and do not read it.
pub(crate) const BINDS_PROPOSALS: u64 = 0x4d41_494e_5354;

/// Value with the meaning of [`BINDS_PROPOSALS`], only in a leader's `MsgHeartbeat`. It says in addition that
/// every other voter has answered this leader with [`RUNS_MAINSTAY`], and that no member has answered without
/// this value.
pub(crate) const BINDS_AND_NO_ETCD: u64 = BINDS_PROPOSALS + 1;

/// Value of the field `rejectHint` in a `MsgHeartbeatResp`, or in a `MsgAppResp` that is not a rejection: it
/// says that the sender does not run etcd. Members that run etcd set the field to 0 in these messages and do
/// not read it.
pub(crate) const RUNS_MAINSTAY: u64 = BINDS_PROPOSALS;

/// Returns the raft crate's name of a message type; `None` for types that never come from a peer.
fn to_raft_type(wire: raftpb::MessageType) -> Option<eraftpb::MessageType> {
    use eraftpb::MessageType as R;
    use raftpb::MessageType as W;
    Some(match wire {
        W::MsgProp => R::MsgPropose,
        W::MsgApp => R::MsgAppend,
        W::MsgAppResp => R::MsgAppendResponse,
        W::MsgVote => R::MsgRequestVote,
        W::MsgVoteResp => R::MsgRequestVoteResponse,
        W::MsgSnap => R::MsgSnapshot,
        W::MsgHeartbeat => R::MsgHeartbeat,
        W::MsgHeartbeatResp => R::MsgHeartbeatResponse,
        W::MsgTransferLeader => R::MsgTransferLeader,
        W::MsgTimeoutNow => R::MsgTimeoutNow,
        W::MsgReadIndex => R::MsgReadIndex,
        W::MsgReadIndexResp => R::MsgReadIndexResp,
        W::MsgPreVote => R::MsgRequestPreVote,
        W::MsgPreVoteResp => R::MsgRequestPreVoteResponse,
        W::MsgHup
        | W::MsgBeat
        | W::MsgUnreachable
        | W::MsgSnapStatus
        | W::MsgCheckQuorum
        | W::MsgStorageAppend
        | W::MsgStorageAppendResp
        | W::MsgStorageApply
        | W::MsgStorageApplyResp
        | W::MsgForgetLeader => return None,
    })
}

fn from_raft_type(raft: eraftpb::MessageType) -> raftpb::MessageType {
    use eraftpb::MessageType as R;
    use raftpb::MessageType as W;
    match raft {
        R::MsgHup => W::MsgHup,
        R::MsgBeat => W::MsgBeat,
        R::MsgPropose => W::MsgProp,
        R::MsgAppend => W::MsgApp,
        R::MsgAppendResponse => W::MsgAppResp,
        R::MsgRequestVote => W::MsgVote,
        R::MsgRequestVoteResponse => W::MsgVoteResp,
        R::MsgSnapshot => W::MsgSnap,
        R::MsgHeartbeat => W::MsgHeartbeat,
        R::MsgHeartbeatResponse => W::MsgHeartbeatResp,
        R::MsgUnreachable => W::MsgUnreachable,
        R::MsgSnapStatus => W::MsgSnapStatus,
        R::MsgCheckQuorum => W::MsgCheckQuorum,
        R::MsgTransferLeader => W::MsgTransferLeader,
        R::MsgTimeoutNow => W::MsgTimeoutNow,
        R::MsgReadIndex => W::MsgReadIndex,
        R::MsgReadIndexResp => W::MsgReadIndexResp,
        R::MsgRequestPreVote => W::MsgPreVote,
        R::MsgRequestPreVoteResponse => W::MsgPreVoteResp,
    }
}

/// Returns etcd's name of a message type.
pub(crate) fn name(raft: eraftpb::MessageType) -> &'static str {
    from_raft_type(raft).as_str_name()
}

/// Decodes etcd's `ConfChange`.
pub(crate) fn decode_conf_change(data: &[u8]) -> Result<ConfChange, Refusal> {
    use raftpb::ConfChangeType as W;
    let change = raftpb::ConfChange::decode(data)
        .map_err(|e| Refusal::because(format!("a conf change that cannot be read: {e}")))?;
    let kind = change.r#type.unwrap_or_default();
    let kind = match W::try_from(kind) {
        Ok(W::ConfChangeAddNode) => ConfChangeKind::AddVoter,
        Ok(W::ConfChangeRemoveNode) => ConfChangeKind::Remove,
        Ok(W::ConfChangeUpdateNode) => ConfChangeKind::Update,
        Ok(W::ConfChangeAddLearnerNode) => ConfChangeKind::AddLearner,
        Err(_) => return Err(Refusal::because(format!("a conf change of the unknown kind {kind}"))),
    };
    Ok(ConfChange { kind, node: MemberId(change.node_id()) })
}

/// Returns the entry in which the raft crate stores a conf change. The raft crate reads the field `data`; all
/// other code reads the field `context`.
pub(crate) fn conf_change_entry(change: ConfChange, data: Bytes) -> Result<eraftpb::Entry, Refusal> {
    let form = change.to_raft().write_to_bytes().map_err(|e| Refusal::because(e.to_string()))?;
    Ok(eraftpb::Entry {
        entry_type: eraftpb::EntryType::EntryConfChange,
        data: form.into(),
        context: data,
        ..eraftpb::Entry::default()
    })
}

fn entry_to_raft(entry: raftpb::Entry) -> Result<eraftpb::Entry, Refusal> {
    let kind = entry.r#type.unwrap_or_default();
    let (term, index) = (entry.term.unwrap_or_default(), entry.index.unwrap_or_default());
    let data = entry.data.unwrap_or_default();
    let entry = match raftpb::EntryType::try_from(kind) {
        Ok(raftpb::EntryType::EntryNormal) => eraftpb::Entry { data, ..eraftpb::Entry::default() },
        Ok(raftpb::EntryType::EntryConfChange) => conf_change_entry(decode_conf_change(&data)?, data)?,
        // etcd never proposes a conf change of version 2, and Mainstay could not apply it.
        Ok(raftpb::EntryType::EntryConfChangeV2) => {
            return Err(Refusal::because("a conf change of the second form"));
        }
        Err(_) => return Err(Refusal::because(format!("an entry of the unknown type {kind}"))),
    };
    Ok(eraftpb::Entry { term, index, ..entry })
}

fn entry_from_raft(entry: eraftpb::Entry) -> raftpb::Entry {
    let (kind, data) = match entry.entry_type {
        eraftpb::EntryType::EntryNormal => (raftpb::EntryType::EntryNormal, entry.data),
        eraftpb::EntryType::EntryConfChange | eraftpb::EntryType::EntryConfChangeV2 => {
            (raftpb::EntryType::EntryConfChange, entry.context)
        }
    };
    raftpb::Entry {
        r#type: Some(kind as i32),
        term: Some(entry.term),
        index: Some(entry.index),
        data: (!data.is_empty()).then_some(data),
    }
}

/// Translates a message from a peer. Ignores fields 13 and 14, because they have different meanings in the
/// two protocols, and `commit` in messages in which etcd does not use it.
pub(crate) fn message_to_raft(message: raftpb::Message) -> Result<eraftpb::Message, Refusal> {
    use eraftpb::MessageType as R;
    let number = message.r#type.unwrap_or_default();
    let kind = raftpb::MessageType::try_from(number)
        .ok()
        .and_then(to_raft_type)
        .ok_or_else(|| Refusal::because(format!("a message of type {number}, which no peer sends")))?;
    let mut out = eraftpb::Message::default();
    out.set_msg_type(kind);
    out.to = message.to.unwrap_or_default();
    out.from = message.from.unwrap_or_default();
    out.term = message.term.unwrap_or_default();
    out.log_term = message.log_term.unwrap_or_default();
    out.index = message.index.unwrap_or_default();
    if matches!(kind, R::MsgAppend | R::MsgHeartbeat) {
        out.commit = message.commit.unwrap_or_default();
    }
    out.reject = message.reject.unwrap_or_default();
    out.reject_hint = message.reject_hint.unwrap_or_default();
    out.context = message.context.unwrap_or_default();
    let entries = message.entries.into_iter().map(entry_to_raft).collect::<Result<Vec<_>, Refusal>>()?;
    out.set_entries(entries.into());
    if let Some(snapshot) = message.snapshot {
        let metadata = snapshot.metadata.unwrap_or_default();
        let conf = metadata.conf_state.clone().unwrap_or_default();
        let to = out.mut_snapshot().mut_metadata();
        to.index = metadata.index.unwrap_or_default();
        to.term = metadata.term.unwrap_or_default();
        let state = to.mut_conf_state();
        state.voters = conf.voters;
        state.learners = conf.learners;
        state.voters_outgoing = conf.voters_outgoing;
        state.learners_next = conf.learners_next;
        state.auto_leave = conf.auto_leave.unwrap_or_default();
    }
    Ok(out)
}

/// Returns the term to which a forwarded proposal is bound, if any. The raft crate allows no term in a
/// proposal, so the term is stored in the context.
pub(crate) fn bound_term(message: &eraftpb::Message) -> Option<u64> {
    <[u8; 8]>::try_from(&message.context[..]).ok().map(u64::from_be_bytes)
}

/// Translates a message to a peer, and sets the fields that etcd sets.
pub(crate) fn message_from_raft(mut message: eraftpb::Message) -> raftpb::Message {
    use eraftpb::MessageType as R;
    let kind = message.get_msg_type();
    // The raft crate puts its commit index into votes and responses, too. Neither etcd nor Mainstay reads the
    // commit index in these messages, so it is left out.
    let commit = matches!(kind, R::MsgAppend | R::MsgHeartbeat).then_some(message.commit);
    // A bound proposal is sent with its term, and Mainstay accepts it only in this term. The receiving member
    // may have been restarted with etcd in the meantime: etcd's raft, too, ignores a message whose term is
    // older than its own.
    let bound = if kind == R::MsgPropose { bound_term(&message) } else { None };
    let term = bound.unwrap_or(message.term);
    let context = std::mem::take(&mut message.context);
    let snapshot = message.has_snapshot().then(|| {
        let metadata = message.get_snapshot().get_metadata();
        let state = metadata.get_conf_state();
        raftpb::Snapshot {
            data: None,
            metadata: Some(raftpb::SnapshotMetadata {
                conf_state: Some(raftpb::ConfState {
                    voters: state.voters.clone(),
                    learners: state.learners.clone(),
                    voters_outgoing: state.voters_outgoing.clone(),
                    learners_next: state.learners_next.clone(),
                    auto_leave: Some(state.auto_leave),
                }),
                index: Some(metadata.index),
                term: Some(metadata.term),
            }),
        }
    });
    raftpb::Message {
        r#type: Some(from_raft_type(kind) as i32),
        to: Some(message.to),
        from: Some(message.from),
        term: Some(term),
        log_term: Some(message.log_term),
        index: Some(message.index),
        entries: message.take_entries().into_vec().into_iter().map(entry_from_raft).collect(),
        commit,
        snapshot,
        reject: Some(message.reject),
        reject_hint: Some(message.reject_hint),
        context: (!context.is_empty()).then_some(context),
        vote: None,
        responses: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conf_changes_of_every_kind() {
        // Field 2 is the kind and field 3 the member. The kind 0 is the default and is not encoded.
        let read = |data: &[u8]| decode_conf_change(data).expect("sound");
        assert_eq!(read(&[0x18, 5]), ConfChange { kind: ConfChangeKind::AddVoter, node: MemberId(5) });
        assert_eq!(read(&[0x10, 1, 0x18, 5]), ConfChange { kind: ConfChangeKind::Remove, node: MemberId(5) });
        assert_eq!(read(&[0x10, 2, 0x18, 5]), ConfChange { kind: ConfChangeKind::Update, node: MemberId(5) });
        assert_eq!(
            read(&[0x10, 3, 0x18, 5]),
            ConfChange { kind: ConfChangeKind::AddLearner, node: MemberId(5) }
        );
    }

    /// Fields 13 and 14 are etcd's vote and responses, but the raft crate's snapshot request and priority.
    #[test]
    fn fields_that_differ_are_left_alone() {
        let mut ours =
            eraftpb::Message { to: 2, from: 1, term: 4, priority: 9, commit: 7, ..Default::default() };
        ours.commit_term = 3;
        ours.request_snapshot = 8;
        ours.deprecated_priority = 9;
        ours.set_msg_type(eraftpb::MessageType::MsgRequestVote);
        let wire = message_from_raft(ours);
        assert_eq!((wire.vote, wire.responses.len(), wire.commit), (None, 0, None));
        let wire = raftpb::Message { vote: Some(8), responses: vec![wire.clone()], commit: Some(7), ..wire };
        let back = message_to_raft(wire).expect("sound");
        assert_eq!((back.request_snapshot, back.priority, back.commit, back.commit_term), (0, 0, 0, 0));
        assert_eq!((back.to, back.from, back.term), (2, 1, 4));
    }
}
