//! Models etcd's key-value store, as simply as possible, to compute the correct effect and response of each
//! request. The model is a map that contains every version of every key; compactions remove nothing from it.
//!
//! [`Store::evaluate`] computes the effect and the response of a request, and changes nothing.
//! [`Store::commit`] applies the changes. [`Store::undo`] reverts the last commit, for the judge's search.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::rc::Rc;

use crate::{
    Action, ActionResult, Compare, Delete, DeleteResult, KeyValue, Order, Put, Range, RangeResult, Refusal,
    Request, Response, SortTarget, Target, Txn, TxnResult,
};

#[cfg(test)]
mod expectations;

/// A change of one key: the new state of the key, or its deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub key: Rc<[u8]>,
    pub put: Option<Rc<KeyValue>>,
}

/// Effect of a request, and its response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Effect {
    /// Changes in order of sub-revision; empty if the store does not change.
    pub changes: Vec<Change>,
    pub response: Response,
}

/// A revision and the key's state after it; `None` for a deletion.
type Version = (i64, Option<Rc<KeyValue>>);

/// The key-value store with its whole history.
pub(crate) struct Store {
    /// Current revision; 1 for an empty store.
    pub revision: i64,
    /// All versions of every key, the oldest first.
    versions: BTreeMap<Rc<[u8]>, Vec<Version>>,
    /// Keys that exist now.
    live: BTreeMap<Rc<[u8]>, Rc<KeyValue>>,
    /// Keys attached to each lease now.
    attached: BTreeMap<i64, BTreeSet<Rc<[u8]>>>,
    /// Changes of each revision, from 2 on.
    log: Vec<Vec<Change>>,
}

/// Returns true if a key is in the range of a request.
pub(crate) fn within(key: &[u8], start: &[u8], end: &[u8]) -> bool {
    match end {
        [] => key == start,
        [0] => key >= start,
        _ => key >= start && key < end,
    }
}

/// Returns the entries of a map whose keys are in the range of a request.
fn part<'a, V>(
    map: &'a BTreeMap<Rc<[u8]>, V>,
    start: &'a [u8],
    end: &'a [u8],
) -> Box<dyn Iterator<Item = (&'a Rc<[u8]>, &'a V)> + 'a> {
    match end {
        [] => Box::new(map.get_key_value(start).into_iter()),
        [0] => Box::new(map.range::<[u8], _>((Bound::Included(start), Bound::Unbounded))),
        _ if end <= start => Box::new(std::iter::empty()),
        _ => Box::new(map.range::<[u8], _>((Bound::Included(start), Bound::Excluded(end)))),
    }
}

impl Store {
    pub fn new() -> Store {
        Store {
            revision: 1,
            versions: BTreeMap::new(),
            live: BTreeMap::new(),
            attached: BTreeMap::new(),
            log: Vec::new(),
        }
    }

    /// Returns the changes of a revision; empty for revisions that do not exist.
    pub fn changes(&self, revision: i64) -> &[Change] {
        usize::try_from(revision - 2).ok().and_then(|at| self.log.get(at)).map_or(&[], Vec::as_slice)
    }

    /// Returns the state of a key at a revision; `None` if the key does not exist at this revision.
    pub fn at(&self, key: &[u8], revision: i64) -> Option<&Rc<KeyValue>> {
        newest(self.versions.get(key)?, revision)
    }

    /// Returns the first revision from `from` on that changes a key.
    pub fn next_change(&self, key: &[u8], from: i64) -> Option<i64> {
        let versions = self.versions.get(key)?;
        versions
            .get(versions.partition_point(|(revision, _)| *revision < from))
            .map(|(revision, _)| *revision)
    }

    /// Returns the keys of a range at a revision, in order.
    pub fn list(&self, start: &[u8], end: &[u8], revision: i64) -> Vec<Rc<KeyValue>> {
        if revision >= self.revision {
            return part(&self.live, start, end).map(|(_, kv)| kv.clone()).collect();
        }
        part(&self.versions, start, end)
            .filter_map(|(_, versions)| newest(versions, revision).cloned())
            .collect()
    }

