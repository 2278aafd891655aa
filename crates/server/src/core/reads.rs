//! Linearizable reads, by the ReadIndex of Ongaro's thesis (6.4): before a state answers a read, the leader makes sure
//! that it still leads by hearing from a quorum, and says how far it had committed when it was asked.
//!
//! All reads that wait share a round, and a few rounds are under way at once: a read waits for one quorum's round trip,
//! never for a write or for another read's round to end.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use api::error;
use consensus::Request;
use planted::Bug;

use super::run::Core;
use super::{ReplyBody, Ticket};
use telemetry::logging::Value;

/// Rounds under way at once.
const ROUNDS_MAX: usize = 16;
/// Groups of confirmed rounds that wait for this member to have applied different entries.
const CONFIRMED_MAX: usize = 16;
/// What arrives while a round is under way shares the next, which begins when that one ends, or after this time if the
/// other members are far away.
const ROUND_PACE: Duration = Duration::from_millis(2);
/// Reads in a round from which on keeping rounds apart is worth it.
const SHARED_ROUND: usize = 3;
/// A round that nobody confirmed is asked for again: a message may be lost, or the leader be too new to know.
const RETRY: Duration = Duration::from_millis(500);

/// Pause before a raft node that took no read is asked again.
const REFUSED_PAUSE: Duration = Duration::from_millis(10);

/// What waits for a round.
#[derive(Clone, Copy, Debug)]
pub(super) enum Want {
    /// A read.
    Read(Ticket),
    /// A renewal of this lease: only a leader that is known to lead may promise a client more time.
    Renewal(Ticket, i64),
    /// The time that this lease has, and with `true` its keys: a leader that was replaced, or has not applied all that
    /// is committed, would tell of a lease that is gone.
    TimeToLive(Ticket, i64, bool),
}

impl Want {
    fn ticket(self) -> Ticket {
        let (Want::Read(ticket) | Want::Renewal(ticket, _) | Want::TimeToLive(ticket, _, _)) = self;
        ticket
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
    /// What the leader had committed when it was asked.
    index: u64,
    wants: Vec<(Want, Instant)>,
}

/// The reads that wait.
#[derive(Default)]
pub(super) struct Reads {
    waiting: Vec<(Want, Instant)>,
    rounds: VecDeque<Round>,
    confirmed: VecDeque<Confirmed>,
    /// Reads whose round is confirmed and whose state is applied: answered once it is published.
    readable: Vec<Ticket>,
    slow_until: Option<Instant>,
    /// The raft node took no read: it is not asked again before this time.
    refused_until: Option<Instant>,
    /// When the last round began.
    began: Option<Instant>,
    /// Reads in recent rounds, on average, in sixteenths.
    shared16: usize,
}

impl Reads {
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

    /// The leader has confirmed a round. Of those that wait for this member's own apply few are kept apart: whoever waits
    /// for more than it needs is answered a little later.
    fn confirm(&mut self, context: u64, index: u64) {
        let Some(at) = self.rounds.iter().position(|round| round.context == context) else { return };
        let Some(mut round) = self.rounds.remove(at).filter(|round| !round.wants.is_empty()) else { return };
        let full = self.confirmed.len() >= CONFIRMED_MAX;
        match self.confirmed.back_mut().filter(|newest| full || newest.index == index) {
            Some(newest) => {
                newest.index = newest.index.max(index);
                newest.wants.append(&mut round.wants);
            }
            None => self.confirmed.push_back(Confirmed { index, wants: round.wants }),
        }
    }

    /// Takes out what has waited for so long, wherever it waits. Whoever asked was told.
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
}

impl Core {
    /// Begins a round for what waits, if there is somebody to ask.
    pub(super) fn start_round(&mut self, now: Instant) {
        if self.reads.waiting.is_empty() {
            return;
        }
        if self.reads_local() || (planted::is(Bug::StaleRead) && self.leads && self.settled) {
            let wants = std::mem::take(&mut self.reads.waiting);
            self.grant(wants, now);
            return;
        }
        if self.round_waits(now).is_none_or(|left| !left.is_zero()) {
            return;
        }
        self.reads.began = Some(now);
        self.reads.shared16 = (self.reads.shared16 * 7 + self.reads.waiting.len() * 16) / 8;
        let context = self.shared.request_id();
        let wants = std::mem::take(&mut self.reads.waiting);
        self.reads.rounds.push_back(Round { context, wants, began: now });
        if self.node.request(Request::Read(context)).is_err() {
            // The leader was lost just now, or too many reads wait for it to be confirmed: these wait with them, until
            // their clients are told that it took too long.
            if let Some(mut round) = self.reads.rounds.pop_back() {
                round.wants.append(&mut self.reads.waiting);
                self.reads.waiting = round.wants;
            }
            self.reads.refused_until = Some(now + REFUSED_PAUSE);
        }
    }

