//! Tests that a store saved from a view and loaded again is equal, and behaves equally afterwards.

use mainstay_mvcc::{KeyRange, LoadError, LoadedVersion, Loader, Location, Snapshot, Store, Value};
use numbers::{ChangeId, LeaseId, Revision};

use crate::compare::{full_check, spot_check};
use crate::model::{Mix, transaction};
use crate::naive::Naive;
use crate::random::Random;

fn reloaded(snapshot: &Snapshot<'_>) -> Store {
    let mut loader = Loader::new(snapshot.versions(), snapshot.current_revision());
    for version in snapshot.histories() {
        loader.push(&LoadedVersion::from(version)).unwrap();
    }
    loader.finish(snapshot.current_revision(), snapshot.compact_revision()).unwrap()
}

#[test]
fn a_loaded_store_agrees_with_the_model_and_goes_on() {
    for (seed, keys) in [(1, 5), (2, 60), (3, 400), (4, 100_000), (5, 100_000)] {
        let mix = Mix { deletes: 15, compactions: 0, keys, leases: 80 };
        let mut random = Random::new(seed);
        let mut store = Store::new();
        let mut model = Naive::new();
        for round in 1..6 {
            for _ in 0..400 {
                transaction(&mut store, &mut model, &mut random, mix);
            }
            if round % 2 == 0 {
                model.compacted = model.current - random.below(300) as i64;
                store.compact(model.compacted).unwrap();
                // The image does not depend on whether compaction is finished.
                store.compact_step(random.below(800), |_| ());
            }
            store = reloaded(&store.publish().snapshot());
            assert_eq!(store.snapshot().versions(), model.stored().len() as u64);
            for _ in 0..100 {
                spot_check(&store.snapshot(), &model, &mut random);
            }
            full_check(&store.snapshot(), &model, &mut random);
        }
        while !store.compact_step(100, |_| ()).done {}
        full_check(&store.snapshot(), &model, &mut random);
        assert_eq!(store.snapshot().versions(), model.stored().len() as u64);
    }
}

#[test]
fn bytes_that_a_compaction_can_remove_are_counted_and_counted_again_by_a_load() {
    let mut store = Store::new();
    let value = |len| Value { len, ..Value::default() };
    let bytes = |store: &Store| store.stats().removable_bytes;
    store.begin().put(b"key", value(1000), LeaseId::NONE);
    assert_eq!(bytes(&store), 0);
    store.begin().put(b"key", value(7), LeaseId::NONE);
    let first = bytes(&store);
    assert!((1043..1100).contains(&first), "the first version: {first}");
    store.begin().delete_range(KeyRange::single(b"key"), |_| ());
    let all = bytes(&store);
    assert!(all > first + 7 + 40, "the second version and the deletion: {all}");
    assert_eq!(bytes(&reloaded(&store.publish().snapshot())), all);
    assert!(store.is_removal_done());
    store.compact(Revision(3)).unwrap();
    assert!(!store.is_removal_done());
    store.compact_step(10, |_| ());
    assert_eq!(bytes(&store), all - first);
    assert!(store.is_removal_done());
    store.begin().put(b"other", value(7), LeaseId::NONE);
    store.compact(Revision(5)).unwrap();
    store.compact_step(10, |_| ());
    assert_eq!(bytes(&store), 0);
}

#[test]
fn a_large_image_has_all_levels() {
    // All, half or none of the versions have a place in the table of revisions.
    let sizes = [0_i64, 1, 2, 56, 57, 58, 61, 62, 63, 1568, 1569, 50_000];
    for (keys, places) in sizes.into_iter().flat_map(|keys| [0, keys / 2, keys].map(|places| (keys, places)))
    {
        let mut loader = Loader::new(places as u64, Revision(places + 1));
        let name = |number: i64| format!("/registry/configmaps/{number:010}").into_bytes();
        for number in 0..keys {
            let key = name(number);
            // The revisions descend while the keys ascend.
            let main = 1 + keys - number;
            let version = LoadedVersion {
                key: &key,
                main: Revision(main),
                sub: 0,
                create_revision: Revision(main),
                version: 1,
                lease: LeaseId(number),
                value: Value::default(),
            };
            loader.push(&version).unwrap();
        }
        let mut store = loader.finish(Revision(keys + 1), Revision(-1)).unwrap();
        let snapshot = store.snapshot();
        assert_eq!(snapshot.live_keys(), keys as u64);
        assert_eq!(snapshot.count(KeyRange::ALL, Revision::CURRENT), Ok(keys as u64));
        for number in (0..keys).step_by(7) {
            assert_eq!(
                snapshot.get(&name(number), Revision::CURRENT).unwrap().unwrap().lease(),
                LeaseId(number)
            );
            let rest = snapshot.count(KeyRange::from(&name(number)), Revision::CURRENT);
            assert_eq!(rest, Ok((keys - number) as u64));
        }
        let mains: Vec<Revision> =
            snapshot.changes(Revision(0), Revision::MAX).unwrap().map(|version| version.main()).collect();
        assert_eq!(mains, Vec::from_iter((2..keys + 2).map(Revision)));
        // All keys of the loaded store can be deleted.
        let mut writer = store.begin();
        assert_eq!(writer.delete_range(KeyRange::ALL, |_| ()), keys as u64);
        let last = writer.finish();
        store.begin().put(b"other", Value::default(), LeaseId::NONE);
        store.compact(last + 1).unwrap();
        while !store.compact_step(1000, |_| ()).done {}
        assert_eq!(store.snapshot().versions(), 1);
        assert_eq!(store.stats().keys, 1);
    }
}

