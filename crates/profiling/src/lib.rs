//! Profiles of this process in the form that `go tool pprof` reads: processor time by stack, the threads there are, and the memory
//! in use by owner, as the owners count it ([`memory_profile`]).
//!
//! [`CpuProfile`] has the kernel send SIGPROF each time the process has used up 10 ms of processor time, on whichever thread;
//! the handler notes that thread's stack in memory allocated before. Names are looked up afterwards, in the symbol tables of the
//! program and its libraries. While no profile is taken nothing is armed, and nothing costs anything.
//!
//! [`pages`] has the pages of both, as HTTP responses, and [`command_line()`] is how they tell the command line. It does not know servers, or who may ask. It is for Linux, and for programs with unwind tables, as Rust's are.
//!
//! Invariants: one profile at a time, until it is put together ([`Turn`]); the handler allocates nothing, locks nothing and leaves `errno` alone; memory is bounded by
//! [`STACKS_MAX`]. Tests: beside the code.

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
