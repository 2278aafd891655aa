//! TLS of a member, for clients, for other members and for metrics, without sockets: what is loaded from files, who is let
//! in, and what happens when the files change.
//!
//! * [`Settings`] are what the flags say. [`Tls::load`] reads the files and gives a [`Tls`] and its [`Reloader`].
//! * [`ServerTls`] serves a listener: [`ServerTls::config`] for each connection, [`ServerTls::admit`] after its handshake,
//!   [`ServerTls::check_address`] on listeners for peers and metrics, [`ServerTls::still_valid`] after a reload and now
//!   and then (certificates end).
//! * [`ClientTls`] does the same for connections to other members.
//! * [`Reloader::poll`] notices changed files. It replaces everything or keeps what was loaded before, and says so.
//! * [`SelfSigned`] makes the certificates of `--auto-tls`.
//! * [`Refusal`] is why somebody is not let in, [`LoadError`] why files cannot be used, [`explain`] why a handshake failed:
//!   in etcd's words.
//!
//! What always holds:
//!
//! * Who is let in is decided when a connection is made, also when it resumes an older session, by what is loaded then.
//! * A file that is cut, garbled or half written never replaces one that works, and never panics (`tests/it/garbage.rs`).
//! * A chain costs bounded work: [`MAX_CHAIN_CERTIFICATES`], [`MAX_CHAIN_BYTES`], and `webpki`'s bounds on signatures.
//! * Private keys are in no log line, error or `Debug` text.
//!
//! It knows no sockets, threads or runtimes, looks up no names by itself ([`SystemResolver`] does so for a caller that may
//! wait), and does not know which listener it serves. Tests: `tests/it` (whole handshakes in memory).

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
mod records;
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
pub use records::{BarrenRecords, RECORD_COST, Records, WriteAllowance};
pub use refusal::{Refusal, explain};
pub use reloader::{Event, Reloader};
pub use self_signed::SelfSigned;
pub use settings::{Settings, Version, check_versions};
pub use system_resolver::SystemResolver;
pub use tls::{ClientTls, PeerNames, ServerTls, Session, Tls};

/// The machine's clock, for [`Tls::load`].
pub use rustls::time_provider::DefaultTimeProvider as SystemClock;

/// Most certificates that a peer may send.
pub const MAX_CHAIN_CERTIFICATES: usize = 10;

/// Most bytes that a peer's certificates may have together. The TLS library takes handshake messages of at most 64 KiB.
pub const MAX_CHAIN_BYTES: usize = 48 * 1024;

/// How long a handshake may take, as in etcd. It is for the callers, who have the sockets.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
