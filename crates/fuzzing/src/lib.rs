//! Fuzz targets: functions that take arbitrary bytes, feed them to one part of Mainstay, and panic if they
//! find a bug.
//!
//! [`TARGETS`] lists the targets, each with its function and with seeds: valid inputs with which fuzzing
//! begins. The workspace `fuzz/` at the root of the repository runs the targets under libFuzzer. `tests/it`
//! runs each target over all files of its corpus in the normal test run, so that every bug that was found
//! stays tested.
//!
//! The crate does not measure coverage, mutate inputs or limit their time: libFuzzer does this. Start reading
//! with [`TARGETS`] and `docs/fuzzing.md`.
//!
//! A target checks more than the absence of panics: for example that data which was read can be written and
//! read again, that two members are equal at the end, or that no acknowledged data is missing. If a format
//! has a checksum, which would make almost every mutation invalid, the target computes the checksum.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a target that finds something panics; that is how it tells"
)]

// Files of the property tests of `mvcc` are included below under their own paths. They refer to the crate by
// the name that this line defines.
extern crate mvcc as mainstay_mvcc;

pub mod apply;
pub mod auth_requests;
pub mod certificates;
pub mod commands;
#[allow(dead_code, missing_docs, reason = "it belongs to the tests of mvcc")]
#[path = "../../mvcc/tests/it/compare.rs"]
mod compare;
pub mod comparing;
pub mod configuration;
pub mod cost;
pub mod cost_services;
pub mod cost_watches;
pub mod front_port;
pub mod gateway_json;
pub mod grpc_web;
pub mod http2_ends;
pub mod index;
pub mod journal;
pub mod journal_files;
pub mod journal_values;
pub mod messages;
pub mod meter;
#[allow(dead_code, reason = "it belongs to the tests of mvcc")]
#[path = "../../mvcc/tests/it/naive.rs"]
mod naive;
#[allow(dead_code, reason = "it belongs to the tests of mvcc")]
#[path = "../../mvcc/tests/it/operations.rs"]
mod operations;
pub mod peer_port;
mod permission_tree;
pub mod raft_node;
#[allow(dead_code, reason = "it belongs to the tests of mvcc")]
#[path = "../../mvcc/tests/it/random.rs"]
mod random;
pub mod restore;
pub mod script;
pub mod state;
pub mod tls_port;
pub mod tokens;

/// Allocator that counts memory, for the targets that have a memory budget.
#[global_allocator]
static ALLOCATOR: meter::Counting = meter::Counting;

/// A fuzz target: a function that checks one input, and its seeds.
pub struct Target {
    /// Name of the target and of its corpus directory.
    pub name: &'static str,
    /// Runs the target on an input; panics if it finds a bug.
    pub run: fn(&[u8]),
    /// Returns valid inputs with which fuzzing begins.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets.
pub static TARGETS: &[Target] = &[
    Target { name: "apply", run: apply::run, seeds: apply::seeds },
    Target { name: "auth_requests", run: auth_requests::run, seeds: auth_requests::seeds },
    Target { name: "certificates", run: certificates::run, seeds: certificates::seeds },
    Target { name: "checkpoint", run: journal_files::run_checkpoint, seeds: journal_files::seeds_checkpoint },
    Target { name: "commands", run: commands::run, seeds: commands::seeds },
    Target { name: "comparison", run: comparing::run, seeds: comparing::seeds },
    Target { name: "config", run: configuration::run, seeds: configuration::seeds },
    Target { name: "config_values", run: configuration::run_values, seeds: configuration::seeds_values },
    Target { name: "cost_connections", run: cost::run_connections, seeds: cost::seeds_connections },
    Target { name: "cost_services", run: cost_services::run, seeds: cost_services::seeds },
    Target { name: "cost_transactions", run: cost::run_transactions, seeds: cost::seeds_transactions },
    Target { name: "cost_watches", run: cost_watches::run, seeds: cost_watches::seeds },
    Target { name: "front_frames", run: front_port::run_frames, seeds: front_port::seeds_frames },
    Target { name: "front_http1", run: front_port::run_http1, seeds: front_port::seeds_http1 },
    Target { name: "front_http2", run: front_port::run_http2, seeds: front_port::seeds_http2 },
    Target { name: "gateway", run: gateway_json::run, seeds: gateway_json::seeds },
    Target { name: "grpc_web", run: grpc_web::run, seeds: grpc_web::seeds },
    Target { name: "http2_ends", run: http2_ends::run, seeds: http2_ends::seeds },
    Target { name: "image", run: restore::run_image, seeds: restore::seeds_image },
    Target { name: "log_damage", run: journal_files::run_damage, seeds: journal_files::seeds_damage },
    Target { name: "log_files", run: journal_files::run_files, seeds: journal_files::seeds_files },
    Target { name: "log_segments", run: journal_files::run_segments, seeds: journal_files::seeds_segments },
    Target { name: "log_values", run: journal_values::run, seeds: journal_values::seeds },
    Target { name: "messages", run: messages::run, seeds: messages::seeds },
    Target { name: "mvcc", run: index::run, seeds: index::seeds },
    Target { name: "peer_requests", run: peer_port::run_requests, seeds: peer_port::seeds_requests },
    Target { name: "peer_streams", run: peer_port::run_streams, seeds: peer_port::seeds_streams },
    Target { name: "raft_node", run: raft_node::run, seeds: raft_node::seeds },
    Target { name: "snapshot", run: restore::run_snapshot, seeds: restore::seeds_snapshot },
    Target { name: "tls_calls", run: tls_port::run_calls, seeds: tls_port::seeds_calls },
    Target { name: "tls_connections", run: tls_port::run, seeds: tls_port::seeds },
    Target { name: "tokens", run: tokens::run, seeds: tokens::seeds },
    Target { name: "transfer", run: restore::run_transfer, seeds: restore::seeds_transfer },
];

/// Returns the target with this name.
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
