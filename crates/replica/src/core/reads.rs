//! Linearizable reads, by the ReadIndex algorithm of Ongaro's thesis (6.4): before a member answers a read,
//! the leader reports the commit index that it had when the read was registered, and confirms with a quorum
//! that it still leads.
//!
//! All waiting reads share a round, and a few rounds are in flight at the same time. So a read waits for one
//! round trip to a quorum, and never for a write or for the end of a round that began earlier.
//!
//! # Example: rounds that are shared and overlap
//!
//! A leader in a cluster whose round trip takes 10 ms; times in ms.
//!
//! ```text
//!  0   read a arrives     round 1 begins: a; the leader has committed entry 100
//!  1   reads b, c arrive  they wait: rounds begin 2 ms apart while one is under way
//!  2                      round 2 begins: b, c; the leader has committed entry 102
//! 10   round 1 confirmed  a needs entry 100
//!      this member has applied 101: a is answered from the next published view
//! 12   round 2 confirmed  b and c need entry 102 and wait for apply, not for another round
//! 13   entry 102 applied  b and c are answered from the view that has it
//! 14   read d arrives     no round is under way: round 3 begins at once
//! ```
//!
//! A read never sees a state that is older than the read. The leader's commit index is determined after the
//! round began, and so after the read arrived. A quorum confirms after the read arrived that there was no
//! newer leader until then.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use numbers::{Index, LeaseId};
use planted::Bug;

use super::{LeaseDetail, RequestId};
use crate::stages::RoundTimes;

/// Maximum number of rounds in flight.
const ROUNDS_MAX: usize = 16;
/// Maximum number of groups of confirmed rounds, each of which waits for a different log index to be applied.
const CONFIRMED_MAX: usize = 16;
/// Minimum time between two rounds while one is in flight, unless proposals leave anyway. Reads that arrive
/// in between share the next round. That round begins when the round in flight ends, or after this time if it
/// passes earlier.
const ROUND_PACE: Duration = Duration::from_millis(2);
/// Minimum average number of reads per round at which a pause between rounds is worth its delay.
const SHARED_ROUND: usize = 3;
/// Time after which an unconfirmed round is repeated: a message may have been lost, or the leader may have
/// had no committed entry of its own term yet.
pub(super) const RETRY: Duration = Duration::from_millis(500);

/// Pause before the raft node is asked again after it has refused to begin a round.
const REFUSED_PAUSE: Duration = Duration::from_millis(10);
/// Pause between two warnings about unconfirmed rounds.
const WARN_PAUSE: Duration = Duration::from_secs(5);

/// A request that waits for a round.
#[derive(Clone, Copy, Debug)]
pub(super) enum RoundRequest {
    /// A read.
    Read(RequestId),
    /// A renewal of this lease: only a leader whose leadership is confirmed may promise a client more time.
    Renewal(RequestId, LeaseId),
    /// A request for the remaining time of this lease, and its keys if they are wanted. It waits for a round
    /// because a replaced leader, or a leader that has not applied all committed entries, could report a
    /// lease that no longer exists.
    TimeToLive(RequestId, LeaseId, LeaseDetail),
    /// A read of an observer that this node feeds; the number with which it was kept.
    Observer(u64),
    /// A round of an observer itself.
    Own,
}

impl RoundRequest {
    /// Returns the id of the client's request; `None` for what is not a client's.
    pub fn request_id(self) -> Option<RequestId> {
        match self {
            RoundRequest::Read(request_id)
            | RoundRequest::Renewal(request_id, _)
            | RoundRequest::TimeToLive(request_id, _, _) => Some(request_id),
            RoundRequest::Observer(_) | RoundRequest::Own => None,
        }
    }
}

/// A round that is in flight, and the requests that wait for its confirmation.
struct Round {
    context: u64,
    wants: Vec<(RoundRequest, Instant)>,
    began: Instant,
}

/// Confirmed rounds that share a log index. Their requests wait until this member has applied the entries up
/// to `index`.
struct Confirmed {
    /// Commit index that the leader had when the round began.
    index: Index,
    wants: Vec<(RoundRequest, Instant)>,
    /// Time at which the first of these rounds began, and time at which the last of them was confirmed.
    times: RoundTimes,
}

/// A waiting request, and the time at which it arrived.
pub(super) type TimedRequest = (RoundRequest, Instant);

/// Facts about this member that decide whether a round can begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundConditions {
    /// True if the leader is known and can report the commit index. If this member itself leads, it must have
    /// committed an entry of its own term: before that, it does not know which entries earlier leaders have
    /// committed.
    pub can_ask: bool,
    /// Minimum time between two ReadIndex rounds, so that several reads share a round.
    pub pace: Duration,
    /// True if proposals leave in this turn: the messages that begin a round then share their writes and
    /// wake-ups, so the round need not wait for more reads.
    pub rides: bool,
}

