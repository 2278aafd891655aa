use std::future::Future;
use std::io;
use std::pin::Pin;

use api::raftpb::Message;
use bytes::Bytes;

use crate::error::BoxError;

/// Receiver of messages and events. Methods are called on the peer thread unless stated otherwise, and must
/// not block it.
pub trait Handler: Send + Sync + 'static {
    /// Takes the messages of one read of a connection, in order, which the method drains from `messages`. All
    /// of them are addressed to this member, and none is a link heartbeat or a MsgSnap. Nothing else was
    /// validated, so raft must check them. Messages left in `messages` are dropped and counted as failures.
    fn received(&self, messages: &mut Vec<Message>);

    /// Returns true if this id belonged to a member that was removed and must not return.
    fn is_removed(&self, id: u64) -> bool;

    /// Called when messages to a member were lost; once per batch of failures.
    fn unreachable(&self, id: u64);

    /// Called for every dial that was refused, which means that the host is up and the member's process is
    /// not.
    fn refused(&self, _id: u64) {}

    /// Called for every connection that TLS rejected.
    fn rejected(&self) {}

    /// Called when sending a snapshot has ended, on the snapshot's own thread or on the peer thread.
    fn snapshot_sent(&self, to: u64, outcome: SnapshotOutcome);

    /// Called once, when a peer reports that this member was removed from the cluster.
    fn removed(&self);

    /// Receives a snapshot: its MsgSnap, and the bytes that follow it in the given form. Called on a separate
    /// thread and may block. If the connection breaks, the last item of `body` is an error.
    ///
    /// # Errors
    ///
    /// Returns an error if the snapshot is refused. Its text is sent to the sender.
    fn receive_snapshot(
        &self,
        message: Message,
        form: SnapshotForm,
        body: &mut dyn Iterator<Item = io::Result<Bytes>>,
    ) -> Result<(), BoxError>;

    /// Returns the size limit in bytes for the body of a request to a path outside of raft. With 0 no body is
    /// read.
    fn body_bytes_max(&self, _head: &http::request::Parts) -> usize {
        1 << 20
    }

    /// Answers requests to all paths outside of raft (`/members`, `/version`, ...).
    fn http(
        &self,
        request: http::Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = http::Response<Bytes>> + Send>>;
}

/// Result of sending a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotOutcome {
    /// The receiver has accepted the whole snapshot.
    Delivered,
    /// The snapshot was not sent, or the receiver did not accept it.
    Failed,
}

/// Format of a snapshot's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotForm {
    /// Mainstay's own format.
    Own,
    /// An etcd database file. The snapshot in the message then has data too.
    Etcd,
}

/// Snapshot that is ready to be sent.
pub struct OpenedSnapshot<'a> {
    /// Format of the bytes.
    pub form: SnapshotForm,
    /// Data for the snapshot in the message; empty for none.
    pub data: Bytes,
    /// Bytes of the snapshot.
    pub pieces: Pieces<'a>,
}

/// Bytes of a snapshot as consecutive pieces; the source chooses their size (tens of KiB work well).
pub type Pieces<'a> = Box<dyn Iterator<Item = io::Result<Bytes>> + Send + 'a>;

/// Source of a snapshot's bytes.
pub trait SnapshotSource: Send {
    /// Opens the snapshot for a receiver. `receiver` is the body of its answer to `GET /mainstay/snapshot`,
    /// or `None` if it answered 404, as a member that runs etcd does. Called on a separate thread and may
    /// block.
    ///
    /// # Errors
    ///
    /// Returns an error if the snapshot cannot be opened. Nothing is sent then, and the snapshot counts as
    /// not delivered.
    fn open(&mut self, receiver: Option<Bytes>) -> Result<OpenedSnapshot<'_>, BoxError>;
}
