//! What the judge says.

use std::fmt;

use crate::{History, Outcome, Response, WatchAnswer};

/// The judgement of a history.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// Broken promises.
    pub violations: Vec<Violation>,
    /// Questions that stay open.
    pub undecided: Vec<Undecided>,
    /// How much was judged.
    pub figures: Figures,
}

impl Verdict {
    /// Whether every promise was kept and no question stayed open.
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty() && self.undecided.is_empty()
    }
}

/// One broken promise.
#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    /// Which promise.
    pub kind: Kind,
    /// The operations concerned, by [`crate::Operation::id`].
    pub operations: Vec<u64>,
    /// The watches concerned, by [`crate::Watch::id`].
    pub watches: Vec<u64>,
    /// One sentence.
    pub text: String,
}

/// A question that stays open.
#[derive(Clone, Debug, PartialEq)]
pub struct Undecided {
    /// The operations concerned, by [`crate::Operation::id`].
    pub operations: Vec<u64>,
    /// Why it cannot be decided.
    pub text: String,
}

/// How much was judged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Operations in all.
    pub operations: u64,
    /// Of these answered.
    pub answered: u64,
    /// Of these refused for certain.
    pub refused: u64,
    /// Of these with an unknown outcome.
    pub unknown: u64,
    /// Writes with an unknown outcome that turned out to have happened.
    pub unknown_happened: u64,
    /// The last revision.
    pub revision: i64,
    /// Watches.
    pub watches: u64,
    /// Events told by them.
    pub events: u64,
    /// Progress notifications.
    pub progress: u64,
    /// Leases granted.
    pub leases: u64,
    /// Leases that ended by themselves and took keys with them.
    pub leases_expired: u64,
    /// Compactions answered.
    pub compactions: u64,
    /// Holdings of locks.
    pub holdings: u64,
    /// Members' final states.
    pub finals: u64,
    /// Revisions for whose change there was a choice.
    pub choices: u64,
    /// Steps of the search.
    pub search_steps: u64,
}

/// The promises, by the way in which they are broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The history contradicts itself: a fault of the recording program.
    BadHistory,
    /// A linearizable answer from a state that was past before the call.
    StaleRead,
    /// The order of revisions contradicts real time.
    Order,
    /// Two answered writes have one revision.
    RevisionTwice,
    /// A revision that nothing explains, and of which nothing was seen.
    RevisionGap,
    /// A change that no operation explains.
    Stranger,
    /// A change by an operation that was refused.
    RefusedHappened,
    /// One operation made two changes of the store.
    WriteTwice,
    /// An answered write is not there.
    LostWrite,
    /// A transaction's changes are not all at its one revision.
    NotAtomic,
    /// An answer says other than the store at its revision.
    WrongAnswer,
    /// An operation was refused though nothing was in its way.
    WrongRefusal,
    /// The revision or term in a member's headers went back within one life of its process.
    HeaderBack,
    /// A watch left out an event.
    WatchMissing,
    /// A watch told an event twice.
    WatchTwice,
    /// A watch told events out of order.
    WatchOrder,
    /// A watch told what did not happen so, or what it was not to tell.
    WatchWrong,
    /// A watch told one revision in two responses.
    WatchSplit,
    /// A watch's previous value is wrong.
    WatchPrevious,
    /// A watch told events from before its start.
    WatchStart,
    /// A progress notification ran ahead of events.
    WatchProgress,
    /// A watch was canceled as compacted without reason, or with a wrong revision.
    WatchCompacted,
    /// A read below the compact revision was answered.
    ReadCompacted,
    /// Something was refused as compacted, or is gone, that was not compacted.
    CompactionLie,
    /// A revision that was not yet there was read, or one that was there was refused as future.
    FutureRevision,
    /// A lease ended before its time.
    LeaseEarly,
    /// A lease that nobody renewed had keys long after its time.
    LeaseLate,
    /// A lease was alive after its end.
    LeaseRevived,
    /// The keys of a lease that ended did not go, or not together.
    LeaseKeys,
    /// A lease's id was given twice, or another id or time than asked for.
    LeaseGrant,
    /// Two clients held one lock.
    LockOverlap,
    /// A linearizable call was carried out that its user was not allowed.
    Forbidden,
    /// A linearizable call was carried out with a token that was void.
    TokenVoid,
    /// A call was refused that its user was allowed all the time.
    DeniedUnduly,
    /// A watch told what came after its user's permission was gone.
    WatchForbidden,
    /// Members differ at the same revision.
    Divergence,
    /// A member's final state is not what the changes add up to.
    FinalState,
}

impl Kind {
    /// Whether it is found by looking at what the store held, which is not known for certain where writes with unknown
    /// outcomes may have happened in more than one way that nobody saw.
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
