use std::collections::BTreeMap;

use crate::findings::{brief, show};
use crate::rules::leases::promise;
use crate::sequence::Sequence;
use crate::{History, Holding, Kind, Operation, Outcome, Request, Response, Verdict, Violation};

/// Checks locks. Each contender for a lock has a key with the lock's prefix, attached to a lease of the
/// contender. The contender whose key was created first holds the lock. So two clients must never hold the
/// lock at the same time, as far as leases guarantee this. A client may believe that it holds the lock until
/// it releases the lock, until another client revokes its lease, or until its lease may have expired, counted
/// from the call of the last renewal that was answered in time. When the holder writes, no other contender
/// may have an older key. (etcd: "Concurrency API: Lock"; the client's `concurrency.Mutex`.)
pub(crate) fn check(history: &History, sequence: &Sequence<'_>, verdict: &mut Verdict) {
    fences(history, sequence, verdict);
    holdings(history, verdict);
}

/// Checks that directly before the revision of a fenced write, no contender had an older key than the writer.
fn fences(history: &History, sequence: &Sequence<'_>, verdict: &mut Verdict) {
    for op in &history.operations {
        let (Some(fence), Some((header, _))) = (&op.fence, op.done()) else { continue };
        if !op.changed() {
            continue;
        }
        let end = prefix_end(&fence.prefix);
        let older = sequence.store.list(&fence.prefix, &end, header.revision - 1);
        let older = older.iter().find(|kv| kv.create_revision < fence.create_revision);
        if let Some(older) = older {
            let text = format!(
                "{} wrote as holder of {} (created at {}) while {} (created at {}) held the lock",
                brief(op),
                show(&fence.key),
                fence.create_revision,
                show(&older.key),
                older.create_revision
            );
            verdict.add(Violation::of(Kind::LockOverlap, &[op], text));
        }
    }
}

/// Checks that no two holdings of the same lock overlap.
fn holdings(history: &History, verdict: &mut Verdict) {
    let mut renewals: BTreeMap<i64, Vec<(&Operation, i64)>> = BTreeMap::new();
    let mut revocations: BTreeMap<i64, Vec<&Operation>> = BTreeMap::new();
    for op in &history.operations {
        if let Request::Revoke { id } = op.request {
            revocations.entry(id).or_default().push(op);
        }
        let Outcome::Done(_, response) = &op.outcome else { continue };
        match (&op.request, response) {
            (_, Response::Granted { id, ttl }) => renewals.entry(*id).or_default().push((op, *ttl)),
            (Request::KeepAlive { id }, Response::Renewed { ttl }) if *ttl > 0 => {
                renewals.entry(*id).or_default().push((op, *ttl));
            }
            _ => {}
        }
    }
    renewals.values_mut().for_each(|of| of.sort_by_key(|(op, _)| op.returned));
    let mut locks: BTreeMap<&[u8], Vec<(u64, &Holding)>> = BTreeMap::new();
    for holding in &history.holdings {
        // The client may believe that it holds the lock while each renewal is answered before the time to
        // live that the previous one promised is over. Stop at the first renewal that came too late.
        let mut promised = 0;
        for (op, ttl) in renewals.get(&holding.lease).into_iter().flatten() {
            if op.returned > promised.max(holding.from) {
                break;
            }
            promised = promised.max(op.call.saturating_add(promise(&history.settings, *ttl)));
        }
        let revocations = revocations.get(&holding.lease).into_iter().flatten();
        let by_others = revocations.filter(|op| op.client != holding.client);
        let revoked = by_others.map(|op| op.call).min().unwrap_or(u64::MAX);
        let until = holding.until.min(promised).min(revoked);
        if until > holding.from {
            locks.entry(&holding.fence.prefix).or_default().push((until, holding));
        }
    }
    for (lock, mut holdings) in locks {
        holdings.sort_by_key(|(_, holding)| holding.from);
        let mut longest: Option<(u64, &Holding)> = None;
        for (until, holding) in holdings {
            if let Some((other_until, other)) =
                longest.filter(|(end, other)| *end > holding.from && other.fence != holding.fence)
            {
                let text = format!(
                    "client {} held {} from {} to {other_until}, and client {} from {} to {until}",
                    other.client,
                    show(lock),
                    other.from,
                    holding.client,
                    holding.from
                );
                verdict.add(Violation::of(Kind::LockOverlap, &[], text));
            }
            if longest.is_none_or(|(end, _)| end < until) {
                longest = Some((until, holding));
            }
        }
    }
}

/// Returns the end of the range of all keys with a prefix.
fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}
