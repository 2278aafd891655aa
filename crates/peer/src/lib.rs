//! Raft over HTTP: etcd's protocol between members, so that members that run etcd and Mainstay can form one
//! cluster.
//!
//! Purpose: [`Peers`] runs one thread. It serves the peer listeners, dials two streams to every other member
//! (the *receiver* dials: `GET /raft/stream/{msgapp,message}/<own id>`), writes the streams that others
//! dialed, falls back to `POST /raft` (the pipeline) while a stream is not up, probes every 4 s, and sends
//! and receives snapshots (`POST /raft/snapshot`), each on a separate thread.
//!
//! Out of scope: the meaning of messages, the content of entries and snapshots, cluster membership (the
//! caller provides it), and the validity of certificates (`tls` checks it).
//!
//! Invariants:
//! - A message is sent at most once. Messages of one kind (MsgApp; all others) are sent in the order in which
//!   they were passed in, while one stream stays up. Lost messages are reported as unreachable, once per
//!   batch.
//! - Other messages never wait behind MsgApp: they have a separate connection, and overtake MsgApp where both
//!   share one.
//! - [`Peers::send`] takes one lock and wakes the thread at most once; messages queued for a stream are sent
//!   in one write per turn; an entry of 4 KiB or more is never copied on its way out.
//! - After 512 KiB in one direction of one connection, other connections and the network have their turn
//!   (`turn`).
//! - All queues are bounded by number and bytes ([`Peers::send`]), and a frame takes memory only as its bytes
//!   arrive, whatever its length field says.
//! - TLS handshakes, which let unauthenticated clients cause expensive computation, run on a separate thread
//!   (`peer-tls`). Admitted connections are checked again when files were reloaded, and once a minute.
//! - Input closes at most its own connection and never panics. Headers are checked before a body is read, a
//!   body that arrives too slowly ends its connection, and when all connections are in use, those of clients
//!   that are not members are closed for new ones.
//!
//! Extensions of the protocol: a snapshot in Mainstay's own format carries `X-Mainstay-Snapshot: 1`, and its
//! sender first asks the receiver with `GET /mainstay/snapshot`. A snapshot without that header is an etcd
//! database file, and a receiver that answers the request with 404 is sent one.
//!
//! Tests: unit tests beside the code for framing and headers; `tests/it` runs members over loopback and
//! speaks to them with raw sockets. With `MAINSTAY_TEST_ETCD=<etcd binary>` two tests act as the other member
//! of that etcd's cluster: once as its follower, once as its leader. `examples/exchange.rs` measures the cost
//! of a message.

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
