//! Runs a cluster of real processes, injects faults, records what clients see, and has the history judged.
//!
//! Contents: the parts of the program `mainstay-torture`. If the machine allows it, each member runs in its
//! own network namespace and on its own file system. All that a run creates outside of its directories
//! disappears with the program, however the program ends.
//!
//! The crate does not know how the server works inside. It can test any server with etcd's flags and API,
//! including etcd itself; only some faults, such as `flip-bit`, need a Mainstay server. The crate `oracle`
//! decides whether a history is correct.
//!
//! Invariants: An operation is sent once and recorded once. An outcome counts as refused only if the
//! operation can never take effect (`outcome`). A fault is undone before the next one begins, and in between
//! every member must become healthy.
//!
//! Unsafe code: system calls that the standard library does not offer, in `isolation`, `process`, `shaper`
//! and `small_disk`, and the signal handler of the program.
//!
//! Start reading with [`run`] and `injector.rs`. Tests: `tests/it`; they do not need root.

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
mod phase;
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