    /// Returns the leases that have keys now.
    pub fn leases_with_keys(&self) -> impl Iterator<Item = i64> {
        self.attached.keys().copied()
    }

    /// Returns true if a lease has keys now.
    pub fn has_keys(&self, lease: i64) -> bool {
        self.attached.contains_key(&lease)
    }

    /// Returns the changes made by the end of a lease: all its keys are deleted, in order, in one revision.
    pub fn lease_end(&self, lease: i64) -> Vec<Change> {
        let keys = self.attached.get(&lease).into_iter().flatten();
        keys.map(|key| Change { key: key.clone(), put: None }).collect()
    }

    /// Commits the next revision, with these changes. The list is empty if no change of the revision is
    /// known.
    pub fn commit(&mut self, changes: Vec<Change>) {
        self.revision += 1;
        for change in &changes {
            self.detach(&change.key);
            match &change.put {
                Some(kv) => {
                    self.live.insert(change.key.clone(), kv.clone());
                    self.attach(&change.key, kv.lease);
                }
                None => {
                    self.live.remove(&change.key);
                }
            }
            self.versions.entry(change.key.clone()).or_default().push((self.revision, change.put.clone()));
        }
        self.log.push(changes);
    }

    /// Reverts the last commit.
    pub fn undo(&mut self) {
        for change in self.log.pop().into_iter().flatten().rev() {
            self.detach(&change.key);
            let Some(versions) = self.versions.get_mut(&change.key) else { continue };
            versions.pop();
            let before = versions.last().and_then(|(_, kv)| kv.clone());
            if versions.is_empty() {
                self.versions.remove(&change.key);
            }
            match before {
                Some(kv) => {
                    self.attach(&change.key, kv.lease);
                    self.live.insert(change.key, kv);
                }
                None => {
                    self.live.remove(&change.key);
                }
            }
        }
        self.revision -= 1;
    }

    fn attach(&mut self, key: &Rc<[u8]>, lease: i64) {
        if lease != 0 {
            self.attached.entry(lease).or_default().insert(key.clone());
        }
    }

    fn detach(&mut self, key: &Rc<[u8]>) {
        let Some(lease) = self.live.get(key).map(|kv| kv.lease).filter(|lease| *lease != 0) else { return };
        if let Some(keys) = self.attached.get_mut(&lease) {
            keys.remove(key);
            if keys.is_empty() {
                self.attached.remove(&lease);
            }
        }
    }

    /// Returns the effect that a request of the service `KV` would have now, or the reason why it would be
    /// refused. Returns `None` for compactions and for requests of other services. Does not check that leases
    /// exist.
    pub fn evaluate(&self, request: &Request) -> Option<Result<Effect, Refusal>> {
        self.attempt(request, true)
    }

    /// Returns the changes that [`Store::evaluate`] would return, without computing the response.
    pub fn changes_of(&self, request: &Request) -> Option<Vec<Change>> {
        self.attempt(request, false)?.ok().map(|effect| effect.changes)
    }

    fn attempt(&self, request: &Request, answers: bool) -> Option<Result<Effect, Refusal>> {
        let main = self.revision + 1;
        let mut trial = Trial { store: self, main, over: BTreeMap::new(), changes: Vec::new(), answers };
        let response = match request {
            Request::Range(range) => trial.range(range).map(Response::Range),
            Request::Put(put) => trial.put(put).map(Response::Put),
            Request::Delete(delete) => Ok(Response::Delete(trial.delete(delete))),
            Request::Txn(txn) => {
                // Check for refusals before the first write is tried: as in etcd, these checks and all
                // comparisons use the state before the transaction.
                trial.refusal(txn).map_or_else(|| trial.txn(txn).map(Response::Txn), Err)
            }
            _ => return None,
        };
        Some(response.map(|response| Effect { changes: trial.changes, response }))
    }

