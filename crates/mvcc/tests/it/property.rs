//! Random lists of operations with readers on other threads; a failing list is reduced to a minimal one.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::operations::{self, Here, OPERATION_BYTES, shrink, with_readers};
use crate::random::Random;

/// Number of lists, and of operations in each; Miri is a thousand times slower.
const LISTS: u64 = if cfg!(miri) { 2 } else { 30 };
const OPERATIONS: u64 = if cfg!(miri) { 60 } else { 600 };

fn list(seed: u64, operations: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..operations * OPERATION_BYTES as u64).map(|_| random.next() as u8).collect()
}

/// Runs a list; if it fails, prints the smallest failing list that was found.
fn check(seed: u64, bytes: &[u8], run: impl Fn(&[u8])) {
    let fails = |bytes: &[u8]| catch_unwind(AssertUnwindSafe(|| run(bytes))).is_err();
    if fails(bytes) {
        let small = shrink(bytes, fails);
        panic!("seed {seed} fails, and so does this list: {:?}", small.as_chunks::<OPERATION_BYTES>().0);
    }
}

#[test]
fn lists_of_operations_agree_with_the_model() {
    for seed in 0..LISTS {
        check(seed, &list(seed, OPERATIONS), |bytes| operations::run(bytes, &mut Here));
    }
}

#[test]
fn readers_on_other_threads_see_what_the_model_was_then() {
    for seed in 1000..1000 + LISTS / 2 {
        check(seed, &list(seed, OPERATIONS), |bytes| {
            with_readers(2, |readers| operations::run(bytes, readers));
        });
    }
}

#[test]
fn a_failing_list_gets_small() {
    let bytes = list(7, 200);
    let has = |bytes: &[u8], what| bytes.as_chunks::<OPERATION_BYTES>().0.iter().any(|op| op[0] % 16 == what);
    let small = shrink(&bytes, |bytes| has(bytes, 9) && has(bytes, 12));
    assert_eq!(small.len(), 2 * OPERATION_BYTES);
}
