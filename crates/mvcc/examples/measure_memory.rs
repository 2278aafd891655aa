//! Prints the memory cost of the index per key, for several orders of insertion: bytes requested from the
//! allocator, and resident memory with the allocator of the server. Each order runs in its own process.
//!
//! `cargo run --release -p mainstay-mvcc --example measure_memory [keys]`

#![allow(clippy::disallowed_methods, reason = "it starts itself, and reads what the system says of it")]

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mainstay_mvcc::{LoadedVersion, Loader, Location, Store, Value};
use numbers::{LeaseId, Revision};

struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: forwards every call to the allocator, and only counts bytes.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { mimalloc::MiMalloc.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { mimalloc::MiMalloc.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const KEY_BYTES: usize = 24;
type Key = [u8; KEY_BYTES];

/// An order of insertion: its name, and a function from a number to its key.
type Order = (&'static str, fn(u64) -> Key);

const ORDERS: [Order; 4] = [
    ("ascending", |number| text(&format!("/r/pods/{number:016}"))),
    ("random", |number| text(&format!("/r/pods/{:016x}", number.wrapping_mul(0x9E37_79B9_7F4A_7C15)))),
    ("ascending in 1000 places", |number| text(&format!("/r/{:04}/{:016}", number % 1000, number / 1000))),
    ("numbers of `bench put`", |number| {
        let mut key = [0; KEY_BYTES];
        let mut rest = number << 1;
        for byte in &mut key {
            *byte = rest as u8 & 0x7f | if rest > 0x7f { 0x80 } else { 0 };
            rest >>= 7;
            if rest == 0 {
                break;
            }
        }
        key
    }),
];

fn text(text: &str) -> Key {
    text.as_bytes().try_into().expect("all keys have the same length")
}

fn value(number: u64) -> Value {
    Value { location: Location::new(1, number as u32), len: 256, crc: number as u32 }
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: usize = status.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * 4096
}

/// Returns the CPU time of this thread in nanoseconds, on which a busy machine has little influence. If the
/// system does not provide it, returns the time since `start`.
fn cpu_ns(start: Instant) -> u64 {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let ns = told.as_deref().and_then(|text| text.split(' ').next()).and_then(|text| text.parse().ok());
    ns.unwrap_or_else(|| start.elapsed().as_nanos() as u64)
}

/// Puts each key once, with 100 puts per publication, like the core of a member under load. Returns
/// nanoseconds per put.
fn put(store: &mut Store, keys: u64, key: fn(u64) -> Key) -> u64 {
    let start = Instant::now();
    let begun = cpu_ns(start);
    let mut view = store.publish();
    for number in 0..keys {
        store.begin().put(&key(number), value(number), LeaseId::NONE);
        if number % 100 == 99 {
            view = store.publish();
        }
    }
    drop(view);
    (cpu_ns(start) - begun) / keys
}

/// Gets keys in random order. Returns nanoseconds per get.
fn get(store: &Store, keys: u64, key: fn(u64) -> Key) -> u64 {
    let snapshot = store.snapshot();
    let start = Instant::now();
    let begun = cpu_ns(start);
    let mut number = 1;
    for _ in 0..keys {
        number = (number * 0x5DEE_CE66D + 11) % (1 << 48);
        let found = snapshot.get(&key((number >> 8) % keys), Revision::CURRENT);
        assert!(found.is_ok_and(|found| found.is_some()));
    }
    (cpu_ns(start) - begun) / keys
}

fn one_order(name: &str, key: fn(u64) -> Key, keys: u64) {
    let (bytes, resident) = (BYTES.load(Ordering::Relaxed), resident_bytes());
    let told = |what: &str, each: u64, versions: u64| {
        let bytes = (BYTES.load(Ordering::Relaxed) - bytes) as f64 / versions as f64;
        // The allocator returns unused pages to the system some time later.
        std::thread::sleep(Duration::from_millis(200));
        let resident = (resident_bytes() - resident) as f64 / versions as f64;
        println!("{name:<26} {what:<24} {bytes:>9.1} {resident:>9.1} {each:>7}");
    };
    let mut store = Store::new();
    let each = put(&mut store, keys, key);
    told("put once", each, keys);
    println!("{name:<26} {:<24} {:>9} {:>9} {:>7}", "got", "-", "-", get(&store, keys, key));
    if name == "random" {
        let each = put(&mut store, keys, key);
        told("put twice, a version", each, 2 * keys);
        store.compact(store.current_revision()).expect("newer than the last");
        while !store.compact_step(1000, |_| ()).done {
            drop(store.publish());
        }
        drop(store.publish());
        while store.reclaim(u64::MAX) > 0 {}
        told("compacted", 0, keys);
    }
    let image: Vec<(Box<[u8]>, Revision)> =
        store.snapshot().histories().map(|version| (version.key().into(), version.main())).collect();
    let current = store.current_revision();
    drop(store);
    // Memory of the previous store is reused, so resident memory is not measured here.
    let bytes = BYTES.load(Ordering::Relaxed);
    let start = Instant::now();
    let begun = cpu_ns(start);
    let mut loader = Loader::new(keys, current);
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
    let store = loader.finish(current, Revision(-1)).expect("the image is whole");
    let each = (cpu_ns(start) - begun) / keys;
    let bytes = (BYTES.load(Ordering::Relaxed) - bytes) as f64 / keys as f64;
    println!("{name:<26} {:<24} {bytes:>9.1} {:>9} {each:>7}", "loaded", "-");
    drop(store);
}

fn main() {
    let mut words = std::env::args().skip(1);
    let keys: u64 = words.next().and_then(|text| text.parse().ok()).unwrap_or(1_000_000);
    if let Some(order) = words.next().and_then(|text| text.parse::<usize>().ok()) {
        let (name, key) = ORDERS[order];
        one_order(name, key, keys);
        return;
    }
    println!(
        "{keys} keys of {KEY_BYTES} B; bytes for each of them, asked of the allocator and resident; CPU time in ns"
    );
    println!("{:<26} {:<24} {:>9} {:>9} {:>7}", "order", "", "asked", "resident", "ns");
    for order in 0..ORDERS.len() {
        let this = std::env::current_exe().expect("a process has a program");
        let status = std::process::Command::new(this).args([keys.to_string(), order.to_string()]).status();
        assert!(status.is_ok_and(|status| status.success()), "measuring failed");
    }
}
