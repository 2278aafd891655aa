//! Checks that a request is valid before it is proposed, and estimates how much it costs.
//!
//! The checks are made in etcd's order, so that a request with two faults gets the same error as from etcd:
//! the error of the first check that fails.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included};

use api::Status;
use api::error;
use api::etcdserverpb::range_request::{SortOrder, SortTarget};
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest};
use mvcc::{KeyRange, Snapshot};
use numbers::Revision;

/// Maximum depth of nested transactions. Deeper transactions are refused to protect the stack (COMPAT-1).
/// etcd limits the depth only through max-txn-ops and the message size.
const TXN_DEPTH_MAX: usize = 64;

/// Maximum number of elements of a transaction, in all lists and branches together, as a multiple of
/// max-txn-ops.
const TXN_LISTS_MAX: usize = 64;

/// Returns the maximum number of comparisons and operations of a transaction, in all branches and nested
/// transactions together (COMPAT-420). etcd limits only the sum of the list lengths along each path into
/// nested transactions: its default of 128 allows 42 * 42 * 42 = 74,088 puts in three levels. Mainstay with
/// the same default allows 8,192 elements.
pub fn txn_elements_max(ops_max: usize) -> usize {
    ops_max.saturating_mul(TXN_LISTS_MAX)
}

/// Checks a range request.
pub fn range(request: &RangeRequest) -> Result<(), Status> {
    if request.key.is_empty() {
        return Err(error::EMPTY_KEY);
    }
    if SortOrder::try_from(request.sort_order).is_err() || SortTarget::try_from(request.sort_target).is_err()
    {
        return Err(error::INVALID_SORT_OPTION);
    }
    Ok(())
}

/// Checks a put.
pub fn put(request: &PutRequest) -> Result<(), Status> {
    if request.key.is_empty() {
        return Err(error::EMPTY_KEY);
    }
    if request.ignore_value && !request.value.is_empty() {
        return Err(error::VALUE_PROVIDED);
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(error::LEASE_PROVIDED);
    }
    Ok(())
}

/// Checks a delete range request.
pub fn delete_range(request: &DeleteRangeRequest) -> Result<(), Status> {
    if request.key.is_empty() { Err(error::EMPTY_KEY) } else { Ok(()) }
}

/// Checks a transaction: its size, its operations, and that no key is written twice on one path through the
/// branches.
pub fn txn(request: &TxnRequest, ops_max: usize) -> Result<(), Status> {
    txn_ops(request, ops_max, TXN_DEPTH_MAX)?;
    let mut steps = 0;
    Written::collect(&request.success, &mut steps)?;
    Written::collect(&request.failure, &mut steps)?;
    Ok(())
}

fn txn_ops(request: &TxnRequest, ops_max: usize, depth: usize) -> Result<(), Status> {
    let ops = request.compare.len().max(request.success.len()).max(request.failure.len());
    if ops > ops_max || depth == 0 {
        return Err(error::TOO_MANY_OPS);
    }
    if request.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(error::EMPTY_KEY);
    }
    for op in request.success.iter().chain(&request.failure) {
        match &op.request {
            Some(Request::RequestRange(r)) => range(r)?,
            Some(Request::RequestPut(r)) => put(r)?,
            Some(Request::RequestDeleteRange(r)) => delete_range(r)?,
            Some(Request::RequestTxn(r)) => txn_ops(r, ops_max - ops, depth - 1)?,
            None => return Err(error::KEY_NOT_FOUND),
        }
    }
    Ok(())
}

/// A union of key ranges.
#[derive(Default)]
struct Ranges<'a> {
    keys: BTreeSet<&'a [u8]>,
    /// Ends of the spans, keyed by their starts. Spans neither overlap nor touch.
    spans: BTreeMap<&'a [u8], &'a [u8]>,
}

impl<'a> Ranges<'a> {
    fn len(&self) -> usize {
        self.keys.len() + self.spans.len()
    }

