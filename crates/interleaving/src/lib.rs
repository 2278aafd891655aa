//! Runs code in which threads share memory in every order that the memory model allows.
//!
//! The crate compiles those files of the product that contain shared state a second time, with the types of
//! `loom` in place of those of the standard library (`crate::sync` of this crate exports them). The crate
//! contains small programs that use these files. `tests/it` runs each program in every interleaving with a
//! small number of preemptions.
//!
//! The crate does not depend on other crates of the product. It can include a file of the product only if
//! that file uses nothing outside of itself except `crate::sync`. Start reading with `tests/it/main.rs`.
//!
//! Limits of `loom`: it has no time, so a sleep never ends by a timeout, which makes a lost wake-up visible.
//! And it treats sequentially consistent loads and stores only as acquire and release, so code that relies on
//! their total order needs a fence.

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
