//! Lists of operations: decoded from bytes, run against the index and the naive model side by side, with
//! readers on other threads, and reduced when they fail.
//!
//! Arbitrary bytes are a valid list, so that coverage-guided fuzzing can generate lists, too (`mvcc` in the
//! `fuzzing` crate). Shrinking is implemented here: removing operations from a list of bytes of equal length
//! needs no library.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use mainstay_mvcc::{HashWalk, KeyRange, Location, RevisionError, Store, Value, View};
use numbers::{ChangeId, LeaseId, Revision};

use crate::compare::{full_check, spot_check};
use crate::naive::{Naive, Record};
use crate::random::Random;

/// Length in bytes of one operation.
pub const OPERATION_BYTES: usize = 4;
/// Maximum number of views that are held at the same time.
const VIEWS_MAX: usize = 8;
/// Number of keys: few enough that operations hit the same keys, and enough to split nodes if a list is long.
const KEYS: u64 = 300;

/// A published view, and the model to which it must stay equal.
#[derive(Clone)]
pub struct Held {
    view: Arc<View>,
    then: Naive,
    seed: u64,
}

impl Held {
    /// Runs every kind of read, at revisions derived from the seed.
    pub fn check(&self) {
        let mut random = Random::new(self.seed);
        full_check(&self.view.snapshot(), &self.then, &mut random);
        for _ in 0..4 {
            spot_check(&self.view.snapshot(), &self.then, &mut random);
        }
    }
}

/// Readers of views that run while the writer writes.
pub trait Readers {
    /// Receives a view, which may be read immediately, later, or on another thread.
    fn look(&mut self, held: Held);
}

/// Reads each view immediately, on the thread of the writer.
pub struct Here;

impl Readers for Here {
    fn look(&mut self, held: Held) {
        held.check();
    }
}

/// Threads that read the views that they receive, each at its own speed.
pub struct Threads(Vec<SyncSender<Held>>, usize);

impl Readers for Threads {
    fn look(&mut self, held: Held) {
        let Threads(senders, next) = self;
        *next = (*next + 1) % senders.len();
        // A reader that has panicked receives no more views; the test fails with its panic.
        let _ = senders[*next].send(held);
    }
}

/// Runs `work` with `count` reader threads, and waits until they have ended.
pub fn with_readers(count: usize, work: impl FnOnce(&mut Threads)) {
    std::thread::scope(|scope| {
        let mut senders = Vec::new();
        for _ in 0..count {
            let (sender, receiver): (_, Receiver<Held>) = sync_channel(4);
            senders.push(sender);
            scope.spawn(move || {
                // Some views are kept, and read again after the writer has made further changes.
                let mut kept: Vec<Held> = Vec::new();
                for held in receiver {
                    held.check();
                    kept.push(held);
                    if kept.len() > 3 {
                        kept.swap_remove(0).check();
                    }
                }
                kept.iter().for_each(Held::check);
            });
        }
        work(&mut Threads(senders, 0));
    });
}

fn key_of(byte: u8, more: u8) -> Vec<u8> {
    // The generator defines the shape of keys; the bytes select the key.
    Random::new(u64::from(byte) | u64::from(more & 3) << 8).key(KEYS)
}

/// Location of the value of each change. Moved values change the state, but not the history.
type Places = BTreeMap<ChangeId, Location>;

/// A change of a transaction: true for a put, the key, and the range end of a deletion.
type Alteration = (bool, Vec<u8>, Option<Vec<u8>>);

/// A store and its model, side by side.
struct Pair {
    store: Store,
    model: Naive,
    places: Places,
    held: Vec<Held>,
    random: Random,
}

impl Pair {
    fn transaction(&mut self, changes: &[Alteration]) {
        let mut writer = self.store.begin();
        let (main, mut sub) = (writer.revision(), 0);
        let mut deleted: Vec<Vec<u8>> = Vec::new();
        for (is_put, key, end) in changes {
            if *is_put {
                if deleted.contains(key) {
                    // No request may put a key after deleting it, see `Writer::put`.
                    continue;
                }
                let crc = self.random.next() as u32;
                let location = Location::new(crc >> 16, crc);
                let lease = i64::from(crc % 4);
                let change = writer.put(key, Value { location, len: crc % 100, crc }, LeaseId(lease));
                assert_eq!(
                    Record::of(change.version),
                    self.model.write(key, main, sub, Some((crc, LeaseId(lease))))
                );
                self.places.insert(ChangeId { main, sub }, location);
                sub += 1;
            } else {
                let doomed = match end {
                    Some(end) => self.model.range(key, Some(end), Revision::MAX),
                    None => Vec::from_iter(self.model.get(key, Revision::MAX).cloned()),
                };
                let range = match end {
                    Some(end) => KeyRange::half_open(key, end),
                    None => KeyRange::single(key),
                };
                assert_eq!(writer.delete_range(range, |_| ()), doomed.len() as u64);
                for record in doomed {
                    self.model.write(&record.key, main, sub, None);
                    deleted.push(record.key);
                    sub += 1;
                }
            }
            self.model.current = main - 1 + i64::from(sub > 0);
            spot_check(&writer.snapshot(), &self.model, &mut self.random);
        }
        assert_eq!(writer.finish(), self.model.current);
    }

