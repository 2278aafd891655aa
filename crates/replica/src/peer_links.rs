//! The ways to the other members, as the core and the services see them.

use std::pin::Pin;
use std::time::{Duration, Instant};

use api::raftpb;
use bytes::Bytes;
use peer::{Figures, Peers, RequestError, SnapshotSource, Target};

/// The answer to a request outside of raft; an error says why there is none.
pub type Answered = Pin<Box<dyn Future<Output = Result<http::Response<Bytes>, RequestError>> + Send>>;

/// Carries messages, snapshots and requests to the other members. Nothing here blocks.
///
/// In a running member this is [`peer::Peers`]; a member that is stepped by hand is given another. What the other
/// members send comes in through [`peer::Handler`].
pub trait PeerLinks: Send + Sync + 'static {
    /// Sends messages to the members they name. Those to one member arrive in order or not at all.
    fn send(&self, messages: Vec<raftpb::Message>);

    /// The other members with their peer URLs from now on.
    fn set_members(&self, members: Vec<(u64, Vec<String>)>);

    /// Sends a snapshot: a MsgSnap with metadata, and what the source gives for what the receiver says it has
    /// (`GET /mainstay/snapshot`). [`peer::Handler::snapshot_sent`] has to tell the outcome.
    fn send_snapshot(&self, message: raftpb::Message, source: Box<dyn SnapshotSource>);

    /// Returns the time since when a member has been heard of without a break, by this member's clock; `None` while it is
    /// not.
    fn active_since(&self, id: u64) -> Option<Instant>;

    /// Returns the major and minor number of the release that a member told last, at latest before its first message; `None` if
    /// it has told none.
    fn release(&self, id: u64) -> Option<(u32, u32)>;

    /// Sends a request outside of raft. Any status is an answer; there is an error when `timeout` is over.
    fn request(&self, target: Target, request: http::Request<Bytes>, timeout: Duration) -> Answered;

    /// Returns the figures counted since the start.
    fn figures(&self) -> Figures;

    /// Stops sending and receiving. Does not wait.
    fn close(&self);
}

impl PeerLinks for Peers {
    fn send(&self, messages: Vec<raftpb::Message>) {
        Peers::send(self, messages);
    }

    fn set_members(&self, members: Vec<(u64, Vec<String>)>) {
        Peers::set_members(self, members);
    }

    fn send_snapshot(&self, message: raftpb::Message, source: Box<dyn SnapshotSource>) {
        Peers::send_snapshot(self, message, source);
    }

    fn active_since(&self, id: u64) -> Option<Instant> {
        Peers::active_since(self, id)
    }

    fn release(&self, id: u64) -> Option<(u32, u32)> {
        Peers::release(self, id)
    }

    fn request(&self, target: Target, request: http::Request<Bytes>, timeout: Duration) -> Answered {
        Box::pin(Peers::request(self, target, request, timeout))
    }

    fn figures(&self) -> Figures {
        Peers::figures(self)
    }

    fn close(&self) {
        Peers::close(self);
    }
}
