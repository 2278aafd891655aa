//! Profiles of this process in the format of `go tool pprof`: processor time by stack, the threads, and the
//! memory in use by owner, as the owners count it ([`memory_profile`]).
//!
//! [`CpuProfile`] makes the kernel send SIGPROF each time the process has used 10 ms of processor time, on
//! any thread; the handler records the thread's stack in memory that was allocated before. Names are looked
//! up afterwards, in the symbol tables of the program and its libraries. Without a profile in progress, no
//! timer is armed, and nothing is spent.
//!
//! [`pages`] serves both as HTTP responses, and [`command_line()`] provides their command line. The crate
//! does not know servers or access rules. It supports Linux, and programs with unwind tables, as Rust
//! programs have.
//!
//! Invariants: one profile at a time, until it is encoded ([`Turn`]); the handler allocates nothing, locks
//! nothing and preserves `errno`; memory is bounded by [`STACKS_MAX`].
//!
//! Start reading with `sampler.rs` (the handler) and `profile.rs` (the format). Tests: beside the code.

mod command_line;
mod elf;
mod memory;
mod names;
pub mod pages;
mod profile;
mod sampler;
mod threads;

pub use command_line::command_line;
pub use memory::{Owner, Resident, memory_profile, memory_text};
pub use sampler::{Busy, CpuProfile, STACKS_MAX, Turn};
pub use threads::{threads_profile, threads_text};