    /// Adds a range. The end is compared as bytes: in this check, etcd does not treat "\0" as "no upper
    /// bound".
    fn add(&mut self, mut start: &'a [u8], mut end: &'a [u8]) {
        if end.is_empty() {
            self.keys.insert(start);
        }
        if end <= start {
            return;
        }
        if let Some((&before, &through)) = self.spans.range(..=start).next_back()
            && through >= start
        {
            (start, end) = (before, end.max(through));
        }
        while let Some((&next, &through)) = self.spans.range(start..).next()
            && next <= end
        {
            self.spans.remove(next);
            end = end.max(through);
        }
        self.spans.insert(start, end);
    }

    fn has(&self, key: &[u8]) -> bool {
        self.keys.contains(key) || self.spans.range(..=key).next_back().is_some_and(|(_, end)| key < *end)
    }
}

/// Keys that one branch puts and ranges that it deletes, including the puts and deletes of nested
/// transactions.
#[derive(Default)]
struct Written<'a> {
    puts: BTreeSet<&'a [u8]>,
    deletes: Ranges<'a>,
}

impl<'a> Written<'a> {
    /// Collects the writes of a branch, in the order of etcd's rule: the deletes of this level come first,
    /// then the nested transactions in order, then the puts of this level. Only one branch of a nested
    /// transaction runs, so both branches may put the same key.
    ///
    /// When two sets are compared or merged, the elements of the smaller one are visited, so that n
    /// operations take O(n log² n) steps, however they are nested. `steps` counts the steps.
    fn collect(ops: &'a [RequestOp], steps: &mut u64) -> Result<Written<'a>, Status> {
        let mut written = Written::default();
        for op in ops {
            *steps += 1;
            if let Some(Request::RequestDeleteRange(delete)) = &op.request {
                written.deletes.add(&delete.key, &delete.range_end);
            }
        }
        for op in ops {
            let Some(Request::RequestTxn(nested)) = &op.request else { continue };
            let then = Written::collect(&nested.success, steps)?;
            let otherwise = Written::collect(&nested.failure, steps)?;
            if written.conflicts(&then, steps) || written.conflicts(&otherwise, steps) {
                return Err(error::DUPLICATE_KEY);
            }
            written.take_in(then, steps);
            written.take_in(otherwise, steps);
        }
        for op in ops {
            if let Some(Request::RequestPut(put)) = &op.request
                && (written.deletes.has(&put.key) || !written.puts.insert(&put.key))
            {
                return Err(error::DUPLICATE_KEY);
            }
        }
        Ok(written)
    }

    /// Returns true if a key that the nested branch puts is already put or deleted in this branch.
    fn conflicts(&self, nested: &Written<'a>, steps: &mut u64) -> bool {
        let (few, many) = smaller_first(&self.puts, &nested.puts, BTreeSet::len);
        *steps += few.len() as u64;
        if few.iter().any(|key| many.contains(key)) {
            return true;
        }
        if nested.puts.len() <= self.deletes.len() {
            *steps += nested.puts.len() as u64;
            return nested.puts.iter().any(|key| self.deletes.has(key));
        }
        *steps += self.deletes.len() as u64;
        let within = |(start, end): (&&[u8], &&[u8])| {
            nested.puts.range::<[u8], _>((Included(*start), Excluded(*end))).next().is_some()
        };
        self.deletes.keys.iter().any(|key| nested.puts.contains(key)) || self.deletes.spans.iter().any(within)
    }

    fn take_in(&mut self, mut nested: Written<'a>, steps: &mut u64) {
        if nested.puts.len() > self.puts.len() {
            std::mem::swap(&mut nested.puts, &mut self.puts);
        }
        if nested.deletes.len() > self.deletes.len() {
            std::mem::swap(&mut nested.deletes, &mut self.deletes);
        }
        *steps += (nested.puts.len() + nested.deletes.len()) as u64;
        self.puts.extend(nested.puts);
        self.deletes.keys.extend(nested.deletes.keys);
        for (start, end) in nested.deletes.spans {
            self.deletes.add(start, end);
        }
    }
}

fn smaller_first<T>(one: T, other: T, len: impl Fn(T) -> usize) -> (T, T)
where
    T: Copy,
{
    if len(one) <= len(other) { (one, other) } else { (other, one) }
}

/// Returns the number of keys that the comparisons of a transaction and its nested ones may visit. Counting
/// stops once the number exceeds `max`. Callers have to limit this number, because even a small request may
/// compare a range with many keys, all of which are visited.
pub fn compared_keys(request: &TxnRequest, snapshot: &Snapshot<'_>, max: u64) -> u64 {
    let mut keys = 0;
    for compare in &request.compare {
        if !compare.range_end.is_empty() && keys <= max {
            let range = KeyRange::of_request(&compare.key, &compare.range_end);
            keys += snapshot.count(range, Revision::CURRENT).unwrap_or(0);
        }
    }
    for op in request.success.iter().chain(&request.failure) {
        if let Some(Request::RequestTxn(nested)) = &op.request
            && keys <= max
        {
            keys += compared_keys(nested, snapshot, max - keys);
        }
    }
    keys
}

/// Returns true if a transaction needs no log entry: every operation at the top level of both branches is a
/// range.
pub fn txn_is_read_only(request: &TxnRequest) -> bool {
    request
        .success
        .iter()
        .chain(&request.failure)
        .all(|op| matches!(op.request, Some(Request::RequestRange(_))))
}

/// Returns true if a read-only transaction may be answered from local state, without asking the cluster: all
/// its ranges are serializable.
pub fn txn_is_serializable(request: &TxnRequest) -> bool {
    request
        .success
        .iter()
        .chain(&request.failure)
        .all(|op| matches!(&op.request, Some(Request::RequestRange(range)) if range.serializable))
}

/// Maximum number of keys of a cheap range, and of changes that a cheap watch reads. Kubernetes lists 500
/// keys at a time, so its lists are cheap.
const FEW_KEYS: i64 = 1000;

/// Returns true if a lease has so many keys, a role so many permissions, or a user so many roles, that a call
/// which processes all of them is expensive.
pub fn is_many(count: usize) -> bool {
    count > FEW_KEYS as usize
}

/// Returns true if a range may visit many keys; `current` is the current revision. A range with a limit is
/// also expensive in two cases: if all keys must be visited before any is selected, and at an older revision,
/// where the keys after the limit are counted one by one.
pub fn range_is_expensive(request: &RangeRequest, current: Revision) -> bool {
    let is_old = request.revision > 0 && request.revision != current.0;
    let is_limited = (1..=FEW_KEYS).contains(&request.limit) && crate::range::is_natural(request);
    !request.range_end.is_empty() && (is_old || !(is_limited || request.count_only))
}

/// Returns the number of expensive ranges, comparisons of ranges, and deletions of ranges in all branches of
/// a transaction. Of the keys that its cheap ranges together may visit, the first 1,000 are free, and each
/// further 1,000, even if incomplete, count as one expensive range.
pub fn txn_expense(request: &TxnRequest, current: Revision) -> u64 {
    let (mut calls, mut keys) = (0, 0);
    let mut open = vec![request];
    while let Some(txn) = open.pop() {
        calls += txn.compare.iter().filter(|compare| !compare.range_end.is_empty()).count() as u64;
        for op in txn.success.iter().chain(&txn.failure) {
            match &op.request {
                Some(Request::RequestRange(range)) if range_is_expensive(range, current) => calls += 1,
                Some(Request::RequestRange(range)) if !range.range_end.is_empty() => {
                    // A cheap range has a limit from 1 to `FEW_KEYS`, which bounds the keys that it visits,
                    // or it has `count_only`. With `count_only` it visits no keys and may have any limit, so
                    // the limit is clamped: such a range then counts at most as much as another cheap one.
                    keys += u64::try_from(range.limit.clamp(1, FEW_KEYS)).unwrap_or(1);
                }
                Some(Request::RequestDeleteRange(delete)) if !delete.range_end.is_empty() => calls += 1,
                Some(Request::RequestTxn(nested)) => open.push(nested),
                _ => {}
            }
        }
    }
    calls + keys.saturating_sub(1) / FEW_KEYS.unsigned_abs()
}

/// Returns true if a watch that starts at revision `start` must first read many old changes; `current` is the
/// current revision.
pub fn watch_is_expensive(start: Revision, current: Revision) -> bool {
    start.0 > 0 && current.0.saturating_sub(start.0) >= FEW_KEYS
}

/// Returns the number of bytes that a put counts against the quota.
pub fn put_cost(request: &PutRequest) -> u64 {
    256 + request.key.len() as u64 + request.value.len() as u64
}

/// Returns the number of bytes that a transaction counts against the quota: those of its more expensive
/// branch.
pub fn txn_cost(request: &TxnRequest) -> u64 {
    let branch = |ops: &[RequestOp]| -> u64 {
        ops.iter()
            .map(|op| match &op.request {
                Some(Request::RequestPut(put)) => put_cost(put),
                Some(Request::RequestTxn(nested)) => txn_cost(nested),
                _ => 0,
            })
            .sum()
    };
    branch(&request.success).max(branch(&request.failure))
}

/// Number of bytes that a lease counts against the quota: its memory, including its deadline on the leader.
pub const LEASE_COST: u64 = 128;
/// Number of bytes that attaching a key to a lease counts against the quota, in addition to the length of the
/// key.
pub const ATTACHED_COST: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use api::etcdserverpb::Compare;
    use bytes::Bytes;
    use testkit::Random;

