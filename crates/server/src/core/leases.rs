//! What the leader does about leases: renewing, expiring, and noting the time left.

use std::time::{Duration, Instant};

use api::error;
use api::etcdserverpb::{InternalRaftRequest, LeaseCheckpoint, LeaseCheckpointRequest, LeaseRevokeRequest};
use consensus::Role;
use planted::Bug;

use super::proposals::Waiter;
use super::reads::Want;
use super::run::Core;
use super::{ReplyBody, Ticket};
use crate::expiry::{Expiry, Renewed};

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
    /// Whether this member leads, with all of its predecessors' entries applied, in this very moment. What a message
    /// that came in this turn has deposed no longer does, though [`Core::leads`] says so until the turn's end.
    pub(super) fn leads_now(&self) -> bool {
        let standing = self.node.standing();
        self.leads && self.settled && standing.role == Role::Leader && standing.term == self.led_term
    }

    /// Once a new leader has applied all of its predecessors' entries: every lease gets its noted time, or its whole
    /// TTL, from now on.
    pub(super) fn start_leases(&mut self, now: Instant) {
        if planted::is(Bug::OldLeaseDeadlines) && self.expiry.iter(now).next().is_some() {
            return;
        }
        self.expiry = Expiry::new(now);
        for (id, lease) in self.machine.leases.iter() {
            // The time it took to elect this leader is not held against anybody.
            let left = self.noted_or_granted(lease) + self.config.election_timeout;
            self.expiry.start(id, left, ttl_of(self.ttl_granted(lease.ttl)), now);
        }
    }

    /// The TTL in seconds by which this member, as a leader, lets a lease expire, as every leader of etcd's does. It is
    /// never shorter than what the lease's client was told.
    fn ttl_granted(&self, ttl: i64) -> i64 {
        ttl.max(self.shared.limits.lease_ttl_min)
    }

    /// The time left as of the last note, or the whole TTL.
    fn noted_or_granted(&self, lease: &machine::Lease) -> Duration {
        let ttl = self.ttl_granted(lease.ttl);
        ttl_of(if lease.remaining > 0 { lease.remaining.min(ttl) } else { ttl })
    }

    /// This member leads no more, or in another term: the clocks of leases are the next leader's.
    pub(super) fn stop_leases(&mut self, now: Instant) {
        if !planted::is(Bug::OldLeaseDeadlines) {
            self.expiry = Expiry::new(now);
        }
        for (ticket, _) in std::mem::take(&mut self.renewals_of_expired).into_values().flatten() {
            self.refuse(ticket, error::NOT_PRIMARY_LESSOR);
        }
    }

    pub(super) fn lease_granted(&mut self, id: i64, ttl: i64, now: Instant) {
        let ttl = self.ttl_granted(ttl);
        // On other members no clock runs. A leader that has not settled yet starts all clocks when it has.
        if self.leads && self.settled {
            self.expiry.start(id, ttl_of(ttl), ttl_of(ttl), now);
        }
        let metrics = &self.shared.metrics.lease;
        metrics.granted.inc();
        metrics.ttl.observe(ttl as f64);
    }

    pub(super) fn lease_revoked(&mut self, id: i64) {
        self.expiry.stop(id);
        for (ticket, _) in self.renewals_of_expired.remove(&id).unwrap_or_default() {
            self.reply(ticket, ReplyBody::KeptAlive(0));
        }
        self.shared.metrics.lease.revoked.inc();
    }

    /// A client wants its lease renewed. Only a leader that still leads may promise more time: one that was stopped or
    /// cut off for a while may have been replaced, and its successor have let the lease expire. So renewals share
    /// rounds of ReadIndex with linearizable reads; where one member is all voters, they are answered at once.
    ///
    /// A round also waits for this member's own apply: the others may have committed the grant, and told its owner,
    /// while this member's disk is still busy with the entry.
    pub(super) fn keep_alive(&mut self, ticket: Ticket, id: i64, now: Instant) {
        if !self.leads {
            self.refuse(ticket, error::NOT_PRIMARY_LESSOR);
        } else if planted::is(Bug::RenewedByDeposed) {
            self.renew(ticket, id, now);
        } else {
            self.reads.push(Want::Renewal(ticket, id), now);
        }
    }

    /// Renews a lease. A noted time left has to be taken back first, or the next leader would go by it; that is so for
    /// a note that is still on its way into the log, too, and for what takes one back.
    ///
    /// As in etcd, a renewal of a lease whose time is up waits until its revocation is committed.
    pub(super) fn renew(&mut self, ticket: Ticket, id: i64, now: Instant) {
        let lease =
            self.machine.leases.get(id).map(|lease| (self.ttl_granted(lease.ttl), lease.remaining > 0));
        let (Some((ttl, noted)), renewed) = (lease, self.expiry.renew(id, now)) else {
            self.reply(ticket, ReplyBody::KeptAlive(0));
            return;
        };
        let noted_by = match renewed {
            Renewed::Noted(index) => index,
            Renewed::Expired if planted::is(Bug::ExpiredRenewedEarly) => {
                self.reply(ticket, ReplyBody::KeptAlive(0));
                return;
            }
            Renewed::Expired => {
                self.renewals_of_expired.entry(id).or_default().push((ticket, now));
                return;
            }
            Renewed::Unknown => {
                self.reply(ticket, ReplyBody::KeptAlive(0));
                return;
            }
        };
        self.shared.metrics.lease.renewed.inc();
        let under_way = noted_by > self.machine.applied_index && !planted::is(Bug::NoteOverRenewal);
        if noted || under_way {
            let clear = vec![LeaseCheckpoint { id, remaining_ttl: 0 }];
            self.propose_note(clear, Waiter::KeepAlive(ticket, ttl));
        } else {
            self.reply(ticket, ReplyBody::KeptAlive(ttl));
        }
    }

    /// Proposes to note times left, and remembers which entry does.
    fn propose_note(&mut self, checkpoints: Vec<LeaseCheckpoint>, waiter: Waiter) {
        if !self.leads_now() {
            // Another leader would take what it is handed on for its own.
            self.give_up(waiter, error::NOT_PRIMARY_LESSOR);
            return;
        }
        let ids: Vec<i64> = checkpoints.iter().map(|checkpoint| checkpoint.id).collect();
        let before = self.node.standing().last;
        let request = InternalRaftRequest {
            lease_checkpoint: Some(LeaseCheckpointRequest { checkpoints }),
            ..InternalRaftRequest::default()
        };
        self.propose_own(request, waiter);
        let last = self.node.standing().last;
        if last > before {
            for id in ids {
                self.expiry.noted(id, last);
            }
        }
    }

    /// Gives up renewals whose clients were told that they took too long.
    pub(super) fn sweep_renewals(&mut self, now: Instant) {
        let timeout = self.shared.limits.request_timeout;
        let mut late = Vec::new();
        self.renewals_of_expired.retain(|_, tickets| {
            tickets.retain(|(ticket, since)| {
                let keep = now.saturating_duration_since(*since) < timeout;
                if !keep {
                    late.push(*ticket);
                }
                keep
            });
            !tickets.is_empty()
        });
        for ticket in late {
            self.refuse(ticket, error::TIMEOUT);
        }
    }

    pub(super) fn time_to_live(&mut self, ticket: Ticket, id: i64, keys: bool, now: Instant) {
        let body = match (self.machine.leases.get(id), self.expiry.left(id, now)) {
            (Some(lease), Some(left)) => ReplyBody::TimeToLive {
                ttl: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                granted: self.ttl_granted(lease.ttl),
                keys: if keys { lease.keys.iter().cloned().collect() } else { Vec::new() },
            },
            _ => ReplyBody::TimeToLive { ttl: -1, granted: 0, keys: Vec::new() },
        };
        self.reply(ticket, body);
    }

    /// All leases of the state, the next to end first. A member that does not lead goes by what was noted or granted.
    pub(super) fn list_leases(&mut self, ticket: Ticket, now: Instant) {
        let left = |id, lease: &machine::Lease| {
            self.expiry.left(id, now).unwrap_or_else(|| self.noted_or_granted(lease))
        };
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
            let worth = ttl_of(self.ttl_granted(lease.ttl)) >= ttl_of(left) + used && lease.remaining != left;
            if worth {
                notes.push(LeaseCheckpoint { id, remaining_ttl: left });
            }
        }
        notes.sort_unstable_by_key(|note| note.id);
        while !notes.is_empty() {
            let rest = notes.split_off(notes.len().min(NOTES_PER_ENTRY));
            self.propose_note(notes, Waiter::Nobody);
            notes = rest;
        }
    }
}
