//! Exchanges raft messages and snapshots with the other members over HTTP. The protocol is that of etcd, so
//! that members that run etcd and members that run Mainstay can form one cluster.
//!
//! [`Peers`] runs one thread, the peer thread. It serves the peer listeners and dials two streams to every
//! other member, on which it receives messages: the *receiver* of messages dials, with `GET
//! /raft/stream/{msgapp,message}/<own id>`. It sends messages on the streams that other members have dialed,
//! or with `POST /raft` (the pipeline) while no stream is up. It probes every member every 4 s. Each snapshot
//! (`POST /raft/snapshot`) has its own thread. A snapshot in Mainstay's own format has the header
//! `X-Mainstay-Snapshot: 1`. Before a snapshot, the sender asks with `GET /mainstay/snapshot` what the
//! receiver already has; a receiver that answers 404 gets an etcd database file.
//!
//! Out of scope: the meaning of messages, the content of entries and snapshots, cluster membership (the
//! caller provides it), and the validity of certificates (`tls` checks it).
//!
//! Invariants, and the tests that check them (`tests/it`):
//! - A message is sent at most once. There are two kinds of messages: MsgApp, and all others. Messages of one
//!   kind stay in order while one stream stays up. Messages of the second kind never wait for MsgApp. If
//!   messages are lost, [`Handler::unreachable`] reports it (`exchange`).
//! - [`Peers::send`] takes one lock and wakes the peer thread at most once. Messages that are queued for a
//!   stream share one write. The data of an entry of 4 KiB or more is not copied when it is sent on a stream.
//!   After 512 KiB in one direction, a connection lets the others proceed (`fair_stream.rs`).
//! - All queues are bounded by number and bytes. Memory for a frame is allocated as its bytes arrive, not as
//!   its length field says (`overload`).
//! - TLS handshakes run on a separate thread. The certificates of open connections are checked again after
//!   TLS files were reloaded, and once a minute (`secure`).
//! - Invalid input causes no panic and closes at most the connection on which it arrived. Headers are checked
//!   before a body is read, and a body that arrives too slowly ends its connection. If there are too many
//!   connections, those that belong to no member are closed first (`garbage`, `overload`).
//!
//! Start reading with [`Peers`], [`Handler`] (what the caller receives), `peer_thread.rs`, `hub.rs` and
//! `routes.rs`. Tests also run beside real etcd with `MAINSTAY_TEST_ETCD=<etcd binary>`.
//! `examples/exchange.rs` measures the time that a message takes.

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
pub use handler::{
    Handler, OpenedSnapshot, Pieces, SnapshotForm, SnapshotOutcome, SnapshotSource, VerifiedPeer,
};
pub use options::{Field, Level, Listener, Log, Options};
pub use peers::Peers;
pub use target::Target;
pub use transport::ListenerSocket;
