//! Stores with bases in situations that are rare or wrong: damaged blocks during an adoption, bases that are not
//! of the right moment, bases that are given to two stores, held views, large ranges.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use mainstay_mvcc::{
    Adoptable, BLOCK_VERSIONS_MAX, Base, BlockId, Blocks, Cache, ChangeBlock, KeyBlock, KeyRange, LoadError,
    LoadedVersion, Loader, Location, NO_BLOCK, Store, Value, View,
};
use numbers::{ChangeId, LeaseId, Revision};

use crate::memory_blocks::{BaseWriter, Damage, Entry, MemoryBlocks};
use crate::random::Random;

/// Blocks given literally.
struct Given {
    settled: Revision,
    keys: Vec<(Vec<Entry>, bool)>,
    changes: Vec<Vec<(Entry, u32)>>,
    fails: AtomicBool,
    asked: AtomicU64,
}

impl Given {
    fn new(settled: i64, keys: Vec<(Vec<Entry>, bool)>) -> Arc<Given> {
        let mut listed: Vec<(Entry, u32)> = Vec::new();
        for (number, (block, is_settled)) in keys.iter().enumerate() {
            for entry in block.iter().filter(|entry| entry.main <= Revision(settled) && entry.version > 0) {
                listed.push((entry.clone(), if *is_settled { number as u32 } else { NO_BLOCK }));
            }
        }
        listed.sort_by_key(|(entry, _)| entry.id());
        let changes = listed.chunks(56).map(<[_]>::to_vec).collect();
        Arc::new(Given {
            settled: Revision(settled),
            keys,
            changes,
            fails: AtomicBool::new(false),
            asked: AtomicU64::new(0),
        })
    }
}

impl Blocks for Given {
    fn settled(&self) -> Revision {
        self.settled
    }

    fn key_blocks(&self) -> u32 {
        self.keys.len() as u32
    }

    fn change_blocks(&self) -> u32 {
        self.changes.len() as u32
    }

    fn key_block(&self, number: u32) -> KeyBlock<'_> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let (entries, is_settled) = &self.keys[number as usize];
        KeyBlock { first_key: &entries[0].key, versions: entries.len() as u32, is_settled: *is_settled }
    }

    fn change_block(&self, number: u32) -> ChangeBlock {
        let entries = &self.changes[number as usize];
        ChangeBlock { first: entries[0].0.id(), versions: entries.len() as u32 }
    }

    fn read(&self, block: BlockId, visit: &mut dyn FnMut(&LoadedVersion<'_>, u32)) -> Result<(), String> {
        if self.fails.load(Ordering::Relaxed) {
            return Err("input/output error".to_owned());
        }
        match block {
            BlockId::Keys(number) => {
                self.keys[number as usize].0.iter().for_each(|entry| visit(&entry.loaded(), NO_BLOCK));
            }
            BlockId::Changes(number) => {
                self.changes[number as usize].iter().for_each(|(entry, at)| visit(&entry.loaded(), *at));
            }
        }
        Ok(())
    }

    fn describe(&self, block: BlockId) -> String {
        format!("{block:?} given")
    }
}

fn entry(key: &str, main: i64) -> Entry {
    Entry {
        key: key.as_bytes().to_vec(),
        main: Revision(main),
        sub: 0,
        create_revision: Revision(main),
        version: 1,
        lease: LeaseId::NONE,
        value: Value { location: Location::new(1, main as u32), len: 10, crc: main as u32 },
    }
}

fn put(store: &mut Store, key: &str) -> i64 {
    let main = store.current_revision().0 + 1;
    let value = Value { location: Location::new(1, main as u32), len: 10, crc: main as u32 };
    store.begin().put(key.as_bytes(), value, LeaseId::NONE);
    main
}

fn delete(store: &mut Store, key: &str) {
    store.begin().delete_range(KeyRange::single(key.as_bytes()), |_| ());
}

fn compact(store: &mut Store) {
    store.compact(store.current_revision()).unwrap();
    while !store.compact_step(1000, |_| ()).done {}
}

