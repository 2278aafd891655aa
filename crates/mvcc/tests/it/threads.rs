//! Tests in which readers read views while the writer writes, compacts and moves values.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use mainstay_mvcc::{BLOCK_VERSIONS_MAX, Base, Cache, HashWalk, KeyRange, Location, Store, Value, View};
use numbers::{ChangeId, LeaseId, Revision};

use crate::memory_blocks::BaseWriter;
use crate::random::Random;

/// Size of the store, and the operations that run on it.
struct Load {
    keys: u64,
    readers: u64,
    /// Number of batches between two compactions.
    compact_every: u32,
    /// Maximum distance of a compaction from the newest revision.
    compact_behind: u64,
    /// Maximum number of keys that one deletion deletes.
    deleted_max: u64,
    /// Number of keys that are written after all keys were written once.
    hot_keys: u64,
    /// True if the store gets a base after each compaction.
    has_bases: bool,
}

/// Returns the checksum for a put. Every put of this test stores a checksum derived from key and revision, so
/// that a reader can detect a wrong record.
fn crc_of(key: &[u8], main: Revision) -> u32 {
    key.iter().fold(main.0 as u32, |sum, &byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte)))
}

/// Checks that one view is consistent: the index by key, the index by revision, and the counts.
fn consistent(view: &View, random: &mut Random) {
    let snapshot = view.snapshot();
    let (current, compacted) = (snapshot.current_revision(), snapshot.compact_revision());
    let oldest = compacted.max(Revision::FIRST);
    let rev = oldest + random.below((current - oldest + 1) as u64) as i64;
    let mut last: Option<Vec<u8>> = None;
    let mut live = 0;
    for version in snapshot.range(KeyRange::ALL, rev).unwrap() {
        assert!(version.main() <= rev && version.create_revision() <= version.main());
        assert_eq!(version.value_crc(), crc_of(version.key(), version.main()));
        assert!(last.as_deref().is_none_or(|last| last < version.key()));
        // Read only once: the mover may change the location between two reads.
        let location = version.location();
        assert_eq!(location.segment(), location.offset());
        last = Some(version.key().to_vec());
        live += 1;
    }
    assert_eq!(snapshot.count(KeyRange::ALL, rev), Ok(live));
    assert_eq!(snapshot.count(KeyRange::ALL, Revision::CURRENT), Ok(snapshot.live_keys()));

    // Replaying the changes from `rev` on leads to the current state.
    let mut state: HashMap<&[u8], Revision> = HashMap::new();
    for version in snapshot.range(KeyRange::ALL, rev).unwrap() {
        state.insert(version.key(), version.main());
    }
    for version in snapshot.changes(rev, Revision::MAX).unwrap() {
        assert!(version.main() <= current);
        if version.is_tombstone() {
            state.remove(version.key());
        } else {
            state.insert(version.key(), version.main());
        }
    }
    assert_eq!(state.len() as u64, snapshot.live_keys());
    for (key, main) in &state {
        assert_eq!(snapshot.get(key, Revision::CURRENT).unwrap().map(|version| version.main()), Some(*main));
    }
    let hash = |rev| {
        let mut walk = HashWalk::new(&snapshot, rev).unwrap();
        let mut hash = 0_u64;
        while !walk.step(&snapshot, 100, |version| {
            hash = hash.wrapping_mul(0x100_0000_01B3)
                ^ (version.main().0 as u64) << 20
                ^ u64::from(version.sub());
        }) {}
        hash
    };
    assert_eq!(hash(rev), hash(rev));
}

#[test]
fn readers_see_whole_views_while_the_writer_writes_and_compacts() {
    hammer(&Load {
        keys: 3000,
        readers: 3,
        compact_every: 30,
        compact_behind: 400,
        deleted_max: 200,
        hot_keys: 3000,
        has_bases: false,
    });
}

/// Readers load blocks while the writer evicts them, makes ordinary leaves of their stubs, and adopts newer
/// bases.
#[test]
fn readers_load_blocks_that_the_writer_evicts() {
    hammer(&Load {
        keys: 1500,
        readers: 3,
        compact_every: 10,
        compact_behind: 20,
        deleted_max: 10,
        hot_keys: 10,
        has_bases: true,
    });
}

