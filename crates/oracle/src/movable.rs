//! Determines the keys whose history depends on the revisions at which writes with unknown outcomes are
//! placed.
//!
//! A contradiction about any other key exists for every placement of these writes. So the contradiction is
//! certainly a violation, and a search for a better placement would be useless.

use std::collections::BTreeSet;
use std::ops::Bound;

use crate::candidates::Candidates;
use crate::effects::{Step, steps};
use crate::store::within;
use crate::{Action, Compare, History, Operation, Outcome, Put, Request, Txn};

/// Keys whose history is uncertain: the recorded operations do not determine which values they had, because
/// of writes with unknown outcomes, leases that may have ended, or writes that were not recorded.
pub(crate) struct Movable<'a> {
    keys: BTreeSet<&'a [u8]>,
    /// Ranges of keys that a deletion with an unknown outcome may have removed, as (start, end).
    ranges: BTreeSet<(&'a [u8], &'a [u8])>,
    prefixes: &'a [Vec<u8>],
}

impl<'a> Movable<'a> {
    pub fn new(history: &'a History, candidates: &Candidates<'_>) -> Movable<'a> {
        let (keys, ranges) = (BTreeSet::new(), BTreeSet::new());
        let mut movable = Movable { keys, ranges, prefixes: &history.settings.unrecorded };
        for (at, op) in history.operations.iter().enumerate() {
            if op.is_unknown() && !candidates.is_placed(at) {
                movable.take_writes(&op.request);
            }
            for step in steps(&op.request) {
                if let Step::Put(put) = step
                    && put.lease != 0
                {
                    // The history of the key is uncertain, because the lease of this put may end at any time,
                    // which deletes the key.
                    movable.keys.insert(&put.key);
                }
            }
        }
        movable.follow(history);
        movable
    }

    /// Adds the keys written by each transaction whose writes may depend on a key with an uncertain history
    /// ([`Movable::decides_writes`]). The history of these keys is then uncertain, too, so this is repeated
    /// until no key is added.
    fn follow(&mut self, history: &'a History) {
        const ROUNDS_MAX: usize = 20;
        let is_made = |op: &&Operation| !matches!(op.outcome, Outcome::Refused(_));
        for _ in 0..ROUNDS_MAX {
            let before = (self.keys.len(), self.ranges.len());
            for op in history.operations.iter().filter(is_made) {
                if let Request::Txn(txn) = &op.request
                    && self.decides_writes(txn)
                {
                    self.take_writes(&op.request);
                }
            }
            if before == (self.keys.len(), self.ranges.len()) {
                return;
            }
        }
        // The transactions depend on each other in a chain that is longer than `ROUNDS_MAX`. Treat the
        // history of every key as uncertain instead of following the chain.
        self.ranges.insert((&[], &[0]));
    }

    /// Returns true if a key with an uncertain history ([`Movable`]) may decide which keys a transaction
    /// writes: if the transaction compares such a key, or has a put that requires such a key to exist.
    fn decides_writes(&self, txn: &Txn) -> bool {
        let (mut compares, mut keepers) = (Vec::new(), Vec::new());
        conditions(txn, &mut compares, &mut keepers);
        compares.iter().any(|compare| self.touches(&compare.key, &compare.range_end))
            || keepers.iter().any(|put| self.has(&put.key))
    }

    fn take_writes(&mut self, request: &'a Request) {
        for step in steps(request) {
            match step {
                Step::Range(_) => {}
                Step::Put(put) => drop(self.keys.insert(&put.key)),
                Step::Delete(delete) if delete.range_end.is_empty() => drop(self.keys.insert(&delete.key)),
                Step::Delete(delete) => drop(self.ranges.insert((&delete.key, &delete.range_end))),
            }
        }
    }

    /// Returns true if the history of the key is uncertain.
    pub fn has(&self, key: &[u8]) -> bool {
        self.keys.contains(key)
            || self.ranges.iter().any(|(start, end)| within(key, start, end))
            || self.prefixes.iter().any(|prefix| key.starts_with(prefix))
    }

    /// Returns true if the range may contain a key whose history is uncertain.
    fn touches(&self, start: &[u8], end: &[u8]) -> bool {
        if end.is_empty() {
            return self.has(start);
        }
        let mut keys = self.keys.range::<[u8], _>((Bound::Included(start), Bound::Unbounded));
        keys.next().is_some_and(|key| within(key, start, end))
            || self.ranges.iter().any(|(from, to)| within(from, start, end) || within(start, from, to))
            || !self.prefixes.is_empty()
    }

    /// Returns true if the effect or the response of a request may depend on a key whose history is uncertain
    /// ([`Movable`]).
    pub fn decides(&self, request: &Request) -> bool {
        let by_branch = matches!(request, Request::Txn(txn) if self.decides_writes(txn));
        by_branch
            || steps(request).iter().any(|step| match step {
                Step::Range(range) => self.touches(&range.key, &range.range_end),
                Step::Put(put) => self.has(&put.key),
                Step::Delete(delete) => self.touches(&delete.key, &delete.range_end),
            })
    }
}

/// Collects all comparisons of a transaction, including those of nested transactions, and all its puts that
/// require an existing key.
fn conditions<'a>(txn: &'a Txn, compares: &mut Vec<&'a Compare>, keepers: &mut Vec<&'a Put>) {
    compares.extend(&txn.compare);
    for action in txn.success.iter().chain(&txn.failure) {
        match action {
            Action::Put(put) if put.ignore_value || put.ignore_lease => keepers.push(put),
            Action::Txn(inner) => conditions(inner, compares, keepers),
            _ => {}
        }
    }
}
