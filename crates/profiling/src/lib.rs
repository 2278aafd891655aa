//! Profiles of this process in the format of `go tool pprof`: processor time by stack, the threads, and the
//! memory in use by owner ([`memory_profile`]; each owner counts its own memory).
//!
//! [`CpuProfile`] makes the kernel send SIGPROF each time the process has used 10 ms of processor time, on
//! any thread; the signal handler records the thread's stack in memory that was allocated before. The names
//! of functions are looked up afterwards, in the symbol tables of the program and its libraries. If no
//! profile is in progress, no timer runs, and profiling costs nothing.
//!
//! [`pages`] returns all profiles as HTTP responses, and [`command_line()`] returns the command line that the
//! pages show. The crate does not know servers or access rules. It supports only Linux, and programs with
//! unwind tables, which Rust programs have.
//!
//! Invariants: only one profile is taken at a time, and it blocks others until it is encoded ([`Turn`]); the
//! handler allocates nothing, locks nothing and preserves `errno`; memory is bounded by [`STACKS_MAX`].
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