    /// How long what waits has to wait for the next round to begin. `None` if nothing waits, or if only something that
    /// happens, such as the election of a leader, lets a round begin.
    pub(super) fn round_waits(&self, now: Instant) -> Option<Duration> {
        if self.reads.waiting.is_empty() {
            return None;
        }
        // A leader that has not committed in its term does not know yet what earlier leaders have.
        let nobody = self.node.standing().leader == 0 || (self.leads && !self.settled);
        if nobody || self.reads.rounds.len() >= ROUNDS_MAX {
            return None;
        }
        let refused = self.reads.refused_until.map(|until| until.saturating_duration_since(now));
        if let Some(left) = refused.filter(|left| !left.is_zero()) {
            return Some(left);
        }
        let since = |began: Instant| now.saturating_duration_since(began);
        // Rounds that nobody shares are not worth keeping apart.
        let pace =
            if self.reads.shared16 < 16 * SHARED_ROUND { Duration::ZERO } else { self.pressure.pace() };
        let paced = self.reads.began.map(|began| pace.saturating_sub(since(began)));
        let shared = self.reads.rounds.back().map(|newest| ROUND_PACE.saturating_sub(since(newest.began)));
        Some(paced.max(shared).unwrap_or(Duration::ZERO))
    }

    /// Whether a read that arrives now could begin a round at once.
    pub(super) fn wakes_for_reads(&self) -> bool {
        self.reads.waiting.is_empty() && self.reads.rounds.is_empty()
    }

    /// The leader has confirmed a round.
    pub(super) fn round_confirmed(&mut self, context: u64, index: u64) {
        self.reads.confirm(context, index);
    }

    /// Finishes the rounds that the applied state has come up to.
    pub(super) fn finish_rounds(&mut self, now: Instant) {
        let early = planted::is(Bug::HalfWayCountsAsApplied) && self.machine.has_unfinished();
        let applied = self.machine.applied_index + u64::from(early);
        let mut at = 0;
        while let Some(confirmed) = self.reads.confirmed.get(at) {
            if confirmed.index <= applied || planted::is(Bug::ReadBeforeApplied) {
                if let Some(confirmed) = self.reads.confirmed.remove(at) {
                    self.grant(confirmed.wants, now);
                }
            } else {
                at += 1;
            }
        }
    }

    fn grant(&mut self, wants: Vec<(Want, Instant)>, now: Instant) {
        for (want, since) in wants {
            match want {
                Want::Read(ticket) => self.reads.readable.push(ticket),
                // Leadership was lost while it waited, and the clocks of leases are the next leader's.
                want if !self.leads => self.refuse(want.ticket(), error::NOT_PRIMARY_LESSOR),
                // The round was confirmed to a member that has become the leader since. Its clocks do not run yet.
                want if !self.settled => self.reads.push(want, since),
                Want::Renewal(ticket, id) => self.renew(ticket, id, since, now),
                Want::TimeToLive(ticket, id, keys) => self.time_to_live(ticket, id, keys, now),
            }
        }
    }

    /// Answers the reads that the state just published is new enough for.
    pub(super) fn answer_reads(&mut self) {
        for ticket in std::mem::take(&mut self.reads.readable) {
            self.reply(ticket, ReplyBody::Readable);
        }
    }

    /// The leader is another now, or unknown: what it was asked is asked again of the next.
    pub(super) fn ask_again(&mut self) {
        let mut again: Vec<(Want, Instant)> = Vec::new();
        for mut round in self.reads.rounds.drain(..) {
            again.append(&mut round.wants);
        }
        if !again.is_empty() {
            again.append(&mut self.reads.waiting);
            self.reads.waiting = again;
        }
    }

    /// Looks after rounds that nobody confirms, and reads whose clients were told that they took too long.
    pub(super) fn retry_reads(&mut self, now: Instant) {
        let late = |round: &Round| now.saturating_duration_since(round.began) >= RETRY;
        if self.reads.rounds.iter().any(late) {
            self.shared.metrics.server.slow_read_indexes.inc();
            if self.reads.slow_until.is_none_or(|until| now >= until) {
                self.reads.slow_until = Some(now + Duration::from_secs(5));
                self.logger.warn(
                    "waiting for ReadIndex response took too long, retrying",
                    &[("retry-timeout", Value::Duration(RETRY))],
                );
            }
            self.ask_again();
        }
        let timeout = self.shared.limits.request_timeout;
        let expired = self.reads.expired(timeout, now);
        for want in expired {
            self.shared.metrics.server.read_indexes_failed.inc();
            self.refuse(want.ticket(), error::TIMEOUT);
        }
    }
}
