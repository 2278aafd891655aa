//! Serves clients over HTTP/2 with gRPC, and over HTTP/1, on one port, with one event loop per core.
//!
//! [`start`] runs one thread per shard. An acceptor hands each connection to the shard with the fewest
//! connections, and the connection stays there. The first bytes of a connection decide between HTTP/2 and
//! HTTP/1. HTTP/2 carries gRPC and, over TLS, also the requests that HTTP/1 carries ([`Exchange`]). A
//! [`Service`] answers calls in plain code and never sees a frame, a flow-control window or a socket.
//!
//! Out of scope: protobuf, etcd's methods, users, revisions. Messages are opaque [`bytes::Bytes`].
//!
//! Invariants, and the tests that check them (`tests/it`):
//! - A connection, its calls and its service live on one thread. A call takes no lock that is shared between
//!   shards; a connection takes one only when it begins, when it ends, and when it exceeds the memory budget.
//! - A connection is served in turns, between which other connections run. One turn writes to the socket once
//!   if the kernel accepts the output (`turns`), reads a bounded number of bytes, and reads no bytes while
//!   the client reads no answers (`memory`).
//! - Bytes held for a client are bounded (`memory`, `limits`): per stream
//!   ([`Options::stream_buffer_bytes_max`]), per connection ([`Options::answer_bytes_max`],
//!   [`Options::request_bytes_max`]), and for all clients together ([`Options::budget`]).
//! - Between two polls of the network, a shard serves a bounded number of connections that begin, end or only
//!   log in (`gives_way`).
//! - Input from a client closes at most its own connection and never panics (`garbage`).
//! - A call that has begun continues even if its client takes no answers, and releases its resources when its
//!   answer is ready. A call whose client is gone or whose deadline has passed is dropped (`unread`).
//!
//! Start reading with `connection.rs` (`poll_turn` is one turn), `call.rs` (the states of a call) and
//! `shard.rs`.
//!
//! Other tests: beside the code for pure parts. `examples/echo.rs` is the server for measuring cost per
//! request.

#![forbid(unsafe_code)]

mod acceptor;
mod admission;
mod admissions;
mod assembler;
mod call;
mod calls;
mod clock;
mod closing;
mod connection;
mod context;
mod drains;
mod exchange;
mod front;
#[doc(hidden)]
pub mod fuzzing;
mod gzip;
mod handshakes;
mod head;
mod http1;
mod inbound;
mod inbox;
mod keepalive;
mod ledger;
mod listener;
mod long_turns;
mod messages;
mod metadata;
mod new_connection;
mod options;
mod outbound;
mod pace;
mod page;
mod progress;
mod rejections;
mod reply;
mod responder;
mod service;
mod serving;
mod shard;
mod shard_channels;
mod shard_state;
mod socket;
mod try_send;
mod turn;
mod turnstile;

pub use closing::{Close, Closing};
pub use drains::{Drain, Draining, Drains};
pub use exchange::{ChunkSource, Exchange, LocalStream, RequestBody, ResponseBody};
pub use front::{Front, start};
pub use head::Head;
pub use inbound::{Inbound, NextMessage};
pub use listener::{Listener, Origin, Protocols, Rejection, shown_peer};
pub use messages::Messages;
pub use metadata::Metadata;
pub use options::Options;
pub use outbound::Outbound;
pub use reply::trailers;
pub use responder::Room;
pub use service::{Answer, Kind, LocalBoxFuture, Method, PieceSource, Service, Unary};
pub use shard::{MakeService, Shard, ShardId};
pub use stdx::{First, race};
pub use transport::ListenerSocket;
pub use try_send::TrySend;
