//! What the leader does about leases: renewing, expiring, and noting the time left.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use api::error;
use api::etcdserverpb::{InternalRaftRequest, LeaseCheckpoint, LeaseCheckpointRequest, LeaseRevokeRequest};
use consensus::Role;
use machine::SharedMap;
use machine::request::granted_lease;
use planted::Bug;

use super::proposals::Waiter;
use super::reads::Want;
use super::run::{Core, STOP_PATIENCE};
use super::{Ask, ReplyBody, Ticket};
use crate::expiry::{Expiry, Renewed, noted_or_granted};

/// Leases revoked between two ticks.
const REVOKES_PER_TICK: usize = 1000;
/// Revocations on their way at once.
const REVOKES_OPEN_MAX: usize = 10_000;
/// Leases in one entry that notes times left.
const NOTES_PER_ENTRY: usize = 1000;
/// Leases looked at in one turn, whatever for: their clocks are started, notes are due, or they are forgotten.
const LEASES_PER_TURN: usize = 4096;
/// Entries of the log that are not applied and that a note may be proposed behind: they are all looked at.
const NOTED_BEHIND_MAX: u64 = 1 << 16;
/// Leases that are listed in one answer of the core; a longer list is gone through in pieces.
pub const LISTED_AT_ONCE: usize = 1024;

fn seconds_up(left: Duration) -> i64 {
    i64::try_from(left.as_secs() + u64::from(left.subsec_nanos() > 0)).unwrap_or(i64::MAX)
}