    fn range_of(limit: i64) -> RangeRequest {
        RangeRequest { key: "a".into(), range_end: "b".into(), limit, ..RangeRequest::default() }
    }

    #[test]
    fn a_range_is_expensive_if_it_may_look_at_many_keys_whatever_its_limit() {
        let now = Revision(9);
        let is_expensive = |request| range_is_expensive(&request, now);
        for cheap in [
            range_of(1),
            range_of(1000),
            RangeRequest { revision: 9, ..range_of(500) },
            RangeRequest { count_only: true, ..range_of(0) },
            RangeRequest { count_only: true, sort_target: SortTarget::Mod as i32, ..range_of(0) },
            RangeRequest { range_end: Bytes::new(), revision: 3, ..range_of(0) },
        ] {
            assert!(!is_expensive(cheap.clone()), "{cheap:?}");
        }
        for expensive in [
            range_of(0),
            range_of(1001),
            RangeRequest { sort_order: SortOrder::Descend as i32, ..range_of(1) },
            RangeRequest { sort_target: SortTarget::Mod as i32, ..range_of(1) },
            RangeRequest { min_mod_revision: 5, ..range_of(1) },
            RangeRequest { max_create_revision: 5, ..range_of(1) },
            RangeRequest { revision: 8, ..range_of(1) },
            RangeRequest { revision: 8, count_only: true, ..range_of(0) },
        ] {
            assert!(is_expensive(expensive.clone()), "{expensive:?}");
        }
    }

