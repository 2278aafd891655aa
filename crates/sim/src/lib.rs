//! Simulates a whole Mainstay cluster in one thread. One number, the seed, decides faults, schedule and
//! workload.
//!
//! Contents: [`run()`] builds the world of a seed ([`world::World`]) and runs it through two phases: one with
//! faults, and one without, in which the cluster has to recover and converge. Each member is a
//! [`server::stepped::Stepped`]: the production code without its threads and sockets. So is each observer, which
//! follows the cluster's log without being a member. Checkers examine members and observers after every step
//! ([`checks`]), and the oracle judges what the clients saw.
//!
//! Outside its scope: real time, real files, real sockets. The same seed gives the same trace on any machine
//! and in any thread.
//!
//! Invariants: nothing waits for real time; every random choice comes from one of the seed's streams
//! ([`rng`]); all data that crosses the network is encoded to bytes and decoded again.
//!
//! Start reading with [`run()`], `world.rs` and `checks.rs`. Tests: beside the code and in `tests/it`;
//! `cargo run --release -p mainstay-sim` runs any number of seeds.

#![forbid(unsafe_code)]

mod autopilot;
pub mod checks;
mod clients;
mod faults;
mod forgery;
pub mod links;
pub mod member;
pub mod network;
mod observers;
mod operator;
mod processes;
pub mod profile;
pub mod rng;
mod run;
#[cfg(test)]
mod scenarios;
pub mod schedule;
mod staged;
mod text;
pub mod trace;
mod traffic;
mod users;
pub mod watchers;
pub mod wire;
mod witness;
pub mod workload;
pub mod world;

pub use profile::Fault;
pub use run::{Options, Report, profile as profile_of, run};
