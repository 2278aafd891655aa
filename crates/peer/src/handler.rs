use std::future::Future;
use std::io;
use std::pin::Pin;

use api::raftpb::Message;
use bytes::Bytes;

use crate::error::BoxError;

/// The receiver of messages and events. Called on the peer thread unless a method says otherwise; no method may block
/// that thread.
pub trait Handler: Send + Sync + 'static {
    /// Takes the messages that one read of a connection brought, in order, by draining them. They are for this member,
    /// and none is a link heartbeat or a MsgSnap; raft judges if they make sense. Messages that are left in `messages`
    /// found no space: they are lost, and counted as failures.
    fn received(&self, messages: &mut Vec<Message>);

    /// Returns true if this id was a member once and must not come back.
    fn is_removed(&self, id: u64) -> bool;

    /// Messages to this member were lost; once per batch of failures.
    fn unreachable(&self, id: u64);

    /// A dial was refused: the member's host answers, its process does not. Called for every such dial.
    fn refused(&self, _id: u64) {}

    /// TLS did not let a connection in. Called for every one.
    fn rejected(&self) {}

    /// Sending a snapshot has ended. Called on the snapshot's own thread, or on the peer thread.
    fn snapshot_sent(&self, to: u64, delivered: bool);

    /// A peer says that this member is no longer part of the cluster. Called once.
    fn removed(&self);

    /// A snapshot comes in: its MsgSnap, and the bytes behind it, which have this form. Called on a thread of its own, may
    /// block. A connection that breaks gives an error as the last item.
    ///
    /// # Errors
    ///
    /// The text goes to the sender.
    fn receive_snapshot(
        &self,
        message: Message,
        form: SnapshotForm,
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

/// The form of a snapshot's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotForm {
    /// What this program's members send each other.
    Own,
    /// A database file of etcd's. The snapshot in the message has data, too.
    Etcd,
}

/// A snapshot that can be sent.
pub struct OpenedSnapshot<'a> {
    /// The form of the bytes.
    pub form: SnapshotForm,
    /// Data of the snapshot in the message; empty for none.
    pub data: Bytes,
    /// The bytes.
    pub pieces: Pieces<'a>,
}

/// The bytes of a snapshot as pieces in order; the sender chooses their size (tens of KiB are good).
pub type Pieces<'a> = Box<dyn Iterator<Item = io::Result<Bytes>> + Send + 'a>;

/// The source of a snapshot's bytes.
pub trait SnapshotSource: Send {
    /// Opens the snapshot for a receiver that answered `GET /mainstay/snapshot` with these bytes; None when it answered that
    /// it knows no such page, as a member does that runs etcd. Called on a thread of its own, may block.
    ///
    /// # Errors
    ///
    /// Nothing is sent then, and the snapshot counts as not delivered.
    fn open(&mut self, receiver: Option<Bytes>) -> Result<OpenedSnapshot<'_>, BoxError>;
}
