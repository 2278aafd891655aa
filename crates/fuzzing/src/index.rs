//! The key index compared with its simple model: lists of operations, as in the property tests of `mvcc`.

use crate::operations::{self, Here, OPERATION_BYTES};

/// Largest number of operations of one input.
const OPERATIONS_MAX: usize = 400;

/// Fuzz target: decodes `data` as a list of operations, runs them on the key index and on a simple model of it,
/// and panics at the first difference.
pub fn run(data: &[u8]) {
    let len = data.len().min(OPERATIONS_MAX * OPERATION_BYTES);
    operations::run(&data[..len], &mut Here);
}

/// Returns lists of arbitrary bytes, because any bytes are a valid list.
pub fn seeds() -> Vec<Vec<u8>> {
    crate::commands::seeds()
}
