//! Collects the changes of each revision that clients saw in watches and reads.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use crate::effects::shown;
use crate::store::{Change, within};
use crate::{End, Event, History, KeyValue, Watch, WatchAnswer};

/// The changes of one revision that clients saw.
#[derive(Default)]
pub(crate) struct Seen {
    /// State of each changed key after the revision. A key has more than one state if clients saw different
    /// ones.
    pub keys: BTreeMap<Rc<[u8]>, Vec<Option<Rc<KeyValue>>>>,
    /// True if a watch of all keys reported the revision, which means that no other keys were changed.
    pub whole: bool,
    /// Keys in the order in which a watch of all keys reported them.
    order: Vec<Rc<[u8]>>,
}

impl Seen {
    /// Returns true if clients saw this change of the key.
    pub fn has(&self, change: &Change) -> bool {
        self.keys.get(&change.key).is_some_and(|variants| variants.contains(&change.put))
    }

    /// Returns the changes that clients saw. If clients saw different states of a key, the one recorded first
    /// is returned.
    pub fn changes(&self) -> Vec<Change> {
        let told = self.order.iter().filter_map(|key| self.keys.get_key_value(key));
        let rest = self.keys.iter().filter(|(key, _)| !self.order.contains(key));
        let all = told.chain(rest);
        all.filter_map(|(key, variants)| {
            variants.first().map(|put| Change { key: key.clone(), put: put.clone() })
        })
        .collect()
    }
}

/// A range of revisions whose events a watch has reported completely, according to its responses. If the
/// watch reported no event for a change that it watches, this change did not happen in this range.
struct Cover<'a> {
    watch: &'a Watch,
    from: i64,
    to: i64,
}

/// All changes that clients saw.
pub(crate) struct Evidence<'a> {
    seen: HashMap<i64, Seen>,
    covers: Vec<Cover<'a>>,
    /// Ranges of revisions whose events watches of all keys have reported completely, in ascending order and
    /// without overlap.
    covered: Vec<(i64, i64)>,
    nothing: Seen,
}

/// Returns true if the watch must report a put or, if `deleted` is true, a deletion of this key.
pub(crate) fn concerns(watch: &Watch, key: &[u8], deleted: bool) -> bool {
    // An empty start key means the lowest possible key.
    let start: &[u8] = if watch.key.is_empty() { &[0] } else { &watch.key };
    within(key, start, &watch.range_end) && !(if deleted { watch.no_delete } else { watch.no_put })
}

/// Returns true if the watch covers all keys and all kinds of events.
pub(crate) fn is_of_all(watch: &Watch) -> bool {
    (watch.key.is_empty() || watch.key == [0]) && watch.range_end == [0] && !watch.no_put && !watch.no_delete
}

/// Returns the first revision that a watch must report; `None` if the watch was not created and its request
/// names no start revision.
pub(crate) fn first_revision(watch: &Watch) -> Option<i64> {
    if watch.start_revision > 0 {
        return Some(watch.start_revision);
    }
    let created = watch.responses.iter().find(|response| response.answer == WatchAnswer::Created);
    created.map(|response| response.revision + 1)
}

/// Returns the revision up to which a watch claims to have reported all events. A missing event up to this
/// revision was left out, and is not only late.
pub(crate) fn told_up_to(watch: &Watch) -> i64 {
    let mut told = 0;
    for response in &watch.responses {
        match &response.answer {
            WatchAnswer::Events { events, fragment: false } => {
                told = events.iter().map(|event| event.kv.mod_revision).fold(told, i64::max);
            }
            WatchAnswer::Progress => told = told.max(response.revision),
            _ => {}
        }
    }
    match watch.end {
        End::Drained(revision) => told.max(revision),
        _ => told,
    }
}

fn became(event: &Event) -> Option<Rc<KeyValue>> {
    (!event.deleted).then(|| Rc::new(event.kv.clone()))
}

