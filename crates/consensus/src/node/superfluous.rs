//! Drops messages that tell their receiver nothing new, as far as this node knows. The raft crate makes them
//! because it knows neither that another message follows, nor which program the other member runs. Each of
//! them would wake a thread of its receiver. If the message that made one superfluous is lost, the heartbeats
//! of the next tick repair that.

use raft::StateRole;
use raft::eraftpb::{self, MessageType};

use super::Node;

/// Facts about a received message, and about this node before the raft crate handles the message.
pub(super) struct Before {
    from: u64,
    /// True if the message is an append without entries and without a hint.
    is_plain_append: bool,
    /// Number of messages that the raft crate had queued.
    queued: usize,
    committed: u64,
}

fn is_accepted(message: &eraftpb::Message) -> bool {
    message.get_msg_type() == MessageType::MsgAppendResponse && !message.reject
}

fn is_empty_append(message: &eraftpb::Message) -> bool {
    message.get_msg_type() == MessageType::MsgAppend && message.entries.is_empty()
}

impl Node {
    /// Notes what [`Node::drop_superfluous`] needs, before the raft crate handles this message.
    pub(super) fn before(&self, message: &eraftpb::Message) -> Before {
        let raft = &self.raw.raft;
        Before {
            from: message.from,
            is_plain_append: is_empty_append(message) && message.reject_hint == 0,
            queued: raft.msgs.len(),
            committed: raft.raft_log.committed,
        }
    }

    /// Drops the raft crate's response to a message of this kind, if it is superfluous.
    pub(super) fn drop_superfluous(&mut self, kind: MessageType, before: &Before) {
        match kind {
            _ if self.config.speaks_as_etcd => {}
            MessageType::MsgHeartbeatResponse => self.drop_repeated(before),
            MessageType::MsgAppend => self.drop_known(before),
            _ => {}
        }
    }

    /// Drops the append without entries that the raft crate has made in response to the sender's heartbeat
    /// response, if one was sent in this tick already. It shows the loss of entries or acknowledgements, and
    /// once per tick is enough for that; but while writes are in flight, the raft crate makes one for every
    /// read.
    fn drop_repeated(&mut self, before: &Before) {
        let (raft, from) = (&mut self.raw.raft, before.from);
        let replicates =
            raft.prs().get(from).is_some_and(|progress| progress.state == raft::ProgressState::Replicate);
        // A member that is probed gets one append at a time, and raft waits for its response.
        if raft.state != StateRole::Leader || !replicates {
            return;
        }
        // The answers to reads that the response confirms may follow the append.
        let made = raft.msgs.iter().skip(before.queued).position(|it| is_empty_append(it) && it.to == from);
        if let Some(at) = made
            && !self.followers.may_repeat(from, self.ticks)
        {
            raft.msgs.remove(before.queued + at);
        }
    }

    /// Drops the acknowledgement of an append without entries whose only news is the commit index, if this
    /// node has acknowledged this index already, or will once it is on disk. An append that brings no commit
    /// index is acknowledged: the leader sends it if it misses an acknowledgement. An append that probes is
    /// acknowledged, too. A leader that runs Mainstay marks it with a hint; a leader that runs etcd does not,
    /// so it gets every acknowledgement.
    fn drop_known(&mut self, before: &Before) {
        let raft = &mut self.raw.raft;
        let told = &mut self.acknowledged;
        if told.term != raft.term {
            *told = Acknowledged { term: raft.term, through: 0 };
        }
        let Some(answer) = raft.msgs.last().filter(|_| raft.msgs.len() > before.queued) else { return };
        if !is_accepted(answer) || answer.term != raft.term {
            return;
        }
        let is_news = answer.index > told.through;
        told.through = told.through.max(answer.index);
        let only_commits = before.is_plain_append && raft.raft_log.committed > before.committed;
        if only_commits && !is_news && self.programs.is_bound(raft.term) {
            raft.msgs.pop();
        }
    }
}

/// The newest acknowledgement that this follower has made.
#[derive(Debug, Default)]
pub(super) struct Acknowledged {
    /// Term of the leader that it is for.
    term: u64,
    /// Index through which the follower's log was acknowledged.
    through: u64,
}

/// Drops messages that a later message to the same member makes superfluous: an append without entries before
/// another append, and an accepted append response before one of the same or a higher index.
pub(super) fn drop_superseded(messages: &mut Vec<eraftpb::Message>) {
    if messages.len() < 2 {
        return;
    }
    // The messages are visited from the last to the first. These are the receivers and terms of those that
    // were visited; of responses also the index.
    let (mut appends, mut accepted) = (Vec::new(), Vec::new());
    messages.reverse();
    messages.retain(|message| {
        let key = (message.to, message.term);
        if message.get_msg_type() == MessageType::MsgAppend {
            let is_superseded = message.entries.is_empty() && appends.contains(&key);
            appends.push(key);
            return !is_superseded;
        }
        if is_accepted(message) {
            let is_superseded = accepted.iter().any(|(of, index)| *of == key && *index >= message.index);
            accepted.push((key, message.index));
            return !is_superseded;
        }
        true
    });
    messages.reverse();
}
