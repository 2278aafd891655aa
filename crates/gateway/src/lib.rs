//! The mapping between JSON and protobuf messages of etcd's JSON gateway (grpc-gateway, over Go's `protojson`
//! and `encoding/json`), with its errors.
//!
//! Structure: [`decode()`] converts JSON to the bytes of a protobuf message, [`encode()`] converts such bytes
//! to JSON; both follow the descriptions in [`api::descriptor`] field by field, without building a message in
//! memory. [`Values`] splits a body into JSON values as they arrive. [`route`] finds the RPC of a path;
//! [`status`] and [`error`] determine the response to an error.
//!
//! The crate does not know HTTP, sockets, users, or the meaning of messages.
//!
//! Invariants:
//! - No input of a client causes a panic, and recursion is bounded by [`DEPTH_MAX`].
//! - [`decode()`] accepts what etcd accepts: a field by either of its names, 64-bit integers as numbers or
//!   strings, bytes in both alphabets of base64 with and without padding, enums by name or number; unknown
//!   fields are ignored. Errors have etcd's words, with line and column.
//! - Memory is bounded by the length of the input: a message takes three quarters of that length for base64,
//!   and at most a small multiple of it.
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
