//! Handles gaining and transferring leadership. A leader whose disk hangs, or whose data differ from those of
//! the other members, gives up leadership.

use std::time::Instant;

use api::error;
use api::etcdserverpb::alarm_request::AlarmAction;
use api::etcdserverpb::{AlarmRequest, AlarmType, InternalRaftRequest};
use consensus::{Event, Node, RaftStatus, Refusal, Request, Role};
use machine::Machine;
use numbers::MemberId;
use telemetry::logging::Value;

use super::Core;
use crate::core::leadership::Resignation;
use crate::core::proposals::Waiter;
use crate::core::{Fatal, ReplyBody, RequestId};
use crate::shared::Shared;

const CORRUPT: i32 = AlarmType::Corrupt as i32;

/// Gaining and transferring leadership.
impl Core {
    /// Returns the voter that could take over leadership immediately: among the connected voters that the
    /// CORRUPT alarm does not name, the one with the most entries.
    fn successor(&self) -> Option<MemberId> {
        successor(&self.node, &self.machine, &self.shared)
    }

    /// Checks if a sync of the disk hangs, because a member with such a disk must not lead.
    pub(super) fn watch_disk(&mut self, now: Instant) -> Result<(), Fatal> {
        let oldest = self.space.room.oldest();
        let members = &self.machine.members;
        // A witness cannot take over.
        let has_others = || members.data_voters().len() >= 2;
        let step = self.leadership.watch_disk(oldest, self.options.election_timeout, has_others, now);
        if let Some(stalled) = step.stalled {
            self.step(if stalled { Event::DiskStalled } else { Event::DiskRecovered })?;
            if stalled {
                self.logger.warn(
                    "the disk has not finished a sync for an election timeout",
                    &[("leads", Value::Bool(self.leadership.leads()))],
                );
            }
        }
        match step.leaves {
            None => {}
            Some(Resignation::HandsOver) => {
                if let Some(to) = self.successor() {
                    self.logger
                        .warn("transferring leadership because the disk stalls", &[("to", Value::Id(to.0))]);
                    self.transfer_to(to);
                }
            }
            Some(Resignation::GivesUp) => {
                self.logger.warn("giving up leadership because the disk stalls", &[]);
                self.step(Event::StepDownRequested)?;
            }
        }
        Ok(())
    }

    /// Transfers leadership before this member stops, so that the cluster need not wait for an election
    /// timeout.
    pub(super) fn hand_over(&mut self) {
        if !self.leadership.leads() {
            return;
        }
        let Some(to) = self.successor() else { return };
        self.logger.info("transferring leadership before stopping", &[("to", Value::Id(to.0))]);
        self.lifecycle.resigns();
        self.transfer_to(to);
    }

    /// Asks raft to transfer leadership to another member. This fails if the leader was deposed in this turn.
    /// Callers that still want the transfer try again at the next tick.
    pub(super) fn transfer_to(&mut self, to: MemberId) {
        if let Err(why) = self.node.request(Request::Transfer(to)) {
            let why = why.to_string();
            self.logger.debug(
                "leadership was not transferred",
                &[("to", Value::Id(to.0)), ("reason", Value::Str(&why))],
            );
        }
    }

    pub(super) fn move_leader(&mut self, request_id: RequestId, to: MemberId, now: Instant) {
        // A message of this turn may have deposed this member. `leads` shows that only at the end of the
        // turn, so the role in raft is checked as well.
        if !self.leadership.leads() || self.node.status().role != Role::Leader {
            self.refuse(request_id, error::NOT_LEADER);
            return;
        }
        let may_lead = |member: &machine::Member| !member.is_learner && !member.is_witness;
        let voter = self.machine.members.by_id.get(&to.0).is_some_and(may_lead);
        if !voter {
            self.refuse(request_id, error::BAD_LEADER_TRANSFEREE);
            return;
        }
        if to == MemberId(self.shared.member.identity.member_id) {
            self.reply(request_id, ReplyBody::LeaderMoved);
            return;
        }
        match self.node.request(Request::Transfer(to)) {
            Ok(()) => {
                self.leadership.wait_for(request_id, to, now + self.shared.member.limits.request_timeout);
            }
            Err(Refusal::NoLeader | Refusal::Transferring) => self.refuse(request_id, error::NOT_LEADER),
            Err(Refusal::OtherHistory { .. } | Refusal::Other(_)) => {
                self.refuse(request_id, error::BAD_LEADER_TRANSFEREE);
            }
        }
    }

    /// Answers the clients that wait until another member leads.
    pub(super) fn look_at_moves(&mut self, now: Instant) {
        for (request_id, leads) in self.leadership.take_moved(self.node.status().leader, now) {
            if leads {
                self.reply(request_id, ReplyBody::LeaderMoved);
            } else {
                self.refuse(request_id, error::LEADER_TRANSFER_TIMEOUT);
            }
        }
    }

    /// Shortens the first election timeout after a start, once a connection to another member exists.
    pub(super) fn advance_ticks(&mut self, now: Instant) -> Result<(), Fatal> {
        let own = self.shared.member.identity.member_id;
        let (members, peers) = (&self.machine.members, self.shared.cluster.peers());
        let connected = |id: &u64| *id != own && peers.is_some_and(|peers| peers.active_since(*id).is_some());
        let hears = || members.by_id.keys().any(connected);
        if !self.leadership.advances(self.node.status(), hears, now) {
            return Ok(());
        }
        // Two ticks are left before the election, because the first message of a slow leader may still be in
        // flight.
        for _ in 2..self.election_ticks() {
            self.step(Event::Ticked)?;
        }
        Ok(())
    }

