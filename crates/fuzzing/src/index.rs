//! The index against its naive model: lists of operations, as the property tests of `mvcc` run them.

use crate::operations::{self, Here, OPERATION_BYTES};

/// Operations of one input at most.
const OPERATIONS_MAX: usize = 400;

/// The target.
pub fn run(data: &[u8]) {
    let len = data.len().min(OPERATIONS_MAX * OPERATION_BYTES);
    operations::run(&data[..len], &mut Here);
}

/// Lists: bytes of any kind are one.
pub fn seeds() -> Vec<Vec<u8>> {
    crate::commands::seeds()
}
