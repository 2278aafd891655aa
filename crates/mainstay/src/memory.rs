//! Defines the memory allocator of the process, and returns unused memory to the system.
//!
//! Two effects would keep unused memory in the process. First, with huge pages of 2 MiB, a few kilobytes in
//! use keep a whole page, and the buffers that are used under load leave many such pages. In measurements, a
//! member with a million keys used one and a half times the memory, and an idle member 15 MB more. Therefore
//! [`use_small_pages`] switches huge pages off. Second, the allocator returns a free page to the system a
//! second after the page became free, but only when other memory is requested, which an idle member does not
//! do. Therefore [`FreePages`] returns free pages periodically.

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::{OsStr, c_void};

use mimalloc::MiMalloc;

unsafe extern "C" {
    /// Allocates memory of this size, aligned to at least a word; returns null if there is not enough memory.
    /// From `mimalloc.h`.
    fn mi_malloc(size: usize) -> *mut c_void;
    /// Allocates zeroed memory of this size, aligned to at least a word; returns null if there is not enough
    /// memory. From `mimalloc.h`.
    fn mi_zalloc(size: usize) -> *mut c_void;
    /// Returns free memory of the calling thread and of the process to the system: memory that has been free
    /// for longer than the allocator's delay, or, if `force` is true, all free memory. From `mimalloc.h`.
    fn mi_collect(force: bool);
}

/// The allocator mimalloc, which is called with an explicit alignment only if one is needed. The type
/// `MiMalloc` of the crate always passes an alignment. With an alignment, mimalloc takes a slow path for
/// every block that is larger than a kilobyte and whose size is not a power of two. The slow path costs 180
/// instructions, and as many additional bytes as the alignment. A put of a kilobyte allocates four such
/// blocks.
pub struct Allocator;

/// Alignment of every mimalloc allocation, in bytes: its smallest block is one word.
const ALIGNED_TO: usize = size_of::<usize>();

// SAFETY: the contract of `MiMalloc` is kept: the functions called here return memory of the same allocator,
// of the requested size and with sufficient alignment.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= ALIGNED_TO {
            // SAFETY: any size is allowed.
            return unsafe { mi_malloc(layout.size()) }.cast();
        }
        // SAFETY: the caller makes the same promises as `MiMalloc` requires.
        unsafe { MiMalloc.alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= ALIGNED_TO {
            // SAFETY: any size is allowed.
            return unsafe { mi_zalloc(layout.size()) }.cast();
        }
        // SAFETY: the caller makes the same promises as `MiMalloc` requires.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller makes the same promises as `MiMalloc` requires; memory is freed the same way,
        // however it was allocated.
        unsafe { MiMalloc.dealloc(memory, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller makes the same promises as `MiMalloc` requires; `MiMalloc` itself checks here
        // whether an alignment is needed.
        unsafe { MiMalloc.realloc(memory, layout, new_size) }
    }
}

/// Environment variable of mimalloc. With the value 1, mimalloc uses huge pages, and [`use_small_pages`] does
/// not switch them off.
const ALLOW_LARGE_PAGES: &str = "MIMALLOC_ALLOW_THP";

/// Switches off transparent huge pages for this process. Must be called before the process uses much memory,
/// because pages that are already huge stay huge.
pub fn use_small_pages() {
    if allows_large_pages(std::env::var_os(ALLOW_LARGE_PAGES).as_deref()) {
        return;
    }
    #[cfg(target_os = "linux")]
    // SAFETY: a plain system call without pointers. If it is refused, the process keeps the system's default.
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

/// Returns free memory pages to the system periodically.
#[derive(Debug, Default)]
pub struct FreePages {
    turns: u32,
}

impl FreePages {
    /// Returns free memory to the system in every sixth call ([`TURNS`]). Must be called twice a second by
    /// the thread that started the member: the memory into which this thread has read the log and the
    /// checkpoint belongs to this thread, and becomes free only after the start, when other threads have
    /// applied the data.
    pub fn give_back(&mut self) {
        self.turns += 1;
        if self.turns == TURNS {
            self.turns = 0;
            // SAFETY: any thread may call this function at any time.
            unsafe { mi_collect(true) };
        }
    }
}

/// Number of calls of [`FreePages::give_back`] after which memory is returned once. Not every call returns
/// memory, because under load the returned memory would be needed again immediately.
const TURNS: u32 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_and_keeps_what_is_in_it() {
        for size in (1..200).chain([1000, 1024, 1025, 1500, 4096, 5000, 70_000, 3 << 20]) {
            for align in [1, 2, 4, 8, 16, 64, 4096] {
                let layout = |size| Layout::from_size_align(size, align).expect("is sound");
                // SAFETY: the size is not zero; only bytes that were written are read, within the size; the
                // memory is freed once, with its layout.
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
                // SAFETY: the size is not zero; only zeroed bytes are read, within the size; the memory is
                // freed once.
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