fn keys(store: &Store) -> Vec<String> {
    let snapshot = store.snapshot();
    let range = snapshot.range(KeyRange::ALL, Revision::CURRENT).unwrap();
    range.map(|version| String::from_utf8(version.key().to_vec()).unwrap()).collect()
}

fn written(view: &View, versions_max: usize) -> Arc<MemoryBlocks> {
    let mut writer = BaseWriter::new(view.moment(), versions_max);
    while writer.step(view, 1000) {}
    writer.finish(view)
}

fn adopt(store: &mut Store, blocks: &Arc<MemoryBlocks>, cache: &Arc<Cache>) {
    store.adopt(Base::new(Arc::<MemoryBlocks>::clone(blocks), Arc::clone(cache)), &blocks.moment);
    while !store.adopt_step(100).done {
        store.publish();
    }
    store.publish();
}

fn filled(n: u64) -> Store {
    let mut store = Store::new();
    for n in 0..n {
        put(&mut store, &format!("k{n:07}"));
    }
    put(&mut store, "zz");
    compact(&mut store);
    store
}

fn loaded(blocks: &Arc<Given>, cache: &Arc<Cache>) -> Store {
    let base = Base::new(Arc::<Given>::clone(blocks), Arc::clone(cache));
    let mut loader = Loader::with_base(0, Revision(5), base);
    loader.push_block(0).unwrap();
    loader.finish(Revision(5), Revision(5)).unwrap()
}

fn abc() -> Vec<Entry> {
    vec![entry("a", 2), entry("b", 3), entry("c", 4)]
}

#[test]
fn a_fault_of_the_base_before_ends_the_adoption_and_is_kept() {
    let cache = Cache::new(0);
    let first = Given::new(4, vec![(abc(), true)]);
    let mut store = loaded(&first, &cache);
    let second = Given::new(4, vec![(vec![entry("a", 2)], true), (vec![entry("b", 3), entry("c", 4)], true)]);
    first.fails.store(true, Ordering::Relaxed);
    let moment = store.moment();
    store.adopt(Base::new(second, Arc::clone(&cache)), &moment);
    for _ in 0..5 {
        let progress = store.adopt_step(10);
        assert!(!progress.done && store.is_adopting());
    }
    assert!(store.fault().is_some() && store.publish().fault().is_some());
    // The leaf that could not be read is still a stub, so that nothing is lost.
    assert_eq!(store.stats().keys, 3);
    assert_eq!(store.census().versions(), 0);
}

#[test]
fn a_leaf_that_reaches_into_the_next_block_is_not_taken_for_a_block() {
    let cache = Cache::new(0);
    let mut store = filled(100);
    put(&mut store, "k0000010x");
    put(&mut store, "zz");
    compact(&mut store);
    // The leaf has 57 entries, and its first block 56 of them.
    let blocks = written(&store.publish(), 56);
    delete(&mut store, "k0000010x");
    put(&mut store, "zz");
    compact(&mut store);
    // Now the leaf has as many entries as the block, and begins with the same key.
    let expected = keys(&store);
    adopt(&mut store, &blocks, &cache);
    assert_eq!(keys(&store), expected);
}

#[test]
fn stubs_that_no_new_block_equals_become_leaves() {
    let cache = Cache::new(0);
    let mut store = filled(300);
    let first = written(&store.publish(), BLOCK_VERSIONS_MAX);
    adopt(&mut store, &first, &cache);
    put(&mut store, "zz");
    compact(&mut store);
    // Blocks of another size equal no leaf.
    let second = written(&store.publish(), 10);
    adopt(&mut store, &second, &cache);
    for _ in 0..10 {
        store.publish();
        store.reclaim(1000);
    }
    assert_eq!(store.old_bases(), 0);
    assert!(store.census().versions() >= 300);
    assert_eq!(keys(&store).len(), 301);
}

