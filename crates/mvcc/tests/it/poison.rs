//! Overwrites memory when it is freed, in all tests of this program: whoever reads a record that was freed reads nonsense at once,
//! and not what was there before by luck.

use std::alloc::{GlobalAlloc, Layout, System};

/// What freed memory is filled with: no pointer, length or revision of a test looks like it.
const POISON: u8 = 0xDD;

struct Poisoning;

#[global_allocator]
static ALLOCATOR: Poisoning = Poisoning;

// SAFETY: memory comes from the system's allocator and goes back to it with the same layout.
unsafe impl GlobalAlloc for Poisoning {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps to what `alloc` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller gives up memory of this layout, so that nobody else may use it.
        unsafe { start.write_bytes(POISON, layout.size()) };
        // SAFETY: it was allocated above with this layout.
        unsafe { System.dealloc(start, layout) }
    }
}
