//! What follows from a member's state being found to differ: the alarm that names it, and that it does not lead.

use std::time::Instant;

use api::etcdserverpb::alarm_request::AlarmAction;
use api::etcdserverpb::{AlarmRequest, AlarmType, InternalRaftRequest};

use super::proposals::Waiter;
use super::run::Core;
use telemetry::logging::Value;

const CORRUPT: i32 = AlarmType::Corrupt as i32;

impl Core {
    /// A member's state differs from that of most others: all are told. 0 stands for a member that is not known.
    pub(super) fn raise_corrupt(&mut self, member_id: u64) {
        let raised = if member_id == 0 {
            // Whom it is about may be known by now.
            self.machine.alarms.any(CORRUPT)
        } else {
            self.machine.alarms.is_raised(CORRUPT, member_id)
        };
        if raised || !self.leadership.leads() {
            return;
        }
        self.logger.error(
            "raising the CORRUPT alarm: the cluster takes no writes until it is disarmed; replace the member that it \
             names (remove it, delete its data directory, add it again), then disarm the alarm",
            &[("member-id", Value::Id(member_id))],
        );
        let alarm = AlarmRequest { action: AlarmAction::Activate as i32, member_id, alarm: CORRUPT };
        let request = InternalRaftRequest { alarm: Some(alarm), ..InternalRaftRequest::default() };
        self.propose_own(request, Waiter::Nobody);
    }

    /// A leader that the alarm names hands over to a member that it does not name, if there is one to be reached.
    pub(super) fn resign_if_corrupt(&mut self) {
        let own = self.shared.identity.member_id;
        if !self.leadership.leads()
            || !self.machine.alarms.is_raised(CORRUPT, own)
            || self.node.transferring().is_some()
        {
            return;
        }
        let Some(to) = self.successor() else { return };
        self.logger.warn(
            "handing leadership over: this member's state differs from the others'",
            &[("to", Value::Id(to))],
        );
        self.transfer_to(to);
    }

    /// Counts what a leader was too slow for: others must not think that it is gone.
    pub(super) fn note_late_tick(&mut self, now: Instant) {
        let late = now.saturating_duration_since(self.next_tick);
        // The tick itself is due an interval after the last.
        if !self.leadership.leads()
            || late <= self.config.heartbeat_interval
            || self.machine.members.by_id.len() < 2
        {
            return;
        }
        self.shared.metrics.server.heartbeat_send_failures.inc();
        self.logger.warn(
            "leader failed to send out heartbeat on time; took too long, leader is overloaded likely from slow disk",
            &[
                ("heartbeat-interval", Value::Duration(self.config.heartbeat_interval)),
                ("expected-duration", Value::Duration(2 * self.config.heartbeat_interval)),
                ("exceeded-duration", Value::Duration(late - self.config.heartbeat_interval)),
            ],
        );
    }
}