/// Actions that the core has to take for rounds that are not confirmed in time.
#[derive(Debug, Default)]
pub(super) struct RetryStep {
    /// True if a round was not confirmed within [`RETRY`], so that the requests of all rounds in flight wait
    /// for new rounds.
    pub late: bool,
    /// True if a warning should be logged, because the last warning is at least [`WARN_PAUSE`] ago.
    pub warns: bool,
    /// Requests that have waited for the request timeout. They need no answer, because their clients have
    /// already received a timeout error.
    pub expired: Vec<RoundRequest>,
}

/// Linearizable reads, and the other requests that need a ReadIndex round, from their arrival until they may
/// be answered.
///
/// The core reports arriving requests (`push`), confirmations by the leader (`confirm`) and applied entries
/// (`finish`). This type returns the rounds that the raft node has to begin, and the requests that may be
/// answered. It uses neither raft nor the state itself.
#[derive(Default)]
pub(super) struct Reads {
    waiting: Vec<(RoundRequest, Instant)>,
    rounds: VecDeque<Round>,
    confirmed: VecDeque<Confirmed>,
    /// Reads whose round is confirmed and whose entries are applied. They are answered once the state with
    /// these entries is published.
    readable: Vec<(RequestId, Option<RoundTimes>)>,
    /// Time at which the newest finished round began, if it was not taken yet ([`Reads::take_finished`]).
    finished: Option<Instant>,
    slow_until: Option<Instant>,
    /// Time before which the raft node is not asked again, because it refused a read.
    refused_until: Option<Instant>,
    /// Time at which the last round began.
    began: Option<Instant>,
    /// Moving average of the number of requests in a round, in units of one sixteenth.
    shared16: usize,
}

impl Reads {
    /// Adds a request that needs a round.
    pub fn push(&mut self, want: RoundRequest, now: Instant) {
        self.waiting.push((want, now));
    }

    /// Returns the number of rounds that were begun and are not answered yet, and the number of all waiting
    /// requests, whether their round has not begun, is in flight or is confirmed.
    pub fn figures(&self) -> (usize, usize) {
        let waiting = self.waiting.len()
            + self.rounds.iter().map(|round| round.wants.len()).sum::<usize>()
            + self.confirmed.iter().map(|confirmed| confirmed.wants.len()).sum::<usize>();
        (self.rounds.len() + self.confirmed.len(), waiting)
    }

    /// Records that the leader has confirmed the round `context` with the commit index that it had when it
    /// was asked. At most [`CONFIRMED_MAX`] groups wait for different entries. If they are all in use, the
    /// round joins the newest group, so its reads may be answered a little later than necessary.
    pub fn confirm(&mut self, context: u64, index: Index, now: Instant) {
        let Some(at) = self.rounds.iter().position(|round| round.context == context) else { return };
        let Some(mut round) = self.rounds.remove(at).filter(|round| !round.wants.is_empty()) else { return };
        let full = self.confirmed.len() >= CONFIRMED_MAX;
        match self.confirmed.back_mut().filter(|newest| full || newest.index == index) {
            Some(newest) => {
                newest.index = newest.index.max(index);
                newest.wants.append(&mut round.wants);
                newest.times.confirmed = now;
            }
            None => {
                let times = RoundTimes { began: round.began, confirmed: now };
                self.confirmed.push_back(Confirmed { index, wants: round.wants, times });
            }
        }
    }

    /// Removes and returns the requests that have waited for `timeout`, whether their round has not begun, is
    /// in flight or is confirmed. Their clients have already received a timeout error.
    fn expired(&mut self, timeout: Duration, now: Instant) -> Vec<RoundRequest> {
        let mut expired = Vec::new();
        let mut sweep = |wants: &mut Vec<(RoundRequest, Instant)>| {
            wants.retain(|(want, since)| {
                let keep = now.saturating_duration_since(*since) < timeout;
                if !keep {
                    expired.push(*want);
                }
                keep
            });
        };
        sweep(&mut self.waiting);
        self.rounds.iter_mut().for_each(|round| sweep(&mut round.wants));
        if !planted::is(Bug::ConfirmedReadsKept) {
            self.confirmed.iter_mut().for_each(|confirmed| sweep(&mut confirmed.wants));
        }
        self.confirmed.retain(|confirmed| !confirmed.wants.is_empty());
        expired
    }

    /// Removes and returns all requests that wait for a round to begin. Called when no round is needed,
    /// because no other member can lead and so this member's newest state answers the requests.
    pub fn take_waiting(&mut self) -> Vec<TimedRequest> {
        std::mem::take(&mut self.waiting)
    }

