//! HTTP/2, gRPC framing and HTTP/1 on one port, one loop per core.
//!
//! What it is: [`start`] runs one thread per shard; an acceptor hands every connection to the shard with the
//! fewest, where it stays. The first bytes of a connection decide between HTTP/2 and HTTP/1. HTTP/2 carries gRPC, and over
//! TLS also requests that HTTP/1 carries too ([`Exchange`]). A
//! [`Service`] answers calls in plain code and never sees a frame, a window or a socket.
//!
//! What it does not know: protobuf, etcd's methods, users, revisions. Messages are opaque [`bytes::Bytes`].
//!
//! Invariants:
//! - A connection, its calls and its service live on one thread. No call takes a lock that another shard holds; a
//!   connection does when it begins and ends, and the connection that exceeds the budget.
//! - One turn of a connection does at most one write to the socket, however many answers it carries.
//! - Bytes held for a client are bounded: per stream ([`Options::stream_buffer_bytes_max`]), per connection
//!   for answers ([`Options::answer_bytes_max`]) and for requests ([`Options::request_bytes_max`]), and for all
//!   clients together ([`Options::budget`]).
//! - One turn of a connection reads a bounded number of bytes, and reads none while the client takes no answers.
//! - Of connections that begin, that end, and whose clients only log in, a shard serves so many in a step, and asks the
//!   network for other calls between two steps.
//! - What a client sends closes at most its own connection and never panics.
//! - A call that was begun continues whether its client takes answers or not, and releases what it needs when its answer is made.
//! - A call whose client is gone or whose deadline has passed is dropped, with everything it holds.
//!
//! Tests: beside the code for pure parts; `tests/it` speaks to a running front with the workspace's own client
//! and with raw sockets. `examples/echo.rs` is the server for measuring cost per request.

#![forbid(unsafe_code)]

mod acceptor;
mod admission;
mod assembler;
mod call;
mod calls;
mod clock;
mod connection;
mod context;
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
mod options;
mod outbound;
mod page;
mod rejections;
mod reply;
mod responder;
mod service;
mod shard;
mod socket;
mod standing;
mod stream;
mod turn;
mod turnstile;
mod wire;

pub use exchange::{ChunkSource, Exchange, LocalStream, RequestBody, ResponseBody};
pub use front::{Front, MakeService, start};
pub use head::Head;
pub use inbound::{Inbound, NextMessage};
pub use listener::{Listener, ListenerSocket, Origin, Rejected, Serves, shown_peer};
pub use messages::Messages;
pub use metadata::Metadata;
pub use options::Options;
pub use outbound::{Outbound, TrySend};
pub use reply::trailers;
pub use service::{Answer, Kind, LocalBoxFuture, Method, PieceSource, Service, Unary};
pub use shard::{Close, Closing, Shard, ShardId};
pub use stdx::{First, race};
