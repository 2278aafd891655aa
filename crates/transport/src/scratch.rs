//! Provides one temporary buffer per thread, for reads whose bytes are processed or copied before the read
//! returns.

use std::cell::RefCell;

/// Size of the temporary buffer in bytes.
const SCRATCH_BYTES: usize = 128 * 1024;

thread_local! {
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH_BYTES].into_boxed_slice());
}

/// Calls `read` with the temporary buffer of this thread, which has 128 KiB and arbitrary contents. `read`
/// must not call this function, which would panic.
pub fn with<T>(read: impl FnOnce(&mut [u8]) -> T) -> T {
    SCRATCH.with_borrow_mut(|scratch| read(scratch))
}
