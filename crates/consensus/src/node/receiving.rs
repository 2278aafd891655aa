//! Handles messages of other members: forwarded proposals and reads, some of which wait until a leader can
//! accept them, and all other messages, which go to the raft crate.

use api::raftpb;
use bytes::Bytes;
use planted::Bug;
use raft::StateRole;
use raft::eraftpb::{self, MessageType};

use super::farewell::FAREWELL;
use super::witness::Heard;
use super::{Node, other};
use crate::event::Refusal;
use crate::validate;
use crate::wire::{self, BINDS_AND_NO_ETCD, BINDS_PROPOSALS, RUNS_MAINSTAY};

/// Maximum number of membership changes, forwarded by other members, that wait for an earlier one. Further
/// ones are refused.
const EARLY_CHANGES_MAX: usize = 64;

impl Node {
    pub(super) fn receive(&mut self, message: raftpb::Message) -> Result<(), Refusal> {
        let mut message = wire::message_to_raft(message)?;
        if message.get_msg_type() == MessageType::MsgPropose && message.term != 0 {
            if self.config.speaks_as_etcd && message.term != self.raw.raft.term {
                return Err(Refusal::NoLeader);
            }
            message.context = Bytes::copy_from_slice(&message.term.to_be_bytes());
            message.term = 0;
        }
        self.prepare_for_witness(&mut message);
        let is_of_observer = self.is_of_observer(&message);
        if self.config.observes && !is_of_observer {
            self.prepare_for_observer(&mut message)?;
        }
        validate::check(&message, &self.raw)?;
        if self.config.observes && !is_of_observer {
            self.take_term_of_feeder(&message);
        }
        if is_of_observer && message.get_msg_type() != MessageType::MsgPropose {
            return self.receive_of_observer(message);
        }
        let (kind, from, term) = (message.get_msg_type(), message.from, message.term);
        let heard = Heard { kind, from, term, reject: message.reject };
        let own_term = self.raw.raft.term;
        let hint = message.reject_hint;
        let no_etcd = kind == MessageType::MsgHeartbeat && hint == BINDS_AND_NO_ETCD;
        let binds = (hint == BINDS_PROPOSALS || no_etcd)
            && matches!(kind, MessageType::MsgAppend | MessageType::MsgHeartbeat)
            && !self.config.speaks_as_etcd;
        match kind {
            MessageType::MsgHeartbeatResponse => self.note_answer(from, term, hint),
            MessageType::MsgAppendResponse if !message.reject => self.note_answer(from, term, hint),
            _ => {}
        }
        if let Some(leaving) = &mut self.leaving {
            match kind {
                MessageType::MsgPropose | MessageType::MsgReadIndex | MessageType::MsgTransferLeader => {
                    return Err(Refusal::NoLeader);
                }
                MessageType::MsgHeartbeatResponse
                    if message.term == self.raw.raft.term && message.context[..] == *FAREWELL =>
                {
                    leaving.acknowledged(from);
                }
                _ => {}
            }
        }
        match kind {
            // A leader that transfers its leadership requests an election. This node must not campaign now,
            // so the request is ignored. If no other member campaigns either, the leader accepts proposals
            // again after a timeout.
            MessageType::MsgTimeoutNow if !self.may_campaign() => return Ok(()),
            // A peer that has not heard yet that the member is a witness.
            MessageType::MsgTransferLeader if from == self.witness.id() => {
                return Err(other("a transfer of leadership to the witness"));
            }
            MessageType::MsgTransferLeader if message.term == self.raw.raft.term => message.term = 0,
            MessageType::MsgReadIndex => return self.read(message),
            // A member that binds its proposal to a term proposes it again when it learns of a new leader.
            // Members that run etcd do not, so their proposals are kept until the transfer has ended. If they
            // were refused, each client of such a member would wait for its timeout, as it does if etcd
            // leads.
            MessageType::MsgPropose if self.transferring().is_some() => {
                let may_keep = !self.config.speaks_as_etcd && wire::bound_term(&message).is_none();
                let is_kept = may_keep && self.wait_for_leader(message);
                return if is_kept { Ok(()) } else { Err(Refusal::Transferring) };
            }
            MessageType::MsgPropose if self.config.speaks_as_etcd => return self.pass_on(message),
            MessageType::MsgPropose if is_of_observer && planted::is(Bug::ObserverProposalUnbound) => {
                message.context = Bytes::new();
                return if self.wait_for_leader(message) { Ok(()) } else { Err(Refusal::NoLeader) };
            }
            MessageType::MsgPropose if self.is_for_another_term(&message) => {
                return Err(Refusal::NoLeader);
            }
            MessageType::MsgPropose if self.raw.raft.leader_id == 0 => {
                return if self.wait_for_leader(message) { Ok(()) } else { Err(Refusal::NoLeader) };
            }
            MessageType::MsgPropose if self.proposes_unsafe_removal(&message) => {
                return Err(other("a removal of a member that has what the others may lack"));
            }
            // The raft crate would append an empty entry instead of this change, so the change waits.
            MessageType::MsgPropose if self.is_early_change(&message) => {
                if self.early_changes.len() >= EARLY_CHANGES_MAX {
                    return Err(other("too many membership changes wait"));
                }
                self.early_changes.push(message);
                return Ok(());
            }
            // As in etcd, the forwarding member becomes the sender of the message that it passes on.
            MessageType::MsgPropose if self.raw.raft.state != StateRole::Leader => {
                message.from = self.config.id.0;
            }
            _ => {}
        }
        let before = self.before(&message);
        match self.raw.step(message) {
            Ok(()) => self.drop_superfluous(kind, &before),
            Err(raft::Error::ProposalDropped) => return Err(Refusal::NoLeader),
            Err(e) => return Err(other(e)),
        }
        self.note_heard(heard, own_term);
        if self.raw.raft.leader_id == from && self.raw.raft.term == term {
            if binds {
                self.programs.binds(term);
            }
            if kind == MessageType::MsgHeartbeat {
                let is_etcd = !binds && !self.config.speaks_as_etcd;
                self.programs.heartbeat(term, no_etcd, is_etcd);
            }
        }
        if kind == MessageType::MsgHeartbeatResponse
            && let Some(append) = self.followers.nudge(from, self.ticks)
        {
            let persisted = self.raw.raft.raft_log.persisted;
            self.outbox.post(append, persisted);
        }
        Ok(())
    }

