//! Defines the loads of `mvcc put` and `mvcc range`. They use only the key index, in this process: no
//! network, no log and no disk.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::loadgen::samples::Series;
use mvcc::{KeyRange, Location, Store, Value};
use numbers::{LeaseId, Revision};

use super::random_from_clock;
use crate::Error;

/// Size of a load of puts.
#[derive(Clone, Copy, Debug)]
pub struct Puts {
    /// Number of operations.
    pub total: u64,
    /// Size of a key in bytes.
    pub key_bytes: usize,
    /// Size of a value in bytes. The index stores only this length and where the value is.
    pub value_bytes: usize,
    /// Number of keys that each operation puts.
    pub per_txn: usize,
    /// Number of operations after which the new state of the index is published to readers. A member does
    /// this after each batch of entries.
    pub batch: u64,
}

fn second() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() as i64)
}

fn keys(bytes: usize, count: usize) -> Vec<Vec<u8>> {
    let mut random = random_from_clock(1);
    (0..count).map(|_| random.bytes(bytes)).collect()
}

fn fill(store: &mut Store, puts: &Puts, keys: &[Vec<u8>], mut each: impl FnMut(Instant)) {
    let len = puts.value_bytes as u32;
    for (number, some) in keys.chunks(puts.per_txn.max(1)).enumerate() {
        let began = Instant::now();
        let mut writer = store.begin();
        for key in some {
            let location = Location::new(1, number as u32);
            writer.put(key, Value { location, len, crc: 0 }, LeaseId::NONE);
        }
        writer.finish();
        if (number as u64 + 1).is_multiple_of(puts.batch.max(1)) {
            store.publish();
        }
        each(began);
    }
    store.publish();
}

/// Puts random keys. Returns the time of each operation, and the total time.
pub fn put(puts: &Puts) -> (Series, Duration) {
    let keys = keys(puts.key_bytes, puts.total as usize * puts.per_txn.max(1));
    let mut series = Series::default();
    let mut store = Store::new();
    let began = Instant::now();
    fill(&mut store, puts, &keys, |start| series.record(second(), start.elapsed().as_nanos() as u64));
    (series, began.elapsed())
}

/// Puts random keys. Then measures `total` reads, each of which returns up to `limit` keys in ascending
/// order, starting at a random one.
pub fn range(puts: &Puts, total: u64, limit: usize) -> Result<(Series, Duration), Error> {
    let keys = keys(puts.key_bytes, puts.total as usize * puts.per_txn.max(1));
    let mut series = Series::default();
    let mut store = Store::new();
    fill(&mut store, puts, &keys, |_| ());
    let view = store.publish();
    let snapshot = view.snapshot();
    let mut random = random_from_clock(2);
    let began = Instant::now();
    for _ in 0..total {
        let Some(key) = keys.get(random.below(keys.len().max(1) as u64) as usize) else { break };
        let start = Instant::now();
        let found = snapshot
            .range(KeyRange::from(key), Revision::CURRENT)
            .map_err(Error::Index)?
            .take(limit)
            .map(|version| std::hint::black_box(version.key().len()))
            .sum::<usize>();
        std::hint::black_box(found);
        series.record(second(), start.elapsed().as_nanos() as u64);
    }
    Ok((series, began.elapsed()))
}
