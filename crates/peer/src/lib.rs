//! Raft over HTTP: etcd's protocol between members, so that etcd's members and ours can talk to one another.
//!
//! What it is: [`Peers`] runs one thread. It serves the peer listeners, dials two streams to every other member
//! (the *receiver* dials: `GET /raft/stream/{msgapp,message}/<own id>`), writes the streams others dialed, falls
//! back to `POST /raft` (the pipeline) while a stream is not up, probes every 4 s, and sends and receives snapshots
//! (`POST /raft/snapshot`), each on a thread of its own.
//!
//! What it does not know: what a message means, what an entry or a snapshot holds, who is a member (it is told),
//! which certificates are good (`tls` does).
//!
//! Invariants:
//! - A message goes out at most once, and those of one kind (MsgApp; all others) in the order in which they were
//!   given, as long as one stream stays up. What is lost is reported as unreachable, once per batch.
//! - Other messages never wait behind MsgApp: they have a connection of their own; where MsgApp has to share it,
//!   they overtake it.
//! - [`Peers::send`] takes one lock and wakes the thread at most once; what waits for a stream goes out in one
//!   write per turn; an entry of 4 KiB or more is never copied on its way out.
//! - After 512 KiB of one connection and direction the others and the network get their turn (`turn`).
//! - Everything that waits is bounded by number and bytes ([`Peers::send`]), and a frame takes memory only as its
//!   bytes arrive, whatever its length field says.
//! - TLS handshakes, in which strangers make this end compute, run on a thread of their own (`peer-tls`); who is let in then is
//!   looked at again when files were reloaded, and once a minute.
//! - What comes in closes at most its own connection and never panics. Headers are checked before a body is read, a body
//!   that trickles ends its connection, and when all connections are in use, those of strangers are closed for new ones.
//!
//! Own extensions: a snapshot of ours carries `X-Mainstay-Snapshot: 1`, and its sender asks the receiver
//! `GET /mainstay/snapshot` first. A snapshot without that header is a database file of etcd's, and who answers that question
//! with 404 gets one.
//!
//! Tests: beside the code for the framing and the headers; `tests/it` runs members over loopback and speaks to
//! them with raw sockets. With `MAINSTAY_TEST_ETCD=<etcd binary>` two tests are the other member of that etcd's
//! cluster: once its follower, once its leader. `examples/exchange.rs` measures what a message costs.

#![forbid(unsafe_code)]

mod account;
mod app_encoder;
mod body;
mod client;
mod decoder;
mod dialer;
mod endpoint;
mod error;
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
mod options;
mod origin;
mod pace;
mod peer;
mod peers;
mod piece;
mod pipeline;
mod places;
mod prober;
mod routes;
mod secured;
mod sessions;
mod snapshot_receiver;
mod snapshot_sender;
mod socket;
mod stream;
mod stream_reader;
mod stream_writer;
mod turn;
mod wire;

pub use account::weight as message_bytes;
pub use endpoint::check_url;
pub use error::{BoxError, ExchangeError, RequestError, UrlError, UrlFault};
pub use fetch::fetch;
pub use figures::{Figures, Histogram, PeerFigures, SnapshotFigures};
pub use handler::{Handler, OpenedSnapshot, Pieces, SnapshotForm, SnapshotSource};
pub use options::{Field, Level, Listener, ListenerSocket, Log, Options};
pub use peers::{Peers, Target};
