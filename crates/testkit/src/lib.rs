//! Provides helpers that the tests of several crates share. Used only as a dev-dependency, so nothing here is
//! part of the product.
//!
//! * [`expect`] compares whole outputs with files.
//! * [`TempDir`] is a directory that is removed at the end of a test.
//! * [`Random`] generates numbers that are determined by a seed; it is the same generator that the product
//!   uses.
//! * [`wait_until`] waits for a condition; `eventually` and `block_on` do so in a tokio runtime (feature
//!   `tokio`).
//! * [`pods`] makes values like those of Kubernetes.
//! * [`ports`] finds addresses on which no process listens.
//! * `certificates` creates authorities, certificates and revocation lists; `tls_ends` creates both ends of a
//!   TLS connection (feature `certificates`).
//! * [`http1`] and [`http2`] write and read the bytes of connections directly, to test servers with input
//!   that no well-behaved client sends.
//!
//! This crate depends on none of the crates under test. Start reading with [`expect`] and [`wait_until`].

#![forbid(unsafe_code)]

#[cfg(feature = "certificates")]
pub mod certificates;
pub mod expect;
pub mod http1;
pub mod http2;
pub mod pods;
pub mod ports;
#[cfg(feature = "tokio")]
mod runtime;
#[cfg(feature = "tokio")]
mod tape;
mod temp_dir;
#[cfg(feature = "certificates")]
pub mod tls_ends;
mod wait;

#[cfg(feature = "tokio")]
pub use runtime::{block_on, eventually};
pub use stdx::Random;
#[cfg(feature = "tokio")]
pub use tape::Tape;
pub use temp_dir::TempDir;
pub use wait::wait_until;

use std::time::Duration;

/// Default time limit for waiting in tests. It is far longer than any test needs, even on a busy machine, so
/// a wait that reaches the limit means that there is a bug.
pub const TIMEOUT: Duration = Duration::from_secs(60);
