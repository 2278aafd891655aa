//! Queues questions: requests of clients that the core answers from its own state, without a log entry, and
//! that cost more than one table lookup. [`Questions`] decides which question is answered next.
//!
//! Each shard may have tens of thousands of questions open, and all may arrive in one turn. So a turn answers
//! only as many questions as its budget allows (`Thresholds::questions_per_turn`). The other questions wait
//! for later turns, so that the core handles raft messages, writes and renewals in between.
//!
//! # Example: a budget of 2048, 1000 leases
//!
//! ```text
//! 40,000 x LeaseLeases arrive, and one LeaseTimeToLive
//! turn 1   one list of 1000 leases is made, and 1048 calls share it, for one unit each;
//!          the LeaseTimeToLive is answered second
//! turn 2   2047 units: the list is made again, since leases may have changed, and 1048 calls share it
//! ```

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use numbers::LeaseId;
use planted::{Bug, Measure};

use super::{LeaseDetail, RequestId};

/// A question of a client that waits for its answer.
#[derive(Debug)]
pub(super) enum Question {
    /// The keys of this lease. The shard that renews the lease checks that its client may write all of them.
    /// This question is answered even while an entry is being applied in slices.
    KeysToRenew(RequestId, LeaseId),
    /// The remaining time of this lease, and its keys if they are wanted. The question is asked after a
    /// ReadIndex round has confirmed that this member leads.
    TimeToLive(RequestId, LeaseId, LeaseDetail),
    /// The keys of this lease in this member's state.
    LeaseKeys(RequestId, LeaseId),
    /// The ids of all leases.
    Leases(RequestId),
    /// The remaining times of these leases.
    LeaseTimes(RequestId, Vec<LeaseId>),
    /// The whole published state.
    Image(RequestId),
}

/// Number of kinds of questions. Each kind has its own queue, so that many questions of one kind do not delay
/// the others.
const KINDS: usize = 6;

impl Question {
    /// Returns the id of the request.
    pub fn request_id(&self) -> RequestId {
        match self {
            Question::KeysToRenew(request_id, _)
            | Question::TimeToLive(request_id, _, _)
            | Question::LeaseKeys(request_id, _)
            | Question::Leases(request_id)
            | Question::LeaseTimes(request_id, _)
            | Question::Image(request_id) => *request_id,
        }
    }

    fn kind(&self) -> usize {
        match self {
            Question::KeysToRenew(..) => 0,
            Question::TimeToLive(_, _, LeaseDetail::Time) => 1,
            Question::Leases(_) => 2,
            Question::LeaseTimes(..) => 3,
            Question::TimeToLive(_, _, LeaseDetail::TimeAndKeys) | Question::LeaseKeys(..) => 4,
            Question::Image(_) => IMAGES,
        }
    }
}

/// Kind number of [`Question::Image`].
const IMAGES: usize = 5;
/// Kinds from this number on need a state without a partly applied entry, so they wait until the entry is
/// applied completely. They are the questions whose answers contain keys for clients, and [`IMAGES`].
const FROM_WHOLE_STATE: usize = 4;

/// The waiting questions, and the amount of work that this turn may still do to answer them.
///
/// The core adds questions ([`Questions::push`]) and reports the cost of each answer ([`Questions::spent`]).
/// This type does not know the state. Each kind of question has its own queue, because in a single queue in
/// order of arrival a renewal would wait behind thousands of lists.
#[derive(Default)]
pub(super) struct Questions {
    waiting: [VecDeque<(Question, Instant)>; KINDS],
    /// Kind of the next question to answer. If no question of this kind waits, the following kinds are tried.
    next: usize,
    budget: u64,
    spent: u64,
}

