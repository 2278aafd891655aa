//! Prints the cost of the index: CPU time per operation and memory per key, at 1,000,000 keys of 24 bytes.
//!
//! `cargo run --release -p mainstay-mvcc --example measure_index [keys]`

#![allow(clippy::disallowed_methods, reason = "it measures time")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use mainstay_mvcc::{HashWalk, KeyRange, LoadedVersion, Loader, Location, Store, Value};
use numbers::{LeaseId, Revision};

struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: forwards every call to the system's allocator, and only counts bytes.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}

/// Returns a key of 24 bytes. `number` is scrambled, so that ascending numbers give random keys.
fn key(number: u64) -> [u8; 24] {
    let mut key = *b"/r/pods/________________";
    let scrambled = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    for (at, digit) in key[8..].iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(scrambled >> (60 - 4 * at)) as usize & 15];
    }
    key
}

fn value(number: u64) -> Value {
    Value { location: Location::new(1, number as u32), len: 1024, crc: number as u32 }
}

/// Returns the CPU time of this thread in nanoseconds, on which a busy machine has little influence. If the
/// system does not provide it, returns the time since `start`.
fn cpu_ns(start: Instant) -> u64 {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let ns = told.as_deref().and_then(|text| text.split(' ').next()).and_then(|text| text.parse().ok());
    ns.unwrap_or_else(|| start.elapsed().as_nanos() as u64)
}

fn timed(what: &str, operations: u64, work: impl FnOnce()) {
    let start = Instant::now();
    let before = cpu_ns(start);
    work();
    let each = (cpu_ns(start) - before) as f64 / operations as f64;
    if each < 100_000.0 {
        println!("{what:<58} {each:>10.0} ns");
    } else {
        println!("{what:<58} {:>10.1} ms", each / 1e6);
    }
}

fn put_in_batches(store: &mut Store, count: u64, batch: u64, mut number: impl FnMut(u64) -> u64) {
    for at in 0..count {
        let mut writer = store.begin();
        black_box(writer.put(&key(number(at)), value(at), LeaseId::NONE));
        writer.finish();
        if at % batch == batch - 1 {
            black_box(store.publish());
        }
    }
}

