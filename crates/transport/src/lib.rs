//! Byte streams under connections, with TLS or without: what servers and clients of every protocol share.
//!
//! * [`Stream`] is a TCP connection or a Unix socket in an event loop, [`Detached`] is one that is moved
//!   between two event loops. [`Listener`] accepts them.
//! * [`Handshake`] performs a TLS handshake by polling; [`connect`] and [`accept`] run one to its end.
//!   [`HandshakeThread`] is a thread for many of them, whose origins take turns.
//! * [`TlsStream`] is TLS over any byte stream after the handshake, for either end. [`Wire`] is a stream with
//!   TLS or without, and implements the I/O traits of tokio and of hyper.
//! * [`http1`] sends requests to servers over connections that are kept for a while.
//! * [`ReadAhead`] reads for hyper's HTTP/1 servers while they answer.
//! * [`Records`], [`BarrenRecords`] and [`WriteAllowance`] are limits on TLS that rustls does not have.
//!
//! Invariants:
//!
//! * An idle connection holds no buffer of this crate ([`Buffers`]); see [`TLS_BYTES`] for rustls's own.
//! * A write is reported when the kernel has accepted its bytes, so a writer knows how many bytes are held
//!   for the writer.
//! * Input costs bounded work per read, and never panics: records without data end a connection
//!   ([`BarrenRecords`]).
//!
//! Out of scope: which certificates are good (`tls`), protocols above the stream, addresses and names.
//!
//! Start reading at `stream.rs` and `tls_stream.rs`, then `handshake.rs`.
//!
//! Similar code that stays outside of this crate, and why:
//!
//! * The `Socket` of `bench`'s load generator is driven by polling without a runtime, and reads straight into rustls;
//!   a buffer between them would add a copy to the cost that it measures.
//! * Sockets of `front`, `peer` and `console` above a [`Wire`] differ in what they bound: the turns of a shard, the
//!   trust in a member, and the time for which a browser may accept no bytes.
//! * `doctor` sends one request per connection, and distinguishes a server that sends nothing from one that
//!   sends no HTTP, so its reader examines the bytes before hyper does.
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
