use std::collections::{BTreeMap, BTreeSet};

use crate::effects::{Step, steps, steps_taken};
use crate::findings::brief;
use crate::sequence::Sequence;
use crate::timeline::Timeline;
use crate::{History, Kind, Operation, Outcome, Refusal, Request, Response, Settings, Verdict, Violation};

/// Checks leases. A lease lives for its time to live after its grant, and after each answered renewal. When
/// the lease ends, by expiry or revocation, all its keys are deleted in one revision, and the lease never
/// exists again.
///
/// etcd: "Lease API"; a renewal returns 0 if the lease does not exist. The time at which a lease ended is not
/// known. The judge knows only a time by which the lease was certainly gone: a response said so, or a client
/// saw the lease's keys deleted together. An answered renewal took effect after its call and before the end
/// of the lease. So this end must not be before the call plus the time to live, whenever the response
/// arrived. A renewal that was called after the end must not succeed.
///
/// If an id was granted several times, this function checks the grants, and the end of the last lease with
/// this id as far as responses show it. If it is uncertain how often an id was granted, only the grants are
/// checked.
pub(crate) fn check(history: &History, sequence: &Sequence<'_>, timeline: &Timeline, verdict: &mut Verdict) {
    let mut leases = Leases::new(history);
    leases.take_keys(sequence, timeline);
    for (id, lease) in &leases.of {
        lease.grants(*id, &history.settings, verdict);
        if lease.granted.len() == 1 && lease.perhaps_granted == 0 {
            lease.end(*id, &history.settings, verdict);
            lease.keys_after_end(*id, sequence, timeline, verdict);
        } else if let Some(last) = lease.last(&history.settings) {
            last.end(*id, &history.settings, verdict);
        }
    }
    verdict.figures.leases = leases.of.values().map(|lease| lease.granted.len() as u64).sum();
    verdict.figures.leases_expired =
        leases.of.values().filter(|lease| lease.expired && lease.revokes.is_empty()).count() as u64;
}

/// Returns the time in nanoseconds, counted from the call of an answered grant or renewal, for which the
/// lease must live.
pub(crate) fn promise(settings: &Settings, ttl: i64) -> u64 {
    let whole = u128::from(u64::try_from(ttl).unwrap_or(0)) * 1_000_000_000;
    // On a clock that is fast by the rate d, the time to live is over after 1 / (1 + d) of the real time. So
    // only this shorter time is guaranteed.
    let slowest = whole * 1_000_000 / (1_000_000 + u128::from(settings.clock_drift_ppm));
    u64::try_from(slowest).unwrap_or(u64::MAX).saturating_sub(settings.lease_slack)
}

/// Observations of clients about all leases, by lease id.
#[derive(Default)]
struct Leases<'a> {
    of: BTreeMap<i64, Lease<'a>>,
}

