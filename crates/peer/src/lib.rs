//! Raft over HTTP: etcd's protocol between members, so that members that run etcd and Mainstay can form one
//! cluster.
//!
//! [`Peers`] runs one thread. It serves the peer listeners, dials two streams to every other member (the
//! *receiver* dials: `GET /raft/stream/{msgapp,message}/<own id>`), writes the streams that others dialed,
//! falls back to `POST /raft` (the pipeline) while a stream is not up, and probes every 4 s. Each snapshot
//! (`POST /raft/snapshot`) has its own thread. A snapshot in Mainstay's own format carries
//! `X-Mainstay-Snapshot: 1`. Before a snapshot, the sender asks with `GET /mainstay/snapshot` what the
//! receiver already has; a receiver that answers 404 gets an etcd database file.
//!
//! Out of scope: the meaning of messages, the content of entries and snapshots, cluster membership (the
//! caller provides it), and the validity of certificates (`tls` checks it).
//!
//! Invariants, and the tests that check them (`tests/it`):
//! - A message is sent at most once. There are two kinds of messages: MsgApp, and all others. Messages of one
//!   kind stay in order while one stream stays up, and other messages never wait behind MsgApp. Lost messages
//!   are reported as unreachable (`exchange`).
//! - [`Peers::send`] takes one lock and wakes the thread at most once; queued messages are sent in one write
//!   per turn; an entry of 4 KiB or more is never copied on its way out. One direction of a connection yields
//!   after 512 KiB (`turn.rs`).
//! - All queues are bounded by number and bytes, and a frame takes memory only as it arrives (`overload`).
//! - TLS handshakes run on a separate thread. Admitted connections are checked again after TLS files were
//!   reloaded, and once a minute (`secure`).
//! - Input closes at most its own connection and never panics. Headers are checked before a body is read, a
//!   slow body ends its connection, and connections that belong to no member are closed for new connections
//!   (`garbage`, `overload`).
//!
//! Start reading with [`Peers`], [`Handler`] (what the caller receives), `peer_thread.rs`, `hub.rs` and `routes.rs`. Tests also
//! run beside real etcd with `MAINSTAY_TEST_ETCD=<etcd binary>`. `examples/exchange.rs` measures the cost of a
//! message.

#![forbid(unsafe_code)]

mod acceptor;
mod account;
mod answer_body;
mod answers;
mod app_encoder;
mod client;
mod decoder;
mod dialer;
mod endpoint;
mod error;
mod fair_stream;
mod fetch;
mod figures;
mod frame_buffer;
#[doc(hidden)]
pub mod fuzzing;
mod handler;
mod handshakes;
mod hub;
mod identity;
mod inbox;
mod local_member;
mod options;
mod origin;
mod pace;
mod paths;
mod peer;
mod peer_thread;
mod peers;
mod piece;
mod pipeline;
mod prober;
mod request_body;
mod routes;
mod server;
mod sessions;
mod share;
mod slots;
mod snapshot_post;
mod snapshot_receiver;
mod snapshot_sender;
mod socket;
mod stream_reader;
mod stream_writer;
mod target;

pub use account::weight as message_bytes;
pub use endpoint::check_url;
pub use error::{BoxError, ExchangeError, RequestError, UrlError, UrlFault};
pub use fetch::fetch;
pub use figures::{Figures, Histogram, PeerFigures, SnapshotFigures};
pub use handler::{Handler, OpenedSnapshot, Pieces, SnapshotForm, SnapshotOutcome, SnapshotSource};
pub use options::{Field, Level, Listener, Log, Options};
pub use peers::Peers;
pub use target::Target;
pub use transport::ListenerSocket;
