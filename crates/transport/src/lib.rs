//! Provides the byte streams of connections, with or without TLS, to servers and clients of all protocols.
//!
//! * [`Stream`] is a TCP connection or a connection through a Unix socket, registered in an event loop.
//!   [`Detached`] is one that is registered in no event loop, so that it can move to another one.
//!   [`Listener`] accepts connections.
//! * [`Handshake`] is a TLS handshake that the caller polls; [`connect`] and [`accept`] perform a whole one.
//!   [`HandshakeThread`] performs many handshakes on a separate thread, and serves their origins in turn.
//! * [`TlsStream`] is TLS over any byte stream after the handshake, for clients and servers. [`Wire`] is a
//!   stream with or without TLS, and implements the I/O traits of tokio and of hyper.
//! * [`http1`] sends requests to servers, and keeps idle connections for further requests.
//! * [`ReadAhead`] reads from a client while hyper's HTTP/1 server answers, so that a disconnect is noticed.
//! * [`Records`], [`BarrenRecords`] and [`WriteAllowance`] limit the use of TLS where rustls does not.
//!
//! Invariants:
//!
//! * An idle connection holds no buffer of this crate ([`Buffers`]). For the memory of rustls see
//!   [`TLS_BYTES`].
//! * Bytes are reported as written only when the kernel has accepted them; with TLS, at most the size of the
//!   record headers too early. So a writer knows how many of its bytes are still in memory.
//! * The work of one read is bounded for any input, and no input causes a panic. Too many consecutive TLS
//!   records without data end the connection ([`BarrenRecords`]).
//!
//! Out of scope: which certificates are accepted (`tls`), the protocols on the streams, and the look-up of
//! addresses and names.
//!
//! Start reading at `stream.rs` and `tls_stream.rs`, then `handshake.rs`.
//!
//! Similar code that is not in this crate, with the reason:
//!
//! * The `Socket` of `bench`'s load generator is polled without a runtime, and passes received bytes directly
//!   to rustls. A buffer in between would add a copy to the time that it measures.
//! * `front`, `peer` and `console` each wrap a [`Wire`] in a socket that adds different limits: the share of
//!   a shard's time, the trust in a member, and the time for which a browser may accept no bytes.
//! * `doctor` sends one request per connection, and distinguishes a server that sends nothing from one that
//!   does not send HTTP. So it examines the bytes before hyper does.
//!
//! Tests: beside the code, and in the crates that use it.

#![forbid(unsafe_code)]

mod buffers;
mod handshake;
mod handshake_thread;
pub mod http1;
mod hyper_io;
mod listener;
mod read_ahead;
mod records;
mod scratch;
mod stream;
mod tls_stream;
mod wire;

pub use buffers::{BUFFER_BYTES, BufferPool, Buffers, Filled, ThreadBuffers};
pub use handshake::{Handshake, HandshakeError, Received, accept, connect};
pub use handshake_thread::{HandshakeThread, before_deadline, end_turn};
pub use hyper_io::Clock;
pub use listener::{Listener, ListenerSocket};
pub use read_ahead::{ReadAhead, poll_read_bounded};
pub use records::{BarrenRecords, RECORD_COST, Records, WriteAllowance};
pub use scratch::with as with_scratch;
pub use stream::{Detached, Stream};
pub use tls_stream::{Ending, TLS_BYTES, TlsStream};
pub use wire::{ByteStream, Wire};
