//! Finds the possible makers of a revision that is not in the response to any write: operations with unknown
//! outcomes, and ends of leases.

use std::collections::{HashMap, HashSet};

use crate::effects::{Step, steps};
use crate::evidence::{Evidence, Seen};
use crate::matching::Maker;
use crate::store::{Change, Store, within};
use crate::{Delete, History, Operation, Outcome, Request, Response};

/// Index of the operations by the keys and values that they would write. It finds the possible makers of a
/// revision.
pub(crate) struct Candidates<'a> {
    history: &'a History,
    /// Positions in the history of the writes with unknown outcomes.
    unknown: Vec<usize>,
    /// Puts with unknown outcomes whose value a client saw at some revision, and whose value no other
    /// operation puts or keeps. Each of these puts has made the revision at which its value was seen, or
    /// none.
    placed: HashSet<usize>,
    /// Puts with unknown outcomes, by key and value.
    puts: HashMap<(&'a [u8], &'a [u8]), Vec<usize>>,
    /// Puts with unknown outcomes that keep the current value (`ignore_value`), by key.
    keepers: HashMap<&'a [u8], Vec<usize>>,
    /// Operations with unknown outcomes that delete one key and do nothing else, by key.
    deletes: HashMap<&'a [u8], Vec<usize>>,
    /// All deletions in operations with unknown outcomes that are not in `deletes`.
    deleters: Vec<(usize, &'a Delete)>,
    /// Operations that put a value, whatever their outcome, by key and value.
    writers: HashMap<(&'a [u8], &'a [u8]), Vec<usize>>,
    /// Refused operations that contain a deletion.
    refused_deleters: Vec<usize>,
    /// Number of times that each lease id may have been granted.
    grants: HashMap<i64, usize>,
    /// Revision at which the revocation of a lease was answered, by lease id.
    revoked: HashMap<i64, i64>,
    places: HashMap<u64, usize>,
}