/// A store so small that most versions that readers visit are soon compacted and freed; freed memory is
/// poisoned.
#[test]
fn readers_of_a_small_store_never_see_what_was_freed() {
    hammer(&Load {
        keys: 60,
        readers: 6,
        compact_every: 2,
        compact_behind: 40,
        deleted_max: 20,
        hot_keys: 60,
        has_bases: false,
    });
}

fn hammer(load: &Load) {
    let mut store = Store::new();
    let census = store.census();
    let cache = Cache::new(1 << 14);
    let mut settled_leaves = 0;
    let newest = Mutex::new(store.publish());
    let (stop, checks) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for reader in 0..load.readers {
            let (newest, stop, checks) = (&newest, &stop, &checks);
            scope.spawn(move || {
                let mut random = Random::new(1000 + reader);
                let mut held: Vec<Arc<View>> = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let view = Arc::clone(&newest.lock().unwrap());
                    consistent(&view, &mut random);
                    held.push(view);
                    if held.len() > 5 {
                        let old = held.swap_remove(random.below(6) as usize);
                        consistent(&old, &mut random);
                    }
                    checks.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut random = Random::new(77);
        let mut batches = 0;
        // Runs until the readers have made enough checks, and the writer has written enough batches.
        while (checks.load(Ordering::Relaxed) < 300 || batches < 300) && batches < 20_000 {
            batches += 1;
            let keys = if batches == 1 { load.keys } else { load.hot_keys };
            for _ in 0..if batches == 1 { load.keys } else { 20 } {
                let mut writer = store.begin();
                let main = writer.revision();
                if random.below(5) == 0 {
                    let (start, end) = (random.key(keys), random.key(keys));
                    let mut visited = 0;
                    // Limited in size: otherwise nearly all keys would be tombstones.
                    let range = KeyRange::half_open(&start, &end);
                    if writer.snapshot().count(range, Revision::CURRENT).unwrap() < load.deleted_max {
                        writer.delete_range(range, |_| visited += 1);
                    }
                } else {
                    let key = random.key(keys);
                    let location = Location::new(main.0 as u32, main.0 as u32);
                    writer.put(&key, Value { location, len: 1, crc: crc_of(&key, main) }, LeaseId::NONE);
                }
                writer.finish();
            }
            if batches % load.compact_every == 0 {
                let rev = store.current_revision() - random.below(load.compact_behind) as i64;
                if rev > store.compact_revision() {
                    store.compact(rev).unwrap();
                }
            }
            store.compact_step(30, |_| ());
            if load.has_bases {
                store.evict(20);
                let settled = store.base().map(|base| base.blocks().settled());
                if store.is_adopting() {
                    settled_leaves += store.adopt_step(10).settled_leaves;
                } else if store.is_removal_done()
                    && store.compact_revision() > Revision::FIRST
                    && settled.is_none_or(|settled| settled < store.compact_revision() - 1)
                {
                    let view = store.publish();
                    let mut writer = BaseWriter::new(view.moment(), BLOCK_VERSIONS_MAX);
                    while writer.step(&view, usize::MAX) {}
                    let (blocks, moment) = (writer.finish(&view), view.moment());
                    store.adopt(Base::new(blocks, Arc::clone(&cache)), &moment);
                }
            }
            // Moves values to a random location whose two halves are equal.
            let moved = random.next() as u32 & Location::SEGMENT_MAX;
            let values: Vec<(ChangeId, Location)> = {
                let snapshot = store.snapshot();
                let range = snapshot.range(KeyRange::ALL, Revision::CURRENT).unwrap().take(5);
                range.map(|version| (version.id(), version.location())).collect()
            };
            // Blocks are compared without the locations of values.
            let may_move = !store.is_adopting();
            for (change, from) in values.into_iter().filter(|_| may_move) {
                assert!(store.relocate(change, from, Location::new(moved, moved)).is_some());
            }
            let view = store.publish();
            *newest.lock().unwrap() = view;
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(checks.load(Ordering::Relaxed) >= 3);
    assert!(!load.has_bases || (settled_leaves > 100 && cache.evictions() > 100));
    drop(newest);
    drop(store.publish());
    assert_eq!(store.reclaim(u64::MAX), 0);
    if load.has_bases {
        assert!(census.versions() < store.snapshot().versions());
    } else {
        assert_eq!(census.versions(), store.snapshot().versions());
    }
    drop(store);
    assert_eq!((cache.resident_bytes(), cache.evicted_bytes()), (0, 0));
    assert_eq!(census.bytes(), 0);
}