    /// Begins a round for the waiting requests, if the leader can be asked and the pause has passed. `number`
    /// creates the number of the round. Returns that number if the raft node should begin a round now. If the
    /// node refuses, the caller must call [`Reads::refused`].
    pub fn begin(
        &mut self,
        footing: RoundConditions,
        number: impl FnOnce() -> u64,
        now: Instant,
    ) -> Option<u64> {
        if self.wait(footing, now).is_none_or(|left| !left.is_zero()) {
            return None;
        }
        self.began = Some(now);
        self.shared16 = (self.shared16 * 7 + self.waiting.len() * 16) / 8;
        let context = number();
        let wants = std::mem::take(&mut self.waiting);
        self.rounds.push_back(Round { context, wants, began: now });
        Some(context)
    }

    /// Handles a refusal by the raft node: the leader was lost just now, or too many reads wait for a new
    /// leader to be confirmed. The requests of the newest round are put back and wait for another round, at
    /// most until their clients time out.
    pub fn refused(&mut self, now: Instant) {
        if let Some(mut round) = self.rounds.pop_back() {
            round.wants.append(&mut self.waiting);
            self.waiting = round.wants;
        }
        self.refused_until = Some(now + REFUSED_PAUSE);
    }

    /// Returns the time until the next round may begin for the waiting reads. `None` if no read waits, or if
    /// a round can only begin after an event, such as the election of a leader.
    pub fn wait(&self, footing: RoundConditions, now: Instant) -> Option<Duration> {
        if self.waiting.is_empty() || !footing.can_ask || self.rounds.len() >= ROUNDS_MAX {
            return None;
        }
        let refused = self.refused_until.map(|until| until.saturating_duration_since(now));
        if let Some(left) = refused.filter(|left| !left.is_zero()) {
            return Some(left);
        }
        // Half of the rounds are kept for the reads that arrive later, while the first ones are still under
        // way to a distant quorum.
        if footing.rides && self.rounds.len() < ROUNDS_MAX / 2 {
            return Some(Duration::ZERO);
        }
        let since = |began: Instant| now.saturating_duration_since(began);
        // If few reads share a round, a pause would only delay them, so none is made.
        let pace = if self.shared16 < 16 * SHARED_ROUND { Duration::ZERO } else { footing.pace };
        let paced = self.began.map(|began| pace.saturating_sub(since(began)));
        let shared = self.rounds.back().map(|newest| ROUND_PACE.saturating_sub(since(newest.began)));
        Some(paced.max(shared).unwrap_or(Duration::ZERO))
    }