impl<'a> Candidates<'a> {
    pub fn new(history: &'a History, evidence: &Evidence<'_>) -> Candidates<'a> {
        let mut candidates = Candidates {
            history,
            unknown: Vec::new(),
            placed: HashSet::new(),
            puts: HashMap::new(),
            keepers: HashMap::new(),
            deletes: HashMap::new(),
            deleters: Vec::new(),
            writers: HashMap::new(),
            refused_deleters: Vec::new(),
            grants: HashMap::new(),
            revoked: HashMap::new(),
            places: HashMap::new(),
        };
        for (at, op) in history.operations.iter().enumerate() {
            candidates.take(at, op);
        }
        let seen = evidence.values();
        let steps = history.operations.iter().flat_map(|op| steps(&op.request));
        let kept: HashSet<&[u8]> = steps
            .filter_map(|step| match step {
                Step::Put(put) if put.ignore_value => Some(put.key.as_slice()),
                _ => None,
            })
            .collect();
        for at in &candidates.unknown {
            if let Request::Put(put) = &history.operations[*at].request {
                let what = (put.key.as_slice(), put.value.as_slice());
                let is_only_one = candidates.writers.get(&what).is_some_and(|writers| writers.len() == 1);
                if !kept.contains(put.key.as_slice()) && is_only_one && seen.contains(&what) {
                    candidates.placed.insert(*at);
                }
            }
        }
        candidates
    }

    fn take(&mut self, at: usize, op: &'a Operation) {
        self.places.insert(op.id, at);
        match (&op.request, &op.outcome) {
            (Request::Grant { .. }, Outcome::Done(_, Response::Granted { id, .. })) => {
                *self.grants.entry(*id).or_default() += 1;
            }
            (Request::Grant { id, .. }, Outcome::Unknown(_)) => *self.grants.entry(*id).or_default() += 1,
            (Request::Revoke { id }, Outcome::Done(header, _)) => {
                self.revoked.insert(*id, header.revision);
            }
            _ => {}
        }
        let steps = steps(&op.request);
        let mut writes = false;
        for step in &steps {
            match step {
                Step::Range(_) => continue,
                Step::Put(put) => {
                    let what = (put.key.as_slice(), put.value.as_slice());
                    self.writers.entry(what).or_default().push(at);
                    if op.is_unknown() {
                        if put.ignore_value {
                            self.keepers.entry(&put.key).or_default().push(at);
                        } else {
                            self.puts.entry(what).or_default().push(at);
                        }
                    }
                }
                Step::Delete(_) if matches!(op.outcome, Outcome::Refused(_)) => {
                    self.refused_deleters.push(at)
                }
                Step::Delete(delete) if op.is_unknown() => {
                    if delete.range_end.is_empty() && steps.len() == 1 {
                        self.deletes.entry(&delete.key).or_default().push(at);
                    } else {
                        self.deleters.push((at, delete));
                    }
                }
                Step::Delete(_) => {}
            }
            writes = true;
        }
        if writes && op.is_unknown() {
            self.unknown.push(at);
        }
    }

    /// Returns true if the operation is a put with an unknown outcome that can have made only the revision at
    /// which its value was seen, or none.
    pub fn is_placed(&self, at: usize) -> bool {
        self.placed.contains(&at)
    }

    /// Returns the operation's position in the history.
    pub fn place(&self, op: &Operation) -> Option<usize> {
        self.places.get(&op.id).copied()
    }

    /// Returns all possible ends of leases with this id, one for each grant of the id that may have happened.
    pub fn lease_ends(&self, lease: i64) -> impl Iterator<Item = Maker> + use<> {
        let times = self.grants.get(&lease).copied().unwrap_or(1).max(1);
        (0..times).map(move |time| Maker::LeaseEnd(lease, time))
    }

    /// Returns true if a lease was revoked before this revision, and its id was never granted again.
    pub fn is_revoked_before(&self, lease: i64, revision: i64) -> bool {
        self.grants.get(&lease).is_none_or(|times| *times <= 1)
            && self.revoked.get(&lease).is_some_and(|revoked| *revoked < revision)
    }

    /// Returns all makers that may have made a revision of which clients saw the changes `seen`, and which
    /// existed at time `by`. Only one of the seen changes is compared with what a maker would change, so the
    /// caller must check the others.
    pub fn makers(&self, seen: &Seen, store: &Store, by: u64) -> Vec<Maker> {
        let mut places: Vec<usize> = Vec::new();
        let mut makers: Vec<Maker> = Vec::new();
        let put = seen.keys.iter().find(|(_, variants)| variants.iter().any(Option::is_some));
        match (put, seen.keys.keys().next()) {
            (Some((key, variants)), _) => {
                for kv in variants.iter().flatten() {
                    places.extend(self.puts.get(&(&**key, kv.value.as_slice())).into_iter().flatten());
                }
                places.extend(self.keepers.get(&**key).into_iter().flatten());
            }
            (None, Some(key)) => {
                places.extend(self.deletes.get(&**key).into_iter().flatten());
                let takes = |delete: &Delete| within(key, &delete.key, &delete.range_end);
                places.extend(self.deleters.iter().filter(|(_, delete)| takes(delete)).map(|(at, _)| at));
                let lease = store.at(key, store.revision).map_or(0, |kv| kv.lease);
                if lease != 0 {
                    makers.extend(self.lease_ends(lease));
                }
            }
            (None, None) => {
                places.extend(self.unknown.iter().filter(|at| !self.placed.contains(at)));
                makers.extend(store.leases_with_keys().flat_map(|lease| self.lease_ends(lease)));
            }
        }
        places.sort_unstable();
        places.dedup();
        let called = places.into_iter().filter(|at| self.history.operations[*at].call <= by);
        makers.extend(called.map(Maker::Operation));
        makers
    }

    /// Returns true if one of the changes puts a value that no operation puts. Returns false if clients also
    /// wrote keys without recording the operations ([`crate::Settings::unrecorded`]).
    pub fn is_strange(&self, changes: &[Change]) -> bool {
        if !self.history.settings.unrecorded.is_empty() {
            return false;
        }
        let puts = changes.iter().filter_map(|change| change.put.as_ref());
        let mut values = puts.map(|kv| (kv.key.as_slice(), kv.value.as_slice()));
        values.any(|what| !self.writers.contains_key(&what))
    }

    /// Returns the operations that write one of these changes, whatever their outcome.
    pub fn writers_like(&self, changes: &[Change]) -> Vec<&'a Operation> {
        let mut places: Vec<usize> = Vec::new();
        for change in changes {
            match &change.put {
                Some(kv) => {
                    places
                        .extend(self.writers.get(&(&*change.key, kv.value.as_slice())).into_iter().flatten());
                }
                None => places.extend(&self.refused_deleters),
            }
        }
        places.sort_unstable();
        places.dedup();
        places.into_iter().map(|at| &self.history.operations[at]).collect()
    }
}
