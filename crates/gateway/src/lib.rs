//! Converts between JSON and protobuf messages for etcd's JSON API, with the same results and errors as etcd.
//! For this, etcd uses grpc-gateway, which in turn uses Go's `protojson` and `encoding/json`.
//!
//! [`decode()`] converts JSON to the bytes of a protobuf message, and [`encode()`] converts such bytes to
//! JSON. Both follow the descriptions in [`api::descriptor`] field by field, without creating a message
//! struct in memory. [`Values`] splits a body into JSON values while it arrives. [`route`] returns the RPC
//! for a path. [`status`] and [`error`] return the HTTP status and the body for an error.
//!
//! The crate does not know HTTP, sockets, users, or the meaning of messages.
//!
//! Invariants:
//! - No input of a client causes a panic, and the depth of recursion is at most [`DEPTH_MAX`].
//! - [`decode()`] accepts what etcd accepts: a field by either of its two names, a 64-bit integer as a number
//!   or a string, bytes in both alphabets of base64 with or without padding, an enum by name or number.
//!   Unknown fields are ignored. Errors have etcd's messages, with line and column.
//! - The memory for a conversion is at most a small multiple of the length of the input.
//!
//! Start reading with [`decode()`]. The caller is `rpc/src/gateway.rs`. Tests: beside the code, and
//! `interop/gateway_same.py` against real etcd.

#![forbid(unsafe_code)]

mod answers;
mod decode;
mod encode;
mod quote;
mod routes;
mod scan;

pub use answers::{error, error_line, result_line, status};
pub use decode::{DEPTH_MAX, Refused, decode, decode_value};
pub use encode::{Malformed, RangeEncoder, encode};
pub use routes::{PATHS, route};
pub use scan::{Next, Values};