#[test]
fn a_base_is_adopted_only_if_nothing_was_adopted_or_relocated_since_its_moment() {
    let cache = Cache::new(0);
    let mut store = filled(100);
    let first = written(&store.publish(), 56);
    put(&mut store, "k0000010x");
    put(&mut store, "zz");
    compact(&mut store);
    // The block of this base has the number of entries and the first key of one of the first base.
    let second = written(&store.publish(), 56);
    delete(&mut store, "k0000010x");
    put(&mut store, "zz");
    compact(&mut store);
    let expected = keys(&store);
    adopt(&mut store, &first, &cache);
    assert_eq!(keys(&store), expected);
    let base = Base::new(Arc::<MemoryBlocks>::clone(&second), Arc::clone(&cache));
    assert_eq!(store.adoptable(&base, &second.moment), Adoptable::Never);

    put(&mut store, "zz");
    compact(&mut store);
    let third = written(&store.publish(), 56);
    let base = Base::new(Arc::<MemoryBlocks>::clone(&third), Arc::clone(&cache));
    assert_eq!(store.adoptable(&base, &third.moment), Adoptable::Now);
    let version = store.snapshot().get(b"k0000003", Revision::CURRENT).unwrap().unwrap();
    let (id, from) = (version.id(), version.location());
    assert!(store.relocate(id, from, Location::new(77, 77)).is_some());
    assert_eq!(store.adoptable(&base, &third.moment), Adoptable::Never);
    // A moment of another store is refused, too.
    assert_eq!(filled(10).adoptable(&base, &third.moment), Adoptable::Never);
}

#[test]
fn nothing_is_relocated_during_an_adoption() {
    let cache = Cache::new(0);
    let mut store = filled(100);
    let blocks = written(&store.publish(), BLOCK_VERSIONS_MAX);
    store.adopt(Base::new(Arc::<MemoryBlocks>::clone(&blocks), Arc::clone(&cache)), &blocks.moment);
    let version = store.snapshot().get(b"k0000003", Revision::CURRENT).unwrap().unwrap();
    let (id, from) = (version.id(), version.location());
    assert_eq!(store.relocate(id, from, Location::new(77, 77)), None);
    while !store.adopt_step(10).done {}
    let location = |store: &Store| store.snapshot().version_at(id).unwrap().location();
    assert_eq!(location(&store), from);
    assert!(store.relocate(id, from, Location::new(77, 77)).is_some());
    store.evict(usize::MAX);
    assert_eq!(location(&store), Location::new(77, 77));
}

#[test]
fn versions_whose_removal_is_under_way_are_found_until_they_are_removed() {
    let cache = Cache::new(0);
    for removed in [0, 1, 3, 9] {
        let mut store = filled(100);
        let base = written(&store.publish(), 56);
        let mut ids = Vec::new();
        let mut writer = store.begin();
        // The first five are superseded by one transaction, the others by one each.
        for n in 0..10 {
            let key = format!("k{n:07}");
            let value = Value { len: 1, ..Value::default() };
            ids.push(writer.snapshot().get(key.as_bytes(), Revision::CURRENT).unwrap().unwrap().id());
            writer.put(key.as_bytes(), value, LeaseId::NONE);
            if n >= 4 {
                writer.finish();
                writer = store.begin();
            }
        }
        writer.finish();
        store.compact(store.current_revision()).unwrap();
        assert_eq!(store.compact_step(removed, |_| ()).removed, removed);
        let moment = store.publish().moment_of_everything();
        let count = |store: &mut Store| {
            let view = store.publish();
            let snapshot = view.snapshot_at(&moment).unwrap();
            let written = snapshot.written(Revision::MIN, Revision::MAX).count() as u64;
            let found: Vec<bool> = ids.iter().map(|id| snapshot.version_at(*id).is_some()).collect();
            (snapshot.versions(), written, found)
        };
        let before = count(&mut store);
        assert_eq!(before.0, before.1);
        adopt(&mut store, &base, &cache);
        assert_eq!(count(&mut store), before, "{removed} removed");
        let moved = store.relocate(ids[9], Location::new(1, ids[9].main.0 as u32), Location::new(2, 2));
        assert!(moved.is_some());
    }
}