    #[test]
    fn a_transaction_counts_all_that_is_expensive_in_it() {
        let range = |limit| RequestOp { request: Some(Request::RequestRange(range_of(limit))) };
        let of = |compare, success, failure| TxnRequest { compare, success, failure };
        let compare = |end: &'static str| Compare { range_end: end.into(), ..Compare::default() };
        let expense = |txn: TxnRequest| txn_expense(&txn, Revision(9));
        assert_eq!(expense(of(vec![compare("")], vec![put_op("a"), range(1000)], vec![])), 0);
        assert_eq!(expense(of(vec![compare("b")], vec![], vec![])), 1);
        assert_eq!(expense(of(vec![], vec![range(0); 3], vec![range(0), delete_op("a", "b")])), 5);
        assert_eq!(expense(of(vec![], vec![txn_op(vec![range(0)], vec![range(0)])], vec![])), 2);
        assert_eq!(expense(of(vec![], vec![range(1000); 128], vec![])), 127);
        assert_eq!(expense(of(vec![], vec![range(1); 128], vec![])), 0);
    }

    #[test]
    fn a_watch_of_many_old_changes_is_expensive() {
        let is_expensive = |start| watch_is_expensive(Revision(start), Revision(5000));
        assert!(is_expensive(1) && is_expensive(4000));
        assert!(!is_expensive(0) && !is_expensive(4001) && !is_expensive(6000));
    }

    fn put_op(key: &'static str) -> RequestOp {
        let put = PutRequest { key: key.into(), ..PutRequest::default() };
        RequestOp { request: Some(Request::RequestPut(put)) }
    }

    fn delete_op(key: &'static str, end: &'static str) -> RequestOp {
        let delete = DeleteRangeRequest { key: key.into(), range_end: end.into(), ..Default::default() };
        RequestOp { request: Some(Request::RequestDeleteRange(delete)) }
    }