    /// Handles the report that the leader's process has ended. Its host refuses connections, so the leader
    /// will send no more heartbeats, and waiting for them is useless. The election timeout counts as over,
    /// except for its random part, which keeps members from campaigning at the same time. If the report is
    /// wrong, the leader's next heartbeat prevents the election.
    pub(super) fn leader_ended(&mut self, id: MemberId) -> Result<(), Fatal> {
        if !self.leadership.has_ended(id, self.node.status()) {
            return Ok(());
        }
        self.logger.warn("the leader's process has exited", &[("leader", Value::Id(id.0))]);
        for _ in 0..self.election_ticks() {
            self.step(Event::Ticked)?;
        }
        Ok(())
    }

    fn election_ticks(&self) -> u128 {
        self.options.election_timeout.as_millis() / self.options.heartbeat_interval.as_millis().max(1)
    }

    pub(super) fn stands(&mut self, raft_status: RaftStatus, now: Instant) {
        let stood = self.leadership.stands(raft_status);
        if stood.stops_leases {
            self.stop_leases(now);
        }
        if stood.cuts_off {
            self.install.cut_off(now);
        }
        self.publication.request();
        let is_fed = self.observers.observes() && self.node.source().is_some();
        self.shared.cluster.fed_by(self.observers.feeder(), is_fed);
        let Some(before) = stood.was else { return };
        self.reads.ask_again();
        if planted::is(planted::Bug::ProposedAgainEarly) && raft_status.leader.is_some() {
            self.propose_again(raft_status.term);
        }
        self.shared.cluster.leader_is(raft_status.leader.0, now);
        if raft_status.leader == MemberId::NONE {
            self.logger.warn(
                "lost the leader",
                &[("was", Value::Id(before.0)), ("term", Value::Uint(raft_status.term.0))],
            );
        } else {
            self.shared.diagnostics.metrics.server.leader_changes.inc();
            let what = if self.leadership.leads() { "became leader" } else { "follows" };
            self.logger.info(
                what,
                &[("term", Value::Uint(raft_status.term.0)), ("leader", Value::Id(raft_status.leader.0))],
            );
        }
        self.look_at_moves(now);
        // The attributes are proposed as soon as a leader is known, because this member serves no clients
        // before they are applied.
        self.propose_attributes(now);
    }
}

/// Handling of a member whose state differs from that of the others.
impl Core {
    /// Raises the CORRUPT alarm for a member whose state differs from that of most others, so that all
    /// members know of the difference. The id 0 means that the differing member is not known.
    pub(super) fn raise_corrupt(&mut self, member_id: u64) {
        let raised = if member_id == 0 {
            // If the alarm was raised for some member, an alarm for an unknown member tells the operator
            // nothing new.
            self.machine.alarms.any(CORRUPT)
        } else {
            self.machine.alarms.is_raised(CORRUPT, member_id)
        };
        if raised || !self.leadership.leads() {
            return;
        }
        self.logger.error(
            "raising the CORRUPT alarm; the cluster accepts no writes until it is disarmed; replace the \
             member that it names (remove it, delete its data directory, add it again), then disarm the \
             alarm",
            &[("member-id", Value::Id(member_id))],
        );
        let alarm = AlarmRequest { action: AlarmAction::Activate as i32, member_id, alarm: CORRUPT };
        let request = InternalRaftRequest { alarm: Some(alarm), ..InternalRaftRequest::default() };
        self.propose_own(request, Waiter::Nobody);
    }

    /// Transfers leadership if the CORRUPT alarm names this member. The new leader must be reachable and not
    /// named by the alarm.
    pub(super) fn resign_if_corrupt(&mut self) {
        let own = self.shared.member.identity.member_id;
        if !self.leadership.leads()
            || !self.machine.alarms.is_raised(CORRUPT, own)
            || self.node.transferring().is_some()
        {
            return;
        }
        let Some(to) = self.successor() else { return };
        self.logger.warn(
            "transferring leadership because this member's state differs from the others'",
            &[("to", Value::Id(to.0))],
        );
        self.transfer_to(to);
    }

    /// Counts and logs a heartbeat that this leader sends late, because other members may begin an election
    /// when heartbeats are late.
    pub(super) fn note_late_tick(&mut self, now: Instant) {
        let late = self.pace.late(now);
        // A tick is due one interval after the last one. It counts as late only if it is overdue by more than
        // a further interval.
        if !self.leadership.leads()
            || late <= self.options.heartbeat_interval
            || self.machine.members.by_id.len() < 2
        {
            return;
        }
        self.shared.diagnostics.metrics.server.heartbeat_send_failures.inc();
        self.logger.warn(
            "leader failed to send out heartbeat on time; took too long, leader is overloaded likely from slow disk",
            &[
                ("heartbeat-interval", Value::Duration(self.options.heartbeat_interval)),
                ("expected-duration", Value::Duration(2 * self.options.heartbeat_interval)),
                ("exceeded-duration", Value::Duration(late - self.options.heartbeat_interval)),
            ],
        );
    }
}

/// Returns the voter that could take over leadership immediately: among the connected voters that the CORRUPT
/// alarm does not name, the one with the most entries.
pub(super) fn successor(node: &Node, machine: &Machine, shared: &Shared) -> Option<MemberId> {
    let peers = shared.cluster.peers()?;
    let corrupt = AlarmType::Corrupt as i32;
    node.progress()
        .into_iter()
        .filter(|p| !p.is_learner && p.recently_active && p.id != MemberId(shared.member.identity.member_id))
        .filter(|p| p.id != node.witness())
        .filter(|p| peers.active_since(p.id.0).is_some())
        .filter(|p| !machine.alarms.is_raised(corrupt, p.id.0))
        .max_by_key(|p| p.matched)
        .map(|p| p.id)
}
