//! Builds a member from its parts, and runs it.
//!
//! * `assembly` builds the parts of a member from the data directory that [`storage`] has opened.
//! * [`boot`] gives each part a thread and a socket; [`stepped`] lets a simulation drive the same parts step
//!   by step, without threads, sockets and real time.
//! * `options` builds the options of the parts from the configuration; `joining` determines the identity of a
//!   member without data.
//! * `observing` determines the identity of an observer, and registers it with a feeder.
//! * [`peering`] answers requests of other members, and passes their raft messages to the core. `memory`
//!   reads the available memory.
//! * `go_environment` reads variables of Go's runtime.
//! * `systemd` notifies the service manager. `listening` opens the TCP and Unix sockets.
//! * `own_console` starts the member's console.
//! * `tls` sets up TLS according to the options, and reloads changed files while the member runs.
//!
//! The crate does not handle command lines, signals or exit codes; the crate `mainstay` does. Invariant: I17
//! in `ARCHITECTURE.md` (the same seed gives the same trace). Start reading with [`boot::start`] and
//! [`stepped::Stepped`]. Tests: `tests/it` for members that are stepped, and end to end in the `mainstay`
//! crate.

#![forbid(unsafe_code)]

mod assembly;
mod audit;
pub mod boot;
mod credentials;
mod error;
mod go_environment;
mod joining;
mod listening;
mod memory;
mod observing;
mod options;
mod own_console;
pub mod peering;
pub mod stepped;
pub mod systemd;
mod ticket_sharing;
mod tls;
mod tracing;

pub use error::{EndError, StartError};
pub use tls::{Side, TlsError, dialing};
