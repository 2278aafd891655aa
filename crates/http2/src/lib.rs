//! Implements HTTP/2 for servers and clients, as a state machine that does no input or output itself: it
//! converts received bytes to events, and commands to bytes to send.
//!
//! [`Connection`] takes received bytes ([`Input`], [`Connection::next`]) and returns their meaning
//! ([`Event`]). It takes data to send ([`Connection::send_head`], [`Connection::send_data`] and others) and
//! converts it to frames ([`Connection::gather`], [`Output`]). The modules: `frame` (the nine-byte frame
//! header), `hpack` (header compression, [`Template`]), `fields` (header lists and their validation),
//! `stream` and `flow` (stream states and flow-control windows), `receive` and `send` (the two directions).
//!
//! Out of scope: sockets, TLS, threads, clocks ([`Connection::begin_turn`] passes the time in), wakers, calls
//! and their deadlines, and the boundaries of received gRPC messages.
//!
//! Invariants:
//! * The events do not depend on how the input bytes are split (`tests/it/cuts.rs`).
//! * Memory is bounded whatever the peer sends: by windows for bodies, by [`Options::header_list_bytes_max`]
//!   and [`Limits`] for headers, by [`Options::output_bytes_max`] for responses to frames
//!   (`tests/it/floods.rs`). When a stream ends, all its bytes are returned to the connection's window, so
//!   the owner itself must limit the data that it keeps after that.
//! * A consumer that does not release received data stops the sender (`tests/it/windows.rs`).
//! * Streams with data to send do so in rotation, one frame each (`tests/it/windows.rs`).
//! * A connection without streams holds no buffers, and after [`Connection::rest`] only its header tables
//!   (`tests/it/memory.rs`).
//! * This crate interoperates with the crate `h2` in both roles (`tests/it/against_h2.rs`).
//!
//! Start reading with [`Connection`], which describes a turn, and `receive.rs`. Errors are those of RFC 9113
//! (`tests/it/protocol.rs`). `examples/hello.rs` is a server for HTTP/2 conformance tools.

#![forbid(unsafe_code)]

mod assembly;
mod buffers;
mod connection;
mod event;
mod fields;
mod flow;
mod frame;
mod hpack;
mod options;
mod reason;
mod receive;
mod send;
mod stream;

pub use buffers::{Input, Output};
pub use connection::{Connection, Role};
pub use event::Event;
pub use fields::Fields;
pub use frame::PREFACE;
pub use hpack::{InvalidField, Template};
pub use options::{Limits, Options, Rate};
pub use reason::{Cause, ConnectionError, Limit, Reason};
pub use send::{OpenError, SendError};
pub use stream::{Key, Payload, message_prefix};
