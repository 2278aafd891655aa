//! Linearizable reads, by the ReadIndex of Ongaro's thesis (6.4): before a state answers a read, the leader makes sure
//! that it still leads by hearing from a quorum, and says how far it had committed when it was asked.
//!
//! All reads that wait share a round, and a few rounds are under way at once: a read waits for one quorum's round trip,
//! never for a write or for another read's round to end.
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
//! A read never sees a state from before it began: the leader's commit index is taken after the round began, and so after
//! the read arrived, and a quorum confirms afterwards that there was no newer leader.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use numbers::{Index, LeaseId};
use planted::Bug;

use super::RequestId;
use crate::stages::RoundTimes;

/// Rounds under way at once.
const ROUNDS_MAX: usize = 16;
/// Groups of confirmed rounds that wait for this member to have applied different entries.
const CONFIRMED_MAX: usize = 16;
/// While a round is in flight, later reads share the next round. It begins when the first one ends, or after this time if
/// the other members are far away.
const ROUND_PACE: Duration = Duration::from_millis(2);
/// Reads in a round from which on keeping rounds apart is worth it.
const SHARED_ROUND: usize = 3;
/// A round that nobody confirmed is asked for again: a message may be lost, or the leader be too new to know.
pub(super) const RETRY: Duration = Duration::from_millis(500);

/// Pause before a raft node that took no read is asked again.
const REFUSED_PAUSE: Duration = Duration::from_millis(10);
/// Pause between two warnings of rounds that nobody confirms.
const WARN_PAUSE: Duration = Duration::from_secs(5);

/// A request that waits for a round.
#[derive(Clone, Copy, Debug)]
pub(super) enum Want {
    /// A read.
    Read(RequestId),
    /// A renewal of this lease: only a leader that is known to lead may promise a client more time.
    Renewal(RequestId, LeaseId),
    /// The time that this lease has, and with `true` its keys: a leader that was replaced, or has not applied all that
    /// is committed, would tell of a lease that is gone.
    TimeToLive(RequestId, LeaseId, bool),
}

impl Want {
    /// Returns the id of the request.
    pub fn request_id(self) -> RequestId {
        let (Want::Read(request_id) | Want::Renewal(request_id, _) | Want::TimeToLive(request_id, _, _)) =
            self;
        request_id
    }
}

/// A round that is under way.
struct Round {
    context: u64,
    wants: Vec<(Want, Instant)>,
    began: Instant,
}

/// Rounds that the leader has confirmed, until this member has applied what had been committed by then.
struct Confirmed {
    /// The leader's commit index when it was asked.
    index: Index,
    wants: Vec<(Want, Instant)>,
    /// When the first of the rounds began, and the last was confirmed.
    times: RoundTimes,
}

/// A want, and when it came.
pub(super) type Waiting = (Want, Instant);

/// Facts about this member that decide if a round can begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Footing {
    /// True if there is a leader that knows its commit index: a known leader that, if it is this member, has committed an
    /// entry in its term. Before that it does not know what earlier leaders have committed.
    pub can_ask: bool,
    /// The shortest time between two rounds of ReadIndex, so that several reads share one.
    pub pace: Duration,
}

/// What the loop has to do about rounds that are not confirmed in time.
#[derive(Debug, Default)]
pub(super) struct Retried {
    /// True if rounds are repeated, after having waited for [`RETRY`].
    pub late: bool,
    /// True if a warning should be logged; there was none for a while.
    pub warns: bool,
    /// Requests that have waited for the request timeout; their clients have timed out.
    pub expired: Vec<Want>,
}

/// The linearizable reads, and the requests that share their rounds, from their arrival until they may be answered.
///
/// This type is told what arrives (`push`), what the leader confirms (`confirm`) and what is applied (`finish`), and
/// returns what to ask the raft node and which requests may be answered. It knows neither raft nor the state.
#[derive(Default)]
pub(super) struct Reads {
    waiting: Vec<(Want, Instant)>,
    rounds: VecDeque<Round>,
    confirmed: VecDeque<Confirmed>,
    /// Reads whose round is confirmed and whose state is applied: answered once it is published.
    readable: Vec<(RequestId, Option<RoundTimes>)>,
    slow_until: Option<Instant>,
    /// The raft node took no read: it is not asked again before this time.
    refused_until: Option<Instant>,
    /// Time when the last round began.
    began: Option<Instant>,
    /// Reads in recent rounds, on average, in sixteenths.
    shared16: usize,
}

impl Reads {
    /// Adds a request that needs a new enough state.
    pub fn push(&mut self, want: Want, now: Instant) {
        self.waiting.push((want, now));
    }

    /// The rounds that were begun and are not answered yet, and all that waits, in whatever state.
    pub fn figures(&self) -> (usize, usize) {
        let waiting = self.waiting.len()
            + self.rounds.iter().map(|round| round.wants.len()).sum::<usize>()
            + self.confirmed.iter().map(|confirmed| confirmed.wants.len()).sum::<usize>();
        (self.rounds.len() + self.confirmed.len(), waiting)
    }

    /// Notes that the leader has confirmed a round with its commit index then. Only a few groups that wait for different
    /// entries are kept apart; beyond that, a round joins the newest group and is answered a little later than necessary.
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

