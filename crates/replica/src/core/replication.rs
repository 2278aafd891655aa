//! Talking to the other members: messages, entries for followers that lag, handing leadership over.

use std::time::Instant;

use api::error;
use api::raftpb::{self, MessageType};
use consensus::{Entry, Event, Fetch, Refused, Request, Role, Standing};

use super::leadership::Leaves;
use super::room::Room;
use super::run::Core;
use super::{ReplyBody, Ticket};
use crate::arrivals::Charge;
use telemetry::logging::Value;

/// Bytes of entries kept in memory for followers at most; older ones are read from the log.
const TAIL_BYTES: usize = 64 << 20;

impl Core {
    /// Takes what other members sent.
    pub(super) fn received(&mut self, messages: Vec<raftpb::Message>, mut charge: Charge, now: Instant) {
        for mut message in messages {
            let (kind, from) = (message.r#type.unwrap_or(0), message.from.unwrap_or(0));
            // A snapshot comes with its state, another way.
            let snapshot = kind == MessageType::MsgSnap as i32;
            let proposed = kind == MessageType::MsgProp as i32;
            let entries = !message.entries.is_empty() && kind != MessageType::MsgReadIndex as i32;
            if proposed && self.leadership.leads() {
                self.room.thin_out(&self.log, &mut message);
            }
            // What the log could not take, for a full disk or one that stands still, is as good as lost on the way: it
            // comes again.
            let full = entries
                && if proposed {
                    message.entries.is_empty()
                } else {
                    !self.room.takes_entries(&self.log, &message.entries)
                        || !Room::takes_more(&self.log)
                        || self.applying.is_far_behind()
                };
            if snapshot || full || self.machine.members.removed.contains(&from) {
                continue;
            }
            if self.leadership.leads() && self.membership.asks_to_remove_this(&message) {
                self.membership.depart(message, now);
            } else if self.leadership.leads() && proposed {
                let held = charge.part(&message);
                self.proposals.hand_on(message, held, now);
            } else {
                self.step_received(message);
            }
        }
    }

    /// Sends what raft wants sent. A snapshot goes its own way, with the state as it is now.
    pub(super) fn send(&mut self, messages: Vec<raftpb::Message>) {
        if messages.is_empty() {
            return;
        }
        let Some(peers) = self.shared.peers() else { return };
        let mut rest = Vec::with_capacity(messages.len());
        for message in messages {
            if message.r#type == Some(MessageType::MsgSnap as i32) {
                self.snapshots_wanted.push(message);
            } else {
                rest.push(message);
            }
        }
        peers.send(rest);
    }

    /// Has entries read that a follower needs and that have left memory.
    pub(super) fn fetch(&mut self, fetch: Fetch) -> Result<(), String> {
        match self.fetches.try_send(fetch) {
            Ok(()) => Ok(()),
            Err(
                std::sync::mpsc::TrySendError::Full(fetch)
                | std::sync::mpsc::TrySendError::Disconnected(fetch),
            ) => self.step(Event::Fetched { fetch, entries: Vec::new() }),
        }
    }

    /// Entries were read for a follower, or could not be. What the disk has damaged is as good as let go: from here on
    /// followers that need it get a snapshot.
    pub(super) fn fetched(&mut self, fetch: Fetch, read: Result<Vec<Entry>, String>) -> Result<(), String> {
        let entries = match read {
            Ok(entries) => entries,
            Err(why) => {
                self.logger.error(
                    "cannot read old entries for a follower, which gets a snapshot instead; rebuild this member from \
                     the others with `mainstay rebuild`",
                    &[("follower", Value::Id(fetch.to)), ("error", Value::Str(&why))],
                );
                self.step(Event::Discarded(fetch.last))?;
                Vec::new()
            }
        };
        self.step(Event::Fetched { fetch, entries })
    }

    /// Lets entries leave memory: a single member needs none, others keep the newest for followers that lag.
    pub(super) fn forget(&mut self) -> Result<(), String> {
        let applied = self.machine.applied_index;
        if self.machine.members.by_id.len() <= 1 {
            return self.step(Event::Forgotten(applied));
        }
        let (entries, bytes) = self.node.kept();
        let last = self.node.standing().last;
        let keep = self.config.snapshot_catchup_entries;
        let entries = entries as u64;
        // An eighth more than is kept, so that it is not done for every entry.
        if entries > keep + keep / 8 {
            self.step(Event::Forgotten(applied.min(last.saturating_sub(keep))))?;
        } else if bytes > TAIL_BYTES {
            self.step(Event::Forgotten(applied.min(last.saturating_sub(entries / 2))))?;
        }
        Ok(())
    }

    /// Tells raft which entries the log has let go.
    pub(super) fn look_at_log(&mut self, now: Instant) -> Result<(), String> {
        match self.history.first_index(now) {
            Some(first) => self.step(Event::Discarded(first)),
            None => Ok(()),
        }
    }

