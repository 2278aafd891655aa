//! Taking over another member's whole state.
//!
//! A follower that is too far behind for the log gets a snapshot. It is received on a thread of its own while this core
//! goes on: values are written to the log as they come, and a second state is built beside the present one. Once raft
//! has accepted it, it takes the place of the present one at a stroke. From then on nothing goes to the log until a
//! checkpoint of the new state is durable; then the log starts anew behind it, and only then does the sender hear that
//! this member has it. A crash before the checkpoint finds the old state, one behind it the new.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::TrySendError;
use std::time::{Duration, Instant};

use consensus::{Append, Request, Restore};
use log::{Location, Reset, Value as LogValue, ValueId};
use machine::Machine;
use planted::Bug;
use tokio::sync::oneshot;

use super::room::Purpose;
use super::run::Core;
use super::{ReplyBody, Ticket};
use crate::long_reads::Reader;
use crate::transfer::Received;
use storage::checkpointer::Order;
use telemetry::logging::Value;

/// How long what has arrived of a snapshot is kept after a break.
const RESUME_PATIENCE: Duration = Duration::from_secs(60);
/// States, and parts of some, that wait to be dropped by the checkpointer while another may be received.
const DISCARDED_MAX: usize = 2;

#[derive(Default)]
enum Stage {
    /// Nothing is going on.
    #[default]
    Idle,
    /// A snapshot is being received, in this attempt. What has arrived is kept until then if it broke off.
    Receiving { claim: u64, until: Option<Instant> },
    /// The new state is in place; a checkpoint of it has to be ordered.
    Installed(Reset),
    /// That checkpoint is being written.
    Saving(Reset),
}

/// Where values lie.
type Places = Vec<(ValueId, Location)>;

/// Values on their way to the log: its ticket, where they lie as far as known, and who waits.
type Placing = (u64, Places, oneshot::Sender<Places>);

/// How far the taking over has come.
#[derive(Default)]
pub(super) struct Install {
    stage: Stage,
    /// The received state, until raft accepts or passes it over.
    received: Option<Box<Received>>,
    /// What the log has to wait with.
    held: Vec<Append>,
    placing: Option<Placing>,
    /// Forgets what has arrived in the attempt that broke off.
    kept: Option<Forget>,
    /// What is to be dropped, and is not on its way to the checkpointer yet.
    discarded: VecDeque<Discarded>,
}

/// Has a receiver give back what it keeps of a state whose stream broke off, if it still does.
pub type Forget = Box<dyn FnOnce() -> Option<Box<dyn Any + Send>> + Send>;

/// What takes long to drop: the checkpointer does that.
enum Discarded {
    /// A state. Whoever drops the last view of one frees it, so it goes when nobody has a view of it any more.
    State(Box<Machine>),
    /// A part of one that nobody reads.
    Part(Box<dyn Any + Send>),
}

impl Discarded {
    fn is_ready(&self) -> bool {
        match self {
            Discarded::State(machine) => !machine.store.is_viewed(),
            Discarded::Part(_) => true,
        }
    }
}

impl Install {
    pub fn is_receiving(&self) -> bool {
        matches!(self.stage, Stage::Receiving { .. })
    }

    pub fn is_busy(&self) -> bool {
        !matches!(self.stage, Stage::Idle)
    }

    pub fn wants_checkpoint(&self) -> bool {
        matches!(self.stage, Stage::Installed(_))
    }

    /// Gives an append back, unless the log has to wait.
    pub fn hold(&mut self, append: Append) -> Option<Append> {
        match self.stage {
            Stage::Installed(_) | Stage::Saving(_) => {
                self.held.push(append);
                None
            }
            Stage::Idle | Stage::Receiving { .. } => Some(append),
        }
    }

    /// The sender broke off, or what it sent could not be used.
    pub fn give_up(&mut self) {
        if let Stage::Receiving { .. } = self.stage {
            self.stage = Stage::Idle;
            if let Some(received) = self.received.take() {
                self.discard(received.machine);
            }
            self.placing = None;
            self.forget_part();
        }
    }

    /// What has arrived in an attempt that broke off lives no longer than its stage: it keeps versions and segments from
    /// being freed.
    fn forget_part(&mut self) {
        if let Some(forget) = self.kept.take()
            && !planted::is(Bug::BrokenPartKept)
        {
            self.discard_part(forget);
        }
    }

    /// What has arrived in this attempt is of no use any more.
    pub fn discard_part(&mut self, forget: Forget) {
        self.discarded.extend(forget().map(Discarded::Part));
    }

