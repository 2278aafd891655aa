//! Tests of stores whose settled leaves are in a base: the same operations as without a base, against the
//! naive model, with bases written, adopted, evicted and loaded again in between.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mainstay_mvcc::{
    Adoptable, BLOCK_VERSIONS_MAX, Base, Blocks, Cache, HashWalk, KeyRange, LoadError, LoadedVersion, Loader,
    Location, Store, Value, View,
};
use numbers::{ChangeId, LeaseId, Revision};

use crate::compare::{full_check, spot_check};
use crate::memory_blocks::{BaseWriter, Damage, Entry, MemoryBlocks};
use crate::model::{Mix, transaction};
use crate::moments::{Reader, remove};
use crate::naive::{Naive, Record};
use crate::random::Random;

/// One list of operations.
#[derive(Clone, Copy)]
struct Plan {
    operations: u64,
    keys: u64,
    /// Number of keys that most operations choose from, so that most leaves do not change between two bases.
    hot_keys: u64,
    /// Percentage of operations that write few other keys, and of those that may delete ranges.
    cold: u64,
    deleting: u64,
    compactions: u64,
    /// Maximum number of versions in a block.
    block: usize,
    /// Memory in bytes for loaded blocks.
    budget: u64,
}

/// A store with a base, and the model to which it must stay equal.
struct Run {
    store: Store,
    model: Naive,
    random: Random,
    cache: Arc<Cache>,
    /// Current locations of values that were relocated.
    places: BTreeMap<ChangeId, Location>,
    views: Vec<(Arc<View>, Naive)>,
    readers: Vec<Reader>,
    writer: Option<BaseWriter>,
    /// A written base that waits for removal before it is adopted.
    written: Option<Arc<MemoryBlocks>>,
    newest: Option<Arc<MemoryBlocks>>,
    plan: Plan,
    /// True if a value is relocated although a base waits, which is then not adopted.
    relocates_anyway: bool,
    /// True while keys are put until there are enough of them.
    is_filling: bool,
    adoptions: u64,
    settled_leaves: u64,
    loads: u64,
    blocks_pushed: u64,
}

impl Run {
    fn new(seed: u64, plan: Plan) -> Run {
        Run {
            store: Store::new(),
            model: Naive::new(),
            random: Random::new(seed),
            cache: Cache::new(plan.budget),
            places: BTreeMap::new(),
            views: Vec::new(),
            readers: Vec::new(),
            writer: None,
            written: None,
            newest: None,
            plan,
            relocates_anyway: false,
            is_filling: true,
            adoptions: 0,
            settled_leaves: 0,
            loads: 0,
            blocks_pushed: 0,
        }
    }

    fn may_relocate(&self) -> bool {
        let is_waiting = self.writer.is_some() || self.written.is_some();
        !self.store.is_adopting() && (!is_waiting || self.relocates_anyway)
    }

    fn operate(&mut self) {
        let random = &mut self.random;
        let few = self.store.snapshot().live_keys() < self.plan.keys / 3;
        self.is_filling = few || (self.is_filling && self.store.snapshot().live_keys() < self.plan.keys / 2);
        let is_cold = self.is_filling || random.below(100) < self.plan.cold;
        let mix = Mix {
            deletes: if !self.is_filling && random.below(100) < self.plan.deleting { 30 } else { 0 },
            compactions: 0,
            keys: if is_cold { self.plan.keys } else { self.plan.hot_keys },
            leases: if is_cold { 0 } else { 20 },
        };
        transaction(&mut self.store, &mut self.model, random, mix);
        if self.is_filling {
            for _ in 0..self.plan.keys / 20 {
                let mut writer = self.store.begin();
                let main = writer.revision();
                let (key, value) = (random.key(self.plan.keys), random.next() as u32);
                let location = Location::new(value >> 1, value ^ 7);
                writer.put(&key, Value { location, len: value / 2, crc: value }, LeaseId::NONE);
                self.model.current = writer.finish();
                self.model.write(&key, main, 0, Some((value, LeaseId::NONE)));
            }
        }
        spot_check(&self.store.snapshot(), &self.model, random);
        if random.below(100) < self.plan.compactions {
            let back = random.below(30) as i64;
            let rev = self.model.current - back;
            if rev > self.model.compacted {
                self.compact(rev);
            }
        }
        if self.random.below(2) == 0 {
            let budget = self.random.below(30 + self.plan.keys / 10);
            let mut through = self.readers.iter().map(|reader| reader.moment.keeps()).min();
            if let Some(writer) = &self.writer {
                through = Some(through.unwrap_or(Revision::MAX).min(writer.moment.keeps()));
            }
            match through {
                None => remove(&mut self.store, &[], budget),
                Some(through) => {
                    self.store.compact_step_through(through, budget, |_| ());
                }
            }
        }
        self.relocates_anyway = self.random.below(50) == 0;
        if self.random.below(4) == 0 && self.may_relocate() {
            self.relocate();
        }
        let view = self.store.publish();
        self.base_work(&view);
        if self.random.below(3) == 0 {
            let max = self.random.below(50) as usize;
            self.store.evict(max);
        }
        self.hold(view);
    }

