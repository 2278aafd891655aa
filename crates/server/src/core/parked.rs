//! A member out of service: the next committed entry depends on a value that this member's disk does not give back.
//!
//! The other members apply the entry, and what follows from it must not differ here, so this member applies nothing from
//! then on. It does not exit either: it would come to the same entry after every start. It takes no part in raft any
//! more, so that the others elect a leader without it; it answers stale reads, and says why it answers nothing else.
//! It stays so until it is stopped. See `docs/damage.md`.

use std::time::{Duration, Instant};

use api::{Code, Status};
use log::LogEvent;
use machine::Fatal;

use super::proposals::Waiter;
use super::run::Core;
use super::{Ask, OUTSIDE, ReplyBody, Ticket};
use telemetry::logging::Value;

/// Pause between two turns that nothing asks for.
const IDLE: Duration = Duration::from_secs(1);

/// Why a member is out of service.
pub(super) struct Parked {
    why: Status,
    /// Whether everything that was ever acknowledged is in the published state: it is the only voter, and it has
    /// applied all that was in the log at its start.
    is_complete: bool,
}

impl Core {
    /// Takes the member out of service.
    pub(super) fn park(&mut self, fatal: &Fatal, now: Instant) {
        self.logger.error(
            "OUT OF SERVICE: a committed entry depends on a value that cannot be read, and it cannot be applied without; rebuild this member from the others with `mainstay rebuild` or, if it is the only one, take a snapshot of what can still be read and restore from a backup",
            &[("index", Value::Uint(fatal.index)), ("why", Value::Str(&fatal.why))],
        );
        let text = format!("mainstay: this member is out of service: {fatal}");
        let alone = self.node.voters() == [self.shared.identity.member_id];
        let why = Status::with(Code::Unavailable, text);
        for proposal in std::mem::take(&mut self.gathered) {
            self.shared.proposal_taken(proposal.data.len());
            self.refuse(proposal.ticket, why.clone());
        }
        let mut open: Vec<u64> = self.waiting.keys().copied().collect();
        open.sort_unstable();
        for id in open {
            if let Some(waiter) = self.taken_from_waiting(id)
                && !matches!(waiter, Waiter::Expiry(_))
            {
                self.give_up(waiter, why.clone());
            }
        }
        self.handed_on.clear();
        self.applying.clear();
        // Nobody would notice any more that it does not go on.
        self.end_install();
        self.held_back = false;
        self.removing = false;
        // So that what was applied before is published, and that there is no leader to be told of.
        self.applied_since = true;
        self.next_tick = now + IDLE;
        self.parked = Some(Parked { why, is_complete: alone && fatal.index > self.replayed_through });
        self.serve();
    }

    /// Whether the published state answers linearizable reads.
    pub(super) fn is_parked_complete(&self) -> bool {
        self.parked.as_ref().is_some_and(|parked| parked.is_complete)
    }

    /// One turn of a member out of service. Whether it is told to stop.
    ///
    /// # Errors
    ///
    /// When the log failed.
    pub(super) fn parked_turn(&mut self, asks: &mut Vec<Ask>, now: Instant) -> Result<bool, String> {
        self.next_tick = now + IDLE;
        let mut stops = false;
        asks.append(&mut self.deferred);
        for ask in asks.drain(..) {
            self.take_parked(ask, &mut stops)?;
        }
        self.answer();
        self.release_doomed();
        self.release_discarded();
        Ok(stops)
    }

    fn take_parked(&mut self, ask: Ask, stops: &mut bool) -> Result<(), String> {
        match ask {
            Ask::Stop => *stops = true,
            Ask::Propose { ticket, data, .. } => {
                self.shared.proposal_taken(data.len());
                self.refuse_parked(ticket);
            }
            Ask::Read(ticket) if self.is_parked_complete() => self.reply(ticket, ReplyBody::Readable),
            Ask::Image(ticket) => self.image_waiters.push(ticket),
            Ask::Outside(sender, ask) => {
                let slot = u32::try_from(self.keep_outside(sender)).unwrap_or(u32::MAX);
                self.take_parked(ask(Ticket { shard: OUTSIDE, slot, generation: 0 }), stops)?;
            }
            Ask::Read(ticket)
            | Ask::ChangeMembers(ticket, _)
            | Ask::MoveLeader(ticket, _)
            | Ask::Holds(ticket)
            | Ask::ReceiveSnapshot(ticket, ..)
            | Ask::ResumeSnapshot(ticket, ..)
            | Ask::StateTrail(ticket, _)
            | Ask::KeepAlive(ticket, _)
            | Ask::TimeToLive(ticket, _, _)
            | Ask::LeaseKeys(ticket, _)
            | Ask::Leases(ticket)
            | Ask::LeaseTimes(ticket, _) => self.refuse_parked(ticket),
            Ask::Log(LogEvent::Failed(fatal)) => return Err(fatal.to_string()),
            Ask::SnapshotBroken(_, forget) => self.install.discard_part(forget),
            Ask::Messages(..)
            | Ask::Unreachable(_)
            | Ask::LeaderEnded(_)
            | Ask::SnapshotSent { .. }
            | Ask::SnapshotReceived(..)
            | Ask::SnapshotGivenUp(_)
            | Ask::Place(..)
            | Ask::Fetched(..)
            | Ask::ValuesRead
            | Ask::Removed
            | Ask::Corrupt(_)
            | Ask::ClusterVersion(_)
            | Ask::RaiseNoSpace
            | Ask::Checkpointed(_)
            | Ask::Relocate(..)
            | Ask::Relocated
            | Ask::Log(_) => {}
        }
        Ok(())
    }

    fn refuse_parked(&mut self, ticket: Ticket) {
        let why = self.parked.as_ref().map_or(api::error::STOPPED, |parked| parked.why.clone());
        self.refuse(ticket, why);
    }
}