    /// Returns true if a forwarded proposal is bound to a term in which this node does not lead. The
    /// forwarding member may then conclude, from the first entry of a newer term, that the proposal never
    /// entered the log, and propose it again. So the proposal must not enter the log in any other way.
    /// Proposals of members that run etcd have no term and are accepted in any term.
    fn is_for_another_term(&self, message: &eraftpb::Message) -> bool {
        if planted::is(Bug::ForwardedInAnyTerm) {
            return false;
        }
        let raft = &self.raw.raft;
        // A feeder passes the proposals of its observers on, still bound to the term.
        let may_pass_on = self.leader() != 0 && self.feeds.contains(message.from);
        let is_taken = raft.state == StateRole::Leader || may_pass_on;
        wire::bound_term(message).is_some_and(|term| term != raft.term || !is_taken)
    }

    /// Handles a forwarded proposal as members that run etcd do: like this member's own proposal, which may
    /// reach a leader in any term.
    fn pass_on(&mut self, mut message: eraftpb::Message) -> Result<(), Refusal> {
        message.context = Bytes::new();
        if self.raw.raft.leader_id == 0 {
            self.wait_for_leader(message);
            return Ok(());
        }
        message.from = self.config.id.0;
        self.raw.raft.step(message).map_err(other)
    }

    /// Stores a forwarded proposal until a leader is known. Returns false if the limits are reached.
    fn wait_for_leader(&mut self, mut message: eraftpb::Message) -> bool {
        message.from = self.config.id.0;
        self.leaderless.push(message, self.ticks)
    }

    pub(super) fn settle_leaderless(&mut self) {
        if self.leaderless.is_empty() {
            return;
        }
        let waited = self.leaderless.waited(self.ticks);
        if waited > 2 * self.config.election_ticks as u64 && !self.config.speaks_as_etcd {
            self.leaderless.take();
        } else if self.raw.raft.leader_id != 0 && self.transferring().is_none() && self.leaving.is_none() {
            for message in self.leaderless.take() {
                if self.is_early_change(&message) && self.early_changes.len() < EARLY_CHANGES_MAX {
                    self.early_changes.push(message);
                    continue;
                }
                // An error is ignored: a proposal that the raft crate drops is lost, as in etcd.
                if !self.proposes_unsafe_removal(&message) {
                    let _ = self.raw.raft.step(message);
                }
            }
        }
    }

    pub(super) fn is_early_change(&self, message: &eraftpb::Message) -> bool {
        let raft = &self.raw.raft;
        raft.state == StateRole::Leader
            && raft.has_pending_conf()
            && message.entries.iter().any(|entry| entry.entry_type == eraftpb::EntryType::EntryConfChange)
    }

    pub(super) fn settle_changes(&mut self) {
        if self.early_changes.is_empty() {
            return;
        }
        if self.raw.raft.state != StateRole::Leader || self.leaving.is_some() {
            self.early_changes.clear();
        } else if !self.raw.raft.has_pending_conf() && self.transferring().is_none() {
            let message = self.early_changes.remove(0);
            if self.proposes_unsafe_removal(&message) {
                return;
            }
            // If raft drops this forwarded membership change, it is as if the network had lost it, so the
            // error is ignored.
            let _ = self.raw.raft.step(message);
        }
    }

    /// Records which program a member runs, as shown by its response to this leader.
    fn note_answer(&mut self, from: u64, term: u64, hint: u64) {
        let raft = &self.raw.raft;
        if raft.state != StateRole::Leader || raft.term != term || raft.prs().get(from).is_none() {
            return;
        }
        self.programs.answered(from, term, hint == RUNS_MAINSTAY);
    }
}
