//! Answers the requests of clients. Each shard (a server thread with its own event loop) runs its own
//! instance of these services.
//!
//! * [`services`] answers calls. [`watch`] is one of the services, with the data that the watches of a shard
//!   share.
//! * [`http`] answers requests for health, version, metrics and diagnosis pages.
//! * `gateway` answers calls in JSON, and [`grpc_web`] those in gRPC-Web. Both pass the calls on through
//!   `local_call`.
//! * `audit` builds the lines of the audit log.
//! * `encode` encodes responses that may contain many keys; [`forwarding`] sends requests that only the
//!   leader can answer to the leader.
//!
//! This crate does not contain raft or the log. It reads published states and sends requests to the core.
//!
//! Invariants: I7 (a reader sees one revision), I8 (`watch`), I9 (limits answer with etcd's errors).
//!
//! Start reading with `services/dispatch.rs` (which function answers a call), `services/call.rs`,
//! `services/kv.rs`, `services/range.rs` and [`watch::Hub`]. Tests: beside the code, `watch/tests`, and
//! `tests/it` of `server` and `mainstay`.

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
