//! Receives and installs the states of other members, and sends the whole state of this member to them.

use std::sync::mpsc::TrySendError;
use std::time::Instant;

use api::error;
use consensus::{Request, Restore};
use log::Reset;
use numbers::{Index, MemberId};
use planted::Bug;
use storage::checkpointer::Order;
use telemetry::logging::Value;

use super::Core;
use crate::core::room::{Purpose, Room};
use crate::core::{Fatal, Placement, ReplyBody, RequestId, SnapshotAttempt};
use crate::long_reads::Reader;
use crate::received::{Outcome, ReceivedState};

/// Receiving and installing another member's state, and sending this member's state.
impl Core {
    /// Replies to another member that offers its whole state whether the state would be accepted now. The
    /// sender must lead, and no other state may be in the process of being received. While an installed state
    /// is being saved, the offer waits for its reply.
    pub(super) fn look_at_offer(&mut self, request_id: RequestId, attempt: SnapshotAttempt, now: Instant) {
        let raft_status = self.node.status();
        if (self.node.source(), raft_status.term) != (attempt.from, attempt.term) {
            self.refuse(request_id, error::NOT_LEADER);
        } else if !self.lifecycle.is_stopping() && self.install.hold_offer(request_id, now) {
            // The offer waits, and a later tick replies to it.
        } else if self.install.is_under_way() || self.lifecycle.is_stopping() {
            self.refuse(request_id, error::TOO_MANY_REQUESTS);
        } else {
            self.reply(request_id, ReplyBody::Readable(None));
        }
    }

    /// Begins to receive another member's state. Refuses if the sender is not the current leader, if the disk
    /// lacks space, if another state is being received over an open stream or is being installed, or if this
    /// member is busy: it is moving values in the log, writing a checkpoint, waiting to drop earlier states,
    /// or stopping.
    pub(super) fn begin_install(&mut self, request_id: RequestId, attempt: SnapshotAttempt) {
        // Only the current leader may send its state. If the sender leads but this member does not know it
        // yet, the sender tries again later.
        let raft_status = self.node.status();
        if (self.node.source(), raft_status.term) != (attempt.from, attempt.term) {
            self.refuse(request_id, error::NOT_LEADER);
            return;
        }
        let shortage =
            attempt.whole_bytes.and_then(|bytes| self.space.room.shortage_of_state(&self.log, bytes));
        if let Some(shortage) = shortage {
            self.reply(request_id, ReplyBody::Shortage(shortage));
            return;
        }
        let busy = self.space.moves.are_under_way()
            || self.space.checkpoints.is_busy()
            || self.lifecycle.is_stopping();
        if !self.install.begin(attempt.claim, busy) {
            self.refuse(request_id, error::TOO_MANY_REQUESTS);
            return;
        }
        self.shared.diagnostics.metrics.server.snapshot_apply_in_progress.set_u64(1);
        self.answers.want_image(request_id);
    }

    /// Resumes the receipt of a snapshot whose stream broke off, if the sender leads.
    pub(super) fn resume_install(&mut self, request_id: RequestId, attempt: SnapshotAttempt) {
        let raft_status = self.node.status();
        if (self.node.source(), raft_status.term) != (attempt.from, attempt.term) {
            self.refuse(request_id, error::NOT_LEADER);
            return;
        }
        if self.install.resume(attempt.claim) {
            self.reply(request_id, ReplyBody::Readable(None));
        } else {
            self.refuse(request_id, error::TOO_MANY_REQUESTS);
        }
    }

    /// Writes values of a snapshot to the log.
    pub(super) fn place(&mut self, placement: Placement, now: Instant) {
        let Placement { claim, values, is_whole, done } = placement;
        // If the values cannot be accepted, `done` is dropped by returning. This tells the receiving thread
        // that it cannot continue.
        if !self.install.may_place(claim) || values.is_empty() {
            return;
        }
        // The space is checked before the log gets the values. On a full disk, the values would wait in the
        // log's queue in front of this member's own entries and delay those.
        let bytes = Room::bytes_of(values.iter().map(|value| value.data.len()));
        if is_whole && let Some(shortage) = self.space.room.shortage_of_state(&self.log, bytes as u64) {
            // An error is ignored: it means that the receiving thread has ended and needs no answer.
            let _ = done.send(Err(shortage));
            return;
        }
        if !self.space.room.has(&self.log, bytes, Purpose::Frees) || self.space.room.is_full() {
            return;
        }
        if let Some(ticket) = self.space.room.hand_values(&mut self.log, values, now) {
            self.install.place(ticket, done);
        }
    }