#[test]
fn changes_of_one_transaction_are_loaded_in_order_wherever_they_have_places() {
    let mut store = Store::new();
    for number in 0..3000_u32 {
        let mut writer = store.begin();
        for change in 0..number % 4 {
            let key = number.wrapping_mul(2_654_435_761).wrapping_add(change);
            writer.put(&key.to_be_bytes(), Value::default(), LeaseId::NONE);
        }
        writer.finish();
    }
    let snapshot = store.snapshot();
    let ids = |store: &Store| -> Vec<ChangeId> {
        store.snapshot().changes(Revision(0), Revision::MAX).unwrap().map(|version| version.id()).collect()
    };
    let expected = ids(&store);
    assert_eq!(expected.len() as u64, snapshot.versions());
    let current = snapshot.current_revision();
    for (hint, expected_current) in [(0, current), (snapshot.versions(), current), (1 << 40, Revision(1000))]
    {
        let mut loader = Loader::new(hint, expected_current);
        snapshot.histories().for_each(|version| loader.push(&LoadedVersion::from(version)).unwrap());
        assert_eq!(ids(&loader.finish(current, Revision(-1)).unwrap()), expected);
    }
}

#[test]
fn contradictory_images_are_refused_and_leave_nothing() {
    let good = LoadedVersion {
        key: b"k",
        main: Revision(5),
        sub: 0,
        create_revision: Revision(5),
        version: 1,
        lease: LeaseId::NONE,
        value: Value { location: Location::new(1, 2), len: 3, crc: 4 },
    };
    let tombstone = LoadedVersion { main: Revision(6), version: 0, create_revision: Revision(0), ..good };
    let cases: [(&[LoadedVersion<'_>], LoadError); 12] = [
        (&[LoadedVersion { main: Revision::MAX, ..good }], LoadError::RevisionOutOfBounds),
        (&[LoadedVersion { version: i64::MAX, ..good }], LoadError::InvalidHistory),
        (
            &[LoadedVersion { key: b"l", ..good }, LoadedVersion { main: Revision(6), ..good }],
            LoadError::OutOfOrder,
        ),
        (&[good, LoadedVersion { main: Revision(4), version: 2, ..good }], LoadError::OutOfOrder),
        (&[good, LoadedVersion { version: 2, ..good }], LoadError::OutOfOrder),
        (&[good, LoadedVersion { main: Revision(6), ..good }], LoadError::InvalidHistory),
        (&[good, tombstone, LoadedVersion { main: Revision(7), ..tombstone }], LoadError::InvalidHistory),
        (
            &[good, tombstone, LoadedVersion { main: Revision(7), version: 2, ..good }],
            LoadError::InvalidHistory,
        ),
        (&[LoadedVersion { version: -1, ..good }], LoadError::InvalidHistory),
        (&[LoadedVersion { main: Revision(0), ..good }], LoadError::RevisionOutOfBounds),
        (&[LoadedVersion { main: Revision(11), ..good }], LoadError::RevisionOutOfBounds),
        (&[good, LoadedVersion { key: b"l", ..good }], LoadError::RevisionTwice),
    ];
    // With a hint so low that versions have no places, and with one high enough for places.
    for ((versions, expected), hint) in cases.iter().flat_map(|case| [2, 10].map(|hint| (*case, hint))) {
        let mut loader = Loader::new(hint, Revision(10));
        let pushed = versions.iter().try_for_each(|version| loader.push(version));
        let result = pushed.and_then(|()| loader.finish(Revision(10), Revision(-1)));
        assert_eq!(result.err(), Some(expected), "{versions:?}");
    }
    for (current, compacted) in [(0, -1), (10, 11), (10, -2), (i64::MAX, -1)] {
        assert_eq!(
            Loader::new(0, Revision(current)).finish(Revision(current), Revision(compacted)).err(),
            Some(LoadError::RevisionOutOfBounds)
        );
    }
    // Enough versions for many leaves, refused at the end because of duplicates: without places, with one
    // occupied place, and with all versions in the same place.
    for (hint, subs) in [(0, 999), (1000, 999), (1000, 1)] {
        let mut loader = Loader::new(hint, Revision(10));
        let census = loader.census();
        for number in 0..1000_u32 {
            let key = number.to_be_bytes();
            loader.push(&LoadedVersion { key: &key, sub: number % subs, ..good }).unwrap();
        }
        assert_eq!(census.versions(), 1000);
        assert_eq!(loader.finish(Revision(10), Revision(-1)).err(), Some(LoadError::RevisionTwice));
        assert_eq!((census.versions(), census.nodes(), census.separators(), census.bytes()), (0, 0, 0, 0));
    }
}

#[test]
fn what_was_written_is_told_below_the_compact_revision_too() {
    let mut store = Store::new();
    for _ in 0..10 {
        store.begin().put(b"key", Value::default(), LeaseId::NONE);
    }
    store.begin().delete_range(KeyRange::single(b"key"), |_| ());
    store.compact(Revision(11)).unwrap();
    let mains = |store: &Store, from, through| -> Vec<Revision> {
        store.snapshot().written(from, through).map(|version| version.main()).collect()
    };
    assert!(store.snapshot().changes(Revision(5), Revision(8)).is_err());
    assert_eq!(mains(&store, Revision(5), Revision(8)), [5, 6, 7, 8].map(Revision));
    store.compact_step(5, |_| ());
    assert_eq!(mains(&store, Revision(5), Revision(8)), [7, 8].map(Revision));
    while !store.compact_step(5, |_| ()).done {}
    assert_eq!(mains(&store, Revision(0), Revision(100)), [11, 12].map(Revision));
}

#[test]
fn what_is_sent_is_in_the_order_of_writing_without_unreadable_puts() {
    let mut store = Store::new();
    for key in [b"a", b"b", b"a", b"c"] {
        store.begin().put(key, Value::default(), LeaseId::NONE);
    }
    store.begin().delete_range(KeyRange::ALL, |_| ());
    store.begin().put(b"a", Value::default(), LeaseId::NONE);
    store.begin().put(b"a", Value::default(), LeaseId::NONE);
    let change = |main, sub| ChangeId { main: Revision(main), sub };
    let sent = |store: &Store, main, sub| -> Vec<ChangeId> {
        store.snapshot().written_after(change(main, sub)).map(|version| version.id()).collect()
    };
    let all = [(2, 0), (3, 0), (4, 0), (5, 0), (6, 0), (6, 1), (6, 2), (7, 0), (8, 0)]
        .map(|(main, sub)| change(main, sub));
    assert_eq!(sent(&store, 0, 0), all);
    assert_eq!(sent(&store, 6, 0), all[5..]);
    assert_eq!(sent(&store, 6, u32::MAX), all[7..]);
    store.compact(Revision(4)).unwrap();
    assert_eq!(sent(&store, 0, 0), all[1..], "the first of a is superseded at 4");
    store.compact(Revision(8)).unwrap();
    let deletions_and_newest = [change(6, 0), change(6, 1), change(6, 2), change(8, 0)];
    assert_eq!(sent(&store, 0, 0), deletions_and_newest);
    while !store.compact_step(2, |_| ()).done {}
    assert_eq!(sent(&store, 0, 0), [change(8, 0)], "deletions are there as long as compaction leaves them");
}

/// Nodes of the tree of revisions store four bytes of each revision, after the bytes that all of them share.
#[test]
fn revisions_are_found_wherever_their_bytes_carry_over() {
    for before in [1_i64, 0xff00, 0xffff_ff00, 0xffff_ffff_ff00, i64::MAX / 2 - 1000] {
        let mut loader = Loader::new(1, Revision(before));
        let key = 0_u64.to_be_bytes();
        loader
            .push(&LoadedVersion {
                key: &key,
                main: Revision(before),
                sub: 0,
                create_revision: Revision(before),
                version: 1,
                lease: LeaseId::NONE,
                value: Value::default(),
            })
            .unwrap();
        let mut store = loader.finish(Revision(before), Revision::NEVER_COMPACTED).unwrap();
        for number in 1..=600_u64 {
            let mut writer = store.begin();
            for part in 0..1 + number % 2 {
                writer.put(&(number % 10 + 10 * part).to_be_bytes(), Value::default(), LeaseId::NONE);
            }
            writer.finish();
            if number % 7 == 0 {
                store.publish();
            }
        }
        for store in [&store, &reloaded(&store.snapshot())] {
            let snapshot = store.snapshot();
            for number in 0..=600 {
                let main = Revision(before + number);
                let first = snapshot.version_at(ChangeId::first_of(main));
                assert_eq!(first.map(|version| version.main()), Some(main));
                assert!(snapshot.version_at(ChangeId { main, sub: 2 }).is_none());
                // Every odd revision has two changes.
                let odd = (601 - number + number % 2) / 2;
                let changes = snapshot.written(main, Revision(before + 600));
                assert_eq!(changes.count() as i64, 601 - number + odd);
            }
            assert_eq!(
                snapshot.written(Revision::MIN, snapshot.current_revision()).count() as u64,
                snapshot.versions()
            );
        }
        assert_eq!(
            store.snapshot().get(&1_u64.to_be_bytes(), Revision(before + 1)).unwrap().unwrap().version(),
            1
        );
    }
}
