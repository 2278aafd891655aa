//! TLS for clients, for other members and for metrics, without sockets: loading of files, admission of peers,
//! and reloading when files change.
//!
//! * [`Settings`] hold the flags. [`Tls::load`] reads the files and returns a [`Tls`] and its [`Reloader`].
//! * [`ServerTls`] serves a listener: [`ServerTls::config`] for each connection, [`ServerTls::admit`] after
//!   its handshake, [`ServerTls::check_address`] on listeners for peers and metrics,
//!   [`ServerTls::still_valid`] after a reload and periodically (certificates expire).
//! * [`ClientTls`] does the same for connections to other members.
//! * [`Reloader::poll`] detects changed files. It replaces all files together, or keeps everything that was
//!   loaded before, and reports which of the two happened.
//! * [`SelfSigned`] generates the certificates for `--auto-tls`.
//! * [`Refusal`] is the reason why a peer is not admitted, [`LoadError`] why files cannot be used,
//!   [`explain`] describes a failed handshake. All use etcd's texts.
//!
//! Invariants:
//!
//! * Admission is decided when a connection is made, by the material that is loaded at that time, even if the
//!   connection resumes an earlier session.
//! * A truncated, damaged or half written file never replaces one that works, and never causes a panic
//!   (`tests/it/garbage.rs`).
//! * Verification of a chain costs bounded work: [`MAX_CHAIN_CERTIFICATES`], [`MAX_CHAIN_BYTES`], and
//!   `webpki`'s limits on signatures.
//! * No log line, error or `Debug` text contains a private key.
//!
//! Out of scope: sockets, threads, runtimes, and name look-ups ([`SystemResolver`] does these for callers that
//! may block). The crate does not know which listener it serves. Start reading with [`Tls::load`], `trust.rs`
//! and `peer_checks.rs`. Tests: `tests/it` (whole handshakes in memory).

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
pub use tls::{ClientTls, PeerNames, ServerTls, Session, Tls};

/// System clock, for [`Tls::load`].
pub use rustls::time_provider::DefaultTimeProvider as SystemClock;

/// Maximum number of certificates that a peer may send.
pub const MAX_CHAIN_CERTIFICATES: usize = 10;

/// Maximum total size of a peer's certificates in bytes. rustls accepts handshake messages of at most 64 KiB.
pub const MAX_CHAIN_BYTES: usize = 48 * 1024;

/// Time limit for a handshake, as in etcd. The callers, which own the sockets, must enforce it.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