    fn txn_op(success: Vec<RequestOp>, failure: Vec<RequestOp>) -> RequestOp {
        RequestOp { request: Some(Request::RequestTxn(TxnRequest { compare: vec![], success, failure })) }
    }

    fn check(success: Vec<RequestOp>) -> Result<(), Status> {
        txn(&TxnRequest { compare: vec![], success, failure: vec![] }, 128)
    }

    #[test]
    fn a_key_may_be_written_once_along_a_path() {
        assert_eq!(check(vec![put_op("a"), put_op("b")]), Ok(()));
        assert_eq!(check(vec![put_op("a"), put_op("a")]), Err(error::DUPLICATE_KEY));
        assert_eq!(check(vec![delete_op("a", "c"), put_op("b")]), Err(error::DUPLICATE_KEY));
        assert_eq!(check(vec![delete_op("a", "c"), put_op("c")]), Ok(()));
        assert_eq!(check(vec![delete_op("a", ""), delete_op("a", "")]), Ok(()));
        assert_eq!(check(vec![txn_op(vec![put_op("a")], vec![put_op("a")])]), Ok(()));
        assert_eq!(
            check(vec![txn_op(vec![put_op("a")], vec![]), txn_op(vec![], vec![put_op("a")])]),
            Err(error::DUPLICATE_KEY)
        );
        assert_eq!(
            check(vec![txn_op(vec![delete_op("a", "")], vec![]), put_op("a")]),
            Err(error::DUPLICATE_KEY)
        );
        // The rule also applies within one branch of a nested transaction.
        assert_eq!(check(vec![txn_op(vec![put_op("a"), put_op("a")], vec![])]), Err(error::DUPLICATE_KEY));
    }

    /// etcd's algorithm, which visits every key and every delete.
    struct Naive {
        puts: BTreeSet<Vec<u8>>,
        deletes: Vec<(Vec<u8>, Vec<u8>)>,
    }

    impl Naive {
        fn collect(ops: &[RequestOp]) -> Option<Naive> {
            let mut naive = Naive { puts: BTreeSet::new(), deletes: Vec::new() };
            for op in ops {
                if let Some(Request::RequestDeleteRange(delete)) = &op.request {
                    naive.deletes.push((delete.key.to_vec(), delete.range_end.to_vec()));
                }
            }
            for op in ops {
                let Some(Request::RequestTxn(nested)) = &op.request else { continue };
                let then = Naive::collect(&nested.success)?;
                let otherwise = Naive::collect(&nested.failure)?;
                for key in &then.puts {
                    if naive.puts.contains(key) || naive.deleted(key) {
                        return None;
                    }
                    naive.puts.insert(key.clone());
                }
                for key in otherwise.puts {
                    if naive.puts.contains(&key) && !then.puts.contains(&key) || naive.deleted(&key) {
                        return None;
                    }
                    naive.puts.insert(key);
                }
                naive.deletes.extend(then.deletes);
                naive.deletes.extend(otherwise.deletes);
            }
            for op in ops {
                if let Some(Request::RequestPut(put)) = &op.request
                    && (naive.deleted(&put.key) || !naive.puts.insert(put.key.to_vec()))
                {
                    return None;
                }
            }
            Some(naive)
        }

        fn deleted(&self, key: &[u8]) -> bool {
            self.deletes.iter().any(|(start, end)| match end.is_empty() {
                true => start == key,
                false => start.as_slice() <= key && key < end.as_slice(),
            })
        }
    }

    fn random_ops(random: &mut Random, depth: usize) -> Vec<RequestOp> {
        let key = |random: &mut Random| -> Bytes { format!("{:02}", random.below(60)).into() };
        (0..random.below(4))
            .map(|_| {
                let request = match random.below(6) {
                    0..=2 => Request::RequestPut(PutRequest { key: key(random), ..Default::default() }),
                    3 => Request::RequestDeleteRange(DeleteRangeRequest {
                        key: key(random),
                        range_end: match random.below(4) {
                            0 => Bytes::new(),
                            1 => Bytes::from_static(b"\0"),
                            _ => key(random),
                        },
                        ..Default::default()
                    }),
                    _ if depth == 0 => {
                        Request::RequestRange(RangeRequest { key: key(random), ..Default::default() })
                    }
                    _ => Request::RequestTxn(TxnRequest {
                        compare: vec![],
                        success: random_ops(random, depth - 1),
                        failure: random_ops(random, depth - 1),
                    }),
                };
                RequestOp { request: Some(request) }
            })
            .collect()
    }

