//! Long random lists of operations, run against the index and the naive model side by side.

use std::sync::Arc;

use mainstay_mvcc::{HashWalk, KeyRange, Location, RevisionError, Store, Value, View};
use numbers::{LeaseId, Revision};

use crate::compare::{KEYS, full_check, spot_check};
use crate::naive::{Naive, Record};
use crate::random::Random;

/// Frequency of each kind of operation in a list.
#[derive(Clone, Copy)]
pub struct Mix {
    pub deletes: u64,
    pub compactions: u64,
    pub keys: u64,
    /// Percentage of puts that have a lease.
    pub leases: u64,
}

/// Runs one transaction of a few changes in the store and in the model.
pub fn transaction(store: &mut Store, model: &mut Naive, random: &mut Random, mix: Mix) {
    let before = store.current_revision();
    let mut writer = store.begin();
    let main = writer.revision();
    let mut sub = 0;
    let mut deleted_keys = Vec::new();
    for _ in 0..[1, 1, 1, 2, 5][random.below(5) as usize] {
        if random.below(100) < mix.deletes {
            let (start, end) = (random.key(mix.keys), random.key(mix.keys));
            let (range, doomed) = match random.below(20) {
                0 => (KeyRange::from(&start), model.range(&start, None, Revision::MAX)),
                1..8 => (KeyRange::half_open(&start, &end), model.range(&start, Some(&end), Revision::MAX)),
                _ => (KeyRange::single(&start), Vec::from_iter(model.get(&start, Revision::MAX).cloned())),
            };
            let mut visited = Vec::new();
            let deleted = writer.delete_range(range, |change| {
                visited.push((Record::of(change.version), Record::of(change.previous.expect("it was live"))));
            });
            assert_eq!(deleted, doomed.len() as u64);
            for (record, (tombstone, previous)) in doomed.into_iter().zip(visited) {
                assert_eq!(tombstone, model.write(&record.key, main, sub, None));
                assert_eq!(previous, record);
                deleted_keys.push(record.key);
                sub += 1;
            }
        } else {
            let (key, value) = (random.key(mix.keys), random.next() as u32);
            let is_leased = random.below(100) < mix.leases;
            let lease = if is_leased { LeaseId(1 + random.below(4) as i64) } else { LeaseId::NONE };
            if deleted_keys.contains(&key) {
                // No request may put a key after deleting it, see `Writer::put`.
                continue;
            }
            let previous = model.get(&key, Revision::MAX).cloned();
            let location = Location::new(value >> 1, value ^ 7);
            let change = writer.put(&key, Value { location, len: value / 2, crc: value }, lease);
            assert_eq!(change.version.value(), Value { location, len: value / 2, crc: value });
            assert_eq!(change.previous.map(Record::of), previous);
            assert_eq!(Record::of(change.version), model.write(&key, main, sub, Some((value, lease))));
            sub += 1;
        }
        assert_eq!(writer.changes(), sub);
        model.current = before + i64::from(sub > 0);
        spot_check(&writer.snapshot(), model, random);
    }
    assert_eq!(writer.finish(), model.current);
    assert_eq!(store.current_revision(), model.current);
}

fn run(seed: u64, operations: u64, mix: Mix) {
    let mut random = Random::new(seed);
    let mut store = Store::new();
    let mut model = Naive::new();
    let mut views: Vec<(Arc<View>, Naive)> = Vec::new();
    for operation in 0..operations {
        transaction(&mut store, &mut model, &mut random, mix);
        spot_check(&store.snapshot(), &model, &mut random);
        if random.below(100) < mix.compactions {
            let rev = Revision(random.below(model.current.0 as u64 + 2) as i64);
            let expected = match rev {
                _ if rev <= model.compacted => Err(RevisionError::Compacted),
                _ if rev > model.current => Err(RevisionError::FutureRevision),
                _ => Ok(()),
            };
            assert_eq!(store.compact(rev), expected);
            if expected.is_ok() {
                let snapshot = store.snapshot();
                let mut walk = HashWalk::of_compaction(&snapshot, model.compacted, rev);
                assert_eq!((walk.revision(), walk.compact_revision()), (rev, model.compacted));
                let mut fed = Vec::new();
                while !walk.step(&snapshot, 7, |version| fed.push(Record::of(version))) {}
                assert_eq!(fed, model.compaction_hash_versions(rev), "compaction at {rev}");
                model.compacted = rev;
            }
        }
        if random.below(3) == 0 {
            let budget = random.below(20);
            let mut seen = 0;
            let progress = store.compact_step(budget, |version| {
                assert!(version.main() <= model.compacted);
                seen += 1;
            });
            assert_eq!(progress.removed, seen);
            assert!(progress.removed == budget || progress.done);
        }
        if random.below(4) == 0 {
            let view = store.publish();
            if random.below(10) == 0 {
                views.push((view, model.clone()));
            }
        }
        if random.below(20) == 0 && !views.is_empty() {
            let chosen = random.below(views.len() as u64) as usize;
            let (view, then) = &views[chosen];
            full_check(&view.snapshot(), then, &mut random);
            if random.below(2) == 0 {
                views.swap_remove(chosen);
            }
        }
        if operation % 50 == 0 {
            full_check(&store.snapshot(), &model, &mut random);
        }
    }
    while !store.compact_step(1000, |_| ()).done {}
    full_check(&store.snapshot(), &model, &mut random);
    assert_eq!(store.snapshot().versions(), model.stored().len() as u64);
    assert_eq!(store.stats().versions, model.stored().len() as u64);
    drop(store);
    for (view, then) in &views {
        full_check(&view.snapshot(), then, &mut random);
    }
}

