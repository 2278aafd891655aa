use std::collections::{BTreeMap, HashMap};

use crate::findings::brief;
use crate::sequence::Sequence;
use crate::timeline::{Timeline, Witness};
use crate::{History, Kind, Operation, Outcome, Request, Response, Verdict, Violation};

/// Checks that a lease which is not renewed ends, together with its keys, at most
/// [`crate::Settings::expire_by`] after its time to live. If this setting is 0, nothing is checked.
///
/// The time to live starts with the grant. It starts again with every renewal that may have happened, at the
/// time when its client got the response or gave up; and with every new leader, because a new leader of etcd
/// extends all leases. A leader counts as new when a response first contains its term. The keys certainly
/// existed when a linearizable operation was called whose response has a revision before their deletion. A
/// serializable read proves nothing.
pub(crate) fn check(history: &History, sequence: &Sequence<'_>, timeline: &Timeline, verdict: &mut Verdict) {
    if history.settings.expire_by == 0 {
        return;
    }
    let expiry = Expiry::new(history, timeline);
    let mut lease_of: HashMap<&[u8], i64> = HashMap::new();
    let mut keys: BTreeMap<i64, usize> = BTreeMap::new();
    for revision in 2..=sequence.store.revision {
        for change in sequence.store.changes(revision) {
            let lease = change.put.as_ref().map_or(0, |kv| kv.lease);
            if lease != 0 {
                *keys.entry(lease).or_default() += 1;
            }
            let before = lease_of.insert(&change.key, lease).unwrap_or(0);
            if let Some(left) = keys.get_mut(&before) {
                *left -= 1;
                if *left == 0 {
                    keys.remove(&before);
                    expiry.judge(before, revision, verdict);
                }
            }
        }
    }
    for lease in keys.into_keys() {
        expiry.judge(lease, sequence.store.revision + 1, verdict);
    }
}

/// Times of grants, renewals and elections, from which the latest possible expiry of each lease follows.
struct Expiry<'a> {
    history: &'a History,
    timeline: &'a Timeline,
    /// For each lease, its time to live in seconds, and the times of call and return of each grant or renewal
    /// that may have started this time to live.
    begun: BTreeMap<i64, (i64, Vec<(u64, u64)>)>,
    /// For each raft term, the time of the first response that contained it.
    terms: BTreeMap<u64, u64>,
}

impl<'a> Expiry<'a> {
    fn new(history: &'a History, timeline: &'a Timeline) -> Expiry<'a> {
        let mut expiry = Expiry { history, timeline, begun: BTreeMap::new(), terms: BTreeMap::new() };
        for op in &history.operations {
            let (id, ttl) = match (&op.request, &op.outcome) {
                (_, Outcome::Done(_, Response::Granted { id, ttl })) => (*id, *ttl),
                (Request::KeepAlive { id }, Outcome::Done(_, Response::Renewed { ttl })) => (*id, *ttl),
                (Request::KeepAlive { id } | Request::Grant { id, .. }, Outcome::Unknown(_)) => (*id, 0),
                _ => (0, 0),
            };
            if id != 0 {
                let (longest, times) = expiry.begun.entry(id).or_default();
                *longest = ttl.max(*longest);
                times.push((op.call, op.returned));
            }
            if let Some((header, _)) = op.done().filter(|(header, _)| header.term > 0) {
                let first = expiry.terms.entry(header.term).or_insert(op.returned);
                *first = op.returned.min(*first);
            }
        }
        expiry
    }

    /// Checks a lease that still had keys directly before `revision`.
    fn judge(&self, lease: i64, revision: i64, verdict: &mut Verdict) {
        let Some(Witness::Operation(at)) = self.timeline.not_before(revision).witness else { return };
        let op: &Operation = &self.history.operations[at];
        let term = op.done().map_or(0, |(header, _)| header.term);
        // Do not judge the lease if no response contained its time to live.
        let Some((ttl @ 1.., times)) = self.begun.get(&lease) else { return };
        let before = times.iter().filter(|(call, _)| *call <= op.returned);
        let renewed = before.map(|(_, returned)| *returned).max().unwrap_or(0);
        let led = if term == 0 { None } else { self.terms.range(term..).map(|(_, first)| *first).min() };
        let begun = renewed.max(led.unwrap_or(0));
        let ttl_ns = ttl.unsigned_abs().saturating_mul(1_000_000_000);
        let until = begun.saturating_add(ttl_ns).saturating_add(self.history.settings.expire_by);
        if op.call > until {
            let text = format!(
                "lease {lease} of {ttl} s had its time for the last time at {begun} and was to be gone by {until}, but \
                 still had keys just before revision {revision}, later than {}",
                brief(op)
            );
            verdict.add(Violation::of(Kind::LeaseLate, &[op], text));
        }
    }
}
