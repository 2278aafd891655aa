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
use crate::logging::Value;

/// Rounds under way at once.
const ROUNDS_MAX: usize = 16;
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

struct Round {
    context: u64,
    wants: Vec<(Want, Instant)>,
    began: Instant,
    /// What the leader had committed when it was asked.
    index: Option<u64>,
}

/// The reads that wait.
#[derive(Default)]
pub(super) struct Reads {
    waiting: Vec<(Want, Instant)>,
    rounds: VecDeque<Round>,
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

    fn open(&self) -> impl Iterator<Item = &Round> {
        self.rounds.iter().filter(|round| round.index.is_none())
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
        self.reads.rounds.push_back(Round { context, wants, began: now, index: None });
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
        if nobody || self.reads.open().count() >= ROUNDS_MAX {
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
        let shared = self.reads.open().last().map(|newest| ROUND_PACE.saturating_sub(since(newest.began)));
        Some(paced.max(shared).unwrap_or(Duration::ZERO))
    }

    /// Whether a read that arrives now could begin a round at once.
    pub(super) fn wakes_for_reads(&self) -> bool {
        self.reads.waiting.is_empty() && self.reads.open().next().is_none()
    }

    /// The leader has confirmed a round.
    pub(super) fn round_confirmed(&mut self, context: u64, index: u64) {
        let Some(round) = self.reads.rounds.iter_mut().find(|round| round.context == context) else {
            return;
        };
        round.index = Some(index);
    }

    /// Finishes the rounds that the applied state has come up to.
    pub(super) fn finish_rounds(&mut self, now: Instant) {
        let early = planted::is(Bug::HalfWayCountsAsApplied) && self.machine.has_unfinished();
        let applied = self.machine.applied_index + u64::from(early);
        let mut at = 0;
        while let Some(round) = self.reads.rounds.get(at) {
            if round.index.is_some_and(|index| index <= applied || planted::is(Bug::ReadBeforeApplied)) {
                if let Some(round) = self.reads.rounds.remove(at) {
                    self.grant(round.wants, now);
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
                Want::Renewal(ticket, id) => self.renew(ticket, id, now),
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
        let open = |round: &Round| round.index.is_none();
        let mut again: Vec<(Want, Instant)> = Vec::new();
        for round in self.reads.rounds.iter_mut().filter(|round| open(round)) {
            again.append(&mut round.wants);
        }
        self.reads.rounds.retain(|round| !open(round));
        if !again.is_empty() {
            again.append(&mut self.reads.waiting);
            self.reads.waiting = again;
        }
    }

    /// Looks after rounds that nobody confirms, and reads whose clients were told that they took too long.
    pub(super) fn retry_reads(&mut self, now: Instant) {
        let late =
            |round: &Round| round.index.is_none() && now.saturating_duration_since(round.began) >= RETRY;
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
        let mut expired = Vec::new();
        self.reads.waiting.retain(|(want, since)| {
            let keep = now.saturating_duration_since(*since) < timeout;
            if !keep {
                expired.push(*want);
            }
            keep
        });
        for want in expired {
            self.shared.metrics.server.read_indexes_failed.inc();
            self.refuse(want.ticket(), error::TIMEOUT);
        }
    }
}
