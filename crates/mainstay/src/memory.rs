//! What the process keeps of memory that it does not use: as little as the allocator can do without.
//!
//! Two things would keep it. With pages of 2 MiB, a few kilobytes that are in use keep all of such a page, and the buffers of
//! a load leave many of those: a member of a million keys then had half as much memory again, and an idle one 15 MB more.
//! And the allocator gives free pages back a second after they became free, but only while it is asked for other memory: what
//! the end of a load or a start leaves would stay for as long as the member is idle.

use std::ffi::OsStr;

unsafe extern "C" {
    /// Gives back what the calling thread and the process have had free for longer than the allocator's delay; with `force`,
    /// all that is free. From `mimalloc.h`.
    fn mi_collect(force: bool);
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
    fn large_pages_are_used_if_they_are_asked_for() {
        assert!(!allows_large_pages(None));
        for (value, allows) in [("", false), ("0", false), ("1", true), ("2", true), ("on", true)] {
            assert_eq!(allows_large_pages(Some(OsStr::new(value))), allows, "{value}");
        }
    }
}
