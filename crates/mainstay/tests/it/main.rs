//! The built binary, run as a process and used over its sockets: its guarantees when it is killed, when its
//! disk fills up, when its files are damaged, and when clients send invalid input; and clusters of such
//! processes.
//!
//! `cargo test --workspace` runs the modules that come first: they wait for conditions only, however busy the
//! machine is. The feature `full` adds the others, which take minutes, or measure time: leases that end,
//! elections, pauses.

// Some shared helpers are used only by the full tests.
#![cfg_attr(not(feature = "full"), allow(dead_code))]

mod answers;
mod autopilot_dry_run;
mod backup;
mod client;
mod cluster;
mod cluster_crash;
mod cluster_load;
mod crash;
mod damage;
mod drains;
mod history;
mod kubernetes;
mod member;
mod memory_budget;
mod network;
mod observers;
mod recover;
mod refusals;
mod shadow;
mod smoke;
mod takeover;
mod wal_dir;
mod witness;

#[cfg(feature = "full")]
mod attacks;
#[cfg(feature = "full")]
mod auth;
#[cfg(feature = "full")]
mod autopilot;
#[cfg(feature = "full")]
mod certificates;
#[cfg(feature = "full")]
mod cluster_basics;
#[cfg(feature = "full")]
mod cluster_disk;
#[cfg(feature = "full")]
mod cluster_lag;
#[cfg(feature = "full")]
mod cluster_leader;
#[cfg(feature = "full")]
mod cluster_members;
#[cfg(feature = "full")]
mod cluster_partition;
#[cfg(feature = "full")]
mod cluster_rebuild;
#[cfg(feature = "full")]
mod cluster_refusals;
#[cfg(feature = "full")]
mod compression;
#[cfg(feature = "full")]
mod console;
#[cfg(feature = "full")]
mod corrupt;
#[cfg(feature = "full")]
mod damage_table;
#[cfg(feature = "full")]
mod dashboards;
#[cfg(feature = "full")]
mod diagnosis;
#[cfg(feature = "full")]
mod differences;
#[cfg(feature = "full")]
mod discovery;
#[cfg(feature = "full")]
mod forwarder;
#[cfg(feature = "full")]
mod gateway;
#[cfg(feature = "full")]
mod grpc_web;
#[cfg(feature = "full")]
mod input;
#[cfg(feature = "full")]
mod locks;
#[cfg(feature = "full")]
mod lone_client;
#[cfg(feature = "full")]
mod many_connections;
#[cfg(feature = "full")]
mod memory;
#[cfg(feature = "full")]
mod mirror_revisions;
#[cfg(feature = "full")]
mod profiles;
#[cfg(feature = "full")]
mod proxy;
#[cfg(feature = "full")]
mod proxy_layers;
#[cfg(feature = "full")]
mod proxy_zones;
#[cfg(feature = "full")]
mod resources;
#[cfg(feature = "full")]
mod restart;
#[cfg(feature = "full")]
mod service;
#[cfg(feature = "full")]
mod sources;
#[cfg(feature = "full")]
mod space;
#[cfg(feature = "full")]
mod spans;
#[cfg(feature = "full")]
mod tls;
#[cfg(feature = "full")]
mod tls_cluster;
#[cfg(feature = "full")]
mod unix_sockets;
#[cfg(feature = "full")]
mod versions;

use std::time::Duration;

use testkit::Random;

/// Longest time of a test; a test that takes longer hangs.
const TEST_TIME_MAX: Duration = Duration::from_secs(170);

/// Runs the body of a test in a separate runtime.
fn run<T>(body: impl Future<Output = T>) -> T {
    testkit::block_on(TEST_TIME_MAX, body)
}

/// Returns bytes that are determined by a number, and differ between numbers.
fn filler(number: u32, bytes: usize) -> bytes::Bytes {
    Random::new(u64::from(number)).bytes(bytes).into()
}
