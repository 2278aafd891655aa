use std::future::Future;
use std::io;
use std::pin::Pin;

use api::raftpb::Message;
use bytes::Bytes;

use crate::error::BoxError;

/// What the core does with what comes in. Called on the peer thread unless a method says otherwise; nothing here
/// may block it.
pub trait Handler: Send + Sync + 'static {
    /// What one read of a connection held, in order; to be drained. Messages are for this member, and none is a
    /// link heartbeat or a MsgSnap; whether they make sense is for raft to judge. Those that it leaves found no room:
    /// they are lost, and counted as failures.
    fn received(&self, messages: &mut Vec<Message>);

    /// Returns true if this id was a member once and must not come back.
    fn is_removed(&self, id: u64) -> bool;

    /// Messages to this member were lost; once per batch of failures.
    fn unreachable(&self, id: u64);

    /// Nobody listens at this member's address: its host answers, its process does not. Called for every such dial.
    fn refused(&self, _id: u64) {}

    /// How sending a snapshot ended. Called on the snapshot's own thread, or on the peer thread.
    fn snapshot_sent(&self, to: u64, delivered: bool);

    /// A peer says that this member is no longer part of the cluster. Called once.
    fn removed(&self);

    /// A snapshot comes in: its MsgSnap, and the bytes behind it. Called on a thread of its own, may block. A
    /// connection that breaks gives an error as the last item.
    ///
    /// # Errors
    ///
    /// The text goes to the sender.
    fn receive_snapshot(
        &self,
        message: Message,
        body: &mut dyn Iterator<Item = io::Result<Bytes>>,
    ) -> Result<(), BoxError>;

    /// The bytes that the body of a request to a path that is not raft's may have. With 0 none is read.
    fn body_bytes_max(&self, _head: &http::request::Parts) -> usize {
        1 << 20
    }

    /// Answers every path that is not raft's (`/members`, `/version`, ...).
    fn http(
        &self,
        request: http::Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = http::Response<Bytes>> + Send>>;
}

/// The bytes of a snapshot: pieces in order, of a size the sender chooses (tens of KiB are a good one).
pub type Pieces<'a> = Box<dyn Iterator<Item = io::Result<Bytes>> + Send + 'a>;

/// Where the bytes of a snapshot come from.
pub trait SnapshotSource: Send {
    /// Opens the snapshot for a receiver that answered `GET /mainstay/snapshot` with these bytes; None when it did
    /// not answer 200. Called on a thread of its own, may block.
    ///
    /// # Errors
    ///
    /// Nothing is sent then, and the snapshot counts as not delivered.
    fn open(&mut self, receiver: Option<Bytes>) -> Result<Pieces<'_>, BoxError>;
}
