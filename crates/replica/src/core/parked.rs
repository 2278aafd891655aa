//! Decides how a member that is out of service reacts to requests. A member goes out of service if the next
//! committed entry depends on a value that cannot be read from its disk.
//!
//! The other members apply the entry, and the states of members must not differ, so this member applies no
//! further entries. It does not exit either, because it would fail at the same entry after every start. It no
//! longer takes part in raft, so that the other members elect a leader without it. It answers serializable
//! reads, and refuses other requests with the reason. It stays in this state until it is stopped. See
//! `docs/reference/damage.md`.

use std::time::Duration;

use api::{Code, Status};
use log::LogEvent;
use machine::Fatal;
use tokio::sync::oneshot;

use super::{
    ClientRequest, ControlRequest, CoreRequest, Forget, PeerRequest, Reply, RequestId, StorageRequest,
};
use crate::received::ReceivedState;

/// Time between two turns of a member that is out of service, if no request arrives.
pub(super) const IDLE: Duration = Duration::from_secs(1);

/// Closure that builds a request with the id that it is given.
pub(super) type Asks = Box<dyn FnOnce(RequestId) -> CoreRequest + Send>;

/// Reaction of a member that is out of service to a request.
pub(super) enum Response {
    /// The member ignores the request.
    Nothing,
    /// The member stops.
    Stop,
    /// The newest published state answers the request.
    Readable(RequestId),
    /// The request gets the whole published state.
    Image(RequestId),
    /// The member refuses the request with the reason. The number is the size in bytes of the proposal in the
    /// request, if it is one; the caller subtracts it from the bytes of waiting proposals.
    Refuse(RequestId, Option<usize>),
    /// The request comes from a thread that is not a shard. The closure builds the actual request, to which
    /// the member then reacts.
    Outside(oneshot::Sender<Reply>, Asks),
    /// The member discards the received part of a snapshot.
    Discard(Forget),
    /// The member rejects a snapshot that was received completely.
    TurnAway(Box<ReceivedState>),
    /// The log has failed, so the member ends.
    Failed(log::Fatal),
}

/// The reason why a member is out of service, and the rules for the requests that it still answers.
pub(super) struct OutOfService {
    why: Status,
    /// True if the published state contains every write that was ever acknowledged. This is known if this
    /// member is the only voter and has applied all entries that were in its log at the start.
    is_complete: bool,
}

impl OutOfService {
    /// Returns the rules for a member that goes out of service because of the error `fatal`.
    pub fn new(fatal: &Fatal, is_complete: bool) -> OutOfService {
        let text = format!("mainstay: this member is out of service: {fatal}");
        OutOfService { why: Status::with(Code::Unavailable, text), is_complete }
    }

    /// Returns the error with which requests of clients are refused.
    pub fn why(&self) -> Status {
        self.why.clone()
    }