    /// Notices when the disk does not come back from a sync: such a member must not lead.
    pub(super) fn watch_disk(&mut self, now: Instant) -> Result<(), String> {
        let oldest = self.room.oldest();
        let members = &self.machine.members;
        let has_others = || members.voters().len() >= 2;
        let step = self.leadership.watch_disk(oldest, self.config.election_timeout, has_others, now);
        if let Some(stalled) = step.stalled {
            self.step(Event::DiskStalled(stalled))?;
            if stalled {
                self.logger.warn(
                    "the disk has not finished a sync for an election timeout",
                    &[("leads", Value::Bool(self.leadership.leads()))],
                );
            }
        }
        match step.leaves {
            None => {}
            Some(Leaves::HandsOver) => {
                if let Some(to) = self.successor() {
                    self.logger.warn("handing leadership over: the disk stalls", &[("to", Value::Id(to))]);
                    self.transfer_to(to);
                }
            }
            Some(Leaves::GivesUp) => {
                self.logger.warn("giving leadership up: the disk stalls", &[]);
                self.step(Event::StepDownRequested)?;
            }
        }
        Ok(())
    }

    /// Before it stops, a leader hands over, so that nobody has to wait for an election.
    pub(super) fn hand_over(&mut self) {
        if !self.leadership.leads() {
            return;
        }
        let Some(to) = self.successor() else { return };
        self.logger.info("handing leadership over before stopping", &[("to", Value::Id(to))]);
        self.transfer_to(to);
    }

    /// Asks raft to hand leadership to another member. A leader that was deposed in this very turn cannot; the next
    /// tick looks again where it matters.
    pub(super) fn transfer_to(&mut self, to: u64) {
        if let Err(why) = self.node.request(Request::Transfer(to)) {
            let why = why.to_string();
            self.logger.debug(
                "leadership is not handed over",
                &[("to", Value::Id(to)), ("reason", Value::Str(&why))],
            );
        }
    }

    pub(super) fn move_leader(&mut self, ticket: Ticket, to: u64, now: Instant) {
        // It may have been deposed in this turn, which `leads` shows only after it.
        if !self.leadership.leads() || self.node.standing().role != Role::Leader {
            self.refuse(ticket, error::NOT_LEADER);
            return;
        }
        let voter = self.machine.members.by_id.get(&to).is_some_and(|member| !member.is_learner);
        if !voter {
            self.refuse(ticket, error::BAD_LEADER_TRANSFEREE);
            return;
        }
        if to == self.shared.identity.member_id {
            self.reply(ticket, ReplyBody::LeaderMoved);
            return;
        }
        match self.node.request(Request::Transfer(to)) {
            Ok(()) => {
                self.leadership.wait_for(ticket, to, now + self.shared.limits.request_timeout);
            }
            Err(Refused::NoLeader | Refused::Transferring) => self.refuse(ticket, error::NOT_LEADER),
            Err(Refused::Other(_)) => self.refuse(ticket, error::BAD_LEADER_TRANSFEREE),
        }
    }

    /// Answers those who wait for a leader to lead.
    pub(super) fn look_at_moves(&mut self, now: Instant) {
        for (ticket, leads) in self.leadership.take_moved(self.node.standing().leader, now) {
            if leads {
                self.reply(ticket, ReplyBody::LeaderMoved);
            } else {
                self.refuse(ticket, error::LEADER_TRANSFER_TIMEOUT);
            }
        }
    }

    /// The first election after a start need not wait a whole timeout, once the others are heard of.
    pub(super) fn advance_ticks(&mut self, now: Instant) -> Result<(), String> {
        let own = self.shared.identity.member_id;
        let (members, peers) = (&self.machine.members, self.shared.peers());
        let connected = |id: &u64| *id != own && peers.is_some_and(|peers| peers.active_since(*id).is_some());
        let hears = || members.by_id.keys().any(connected);
        if !self.leadership.advances(self.node.standing(), hears, now) {
            return Ok(());
        }
        // A slow leader's first message may still be on its way: two ticks are left to it.
        for _ in 2..self.election_ticks() {
            self.step(Event::Ticked)?;
        }
        Ok(())
    }

    /// The leader's process has ended, as its host says by refusing connections, so there is no point in waiting for
    /// its heartbeats. The election timeout counts as over, but for the part that keeps members from campaigning
    /// together. If it is a mistake, the leader's next heartbeat undoes it.
    pub(super) fn leader_ended(&mut self, id: u64) -> Result<(), String> {
        if !self.leadership.has_ended(id, self.node.standing()) {
            return Ok(());
        }
        self.logger.warn("the leader's process has ended", &[("leader", Value::Id(id))]);
        for _ in 0..self.election_ticks() {
            self.step(Event::Ticked)?;
        }
        Ok(())
    }

    fn election_ticks(&self) -> u128 {
        self.config.election_timeout.as_millis() / self.config.heartbeat_interval.as_millis().max(1)
    }

    pub(super) fn stands(&mut self, standing: Standing, now: Instant) {
        let stood = self.leadership.stands(standing);
        if stood.stops_leases {
            self.stop_leases(now);
        }
        if stood.cuts_off {
            self.install.cut_off(now);
        }
        self.applied_since = true;
        let Some(before) = stood.was else { return };
        self.reads.ask_again();
        if planted::is(planted::Bug::ProposedAgainEarly) && standing.leader != 0 {
            self.propose_again(standing.term);
        }
        self.shared.leader_is(standing.leader, now);
        if standing.leader == 0 {
            self.logger
                .warn("lost the leader", &[("was", Value::Id(before)), ("term", Value::Uint(standing.term))]);
        } else {
            self.shared.metrics.server.leader_changes.inc();
            let what = if self.leadership.leads() { "became leader" } else { "follows" };
            self.logger
                .info(what, &[("term", Value::Uint(standing.term)), ("leader", Value::Id(standing.leader))]);
        }
        self.look_at_moves(now);
    }
}
