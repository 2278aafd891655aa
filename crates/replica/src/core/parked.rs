//! A member out of service: the next committed entry depends on a value that this member's disk does not give back.
//!
//! The other members apply the entry, and what follows from it must not differ here, so this member applies nothing from
//! then on. It does not exit either: it would come to the same entry after every start. It takes no part in raft any
//! more, so that the others elect a leader without it; it answers stale reads, and says why it answers nothing else.
//! It stays so until it is stopped. See `docs/damage.md`.

use std::time::Duration;

use api::{Code, Status};
use log::LogEvent;
use machine::Fatal;
use tokio::sync::oneshot;

use super::{Ask, Forget, Reply, Ticket};

/// Pause between two turns that nothing asks for.
pub(super) const IDLE: Duration = Duration::from_secs(1);

/// Makes an ask of a ticket.
pub(super) type Asks = Box<dyn FnOnce(Ticket) -> Ask + Send>;

/// What a member out of service does about something that it is asked or told.
pub(super) enum Response {
    /// Nothing: it does not matter any more.
    Nothing,
    /// It stops.
    Stop,
    /// The newest published state answers it.
    Readable(Ticket),
    /// The published state is given out.
    Image(Ticket),
    /// It is refused with the reason; so many bytes of a proposal are no longer held.
    Refuse(Ticket, Option<usize>),
    /// The asker is outside the shards: with a ticket for it, what this makes is to be asked.
    Outside(oneshot::Sender<Reply>, Asks),
    /// What was received of a snapshot is of no use.
    Discard(Forget),
    /// The log has failed, so the member ends.
    Failed(String),
}

/// Why a member is out of service, and what it still does.
pub(super) struct Parked {
    why: Status,
    /// Whether everything that was ever acknowledged is in the published state: it is the only voter, and it has
    /// applied all that was in the log at its start.
    is_complete: bool,
}

impl Parked {
    /// Out of service for this reason.
    pub fn new(fatal: &Fatal, is_complete: bool) -> Parked {
        let text = format!("mainstay: this member is out of service: {fatal}");
        Parked { why: Status::with(Code::Unavailable, text), is_complete }
    }

    /// What clients are told.
    pub fn why(&self) -> Status {
        self.why.clone()
    }

    /// Whether the published state answers linearizable reads.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// What to do about this.
    pub fn respond(&self, ask: Ask) -> Response {
        match ask {
            Ask::Stop => Response::Stop,
            Ask::Propose { ticket, data, .. } => Response::Refuse(ticket, Some(data.len())),
            Ask::Read(ticket) if self.is_complete => Response::Readable(ticket),
            Ask::Image(ticket) => Response::Image(ticket),
            Ask::Outside(sender, ask) => Response::Outside(sender, ask),
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
            | Ask::LeaseTimes(ticket, _) => Response::Refuse(ticket, None),
            Ask::Log(LogEvent::Failed(fatal)) => Response::Failed(fatal.to_string()),
            Ask::SnapshotBroken(_, forget) => Response::Discard(forget),
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
            | Ask::Log(_) => Response::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_answers_what_its_state_can_and_refuses_the_rest_with_the_reason() {
        let ticket = Ticket { shard: 0, slot: 1, generation: 2 };
        let fatal = Fatal { index: 5, why: "a value cannot be read".to_owned(), is_unreadable: true };
        let complete = Parked::new(&fatal, true);
        assert!(complete.why().message.contains("out of service"));
        assert!(matches!(complete.respond(Ask::Read(ticket)), Response::Readable(to) if to == ticket));
        let behind = Parked::new(&fatal, false);
        assert!(matches!(behind.respond(Ask::Read(ticket)), Response::Refuse(to, None) if to == ticket));
        assert!(matches!(behind.respond(Ask::Image(ticket)), Response::Image(_)));
        let data = bytes::Bytes::from_static(b"1234");
        let propose = Ask::Propose { ticket, id: 1, data, writer: 0, wait_removed: false };
        assert!(matches!(behind.respond(propose), Response::Refuse(_, Some(4))));
        assert!(matches!(behind.respond(Ask::Removed), Response::Nothing));
        assert!(matches!(behind.respond(Ask::Stop), Response::Stop));
    }
}
