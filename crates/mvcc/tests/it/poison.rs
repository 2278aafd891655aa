//! Overwrites memory when it is freed, in all tests of this program: a read of a freed record then returns
//! garbage immediately, instead of the old content by luck.

use std::alloc::{GlobalAlloc, Layout, System};

/// Byte with which freed memory is filled: no pointer, length or revision of a test consists of it.
const POISON: u8 = 0xDD;

struct Poisoning;

#[global_allocator]
static ALLOCATOR: Poisoning = Poisoning;

// SAFETY: memory comes from the system's allocator and goes back to it with the same layout.
unsafe impl GlobalAlloc for Poisoning {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller fulfils the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller gives up memory of this layout, so that no other code uses it.
        unsafe { start.write_bytes(POISON, layout.size()) };
        // SAFETY: it was allocated above with this layout.
        unsafe { System.dealloc(start, layout) }
    }
}