impl<'a> Evidence<'a> {
    pub fn new(history: &'a History) -> Evidence<'a> {
        let mut evidence = Evidence {
            seen: HashMap::new(),
            covers: Vec::new(),
            covered: Vec::new(),
            nothing: Seen::default(),
        };
        for watch in &history.watches {
            evidence.take_watch(watch);
        }
        evidence.cover();
        for op in &history.operations {
            if let Some((_, response)) = op.done() {
                shown(&op.request, response, &mut |kv| evidence.take_key(kv));
            }
        }
        for kv in history.finals.iter().flat_map(|last| last.dump.iter().flatten()) {
            evidence.take_key(kv);
        }
        evidence
    }

    fn take_watch(&mut self, watch: &'a Watch) {
        let of_all = is_of_all(watch);
        for response in &watch.responses {
            let WatchAnswer::Events { events, .. } = &response.answer else { continue };
            for event in events {
                let seen = self.seen.entry(event.kv.mod_revision).or_default();
                let key = seen.take(&event.kv.key, became(event));
                if of_all {
                    seen.whole = true;
                    if !seen.order.contains(&key) {
                        seen.order.push(key);
                    }
                }
            }
        }
        let events = watch.responses.iter().filter_map(|response| match &response.answer {
            WatchAnswer::Events { events, .. } => Some(events),
            _ => None,
        });
        for before in events.flatten().filter_map(|event| event.prev_kv.as_ref()) {
            self.take_key(before);
        }
        if let Some(from) = first_revision(watch) {
            let to = told_up_to(watch);
            if to >= from {
                self.covers.push(Cover { watch, from, to });
            }
        }
    }

    fn cover(&mut self) {
        let of_all = self.covers.iter().filter(|cover| is_of_all(cover.watch));
        let mut all: Vec<(i64, i64)> = of_all.map(|cover| (cover.from, cover.to)).collect();
        all.sort_unstable();
        for (from, to) in all {
            match self.covered.last_mut() {
                Some((_, end)) if from <= *end + 1 => *end = to.max(*end),
                _ => self.covered.push((from, to)),
            }
        }
    }

    fn take_key(&mut self, kv: &KeyValue) {
        let seen = self.seen.entry(kv.mod_revision).or_default();
        if seen
            .keys
            .get(kv.key.as_slice())
            .is_some_and(|known| known.iter().flatten().any(|known| **known == *kv))
        {
            return;
        }
        seen.take(&kv.key, Some(Rc::new(kv.clone())));
    }

    /// Returns the changes of a revision that clients saw.
    pub fn of(&self, revision: i64) -> &Seen {
        self.seen.get(&revision).unwrap_or(&self.nothing)
    }

    /// Returns all puts that clients saw, by key and value.
    pub fn values(&self) -> HashSet<(&[u8], &[u8])> {
        let puts = self.seen.values().flat_map(|seen| seen.keys.values().flatten().flatten());
        puts.map(|kv| (kv.key.as_slice(), kv.value.as_slice())).collect()
    }

    /// Returns the revisions of which clients saw a change.
    pub fn revisions(&self) -> impl Iterator<Item = i64> {
        self.seen.keys().copied()
    }

    /// Returns true if these can be the changes of a revision. They must include every change that clients
    /// saw. A change that clients did not see is possible only if no watch had to report it.
    pub fn allows(&self, revision: i64, changes: &[Change]) -> bool {
        let seen = self.of(revision);
        let covered = seen.keys.keys().all(|key| changes.iter().any(|change| change.key == *key));
        covered
            && changes.iter().all(|change| {
                seen.has(change)
                    || !seen.whole
                        && !seen.keys.contains_key(&change.key)
                        && !self.untold(revision, &change.key, change.put.is_none())
            })
    }

    /// Returns true if a watch of all keys had to report this revision.
    pub fn is_covered(&self, revision: i64) -> bool {
        let before = self.covered.partition_point(|(from, _)| *from <= revision);
        before.checked_sub(1).is_some_and(|at| revision <= self.covered[at].1)
    }

    /// Returns true if a watch had to report this change, although no client saw it.
    fn untold(&self, revision: i64, key: &[u8], deleted: bool) -> bool {
        let mut covers = self.covers.iter();
        covers.any(|cover| (cover.from..=cover.to).contains(&revision) && concerns(cover.watch, key, deleted))
    }
}

impl Seen {
    fn take(&mut self, key: &[u8], put: Option<Rc<KeyValue>>) -> Rc<[u8]> {
        let key = match self.keys.get_key_value(key) {
            Some((known, _)) => known.clone(),
            None => Rc::from(key),
        };
        let variants = self.keys.entry(key.clone()).or_default();
        if !variants.contains(&put) {
            variants.push(put);
        }
        key
    }
}