    #[test]
    fn overlaps_are_found_where_etcd_finds_them() {
        let (mut random, mut refused) = (Random::new(1), 0);
        for _ in 0..20_000 {
            let ops = random_ops(&mut random, 3);
            let expected = Naive::collect(&ops).is_some();
            assert_eq!(Written::collect(&ops, &mut 0).is_ok(), expected, "{ops:?}");
            refused += u32::from(!expected);
        }
        assert!((3_000..17_000).contains(&refused), "{refused}");
    }

    #[test]
    fn looking_for_overlaps_takes_few_steps_however_a_transaction_is_nested() {
        let key = |n: u64| -> Bytes { n.to_be_bytes().to_vec().into() };
        let put = |n| RequestOp {
            request: Some(Request::RequestPut(PutRequest { key: key(n), ..Default::default() })),
        };
        let delete = |from, to| RequestOp {
            request: Some(Request::RequestDeleteRange(DeleteRangeRequest {
                key: key(from),
                range_end: key(to),
                ..Default::default()
            })),
        };
        let puts = |from: u64, n: u64| (0..n).map(|at| put(from + 3 * at)).collect::<Vec<_>>();
        let deletes = |from: u64, n: u64| (0..n).map(move |at| delete(from + 3 * at, from + 3 * at + 1));
        const N: u64 = 20_000;
        // Transactions with as many deletes as puts: side by side; in a nested transaction, in either order;
        // and all in the innermost of many levels, each of which also deletes something.
        let beside = puts(0, N).into_iter().chain(deletes(1, N)).collect::<Vec<_>>();
        let below = vec![txn_op(puts(0, N), puts(0, N)), txn_op(deletes(1, N).collect(), vec![])];
        let above: Vec<RequestOp> = deletes(1, N).chain([txn_op(puts(0, N), vec![])]).collect();
        let mut deep = puts(0, N);
        for level in 0..60 {
            deep = deletes(1 + 3 * level * N, N / 60).chain([txn_op(deep, vec![])]).collect();
        }
        let mut chain = Vec::new();
        for level in 0..60 {
            chain = vec![
                txn_op(chain, puts(3 * level * N, N / 60)),
                txn_op(deletes(1, N / 60).collect(), vec![]),
            ];
        }
        for ops in [beside, below, above, deep, chain] {
            let mut steps = 0;
            assert!(Written::collect(&ops, &mut steps).is_ok());
            assert!(steps < 10 * N, "{steps} steps");
        }
    }

    #[test]
    fn the_budget_of_operations_shrinks_with_depth() {
        let three = || vec![put_op("a"), put_op("b"), put_op("c")];
        let request = |success| TxnRequest { compare: vec![], success, failure: vec![] };
        assert_eq!(txn(&request(three()), 3), Ok(()));
        assert_eq!(txn(&request(three()), 2), Err(error::TOO_MANY_OPS));
        assert_eq!(txn(&request(vec![txn_op(three(), vec![])]), 4), Ok(()));
        assert_eq!(txn(&request(vec![txn_op(three(), vec![])]), 3), Err(error::TOO_MANY_OPS));
        assert_eq!(txn(&request(vec![RequestOp { request: None }]), 3), Err(error::KEY_NOT_FOUND));
        let mut deep = vec![put_op("a")];
        for _ in 0..80 {
            deep = vec![txn_op(deep, vec![])];
        }
        assert_eq!(txn(&request(deep), 1000), Err(error::TOO_MANY_OPS));
    }

    #[test]
    fn costs_are_etcds() {
        let request = TxnRequest {
            compare: vec![],
            success: vec![put_op("abc"), txn_op(vec![put_op("d")], vec![])],
            failure: vec![put_op("e")],
        };
        assert_eq!(txn_cost(&request), 256 + 3 + 256 + 1);
    }
}
