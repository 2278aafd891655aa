//! Defines the verdict, which is the result of judging a history: violations, open questions and counts.

use std::fmt;

use crate::{History, Outcome, Response, WatchAnswer};

/// The verdict on a history.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// Violated guarantees.
    pub violations: Vec<Violation>,
    /// Questions that could not be decided.
    pub undecided: Vec<Undecided>,
    /// Numbers of operations, watches and other items that were judged.
    pub figures: Figures,
}

impl Verdict {
    /// Returns true if every guarantee was kept and no question stayed open.
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty() && self.undecided.is_empty()
    }
}

/// One violated guarantee.
#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    /// The guarantee that is violated.
    pub kind: Kind,
    /// Ids of the operations concerned ([`crate::Operation::id`]).
    pub operations: Vec<u64>,
    /// Ids of the watches concerned ([`crate::Watch::id`]).
    pub watches: Vec<u64>,
    /// Description in one sentence.
    pub text: String,
}

/// A question that could not be decided.
#[derive(Clone, Debug, PartialEq)]
pub struct Undecided {
    /// Ids of the operations concerned ([`crate::Operation::id`]).
    pub operations: Vec<u64>,
    /// Reason why the question cannot be decided.
    pub text: String,
}

/// Numbers of operations, watches and other items that were judged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Number of all operations.
    pub operations: u64,
    /// Number of operations that were answered.
    pub answered: u64,
    /// Number of operations that were certainly refused.
    pub refused: u64,
    /// Number of operations with an unknown outcome.
    pub unknown: u64,
    /// Number of writes with an unknown outcome that were found to have happened.
    pub unknown_happened: u64,
    /// Last revision that any client saw.
    pub revision: i64,
    /// Number of watches.
    pub watches: u64,
    /// Number of events that watches reported.
    pub events: u64,
    /// Number of progress notifications.
    pub progress: u64,
    /// Number of leases granted.
    pub leases: u64,
    /// Number of leases that expired and deleted keys.
    pub leases_expired: u64,
    /// Number of answered compactions.
    pub compactions: u64,
    /// Number of periods in which a client believed that it held a lock.
    pub holdings: u64,
    /// Number of final states of members.
    pub finals: u64,
    /// Number of revisions for which more than one list of changes is possible.
    pub choices: u64,
    /// Number of steps of the search.
    pub search_steps: u64,
}

/// Kinds of violations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The history contradicts itself: a fault of the recording program.
    BadHistory,
    /// A linearizable response was given from a state that was already outdated at the call.
    StaleRead,
    /// The order of revisions contradicts the order in time of two operations.
    Order,
    /// Two answered writes have the same revision.
    RevisionTwice,
    /// No operation explains a revision, and no client saw its changes.
    RevisionGap,
    /// No operation explains a change.
    Stranger,
    /// An operation that was refused has changed the store.
    RefusedHappened,
    /// One operation changed the store twice.
    WriteTwice,
    /// The change of an answered write is missing.
    LostWrite,
    /// The changes of a transaction are not all in one revision.
    NotAtomic,
    /// A response differs from the store at its revision.
    WrongAnswer,
    /// An operation was refused although there was no reason to refuse it.
    WrongRefusal,
    /// Revision or term in a member's headers decreased while its process was running.
    HeaderBack,
    /// A watch left out an event.
    WatchMissing,
    /// A watch reported an event twice.
    WatchTwice,
    /// A watch reported events out of order.
    WatchOrder,
    /// A watch reported an event that differs from the change in the store, an event without a change in the
    /// store, or an event that it must not report (for example, of a key that it did not request).
    WatchWrong,
    /// A watch reported one revision in two responses.
    WatchSplit,
    /// The previous value in a watch event is wrong.
    WatchPrevious,
    /// A watch reported events from before its start.
    WatchStart,
    /// A progress notification came before the events that it covers.
    WatchProgress,
    /// A watch was cancelled because of a compaction although it needed no compacted revision, or with a
    /// wrong compact revision.
    WatchCompacted,
    /// A read below the compact revision was answered.
    ReadCompacted,
    /// An operation was refused as compacted, or a revision cannot be read any more, although it was not
    /// compacted.
    CompactionLie,
    /// A revision was read before it existed, or an existing revision was refused as future.
    FutureRevision,
    /// A lease ended before its time to live was over.
    LeaseEarly,
    /// A lease that was not renewed had keys long after its time to live.
    LeaseLate,
    /// A lease was alive after it had ended, or a key was attached to it after its end.
    LeaseRevived,
    /// The keys of an ended lease were not deleted, or not together.
    LeaseKeys,
    /// A lease id was granted again while it was in use, a grant returned a different id or a shorter time to
    /// live than was requested, or a renewal returned less than the granted time to live.
    LeaseGrant,
    /// Two clients held the same lock.
    LockOverlap,
    /// A linearizable call was executed although its user was not allowed to make it.
    Forbidden,
    /// A linearizable call was executed with an invalid token.
    TokenVoid,
    /// A linearizable call was refused although its user was allowed to make it for the whole duration of the
    /// call.
    DeniedUnduly,
    /// A watch reported changes after its user's permission was revoked.
    WatchForbidden,
    /// Members differ at the same revision.
    Divergence,
    /// A member's final state differs from the store after all changes.
    FinalState,
}

impl Kind {
    /// Returns true if violations of this kind are found by comparing the history with the contents of the
    /// judge's store. These contents are uncertain if writes with unknown outcomes may have happened in
    /// several ways and no client saw which.
    pub(crate) fn hangs_on_contents(self) -> bool {
        !matches!(
            self,
            Kind::WatchTwice
                | Kind::WatchOrder
                | Kind::WatchSplit
                | Kind::WatchStart
                | Kind::WatchCompacted
                | Kind::LeaseEarly
                | Kind::LeaseGrant
        )
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.text)
    }
}

impl Figures {
    pub(crate) fn of(history: &History) -> Figures {
        let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        let mut figures = Figures {
            operations: count(history.operations.len()),
            watches: count(history.watches.len()),
            holdings: count(history.holdings.len()),
            finals: count(history.finals.len()),
            ..Figures::default()
        };
        for op in &history.operations {
            match &op.outcome {
                Outcome::Done(_, response) => {
                    figures.answered += 1;
                    figures.compactions += u64::from(*response == Response::Compacted);
                }
                Outcome::Refused(_) => figures.refused += 1,
                Outcome::Unknown(_) => figures.unknown += 1,
            }
        }
        for response in history.watches.iter().flat_map(|watch| &watch.responses) {
            match &response.answer {
                WatchAnswer::Events { events, .. } => figures.events += count(events.len()),
                WatchAnswer::Progress => figures.progress += 1,
                _ => {}
            }
        }
        figures
    }
}