    fn compact(&mut self, rev: Revision) {
        let expected = match rev {
            _ if rev <= self.model.compacted => Err(RevisionError::Compacted),
            _ if rev > self.model.current => Err(RevisionError::FutureRevision),
            _ => Ok(()),
        };
        assert_eq!(self.store.compact(rev), expected);
        if expected.is_err() {
            return;
        }
        let snapshot = self.store.snapshot();
        let mut walk = HashWalk::of_compaction(&snapshot, self.model.compacted, rev);
        let mut fed = Vec::new();
        while !walk.step(&snapshot, 7, |version| fed.push(Record::of(version))) {}
        assert_eq!(fed, self.model.compaction_hash_versions(rev), "compaction at {rev}");
        self.model.compacted = rev;
    }

    /// Moves some values, as the reclaiming of a segment does: readers of every view see the old location or
    /// the new one.
    fn relocate(&mut self, start: &[u8], segment: u32) {
        let snapshot = self.store.snapshot();
        let Ok(range) = snapshot.range(KeyRange::from(start), Revision::CURRENT) else { return };
        let values: Vec<(ChangeId, Location)> =
            range.take(5).map(|version| (version.id(), version.location())).collect();
        for (change, from) in values {
            let to = Location::new(segment, segment ^ change.main.0 as u32);
            if self.store.relocate(change, from, to).is_some() {
                self.places.insert(change, to);
            }
        }
    }

    fn check_places(&self) {
        for version in self.store.snapshot().histories() {
            if !version.is_tombstone() {
                assert_eq!(Some(&version.location()), self.places.get(&version.id()));
            }
        }
    }

    fn operate(&mut self, operation: [u8; OPERATION_BYTES], readers: &mut impl Readers) {
        let [what, a, b, c] = operation;
        match what % 16 {
            0..=4 => self.transaction(&[(true, key_of(a, b), None)]),
            5 => self.transaction(&[
                (true, key_of(a, 0), None),
                (false, key_of(b, 0), None),
                (true, key_of(c, 0), None),
                (true, key_of(a, 1), None),
            ]),
            6 | 7 => self.transaction(&[(false, key_of(a, b), None)]),
            8 => self.transaction(&[(false, key_of(a, c), Some(key_of(b, c))), (true, key_of(c, 2), None)]),
            9 => {
                let back = i64::from(a % 32);
                self.compact(self.model.current + 2 - back);
            }
            10 | 11 => {
                let progress = self.store.compact_step(u64::from(a), |_| ());
                assert!(progress.done || progress.removed == u64::from(a));
            }
            12 => self.relocate(&key_of(a, b), u32::from(c)),
            13 | 14 => {
                let view = self.store.publish();
                let held = Held { view, then: self.model.clone(), seed: u64::from(a) << 8 | u64::from(b) };
                if c & 1 == 0 {
                    readers.look(held);
                } else if self.held.len() < VIEWS_MAX {
                    self.held.push(held);
                }
            }
            _ => {
                if !self.held.is_empty() {
                    let held = self.held.swap_remove(usize::from(a) % self.held.len());
                    readers.look(held);
                }
                self.store.reclaim(u64::from(b));
            }
        }
    }
}

/// Runs a list. Panics at the first difference.
pub fn run(list: &[u8], readers: &mut impl Readers) {
    let (store, model) = (Store::new(), Naive::new());
    let census = store.census();
    let mut pair = Pair {
        store,
        model,
        places: Places::new(),
        held: Vec::new(),
        random: Random::new(list.len() as u64),
    };
    for operation in list.as_chunks::<OPERATION_BYTES>().0 {
        pair.operate(*operation, readers);
    }
    while !pair.store.compact_step(1000, |_| ()).done {}
    let mut random = Random::new(3);
    full_check(&pair.store.snapshot(), &pair.model, &mut random);
    pair.check_places();
    assert_eq!(pair.store.snapshot().versions(), pair.model.stored().len() as u64);
    let stats = pair.store.stats();
    assert_eq!(stats.removable_bytes == 0, stats.removable == 0, "{stats:?}");
    assert!(pair.store.is_removal_done());
    let Pair { store, held, .. } = pair;
    drop(store);
    for held in held {
        readers.look(held);
    }
    drop(census);
}

/// Returns the smallest failing list that was found: removes ever smaller parts while the list still fails
/// (Zeller's `ddmin`).
pub fn shrink(list: &[u8], fails: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut operations: Vec<[u8; OPERATION_BYTES]> = list.as_chunks::<OPERATION_BYTES>().0.to_vec();
    let mut part = operations.len().div_ceil(2).max(1);
    loop {
        let mut at = 0;
        let mut smaller = false;
        while at < operations.len() {
            let end = (at + part).min(operations.len());
            let mut without = operations.clone();
            without.drain(at..end);
            if fails(without.as_flattened()) {
                operations = without;
                smaller = true;
            } else {
                at = end;
            }
        }
        if part == 1 && !smaller {
            return operations.concat();
        }
        part = part.div_ceil(2);
    }
}