#[derive(Default)]
struct Lease<'a> {
    /// Answered grants, with the granted seconds.
    granted: Vec<(&'a Operation, i64)>,
    /// Number of grants with unknown outcomes.
    perhaps_granted: usize,
    /// Revocations that happened or may have happened.
    revokes: Vec<&'a Operation>,
    /// Operations whose response proves that the lease was alive at some time after the operation's call. The
    /// number is the time to live in seconds if the operation renewed the lease; otherwise `None`.
    alive: Vec<(&'a Operation, Option<i64>)>,
    /// Operations whose response says that the lease does not exist.
    gone: Vec<&'a Operation>,
    /// First revision that only the end of this lease can have made, and the time by which this revision
    /// certainly existed; `None` if there is no such revision.
    ended_at: Option<(i64, u64)>,
    /// True if the keys of the lease were deleted in one revision, which only the end of the lease can have
    /// made.
    expired: bool,
    /// Revisions that attached keys to the lease.
    puts: Vec<i64>,
}

impl<'a> Leases<'a> {
    fn new(history: &'a History) -> Leases<'a> {
        let mut leases = Leases::default();
        for op in &history.operations {
            match &op.outcome {
                Outcome::Done(_, response) => leases.take_answer(op, response),
                Outcome::Unknown(_) => match op.request {
                    Request::Grant { id, .. } if id != 0 => leases.get(id).perhaps_granted += 1,
                    Request::Revoke { id } => leases.get(id).revokes.push(op),
                    _ => {}
                },
                Outcome::Refused(Refusal::LeaseNotFound) => {
                    // Use the error only if the request names a single lease. If a transaction attaches keys
                    // to several leases, the error does not tell which of them was missing.
                    let mut named: BTreeSet<i64> = BTreeSet::new();
                    match op.request {
                        Request::Revoke { id } | Request::KeepAlive { id } => drop(named.insert(id)),
                        _ => named.extend(steps(&op.request).iter().filter_map(lease_of)),
                    }
                    if let (Some(id), 1) = (named.first(), named.len()) {
                        leases.get(*id).gone.push(op);
                    }
                }
                Outcome::Refused(_) => {}
            }
        }
        leases
    }

    fn get(&mut self, id: i64) -> &mut Lease<'a> {
        self.of.entry(id).or_default()
    }

    fn take_answer(&mut self, op: &'a Operation, response: &'a Response) {
        match (&op.request, response) {
            (_, Response::Granted { id, ttl }) => self.get(*id).granted.push((op, *ttl)),
            (Request::Revoke { id }, _) => {
                self.get(*id).revokes.push(op);
                self.get(*id).gone.push(op);
            }
            (Request::KeepAlive { id }, Response::Renewed { ttl: ..=0 }) => self.get(*id).gone.push(op),
            (Request::KeepAlive { id }, Response::Renewed { ttl }) => {
                self.get(*id).alive.push((op, Some(*ttl)));
            }
            (Request::TimeToLive { id, .. }, Response::TimeToLive { granted_ttl: 0, .. }) => {
                self.get(*id).gone.push(op);
            }
            (Request::TimeToLive { id, .. }, Response::TimeToLive { .. }) => {
                self.get(*id).alive.push((op, None))
            }
            _ => {
                let named: BTreeSet<i64> =
                    steps_taken(&op.request, response).iter().filter_map(lease_of).collect();
                named.into_iter().for_each(|id| self.get(id).alive.push((op, None)));
            }
        }
    }

    /// Collects the observations about leases that follow from the sequence of changes.
    fn take_keys(&mut self, sequence: &Sequence<'_>, timeline: &Timeline) {
        for revision in 2..=sequence.store.revision {
            for change in sequence.store.changes(revision) {
                if let Some(kv) = change.put.as_ref().filter(|kv| kv.lease != 0) {
                    self.get(kv.lease).puts.push(revision);
                }
            }
            let Some(change) = sequence.store.changes(revision).first() else { continue };
            let id = sequence.store.at(&change.key, revision - 1).map_or(0, |kv| kv.lease);
            if id == 0 || !sequence.is_end_of(revision, id) {
                continue;
            }
            let by = timeline.not_after(revision).time;
            let lease = self.get(id);
            lease.expired = true;
            if lease.ended_at.is_none() {
                lease.ended_at = Some((revision, by));
            }
        }
    }
}

fn lease_of(step: &Step<'_>) -> Option<i64> {
    match step {
        Step::Put(put) if put.lease != 0 => Some(put.lease),
        _ => None,
    }
}

fn is_revocation(op: &Operation) -> bool {
    matches!((&op.request, &op.outcome), (Request::Revoke { .. }, Outcome::Done(..)))
}

impl<'a> Lease<'a> {
    /// Checks the responses to grants and renewals. A grant returns the requested id, at least the requested
    /// time, and no id that is in use. A renewal returns the granted time, or more if the leader's election
    /// timeout requires more.
    fn grants(&self, id: i64, settings: &Settings, verdict: &mut Verdict) {
        for (op, ttl) in &self.granted {
            let Request::Grant { id: wanted, ttl: least } = op.request else { continue };
            if wanted != 0 && wanted != id || *ttl < least || id == 0 {
                let text = format!("{}: got id {id} and {ttl} s", brief(op));
                verdict.add(Violation::of(Kind::LeaseGrant, &[op], text));
            }
        }
        if let ([(_, granted)], 0) = (self.granted.as_slice(), self.perhaps_granted) {
            for (op, ttl) in self.alive.iter().filter_map(|(op, ttl)| ttl.map(|ttl| (op, ttl))) {
                if ttl < *granted {
                    let text = format!("{}: renewed for {ttl} s, granted for {granted} s", brief(op));
                    verdict.add(Violation::of(Kind::LeaseGrant, &[op], text));
                }
            }
        }
        let mut grants: Vec<&(&Operation, i64)> = self.granted.iter().collect();
        grants.sort_by_key(|(op, _)| op.returned);
        for pair in grants.windows(2) {
            let ((first, ttl), (second, _)) = (pair[0], pair[1]);
            let until = first.call.saturating_add(promise(settings, *ttl));
            let revoked = self.revokes.iter().any(|revoke| revoke.call <= second.returned);
            if !revoked && second.returned < until {
                let text = format!(
                    "lease {id} was granted again while it lived: {}, {}",
                    brief(first),
                    brief(second)
                );
                verdict.add(Violation::of(Kind::LeaseGrant, &[first, second], text));
            }
        }
    }

    /// Returns the last one of several leases with the same id, with only those operations that were
    /// certainly called after its grant. Returns `None` if it is uncertain which grant was the last, or which
    /// revocations came before the last grant.
    fn last(&self, settings: &Settings) -> Option<Self> {
        let mut grants = self.granted.clone();
        grants.sort_by_key(|(op, _)| op.call);
        let disjoint = grants.windows(2).all(|pair| pair[0].0.returned < pair[1].0.call);
        let ([.., (before, ttl), last], true) = (grants.as_slice(), disjoint && self.perhaps_granted == 0)
        else {
            return None;
        };
        let granted = last.0;
        // The order of a revocation and a concurrent last grant is uncertain, with one exception: if nothing
        // else can have ended the previous lease, the revocation came before the grant.
        let is_open = |op: &&Operation| {
            op.call <= granted.returned
                && (op.returned >= granted.call || matches!(op.outcome, Outcome::Unknown(_)))
        };
        let earlier =
            self.revokes.iter().filter(|op| op.returned < granted.call && op.returned >= before.call);
        let renewals = self.alive.iter().filter_map(|(op, ttl)| ttl.map(|ttl| (*op, ttl)));
        let promises = renewals.filter(|(op, _)| op.call >= before.call && op.returned < granted.call);
        let until =
            promises.chain([(*before, *ttl)]).map(|(op, ttl)| op.call.saturating_add(promise(settings, ttl)));
        let lived = until.max().unwrap_or(0) > granted.returned;
        let open = self.revokes.iter().copied().filter(|op| is_open(op)).count();
        if !(open == 0 || open == 1 && lived && earlier.count() == 0) {
            return None;
        }
        let after = |op: &&Operation| op.call >= granted.returned;
        Some(Lease {
            granted: vec![*last],
            revokes: self.revokes.iter().copied().filter(after).collect(),
            alive: self.alive.iter().copied().filter(|(op, _)| after(op)).collect(),
            gone: self.gone.iter().copied().filter(after).collect(),
            ..Lease::default()
        })
    }

    /// Returns the earliest time by which the lease was certainly gone, the operation that proves it, and a
    /// description of the proof.
    fn gone_by(&self) -> Option<(u64, Option<&Operation>, String)> {
        let granted = self.granted.first().map_or(u64::MAX, |(op, _)| op.returned);
        // Do not use a response which says that the lease does not exist if its operation was called before
        // the response to the grant: the lease possibly did not exist yet. A successful revocation is always
        // a proof.
        let told = self.gone.iter().filter(|op| op.call >= granted || is_revocation(op));
        let told = told.min_by_key(|op| op.returned);
        let ended = self.ended_at.filter(|(_, by)| *by < u64::MAX);
        match (told, ended) {
            (Some(op), None) => Some((op.returned, Some(op), brief(op))),
            (Some(op), Some((_, by))) if op.returned <= by => Some((op.returned, Some(op), brief(op))),
            (_, Some((revision, by))) => {
                Some((by, None, format!("its keys were gone with revision {revision} by {by}")))
            }
            (None, None) => None,
        }
    }

    /// Checks that the lease ends neither too early nor twice.
    fn end(&self, id: i64, settings: &Settings, verdict: &mut Verdict) {
        let Some((gone_by, witness, what)) = self.gone_by() else { return };
        let revoked = self.revokes.iter().any(|revoke| revoke.call <= gone_by);
        let grants = self.granted.iter().map(|(op, ttl)| (*op, Some(*ttl)));
        for (op, ttl) in grants.chain(self.alive.iter().copied()) {
            let operations: Vec<&Operation> = std::iter::once(op).chain(witness).collect();
            if op.call > gone_by {
                let text = format!("lease {id} was gone ({what}), but after that came {}", brief(op));
                verdict.add(Violation::of(Kind::LeaseRevived, &operations, text));
                continue;
            }
            let until = op.call.saturating_add(ttl.map_or(0, |ttl| promise(settings, ttl)));
            if !revoked && until > gone_by {
                let text =
                    format!("lease {id} was gone ({what}), but was to live until {until}: {}", brief(op));
                verdict.add(Violation::of(Kind::LeaseEarly, &operations, text));
            }
        }
    }

    /// Checks that an ended lease has no keys, and that no key is attached to it later.
    fn keys_after_end(&self, id: i64, sequence: &Sequence<'_>, timeline: &Timeline, verdict: &mut Verdict) {
        // First revision at which the lease has certainly ended, so it must not get keys after this revision.
        let revoked = self.revokes.iter().filter_map(|op| op.done()).map(|(header, _)| header.revision).min();
        let ended = self.ended_at.map(|(revision, _)| revision);
        let from = [revoked, ended].into_iter().flatten().min();
        if let Some(revision) = self.puts.iter().find(|put| from.is_some_and(|from| **put > from)) {
            let op = sequence.claimed(*revision);
            let operations: Vec<&Operation> = op.into_iter().collect();
            let by = op.map(brief).unwrap_or_default();
            let text =
                format!("revision {revision} attaches a key to lease {id}, which had ended before: {by}");
            verdict.add(Violation::of(Kind::LeaseRevived, &operations, text));
        }
        let told = self.gone_by().filter(|(_, witness, _)| witness.is_some());
        let Some((gone_by, witness, what)) = told else { return };
        // `after` is the last revision that may have existed at `gone_by`. Its keys prove something only if
        // they still existed after `gone_by`. So return unless the next revision was certainly made after
        // `gone_by`.
        let after = timeline.perhaps_at(gone_by);
        if timeline.not_before(after + 1).time <= gone_by {
            return;
        }
        let attached: BTreeSet<&[u8]> = self
            .puts
            .iter()
            .filter(|put| **put <= after)
            .flat_map(|put| sequence.store.changes(*put))
            .filter(|change| change.put.as_ref().is_some_and(|kv| kv.lease == id))
            .map(|change| &*change.key)
            .collect();
        for key in attached {
            if sequence.store.at(key, after).is_some_and(|kv| kv.lease == id) {
                let operations: Vec<&Operation> = witness.into_iter().collect();
                let text = format!(
                    "lease {id} was gone ({what}), but its key {} was still there at revision {after}",
                    key.escape_ascii()
                );
                verdict.add(Violation::of(Kind::LeaseKeys, &operations, text));
            }
        }
    }
}
