//! What a peer may not say: everything that would make the raft crate panic or forget its term.
//!
//! The raft crate trusts its peers: a heartbeat that commits what is not there, an append with a gap, a snapshot that
//! names nobody end the process. A peer may be a broken build or another program; therefore such messages
//! stop here, before the raft crate sees them, and the node stays as it was.

use raft::eraftpb::{self, MessageType};
use raft::{RawNode, StateRole, Storage};

use crate::wire::{self, NUMBER_MAX};

/// A snapshot or a restored checkpoint names at least one voter, nobody twice and nobody by the id 0.
pub(crate) fn check_members(voters: &[u64], learners: &[u64]) -> Result<(), String> {
    let mut ids: Vec<u64> = voters.iter().chain(learners).copied().collect();
    ids.sort_unstable();
    if ids.first() == Some(&0) {
        return Err("a member with the id 0".to_owned());
    }
    if ids.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err("a member named twice".to_owned());
    }
    if voters.is_empty() && !learners.is_empty() {
        return Err("learners without a voter".to_owned());
    }
    Ok(())
}

/// Says what is wrong with a message, if anything is; `message` is as `message_to_raft` left it.
pub(crate) fn check<T: Storage>(message: &eraftpb::Message, node: &RawNode<T>) -> Result<(), String> {
    use MessageType as M;
    let raft = &node.raft;
    let kind = message.get_msg_type();
    if message.to != raft.id {
        return Err(format!("a message to {:x}, which is not this member", message.to));
    }
    if message.from == 0 {
        return Err("a message from nobody".to_owned());
    }
    // A transfer request names the transferee as its sender, which may be the leader that receives it.
    if message.from == raft.id && kind != M::MsgTransferLeader {
        return Err("a message from this member itself".to_owned());
    }
    let numbers = [message.term, message.log_term, message.index, message.commit, message.reject_hint];
    if numbers.iter().any(|n| *n > NUMBER_MAX) {
        return Err("a term or an index beyond all measure".to_owned());
    }
    // A term of 0 marks what a node tells itself; a forwarded request has it because it has no term.
    match kind {
        M::MsgPropose | M::MsgReadIndex if message.term != 0 => {
            return Err(format!("{} with a term", wire::name(kind)));
        }
        M::MsgPropose | M::MsgReadIndex => {}
        _ if message.term == 0 => return Err(format!("{} without a term", wire::name(kind))),
        _ => {}
    }
    // What an older term says is answered or dropped without a look at it.
    if message.term != 0 && message.term < raft.term {
        return Ok(());
    }
    let last = raft.raft_log.last_index();
    let leads_this_term = raft.state == StateRole::Leader && message.term == raft.term;
    match kind {
        M::MsgPropose if message.entries.is_empty() => Err("a proposal of nothing".to_owned()),
        M::MsgAppend => check_append(message),
        M::MsgAppendResponse if leads_this_term && message.index > last => {
            Err(format!("an answer about entry {}, the last one is {last}", message.index))
        }
        M::MsgAppendResponse if leads_this_term && message.reject && message.reject_hint > last => {
            Err(format!("a hint at entry {}, the last one is {last}", message.reject_hint))
        }
        M::MsgHeartbeat if message.commit > last => {
            Err(format!("a heartbeat that commits entry {}, the last one is {last}", message.commit))
        }
        M::MsgSnapshot => check_snapshot(message, node),
        // Forwarding one that has a term is what the raft crate cannot do; its sender asks again.
        M::MsgTransferLeader if raft.state != StateRole::Leader => {
            Err("a transfer request to a member that does not lead".to_owned())
        }
        M::MsgReadIndex | M::MsgReadIndexResp => match message.entries.as_slice() {
            [entry] if !entry.data.is_empty() => Ok(()),
            _ => Err(format!("{} without its one context", wire::name(kind))),
        },
        _ => Ok(()),
    }
}

/// Entries follow each other and the one before them, in index and in term.
fn check_append(message: &eraftpb::Message) -> Result<(), String> {
    if (message.index == 0) != (message.log_term == 0) {
        return Err(format!("an append after entry {} of term {}", message.index, message.log_term));
    }
    let (mut index, mut term) = (message.index, message.log_term);
    for entry in message.entries.iter() {
        if entry.index != index + 1 {
            return Err(format!("entry {} where {} belongs", entry.index, index + 1));
        }
        if entry.term < term.max(1) || entry.term > message.term {
            return Err(format!("entry {} of term {} after one of term {term}", entry.index, entry.term));
        }
        (index, term) = (entry.index, entry.term);
    }
    if term > message.term {
        return Err(format!("an append of term {} after an entry of term {term}", message.term));
    }
    Ok(())
}

fn check_snapshot<T: Storage>(message: &eraftpb::Message, node: &RawNode<T>) -> Result<(), String> {
    let metadata = message.get_snapshot().get_metadata();
    let conf = metadata.get_conf_state();
    if metadata.index == 0 || metadata.term == 0 {
        return Err("a snapshot of nothing".to_owned());
    }
    if metadata.index > NUMBER_MAX || metadata.term > message.term {
        return Err(format!("a snapshot of entry {} in term {}", metadata.index, metadata.term));
    }
    if !conf.voters_outgoing.is_empty() || !conf.learners_next.is_empty() || conf.auto_leave {
        return Err("a snapshot in the middle of a joint conf change".to_owned());
    }
    if conf.voters.is_empty() {
        return Err("a snapshot without a voter".to_owned());
    }
    check_members(&conf.voters, &conf.learners)?;
    let log = &node.raft.raft_log;
    if metadata.index == log.committed && !log.match_term(metadata.index, metadata.term) {
        return Err(format!("a snapshot that contradicts the committed entry {}", metadata.index));
    }
    Ok(())
}