    /// Returns true if the published state may answer linearizable reads, too.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Returns the reaction to this request.
    pub fn respond(&self, request: CoreRequest) -> Response {
        match request {
            CoreRequest::Client(request) => self.respond_to_client(request),
            CoreRequest::Peer(
                PeerRequest::Holds(request_id)
                | PeerRequest::OfferSnapshot(request_id, ..)
                | PeerRequest::ReceiveSnapshot(request_id, ..)
                | PeerRequest::ResumeSnapshot(request_id, ..)
                | PeerRequest::StateTrail(request_id, _)
                | PeerRequest::Observe(request_id, _),
            ) => Response::Refuse(request_id, None),
            CoreRequest::Peer(PeerRequest::SnapshotBroken(_, forget)) => Response::Discard(forget),
            CoreRequest::Peer(PeerRequest::SnapshotReceived(_, received)) => Response::TurnAway(received),
            CoreRequest::Storage(StorageRequest::Log(LogEvent::Failed(fatal))) => Response::Failed(fatal),
            CoreRequest::Control(ControlRequest::Stop) => Response::Stop,
            CoreRequest::Outside(sender, ask) => Response::Outside(sender, ask),
            CoreRequest::Peer(
                PeerRequest::Messages(..)
                | PeerRequest::Unreachable(_)
                | PeerRequest::LeaderEnded(_)
                | PeerRequest::DatabaseOpened { .. }
                | PeerRequest::SnapshotSent { .. }
                | PeerRequest::SnapshotGivenUp(_)
                | PeerRequest::Place(..)
                | PeerRequest::Removed(_)
                | PeerRequest::Follow(..),
            )
            | CoreRequest::Storage(
                StorageRequest::ValuesRead
                | StorageRequest::Fetched(..)
                | StorageRequest::Checkpointed(_)
                | StorageRequest::Relocate(..)
                | StorageRequest::Relocated { .. }
                | StorageRequest::Log(LogEvent::Synced(_) | LogEvent::SpaceChanged(_)),
            )
            | CoreRequest::Control(
                ControlRequest::Corrupt(_)
                | ControlRequest::DiffersFromFeeder(..)
                | ControlRequest::ClusterVersion(_)
                | ControlRequest::Downgraded(_)
                | ControlRequest::Reports { .. },
            ) => Response::Nothing,
        }
    }

    fn respond_to_client(&self, request: ClientRequest) -> Response {
        match request {
            ClientRequest::Propose { request_id, data, .. } => Response::Refuse(request_id, Some(data.len())),
            ClientRequest::Read(request_id) if self.is_complete => Response::Readable(request_id),
            ClientRequest::Image(request_id) => Response::Image(request_id),
            ClientRequest::Read(request_id)
            | ClientRequest::ChangeMembers(request_id, _, _)
            | ClientRequest::MoveLeader(request_id, _)
            | ClientRequest::KeepAlive(request_id, _)
            | ClientRequest::TimeToLive(request_id, _, _)
            | ClientRequest::LeaseKeys(request_id, _)
            | ClientRequest::KeysToRenew(request_id, _)
            | ClientRequest::Leases(request_id)
            | ClientRequest::LeaseTimes(request_id, _) => Response::Refuse(request_id, None),
            ClientRequest::RaiseNoSpace => Response::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use numbers::{Index, MemberId};

    use super::*;

    #[test]
    fn it_answers_what_its_state_can_and_refuses_the_rest_with_the_reason() {
        let request_id = RequestId { shard: 0, slot: 1, generation: 2 };
        let fatal = Fatal { index: Index(5), why: "a value cannot be read".to_owned(), is_unreadable: true };
        let complete = OutOfService::new(&fatal, true);
        assert!(complete.why().message.contains("out of service"));
        assert!(
            matches!(complete.respond(ClientRequest::Read(request_id).into()), Response::Readable(to) if to == request_id)
        );
        let behind = OutOfService::new(&fatal, false);
        assert!(
            matches!(behind.respond(ClientRequest::Read(request_id).into()), Response::Refuse(to, None) if to == request_id)
        );
        assert!(matches!(behind.respond(ClientRequest::Image(request_id).into()), Response::Image(_)));
        let data = bytes::Bytes::from_static(b"1234");
        let propose = ClientRequest::Propose {
            request_id,
            id: 1,
            data,
            writer: crate::core::Writer::Port(0),
            wait_removed: false,
        };
        assert!(matches!(behind.respond(propose.into()), Response::Refuse(_, Some(4))));
        assert!(matches!(behind.respond(PeerRequest::Removed(MemberId(2)).into()), Response::Nothing));
        let machine = Box::new(machine::Machine::new(machine::Rules { learners_max: 1 }));
        let received = ReceivedState { message: Default::default(), machine, base_applied: None, told: None };
        assert!(matches!(
            behind.respond(PeerRequest::SnapshotReceived(1, Box::new(received)).into()),
            Response::TurnAway(_)
        ));
        assert!(matches!(behind.respond(ControlRequest::Stop.into()), Response::Stop));
    }
}
