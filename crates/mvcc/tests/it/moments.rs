//! Tests of readers that hold a moment instead of a view: reads from later views return the same as the view
//! of that moment, and memory that writes free in the meantime is not kept for the readers.

use std::sync::Arc;

use mainstay_mvcc::{
    Changes, HashWalk, KeyRange, Location, Moment, RevisionError, Snapshot, Store, Value, Version, View,
};
use numbers::{ChangeId, LeaseId, Revision};

use crate::compare::records;
use crate::naive::Record;
use crate::random::Random;

const KEYS: u64 = 150;

fn change(store: &mut Store, random: &mut Random, deletes: u64) {
    let mut writer = store.begin();
    let mut deleted = Vec::new();
    for _ in 0..1 + random.below(4) {
        let key = random.key(KEYS);
        if random.below(100) < deletes {
            let end = random.key(KEYS);
            let range = match random.below(4) {
                0 => KeyRange::half_open(&key, &end),
                _ => KeyRange::single(&key),
            };
            writer.delete_range(range, |change| deleted.push(change.version.key().to_vec()));
        } else if !deleted.contains(&key) {
            let crc = random.next() as u32;
            let location = Location::new(crc % 5, crc);
            writer.put(&key, Value { location, len: crc % 50, crc }, LeaseId(i64::from(crc % 3)));
        }
    }
    writer.finish();
}

/// Physically removes the versions that no moment needs.
pub fn remove(store: &mut Store, held: &[Reader], budget: u64) {
    let through = held.iter().map(|reader| reader.moment.keeps()).min().unwrap_or(Revision::MAX);
    store.compact_step_through(through, budget, |_| ());
}

/// A long walk, each step of which reads the newest view.
struct Walk<T> {
    found: Vec<Record>,
    at: T,
    done: bool,
}

impl<T: Default> Walk<T> {
    fn begin() -> Walk<T> {
        Walk { found: Vec::new(), at: T::default(), done: false }
    }
}

pub struct Reader {
    frozen: Arc<View>,
    pub moment: Moment,
    /// Revision of the range walk, between the compact revision and the current one.
    revision: Revision,
    range: Walk<Option<Vec<u8>>>,
    histories: Walk<Option<Vec<u8>>>,
    written: Walk<ChangeId>,
    hash: (HashWalk, Vec<Record>, bool),
    seed: u64,
}

/// Returns the results of every kind of read, for a comparison.
fn facts(snapshot: &Snapshot<'_>, seed: u64) -> Vec<String> {
    let mut random = Random::new(seed);
    let mut facts = vec![
        format!("{} {}", snapshot.current_revision(), snapshot.compact_revision()),
        format!("{} {}", snapshot.live_keys(), snapshot.versions()),
    ];
    for _ in 0..8 {
        let asked = Revision(random.below(snapshot.current_revision().0 as u64 + 3) as i64 - 1);
        let (key, end) = (random.key(KEYS), random.key(KEYS));
        for range in [KeyRange::single(&key), KeyRange::half_open(&key, &end), KeyRange::from(&key)] {
            facts.push(format!("{:?}", snapshot.get(&key, asked).map(|found| found.map(Record::of))));
            facts.push(format!("{:?}", snapshot.count(range, asked)));
            facts.push(format!("{:?}", snapshot.range(range, asked).map(records)));
            facts.push(format!("{:?}", snapshot.range(range, asked).map(|range| records(range.rev()))));
            facts.push(format!("{:?}", snapshot.changes(asked, asked + 9).map(records)));
        }
        let mut fed = Vec::new();
        if let Ok(mut walk) = HashWalk::new(snapshot, asked) {
            while !walk.step(snapshot, 5, |version| fed.push(Record::of(version))) {}
        }
        facts.push(format!("{fed:?}"));
    }
    facts
}

/// Returns the locations of versions. A moved value has its new location in every view. So the collected
/// records do not contain locations, which are compared separately here.
fn places<'a>(versions: impl Iterator<Item = Version<'a>>) -> Vec<Location> {
    versions.map(Version::location).collect()
}

impl Reader {
    pub fn new(frozen: Arc<View>, everything: bool, random: &mut Random) -> Reader {
        let moment = if everything { frozen.moment_of_everything() } else { frozen.moment() };
        let oldest = moment.compact_revision().max(Revision::FIRST);
        let revision = oldest + random.below((moment.revision() - oldest + 1) as u64) as i64;
        let hash = HashWalk::new(&frozen.snapshot(), revision).expect("can be read");
        Reader {
            frozen,
            moment,
            revision,
            range: Walk::begin(),
            histories: Walk::begin(),
            written: Walk::begin(),
            hash: (hash, Vec::new(), false),
            seed: random.next(),
        }
    }