#[test]
#[should_panic(expected = "a base belongs to one store")]
fn a_base_is_not_given_to_two_stores() {
    let cache = Cache::new(0);
    let base = Base::new(Given::new(4, vec![(abc(), true)]), cache);
    drop(Loader::with_base(0, Revision(5), Arc::clone(&base)));
    drop(Loader::with_base(0, Revision(5), base));
}

#[test]
fn a_base_is_adopted_once() {
    let cache = Cache::new(0);
    let mut store = filled(300);
    let blocks = written(&store.publish(), BLOCK_VERSIONS_MAX);
    let base = Base::new(Arc::<MemoryBlocks>::clone(&blocks), Arc::clone(&cache));
    store.adopt(Arc::clone(&base), &blocks.moment);
    while !store.adopt_step(10).done {}
    assert_eq!(store.adoptable(&base, &store.moment()), Adoptable::Never);
}

#[test]
fn eviction_under_a_held_view_stops_before_it_wastes_memory() {
    let cache = Cache::new(1 << 16);
    let mut store = filled(20_000);
    let blocks = written(&store.publish(), BLOCK_VERSIONS_MAX);
    adopt(&mut store, &blocks, &cache);
    while store.reclaim(1000) > 0 {}
    let held = store.publish();
    let mut most = 0;
    for _ in 0..20 {
        for n in 0..20_000 / 40 {
            let key = format!("k{:07}", n * 40);
            let _ = store.snapshot().get(key.as_bytes(), Revision::CURRENT);
            store.evict(8);
            drop(store.publish());
        }
        most = most.max(cache.resident_bytes() + cache.evicted_bytes());
    }
    drop(held);
    let whole = 20_000 * 150;
    assert!(most < 2 * whole, "{most} bytes for an index of {whole}");
}

#[test]
fn evicting_one_block_after_each_read_keeps_the_budget() {
    let cache = Cache::new(1 << 19);
    let mut store = filled(60_000);
    let blocks = written(&store.publish(), BLOCK_VERSIONS_MAX);
    adopt(&mut store, &blocks, &cache);
    while store.reclaim(1000) > 0 {}
    let mut random = Random::new(1);
    let mut most = 0;
    for _ in 0..4000 {
        let key = format!("k{:07}", random.below(60_000));
        let _ = store.snapshot().get(key.as_bytes(), Revision::CURRENT);
        store.evict(1);
        drop(store.publish());
        most = most.max(cache.resident_bytes());
    }
    assert!(most < 1 << 19, "{most} bytes are resident");
}

#[test]
fn a_base_before_is_freed_in_portions() {
    let cache = Cache::new(1 << 40);
    let mut store = filled(30_000);
    let blocks = written(&store.publish(), BLOCK_VERSIONS_MAX);
    adopt(&mut store, &blocks, &cache);
    assert_eq!(store.snapshot().range(KeyRange::ALL, Revision::CURRENT).unwrap().count(), 30_001);
    put(&mut store, "zz");
    compact(&mut store);
    let blocks = written(&store.publish(), BLOCK_VERSIONS_MAX);
    let held = store.publish();
    adopt(&mut store, &blocks, &cache);
    drop(held);
    let all = |cache: &Cache| cache.resident_bytes() + cache.evicted_bytes();
    let mut most = 0;
    loop {
        let before = all(&cache);
        let left = store.reclaim(1);
        most = most.max(before - all(&cache));
        if left == 0 {
            break;
        }
    }
    assert!(most < 1 << 16, "one object of garbage freed {most} bytes");
}

