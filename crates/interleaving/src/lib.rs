//! What threads share, run in every order that the memory model allows.
//!
//! What it is: the files of the product that threads meet in, compiled a second time with the types of `loom` in
//! place of the standard library's (that is what their `crate::sync` is here), and small programs over them, which
//! `tests/it` runs in every interleaving with up to a few preemptions.
//!
//! What it does not know: everything else. A file can be taken in if all it needs from outside is `crate::sync`.
//!
//! What `loom` cannot show: it has no time, so that a sleep here is without end (which is what shows a lost wake-up),
//! and it treats sequentially consistent loads and stores as acquiring and releasing, so that what relies on their
//! order needs a fence.

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