impl Questions {
    /// Returns true if no question waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.iter().all(VecDeque::is_empty)
    }

    /// Adds a question that arrived at `since`. If `max` questions of its kind already wait, returns the
    /// question, and the caller must refuse it. The limit of open calls does not bound the queue, because the
    /// question of a call that has ended stays in the queue.
    pub fn push(&mut self, question: Question, since: Instant, max: usize) -> Option<Question> {
        if self.waiting[question.kind()].len() >= max {
            return Some(question);
        }
        self.waiting[question.kind()].push_back((question, since));
        None
    }

    /// Begins a turn that may spend `budget` units of work on answering questions.
    pub fn begin_turn(&mut self, budget: u64) {
        (self.budget, self.spent) = (budget, 0);
    }

    /// Records the cost of the last answer: the number of leases visited, and of pointers copied. A table is
    /// copied by copying one pointer for each chunk of at least 128 entries.
    pub fn spent(&mut self, cost: u64) {
        self.spent = self.spent.saturating_add(cost);
    }

    /// Removes and returns the next question to answer in this turn, with its time of arrival. The kinds of
    /// questions take turns. Returns `None` if the budget is spent or no question waits. If `is_whole` is
    /// false, an entry is partly applied, and kinds that need a state without such an entry are skipped.
    pub fn next(&mut self, is_whole: bool) -> Option<(Question, Instant)> {
        if self.spent >= self.budget && !planted::is(Bug::QuestionsAllAtOnce) {
            return None;
        }
        let kinds = if is_whole { KINDS } else { FROM_WHOLE_STATE };
        for _ in 0..KINDS {
            let kind = self.next % KINDS;
            self.next = kind + 1;
            if kind < kinds
                && let Some(next) = self.waiting[kind].pop_front()
            {
                planted::looked_at(Measure::Questions, usize::try_from(self.spent).unwrap_or(usize::MAX));
                return Some(next);
            }
        }
        None
    }

    /// Returns true if a question waits that a turn can answer now.
    pub fn is_due(&self, is_whole: bool) -> bool {
        let kinds = if is_whole { KINDS } else { FROM_WHOLE_STATE };
        self.waiting[..kinds].iter().any(|waiting| !waiting.is_empty())
    }

    /// Removes all questions except those for the whole state, because this member goes out of service.
    /// Returns the requests to refuse.
    pub fn take_refused(&mut self) -> Vec<RequestId> {
        let mut refused = Vec::new();
        for waiting in &mut self.waiting[..IMAGES] {
            refused.extend(waiting.drain(..).map(|(question, _)| question.request_id()));
        }
        refused
    }

    /// Returns true if a question that arrived at `since` has waited for the timeout. At that time its client
    /// has already received a timeout error.
    pub fn is_late(since: Instant, now: Instant, timeout: Duration) -> bool {
        now.saturating_duration_since(since) >= timeout
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request_id(slot: u32) -> RequestId {
        RequestId { shard: 0, slot, generation: 0 }
    }

    fn turn(questions: &mut Questions, is_whole: bool, cost: u64) -> Vec<u32> {
        questions.begin_turn(10);
        let mut slots = Vec::new();
        while let Some((question, _)) = questions.next(is_whole) {
            slots.push(question.request_id().slot);
            questions.spent(cost);
        }
        slots
    }

    #[test]
    fn a_turn_answers_what_its_budget_allows_and_the_kinds_take_turns() {
        let (mut questions, now) = (Questions::default(), Instant::now());
        for slot in 0..100 {
            assert!(questions.push(Question::Leases(request_id(slot)), now, 1000).is_none());
        }
        assert!(questions.push(Question::KeysToRenew(request_id(100), LeaseId(1)), now, 1000).is_none());
        assert!(questions.push(Question::Image(request_id(101)), now, 1000).is_none());
        assert_eq!(turn(&mut questions, true, 3), [100, 0, 101, 1]);
        assert_eq!(turn(&mut questions, true, 1).len(), 10);
        assert_eq!(turn(&mut questions, true, 1000).len(), 1, "one is answered whatever it costs");
        assert_eq!(questions.waiting.iter().map(VecDeque::len).sum::<usize>(), 87);
    }

    #[test]
    fn what_needs_a_whole_state_waits_for_it_and_delays_nothing_else() {
        let (mut questions, now) = (Questions::default(), Instant::now());
        for slot in 0..3 {
            questions.push(
                Question::TimeToLive(request_id(slot), LeaseId(1), LeaseDetail::TimeAndKeys),
                now,
                1000,
            );
        }
        questions.push(Question::TimeToLive(request_id(3), LeaseId(1), LeaseDetail::Time), now, 1000);
        assert_eq!(turn(&mut questions, false, 1), [3]);
        assert!(!questions.is_due(false) && questions.is_due(true));
        assert_eq!(turn(&mut questions, true, 1), [0, 1, 2]);
        assert!(questions.is_empty());
    }

    #[test]
    fn so_many_wait_and_a_member_out_of_service_refuses_all_but_images() {
        let (mut questions, now) = (Questions::default(), Instant::now());
        questions.push(Question::Leases(request_id(0)), now, 1);
        let refused = questions.push(Question::Leases(request_id(2)), now, 1);
        assert_eq!(refused.map(|question| question.request_id()), Some(request_id(2)));
        // A full queue of one kind does not cause questions of another kind to be refused.
        assert!(questions.push(Question::Image(request_id(1)), now, 1).is_none());
        assert_eq!(questions.take_refused(), [request_id(0)]);
        assert_eq!(turn(&mut questions, true, 1), [1]);
    }
}
