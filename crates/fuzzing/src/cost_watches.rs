//! Checks that operations on the watch index (which finds the watches of a key) stay fast for all watched
//! ranges, and in every order of insertions and removals.
//!
//! An insertion or removal must take O(log n) steps, and a lookup O(log n) steps for each watch that it
//! finds. The budget is a generous time for each step. Work that is linear in the number of watches far
//! exceeds this budget.

use std::time::Duration;

use bytes::Bytes;
use rpc::watch::fuzzing::Watched;

use crate::meter::measure;
use crate::script::{Scribe, Script};

/// Maximum number of watches that one input inserts.
const WATCHES_MAX: usize = 30_000;
/// Maximum number of groups of operations that one input runs.
const GROUPS_MAX: usize = 32;
/// Maximum number of watches that one lookup of a key is allowed to find.
const FOUND_MAX: usize = 4096;
/// Time budget of one step down the index: several times the duration of a step in a build without
/// optimizations.
const STEP: Duration = Duration::from_nanos(1500);
const CONSTANT: Duration = Duration::from_millis(60);

/// Returns range number `n` of a group with this shape.
fn range(shape: u8, n: usize, salt: u8) -> (Bytes, Bytes) {
    let scattered = |n: usize| (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(salt);
    let key = |n: u64| Bytes::from(format!("{n:020}"));
    let middle = 1 << 40;
    match shape {
        // All ranges are the same: a single key (0), or a range (1).
        0 => (key(0), Bytes::new()),
        1 => (key(0), key(middle)),
        // Scattered single keys.
        2 => (key(scattered(n)), Bytes::new()),
        // The ranges have no end, and each begins after (3) or before (4) the previous one.
        3 => (key(n as u64), Bytes::from_static(b"\0")),
        4 => (key(middle - n as u64), Bytes::from_static(b"\0")),
        // Each range is inside the previous one (5), or contains it (6).
        5 => (key(n as u64), key(2 * middle - n as u64)),
        6 => (key(middle - n as u64), key(middle + n as u64 + 1)),
        // Disjoint neighbors.
        7 => (key(2 * n as u64), key(2 * n as u64 + 1)),
        // Many different starts and few ends (8), or few starts and many different ends (9).
        8 => (key(scattered(n) % middle), key(middle + (n as u64 % 3))),
        9 => (key(n as u64 % 3), key(middle + scattered(n) % middle)),
        // The first range covers all later ones, which are short.
        10 if n == 0 => (key(0), Bytes::from_static(b"\0")),
        10 => (key(n as u64), key(n as u64 + 1)),
        _ => {
            let (a, b) = (scattered(n), scattered(n + 77_777));
            (key(a.min(b)), key(a.max(b)))
        }
    }
}

/// Fuzz target: runs groups of operations on the index, and checks the cost of each.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let mut index = Watched::default();
    let mut there: Vec<(Bytes, Bytes, u64)> = Vec::new();
    let (mut serial, mut most) = (0u64, 0usize);
    for _ in 0..GROUPS_MAX {
        if script.is_done() {
            break;
        }
        let (kind, shape, salt) = (script.below(4), script.below(12), script.u8());
        let count = 1usize << script.below(15);
        let log = |n: usize| u32::BITS - (n as u32 + 2).leading_zeros();
        let (mut steps, before) = (0u64, index_size(&there));
        let (what, cost) = match kind {
            0 | 1 => {
                let room = WATCHES_MAX.saturating_sub(serial as usize).min(count);
                let fresh: Vec<_> = (0..room)
                    .map(|n| {
                        // A client can choose the order of the ranges, so the script chooses it. The serial
                        // numbers are those of the server, which only increase.
                        serial += 1;
                        let (key, end) = range(shape, if kind == 0 { n } else { room - n }, salt);
                        (key, end, serial)
                    })
                    .collect();
                steps += fresh.len() as u64 * u64::from(log(before + room));
                let (taken, cost) = measure(|| {
                    fresh.iter().filter(|(key, end, number)| index.insert(key, end, *number)).count()
                });
                assert!(taken <= fresh.len());
                there.extend(fresh);
                ("putting in", cost)
            }
            2 => {
                let count = count.min(there.len());
                let gone: Vec<_> = match salt % 3 {
                    0 => there.drain(..count).collect(),
                    1 => there.drain(there.len() - count..).rev().collect(),
                    _ => (0..count).map(|n| there.swap_remove(n.wrapping_mul(7919) % there.len())).collect(),
                };
                steps += gone.len() as u64 * u64::from(log(before));
                let (_, cost) = measure(|| {
                    gone.iter().filter(|(key, end, number)| index.remove(key, end, *number)).count()
                });
                ("taking out", cost)
            }
            _ => {
                let looks = count.min(64);
                let keys: Vec<_> = (0..looks).map(|n| range(shape, n, salt).0).collect();
                let (found, cost) =
                    measure(|| keys.iter().map(|key| index.concerned(key, FOUND_MAX)).sum::<usize>());
                steps += (found + looks) as u64 * u64::from(log(before));
                ("finding", cost)
            }
        };
        most = most.max(index_size(&there));
        let cpu_max = CONSTANT + STEP * u32::try_from(steps).unwrap_or(u32::MAX);
        assert!(cost.cpu <= cpu_max, "{what} took {:?} for {steps} steps among {before} watches", cost.cpu);
        assert!(
            cost.peak_bytes <= 1024 * (most + count) + (1 << 20),
            "{what} held {} bytes",
            cost.peak_bytes
        );
    }
}

fn index_size(there: &[(Bytes, Bytes, u64)]) -> usize {
    there.len()
}

/// Returns seeds that insert ranges of every shape, look up keys, and remove watches in every order.
pub fn seeds() -> Vec<Vec<u8>> {
    let group = |scribe: Scribe, kind: u8, shape: u8, salt: u8, count: u8| {
        scribe.u8(kind).u8(shape).u8(salt).u8(count)
    };
    let mut seeds: Vec<Vec<u8>> = (0..12)
        .map(|shape| {
            let scribe = group(Scribe::default(), shape % 2, shape, 1, 13);
            let scribe = group(group(scribe, 3, shape, 1, 6), 2, 0, shape, 12);
            group(group(scribe, 3, shape, 1, 6), 2, 0, shape + 1, 14).done()
        })
        .collect();
    // All shapes inserted into the same index.
    let all = (0..12).fold(Scribe::default(), |scribe, shape| group(scribe, 0, shape, shape, 11));
    seeds.push((0..12).fold(all, |scribe, shape| group(scribe, 3, shape, shape, 6)).done());
    seeds
}