    /// Returns true if all comparisons of a transaction hold now.
    pub fn succeeds(&self, txn: &Txn) -> bool {
        txn.compare.iter().all(|compare| self.holds(compare))
    }

    fn holds(&self, compare: &Compare) -> bool {
        let kvs = self.list(&compare.key, &compare.range_end, self.revision);
        if kvs.is_empty() {
            // A missing key has the value 0 in all numeric fields. A comparison with its value never holds.
            return !matches!(compare.target, Target::Value(_)) && satisfies(&KeyValue::default(), compare);
        }
        kvs.iter().all(|kv| satisfies(kv, compare))
    }
}

fn newest(versions: &[Version], revision: i64) -> Option<&Rc<KeyValue>> {
    let at = versions.partition_point(|(main, _)| *main <= revision).checked_sub(1)?;
    versions[at].1.as_ref()
}

fn satisfies(kv: &KeyValue, compare: &Compare) -> bool {
    let ordering = match &compare.target {
        Target::Version(n) => kv.version.cmp(n),
        Target::Create(n) => kv.create_revision.cmp(n),
        Target::Mod(n) => kv.mod_revision.cmp(n),
        Target::Lease(n) => kv.lease.cmp(n),
        Target::Value(value) => kv.value.cmp(value),
    };
    compare.relation.allows(ordering)
}

/// A request that is being evaluated: the store, with the changes that the request has made so far.
struct Trial<'a> {
    store: &'a Store,
    /// Revision that the changes of the request will have.
    main: i64,
    over: BTreeMap<Rc<[u8]>, Option<Rc<KeyValue>>>,
    changes: Vec<Change>,
    /// True if the results of ranges are needed; false to skip computing them.
    answers: bool,
}

