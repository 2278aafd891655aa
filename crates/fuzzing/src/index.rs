//! Compares the key index with a simple model: runs lists of operations on both, as the property tests of
//! `mvcc` do.

use crate::operations::{self, Here, OPERATION_BYTES};

/// Maximum number of operations that one input runs.
const OPERATIONS_MAX: usize = 400;

/// Fuzz target: decodes `data` as a list of operations, runs these on the key index and on a simple model of
/// it, and panics at the first difference.
pub fn run(data: &[u8]) {
    let len = data.len().min(OPERATIONS_MAX * OPERATION_BYTES);
    operations::run(&data[..len], &mut Here);
}

/// Returns lists of arbitrary bytes, because any bytes are a valid list.
pub fn seeds() -> Vec<Vec<u8>> {
    crate::commands::seeds()
}
