//! Refuses messages from peers that would make the raft crate panic or corrupt its term.
//!
//! The raft crate trusts its peers: a heartbeat that commits entries which do not exist, an append with a
//! gap, or a snapshot without members would end the process. But a peer may be a broken build or another
//! program. Therefore this module refuses such messages before the raft crate sees them, and the state of the
//! node does not change.

use raft::eraftpb::{self, MessageType};
use raft::{RawNode, StateRole, Storage};

use crate::event::Refusal;
use crate::wire::{self, NUMBER_MAX};

/// Checks that the members of a snapshot or restored checkpoint have no duplicate ids and not the id 0, and
/// that at least one of them is a voter. An empty list of members is accepted.
pub(crate) fn check_members(voters: &[u64], learners: &[u64]) -> Result<(), Refusal> {
    let mut ids: Vec<u64> = voters.iter().chain(learners).copied().collect();
    ids.sort_unstable();
    if ids.first() == Some(&0) {
        return Err(Refusal::because("a member with the id 0"));
    }
    if ids.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(Refusal::because("a member named twice"));
    }
    if voters.is_empty() && !learners.is_empty() {
        return Err(Refusal::because("learners without a voter"));
    }
    Ok(())
}

/// Returns the reason as an error if a message is invalid. `message` is the result of `message_to_raft`.
pub(crate) fn check<T: Storage>(message: &eraftpb::Message, node: &RawNode<T>) -> Result<(), Refusal> {
    use MessageType as M;
    let raft = &node.raft;
    let kind = message.get_msg_type();
    if message.to != raft.id {
        return Err(Refusal::because(format!("a message to {:x}, which is not this member", message.to)));
    }
    if message.from == 0 {
        return Err(Refusal::because("a message without a sender"));
    }
    // A transfer request is accepted from this member itself: the message names the transferee as its sender,
    // and the transferee may be the leader that receives the request.
    if message.from == raft.id && kind != M::MsgTransferLeader {
        return Err(Refusal::because("a message from this member itself"));
    }
    let numbers = [message.term, message.log_term, message.index, message.commit, message.reject_hint];
    if numbers.iter().any(|n| *n > NUMBER_MAX) {
        return Err(Refusal::because("a term or an index that is impossibly large"));
    }
    // A forwarded request must have the term 0, because it belongs to no term. All other messages must have a
    // term, because the raft crate takes a message with the term 0 for a message of this node to itself.
    match kind {
        M::MsgPropose | M::MsgReadIndex if message.term != 0 => {
            return Err(Refusal::because(format!("{} with a term", wire::name(kind))));
        }
        M::MsgPropose | M::MsgReadIndex => {}
        _ if message.term == 0 => {
            return Err(Refusal::because(format!("{} without a term", wire::name(kind))));
        }
        _ => {}
    }
    // A message of an older term needs no check: it is answered or dropped, and its content is not used.
    if message.term != 0 && message.term < raft.term {
        return Ok(());
    }
    let last = raft.raft_log.last_index();
    let leads_this_term = raft.state == StateRole::Leader && message.term == raft.term;
    match kind {
        M::MsgPropose if message.entries.is_empty() => Err(Refusal::because("a proposal of nothing")),
        M::MsgAppend => check_append(message),
        M::MsgAppendResponse if leads_this_term && message.index > last => {
            Err(Refusal::because(format!("an answer about entry {}, the last one is {last}", message.index)))
        }
        M::MsgAppendResponse if leads_this_term && message.reject && message.reject_hint > last => {
            Err(Refusal::because(format!("a hint at entry {}, the last one is {last}", message.reject_hint)))
        }
        M::MsgHeartbeat if message.commit > last => Err(Refusal::because(format!(
            "a heartbeat that commits entry {}, the last one is {last}",
            message.commit
        ))),
        M::MsgSnapshot => check_snapshot(message, node),
        // The raft crate cannot forward a transfer request that has a term, so the request is refused and its
        // sender repeats it.
        M::MsgTransferLeader if raft.state != StateRole::Leader => {
            Err(Refusal::because("a transfer request to a member that does not lead"))
        }
        M::MsgReadIndex | M::MsgReadIndexResp => match message.entries.as_slice() {
            [entry] if !entry.data.is_empty() => Ok(()),
            _ => Err(Refusal::because(format!("{} without its one context", wire::name(kind)))),
        },
        _ => Ok(()),
    }
}

/// Checks that the entries of an append are consecutive, and that their indexes and terms continue the index
/// and term of the entry before them.
fn check_append(message: &eraftpb::Message) -> Result<(), Refusal> {
    if (message.index == 0) != (message.log_term == 0) {
        return Err(Refusal::because(format!(
            "an append after entry {} of term {}",
            message.index, message.log_term
        )));
    }
    let (mut index, mut term) = (message.index, message.log_term);
    for entry in message.entries.iter() {
        if entry.index != index + 1 {
            return Err(Refusal::because(format!("entry {} where {} belongs", entry.index, index + 1)));
        }
        if entry.term < term.max(1) || entry.term > message.term {
            return Err(Refusal::because(format!(
                "entry {} of term {} after one of term {term}",
                entry.index, entry.term
            )));
        }
        (index, term) = (entry.index, entry.term);
    }
    if term > message.term {
        return Err(Refusal::because(format!(
            "an append of term {} after an entry of term {term}",
            message.term
        )));
    }
    Ok(())
}

fn check_snapshot<T: Storage>(message: &eraftpb::Message, node: &RawNode<T>) -> Result<(), Refusal> {
    let metadata = message.get_snapshot().get_metadata();
    let conf = metadata.get_conf_state();
    if metadata.index == 0 || metadata.term == 0 {
        return Err(Refusal::because("a snapshot of nothing"));
    }
    if metadata.index > NUMBER_MAX || metadata.term > message.term {
        return Err(Refusal::because(format!(
            "a snapshot of entry {} in term {}",
            metadata.index, metadata.term
        )));
    }
    if !conf.voters_outgoing.is_empty() || !conf.learners_next.is_empty() || conf.auto_leave {
        return Err(Refusal::because("a snapshot in the middle of a joint conf change"));
    }
    if conf.voters.is_empty() {
        return Err(Refusal::because("a snapshot without a voter"));
    }
    check_members(&conf.voters, &conf.learners)?;
    let log = &node.raft.raft_log;
    if metadata.index == log.committed && !log.match_term(metadata.index, metadata.term) {
        return Err(Refusal::because(format!(
            "a snapshot that contradicts the committed entry {}",
            metadata.index
        )));
    }
    Ok(())
}