    /// Returns true if any request waits for a round to begin.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns true if no round is in flight and no request waits, so that a round for a read that arrives
    /// now could begin immediately.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.rounds.is_empty()
    }

    /// Removes and returns the oldest group of requests whose round is confirmed and whose entries are
    /// applied, with the times of the round. Returns `None` if there is no such group. The caller may push a
    /// request again, for example because this member has become the leader and its lease clocks do not run
    /// yet.
    pub fn finish(&mut self, applied: Index) -> Option<(Vec<TimedRequest>, RoundTimes)> {
        let done = |confirmed: &Confirmed| confirmed.index <= applied || planted::is(Bug::ReadBeforeApplied);
        let at = self.confirmed.iter().position(done)?;
        let confirmed = self.confirmed.remove(at)?;
        self.finished = self.finished.max(Some(confirmed.times.began));
        Some((confirmed.wants, confirmed.times))
    }

    /// Removes and returns the time at which the newest finished round began. The state that is published next
    /// contains every write that was acknowledged before.
    pub fn take_finished(&mut self) -> Option<Instant> {
        self.finished.take()
    }

    /// Records a read that may be answered once the current state is published, and the times of its round if
    /// it needed one.
    pub fn readable(&mut self, request_id: RequestId, times: Option<RoundTimes>) {
        self.readable.push((request_id, times));
    }

    /// Removes and returns the reads that the state just published may answer.
    pub fn take_readable(&mut self) -> Vec<(RequestId, Option<RoundTimes>)> {
        std::mem::take(&mut self.readable)
    }

    /// Puts the requests of all rounds in flight back into the queue, because the leader has changed or is
    /// unknown. The next leader has to confirm them.
    pub fn ask_again(&mut self) {
        let mut again: Vec<TimedRequest> = Vec::new();
        for mut round in self.rounds.drain(..) {
            again.append(&mut round.wants);
        }
        if !again.is_empty() {
            again.append(&mut self.waiting);
            self.waiting = again;
        }
    }

    /// Makes the requests of all rounds in flight wait for new rounds if a round was not confirmed in time,
    /// and removes requests that have waited for `timeout`. Called at each tick.
    pub fn retry(&mut self, timeout: Duration, now: Instant) -> RetryStep {
        let late = |round: &Round| now.saturating_duration_since(round.began) >= RETRY;
        let mut retried = RetryStep { late: self.rounds.iter().any(late), ..RetryStep::default() };
        if retried.late {
            if self.slow_until.is_none_or(|until| now >= until) {
                self.slow_until = Some(now + WARN_PAUSE);
                retried.warns = true;
            }
            self.ask_again();
        }
        retried.expired = self.expired(timeout, now);
        retried
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOOTING: RoundConditions = RoundConditions { can_ask: true, pace: Duration::ZERO, rides: false };

    fn read(slot: u32) -> RoundRequest {
        RoundRequest::Read(RequestId { shard: 0, slot, generation: 0 })
    }

    fn slots(wants: &[TimedRequest]) -> Vec<u32> {
        wants.iter().filter_map(|(want, _)| Some(want.request_id()?.slot)).collect()
    }

    #[test]
    fn a_round_is_shared_confirmed_and_finished_by_what_is_applied() {
        let now = Instant::now();
        let mut reads = Reads::default();
        reads.push(read(1), now);
        reads.push(read(2), now);
        assert_eq!(reads.begin(RoundConditions { can_ask: false, ..FOOTING }, || 7, now), None);
        assert_eq!(reads.begin(FOOTING, || 7, now), Some(7));
        // The next round begins a little later, unless the round in flight ends first.
        reads.push(read(3), now);
        assert_eq!(reads.wait(FOOTING, now), Some(ROUND_PACE));
        assert_eq!(reads.figures(), (1, 3));
        reads.confirm(8, Index(100), now);
        reads.confirm(7, Index(5), now + ROUND_PACE);
        assert_eq!(reads.wait(FOOTING, now), Some(Duration::ZERO));
        assert!(reads.finish(Index(4)).is_none());
        let times = RoundTimes { began: now, confirmed: now + ROUND_PACE };
        assert_eq!(
            reads.finish(Index(5)).map(|(wants, times)| (slots(&wants), times)),
            Some((vec![1, 2], times))
        );
        assert!(reads.finish(Index(5)).is_none());
        assert_eq!(reads.figures(), (0, 1));
    }

    #[test]
    fn rounds_that_leave_with_proposals_leave_room_for_others() {
        let now = Instant::now();
        let mut reads = Reads::default();
        let rides = RoundConditions { rides: true, pace: ROUND_PACE * 5, ..FOOTING };
        for number in 0..ROUNDS_MAX as u64 / 2 {
            reads.push(read(1), now);
            assert_eq!(reads.begin(rides, || number, now), Some(number));
        }
        reads.push(read(2), now);
        assert_eq!(reads.begin(rides, || 99, now), None);
        assert_eq!(reads.begin(FOOTING, || 99, now + ROUND_PACE), Some(99));
    }

    #[test]
    fn what_the_raft_node_refuses_keeps_its_place_and_is_asked_a_little_later() {
        let now = Instant::now();
        let mut reads = Reads::default();
        reads.push(read(1), now);
        assert_eq!(reads.begin(FOOTING, || 1, now), Some(1));
        reads.push(read(2), now);
        reads.refused(now);
        assert_eq!(reads.wait(FOOTING, now), Some(REFUSED_PAUSE));
        assert_eq!(reads.begin(FOOTING, || 2, now), None);
        assert_eq!(reads.begin(FOOTING, || 2, now + REFUSED_PAUSE), Some(2));
        reads.confirm(2, Index(1), now);
        assert_eq!(reads.finish(Index(1)).map(|(wants, _)| slots(&wants)), Some(vec![1, 2]));
    }

    #[test]
    fn rounds_without_an_answer_are_asked_again_and_wants_expire_wherever_they_wait() {
        let start = Instant::now();
        let timeout = Duration::from_secs(7);
        let mut reads = Reads::default();
        reads.push(read(1), start);
        assert_eq!(reads.begin(FOOTING, || 1, start), Some(1));
        let retried = reads.retry(timeout, start + RETRY / 2);
        assert!(!retried.late && retried.expired.is_empty());
        let retried = reads.retry(timeout, start + RETRY);
        assert!(retried.late && retried.warns && reads.is_waiting());
        // The answer to a round that was given up is ignored.
        reads.confirm(1, Index(1), start);
        assert!(reads.finish(Index(1)).is_none());
        assert_eq!(reads.begin(FOOTING, || 2, start + RETRY), Some(2));
        let retried = reads.retry(timeout, start + 2 * RETRY);
        assert!(retried.late && !retried.warns, "it was warned of just now");
        assert_eq!(reads.begin(FOOTING, || 3, start + 2 * RETRY), Some(3));
        reads.confirm(3, Index(10), start + timeout);
        let retried = reads.retry(timeout, start + timeout);
        assert_eq!(retried.expired.len(), 1);
        assert_eq!(reads.figures(), (0, 0));
    }
}
