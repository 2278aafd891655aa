//! The core of a member, which makes all decisions and is the only writer of the state. One thread at a time
//! does the work of the core, normally the core's own thread.
//!
//! The core takes requests of shards and events of the log in batches: everything that arrived while it was
//! busy. One turn proposes all requests, hands one batch to the log, applies entries that have become durable
//! and committed, publishes the resulting state to the readers, and only then answers the requests (invariant
//! I3 in `ARCHITECTURE.md`). The core waits for the disk only in the cases that `writing.rs` describes.
//!
//! `run.rs` contains the loop. Each of the other files is a part of the core with its own state. The
//! documentation of [`Core`] says how the parts work together.

mod alarms;
mod answers;
mod apply;
mod attributes;
mod autopilot;
mod batching;
mod checkpoints;
mod command;
mod compactions;
mod compactor;
mod compression;
mod cpu_pressure;
mod disk_space;
mod fatal;
mod granted_ahead;
mod history;
mod index_base;
mod install;
mod leadership;
mod leases;
mod lifecycle;
mod membership;
mod meters;
mod observers;
mod options;
mod outgoing;
mod pace;
mod parked;
mod proposals;
mod publication;
mod questions;
mod quota_warning;
mod reads;
mod removal;
mod room;
mod run;
mod segments;
mod space;
mod tidying;
mod workers;
mod writing;

pub use checkpoints::Thresholds;
pub use command::command;
pub use compactor::AutoCompaction;
pub use fatal::Fatal;
pub use leases::LISTED_AT_ONCE;
pub use options::Options;
pub use run::{Core, Parts, Probe};

pub use crate::requests::{
    ChangeAttempt, ClientRequest, ControlRequest, CoreRequest, Forget, LeaseDetail, MemberChange,
    PeerRequest, Placement, Reply, ReplyBody, RequestId, Shortage, SnapshotAttempt, StorageRequest, Writer,
};

/// Maximum number of points of a state trail (hashes of the state after each of the last entries) that the
/// core returns. A longer trail is cut to its newest points.
pub const STATE_TRAIL_POINTS_MAX: usize = 1024;

/// Shard number in the ids of requests that come from threads that are not shards.
const OUTSIDE: u16 = u16::MAX;
