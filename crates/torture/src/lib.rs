//! Runs a cluster of real processes under faults, records what clients see, and judges the result.
//!
//! Contents: the parts of the program `mainstay-torture`. Members run in their own network namespaces and on
//! their own file systems, as far as the machine allows; all that a run creates outside of its directories
//! disappears with the program, however the program ends.
//!
//! Outside its scope: how the server works inside. The crate can test any server with etcd's flags and API,
//! including real etcd; only the fault `flip-bit` needs the file names of Mainstay. The crate `oracle`
//! decides if a history is correct.
//!
//! Invariants: an operation is sent once and recorded once; an outcome counts as refused only if the
//! operation can never take effect (`outcome`); a fault is undone before the next one begins, and between two
//! faults every member must become healthy.
//!
//! Unsafe code: system calls that the standard library lacks, in `isolation`, `process`, `shaper`,
//! `small_disk` and the binary's signal handler.
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