    /// Takes out what has waited for so long, wherever it waits. Their callers were told.
    fn expired(&mut self, timeout: Duration, now: Instant) -> Vec<Want> {
        let mut expired = Vec::new();
        let mut sweep = |wants: &mut Vec<(Want, Instant)>| {
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

    /// Takes out all that waits for a round: this member's newest state answers it without one.
    pub fn take_waiting(&mut self) -> Vec<Waiting> {
        std::mem::take(&mut self.waiting)
    }

    /// Begins a round for the waiting requests, if there is a leader to ask and it is time; `number` yields the round's
    /// number. Returns that number if the raft node should be asked now. If the node refuses, the caller calls
    /// [`Reads::refused`].
    pub fn begin(&mut self, footing: Footing, number: impl FnOnce() -> u64, now: Instant) -> Option<u64> {
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

    /// The raft node took no read: the leader was lost just now, or too many reads wait for it to be confirmed. What was in
    /// the newest round waits with them, until its clients are told that it took too long.
    pub fn refused(&mut self, now: Instant) {
        if let Some(mut round) = self.rounds.pop_back() {
            round.wants.append(&mut self.waiting);
            self.waiting = round.wants;
        }
        self.refused_until = Some(now + REFUSED_PAUSE);
    }

    /// Returns the time until the next round may begin for the reads that wait. `None` if nothing waits, or if only something that
    /// happens, such as the election of a leader, lets a round begin.
    pub fn wait(&self, footing: Footing, now: Instant) -> Option<Duration> {
        if self.waiting.is_empty() || !footing.can_ask || self.rounds.len() >= ROUNDS_MAX {
            return None;
        }
        let refused = self.refused_until.map(|until| until.saturating_duration_since(now));
        if let Some(left) = refused.filter(|left| !left.is_zero()) {
            return Some(left);
        }
        let since = |began: Instant| now.saturating_duration_since(began);
        // Rounds that nobody shares are not worth keeping apart.
        let pace = if self.shared16 < 16 * SHARED_ROUND { Duration::ZERO } else { footing.pace };
        let paced = self.began.map(|began| pace.saturating_sub(since(began)));
        let shared = self.rounds.back().map(|newest| ROUND_PACE.saturating_sub(since(newest.began)));
        Some(paced.max(shared).unwrap_or(Duration::ZERO))
    }

    /// Returns true if anything waits for a round to begin.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns true if a read that arrives now could begin a round at once.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.rounds.is_empty()
    }

    /// Takes out one group of wants whose round is confirmed and whose entries are applied, the oldest first, with the times of
    /// its round; `None` if there is no further one. What it returns may be pushed again.
    pub fn finish(&mut self, applied: Index) -> Option<(Vec<Waiting>, RoundTimes)> {
        let done = |confirmed: &Confirmed| confirmed.index <= applied || planted::is(Bug::ReadBeforeApplied);
        let at = self.confirmed.iter().position(done)?;
        self.confirmed.remove(at).map(|confirmed| (confirmed.wants, confirmed.times))
    }

    /// Notes a read that may be answered once the present state is published, and the times of its round if it took one.
    pub fn readable(&mut self, request_id: RequestId, times: Option<RoundTimes>) {
        self.readable.push((request_id, times));
    }

    /// Takes out the reads that the state just published is new enough for.
    pub fn take_readable(&mut self) -> Vec<(RequestId, Option<RoundTimes>)> {
        std::mem::take(&mut self.readable)
    }

    /// The leader is another now, or unknown: what it was asked is asked again of the next.
    pub fn ask_again(&mut self) {
        let mut again: Vec<Waiting> = Vec::new();
        for mut round in self.rounds.drain(..) {
            again.append(&mut round.wants);
        }
        if !again.is_empty() {
            again.append(&mut self.waiting);
            self.waiting = again;
        }
    }

    /// Repeats rounds that are not confirmed in time, and takes out requests that have waited for `timeout`; called at
    /// each tick.
    pub fn retry(&mut self, timeout: Duration, now: Instant) -> Retried {
        let late = |round: &Round| now.saturating_duration_since(round.began) >= RETRY;
        let mut retried = Retried { late: self.rounds.iter().any(late), ..Retried::default() };
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

    const FOOTING: Footing = Footing { can_ask: true, pace: Duration::ZERO };

    fn read(slot: u32) -> Want {
        Want::Read(RequestId { shard: 0, slot, generation: 0 })
    }

    fn slots(wants: &[Waiting]) -> Vec<u32> {
        wants.iter().map(|(want, _)| want.request_id().slot).collect()
    }

    #[test]
    fn a_round_is_shared_confirmed_and_finished_by_what_is_applied() {
        let now = Instant::now();
        let mut reads = Reads::default();
        reads.push(read(1), now);
        reads.push(read(2), now);
        assert_eq!(reads.begin(Footing { can_ask: false, ..FOOTING }, || 7, now), None);
        assert_eq!(reads.begin(FOOTING, || 7, now), Some(7));
        // The next round begins a little later, unless this one ends.
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
        // The answer to the round that was given up means nothing any more.
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