    /// This state is of no use any more.
    fn discard(&mut self, machine: Box<Machine>) {
        self.discarded.push_back(Discarded::State(machine));
    }

    /// How many states, and parts of some, wait to be dropped.
    pub fn discarded(&self) -> usize {
        self.discarded.len()
    }

    /// A new attempt begins.
    fn begin(&mut self, claim: u64) {
        self.forget_part();
        self.stage = Stage::Receiving { claim, until: None };
    }

    /// Whether this is the attempt that is under way, or that may go on. What comes late of another one changes nothing.
    fn is_of(&self, of: u64) -> bool {
        matches!(self.stage, Stage::Receiving { claim, .. } if claim == of)
    }

    /// Whether this attempt may go on: none of it is cut off while the stream still runs.
    fn takes(&self, of: u64) -> bool {
        matches!(self.stage, Stage::Receiving { claim, until: None } if claim == of)
    }

    /// There is another leader, or another term: a stream of a leader that was replaced is as good as broken.
    pub fn cut_off(&mut self, now: Instant) {
        if let Stage::Receiving { until, .. } = &mut self.stage
            && until.is_none()
        {
            *until = Some(now + RESUME_PATIENCE);
            self.placing = None;
        }
    }

    /// The stream broke off; what has arrived is kept for a while.
    pub fn pause(&mut self, of: u64, forget: Forget, now: Instant) {
        match &mut self.stage {
            Stage::Receiving { claim, until } if *claim == of => {
                *until = Some(now + RESUME_PATIENCE);
                self.kept = Some(forget);
            }
            // Another attempt is under way, or none.
            _ => self.discard_part(forget),
        }
    }

    /// Whether nobody has gone on with what has arrived, for as long as it is kept.
    fn is_over(&self, now: Instant) -> bool {
        matches!(self.stage, Stage::Receiving { until: Some(until), .. } if now >= until)
    }

    /// The checkpoint could not be written; it is ordered again.
    pub fn retry(&mut self) {
        if let Stage::Saving(reset) = self.stage {
            self.stage = Stage::Installed(reset);
        }
    }
}

impl Core {
    /// Another member is about to send its state. It is refused while the present one is being moved about.
    pub(super) fn begin_install(&mut self, ticket: Ticket, claim: u64, from: u64, term: u64) {
        // Nothing is held for who does not lead. A leader that this member has not heard of yet tries again.
        let standing = self.node.standing();
        if (standing.leader, standing.term) != (from, term) {
            self.refuse(ticket, api::error::NOT_LEADER);
            return;
        }
        // One that broke off and is not gone on with makes way.
        let idle = matches!(self.install.stage, Stage::Idle | Stage::Receiving { until: Some(_), .. });
        let busy =
            !self.moving.is_empty() || self.checkpoint.busy || self.install.discarded() > DISCARDED_MAX;
        if !idle || busy || self.stopping.is_some() {
            self.refuse(ticket, api::error::TOO_MANY_REQUESTS);
            return;
        }
        self.install.begin(claim);
        self.shared.metrics.server.snapshot_apply_in_progress.set_u64(1);
        self.image_waiters.push(ticket);
    }

    /// A snapshot that broke off goes on, if its sender leads.
    pub(super) fn resume_install(&mut self, ticket: Ticket, claim: u64, from: u64, term: u64) {
        let standing = self.node.standing();
        if (standing.leader, standing.term) != (from, term) {
            self.refuse(ticket, api::error::NOT_LEADER);
            return;
        }
        match &mut self.install.stage {
            Stage::Receiving { claim: known, until } if *known == claim && until.is_some() => {
                *until = None;
                // The receiver has it again.
                self.install.kept = None;
                self.reply(ticket, ReplyBody::Readable);
            }
            _ => self.refuse(ticket, api::error::TOO_MANY_REQUESTS),
        }
    }

    /// Writes values of a snapshot to the log.
    pub(super) fn place(
        &mut self,
        claim: u64,
        values: Vec<LogValue>,
        done: oneshot::Sender<Vec<(ValueId, Location)>>,
        now: Instant,
    ) {
        // Dropping the sender tells who receives that it cannot go on.
        if !self.install.takes(claim) || self.install.placing.is_some() || values.is_empty() {
            return;
        }
        // What a full disk cannot take must not stand in the log's queue before the member's own entries.
        let bytes = values.iter().map(|value| value.data.len() + 128).sum();
        if !self.room.has(&self.log, bytes, Purpose::Frees) || self.room.is_full() {
            return;
        }
        if let Some(ticket) = self.room.hand_values(&mut self.log, values, now) {
            self.install.placing = Some((ticket, Vec::new(), done));
        }
    }

