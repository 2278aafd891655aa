//! etcd's key-value store in the plainest words: every version of every key in a map, nothing ever removed.
//!
//! A request is first evaluated, which changes nothing ([`Store::evaluate`]), and its changes are committed after
//! that ([`Store::commit`]). What was committed last can be taken back ([`Store::undo`]), for the judge's search.

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

/// What happened to one key: it was put so, or deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub key: Rc<[u8]>,
    pub put: Option<Rc<KeyValue>>,
}

/// What a request would do and be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Effect {
    /// In the order of their sub-revisions; none if the store stays as it is.
    pub changes: Vec<Change>,
    pub response: Response,
}

/// A revision and what it made of a key; `None` for a deletion.
type Version = (i64, Option<Rc<KeyValue>>);

/// The store.
pub(crate) struct Store {
    /// The last revision; 1 for an empty store.
    pub revision: i64,
    /// Every version of every key from old to new.
    versions: BTreeMap<Rc<[u8]>, Vec<Version>>,
    /// What is there now.
    live: BTreeMap<Rc<[u8]>, Rc<KeyValue>>,
    /// The keys attached to each lease now.
    attached: BTreeMap<i64, BTreeSet<Rc<[u8]>>>,
    /// The changes of each revision from 2 on.
    log: Vec<Vec<Change>>,
}

/// Whether a key is in a range as requests name it.
pub(crate) fn within(key: &[u8], start: &[u8], end: &[u8]) -> bool {
    match end {
        [] => key == start,
        [0] => key >= start,
        _ => key >= start && key < end,
    }
}

/// The part of a map that is in a range as requests name it.
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

    /// The changes of a revision; none for revisions that are not there.
    pub fn changes(&self, revision: i64) -> &[Change] {
        usize::try_from(revision - 2).ok().and_then(|at| self.log.get(at)).map_or(&[], Vec::as_slice)
    }

    /// A key as it was at a revision.
    pub fn at(&self, key: &[u8], revision: i64) -> Option<&Rc<KeyValue>> {
        newest(self.versions.get(key)?, revision)
    }

    /// The first revision from `from` on that changes a key.
    pub fn next_change(&self, key: &[u8], from: i64) -> Option<i64> {
        let versions = self.versions.get(key)?;
        versions
            .get(versions.partition_point(|(revision, _)| *revision < from))
            .map(|(revision, _)| *revision)
    }

    /// The keys of a range at a revision, in order.
    pub fn list(&self, start: &[u8], end: &[u8], revision: i64) -> Vec<Rc<KeyValue>> {
        if revision >= self.revision {
            return part(&self.live, start, end).map(|(_, kv)| kv.clone()).collect();
        }
        part(&self.versions, start, end)
            .filter_map(|(_, versions)| newest(versions, revision).cloned())
            .collect()
    }

    /// The leases that have keys now.
    pub fn leases_with_keys(&self) -> impl Iterator<Item = i64> {
        self.attached.keys().copied()
    }

    /// Whether a lease has keys now.
    pub fn has_keys(&self, lease: i64) -> bool {
        self.attached.contains_key(&lease)
    }

    /// What the end of a lease does: its keys go, in order, in one revision.
    pub fn lease_end(&self, lease: i64) -> Vec<Change> {
        let keys = self.attached.get(&lease).into_iter().flatten();
        keys.map(|key| Change { key: key.clone(), put: None }).collect()
    }

    /// Commits the changes of the next revision; there may be none, for a revision of which nothing is known.
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

    /// Takes back the last commit.
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

    /// What a request of `KV` would do now. Leases and compaction are not asked for; requests of other services do
    /// nothing and are not answered.
    pub fn evaluate(&self, request: &Request) -> Option<Result<Effect, Refusal>> {
        self.attempt(request, true)
    }

    /// As [`Store::evaluate`], but only what it changes.
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
                // All comparisons, and all reasons to refuse, are of the state before the transaction.
                trial.refusal(txn).map_or_else(|| trial.txn(txn).map(Response::Txn), Err)
            }
            _ => return None,
        };
        Some(response.map(|response| Effect { changes: trial.changes, response }))
    }

    /// Whether all comparisons of a transaction hold now.
    pub fn succeeds(&self, txn: &Txn) -> bool {
        txn.compare.iter().all(|compare| self.holds(compare))
    }

    fn holds(&self, compare: &Compare) -> bool {
        let kvs = self.list(&compare.key, &compare.range_end, self.revision);
        if kvs.is_empty() {
            // A missing key has zeros, but no value to compare with.
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

/// A request amid its evaluation: the store with the changes made so far on top.
struct Trial<'a> {
    store: &'a Store,
    /// The revision that the changes will have.
    main: i64,
    over: BTreeMap<Rc<[u8]>, Option<Rc<KeyValue>>>,
    changes: Vec<Change>,
    /// Whether anybody looks at what ranges give.
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

    /// Why a transaction is refused as a whole.
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

/// The actions that a transaction takes.
pub(crate) fn branch(txn: &Txn, succeeded: bool) -> &[Action] {
    if succeeded { &txn.success } else { &txn.failure }
}

/// How a range's order compares two keys.
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

/// What passes a range's bounds on revisions.
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

/// The answer to a range of which these are all keys, in order.
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
        // Without an order etcd cuts first, one key beyond the limit, and sorts what is left.
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

/// Whether an answer to a range is as good as the one expected: etcd does not say in which order keys come that its
/// sort finds equal, nor which of these a limit cuts off; and with `keys_only` it may leave the lease out (3.7).
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
            // Cut off in our order, but not in theirs: only among equals of the last.
            None => expected.more && last.is_some_and(|last| ordering(range, g, last) == Ordering::Equal),
        })
}

/// Whether an answer is as good as the one expected.
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
