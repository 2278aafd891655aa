//! The replicated state: what every member holds, and how one entry of the log changes it.
//!
//! `apply` is a function of the state and the entry (invariant I5): no clock, no randomness, no IO. Values stay in
//! the log; the caller of apply hands in a reader for them ([`Values`]), since a transaction may compare or sort by value.
//!
//! * [`Machine`] applies entries.
//! * [`request`] decodes what is in an entry.
//! * [`check`] checks a request before it is proposed.
//! * [`validate`] checks a membership change before it is proposed.
//! * [`range`] and [`txn`] evaluate reads, in transactions and on views alike.
//! * [`auth`] has users, roles and what they may do.
//! * [`AsOf`] is the state of one moment for a reader that takes long, without holding a view.
//! * [`key_value`] encodes keys and values as clients and HashKV see them.
//! * [`image`] is the state as a checkpoint holds it.
//! * [`snapshot`] is the state with its values, as it is saved.
//! * [`transfer`] is what one member sends another, which may have a part of it.
//!
//! It does not know raft, files, clients or which member it is.
//!
//! Invariants, and the tests that hold them (`tests/it`):
//! * the same entries have the same effects on every member, whether it answers or not, and however far its physical
//!   compaction got (`apply`);
//! * whatever passed [`check`] can be applied, and what cannot be decoded changes nothing, on any member (`cost`);
//! * a mutating entry raises the revision by exactly one, a refused one changes nothing (`apply`);
//! * what is restored from a checkpoint cannot be told from what was saved (`image`), and so with snapshots
//!   (`snapshot`); files of old versions open for ever; damaged ones are errors, never panics;
//! * nor can what was transferred be told from what was sent, whatever the receiver had and however often the
//!   transfer broke off (`transfer`);
//! * the rolling hash is the same on members whose state is the same, and differs from the first entry on that touches
//!   a difference (`state_hash`);
//! * a membership change that the members there do not allow changes nothing (`membership`).

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
    VoterChange,
};
pub use member::{Member, MemberError, Members};
pub use reconfiguration::{learner_json, promotion_json, reconfigure, validate};
pub use shared_map::SharedMap;
pub use sliced::Progress;
pub use state_hash::{STATE_POINTS_MAX, StatePoint, StateTrail, TrailComparison};