    fn compact(&mut self, rev: Revision) {
        self.store.compact(rev).unwrap();
        let snapshot = self.store.snapshot();
        let mut walk = HashWalk::of_compaction(&snapshot, self.model.compacted, rev);
        let mut fed = Vec::new();
        while !walk.step(&snapshot, 7, |version| fed.push(Record::of(version))) {}
        assert_eq!(fed, self.model.compaction_hash_versions(rev), "compaction at {rev}");
        self.model.compacted = rev;
    }

    fn relocate(&mut self) {
        let start = self.random.key(self.plan.keys);
        let values: Vec<(ChangeId, Location)> = {
            let snapshot = self.store.snapshot();
            let range = snapshot.range(KeyRange::from(&start), Revision::CURRENT).unwrap().take(3);
            range.filter(|version| version.value_len() > 0).map(|v| (v.id(), v.location())).collect()
        };
        for (change, from) in values {
            let to = Location::new(self.random.next() as u32 >> 1, change.main.0 as u32);
            let other = Location::new(to.segment(), to.offset() ^ 1);
            assert_eq!(self.store.relocate(change, other, to), None);
            let before = self.store.relocate(change, from, to).expect("it is there");
            assert_eq!(before.location, from);
            self.places.insert(change, to);
        }
    }

    /// Writes a base, adopts one, or does nothing.
    fn base_work(&mut self, view: &View) {
        if let Some(writer) = &mut self.writer {
            let budget = 1 + self.random.below(self.plan.keys / 4 + 2) as usize;
            if !writer.step(view, budget) {
                let writer = self.writer.take().expect("it was there");
                self.written = Some(writer.finish(view));
            }
        } else if let Some(blocks) = &self.written {
            // Readers of moments may keep versions that the base does not contain.
            let base = Base::new(Arc::<MemoryBlocks>::clone(blocks), Arc::clone(&self.cache));
            match self.store.adoptable(&base, &blocks.moment) {
                Adoptable::Now => {
                    self.store.adopt(base, &blocks.moment);
                    self.newest = self.written.take();
                    self.adoptions += 1;
                }
                Adoptable::Later => {}
                // A value was relocated in the meantime.
                Adoptable::Never => self.written = None,
            }
        } else if self.store.is_adopting() {
            let progress = self.store.adopt_step(1 + self.random.below(6));
            self.settled_leaves += progress.settled_leaves;
            assert_eq!(progress.done, !self.store.is_adopting());
        } else if self.random.below(10) == 0 && self.model.compacted > Revision::FIRST {
            let is_newer = self.newest.as_ref().is_none_or(|base| base.settled() < self.model.compacted);
            if is_newer && view.moment().keeps() >= view.removed_through() {
                self.writer = Some(BaseWriter::new(view.moment(), self.plan.block));
            }
        }
    }

    /// Holds views and moments for a while, and checks them.
    fn hold(&mut self, view: Arc<View>) {
        let random = &mut self.random;
        if random.below(30) == 0 {
            self.views.push((Arc::clone(&view), self.model.clone()));
        }
        if self.readers.len() < 2 && random.below(25) == 0 {
            self.readers.push(Reader::new(Arc::clone(&view), random.below(3) == 0, random));
        }
        if !self.readers.is_empty() && random.below(2) == 0 {
            let chosen = random.below(self.readers.len() as u64) as usize;
            self.readers[chosen].step(&view, 20 + random.below(200) as usize);
            if self.readers[chosen].is_done() {
                self.readers.swap_remove(chosen).compare();
            }
        }
        if random.below(40) == 0 && !self.views.is_empty() {
            let chosen = random.below(self.views.len() as u64) as usize;
            let (view, then) = &self.views[chosen];
            full_check(&view.snapshot(), then, random);
            if random.below(2) == 0 {
                self.views.swap_remove(chosen);
            }
        }
    }

