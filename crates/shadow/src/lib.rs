//! `mainstay shadow`: follows a production cluster of etcd or Mainstay over etcd's API, holds a copy of it in a member
//! that serves nobody, and compares HashKV of both, to prove for weeks and without risk that Mainstay holds the same
//! state, bit for bit.
//!
//! The copy is a member of Mainstay inside of this process, with the log, the index and the checkpoints of any other
//! member, and no listener except for metrics and health. It begins with a snapshot of the source. Then a watch of all
//! keys brings every revision of the source, which becomes one transaction of the copy with the same number. The copy is
//! compacted where the source is. `follow` has the outer loop, `session` one watch, `copy` the member, `source` the calls
//! to the cluster, `comparison` the comparison of hashes, `directory` the files.
//!
//! The crate does not know raft, the log, or etcd's files; it proposes commands to the core of its member.
//!
//! Invariants:
//! * The source is only read. The calls are Status, Snapshot, Watch, Range, HashKV, LeaseLeases, LeaseTimeToLive
//!   and Authenticate.
//! * A comparison is equal only if both hashes are of the same revision and compact revision, and the source is the
//!   cluster from which the copy was made. All else is different or skipped, and said.
//! * Only the source changes the copy: leases do not expire, nothing is compacted automatically, and there is no quota.
//! * A kill at any time loses nothing: the copy gets its name when it is complete, and its revision is the position.
//!
//! Start reading with `follow::run`. Tests: beside the code; `mainstay/tests/it/shadow.rs` with members of Mainstay, and
//! `interop/shadow.py` with etcd, both with processes that are killed.

#![forbid(unsafe_code)]

mod command;
mod comparison;
mod copy;
mod directory;
mod follow;
mod session;
mod source;
mod tally;
mod trouble;

pub use command::{Companion, PROGRAM, run, run_with};
