//! Configures TLS for the listeners of a member and for the connections that it opens: loads certificates,
//! keys and trusted authorities from files, decides which peers are admitted, and loads the files again when
//! they change. The crate itself has no sockets. A *peer* here is the other end of a connection.
//!
//! * [`Settings`] contain the values of the TLS flags. [`Tls::load`] reads the files that they name, and
//!   returns a [`Tls`] and its [`Reloader`].
//! * [`ServerTls`] is for listeners. A listener calls [`ServerTls::config`] for each connection and
//!   [`ServerTls::admit`] after its handshake. Listeners for other members and for metrics also call
//!   [`ServerTls::check_address`]. After a reload, and periodically because certificates expire,
//!   [`ServerTls::still_valid`] is called for open connections.
//! * [`ClientTls`] does the same for connections that this member opens.
//! * [`Reloader::poll`] detects changed files. It replaces everything that was loaded from files together, or
//!   keeps all of it if a file cannot be used, and reports which of the two happened.
//! * [`Tickets`] has the secrets with which session tickets are encrypted. Members may share them, so that a
//!   client resumes its session at another member.
//! * [`SelfSigned`] generates the certificates for `--auto-tls`.
//! * [`Refusal`] is the reason why a peer is not admitted, and [`LoadError`] the reason why files cannot be
//!   used. [`explain`] describes why a handshake failed. All have etcd's messages.
//!
//! Invariants:
//!
//! * A peer is admitted or refused when its connection is established, according to the files that are loaded
//!   at that time. This also holds if the connection resumes an earlier TLS session.
//! * If a file becomes truncated, damaged or half written, the contents loaded before stay in use, and there
//!   is no panic (`tests/it/garbage.rs`).
//! * The processor time for the verification of a chain is limited by [`MAX_CHAIN_CERTIFICATES`],
//!   [`MAX_CHAIN_BYTES`] and `webpki`'s limits on signatures.
//! * A session ticket is accepted only under the policy for clients under which it was made (`tickets.rs`).
//! * No log line, error or `Debug` text contains a private key.
//!
//! Out of scope: sockets, threads, runtimes, and name look-ups ([`SystemResolver`] does these for callers
//! that may block). The crate does not know for which listener it is used. Start reading with [`Tls::load`],
//! `trust.rs` and `peer_checks.rs`. Tests: `tests/it`, with whole handshakes in memory.

#![forbid(unsafe_code)]

use std::time::Duration;

mod address;
mod certificate;
mod common_name;
mod der;
mod error;
mod files;
pub mod fuzzing;
mod host_name;
mod material;
mod peer_checks;
mod pem;
mod refusal;
mod reloader;
mod reverse;
mod revocation;
mod self_signed;
mod settings;
mod system_resolver;
pub mod tickets;
mod tls;
mod trust;

pub use address::{AddressCheck, LookUp, Question, Resolver};
pub use common_name::{common_name_in, common_name_of};
pub use error::LoadError;
pub use material::{Expiry, Owner, Warning};
pub use refusal::{Refusal, explain};
pub use reloader::{Event, Reloader};
pub use self_signed::SelfSigned;
pub use settings::{Settings, Version, check_versions};
pub use system_resolver::SystemResolver;
pub use tickets::Tickets;
pub use tls::{ClientTls, PeerNames, ServerTls, Session, Tls};

/// The system clock, to be passed to [`Tls::load`].
pub use rustls::time_provider::DefaultTimeProvider as SystemClock;

/// Maximum number of certificates that a peer may send. A longer chain is refused.
pub const MAX_CHAIN_CERTIFICATES: usize = 10;

/// Maximum total size in bytes of the certificates that a peer sends. A larger chain is refused. The limit is
/// below 64 KiB, the maximum of rustls for a whole handshake message.
pub const MAX_CHAIN_BYTES: usize = 48 * 1024;

/// Time limit for a handshake, as in etcd. The callers, which own the sockets, must enforce it.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
