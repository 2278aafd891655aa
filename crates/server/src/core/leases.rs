//! What the leader does about leases: renewing, expiring, and noting the time left.

use std::time::{Duration, Instant};

use api::error;
use api::etcdserverpb::{InternalRaftRequest, LeaseCheckpoint, LeaseCheckpointRequest, LeaseRevokeRequest};
use planted::Bug;

use super::proposals::Waiter;
use super::reads::Want;
use super::run::Core;
use super::{ReplyBody, Ticket};

/// Leases revoked in one turn; together they take one sync of the log.
const REVOKES_PER_TURN: usize = 1000;
/// Revocations on their way at once.
const REVOKES_OPEN_MAX: usize = 10_000;
/// Leases in one entry that notes times left.
const NOTES_PER_ENTRY: usize = 1000;
/// How often times left are noted, and how far a lease has to be from its full TTL to be worth it.
const NOTE_INTERVAL: Duration = Duration::from_secs(60);

fn seconds_up(left: Duration) -> i64 {
    i64::try_from(left.as_secs() + u64::from(left.subsec_nanos() > 0)).unwrap_or(i64::MAX)
}

fn ttl_of(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

impl Core {
    /// On becoming leader: every lease gets its noted time, or its whole TTL, from now on.
    pub(super) fn start_leases(&mut self, now: Instant) {
        if planted::is(Bug::OldLeaseDeadlines) && self.expiry.iter(now).next().is_some() {
            return;
        }
        self.expiry = crate::expiry::Expiry::new(now);
        for (id, lease) in self.machine.leases.iter() {
            let left = if lease.remaining > 0 { lease.remaining } else { lease.ttl };
            // The time it took to elect this leader is not held against anybody.
            let left = ttl_of(left) + self.config.election_timeout;
            self.expiry.start(id, left, ttl_of(lease.ttl), now);
        }
    }

    pub(super) fn lease_granted(&mut self, id: i64, ttl: i64, now: Instant) {
        self.expiry.start(id, ttl_of(ttl), ttl_of(ttl), now);
        let metrics = &self.shared.metrics.lease;
        metrics.granted.inc();
        metrics.ttl.observe(ttl as f64);
    }

    pub(super) fn lease_revoked(&mut self, id: i64) {
        self.expiry.stop(id);
        self.shared.metrics.lease.revoked.inc();
    }

    /// A client wants its lease renewed, at once if this member is known to lead: a leader that was stopped for a
    /// while may have been replaced, and its successor have let the lease expire.
    pub(super) fn keep_alive(&mut self, ticket: Ticket, id: i64, now: Instant) {
        if !self.leads {
            self.refuse(ticket, error::NOT_PRIMARY_LESSOR);
        } else if (self.reads_local() || self.trusted_until.is_some_and(|until| now < until))
            && self.expiry.left(id, now).is_some()
            || planted::is(Bug::RenewedByDeposed)
        {
            self.renew(ticket, id, now);
        } else {
            // Also where the lease is not known: the others may have committed it, and told its owner, while this
            // member's own disk is still busy with the entry. A round waits until that is applied.
            self.reads.push(Want::Renewal(ticket, id), now);
        }
    }

    /// Renews a lease. A noted time left has to be taken back first, or the next leader would go by it.
    pub(super) fn renew(&mut self, ticket: Ticket, id: i64, now: Instant) {
        if !self.expiry.renew(id, now) {
            self.reply(ticket, ReplyBody::KeptAlive(0));
            return;
        }
        self.shared.metrics.lease.renewed.inc();
        let (ttl, noted) = match self.machine.leases.get(id) {
            Some(lease) => (lease.ttl, lease.remaining > 0),
            None => (0, false),
        };
        if noted {
            let clear = vec![LeaseCheckpoint { id, remaining_ttl: 0 }];
            self.propose_own(note(clear), Waiter::KeepAlive(ticket, ttl));
        } else {
            self.reply(ticket, ReplyBody::KeptAlive(ttl));
        }
    }

    pub(super) fn time_to_live(&mut self, ticket: Ticket, id: i64, keys: bool, now: Instant) {
        let body = match (self.machine.leases.get(id), self.expiry.left(id, now)) {
            (Some(lease), Some(left)) => ReplyBody::TimeToLive {
                ttl: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                granted: lease.ttl,
                keys: if keys { lease.keys.iter().cloned().collect() } else { Vec::new() },
            },
            _ => ReplyBody::TimeToLive { ttl: -1, granted: 0, keys: Vec::new() },
        };
        self.reply(ticket, body);
    }

    /// All leases of the state, the next to end first. A follower's own deadlines serve for the order only: those it
    /// has are of leases it saw granted, which a state taken over need not hold any more.
    pub(super) fn list_leases(&mut self, ticket: Ticket, now: Instant) {
        let left =
            |id, lease: &machine::Lease| self.expiry.left(id, now).unwrap_or_else(|| ttl_of(lease.ttl));
        let mut leases: Vec<(Duration, i64)> =
            self.machine.leases.iter().map(|(id, lease)| (left(id, lease), id)).collect();
        leases.sort_unstable();
        self.reply(ticket, ReplyBody::Leases(leases.into_iter().map(|(_, id)| id).collect()));
    }

    /// Proposes to revoke what has expired.
    pub(super) fn expire_leases(&mut self, now: Instant) {
        let room = REVOKES_OPEN_MAX.saturating_sub(self.revokes_open).min(REVOKES_PER_TURN);
        for id in self.expiry.expired(now, room) {
            self.shared.metrics.lease.expired.inc();
            self.revokes_open += 1;
            let request = InternalRaftRequest {
                lease_revoke: Some(LeaseRevokeRequest { id }),
                ..InternalRaftRequest::default()
            };
            self.propose_own(request, Waiter::Expiry(id));
        }
    }

    /// Now and then: notes the time left of leases that have not been renewed lately, so that it survives a restart.
    pub(super) fn note_leases(&mut self, now: Instant) {
        if now < self.next_note {
            return;
        }
        self.next_note = now + NOTE_INTERVAL;
        self.note_leases_below(now, NOTE_INTERVAL);
    }

    /// Notes the time left of every lease that has used up at least `used` of its TTL.
    pub(super) fn note_leases_below(&mut self, now: Instant, used: Duration) {
        let mut notes = Vec::new();
        for (id, left) in self.expiry.iter(now) {
            let Some(lease) = self.machine.leases.get(id) else { continue };
            let left = seconds_up(left).max(1);
            let worth = ttl_of(lease.ttl) >= ttl_of(left) + used && lease.remaining != left;
            if worth {
                notes.push(LeaseCheckpoint { id, remaining_ttl: left });
            }
        }
        notes.sort_unstable_by_key(|note| note.id);
        while !notes.is_empty() {
            let rest = notes.split_off(notes.len().min(NOTES_PER_ENTRY));
            self.propose_own(note(notes), Waiter::Nobody);
            notes = rest;
        }
    }
}

fn note(checkpoints: Vec<LeaseCheckpoint>) -> InternalRaftRequest {
    InternalRaftRequest {
        lease_checkpoint: Some(LeaseCheckpointRequest { checkpoints }),
        ..InternalRaftRequest::default()
    }
}