#[test]
fn random_operations_agree_with_the_model() {
    for seed in 0..16 {
        run(seed, 800, Mix { deletes: 20, compactions: 4, keys: KEYS, leases: 80 });
    }
}

#[test]
fn few_keys_with_long_histories_agree_with_the_model() {
    for seed in 100..106 {
        run(seed, 1200, Mix { deletes: 10, compactions: 1, keys: 6, leases: 80 });
    }
}

#[test]
fn mostly_deleted_keys_agree_with_the_model() {
    for seed in 200..212 {
        run(seed, 800, Mix { deletes: 60, compactions: 8, keys: 60, leases: 80 });
    }
}

#[test]
fn many_keys_split_and_join_nodes_on_all_levels() {
    for seed in 300..303 {
        let mut random = Random::new(seed);
        let mut store = Store::new();
        let mut model = Naive::new();
        let put_all = Mix { deletes: 0, compactions: 0, keys: 60_000, leases: 80 };
        for _ in 0..6_000 {
            let mut writer = store.begin();
            let main = writer.revision();
            for sub in 0..4 {
                let key = random.key(put_all.keys);
                model.write(&key, main, sub, Some((sub, LeaseId::NONE)));
                writer.put(&key, Value { crc: sub, ..Value::default() }, LeaseId::NONE);
            }
            model.current = writer.finish();
            if main.0 % 100 == 0 {
                store.publish();
            }
        }
        let full = (store.publish(), model.clone());
        let live: Vec<Vec<u8>> =
            model.range(b"", None, Revision(0x7fff_ffff)).into_iter().map(|record| record.key).collect();
        // Deletes all keys except every 64th.
        for keys in live.chunks(64) {
            let mut writer = store.begin();
            let main = writer.revision();
            let deleted = writer.delete_range(KeyRange::half_open(&keys[0], &keys[keys.len() - 1]), |_| ());
            assert_eq!(deleted, keys.len() as u64 - 1);
            for (sub, key) in keys[..keys.len() - 1].iter().enumerate() {
                model.write(key, main, sub as u32, None);
            }
            model.current += i64::from(deleted > 0);
            writer.finish();
        }
        assert_eq!(store.snapshot().live_keys(), live.len().div_ceil(64) as u64);
        store.compact(model.current - 1).unwrap();
        model.compacted = model.current - 1;
        while !store.compact_step(777, |_| ()).done {
            store.publish();
        }
        let thinned = store.snapshot();
        let left: Vec<Vec<u8>> =
            thinned.range(KeyRange::ALL, Revision::CURRENT).unwrap().map(|v| v.key().to_vec()).collect();
        let expected: Vec<Vec<u8>> = live.chunks(64).map(|keys| keys[keys.len() - 1].clone()).collect();
        assert_eq!(left, expected);
        assert_eq!(thinned.versions(), model.stored().len() as u64);
        for _ in 0..50 {
            transaction(&mut store, &mut model, &mut random, put_all);
        }
        assert_eq!(full.0.snapshot().live_keys(), live.len() as u64);
        assert_eq!(full.0.snapshot().range(KeyRange::ALL, Revision::CURRENT).unwrap().count(), live.len());
    }
}