    /// Compares everything, including locations.
    fn check(&mut self) {
        full_check(&self.store.snapshot(), &self.model, &mut self.random);
        for version in self.store.snapshot().histories().filter(|version| !version.is_tombstone()) {
            let crc = version.value_crc();
            let written = Location::new(crc >> 1, crc ^ 7);
            assert_eq!(version.location(), *self.places.get(&version.id()).unwrap_or(&written));
        }
        assert!(self.store.fault().is_none());
    }

    /// Loads the state again, from the newest base and the versions that are not in it.
    fn reload(&mut self) {
        let Some(blocks) = self.newest.clone() else { return };
        let loaded = self.loaded(&blocks);
        self.views.clear();
        self.readers.clear();
        (self.writer, self.written) = (None, None);
        self.store = loaded;
        self.loads += 1;
        self.check();
    }

    fn loaded(&mut self, blocks: &Arc<MemoryBlocks>) -> Store {
        let snapshot = self.store.snapshot();
        let base = Base::new(Arc::<MemoryBlocks>::clone(blocks), Arc::clone(&self.cache));
        let mut loader = Loader::with_base(snapshot.versions(), snapshot.current_revision(), base);
        let current: Vec<Entry> = snapshot.histories().map(|v| Entry::of(&LoadedVersion::from(v))).collect();
        let mut rest = current.as_slice();
        for (number, (block, is_settled)) in blocks.keys.iter().enumerate() {
            let before = rest.partition_point(|entry| entry.key < block[0].key);
            let end = blocks
                .keys
                .get(number + 1)
                .map_or(rest.len(), |(next, _)| rest.partition_point(|entry| entry.key < next[0].key));
            rest[..before].iter().for_each(|entry| loader.push(&entry.loaded()).unwrap());
            if *is_settled && rest[before..end] == block[..] && self.random.below(10) > 0 {
                loader.push_block(number as u32).unwrap();
                self.blocks_pushed += 1;
            } else {
                rest[before..end].iter().for_each(|entry| loader.push(&entry.loaded()).unwrap());
            }
            rest = &rest[end..];
        }
        rest.iter().for_each(|entry| loader.push(&entry.loaded()).unwrap());
        loader.finish(snapshot.current_revision(), snapshot.compact_revision()).unwrap()
    }

    fn finish(mut self) {
        for reader in std::mem::take(&mut self.readers) {
            drop(reader);
        }
        while !self.store.compact_step(1000, |_| ()).done {}
        self.check();
        let stored = self.model.stored().len() as u64;
        assert_eq!((self.store.snapshot().versions(), self.store.stats().versions), (stored, stored));
        while self.store.is_adopting() {
            self.store.adopt_step(10);
        }
        self.check();
        let (census, cache) = (self.store.census(), Arc::clone(&self.cache));
        let Run { store, views, mut random, .. } = self;
        drop(store);
        for (view, then) in &views {
            full_check(&view.snapshot(), then, &mut random);
        }
        drop(views);
        assert_eq!(census.bytes(), 0);
        assert_eq!((census.versions(), census.nodes(), census.separators()), (0, 0, 0));
        assert_eq!((cache.resident_bytes(), cache.evicted_bytes()), (0, 0));
    }
}

fn run(seed: u64, plan: Plan) -> [u64; 5] {
    let mut run = Run::new(seed, plan);
    for operation in 0..plan.operations {
        run.operate();
        if operation % 50 == 0 {
            run.check();
        }
        if run.random.below(100) == 0 {
            run.reload();
        }
    }
    let cache = Arc::clone(&run.cache);
    let counts = [run.adoptions, run.settled_leaves, run.loads, run.blocks_pushed, cache.evictions()];
    run.finish();
    counts
}

