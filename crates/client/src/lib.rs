//! gRPC client of the etcd API over HTTP/2, for Mainstay's own tools and tests.
//!
//! Contents: [`Channel`] is one connection to one server (TCP or a Unix socket, with or without TLS) that
//! carries messages as opaque bytes. [`Client`] makes calls to a cluster with the messages of the `api`
//! crate: it keeps one connection to each endpoint, distributes calls round robin, retries them,
//! authenticates a user, and prefers endpoints as it is told ([`Preference`]). [`Watcher`], [`lease`] and the sessions,
//! locks, elections and transactional memory of [`concurrency`] build on [`Client`]. [`discovery`] finds
//! endpoints by DNS. [`replay`] helps to replay the events of a watch at another store.
//!
//! Out of scope: command lines, output formats, and the meaning of the API's methods, except which methods
//! may be retried.
//!
//! Invariants:
//! * Dropping a call cancels it at the server. The size of a response is limited by both the call and the
//!   transport.
//! * A call is sent a second time only if certainly no server has acted on the first request, or if a
//!   repetition does no harm (the list is in `retry`).
//! * While a connection to another endpoint is open, no call waits for an endpoint that cannot be reached,
//!   except for the first attempt to connect to preferred endpoints.
//! * Every task that this crate starts ends when the object for which it was started is dropped.
//!
//! Start reading with [`Client::call`] and [`Channel`]. Tests: `tests/it` runs against a small gRPC server
//! that belongs to the tests; `tests/it` of `mainstay-front` uses [`Channel`] for every kind of call.

#![forbid(unsafe_code)]

mod call;
mod certificate;
mod channel;
mod client;
pub mod concurrency;
pub mod discovery;
mod endpoint;
mod forward;
pub mod lease;
mod link;
mod messages;
mod preference;
mod raw;
pub mod replay;
mod retry;
mod session;
mod settings;
mod stream;
mod tls;
mod transport;
mod watcher;

pub use call::{CallOptions, Receiver, Sender};
pub use certificate::not_after;
pub use channel::Channel;
pub use client::{Client, shown, status_of_text};
pub use endpoint::{Address, Endpoint, Security};
pub use preference::Preference;
pub use raw::RawConnection;
pub use settings::{Settings, SettingsError};
pub use stream::{Stream, StreamReceiver, StreamSender};
pub use tls::{PeerCertificates, Tls, TlsError, TlsFiles};
pub use transport::{Keepalive, Transport};
pub use watcher::{WatchUpdate, Watcher, is_revision_too_large};