impl Trial<'_> {
    fn list(&self, start: &[u8], end: &[u8]) -> Vec<Rc<KeyValue>> {
        if let ([], Some(put)) = (end, self.over.get(start)) {
            return put.iter().cloned().collect();
        }
        let below = self.store.list(start, end, self.store.revision);
        if self.over.is_empty() || end.is_empty() {
            return below;
        }
        let mut all: BTreeMap<Rc<[u8]>, Rc<KeyValue>> =
            below.into_iter().map(|kv| (Rc::from(kv.key.as_slice()), kv)).collect();
        for (key, put) in part(&self.over, start, end) {
            match put {
                Some(kv) => all.insert(key.clone(), kv.clone()),
                None => all.remove(key),
            };
        }
        all.into_values().collect()
    }

    fn change(&mut self, key: Rc<[u8]>, put: Option<Rc<KeyValue>>) {
        self.over.insert(key.clone(), put.clone());
        self.changes.push(Change { key, put });
    }

    fn put(&mut self, put: &Put) -> Result<Option<KeyValue>, Refusal> {
        let before = self.list(&put.key, &[]).pop();
        if before.is_none() && (put.ignore_value || put.ignore_lease) {
            return Err(Refusal::KeyNotFound);
        }
        let mut kv = KeyValue {
            key: put.key.clone(),
            value: put.value.clone(),
            create_revision: self.main,
            mod_revision: self.main,
            version: 1,
            lease: put.lease,
        };
        if let Some(before) = &before {
            kv.create_revision = before.create_revision;
            kv.version = before.version + 1;
            if put.ignore_value {
                kv.value = before.value.clone();
            }
            if put.ignore_lease {
                kv.lease = before.lease;
            }
        }
        self.change(Rc::from(put.key.as_slice()), Some(Rc::new(kv)));
        Ok(before.filter(|_| put.prev_kv).map(|kv| (*kv).clone()))
    }

    fn delete(&mut self, delete: &Delete) -> DeleteResult {
        let gone = self.list(&delete.key, &delete.range_end);
        for kv in &gone {
            self.change(Rc::from(kv.key.as_slice()), None);
        }
        let deleted = i64::try_from(gone.len()).unwrap_or(i64::MAX);
        let prev_kvs = if delete.prev_kv && self.answers {
            gone.iter().map(|kv| (**kv).clone()).collect()
        } else {
            Vec::new()
        };
        DeleteResult { deleted, prev_kvs }
    }

    fn range(&self, range: &Range) -> Result<RangeResult, Refusal> {
        if range.revision > self.store.revision {
            return Err(Refusal::FutureRevision);
        }
        if !self.answers {
            return Ok(RangeResult::default());
        }
        let kvs = match range.revision {
            ..=0 => self.list(&range.key, &range.range_end),
            revision => self.store.list(&range.key, &range.range_end, revision),
        };
        Ok(select(range, kvs))
    }

    /// Returns the reason why a transaction is refused as a whole; `None` if it is not refused.
    fn refusal(&self, txn: &Txn) -> Option<Refusal> {
        branch(txn, self.store.succeeds(txn)).iter().find_map(|action| match action {
            Action::Range(range) if range.revision > self.store.revision => Some(Refusal::FutureRevision),
            Action::Put(put) if put.ignore_value || put.ignore_lease => {
                (!self.store.live.contains_key(put.key.as_slice())).then_some(Refusal::KeyNotFound)
            }
            Action::Txn(inner) => self.refusal(inner),
            _ => None,
        })
    }

    fn txn(&mut self, txn: &Txn) -> Result<TxnResult, Refusal> {
        let succeeded = self.store.succeeds(txn);
        let mut results = Vec::new();
        for action in branch(txn, succeeded) {
            results.push(match action {
                Action::Range(range) => ActionResult::Range(self.range(range)?),
                Action::Put(put) => ActionResult::Put(self.put(put)?),
                Action::Delete(delete) => ActionResult::Delete(self.delete(delete)),
                Action::Txn(inner) => ActionResult::Txn(self.txn(inner)?),
            });
        }
        Ok(TxnResult { succeeded, results })
    }
}

/// Returns the actions that a transaction executes.
pub(crate) fn branch(txn: &Txn, succeeded: bool) -> &[Action] {
    if succeeded { &txn.success } else { &txn.failure }
}

/// Returns the order of two keys in the response to a range request.
fn ordering(range: &Range, a: &KeyValue, b: &KeyValue) -> Ordering {
    let ascending = match range.target {
        SortTarget::Key => a.key.cmp(&b.key),
        SortTarget::Version => a.version.cmp(&b.version),
        SortTarget::Create => a.create_revision.cmp(&b.create_revision),
        SortTarget::Mod => a.mod_revision.cmp(&b.mod_revision),
        SortTarget::Value => a.value.cmp(&b.value),
    };
    if range.order == Order::Descend { ascending.reverse() } else { ascending }
}

/// Returns the keys that satisfy a range's bounds on revisions.
fn filtered(range: &Range, mut kvs: Vec<Rc<KeyValue>>) -> Vec<Rc<KeyValue>> {
    let above = |bound: i64, n: i64| bound == 0 || n >= bound;
    let below = |bound: i64, n: i64| bound == 0 || n <= bound;
    kvs.retain(|kv| {
        above(range.min_mod_revision, kv.mod_revision)
            && below(range.max_mod_revision, kv.mod_revision)
            && above(range.min_create_revision, kv.create_revision)
            && below(range.max_create_revision, kv.create_revision)
    });
    kvs
}

