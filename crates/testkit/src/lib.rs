//! What the tests of several crates have in common. A dev-dependency only: nothing here is part of a product.
//!
//! * [`expect`] compares whole outputs with files.
//! * [`TempDir`] is a directory that is removed at the end of a test.
//! * [`Random`] draws numbers that follow from a seed; it is that of the products.
//! * [`wait_until`] waits for a condition; `eventually` and `block_on` do so in a tokio runtime (feature `tokio`).
//! * [`ports`] finds addresses that nobody listens on.
//! * `certificates` makes authorities, certificates and lists of revocations (feature `certificates`).
//! * [`http1`] and [`http2`] write and read the bytes of connections by hand, for what no well-behaved client does.
//!
//! It knows none of the crates under test.

#![forbid(unsafe_code)]

#[cfg(feature = "certificates")]
pub mod certificates;
pub mod expect;
pub mod http1;
pub mod http2;
pub mod ports;
#[cfg(feature = "tokio")]
mod runtime;
mod temp_dir;
mod wait;

#[cfg(feature = "tokio")]
pub use runtime::{block_on, eventually};
pub use stdx::Random;
pub use temp_dir::TempDir;
pub use wait::wait_until;

use std::time::Duration;

/// How long tests wait for something that happens by itself, unless they say otherwise. It is far above what any test
/// needs on a busy machine: who waits that long has found a bug.
pub const TIMEOUT: Duration = Duration::from_secs(60);
