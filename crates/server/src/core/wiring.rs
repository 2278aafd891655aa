//! What the core does for its machines: it gives them what they have to know, and carries out what they want.

use std::time::Instant;

use api::error;
use consensus::Request;
use planted::Bug;
use telemetry::logging::Value;

use super::ReplyBody;
use super::reads::{Footing, RETRY, Waiting, Want};
use super::run::Core;

/// Linearizable reads.
impl Core {
    fn footing(&self) -> Footing {
        let can_ask = self.node.standing().leader != 0 && (!self.leads || self.settled);
        Footing { can_ask, pace: self.pressure.pace() }
    }

    /// How long what waits has to wait for the next round to begin, see [`super::reads::Reads::wait`].
    pub(super) fn round_waits(&self, now: Instant) -> Option<std::time::Duration> {
        if self.reads.is_waiting() { self.reads.wait(self.footing(), now) } else { None }
    }

    /// Begins a round for what waits, if there is somebody to ask.
    pub(super) fn start_round(&mut self, now: Instant) {
        if !self.reads.is_waiting() {
            return;
        }
        if self.reads_local() || (planted::is(Bug::StaleRead) && self.leads && self.settled) {
            let wants = self.reads.take_waiting();
            self.grant(wants, now);
            return;
        }
        let footing = self.footing();
        if let Some(number) = self.reads.begin(footing, || self.shared.request_id(), now)
            && self.node.request(Request::Read(number)).is_err()
        {
            self.reads.refused(now);
        }
    }

    /// Finishes the rounds that the applied state has come up to.
    pub(super) fn finish_rounds(&mut self, now: Instant) {
        let early = planted::is(Bug::HalfWayCountsAsApplied) && self.machine.has_unfinished();
        let applied = self.machine.applied_index + u64::from(early);
        while let Some(wants) = self.reads.finish(applied) {
            self.grant(wants, now);
        }
    }

    fn grant(&mut self, wants: Vec<Waiting>, now: Instant) {
        for (want, since) in wants {
            match want {
                Want::Read(ticket) => self.reads.readable(ticket),
                // Leadership was lost while it waited, and the clocks of leases are the next leader's.
                want if !self.leads => self.refuse(want.ticket(), error::NOT_PRIMARY_LESSOR),
                // The round was confirmed to a member that has become the leader since. Its clocks do not run yet.
                want if !self.settled => self.reads.push(want, since),
                Want::Renewal(ticket, id) => self.renew(ticket, id, since, now),
                Want::TimeToLive(ticket, id, keys) => self.time_to_live(ticket, id, keys, now),
            }
        }
    }

    /// Answers the reads that the state just published is new enough for.
    pub(super) fn answer_reads(&mut self) {
        for ticket in self.reads.take_readable() {
            self.reply(ticket, ReplyBody::Readable);
        }
    }

    /// Looks after rounds that nobody confirms, and reads whose clients were told that they took too long.
    pub(super) fn retry_reads(&mut self, now: Instant) {
        let retried = self.reads.retry(self.shared.limits.request_timeout, now);
        if retried.late {
            self.shared.metrics.server.slow_read_indexes.inc();
        }
        if retried.warns {
            self.logger.warn(
                "waiting for ReadIndex response took too long, retrying",
                &[("retry-timeout", Value::Duration(RETRY))],
            );
        }
        for want in retried.expired {
            self.shared.metrics.server.read_indexes_failed.inc();
            self.refuse(want.ticket(), error::TIMEOUT);
        }
    }
}