/// Returns the result of a range read. `kvs` are all keys of the range, in ascending order.
fn select(range: &Range, kvs: Vec<Rc<KeyValue>>) -> RangeResult {
    let count = i64::try_from(kvs.len()).unwrap_or(i64::MAX);
    if range.count_only {
        return RangeResult { kvs: Vec::new(), more: false, count };
    }
    let mut kvs = filtered(range, kvs);
    let limit = usize::try_from(range.limit).unwrap_or(0);
    let bounded = range.min_mod_revision != 0
        || range.max_mod_revision != 0
        || range.min_create_revision != 0
        || range.max_create_revision != 0;
    if limit > 0 && range.order == Order::None && !bounded {
        // Do the same as etcd if no order is requested: first cut the list to one key more than the limit,
        // and then sort only these keys.
        kvs.truncate(limit.saturating_add(1));
    }
    kvs.sort_by(|a, b| ordering(range, a, b));
    let more = limit > 0 && kvs.len() > limit;
    if more {
        kvs.truncate(limit);
    }
    let shown = |kv: &Rc<KeyValue>| {
        let mut kv = (**kv).clone();
        if range.keys_only {
            kv.value = Vec::new();
        }
        kv
    };
    RangeResult { kvs: kvs.iter().map(shown).collect(), more, count }
}

/// Returns true if a range result is equivalent to the expected one. If several keys have equal sort values,
/// etcd defines neither their order nor which of them a limit cuts off. With `keys_only`, etcd may leave out
/// leases (3.7).
pub(crate) fn range_agrees(range: &Range, got: &RangeResult, expected: &RangeResult) -> bool {
    if got.count != expected.count || got.more != expected.more || got.kvs.len() != expected.kvs.len() {
        return false;
    }
    let same = |got: &KeyValue, expected: &KeyValue| {
        if range.keys_only && got.lease == 0 {
            *got == KeyValue { lease: 0, ..expected.clone() }
        } else {
            got == expected
        }
    };
    let pairs = || got.kvs.iter().zip(&expected.kvs);
    if pairs().all(|(g, e)| same(g, e)) {
        return true;
    }
    if range.target == SortTarget::Key || range.target == SortTarget::Value && range.keys_only {
        return false;
    }
    if !pairs().all(|(g, e)| ordering(range, g, e) == Ordering::Equal) {
        return false;
    }
    let known: BTreeMap<&[u8], &KeyValue> = expected.kvs.iter().map(|kv| (kv.key.as_slice(), kv)).collect();
    let distinct: BTreeSet<&[u8]> = got.kvs.iter().map(|kv| kv.key.as_slice()).collect();
    let last = expected.kvs.last();
    distinct.len() == got.kvs.len()
        && got.kvs.iter().all(|g| match known.get(g.key.as_slice()) {
            Some(e) => same(g, e),
            // Allow a key that is missing in the expected result only if its sort value is equal to that of
            // the last expected key: then the limit may have cut off either of them.
            None => expected.more && last.is_some_and(|last| ordering(range, g, last) == Ordering::Equal),
        })
}

/// Returns true if a response is equivalent to the expected one.
pub(crate) fn agrees(request: &Request, got: &Response, expected: &Response) -> bool {
    match (request, got, expected) {
        (Request::Range(range), Response::Range(got), Response::Range(expected)) => {
            range_agrees(range, got, expected)
        }
        (Request::Txn(txn), Response::Txn(got), Response::Txn(expected)) => txn_agrees(txn, got, expected),
        _ => got == expected,
    }
}

fn txn_agrees(txn: &Txn, got: &TxnResult, expected: &TxnResult) -> bool {
    let actions = branch(txn, expected.succeeded);
    let pairs = actions.iter().zip(got.results.iter().zip(&expected.results));
    got.succeeded == expected.succeeded
        && got.results.len() == expected.results.len()
        && pairs.into_iter().all(|(action, pair)| match (action, pair) {
            (Action::Range(range), (ActionResult::Range(got), ActionResult::Range(expected))) => {
                range_agrees(range, got, expected)
            }
            (Action::Txn(inner), (ActionResult::Txn(got), ActionResult::Txn(expected))) => {
                txn_agrees(inner, got, expected)
            }
            (_, (got, expected)) => got == expected,
        })
}
