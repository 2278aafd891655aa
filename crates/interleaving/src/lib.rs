//! Code that threads share, run in every order that the memory model allows.
//!
//! The crate compiles the product's files with shared state a second time, with the types of `loom` in place
//! of the standard library's (`crate::sync` of this crate exports them). It contains small programs over
//! these files, which `tests/it` runs in every interleaving with a small number of preemptions.
//!
//! The crate does not depend on the rest of the product. A file can be included if its only outside
//! dependency is `crate::sync`. Start reading with `tests/it/main.rs`.
//!
//! Limits of `loom`: it has no time, so a sleep here never ends by itself, which reveals a lost wake-up. And
//! it treats sequentially consistent loads and stores as acquire and release, so that code that relies on
//! their order needs a fence.

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