fn ttl_of(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

/// By which time leases expire: not by the time of day, but by that as of which all that was committed is applied. While
/// apply is behind, a renewal that came in time may wait for it, and one that a client is about to send may be late for the
/// same reason.
pub(super) struct LeaseTime {
    /// What was committed by then is applied.
    pub as_of: Instant,
    /// What was committed at this time, as long as it is not all applied.
    behind: Option<(Instant, u64)>,
}

impl LeaseTime {
    pub fn new(now: Instant) -> LeaseTime {
        LeaseTime { as_of: now, behind: None }
    }

    /// To be told after every turn.
    fn look(&mut self, applied: u64, commit: u64, now: Instant) {
        if applied >= commit || planted::is(Bug::LeasesExpireBehind) {
            (self.as_of, self.behind) = (now, None);
            return;
        }
        match self.behind {
            Some((_, index)) if applied < index => {}
            reached => {
                self.as_of = reached.map_or(self.as_of, |(at, _)| at);
                self.behind = Some((now, commit));
            }
        }
    }
}

/// Notes being proposed, slice by slice.
pub(super) struct Noting {
    /// The lease that was looked at last.
    behind: Option<i64>,
    /// Only leases that have used up at least so much of their TTL.
    used: Duration,
    /// The leases that entries grant which were not applied when they were looked at.
    granted: BTreeSet<i64>,
    /// Up to which entry was looked.
    looked_through: u64,
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
        if planted::is(Bug::OldLeaseDeadlines) && self.expiry.after(None, now).next().is_some() {
            return;
        }
        // The time it took to elect this leader is not held against anybody.
        let (leases, ttl_min) = (self.machine.leases.clone(), self.shared.limits.lease_ttl_min);
        let expiry = Expiry::of(leases, ttl_min, self.config.election_timeout, now);
        self.replace_expiry(expiry);
    }

    fn replace_expiry(&mut self, expiry: Expiry) {
        self.forgotten_clocks.push(std::mem::replace(&mut self.expiry, expiry));
    }

    /// The TTL in seconds by which this member, as a leader, lets a lease expire, as every leader of etcd's does. It is
    /// never shorter than what the lease's client was told.
    fn ttl_granted(&self, ttl: i64) -> i64 {
        ttl.max(self.shared.limits.lease_ttl_min)
    }

    /// The TTL that clients are told: the one that every member knows, though this leader may let the lease live longer,
    /// since another may lead before it is over. A lease that a member running etcd granted may have none: each raises that
    /// for itself.
    fn ttl_told(&self, ttl: i64) -> i64 {
        if ttl > 0 { ttl } else { self.ttl_granted(ttl) }
    }

    /// This member leads no more, or in another term: the clocks of leases are the next leader's.
    pub(super) fn stop_leases(&mut self, now: Instant) {
        if !planted::is(Bug::OldLeaseDeadlines) {
            self.replace_expiry(Expiry::new(now));
        }
        self.noting = None;
        for (ticket, _) in std::mem::take(&mut self.renewals_of_expired).into_values().flatten() {
            self.refuse(ticket, error::NOT_PRIMARY_LESSOR);
        }
    }

    pub(super) fn lease_granted(&mut self, id: i64, ttl: i64, now: Instant) {
        let ttl = self.ttl_granted(ttl);
        // On other members no clock runs. A leader that has not settled yet starts all clocks when it has.
        if self.leads && self.settled || planted::is(Bug::LeaseClocksKept) {
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
            self.renew(ticket, id, now, now);
        } else {
            if !planted::is(Bug::LeasesExpireBehind) {
                self.expiry.hold(id, self.lease_time.as_of, self.held_until(now));
            }
            self.reads.push(Want::Renewal(ticket, id), now);
        }
    }

    /// Until when a renewal that came at `since` holds its lease: whoever asked is told by then that it took too long.
    fn held_until(&self, since: Instant) -> Instant {
        since + self.shared.limits.request_timeout
    }

    /// After every turn: what has been applied by now.
    pub(super) fn look_at_lease_time(&mut self, now: Instant) {
        self.lease_time.look(self.machine.applied_index, self.node.standing().commit, now);
    }

    /// Renews a lease; the renewal came at `since`. A noted time left has to be taken back first, or the next leader would go by it; that is so for
    /// a note that is still on its way into the log, too, and for what takes one back.
    ///
    /// As in etcd, a renewal of a lease whose time is up waits until its revocation is committed.
    pub(super) fn renew(&mut self, ticket: Ticket, id: i64, since: Instant, now: Instant) {
        let lease = self.machine.leases.get(id).map(|lease| (self.ttl_told(lease.ttl), lease.remaining > 0));
        let renewed = self.expiry.renew(id, self.held_until(since), self.lease_time.as_of, now);
        let Some((ttl, noted)) = lease else {
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
        if keys && !self.machine.is_whole() {
            self.deferred.push(Ask::TimeToLive(ticket, id, keys));
            return;
        }
        let body = match (self.machine.leases.get(id), self.expiry.left(id, now)) {
            (Some(lease), Some(left)) => {
                let granted = self.ttl_told(lease.ttl);
                let left = i64::try_from(left.as_secs()).unwrap_or(i64::MAX);
                // What this leader lets it live beyond that, the next one may not.
                let ttl = if self.ttl_granted(lease.ttl) > granted { left.min(granted) } else { left };
                let keys = if keys { lease.keys.clone() } else { SharedMap::default() };
                ReplyBody::TimeToLive { ttl, granted, keys }
            }
            _ => ReplyBody::TimeToLive { ttl: -1, granted: 0, keys: SharedMap::default() },
        };
        self.reply(ticket, body);
    }

    /// The keys of a lease as this member knows them.
    pub(super) fn lease_keys(&mut self, ticket: Ticket, id: i64) {
        if !self.machine.is_whole() {
            self.deferred.push(Ask::LeaseKeys(ticket, id));
            return;
        }
        let keys = self.machine.leases.get(id).map(|lease| lease.keys.clone()).unwrap_or_default();
        self.reply(ticket, ReplyBody::LeaseKeys(keys));
    }

    /// The time that a lease has left, by which leases are listed. A member that does not lead goes by what was noted or
    /// granted.
    fn listed_by(&self, id: i64, lease: &machine::Lease, now: Instant) -> Duration {
        self.expiry.left(id, now).unwrap_or_else(|| noted_or_granted(lease, self.shared.limits.lease_ttl_min))
    }

    /// All leases of the state: a few in the order in which they end, many as they are.
    pub(super) fn list_leases(&mut self, ticket: Ticket, now: Instant) {
        let all = &self.machine.leases;
        if all.len() > LISTED_AT_ONCE {
            self.reply(ticket, ReplyBody::ManyLeases(all.clone()));
            return;
        }
        let mut leases: Vec<(Duration, i64)> =
            all.iter().map(|(id, lease)| (self.listed_by(id, lease, now), id)).collect();
        leases.sort_unstable();
        self.reply(ticket, ReplyBody::Leases(leases.into_iter().map(|(_, id)| id).collect()));
    }

    /// The times that these leases have left; none for those that are gone.
    pub(super) fn lease_times(&mut self, ticket: Ticket, ids: &[i64], now: Instant) {
        debug_assert!(ids.len() <= LISTED_AT_ONCE, "many leases are asked for in pieces");
        let time = |id: &i64| {
            self.machine.leases.get(*id).map_or(Duration::ZERO, |lease| self.listed_by(*id, lease, now))
        };
        let times = ids.iter().map(time).collect();
        self.reply(ticket, ReplyBody::LeaseTimes(times));
    }

    /// Does the next slice of what has to be done for leases.
    pub(super) fn lease_slices(&mut self, now: Instant) {
        while let Some(forgotten) = self.forgotten_clocks.last_mut() {
            if forgotten.forget_some(LEASES_PER_TURN) {
                break;
            }
            self.forgotten_clocks.pop();
        }
        if self.leads_now() {
            if self.expiry.is_starting() {
                let leases = &self.machine.leases;
                let some = if planted::is(Bug::LeasesAllAtOnce) { usize::MAX } else { LEASES_PER_TURN };
                self.expiry.start_some(some, |id| leases.get(id).is_some());
            }
            self.expire_leases();
            self.note_some(now);
        } else {
            self.noting = None;
        }
        if let Some(since) = self.stopping
            && !self.handed_over
            && (self.noting.is_none() || now.saturating_duration_since(since) > STOP_PATIENCE / 2)
        {
            self.handed_over = true;
            self.hand_over();
        }
    }

    /// Whether another slice can be done at once.
    pub(super) fn lease_slices_wait(&self) -> bool {
        if self.parked.is_some() {
            return false;
        }
        let expire =
            self.stopping.is_none() && self.revokes_room() > 0 && self.expiry.is_due(self.lease_time.as_of);
        let note = self.noting.is_some() && self.log_has_room() && self.can_note();
        !self.forgotten_clocks.is_empty() || self.leads_now() && (self.expiry.is_starting() || expire || note)
    }

    /// Returns the number of lease revocations that may be proposed now.
    fn revokes_room(&self) -> usize {
        REVOKES_OPEN_MAX.saturating_sub(self.revokes_open).min(self.revokes_allowed)
    }

    /// At each tick: so many leases may be revoked until the next.
    pub(super) fn allow_revokes(&mut self) {
        self.revokes_allowed = REVOKES_PER_TICK;
    }

    /// Proposes to revoke what has expired. What had come by then was taken before.
    fn expire_leases(&mut self) {
        let (room, as_of) = (self.revokes_room(), self.lease_time.as_of);
        if room == 0 || self.stopping.is_some() || !self.expiry.is_due(as_of) {
            return;
        }
        for id in self.expiry.expired(as_of, room) {
            self.shared.metrics.lease.expired.inc();
            self.revokes_open += 1;
            self.revokes_allowed -= 1;
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
        self.next_note = now + self.thresholds.note_interval;
        if self.noting.is_none() {
            self.note_leases_below(self.thresholds.note_interval);
        }
    }

    /// Begins to note the time left of every lease that has used up at least `used` of its TTL.
    pub(super) fn note_leases_below(&mut self, used: Duration) {
        self.noting = Some(Noting { behind: None, used, granted: BTreeSet::new(), looked_through: 0 });
    }

    /// Whether so few entries are not applied that they can be looked at before times left are noted.
    fn can_note(&self) -> bool {
        self.node.standing().last - self.machine.applied_index <= NOTED_BEHIND_MAX
    }

    /// Goes on with the notes, by one entry at most.
    fn note_some(&mut self, now: Instant) {
        if self.noting.is_none() {
            return;
        }
        let room = self.log_has_room() && self.can_note();
        let ttl_min = self.shared.limits.lease_ttl_min;
        // A lease whose clock is still to be started would go by the note, as if it was from before.
        let Some(noting) = self.noting.as_mut().filter(|_| room && !self.expiry.is_starting()) else {
            return;
        };
        // What is noted behind an entry that grants a lease is taken for the time left of that one; if another with its id
        // exists now, that is revoked before.
        if !planted::is(Bug::NoteOverGrant) {
            let behind = noting.looked_through.max(self.machine.applied_index);
            noting.granted.extend(self.node.data_after(behind).filter_map(granted_lease));
            noting.looked_through = self.node.standing().last;
        }
        let mut notes = Vec::new();
        let mut looked = 0;
        for (id, left) in self.expiry.after(noting.behind, now).take(LEASES_PER_TURN) {
            looked += 1;
            noting.behind = Some(id);
            let Some(lease) = self.machine.leases.get(id) else { continue };
            let left = seconds_up(left).max(1);
            let ttl = ttl_of(lease.ttl.max(ttl_min));
            if ttl >= ttl_of(left) + noting.used && lease.remaining != left && !noting.granted.contains(&id) {
                notes.push(LeaseCheckpoint { id, remaining_ttl: left });
                if notes.len() == NOTES_PER_ENTRY {
                    break;
                }
            }
        }
        if looked < LEASES_PER_TURN && notes.len() < NOTES_PER_ENTRY {
            self.noting = None;
        }
        if !notes.is_empty() {
            self.propose_note(notes, Waiter::Nobody);
        }
    }
}
