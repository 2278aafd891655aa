//! The built binary, run as a process and spoken to over its sockets: what it promises when it is killed, when its
//! disk fills up, when its files are damaged, and when what clients send makes no sense. And clusters of such processes.

mod answers;
mod attacks;
mod auth;
mod certificates;
mod client;
mod cluster;
mod cluster_basics;
mod cluster_crash;
mod cluster_disk;
mod cluster_lag;
mod cluster_leader;
mod cluster_load;
mod cluster_members;
mod cluster_partition;
mod cluster_rebuild;
mod cluster_refusals;
mod console;
mod corrupt;
mod crash;
mod damage;
mod damage_table;
mod dashboards;
mod diagnosis;
mod discovery;
mod forwarder;
mod gateway;
mod grpc_web;
mod history;
mod input;
mod locks;
mod lone_client;
mod member;
mod memory;
mod mirror_revisions;
mod network;
mod profiles;
mod proxy;
mod proxy_layers;
mod refusals;
mod resources;
mod restart;
mod service;
mod smoke;
mod space;
mod spans;
mod takeover;
mod tls;
mod tls_cluster;
mod unix_sockets;
mod versions;
mod wal_dir;

use std::time::Duration;

use testkit::Random;

/// No test takes longer, or something hangs.
const TEST_TIME_MAX: Duration = Duration::from_secs(170);

/// Runs the body of a test in a runtime of its own.
fn run<T>(body: impl Future<Output = T>) -> T {
    testkit::block_on(TEST_TIME_MAX, body)
}

/// Bytes that follow from a number, and differ from those of any other.
fn filler(number: u32, bytes: usize) -> bytes::Bytes {
    Random::new(u64::from(number)).bytes(bytes).into()
}
