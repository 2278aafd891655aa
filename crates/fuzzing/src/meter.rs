//! What a piece of work costs the thread that does it: processor time and memory.
//!
//! Processor time is that of the thread alone, so that other work on the machine hardly counts; memory is counted by
//! the allocator, so that it is the same in every run.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

/// The system's allocator, which counts what each thread holds.
pub struct Counting;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static MOST: Cell<usize> = const { Cell::new(0) };
}

fn take(bytes: usize) {
    // A thread that ends frees memory when its counters are gone already.
    let _ = HELD.try_with(|held| {
        let now = held.get().saturating_add(bytes);
        held.set(now);
        let _ = MOST.try_with(|most| most.set(most.get().max(now)));
    });
}

fn give_back(bytes: usize) {
    // Memory may be freed by another thread than the one that took it.
    let _ = HELD.try_with(|held| held.set(held.get().saturating_sub(bytes)));
}

// SAFETY: every call is handed on to the system's allocator as it is; counting allocates nothing and does not unwind.
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

/// What a piece of work has cost.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Processor time of this thread.
    pub cpu: Duration,
    /// Bytes held at the same time at most, beyond those held at its begin.
    pub peak_bytes: usize,
}

/// Does a piece of work; gives its result and what it cost.
pub fn measure<R>(work: impl FnOnce() -> R) -> (R, Cost) {
    let before = HELD.get();
    MOST.set(before);
    let began = thread_time();
    let result = work();
    let cpu = thread_time().saturating_sub(began);
    (result, Cost { cpu, peak_bytes: MOST.get().saturating_sub(before) })
}

/// Processor time that this thread has used.
fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the answer, and the clock exists on every Linux.
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
