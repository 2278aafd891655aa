//! Runs a cluster of real processes under faults, with clients that record what they see, and judges it.
//!
//! What it is: the parts of the program `mainstay-torture`. Members run in network namespaces and on file systems of
//! their own, as far as the machine allows; everything that is made for a run ends with the program, however it ends.
//!
//! What it does not know: how the server works inside. It takes any server with etcd's flags and API, real etcd among
//! them; only the fault `flip-bit` knows file names. Whether a history is sound is the `oracle`'s business.
//!
//! Invariants: an operation is sent once and recorded once; an outcome counts as refused only where nothing can happen
//! any more (`outcome`); a fault is undone before the next begins, and every member must be healthy between two.
//!
//! Unsafe code: system calls that the standard library does not have, in `isolation`, `process`, `shaper`,
//! `small_disk` and the binary's signal handler.
//!
//! Tests: `tests/it`; they need no root.

mod administrator;
mod bulk_client;
pub mod chronicle;
mod cluster;
mod compactor;
pub mod fault;
mod injector;
mod isolation;
mod key_client;
mod lease_client;
mod leftovers;
mod load;
mod lock_client;
mod network;
pub mod options;
pub mod outcome;
mod pki;
mod prober;
mod process;
pub mod record;
pub mod report;
mod rng;
pub mod run;
mod security;
mod session;
mod settlement;
mod shaper;
mod small_disk;
pub mod timeline;
mod translation;
mod user_client;
mod watch_client;
