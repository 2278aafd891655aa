//! A whole cluster of Mainstay in one thread, decided by one number: faults, schedule, workload.
//!
//! What it is: [`run()`] builds the world of a seed ([`world::World`]) and lets it live through two phases: faults, then none,
//! in which it has to recover and converge. Members are [`server::stepped::Stepped`]: the production code of everything
//! but threads and sockets. Checkers look at every step ([`checks`]), the oracle at what clients saw.
//!
//! What it does not know: real time, real files, real sockets. The same seed gives the same trace, on whatever machine
//! and thread.
//!
//! Invariants: nothing waits for real time; every choice comes from one of the seed's streams ([`rng`]); everything that
//! crosses the network crosses it as bytes.
//!
//! Tests: beside the code and `tests/it`; `cargo run --release -p mainstay-sim` runs as many seeds as one likes.

#![forbid(unsafe_code)]

pub mod checks;
mod clients;
mod faults;
mod forgery;
pub mod links;
pub mod member;
pub mod network;
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

pub use run::{Options, Report, profile as profile_of, run};
