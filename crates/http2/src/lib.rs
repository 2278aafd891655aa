//! HTTP/2 as a state machine, for both roles: bytes in, events out; commands in, bytes out.
//!
//! What it is: [`Connection`] takes what was read ([`Input`], [`Connection::next`]) and says what it means ([`Event`]); it
//! takes what is to be sent ([`Connection::send_head`], [`Connection::send_data`] and the others) and gathers it as frames
//! ([`Connection::gather`], [`Output`]). Its parts: `frame` (nine bytes before each payload), `hpack` (header compression,
//! [`Template`]), `fields` (header lists, checked), `stream` and `flow` (states and windows), `receive` and `send` (the
//! two directions).
//!
//! What it does not know: sockets, TLS, threads, clocks (the time is told by [`Connection::begin_turn`]), wakers, calls and
//! their deadlines, when a message of gRPC is whole.
//!
//! Invariants:
//! * The events are the same however the bytes are cut (`tests/it/cuts.rs`).
//! * Whatever the other end sends, memory is bounded: by windows for bodies, by [`Options::header_list_bytes_max`] and
//!   [`Limits`] for headers, by [`Options::output_bytes_max`] for answers to frames (`tests/it/floods.rs`). A stream that is
//!   over gives all that it held back to the connection's window: what its consumer keeps is for the owner to count.
//! * A consumer that does not release what it was given stops the sender (`tests/it/windows.rs`).
//! * Streams that have something to send take turns, a frame each (`tests/it/windows.rs`).
//! * A connection without streams holds no buffers, and after [`Connection::rest`] only what its header tables hold
//!   (`tests/it/memory.rs`).
//! * It understands `h2`, and `h2` understands it, in both roles (`tests/it/against_h2.rs`).
//!
//! A server that answers every request with a few bytes, for tools that judge HTTP/2 servers: `examples/hello.rs`.

#![forbid(unsafe_code)]

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
