//! Takes profiles of this process, in the format of `go tool pprof`: the processor time by call stack, the
//! threads, and the memory in use. Memory is shown by owner, which is a part of the process that counts its
//! own memory ([`memory_profile`]).
//!
//! [`CpuProfile`] makes the kernel send SIGPROF each time the process has used 10 ms of processor time. The
//! signal handler, which runs on any thread, records that thread's stack in memory that was allocated before.
//! The names of functions are looked up afterwards, in the symbol tables of the program and its libraries. If
//! no profile is in progress, no timer runs, and profiling costs nothing.
//!
//! [`pages`] returns all profiles as HTTP responses, and [`command_line()`] returns the command line that a
//! page shows. The crate does not listen for requests or check access. It supports only Linux, and programs
//! with unwind tables, which Rust programs have.
//!
//! Invariants: only one profile of processor time is taken and encoded at a time ([`Turn`]). The signal
//! handler allocates nothing, locks nothing and preserves `errno`. The memory for samples is bounded by
//! [`STACKS_MAX`].
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
