use std::future::Future;
use std::io;
use std::pin::Pin;

use api::raftpb::Message;
use bytes::Bytes;
use http::Response;

use crate::error::BoxError;

/// Marks a request ([`Handler::http`]) on a connection over which the client has presented a certificate that
/// was verified. It is one of the extensions of the request.
#[derive(Clone, Copy, Debug)]
pub struct VerifiedPeer;

/// Receives messages and events; implemented by the caller of [`crate::Peers::start`]. The methods are called
/// on the peer thread and must not block it, unless stated otherwise.
pub trait Handler: Send + Sync + 'static {
    /// Takes messages of one peer, in the order in which they arrived. The method removes from `messages`
    /// those that it accepts; the rest is dropped and counted as failures. All messages are addressed to this
    /// member, and none is a link heartbeat or a MsgSnap. Nothing else was validated: the method must check
    /// the rest. Unlike the other methods, this one may do the work that the messages bring, as long as that
    /// is short: what it sends leaves after it has returned.
    fn received(&self, messages: &mut Vec<Message>);

    /// Returns true if this is the id of a member that was removed from the cluster. Its messages are
    /// refused.
    fn is_removed(&self, id: u64) -> bool;

    /// Returns true if the cluster has a witness. Peers that do not know witnesses are then refused.
    fn has_witness(&self) -> bool {
        false
    }

    /// Called when messages to a member were lost or may be lost. One call may stand for several messages.
    fn unreachable(&self, id: u64);

    /// Called when the operating system of a member's host refuses a connection. That means that the host is
    /// up, but the member's process is not.
    fn refused(&self, _id: u64) {}

    /// Called for every accepted connection whose TLS handshake failed or whose client was not admitted.
    fn rejected(&self) {}

    /// Called when sending a snapshot has ended, on the snapshot's own thread or on the peer thread.
    fn snapshot_sent(&self, to: u64, outcome: SnapshotOutcome);

    /// Called when the peer `by` reports that this member was removed from the cluster, which it may do again and
    /// again. The caller decides whether it believes that peer, which may be an observer.
    fn removed(&self, by: u64);

    /// Receives a snapshot: the MsgSnap, and in `body` the bytes of the snapshot, whose format is `form`.
    /// Called on a separate thread and may block. If the connection breaks, the last item of `body` is an
    /// error.
    ///
    /// # Errors
    ///
    /// Returns an error if the snapshot is refused. The message of the error is sent to the sender.
    fn receive_snapshot(
        &self,
        message: Message,
        form: SnapshotForm,
        body: &mut dyn Iterator<Item = io::Result<Bytes>>,
    ) -> Result<(), BoxError>;

    /// Returns the size limit in bytes for the body of a request to [`Handler::http`], at most 1 MiB. If it
    /// is 0, the body is not read.
    fn body_bytes_max(&self, _head: &http::request::Parts) -> usize {
        1 << 20
    }

    /// Answers a request to a path that this crate does not serve itself, such as `/members` or `/version`.
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
    /// An etcd database file. In this case the MsgSnap also contains data: an image of etcd's v2 store.
    Etcd,
}

/// Snapshot that is ready to be sent.
pub struct OpenedSnapshot<'a> {
    /// Format of the bytes.
    pub form: SnapshotForm,
    /// Data for the snapshot field of the MsgSnap; empty if the format needs none.
    pub data: Bytes,
    /// Bytes of the snapshot.
    pub pieces: Pieces<'a>,
}

/// Bytes of a snapshot as consecutive chunks. The source chooses their size; tens of KiB are recommended.
pub type Pieces<'a> = Box<dyn Iterator<Item = io::Result<Bytes>> + Send + 'a>;

/// Source of a snapshot's bytes.
pub trait SnapshotSource: Send {
    /// Opens the snapshot for a receiver. `receiver` is the receiver's answer to `GET /mainstay/snapshot`. It is `None` if the receiver has answered 404, as a member that runs etcd does.
    /// Called on a separate thread and may block.
    ///
    /// # Errors
    ///
    /// Returns an error if the snapshot cannot be opened. Nothing is sent then, and the snapshot counts as
    /// not delivered.
    fn open(&mut self, receiver: Option<Response<Bytes>>) -> Result<OpenedSnapshot<'_>, BoxError>;
}