    pub fn step(&mut self, newest: &View, budget: usize) {
        let snapshot = newest.snapshot_at(&self.moment).expect("all that it needs is kept");
        let behind = self.range.at.take();
        let keys = behind.as_deref().map_or(KeyRange::ALL, |key| KeyRange::ALL.after(key));
        let range: Vec<Version<'_>> =
            snapshot.range(keys, self.revision).expect("reads").take(budget).collect();
        self.range.done = range.len() < budget;
        self.range.at = range.last().map(|last| last.key().to_vec()).or(behind);
        self.range.found.extend(range.into_iter().map(Record::of));

        // Reads whole histories, key by key.
        let behind = self.histories.at.take();
        let mut keys = 0;
        let mut histories = snapshot.histories_after(behind.as_deref()).peekable();
        self.histories.at = behind;
        self.histories.done = true;
        while let Some(version) = histories.next() {
            self.histories.found.push(Record::of(version));
            if histories.peek().is_none_or(|next| next.key() != version.key()) {
                self.histories.at = Some(version.key().to_vec());
                keys += 1;
                if keys == budget {
                    self.histories.done = histories.peek().is_none();
                    break;
                }
            }
        }

        let behind = self.written.at;
        let written: Vec<Version<'_>> = snapshot.written_after(behind).take(budget).collect();
        self.written.done = written.len() < budget;
        if let Some(last) = written.last() {
            self.written.at = last.id();
        }
        self.written.found.extend(written.into_iter().map(Record::of));

        let (walk, fed, done) = &mut self.hash;
        *done = walk.step(&snapshot, budget, |version| fed.push(Record::of(version)));
        for (now, then) in facts(&snapshot, self.seed).iter().zip(facts(&self.frozen.snapshot(), self.seed)) {
            assert_eq!(now, &then);
        }
    }

    pub fn is_done(&self) -> bool {
        self.range.done && self.histories.done && self.written.done && self.hash.2
    }

    /// Compares the collected results with the view of the moment, and the locations of values, too. If the
    /// store has a base, the view may show older locations.
    fn finish(self, newest: &View) {
        let now = newest.snapshot_at(&self.moment).expect("all that it needs is kept");
        assert_eq!(places(now.histories()), places(self.frozen.snapshot().histories()));
        self.compare();
    }

    /// Compares the collected results with the view of the moment.
    pub fn compare(self) {
        let then = self.frozen.snapshot();
        assert_eq!(self.range.found, records(then.range(KeyRange::ALL, self.revision).expect("reads")));
        assert_eq!(self.histories.found, records(then.histories()));
        // Deletions that can no longer be read may have been removed since, unless the moment keeps
        // everything.
        let kept = |changes: Changes<'_>| {
            let mut found = records(changes);
            if self.moment.keeps() != Revision::MIN {
                found.retain(|record| record.version > 0 || record.main >= self.moment.compact_revision());
            }
            found
        };
        let mut written = self.written.found.clone();
        if self.moment.keeps() != Revision::MIN {
            written.retain(|record| record.version > 0 || record.main >= self.moment.compact_revision());
        }
        assert_eq!(written, kept(then.written_after(ChangeId::default())));
        let mut hash = HashWalk::new(&then, self.revision).expect("reads");
        let mut fed = Vec::new();
        while !hash.step(&then, 1000, |version| fed.push(Record::of(version))) {}
        assert_eq!(self.hash.1, fed);
    }
}

