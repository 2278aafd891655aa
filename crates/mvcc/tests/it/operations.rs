//! Lists of operations: read from bytes, carried out in the index and in the naive model side by side, with readers
//! on other threads, and made smaller when they fail.
//!
//! Bytes of any kind are a list, so that this is also what coverage-guided fuzzing feeds (`mvcc` in the `fuzzing`
//! crate). Shrinking is by hand: taking operations out of a list of bytes of equal length needs no library.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use mainstay_mvcc::{HashWalk, KeyRange, Location, RevisionError, Store, Value, View};
use numbers::{ChangeId, LeaseId, Revision};

use crate::compare::{full_check, spot_check};
use crate::naive::{Naive, Record};
use crate::random::Random;

/// Bytes of one operation.
pub const OPERATION_BYTES: usize = 4;
/// Views that are held at once.
const VIEWS_MAX: usize = 8;
/// Keys: few, so that they meet, and enough to split nodes where a list is long.
const KEYS: u64 = 300;

/// A published view, and what it has to hold for ever.
#[derive(Clone)]
pub struct Held {
    view: Arc<View>,
    then: Naive,
    seed: u64,
}

impl Held {
    /// Reads it in every way, at revisions that follow from the seed.
    pub fn check(&self) {
        let mut random = Random::new(self.seed);
        full_check(&self.view.snapshot(), &self.then, &mut random);
        for _ in 0..4 {
            spot_check(&self.view.snapshot(), &self.then, &mut random);
        }
    }
}

/// What looks at views while the writer goes on.
pub trait Readers {
    /// Takes a view; it may be looked at now, later, or on another thread.
    fn look(&mut self, held: Held);
}

/// Looks at once.
pub struct Here;

impl Readers for Here {
    fn look(&mut self, held: Held) {
        held.check();
    }
}

/// Threads that look at whatever comes, each at its own pace.
pub struct Threads(Vec<SyncSender<Held>>, usize);

impl Readers for Threads {
    fn look(&mut self, held: Held) {
        let Threads(senders, next) = self;
        *next = (*next + 1) % senders.len();
        // A reader that has panicked takes nothing; its panic is what the test fails with.
        let _ = senders[*next].send(held);
    }
}

/// Runs `work` beside so many readers, and waits for them.
pub fn with_readers(count: usize, work: impl FnOnce(&mut Threads)) {
    std::thread::scope(|scope| {
        let mut senders = Vec::new();
        for _ in 0..count {
            let (sender, receiver): (_, Receiver<Held>) = sync_channel(4);
            senders.push(sender);
            scope.spawn(move || {
                // A few are kept and looked at again, when the writer has gone on.
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
    // The generator gives the shapes; the bytes say which.
    Random::new(u64::from(byte) | u64::from(more & 3) << 8).key(KEYS)
}

/// Where values lie, by main and sub revision: moved values are part of the state, and not of history.
type Places = BTreeMap<ChangeId, Location>;

/// A change of a transaction: whether it is a put, its key, and where a deletion's range ends.
type Alteration = (bool, Vec<u8>, Option<Vec<u8>>);

/// Both, side by side.
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
                    // No request may do this, see `Writer::put`.
                    continue;
                }
                let crc = self.random.next() as u32;
                let location = Location { segment: crc >> 16, offset: crc };
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

    /// Moves a few values, as reclaiming a segment does: readers of every view see the old place or the new one.
    fn relocate(&mut self, start: &[u8], segment: u32) {
        let snapshot = self.store.snapshot();
        let Ok(range) = snapshot.range(KeyRange::from(start), Revision::CURRENT) else { return };
        for version in range.take(5) {
            let to = Location { segment, offset: segment ^ version.main().0 as u32 };
            version.set_location(to);
            self.places.insert(version.id(), to);
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

/// Carries a list out. Panics at the first difference.
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
    let Pair { store, held, .. } = pair;
    drop(store);
    for held in held {
        readers.look(held);
    }
    drop(census);
}

/// The smallest list found that still fails: ever smaller parts are taken out as long as it does (Zeller's `ddmin`).
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