    /// Values were synced, perhaps those of a snapshot.
    pub(super) fn placed(&mut self, ticket: u64, values: &[(ValueId, Location)]) {
        let Some((wanted, places, _)) = &mut self.install.placing else { return };
        places.extend_from_slice(values);
        if *wanted <= ticket
            && let Some((_, places, done)) = self.install.placing.take()
        {
            // Who receives may have given up.
            let _ = done.send(places);
        }
    }

    /// A whole state has arrived: raft is asked whether it still wants it.
    pub(super) fn snapshot_received(
        &mut self,
        claim: u64,
        received: Box<Received>,
        now: Instant,
    ) -> Result<(), String> {
        if !self.install.takes(claim) {
            self.install.discard(received.machine);
            self.give_up_install(claim);
            return Ok(());
        }
        // What was built on the present state is worth nothing if that has moved on.
        let current = received.base_applied.is_none_or(|applied| applied == self.machine.applied_index);
        let message = received.message.clone();
        self.install.received = Some(received);
        if current && let Err(why) = self.node.request(Request::Receive(message)) {
            self.logger.warn("refused a snapshot", &[("reason", Value::Str(&why.to_string()))]);
        }
        self.carry_out(now)?;
        self.end_install();
        Ok(())
    }

    /// This attempt has come to its end.
    pub(super) fn give_up_install(&mut self, claim: u64) {
        if self.install.is_of(claim) {
            self.end_install();
        }
    }

    /// Gives up what broke off and was not gone on with in time.
    pub(super) fn look_at_install(&mut self, now: Instant) {
        if self.install.is_over(now) {
            self.end_install();
        }
    }

    /// Gives up receiving, unless raft has accepted what was received.
    pub(super) fn end_install(&mut self) {
        self.install.give_up();
        if let Stage::Idle = self.install.stage {
            self.shared.metrics.server.snapshot_apply_in_progress.set_u64(0);
        }
    }

    /// Raft has accepted a snapshot: the received state takes the place of the present one.
    pub(super) fn restore(&mut self, restore: &Restore, now: Instant) -> Result<(), String> {
        let Some(received) = self.install.received.take() else {
            return Err("raft accepted a snapshot that was not received".to_owned());
        };
        let machine = received.machine;
        if (machine.applied_index, machine.applied_term) != (restore.index, restore.term) {
            return Err(format!(
                "raft accepted a snapshot of entry {}, but the state received is of entry {}",
                restore.index, machine.applied_index
            ));
        }
        self.logger.info(
            "installed a snapshot",
            &[
                ("index", Value::Uint(restore.index)),
                ("revision", Value::Int(machine.store.current_revision())),
                ("before", Value::Uint(self.machine.applied_index)),
            ],
        );
        let overtaken = self.shared.long_reads.end_all();
        self.as_applied = None;
        self.shared.metrics.long_reads.overtaken.add(overtaken as u64);
        let replaced = std::mem::replace(&mut self.machine, *machine);
        self.install.discard(Box::new(replaced));
        // An entry that was half-way, and those behind it, are in it.
        self.applying.clear();
        self.applying.unpublished = true;
        if !planted::is(Bug::ProposedAgainAfterSnapshot) {
            self.forget_commands();
        }
        self.locations.clear();
        self.terms = vec![(restore.index, restore.term)];
        self.compacted = self.machine.store.compact_revision();
        self.removing = true;
        self.next_removal = now;
        self.removal_after = self.machine.store.current_revision();
        self.removal_asked = now;
        // The sender may have removed all that. Watches that need some of it are canceled rather than told a part.
        self.removed_through = self.compacted;
        self.alarms = Arc::new(self.machine.alarms.clone());
        self.tell_members();
        self.install.stage = Stage::Installed(Reset { index: restore.index, term: restore.term });
        Ok(())
    }

    pub(super) fn order_install(&mut self, now: Instant) {
        let Stage::Installed(reset) = self.install.stage else { return };
        let moment = self.shared.state.load().view.moment();
        let state = self.shared.read_long_at(Reader::Checkpoint, moment);
        let terms = self.terms.clone();
        let order = Order::Checkpoint { head: Box::new(self.machine.head()), state, whole: true, terms };
        if self.orders.try_send(order).is_ok() {
            self.install.stage = Stage::Saving(reset);
            self.checkpoint.begun(now, self.log.figures().written_bytes());
            if planted::is(Bug::SnapshotAcknowledgedEarly) {
                // What was held is ours to append: it cannot be refused.
                let _ = self.install_saved(reset.index, now);
            }
        }
    }

