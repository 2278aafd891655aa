//! The mapping between JSON and protobuf messages that etcd's JSON gateway has (grpc-gateway, over Go's `protojson` and
//! `encoding/json`), with its errors.
//!
//! What it is: [`decode()`] makes the bytes of a protobuf message from JSON, [`encode()`] makes JSON from such bytes; both follow
//! [`api::descriptor`], field by field, and build no message. [`Values`] cuts a body into JSON values as they arrive.
//! [`route`] finds the RPC of a path; [`status`] and [`error`] say how an error is answered.
//!
//! What it does not know: HTTP, sockets, users, what the messages mean.
//!
//! Invariants:
//! - What a client sends never panics, and recursion is bounded by [`DEPTH_MAX`].
//! - What [`decode()`] takes is what etcd takes: a field by either of its names, 64-bit integers as numbers or strings, bytes in
//!   both alphabets of base64 with and without padding, enums by name or number; unknown fields are passed over. Errors have
//!   etcd's words, with line and column.
//! - Memory is bounded by the length of the input: three quarters of it for bytes, never more than a small multiple.
//!
//! Tests: beside the code.

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