#[test]
fn a_step_of_an_adoption_looks_at_few_blocks() {
    let cache = Cache::new(0);
    let mut store = filled(60_000);
    let base = written(&store.publish(), BLOCK_VERSIONS_MAX);
    let given = Given::new(base.settled().0, base.keys.clone());
    store.begin().delete_range(KeyRange::half_open(b"k0000100", b"k0059900"), |_| ());
    put(&mut store, "zz");
    compact(&mut store);
    store.adopt(Base::new(Arc::<Given>::clone(&given), Arc::clone(&cache)), &base.moment);
    let mut most = 0;
    loop {
        let before = given.asked.load(Ordering::Relaxed);
        let done = store.adopt_step(1).done;
        most = most.max(given.asked.load(Ordering::Relaxed) - before);
        if done {
            break;
        }
    }
    assert!(most < 60, "one step looked at {most} blocks");
}

#[test]
fn absent_looks_at_few_leaves_and_counts_as_no_use() {
    let cache = Cache::new(1 << 16);
    let mut store = filled(20_000);
    let blocks = written(&store.publish(), BLOCK_VERSIONS_MAX);
    adopt(&mut store, &blocks, &cache);
    let view = store.publish();
    // Only the last block is not in memory.
    let range = KeyRange::half_open(b"k", b"k0019900");
    assert_eq!(view.snapshot().range(range, Revision::CURRENT).unwrap().count(), 19_900);
    assert!(view.snapshot().absent(KeyRange::ALL, 1).is_empty(), "it is far away");
    assert_eq!(view.snapshot().absent(KeyRange::from(b"k0019990"), 1).len(), 1);
    drop(view);
    // Blocks that were used once are evicted at the first look of the clock.
    let resident = cache.resident_bytes();
    let evicted = store.evict(10);
    assert_eq!(evicted, 10, "of {resident} bytes");
    assert!(store.snapshot().absent(KeyRange::ALL, 0).is_empty());
}

#[test]
fn nothing_is_absent_after_a_fault() {
    let cache = Cache::new(0);
    let first = Given::new(4, vec![(abc(), true)]);
    let mut store = loaded(&first, &cache);
    first.fails.store(true, Ordering::Relaxed);
    let view = store.publish();
    let absent = view.snapshot().absent(KeyRange::ALL, 10);
    assert_eq!(absent.len(), 1);
    absent[0].load();
    assert!(view.fault().is_some() && view.snapshot().absent(KeyRange::ALL, 10).is_empty());
}

#[test]
fn blocks_are_pushed_in_ascending_order_only() {
    let keys = ["m", "b", "x"].iter().zip(2..).map(|(key, main)| (vec![entry(key, main)], true)).collect();
    let base = Base::new(Given::new(9, keys), Cache::new(0));
    let mut loader = Loader::with_base(0, Revision(11), base);
    assert_eq!(loader.push_block(0), Err(LoadError::OutOfOrder));
}

