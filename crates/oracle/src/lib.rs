//! What clients of a cluster did and saw, and the judge of it: could a store that keeps etcd's promises have
//! answered so?
//!
//! * [`History`] is everything that is judged: operations, watches, holdings of locks, final states. It is written
//!   and read as lines of JSON, so that it can be kept, replayed and cut down.
//! * [`check`] judges it and gives a [`Verdict`].
//!
//! It does no IO, reads no clock, and knows no server, no protocol and no simulator: it must not share their mistakes.

mod history;
mod json;
mod request;
mod verdict;

pub use history::{
    End, Fence, Final, Header, History, Holding, Note, Operation, Outcome, Refusal, Settings, Watch,
    WatchAnswer, WatchResponse,
};
pub use json::Malformed;
pub use request::{
    Action, ActionResult, Compare, Delete, DeleteResult, Event, KeyValue, Order, Put, Range, RangeResult,
    Relation, Request, Response, SortTarget, Target, Txn, TxnResult,
};
pub use verdict::{Figures, Kind, Undecided, Verdict, Violation};

/// Judges a history.
pub fn check(_history: &History) -> Verdict {
    Verdict::default()
}
