//! Measures the processor time and the memory that a function needs in one thread.
//!
//! Only the processor time of this thread is counted, so other work on the machine has little influence.
//! Memory is counted by the allocator, so the result is the same in every run.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

/// Allocator that forwards to the system's allocator and counts the bytes that each thread holds.
pub struct Counting;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static MOST: Cell<usize> = const { Cell::new(0) };
}

fn take(bytes: usize) {
    // Ignore an error: the counters of this thread are already destroyed, because the thread is ending.
    let _ = HELD.try_with(|held| {
        let now = held.get().saturating_add(bytes);
        held.set(now);
        let _ = MOST.try_with(|most| most.set(most.get().max(now)));
    });
}

fn give_back(bytes: usize) {
    // Saturate, because this thread may free more memory than it has allocated: other threads may have
    // allocated it.
    let _ = HELD.try_with(|held| held.set(held.get().saturating_sub(bytes)));
}

// SAFETY: every call is forwarded unchanged to the system allocator; counting allocates nothing and does not
// unwind.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        give_back(layout.size());
        // SAFETY: `at` was allocated by the system's allocator with this layout, as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        take(size);
        give_back(layout.size());
        // SAFETY: `at` was allocated by the system's allocator with this layout, as the caller promises.
        unsafe { System.realloc(at, layout, size) }
    }
}

/// Processor time and memory that a function has needed.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Processor time of this thread.
    pub cpu: Duration,
    /// Maximum number of bytes that were held at the same time, in addition to those held at the start.
    pub peak_bytes: usize,
}

/// Runs a function. Returns its result, and the processor time and memory that it has needed.
pub fn measure<R>(work: impl FnOnce() -> R) -> (R, Cost) {
    let before = HELD.get();
    MOST.set(before);
    let began = thread_time();
    let result = work();
    let cpu = thread_time().saturating_sub(began);
    (result, Cost { cpu, peak_bytes: MOST.get().saturating_sub(before) })
}

/// Returns the processor time that this thread has used.
fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writes, and the clock exists on every Linux.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(failed, 0, "the clock of the thread answers");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_time_are_counted() {
        let (kept, cost) = measure(|| {
            drop(std::hint::black_box(vec![1u8; 3 << 20]));
            vec![2u8; 1 << 20]
        });
        assert!((3 << 20..4 << 20).contains(&cost.peak_bytes), "{cost:?} for {} bytes", kept.len());
        let (_, work) = measure(|| (0..3_000_000u64).fold(0, |sum: u64, n| std::hint::black_box(sum ^ n)));
        assert!(work.cpu > Duration::ZERO && work.peak_bytes == 0, "{work:?}");
    }
}
