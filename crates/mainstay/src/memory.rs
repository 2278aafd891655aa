//! The allocator, and what the process keeps of memory that it does not use: as little as the allocator can do without.
//!
//! Two things would keep it. With pages of 2 MiB, a few kilobytes that are in use keep all of such a page, and the buffers of
//! a load leave many of those: a member of a million keys then had half as much memory again, and an idle one 15 MB more.
//! And the allocator gives free pages back a second after they became free, but only while it is asked for other memory: what
//! the end of a load or a start leaves would stay for as long as the member is idle.

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::{OsStr, c_void};

use mimalloc::MiMalloc;

unsafe extern "C" {
    /// Allocates memory of this size, aligned to a word at least; null if there is none. From `mimalloc.h`.
    fn mi_malloc(size: usize) -> *mut c_void;
    /// Allocates zeroed memory of this size, aligned to a word at least; null if there is none. From `mimalloc.h`.
    fn mi_zalloc(size: usize) -> *mut c_void;
    /// Gives back what the calling thread and the process have had free for longer than the allocator's delay; with `force`,
    /// all that is free. From `mimalloc.h`.
    fn mi_collect(force: bool);
}

/// mimalloc, asked for an alignment only where there is one to ask for: `MiMalloc` always does, and then all that is larger than a
/// kilobyte, and no power of two, takes the long way of memory that has to be moved up to its alignment (180 instructions more, and as
/// many bytes as the alignment; four times with each put of a kilobyte).
pub struct Allocator;

/// Alignment of every mimalloc allocation, in bytes: its smallest block is one word.
const ALIGNED_TO: usize = size_of::<usize>();

// SAFETY: what `MiMalloc` keeps is kept. The functions called here give memory of that allocator, of the size that was asked for, and
// their alignment is enough.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= ALIGNED_TO {
            // SAFETY: any size will do.
            return unsafe { mi_malloc(layout.size()) }.cast();
        }
        // SAFETY: the caller promises the same.
        unsafe { MiMalloc.alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= ALIGNED_TO {
            // SAFETY: any size will do.
            return unsafe { mi_zalloc(layout.size()) }.cast();
        }
        // SAFETY: the caller promises the same.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller promises the same; memory is given back in one way, however it was asked for.
        unsafe { MiMalloc.dealloc(memory, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller promises the same. Here the allocator itself looks whether there is an alignment to ask for.
        unsafe { MiMalloc.realloc(memory, layout, new_size) }
    }
}

/// The allocator's own variable: with 1, it asks for large pages, and they are left on.
const ALLOW_LARGE_PAGES: &str = "MIMALLOC_ALLOW_THP";

/// Has the memory of this process in pages of the usual size. Call it before memory is used: pages that are large by then stay
/// so.
pub fn use_small_pages() {
    if allows_large_pages(std::env::var_os(ALLOW_LARGE_PAGES).as_deref()) {
        return;
    }
    #[cfg(target_os = "linux")]
    // SAFETY: a plain system call without pointers. Where it is refused, the process has what it would have had.
    unsafe {
        libc::prctl(
            libc::PR_SET_THP_DISABLE,
            1 as libc::c_ulong,
            0 as libc::c_ulong,
            0 as libc::c_ulong,
            0 as libc::c_ulong,
        );
    }
}

fn allows_large_pages(variable: Option<&OsStr>) -> bool {
    variable.and_then(OsStr::to_str).is_some_and(|value| ["1", "2", "true", "yes", "on"].contains(&value))
}

/// Gives free pages back to the system, now and then.
#[derive(Debug, Default)]
pub struct FreePages {
    turns: u32,
}

impl FreePages {
    /// Gives back what is free, in one of [`TURNS`] calls. Call it twice a second, in the thread that started the member: what
    /// it read from the log and the checkpoint is its own, and free once other threads have applied it.
    pub fn give_back(&mut self) {
        self.turns += 1;
        if self.turns == TURNS {
            self.turns = 0;
            // SAFETY: may be called by any thread at any time.
            unsafe { mi_collect(true) };
        }
    }
}

/// Under load, what is given back is wanted again at once, so it is not done in each turn.
const TURNS: u32 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_and_keeps_what_is_in_it() {
        for size in (1..200).chain([1000, 1024, 1025, 1500, 4096, 5000, 70_000, 3 << 20]) {
            for align in [1, 2, 4, 8, 16, 64, 4096] {
                let layout = |size| Layout::from_size_align(size, align).expect("is sound");
                // SAFETY: the size is not zero; what is read was written, within the size; it is given back once, with its layout.
                unsafe {
                    let memory = Allocator.alloc(layout(size));
                    assert!(!memory.is_null() && memory.addr().is_multiple_of(align), "{size}, {align}");
                    memory.write_bytes(7, size);
                    let memory = Allocator.realloc(memory, layout(size), 2 * size);
                    assert!(!memory.is_null() && memory.addr().is_multiple_of(align), "{size}, {align}");
                    let kept = std::slice::from_raw_parts(memory, size);
                    assert!(kept.iter().all(|byte| *byte == 7), "{size}, {align}");
                    Allocator.dealloc(memory, layout(2 * size));
                }
            }
        }
    }

    #[test]
    fn memory_of_zeros_is_that_when_it_was_used_before_too() {
        for (size, align) in [(24, 8), (1500, 1), (70_000, 1), (128, 64)] {
            let layout = Layout::from_size_align(size, align).expect("is sound");
            for _ in 0..5000 {
                // SAFETY: the size is not zero; what is read was given as zeros, within the size; it is given back once.
                unsafe {
                    let memory = Allocator.alloc_zeroed(layout);
                    assert!(!memory.is_null() && memory.addr().is_multiple_of(align), "{layout:?}");
                    assert!(
                        std::slice::from_raw_parts(memory, size).iter().all(|byte| *byte == 0),
                        "{layout:?}"
                    );
                    memory.write_bytes(7, size);
                    Allocator.dealloc(memory, layout);
                }
            }
        }
    }

    #[test]
    fn large_pages_are_used_if_they_are_asked_for() {
        assert!(!allows_large_pages(None));
        for (value, allows) in [("", false), ("0", false), ("1", true), ("2", true), ("on", true)] {
            assert_eq!(allows_large_pages(Some(OsStr::new(value))), allows, "{value}");
        }
    }
}