fn main() {
    let keys: u64 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1_000_000);
    let some = keys.min(300_000);
    let mut random = Random(42);

    let before = BYTES.load(Ordering::Relaxed);
    let mut store = Store::new();
    timed("put of a new random key, publish per 100", keys, || {
        put_in_batches(&mut store, keys, 100, |at| at)
    });
    while store.reclaim(u64::MAX) > 0 {}
    let bytes = BYTES.load(Ordering::Relaxed) - before;
    println!("{:<58} {:>10.1}", "bytes per key, one version each, grown", bytes as f64 / keys as f64);
    println!("{:<58} {:>10.1}", "  of which counted by Stats", store.stats().bytes as f64 / keys as f64);

    let view = store.publish();
    let snapshot = view.snapshot();
    timed("get of a random key", some, || {
        for _ in 0..some {
            let key = key(random.next() % keys);
            assert!(snapshot.get(black_box(&key), Revision::CURRENT).is_ok_and(|found| found.is_some()));
        }
    });
    timed("get of an absent key", some, || {
        for _ in 0..some {
            let key = key(keys + random.next() % keys);
            assert!(snapshot.get(black_box(&key), Revision::CURRENT).is_ok_and(|found| found.is_none()));
        }
    });
    let rounds = 2000;
    timed("range of 1000, reading key and revision", rounds, || {
        for _ in 0..rounds {
            let start = key(random.next() % keys);
            let range =
                snapshot.range(KeyRange::from(&start), Revision::CURRENT).into_iter().flatten().take(1000);
            let sum: i64 = range.map(|version| version.main().0 + i64::from(version.key()[20])).sum();
            black_box(sum);
        }
    });
    timed("range of 1000 downwards", rounds, || {
        for _ in 0..rounds {
            let end = key(random.next() % keys);
            let range = snapshot
                .range(KeyRange::half_open(b"", &end), Revision::CURRENT)
                .into_iter()
                .flatten()
                .rev()
                .take(1000);
            black_box(range.map(|version| version.main().0 + i64::from(version.key()[20])).sum::<i64>());
        }
    });
    timed("range of 10", some, || {
        for _ in 0..some {
            let start = key(random.next() % keys);
            let range =
                snapshot.range(KeyRange::from(&start), Revision::CURRENT).into_iter().flatten().take(10);
            black_box(range.map(|version| version.main().0).sum::<i64>());
        }
    });
    timed("count of a random range", some, || {
        for _ in 0..some {
            let (start, end) = (key(random.next() % keys), key(random.next() % keys));
            black_box(snapshot.count(KeyRange::half_open(&start, &end), Revision::CURRENT)).ok();
        }
    });
    timed("count of a random range at an older revision, per key", keys, || {
        black_box(snapshot.count(KeyRange::ALL, snapshot.current_revision() - 1)).ok();
    });
    timed("1000 changes", rounds, || {
        for _ in 0..rounds {
            let from = (random.next() % (keys - 1000)) as i64;
            let changes = snapshot.changes(Revision(from), Revision(from + 1000)).into_iter().flatten();
            black_box(changes.map(|version| version.main().0 + i64::from(version.key()[20])).sum::<i64>());
        }
    });
    timed("hash selection, per version", keys, || {
        if let Ok(mut walk) = HashWalk::new(&snapshot, Revision::CURRENT) {
            let mut sum = 0;
            while !walk.step(&snapshot, 1000, |version| sum += version.main().0) {}
            black_box(sum);
        }
    });

    let rebuilt = {
        let before = BYTES.load(Ordering::Relaxed);
        let mut image: Vec<([u8; 24], Revision)> = Vec::new();
        image.extend(snapshot.histories().filter_map(|v| v.key().try_into().ok().map(|key| (key, v.main()))));
        let image_bytes = BYTES.load(Ordering::Relaxed) - before;
        let start = Instant::now();
        let begun = cpu_ns(start);
        let mut loader = Loader::new(keys, snapshot.current_revision());
        for (key, main) in &image {
            let loaded = LoadedVersion {
                key,
                main: *main,
                sub: 0,
                create_revision: *main,
                version: 1,
                lease: LeaseId::NONE,
                value: value(main.0 as u64),
            };
            loader.push(&loaded).expect("the image is in order");
        }
        let pushed = cpu_ns(start) - begun;
        let store = loader.finish(snapshot.current_revision(), Revision(-1)).expect("the image is whole");
        let whole = cpu_ns(start) - begun;
        println!("{:<58} {:>10.1} ms", "load of all keys", whole as f64 / 1e6);
        println!(
            "{:<58} {:>10.1} ms",
            "  of which sorting and building by revision",
            (whole - pushed) as f64 / 1e6
        );
        let bytes = BYTES.load(Ordering::Relaxed) - before - image_bytes;
        println!("{:<58} {:>10.1}", "bytes per key, loaded", bytes as f64 / keys as f64);
        store
    };
    assert_eq!(rebuilt.snapshot().live_keys(), snapshot.live_keys());
    timed("dropping a store, all of it", 1, || drop(rebuilt));
    drop(view);

    timed("put of a present random key, publish per 100", some, || {
        put_in_batches(&mut store, some, 100, |_| random.next() % keys);
    });
    timed("put of a present random key, publish each", some, || {
        put_in_batches(&mut store, some, 1, |_| random.next() % keys);
    });
    let rev = store.current_revision();
    store.compact(rev).expect("newer than the last");
    let doomed = store.stats().removable as u64;
    timed("compaction, per version removed, publish per 1000", doomed, || {
        while !store.compact_step(1000, |version| _ = black_box(version.location())).done {
            black_box(store.publish());
        }
    });
    let half = keys / 2;
    timed("delete of a random key, publish per 100", half, || {
        for at in 0..half {
            let mut writer = store.begin();
            writer.delete_range(KeyRange::single(&key(at)), |_| ());
            writer.finish();
            if at % 100 == 99 {
                black_box(store.publish());
            }
        }
    });
    store.begin().put(b"last", Value::default(), LeaseId::NONE);
    store.compact(store.current_revision()).expect("newer than the last");
    let doomed = store.stats().removable as u64;
    timed("compaction of deleted keys, per version removed", doomed, || {
        while !store.compact_step(1000, |version| _ = black_box(version.location())).done {
            black_box(store.publish());
        }
    });
    let mut slowest = 0;
    while store.stats().garbage > 0 {
        let start = Instant::now();
        black_box(store.publish());
        slowest = slowest.max(start.elapsed().as_micros());
    }
    println!("{:<58} {:>10} us", "slowest publish while garbage is freed", slowest);
    println!("{:<58} {:>10.1}", "bytes per key left", store.stats().bytes as f64 / store.stats().keys as f64);
    drop(store);

    let mut store = Store::new();
    for first in [1000, keys] {
        put_in_batches(&mut store, first, 100, |_| 7);
        let revisions = store.current_revision().0 as u64;
        println!("one key, written {} times:", revisions - 1);
        let view = store.publish();
        let snapshot = view.snapshot();
        timed("  get of the newest", some, || {
            for _ in 0..some {
                black_box(snapshot.get(black_box(&key(7)), Revision::CURRENT)).ok();
            }
        });
        timed("  get at a random revision", some, || {
            for _ in 0..some {
                let rev = 2 + (random.next() % (revisions - 1)) as i64;
                assert!(snapshot.get(black_box(&key(7)), Revision(rev)).is_ok_and(|found| found.is_some()));
            }
        });
        timed("  put, publish per 100", some, || put_in_batches(&mut store, some, 100, |_| 7));
    }
}
