//! Tests code in which threads share memory, by running it in every order of memory accesses that the memory
//! model allows.
//!
//! The crate compiles the source files of Mainstay that contain shared state a second time, with the types of
//! `loom` in place of those of the standard library. The files get these types from `crate::sync`. Small
//! programs in this crate use the files, and `tests/it` runs each program in every interleaving with a
//! limited number of preemptions.
//!
//! The crate does not depend on other crates of Mainstay. It can include a file only if the file uses no
//! other code of its crate except `crate::sync`. Start reading with `tests/it/main.rs`.
//!
//! Limits of `loom`: it has no time, so a sleep never ends by a timeout, and a lost wake-up becomes a
//! deadlock, which `loom` reports. It treats sequentially consistent loads and stores only as acquire and
//! release, so code that relies on their total order needs a fence.

#![allow(dead_code, reason = "each file is taken whole, and only what threads meet in is used")]

#[path = "../../replica/src/attendance.rs"]
mod attendance;
#[path = "../../mvcc/src/epochs.rs"]
mod epochs;
#[path = "../../replica/src/inbox.rs"]
mod inbox;
pub mod mailboxes;
pub mod reclamation;
#[path = "../../replica/src/seat.rs"]
mod seat;
pub mod sitting;
mod sync;
pub mod watching;