    /// Handles a state that was received completely. Raft decides if the state is still needed.
    pub(super) fn snapshot_received(
        &mut self,
        claim: u64,
        received: Box<ReceivedState>,
        now: Instant,
    ) -> Result<(), Fatal> {
        // If the received state builds on this member's state, it is useless if that state has changed since
        // the receipt began.
        let current = received.base_applied.is_none_or(|applied| applied == self.machine.applied_index);
        let message = received.message.clone();
        let is_past = self.node.status().term.0 > message.term();
        if !self.install.receive(claim, received) {
            self.give_up_install(claim);
            return Ok(());
        }
        if is_past {
            // Raft would ignore a message of an older term without an answer. The receiving thread must not
            // wait for one, so it gets the error here.
            self.install.tell(Outcome::GivenUp(error::LEADER_CHANGED));
        } else if current && let Err(why) = self.node.request(Request::Receive(message)) {
            let why = why.to_string();
            self.logger.warn("refused a snapshot", &[("reason", Value::Str(&why))]);
            self.install.tell(Outcome::Refused(why));
        }
        self.carry_out(now)?;
        self.end_install();
        Ok(())
    }

    /// Gives up the receipt of a state in the attempt with the number `claim`.
    pub(super) fn give_up_install(&mut self, claim: u64) {
        if self.install.is_of(claim) {
            self.end_install();
        }
    }

    /// Gives up the receipt of a state whose stream broke off and was not resumed in time, and refuses offers
    /// that have waited too long.
    pub(super) fn look_at_install(&mut self, now: Instant) {
        if self.install.is_over(now) {
            self.end_install();
        }
        // The offers are refused even if the installed state was saved in the meantime. The leader most
        // likely still has the log entries after that state, and can send those instead of a snapshot.
        for request_id in self.install.offers_over(now) {
            self.refuse(request_id, error::TOO_MANY_REQUESTS);
        }
    }

    /// Ends the receipt of a state, unless raft has accepted the received state.
    pub(super) fn end_install(&mut self) {
        self.install.give_up();
        if !self.install.is_busy() {
            self.shared.diagnostics.metrics.server.snapshot_apply_in_progress.set_u64(0);
        }
    }

    /// Replaces the current state with the received one, because raft has accepted its snapshot.
    pub(super) fn restore(&mut self, restore: &Restore, now: Instant) -> Result<(), Fatal> {
        let Some(received) = self.install.take_received() else {
            return Err(Fatal::NoSnapshot);
        };
        let mut machine = received.machine;
        if self.shared.member.is_witness {
            // Its leader has sent no more than this already.
            *machine = machine.of_witness();
        }
        if (machine.applied_index, machine.applied_term) != (restore.index, restore.term) {
            return Err(Fatal::OtherSnapshot { accepted: restore.index, received: machine.applied_index });
        }
        self.logger.info(
            "installed a snapshot",
            &[
                ("index", Value::Uint(restore.index.0)),
                ("revision", Value::Int(machine.store.current_revision().0)),
                ("before", Value::Uint(self.machine.applied_index.0)),
            ],
        );
        let overtaken = self.shared.data.long_reads.end_all();
        self.answers.replaced();
        self.shared.diagnostics.metrics.long_reads.overtaken.add(overtaken as u64);
        let replaced = std::mem::replace(&mut self.machine, *machine);
        self.index_base.state_replaced();
        self.set_witness()?;
        // The queue is cleared, because the new state already includes the entry that was partly applied and
        // the entries that waited after it.
        self.apply.queue.clear();
        self.apply.queue.applied();
        if !planted::is(Bug::ProposedAgainAfterSnapshot) {
            self.proposals.forget_commands();
        }
        self.history.restored(restore.index, restore.term);
        self.compactions.removal.restored(self.machine.store.compact_revision(), now);
        self.publication.alarms_changed(&self.machine);
        self.publication.auth_changed(&self.machine);
        let auth = &self.machine.auth;
        self.shared.clients.credentials.auth_restored(auth.is_enabled(), auth.revision());
        self.tell_members();
        self.install.installed(Reset { index: restore.index, term: restore.term }, replaced);
        Ok(())
    }