/// Runs a plan with several seeds, and asserts that the runs did what they are for.
fn run_all(seeds: std::ops::Range<u64>, plan: Plan) {
    let mut sums = [0; 5];
    for seed in seeds {
        let counts = run(seed, plan);
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    println!("adoptions, settled leaves, reloads, blocks pushed, evictions: {sums:?}");
    assert!(sums.iter().all(|sum| *sum > 0), "{sums:?}");
}

const PLAN: Plan = Plan {
    operations: 700,
    keys: 900,
    hot_keys: 12,
    cold: 3,
    deleting: 4,
    compactions: 12,
    block: BLOCK_VERSIONS_MAX,
    budget: 1 << 14,
};

#[test]
fn a_store_with_bases_agrees_with_the_model() {
    run_all(0..4, PLAN);
}

#[test]
fn a_small_store_with_bases_agrees_with_the_model() {
    run_all(100..106, Plan { keys: 300, hot_keys: 3, cold: 2, budget: 1, ..PLAN });
}

#[test]
fn a_store_whose_keys_are_often_deleted_agrees_with_the_model() {
    run_all(200..203, Plan { operations: 1000, deleting: 12, cold: 2, ..PLAN });
}

#[test]
fn blocks_of_every_size_are_loaded() {
    for (seed, block) in (300..).step_by(2).zip([1, 2, 3, 7, 20, 61]) {
        run_all(seed..seed + 2, Plan { operations: 400, block, ..PLAN });
    }
}

#[test]
fn a_large_store_with_bases_agrees_with_the_model() {
    run_all(400..401, Plan { operations: 300, keys: 6_000, hot_keys: 50, budget: 1 << 17, ..PLAN });
}

/// Returns a store of `keys` keys with a base that has been adopted, and its blocks.
fn with_base(keys: u64, cache: &Arc<Cache>) -> (Store, Arc<MemoryBlocks>) {
    let mut store = Store::new();
    for n in 0..keys {
        let value = Value { len: 10, crc: n as u32, location: Location::new(1, n as u32) };
        store.begin().put(format!("/registry/pods/{:07}", n * 7919 % keys).as_bytes(), value, LeaseId::NONE);
    }
    store.begin().put(b"last", Value::default(), LeaseId::NONE);
    store.compact(store.current_revision()).unwrap();
    while !store.compact_step(1000, |_| ()).done {}
    let view = store.publish();
    let mut writer = BaseWriter::new(view.moment(), BLOCK_VERSIONS_MAX);
    while writer.step(&view, 1000) {}
    let blocks = writer.finish(&view);
    store.adopt(Base::new(Arc::<MemoryBlocks>::clone(&blocks), Arc::clone(cache)), &blocks.moment);
    while !store.adopt_step(100).done {
        store.publish();
    }
    (store, blocks)
}

#[test]
fn a_fault_is_reported_and_never_an_answer() {
    let keys = 3000;
    let mut found = 0;
    for (at, damage) in (0..600).zip(Damage::ALL.into_iter().cycle()) {
        let cache = Cache::new(0);
        let mut random = Random::new(at);
        let (mut store, blocks) = with_base(keys, &cache);
        let blocks = Arc::new(blocks.damaged(1 + random.below(60), damage));
        let base = Base::new(Arc::<MemoryBlocks>::clone(&blocks), Arc::clone(&cache));
        let (current, compacted) = (store.current_revision(), store.compact_revision());
        let mut loader = Loader::with_base(0, current, base);
        for (number, (block, is_settled)) in blocks.keys.iter().enumerate() {
            match is_settled {
                true => loader.push_block(number as u32).unwrap(),
                false => block.iter().for_each(|entry| loader.push(&entry.loaded()).unwrap()),
            }
        }
        let healthy = store.publish();
        store = loader.finish(current, compacted).unwrap();
        let view = store.publish();
        let census = store.census();
        for _ in 0..200 {
            let n = random.below(keys);
            let key = format!("/registry/pods/{n:07}").into_bytes();
            let range = KeyRange::from(&key);
            let [now, then] = [&view, &healthy].map(|view| {
                let snapshot = view.snapshot();
                let id = ChangeId::first_of(Revision(2 + n as i64));
                match n % 8 {
                    0 => snapshot.get(&key, Revision::CURRENT).unwrap().map(Record::of).into_iter().collect(),
                    1 => snapshot.range(range, Revision::CURRENT).unwrap().take(90).map(Record::of).collect(),
                    2 => {
                        let range = snapshot.range(range, Revision::CURRENT).unwrap().rev();
                        range.take(90).map(Record::of).collect::<Vec<_>>()
                    }
                    3 => snapshot.written_from(id, Revision::MAX).take(90).map(Record::of).collect(),
                    4 => snapshot.version_at(id).map(Record::of).into_iter().collect(),
                    5 => snapshot.histories_after(Some(&key)).take(90).map(Record::of).collect(),
                    6 => snapshot.range(range, compacted).unwrap().rev().take(90).map(Record::of).collect(),
                    _ => {
                        let _ = snapshot.count(range, Revision::CURRENT);
                        Vec::new()
                    }
                }
            });
            assert!(now == then || view.fault().is_some(), "{damage:?}: a wrong answer without a fault");
            if n.is_multiple_of(11) {
                store.evict(100);
                store.publish();
            }
        }
        if let Some(fault) = view.fault() {
            found += 1;
            assert!(fault.contains(" in memory: "), "{fault}");
            assert_eq!((store.fault(), cache.fault()), (Some(fault), Some(fault)));
            // What is written now is lost, but nothing panics.
            for _ in 0..50 {
                let (a, b) = (random.below(keys), random.below(keys));
                let (a, b) = (format!("/registry/pods/{a:07}"), format!("/registry/pods/{b:07}"));
                let mut writer = store.begin();
                writer.put(a.as_bytes(), Value::default(), LeaseId::NONE);
                writer.delete_range(KeyRange::half_open(b.as_bytes(), a.as_bytes()), |_| ());
                writer.put(b.as_bytes(), Value::default(), LeaseId(3));
                writer.finish();
                store.compact(store.current_revision()).unwrap();
                store.compact_step(50, |_| ());
                store.evict(10);
                store.publish();
            }
        }
        drop((store, view, healthy));
        assert_eq!((census.bytes(), cache.resident_bytes(), cache.evicted_bytes()), (0, 0, 0));
    }
    assert!(found > 500, "{found} of the damages were met");
}

#[test]
fn absent_blocks_are_those_that_a_read_would_load() {
    let cache = Cache::new(0);
    let (mut store, blocks) = with_base(5000, &cache);
    let mut random = Random::new(3);
    for round in 0..3000 {
        store.evict(usize::MAX);
        drop(store.publish());
        if round % 3 > 0 {
            // Some blocks are in memory.
            let warm = format!("/registry/pods/{:07}", random.below(5000));
            let _ = store.snapshot().get(warm.as_bytes(), Revision::CURRENT);
        }
        let (a, b) = (random.below(5000), random.below(300));
        let (a, b) = (format!("/registry/pods/{a:07}"), format!("/registry/pods/{:07}", a + b));
        let range = match random.below(4) {
            0 => KeyRange::single(a.as_bytes()),
            1 => KeyRange::half_open(a.as_bytes(), b.as_bytes()),
            2 => KeyRange::half_open(a.as_bytes(), b.as_bytes()).after(a.as_bytes()),
            _ => KeyRange::half_open(b.as_bytes(), a.as_bytes()),
        };
        let view = store.publish();
        let before = blocks.reads.load(Ordering::Relaxed);
        let mut asked = 0;
        loop {
            let absent = view.snapshot().absent(range, 3);
            assert!(absent.len() <= 3);
            if absent.is_empty() {
                break;
            }
            asked += absent.len() as u64;
            absent.iter().for_each(|block| block.load());
        }
        let loaded = blocks.reads.load(Ordering::Relaxed);
        assert_eq!(loaded - before, asked, "every absent block was really absent");
        let snapshot = view.snapshot();
        let found: Vec<_> = snapshot.range(range, Revision::CURRENT).unwrap().collect();
        assert_eq!(snapshot.count(range, Revision::CURRENT), Ok(found.len() as u64));
        assert_eq!(blocks.reads.load(Ordering::Relaxed), loaded, "a read found all blocks in memory");
    }
    assert!(store.snapshot().absent(KeyRange::half_open(b"z", b"a"), 10).is_empty());
    assert!(Store::new().snapshot().absent(KeyRange::ALL, 10).is_empty());
}

#[test]
fn a_walk_goes_on_although_its_leaves_are_evicted() {
    let cache = Cache::new(0);
    let (mut store, _) = with_base(1000, &cache);
    let view = store.publish();
    let snapshot = view.snapshot();
    let oldest = snapshot.compact_revision();
    // A write makes the oldest readable revision one that is searched for in the history of each key.
    store.begin().put(b"z", Value::default(), LeaseId::NONE);
    let newer = store.publish();
    for (snapshot, rev) in [(snapshot, Revision::CURRENT), (newer.snapshot(), oldest)] {
        let range = || snapshot.range(KeyRange::from(b"/registry/pods/0000100"), rev).unwrap();
        let expected: Vec<Record> = range().map(Record::of).collect();
        let (mut walk, mut head, mut tail) = (range(), Vec::new(), Vec::new());
        while let Some(first) = walk.next() {
            head.push(Record::of(first));
            store.evict(usize::MAX);
            tail.extend(walk.next_back().map(Record::of));
            store.evict(usize::MAX);
            drop(store.publish());
        }
        head.extend(tail.into_iter().rev());
        assert_eq!(head, expected);
    }
    assert!(cache.evictions() > 30);
}

#[test]
fn a_base_takes_the_place_of_nearly_all_memory() {
    const KEYS: u64 = 40_000;
    let cache = Cache::new(0);
    let (mut store, blocks) = with_base(KEYS, &cache);
    drop(store.publish());
    while store.reclaim(1000) > 0 {}
    let per_key = store.stats().bytes as f64 / KEYS as f64;
    assert!(per_key < 4.0, "{per_key} bytes per key are in memory");
    assert_eq!(cache.resident_bytes(), 0);
    assert!(blocks.settled_blocks() > 600);
    assert_eq!(store.stats().pinned_bytes, 0);
    // All of it can be read, evicted, and read again.
    for _ in 0..2 {
        assert_eq!(
            store.snapshot().range(KeyRange::ALL, Revision::CURRENT).unwrap().count() as u64,
            KEYS + 1
        );
        assert_eq!(store.snapshot().written(Revision::MIN, Revision::MAX).count() as u64, KEYS + 1);
        let resident = cache.resident_bytes();
        assert!(resident / KEYS > 100 && cache.is_over());
        let view = store.publish();
        while cache.is_over() {
            store.evict(50);
        }
        assert!(cache.resident_bytes() > 0, "evicting more while a view is held frees nothing");
        assert_eq!(cache.resident_bytes() + cache.evicted_bytes(), resident);
        drop(view);
        while cache.resident_bytes() > 0 {
            drop(store.publish());
            while store.reclaim(1000) > 0 {}
            assert_eq!(cache.evicted_bytes(), 0);
            while cache.is_over() {
                store.evict(50);
            }
        }
        drop(store.publish());
        while store.reclaim(1000) > 0 {}
        assert_eq!(cache.evicted_bytes(), 0);
    }
}

#[test]
fn what_a_start_had_to_load_counts_as_growth() {
    const KEYS: u64 = 20_000;
    let cache = Cache::new(0);
    let (store, blocks) = with_base(KEYS, &cache);
    let (current, compacted) = (store.current_revision(), store.compact_revision());
    // Every `nth` block is loaded, as if a delta run had a version in its range.
    let pinned = |nth: usize| {
        let base = Base::new(Arc::<MemoryBlocks>::clone(&blocks), Arc::clone(&cache));
        let mut loader = Loader::with_base(KEYS, current, base);
        for (number, (block, is_settled)) in blocks.keys.iter().enumerate() {
            match *is_settled && (number + 1) % nth != 0 {
                true => loader.push_block(number as u32).unwrap(),
                false => block.iter().for_each(|entry| loader.push(&entry.loaded()).unwrap()),
            }
        }
        let mut store = loader.finish(current, compacted).unwrap();
        drop(store.publish());
        store.stats().pinned_bytes
    };
    let (none, half, all) = (pinned(usize::MAX), pinned(2), pinned(1));
    assert!(none < 8000, "only the last block, which is not settled: {none}");
    assert!(half > KEYS / 2 * 50 && all > KEYS * 50, "{half}, {all}");
}

#[test]
fn an_old_base_is_referenced_until_its_last_view_is_dropped() {
    let cache = Cache::new(0);
    let (mut store, _) = with_base(2000, &cache);
    let view = store.publish();
    for n in 0..500 {
        let key = format!("/registry/pods/{:07}", n * 4);
        store.begin().put(key.as_bytes(), Value::default(), LeaseId::NONE);
    }
    store.compact(store.current_revision()).unwrap();
    while !store.compact_step(1000, |_| ()).done {}
    let newer = store.publish();
    let mut writer = BaseWriter::new(newer.moment(), BLOCK_VERSIONS_MAX);
    while writer.step(&newer, 1000) {}
    let blocks = writer.finish(&newer);
    assert_eq!(store.old_bases(), 0);
    let moment = blocks.moment;
    store.adopt(Base::new(blocks, Arc::clone(&cache)), &moment);
    assert_eq!(store.old_bases(), 1);
    while !store.adopt_step(3).done {
        drop(store.publish());
        assert_eq!(store.old_bases(), 1);
    }
    let then = view.snapshot().histories().count();
    drop(newer);
    drop(store.publish());
    while store.reclaim(1000) > 0 {}
    assert_eq!(store.old_bases(), 1, "the view still reads it");
    assert_eq!(view.snapshot().histories().count(), then);
    drop(view);
    drop(store.publish());
    while store.reclaim(1000) > 0 {}
    assert_eq!(store.old_bases(), 0);
}

#[test]
fn contradictory_images_with_a_base_are_refused_and_leave_nothing() {
    let cache = Cache::new(0);
    let (store, blocks) = with_base(300, &cache);
    let (current, compacted) = (store.current_revision(), store.compact_revision());
    let settled = blocks.keys.iter().position(|(_, is_settled)| *is_settled).expect("there is one") as u32;
    let unsettled = blocks.keys.iter().position(|(_, is_settled)| !is_settled).expect("`last`") as u32;
    let new = || {
        let base = Base::new(Arc::<MemoryBlocks>::clone(&blocks), Arc::clone(&cache));
        Loader::with_base(10, current, base)
    };
    let version = |key: &'static [u8], main| LoadedVersion {
        key,
        main: Revision(main),
        sub: 0,
        create_revision: Revision(main),
        version: 1,
        lease: LeaseId::NONE,
        value: Value::default(),
    };
    let refused = |build: &dyn Fn(&mut Loader) -> Result<(), LoadError>, error| {
        let mut loader = new();
        let census = loader.census();
        assert_eq!(build(&mut loader), Err(error));
        drop(loader);
        assert_eq!((census.bytes(), census.nodes()), (0, 0));
    };
    refused(&|loader| loader.push_block(unsettled), LoadError::InvalidBlock);
    refused(&|loader| loader.push_block(u32::MAX), LoadError::InvalidBlock);
    refused(
        &|loader| Loader::new(0, current).push_block(0).and(loader.push_block(0)),
        LoadError::InvalidBlock,
    );
    refused(
        &|loader| loader.push_block(settled + 1).and_then(|()| loader.push_block(settled)),
        LoadError::OutOfOrder,
    );
    refused(
        &|loader| loader.push_block(settled).and_then(|()| loader.push_block(settled)),
        LoadError::OutOfOrder,
    );
    refused(
        &|loader| {
            loader.push(&version(b"zz", 400))?;
            loader.push_block(settled)
        },
        LoadError::OutOfOrder,
    );
    refused(
        &|loader| {
            loader.push(&version(b"a", 3))?;
            loader.push_block(settled)?;
            loader.push_block(settled + 1)?;
            loader.push(&version(b"/registry/pods/0000100", 4))
        },
        LoadError::OutOfOrder,
    );
    refused(
        &|loader| {
            loader.push(&LoadedVersion { version: 0, create_revision: Revision(0), ..version(b"a", 3) })
        },
        LoadError::InvalidHistory,
    );
    for (build, finish, error) in [
        (version(b"b", 3), (current, compacted), LoadError::RevisionTwice),
        (version(b"b", 4), (current, compacted - 1), LoadError::RevisionOutOfBounds),
    ] {
        let mut loader = new();
        let census = loader.census();
        loader.push(&version(b"a", 3)).unwrap();
        loader.push(&build).unwrap();
        assert_eq!(loader.finish(finish.0, finish.1).err(), Some(error));
        assert_eq!(census.bytes(), 0);
    }
}
