//! Puts a member together from its parts, and runs it.
//!
//! * `assembly` makes the parts of a member of what [`storage`] found in its data directory.
//! * [`boot`] gives each part a thread and a socket; [`stepped`] drives the same parts by hand, without threads, sockets
//!   and real time, for simulation.
//! * `peering` answers requests of other members, and hands the core what they send. `memory` reads the available memory.
//! * `go_environment` reads variables of Go's runtime.
//! * `systemd` tells the service manager. `listening` has the sockets, TCP's and those in the file system.
//! * `own_console` starts the member's console.
//! * `tls` sets up TLS as the options say, and takes over changed files while the member runs.
//!
//! Tests: `tests/it` for members that are stepped, and end to end in the `mainstay` crate.

#![forbid(unsafe_code)]

mod assembly;
mod audit;
pub mod boot;
mod credentials;
mod error;
mod go_environment;
mod listening;
mod memory;
mod own_console;
mod peering;
pub mod stepped;
pub mod systemd;
mod tls;
mod tracing;

pub use error::{EndError, StartError};
pub use tls::{Side, TlsError, dialing};