    /// A checkpoint is durable. If it is the one of a state taken over, the log starts anew behind it.
    pub(super) fn install_saved(&mut self, applied_index: u64, now: Instant) -> Result<(), String> {
        let Stage::Saving(reset) = self.install.stage else { return Ok(()) };
        if applied_index < reset.index {
            self.install.retry();
            return Ok(());
        }
        self.install.stage = Stage::Idle;
        self.shared.metrics.server.snapshot_apply_in_progress.set_u64(0);
        let mut reset = Some(reset);
        for append in std::mem::take(&mut self.install.held) {
            self.append_behind(reset.take(), append, now)?;
        }
        Ok(())
    }

    /// Hands the checkpointer what takes long to drop.
    pub(super) fn release_discarded(&mut self) {
        for _ in 0..self.install.discarded.len() {
            let Some(one) = self.install.discarded.pop_front() else { return };
            if !one.is_ready() {
                self.install.discarded.push_back(one);
                continue;
            }
            let what: Box<dyn Any + Send> = match one {
                Discarded::State(machine) => machine,
                Discarded::Part(part) => part,
            };
            if let Err(
                TrySendError::Full(Order::Drop(what)) | TrySendError::Disconnected(Order::Drop(what)),
            ) = self.orders.try_send(Order::Drop(what))
            {
                // It has much to do: later.
                self.install.discarded.push_front(Discarded::Part(what));
                return;
            }
        }
    }

    /// Sends the state just published to the members that need all of it.
    pub(super) fn send_snapshots(&mut self, view: &mvcc::View) {
        for mut message in std::mem::take(&mut self.snapshots_wanted) {
            // It may have waited for an entry to be whole, and its term be over.
            if message.term != Some(self.node.standing().term) {
                continue;
            }
            let Some(peers) = self.shared.peers() else { return };
            let head = self.machine.head();
            let state = self.shared.read_long_at(Reader::Snapshot, view.moment_of_everything());
            let metadata = api::raftpb::SnapshotMetadata {
                conf_state: Some(api::raftpb::ConfState {
                    voters: self.node.voters(),
                    learners: self.node.learners(),
                    ..Default::default()
                }),
                index: Some(head.applied_index),
                term: Some(head.applied_term),
            };
            message.snapshot = Some(api::raftpb::Snapshot { metadata: Some(metadata), data: None });
            let to = message.to.unwrap_or(0);
            self.logger.info(
                "sending a snapshot",
                &[("to", Value::Id(to)), ("index", Value::Uint(head.applied_index))],
            );
            let trail = self.machine.state_trail(0);
            let source = crate::transfer::Source::new(head, trail, state, &self.shared);
            peers.send_snapshot(message, Box::new(source));
        }
    }

    /// Answers whoever is about to receive a snapshot once the state is published.
    pub(super) fn image(&mut self, ticket: Ticket, view: &mvcc::View) {
        let head = Box::new(self.machine.head());
        let state = self.shared.read_long_at(Reader::Snapshot, view.moment());
        self.reply(ticket, ReplyBody::Image(head, Box::new(state)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn what_comes_late_of_an_old_attempt_changes_nothing() {
        let now = Instant::now();
        let forgotten = Arc::new(AtomicU32::new(0));
        let forget = |forgotten: &Arc<AtomicU32>| -> Forget {
            let forgotten = Arc::clone(forgotten);
            Box::new(move || {
                forgotten.fetch_add(1, Ordering::Relaxed);
                Some(Box::new("a part"))
            })
        };
        let mut install = Install::default();
        install.begin(1);
        assert!(install.takes(1) && !install.takes(2));
        install.cut_off(now);
        assert!(!install.takes(1) && install.is_of(1));
        install.begin(2);
        assert!(!install.takes(1) && !install.is_of(1) && install.takes(2));
        install.pause(1, forget(&forgotten), now);
        assert!(install.takes(2) && forgotten.load(Ordering::Relaxed) == 1);
        install.pause(2, forget(&forgotten), now);
        assert!(!install.takes(2) && !install.is_over(now) && install.is_over(now + RESUME_PATIENCE));
        install.begin(3);
        assert!(forgotten.load(Ordering::Relaxed) == 2 && install.takes(3));
        assert_eq!(install.discarded(), 2, "they wait for somebody to drop them");
    }
}