fn run(seed: u64, operations: u64, deletes: u64) {
    let mut random = Random::new(seed);
    let mut store = Store::new();
    let mut readers: Vec<Reader> = Vec::new();
    for _ in 0..operations {
        change(&mut store, &mut random, deletes);
        if random.below(12) == 0 {
            let back = random.below(20) as i64;
            let before = store.compact_revision();
            let rev = store.current_revision() - back;
            if store.compact(rev).is_ok() && random.below(2) == 0 {
                // The hash of a compaction covers the versions that the compaction removes.
                let view = store.publish();
                let moment = view.moment().keeping_from(before);
                let mut reader = Reader::new(Arc::clone(&view), false, &mut random);
                reader.moment = moment;
                readers.push(reader);
            }
        }
        if random.below(3) == 0 {
            remove(&mut store, &readers, random.below(15));
        }
        if random.below(3) == 0 {
            let segment = random.next() as u32 >> 1;
            let values: Vec<(ChangeId, Location)> = {
                let snapshot = store.snapshot();
                let range = snapshot.range(KeyRange::ALL, Revision::CURRENT).expect("reads");
                let with_bytes = range.take(3).filter(|version| version.value_len() > 0);
                with_bytes.map(|version| (version.id(), version.location())).collect()
            };
            for (change, from) in values {
                let moved = store.relocate(change, from, Location::new(segment, change.main.0 as u32));
                assert!(moved.is_some());
            }
        }
        let newest = store.publish();
        if readers.len() < 4 && random.below(10) == 0 {
            readers.push(Reader::new(Arc::clone(&newest), random.below(3) == 0, &mut random));
        }
        if !readers.is_empty() && random.below(2) == 0 {
            let chosen = random.below(readers.len() as u64) as usize;
            readers[chosen].step(&newest, 1 + random.below(40) as usize);
            if readers[chosen].is_done() {
                readers.swap_remove(chosen).finish(&newest);
            }
        }
    }
    let newest = store.publish();
    for mut reader in readers {
        while !reader.is_done() {
            reader.step(&newest, 50);
        }
        reader.finish(&newest);
    }
}

#[test]
fn walks_in_later_views_give_what_the_view_of_the_moment_gives() {
    let (lists, operations) = if cfg!(miri) { (1, 80) } else { (10, 500) };
    for seed in 0..lists {
        run(seed, operations, 20);
        run(1000 + seed, operations, 60);
    }
}

#[test]
fn a_hash_of_a_compaction_is_computed_in_later_views() {
    let mut random = Random::new(5);
    let mut store = Store::new();
    for _ in 0..200 {
        change(&mut store, &mut random, 30);
    }
    store.compact(Revision(100)).expect("compacts");
    while !store.compact_step(u64::MAX, |_| ()).done {}
    store.compact(Revision(180)).expect("compacts");
    let then = store.publish();
    let moment = then.moment().keeping_from(Revision(100));
    let feed = |snapshot: &Snapshot<'_>, walk: &mut HashWalk, budget: usize, fed: &mut Vec<Record>| {
        walk.step(snapshot, budget, |version| fed.push(Record::of(version)))
    };
    let (mut expected, mut found) = (Vec::new(), Vec::new());
    let mut walk = HashWalk::of_compaction(&then.snapshot(), Revision(100), Revision(180));
    while !feed(&then.snapshot(), &mut walk, 1000, &mut expected) {}
    let mut walk = HashWalk::of_compaction(&then.snapshot(), Revision(100), Revision(180));
    loop {
        change(&mut store, &mut random, 30);
        store.compact_step_through(moment.keeps(), 10, |_| ());
        let newest = store.publish();
        if feed(&newest.snapshot_at(&moment).expect("is kept"), &mut walk, 7, &mut found) {
            break;
        }
    }
    assert_eq!(found, expected);
}

#[test]
fn a_moment_is_refused_once_something_it_needs_was_removed() {
    let mut random = Random::new(6);
    let mut store = Store::new();
    for _ in 0..300 {
        change(&mut store, &mut random, 30);
    }
    store.compact(Revision(100)).expect("compacts");
    let view = store.publish();
    let (readable, everything) = (view.moment(), view.moment_of_everything());
    assert_eq!((readable.keeps(), everything.keeps()), (Revision(100), Revision::MIN));
    assert!(!store.compact_step_through(everything.keeps(), u64::MAX, |_| ()).done);
    let same = store.publish();
    assert!(same.snapshot_at(&everything).is_ok(), "nothing was removed");

    assert!(store.compact_step_through(readable.keeps(), u64::MAX, |_| ()).removed > 0);
    let later = store.publish();
    assert!(later.snapshot_at(&readable).is_ok());
    assert!(later.snapshot_at(&everything.keeping_readable()).is_ok());
    assert_eq!(later.snapshot_at(&everything).err(), Some(RevisionError::Compacted));
    assert!(same.snapshot_at(&everything).is_ok(), "a view stays what it was");

    store.compact(Revision(200)).expect("compacts");
    assert!(!store.compact_step_through(readable.keeps(), u64::MAX, |_| ()).done);
    assert!(store.publish().snapshot_at(&readable).is_ok());
    while !store.compact_step(u64::MAX, |_| ()).done {}
    let beyond = store.publish();
    assert_eq!(beyond.snapshot_at(&readable).err(), Some(RevisionError::Compacted));
    change(&mut store, &mut random, 0);
    let newer = store.publish();
    assert_eq!(beyond.snapshot_at(&newer.moment()).err(), Some(RevisionError::FutureRevision));

    let other = Store::new().publish();
    assert_eq!(other.snapshot_at(&beyond.moment()).err(), Some(RevisionError::Compacted), "another store");
}