#[test]
fn everything_goes_on_after_a_fault_without_a_panic_and_the_fault_is_kept() {
    let mut panics = std::collections::BTreeMap::<String, u64>::new();
    let mut forgotten = 0;
    for seed in 1..=25 {
        let result = std::panic::catch_unwind(|| {
            let mut random = Random::new(seed);
            let cache = Cache::new(0);
            let keys = 1500 + random.below(3) * 3000;
            let mut store = filled(keys);
            let view = store.publish();
            let blocks = written(&view, 20 + random.below(43) as usize);
            drop(view);
            let damage = Damage::ALL[random.below(Damage::ALL.len() as u64) as usize];
            let blocks = Arc::new(blocks.damaged(1 + random.below(900), damage));
            let (current, compacted) = (store.current_revision(), store.compact_revision());
            let base = Base::new(Arc::<MemoryBlocks>::clone(&blocks), Arc::clone(&cache));
            let mut loader = Loader::with_base(0, current, base);
            for (number, (block, is_settled)) in blocks.keys.iter().enumerate() {
                match is_settled {
                    true => loader.push_block(number as u32).unwrap(),
                    false => block.iter().for_each(|entry| loader.push(&entry.loaded()).unwrap()),
                }
            }
            store = loader.finish(current, compacted).unwrap();
            let census = store.census();
            let (mut seen, mut is_forgotten) = (false, false);
            let mut second: Option<Arc<MemoryBlocks>> = None;
            for _ in 0..400 {
                let a = format!("k{:07}", random.below(keys));
                let b = format!("k{:07}", random.below(keys));
                let (a, b) = if a < b { (a, b) } else { (b, a) };
                let range = KeyRange::half_open(a.as_bytes(), b.as_bytes());
                match random.below(14) {
                    0..=2 => {
                        put(&mut store, &a);
                    }
                    3 => {
                        store.begin().delete_range(KeyRange::half_open(a.as_bytes(), b.as_bytes()), |_| ());
                    }
                    4 => {
                        let _ = store.compact(store.current_revision() - random.below(3) as i64);
                    }
                    5 => {
                        store.compact_step(random.below(2000), |_| ());
                    }
                    6 => {
                        let snapshot = store.snapshot();
                        let oldest = snapshot.compact_revision();
                        let found = snapshot.range(range, oldest).unwrap().rev().count();
                        let _ = snapshot.range(range, Revision::CURRENT).unwrap().count() + found;
                    }
                    7 => {
                        let snapshot = store.snapshot();
                        let _ = snapshot.written(Revision::MIN, Revision::MAX).count();
                        let _ = snapshot.histories().count();
                    }
                    8 => {
                        let snapshot = store.snapshot();
                        let mut walk = mainstay_mvcc::HashWalk::new(&snapshot, Revision(0)).unwrap();
                        let mut steps = 0;
                        while !walk.step(&snapshot, 100, |_| ()) {
                            steps += 1;
                            assert!(steps < 10_000, "an endless hash");
                        }
                    }
                    9 => {
                        let found = store
                            .snapshot()
                            .version_at(ChangeId::first_of(Revision(2 + random.below(keys) as i64)))
                            .map(|v| (v.id(), v.location()));
                        if let Some((id, from)) = found.filter(|_| !store.is_adopting()) {
                            store.relocate(id, from, Location::new(1, id.main.0 as u32));
                        }
                    }
                    10 => {
                        store.evict(random.below(30) as usize);
                    }
                    11 if second.is_none()
                        && store.fault().is_none()
                        && store.compact_revision() > compacted =>
                    {
                        while !store.compact_step(1000, |_| ()).done {}
                        let view = store.publish();
                        let mut writer = BaseWriter::new(view.moment(), 5 + random.below(58) as usize);
                        while writer.step(&view, 1000) {}
                        if view.snapshot().written(Revision::MIN, Revision::MAX).count() == 0
                            || view.fault().is_some()
                        {
                            continue;
                        }
                        second = Some(writer.finish(&view));
                        drop(view);
                        let base = Base::new(
                            Arc::<MemoryBlocks>::clone(second.as_ref().unwrap()),
                            Arc::clone(&cache),
                        );
                        let moment = second.as_ref().unwrap().moment;
                        if store.adoptable(&base, &moment) == Adoptable::Now {
                            store.adopt(base, &moment);
                        }
                    }
                    12 if store.is_adopting() => {
                        store.adopt_step(random.below(10));
                    }
                    _ => drop(store.publish()),
                }
                is_forgotten |= seen && store.fault().is_none();
                seen |= store.fault().is_some();
            }
            drop(store);
            assert_eq!((census.bytes(), cache.resident_bytes(), cache.evicted_bytes()), (0, 0, 0));
            is_forgotten
        });
        match result {
            Ok(is_forgotten) => forgotten += u64::from(is_forgotten),
            Err(what) => {
                let text = what
                    .downcast_ref::<String>()
                    .cloned()
                    .or_else(|| what.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                    .unwrap_or_default();
                *panics
                    .entry(format!("{} (e.g. seed {seed})", text.replace(|c: char| c.is_ascii_digit(), "#")))
                    .or_default() += 1;
            }
        }
    }
    println!("forgotten faults: {forgotten}; panics: {panics:#?}");
    assert!(panics.is_empty() && forgotten == 0);
}
