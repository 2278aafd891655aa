//! Answers clients' requests, on each shard.
//!
//! * [`services`] answer calls; [`watch`] is one of them, with what a shard's watches share.
//! * [`http`] answers health, version, metrics and the page for a diagnosis.
//! * `gateway` answers calls in JSON, [`grpc_web`] those of gRPC-Web; `local_call` is what they share.
//! * `audit` says what the audit log tells of a call.
//! * `encode` writes answers by hand where they hold many keys; [`forwarding`] asks the leader what only the leader can answer.
//!
//! What it does not know: raft and the log. It reads published states and asks the core.
//!
//! Invariants: I7 (a reader sees one revision), I8 (`watch`), I9 (limits answer with etcd's errors).

#![forbid(unsafe_code)]

pub mod audit;
mod encode;
pub mod forwarding;
mod gateway;
pub mod grpc_web;
pub mod http;
mod local_call;
pub mod services;
pub mod watch;