/// Returns the bytes by which the index grows for each put of an existing key while a reader reads.
fn growth(reads: impl FnOnce(Arc<View>) -> Box<dyn FnMut(&View)>) -> u64 {
    const KEYS: u64 = 50_000;
    const PUTS: u64 = 20_000;
    let mut random = Random::new(11);
    let mut store = Store::new();
    let key = |number: u64| format!("/registry/pods/default/pod-{number:08}");
    for number in 0..KEYS {
        store.begin().put(key(number).as_bytes(), Value::default(), LeaseId::NONE);
    }
    let mut read = reads(store.publish());
    drop(store.publish());
    while store.reclaim(u64::MAX) > 0 {}
    let before = store.stats().bytes;
    for number in 0..PUTS {
        store.begin().put(key(random.below(KEYS)).as_bytes(), Value::default(), LeaseId::NONE);
        // As in the server, there is one publication per batch, and the old view is dropped after the new one
        // is published.
        if number % 10 == 0 {
            read(&store.publish());
        }
    }
    (store.stats().bytes - before) / PUTS
}

#[test]
fn a_held_moment_keeps_no_nodes() {
    let nobody = growth(|_| Box::new(|_| ()));
    let held = growth(|view| {
        Box::new(move |_| {
            let _ = &view;
        })
    });
    let sliced = growth(|view| {
        let moment = view.moment();
        let mut behind: Option<Vec<u8>> = None;
        Box::new(move |newest| {
            let snapshot = newest.snapshot_at(&moment).expect("nothing is removed");
            let keys = behind.as_deref().map_or(KeyRange::ALL, |key| KeyRange::ALL.after(key));
            if let Some(last) = snapshot.range(keys, Revision::CURRENT).expect("reads").take(5).last() {
                behind = Some(last.key().to_vec());
            }
        })
    });
    println!(
        "bytes a put: {nobody} with nobody reading, {held} with a view held, {sliced} with a moment held"
    );
    assert!(held > 2000, "a view keeps the paths of all puts: {held} bytes each");
    assert!(sliced <= nobody + 16, "a moment keeps nothing: {sliced} bytes each, {nobody} without it");
}

#[test]
fn a_walk_stops_after_so_many_looks() {
    let mut store = Store::new();
    for n in 0..1000 {
        store.begin().put(format!("{n:04}").as_bytes(), Value::default(), LeaseId::NONE);
    }
    let mut writer = store.begin();
    writer.delete_range(KeyRange::half_open(b"0000", b"0500"), |_| {});
    writer.put(b"9999", Value::default(), LeaseId::NONE);
    let main = writer.revision();
    let before_put = ChangeId { main, sub: writer.changes() - 1 };
    drop(writer);
    store.begin().delete_range(KeyRange::ALL, |_| {});
    let snapshot = store.snapshot();
    // At an older revision a live key may follow any number of dead keys.
    assert_eq!(slices_of(|rest| snapshot.range(rest, Revision(3))), (2, 101));
    assert_eq!(slices_of(|rest| snapshot.range_before(rest, before_put)), (500, 101));
    assert_eq!(slices_of(|rest| snapshot.range_before(rest, ChangeId::first_of(main))), (1000, 101));
    assert_eq!(slices_of(|rest| snapshot.range_before(rest, ChangeId::first_of(main + 5))), (0, 1));
}

/// Returns the number of keys found by walks that each visit ten keys, and the number of walks.
fn slices_of<'a>(
    range: impl Fn(KeyRange<'_>) -> Result<mainstay_mvcc::Range<'a>, RevisionError>,
) -> (usize, usize) {
    let (mut found, mut slices) = (0, 0);
    let mut behind: Option<Vec<u8>> = None;
    loop {
        let rest = behind.as_deref().map_or(KeyRange::ALL, |key| KeyRange::ALL.after(key));
        let mut walk = range(rest).expect("is there");
        walk.set_looks(10);
        let here = walk.by_ref().count();
        (found, slices) = (found + here, slices + 1);
        match walk.stopped_at() {
            Some(key) => behind = Some(key.to_vec()),
            None => return (found, slices),
        }
    }
}
