//! A gRPC client of etcd's API over HTTP/2, for our own tools and tests.
//!
//! What it is: [`Channel`], one connection to one server (TCP or a Unix socket, TLS or not) on which messages are opaque
//! bytes; and [`Client`], a cluster seen through its endpoints: one connection each, round robin, failover, users and
//! zones, messages of the `api` crate. On a client stand [`Watcher`], [`lease`], and [`concurrency`]'s sessions, locks,
//! elections and transactional memory; [`discovery`] finds endpoints by DNS.
//!
//! What it does not know: command lines, output formats, and what any method of the API means, save which of them may be
//! repeated.
//!
//! Invariants:
//! * A call that is dropped is cancelled at the server; an answer is held to the limit of its call and transport.
//! * A write goes out a second time only when it is certain that no server acted on the first.
//! * No call waits for a dead endpoint while the connection to another stands.
//! * Every task that is started here ends with what it was started for.
//!
//! Tests: `tests/it`, against a small gRPC server of their own; `mainstay-front`'s `tests/it` uses [`Channel`] for every
//! kind of call.

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
mod raw;
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
pub use raw::RawConnection;
pub use settings::{Settings, SettingsError};
pub use stream::{Stream, StreamReceiver, StreamSender};
pub use tls::{PeerCertificates, Tls, TlsError, TlsFiles};
pub use transport::{Keepalive, Transport};
pub use watcher::{WatchUpdate, Watcher};