    pub(super) fn order_install(&mut self, now: Instant) {
        let moment = self.shared.state.load().view.moment();
        let state = self.shared.read_long_at(Reader::Checkpoint, moment);
        let terms = self.history.known_terms();
        let head = self.checkpoint_head();
        let order = Order::Checkpoint { head, state, whole: true, terms };
        if self.workers.order(order) {
            self.index_base.ordered(moment, true);
            self.install.saving();
            self.space.checkpoints.begun(self.log.figures().written_bytes(), now);
            if planted::is(Bug::SnapshotAcknowledgedEarly) {
                // The result can be ignored: the batches that waited are this member's own entries, which the
                // log cannot refuse.
                let _ = self.install_saved(self.machine.applied_index, now);
            }
        }
    }

    /// Handles a durable checkpoint. If the checkpoint is that of an installed state, the log restarts after
    /// that state.
    pub(super) fn install_saved(&mut self, applied_index: Index, now: Instant) -> Result<(), Fatal> {
        let Some((reset, held)) = self.install.saved(applied_index) else { return Ok(()) };
        self.shared.diagnostics.metrics.server.snapshot_apply_in_progress.set_u64(0);
        let mut reset = Some(reset);
        for append in held {
            self.append_behind(reset.take(), append, now)?;
        }
        Ok(())
    }

    /// Gives replaced states and useless parts of states to the checkpointer, which drops them, because
    /// dropping them takes long.
    pub(super) fn release_discarded(&mut self) {
        let orders = &self.workers.checkpointer;
        self.install.release(|what| match orders.try_send(Order::Drop(what)) {
            Err(TrySendError::Full(Order::Drop(what)) | TrySendError::Disconnected(Order::Drop(what))) => {
                Err(what)
            }
            _ => Ok(()),
        });
    }

    /// Sends the state that was just published to the members that need a snapshot.
    pub(super) fn send_snapshots(&mut self, view: &mvcc::View) {
        for mut message in self.outgoing.take_wanted() {
            // The message may have waited until an entry was completely applied. If its term has ended since,
            // the message is dropped.
            let term = self.node.status().term.0;
            if message.term != Some(term) && !self.observers.feeds(message.to.unwrap_or(0)) {
                continue;
            }
            // An observer is sent the state whatever the term is.
            message.term = Some(term);
            let Some(peers) = self.shared.cluster.peers() else { return };
            let head = self.machine.head();
            let state = self.shared.read_long_at(Reader::Transfer, view.moment_of_everything());
            let mut learners = self.node.learners();
            if planted::is(planted::Bug::ObserverNamedInSnapshot) && self.observers.observes() {
                learners.push(MemberId(self.shared.member.identity.member_id));
            }
            let metadata = api::raftpb::SnapshotMetadata {
                conf_state: Some(api::raftpb::ConfState {
                    voters: self.node.voters().into_iter().map(|id| id.0).collect(),
                    learners: learners.into_iter().map(|id| id.0).collect(),
                    ..Default::default()
                }),
                index: Some(head.applied_index.0),
                term: Some(head.applied_term.0),
            };
            message.snapshot = Some(api::raftpb::Snapshot { metadata: Some(metadata), data: None });
            let to = message.to.unwrap_or(0);
            self.logger.info(
                "sending a snapshot",
                &[("to", Value::Id(to)), ("index", Value::Uint(head.applied_index.0))],
            );
            let trail = self.machine.state_trail(Index(0));
            let source = match self.machine.members.is_witness(to) {
                true => self.source_for_witness(MemberId(to)),
                false => crate::transfer::Source::new(MemberId(to), head, trail, state, &self.shared),
            };
            let source = if self.observers.feeds(to) || self.machine.members.is_witness(to) {
                source.in_own_form()
            } else {
                source
            };
            peers.send_snapshot(message, Box::new(source));
        }
    }
}
