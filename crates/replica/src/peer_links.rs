//! Defines the interface through which the core and the services use the connections with the other members:
//! [`PeerLinks`].

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::raftpb;
use bytes::Bytes;
use peer::{Figures, Peers, RequestError, SnapshotSource, Target};

/// Future of the response to an HTTP request that is not a raft message, or of the error that prevented a
/// response.
pub type ResponseFuture = Pin<Box<dyn Future<Output = Result<http::Response<Bytes>, RequestError>> + Send>>;

/// Carries messages, snapshots and requests to the other members. No method blocks.
///
/// In a running member the implementation is [`peer::Peers`]. A member that tests run step by step has
/// another implementation. Messages from the other members arrive through [`peer::Handler`].
pub trait PeerLinks: Send + Sync + 'static {
    /// Sends messages to the members that the messages name. Messages to one member arrive in order; some may
    /// be lost.
    fn send(&self, messages: Vec<raftpb::Message>);

    /// Replaces the list of the other members and their peer URLs.
    fn set_members(&self, members: Vec<(u64, Vec<String>)>);

    /// Forgets what is known about these observers, which are no longer in the list of nodes.
    fn forget(&self, _ids: Vec<u64>) {}

    /// Sends a snapshot: a MsgSnap with metadata, and the data that `source` produces after the receiver has
    /// reported which data it already has (`GET /mainstay/snapshot`). The implementation has to report the
    /// outcome to [`peer::Handler::snapshot_sent`].
    fn send_snapshot(&self, message: raftpb::Message, source: Box<dyn SnapshotSource>);

    /// Returns the time since which the member has been reachable without interruption, by this member's
    /// clock; `None` while it is not reachable.
    fn active_since(&self, id: u64) -> Option<Instant>;

    /// Returns the major and minor number of the release that the member announced last; `None` if it has
    /// announced none. A member announces its release with or before its first message.
    fn release(&self, id: u64) -> Option<(u32, u32)>;

    /// Returns true if the member has said that it knows witnesses, voters without keys.
    fn knows_witnesses(&self, _id: u64) -> bool {
        true
    }

    /// Returns the zone that the member announced last; empty if it has announced none.
    fn zone(&self, _id: u64) -> Arc<str> {
        "".into()
    }

    /// Sends an HTTP request that is not a raft message. A response with any status counts as success. If no
    /// response arrives within `timeout`, returns an error.
    fn request(&self, target: Target, request: http::Request<Bytes>, timeout: Duration) -> ResponseFuture;

    /// Returns counters of the connections since the start.
    fn figures(&self) -> Figures;

    /// Stops sending and receiving, without waiting for open transfers.
    fn close(&self);
}

impl PeerLinks for Peers {
    fn send(&self, messages: Vec<raftpb::Message>) {
        Peers::send(self, messages);
    }

    fn set_members(&self, members: Vec<(u64, Vec<String>)>) {
        Peers::set_members(self, members);
    }

    fn forget(&self, ids: Vec<u64>) {
        Peers::forget(self, &ids);
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

    fn knows_witnesses(&self, id: u64) -> bool {
        Peers::knows_witnesses(self, id)
    }

    fn zone(&self, id: u64) -> Arc<str> {
        Peers::zone(self, id)
    }

    fn request(&self, target: Target, request: http::Request<Bytes>, timeout: Duration) -> ResponseFuture {
        Box::pin(Peers::request(self, target, request, timeout))
    }

    fn figures(&self) -> Figures {
        Peers::figures(self)
    }

    fn close(&self) {
        Peers::close(self);
    }
}
