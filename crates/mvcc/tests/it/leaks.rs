//! Tests that all allocated memory is freed: garbage once no view can see it, the rest with the last owner.

use std::sync::Arc;

use mainstay_mvcc::{Census, KeyRange, Store, Value, View};
use numbers::{LeaseId, Revision};

use crate::random::Random;

fn nothing_left(census: &Census) -> bool {
    (census.versions(), census.nodes(), census.separators(), census.bytes()) == (0, 0, 0, 0)
}

fn churn(store: &mut Store, random: &mut Random, transactions: u64) {
    for _ in 0..transactions {
        let mut writer = store.begin();
        if random.below(4) == 0 {
            let (start, end) = (random.key(5000), random.key(5000));
            writer.delete_range(KeyRange::half_open(&start, &end), |_| ());
        }
        for _ in 0..10 {
            writer.put(&random.key(5000), Value::default(), LeaseId::NONE);
        }
        writer.finish();
    }
}

#[test]
fn garbage_waits_for_the_views_that_may_see_it_and_no_longer() {
    let mut random = Random::new(7);
    let mut store = Store::new();
    let census = store.census();
    churn(&mut store, &mut random, 300);
    let view = store.publish();
    let seen = store.snapshot().versions();
    let count = |view: &View| view.snapshot().histories().count() as u64;
    assert_eq!(count(&view), seen);

    churn(&mut store, &mut random, 300);
    store.compact(store.current_revision()).unwrap();
    while !store.compact_step(100, |_| ()).done {
        drop(store.publish());
    }
    let versions = store.snapshot().versions();
    assert_eq!(store.reclaim(u64::MAX), 0);
    assert!(census.versions() >= versions + seen / 2, "what the view sees must not be freed");
    assert_eq!(count(&view), seen);

    drop(view);
    drop(store.publish());
    while store.reclaim(10) > 0 {}
    assert_eq!(census.versions(), versions);
    assert_eq!(store.stats().garbage, 0);
    assert_eq!(store.stats().bytes, census.bytes());
    drop(store);
    assert!(nothing_left(&census));
}

#[test]
fn publishing_frees_in_portions() {
    let mut random = Random::new(8);
    let mut store = Store::new();
    churn(&mut store, &mut random, 2000);
    let view = store.publish();
    churn(&mut store, &mut random, 2000);
    store.compact(store.current_revision()).unwrap();
    while !store.compact_step(1000, |_| ()).done {}
    drop(store.publish());
    drop(view);
    let mut garbage = store.stats().garbage;
    assert!(garbage > 5000);
    while garbage > 0 {
        drop(store.publish());
        let left = store.stats().garbage;
        assert!(left < garbage && garbage - left <= 64);
        garbage = left;
    }
}

#[test]
fn views_outlive_the_store_and_the_last_frees_all() {
    let mut random = Random::new(9);
    let mut store = Store::new();
    let census = store.census();
    let mut views: Vec<Arc<View>> = Vec::new();
    for _ in 0..20 {
        churn(&mut store, &mut random, 20);
        views.push(store.publish());
        if store.current_revision() > Revision(200) {
            store.compact(store.current_revision() - 50).unwrap();
            store.compact_step(500, |_| ());
        }
    }
    churn(&mut store, &mut random, 5);
    let counts: Vec<usize> = views.iter().map(|view| view.snapshot().histories().count()).collect();
    drop(store);
    while !views.is_empty() {
        let chosen = random.below(views.len() as u64) as usize;
        for (view, count) in views.iter().zip(&counts) {
            assert!(!nothing_left(&census));
            let snapshot = view.snapshot();
            assert!(snapshot.histories().count() <= *counts.iter().max().unwrap_or(count));
            assert_eq!(snapshot.count(KeyRange::ALL, Revision::CURRENT), Ok(snapshot.live_keys()));
            assert_eq!(
                snapshot.range(KeyRange::ALL, Revision::CURRENT).unwrap().count() as u64,
                snapshot.live_keys()
            );
        }
        views.swap_remove(chosen);
    }
    assert!(nothing_left(&census));
}

#[test]
fn an_empty_store_and_its_views_leave_nothing() {
    let mut store = Store::new();
    let census = store.census();
    let view = store.publish();
    drop(store);
    assert!(view.snapshot().range(KeyRange::ALL, Revision::CURRENT).unwrap().next().is_none());
    drop(view);
    assert!(nothing_left(&census));
}

#[test]
fn a_long_held_view_does_not_make_the_list_of_views_grow() {
    let mut store = Store::new();
    let held = store.publish();
    let mut newest = store.publish();
    for number in 0..10_000_u32 {
        store.begin().put(&number.to_be_bytes(), Value::default(), LeaseId::NONE);
        // As in the server, the old view is dropped only after the new one is published.
        newest = store.publish();
        assert!(store.stats().views <= 70);
    }
    assert_eq!(newest.snapshot().live_keys(), 10_000);
    assert_eq!(held.snapshot().live_keys(), 0);
    let garbage = store.stats().garbage;
    assert!(garbage > 10_000);
    drop(held);
    while store.reclaim(1000) > 0 {}
    assert!(store.stats().garbage < 100);
}

#[test]
fn a_key_of_one_version_takes_at_most_75_bytes_and_the_key_in_whatever_order_keys_come() {
    const KEYS: u64 = 100_000;
    type Order = (&'static str, fn(u64) -> String);
    let orders: [Order; 4] = [
        ("ascending", |number| format!("/r/pods/{number:016}")),
        ("descending", |number| format!("/r/pods/{:016}", KEYS - number)),
        ("random", |number| format!("/r/pods/{:016x}", number.wrapping_mul(0x9E37_79B9_7F4A_7C15))),
        ("in many places", |number| format!("/r/{:04}/{:016}", number % 1000, number / 1000)),
    ];
    for (order, key_of) in orders {
        let mut store = Store::new();
        for number in 0..KEYS {
            store.begin().put(key_of(number).as_bytes(), Value::default(), LeaseId::NONE);
            if number % 100 == 0 {
                store.publish();
            }
        }
        drop(store.publish());
        while store.reclaim(u64::MAX) > 0 {}
        let stats = store.stats();
        assert_eq!(stats.live_keys, KEYS);
        assert!(stats.bytes / KEYS <= 75 + 24, "{order}: {} bytes per key", stats.bytes / KEYS);
    }
}
