//! The replicated state: the data that every member stores, and the changes that each log entry makes.
//!
//! `apply` is a function of the state and the entry (invariants I1 and I5 in `ARCHITECTURE.md`): it uses no
//! clock, randomness or IO. Values stay in the log. The caller of `apply` passes in a reader of values
//! ([`Values`]), because a transaction may compare values or sort keys by their values.
//!
//! * [`Machine`] applies entries, long ones in slices (`sliced.rs`); [`request`] decodes them.
//! * [`check`] checks a request, and [`validate`] a membership change, before it is proposed.
//! * [`range`] and [`txn`] evaluate reads. [`AsOf`] lets a long read see the state at one point in time
//!   without holding a view.
//! * [`auth`] contains users, roles and permissions. [`key_value`] encodes keys and values.
//! * [`image`] encodes the state for checkpoints, [`snapshot`] with its values for `Maintenance.Snapshot`,
//!   [`transfer`] for another member.
//!
//! The crate does not depend on raft, files, clients or the identity of the local member.
//!
//! Invariants, and the tests that check them (`tests/it`):
//! * the same entries have the same effects on every member, whether or not the member answers a client, and
//!   whatever the progress of its physical compaction (`apply`, `sliced`); so the rolling hash is equal on
//!   all members. If the states of two members differ, their hashes differ after the first entry that touches
//!   the difference, and stay different (`state_hash`);
//! * a request that has passed [`check`] can be applied; an undecodable entry changes nothing (`cost`,
//!   `apply`);
//! * a mutating entry raises the revision by exactly one, and a refused entry changes nothing (`apply`);
//! * a restored or transferred state is equal to the original, however often the transfer was interrupted
//!   (`image`, `snapshot`, `transfer`); files of all older releases can be read; damaged files cause errors,
//!   never panics;
//! * a membership change that the current members do not allow changes nothing (`membership`).
//!
//! Start reading with [`Machine::apply`]. `dispatch`, in the same file, calls one function per kind of
//! request.

#![forbid(unsafe_code)]

mod alarm;
mod as_of;
pub mod auth;
pub mod check;
mod codec;
mod frame;
pub mod image;
pub mod key_value;
mod lease;
mod machine;
mod member;
pub mod range;
mod reconfiguration;
pub mod request;
mod shared_map;
mod sliced;
pub mod snapshot;
mod state_hash;
pub mod transfer;
pub mod txn;

pub use alarm::Alarms;
pub use as_of::{AsOf, Newest, Overtaken, Slice};
pub use codec::Malformed;
pub use key_value::{ReadError, StoredKeyValue, Values};
pub use lease::{GrantedLease, Lease, Leases};
pub use machine::{
    Applied, Change, Command, ConfApplied, Fatal, Machine, Outcome, Raised, Rules, SegmentUse, UNDECODABLE,
};
pub use member::{Member, MemberError, Members};
pub use reconfiguration::{VoterChange, learner_json, promotion_json, reconfigure, validate};
pub use shared_map::SharedMap;
pub use sliced::Progress;
pub use state_hash::{STATE_POINTS_MAX, StatePoint, StateTrail, TrailComparison};
