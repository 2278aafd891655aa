//! A small gRPC client over HTTP/2 for our own tests and tools.
//!
//! What it is: one connection per [`Channel`], many calls at once on it; messages are opaque bytes.
//!
//! What it does not know: protobuf, endpoints and balancing, retries, TLS.
//!
//! Invariants: a call that is dropped is cancelled at the server; an answer is held to
//! [`CallOptions::message_bytes_max`].
//!
//! Tests: `mainstay-front`'s `tests/it` uses it for every kind of call.

mod call;
mod channel;
mod messages;

pub use call::{CallOptions, Receiver, Sender};
pub use channel::Channel;
