use std::future::Future;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use api::raftpb::Message;
use bytes::Bytes;
use tokio::sync::{Semaphore, oneshot};

use crate::error::RequestError;
use crate::figures::Figures;
use crate::handler::{Handler, SnapshotSource};
use crate::inbox::{Command, Inbox};
use crate::options::{Log, Options, REQUESTS_MAX};
use crate::peer_thread;
use crate::snapshot_sender::SnapshotSender;
use crate::target::Target;

/// Handle for the communication with the other members, which runs on a separate thread (the peer thread).
///
/// Dropping the handle stops the thread and waits for its end. Apart from that, no method blocks except
/// [`Peers::stop`].
pub struct Peers {
    inbox: Arc<Inbox>,
    requests: Arc<Semaphore>,
    snapshots: SnapshotSender,
    thread: Option<JoinHandle<()>>,
}

impl Peers {
    /// Starts serving. Other members are contacted after [`Peers::set_members`].
    ///
    /// # Errors
    ///
    /// Returns an error if the thread or its runtime cannot be started, if a listener cannot be set up, or if
    /// a version or a peer URL in the options is not valid.
    pub fn start(options: Options, handler: Arc<dyn Handler>, log: Log) -> io::Result<Peers> {
        let inbox = Arc::new(Inbox::new());
        let snapshots = SnapshotSender::new(Arc::clone(&inbox), Arc::clone(&handler), Arc::clone(&log));
        let thread = peer_thread::start(options, handler, log, Arc::clone(&inbox))?;
        let requests = Arc::new(Semaphore::new(REQUESTS_MAX));
        Ok(Peers { inbox, requests, snapshots, thread: Some(thread) })
    }

    /// Sends each message to the peer in its `to` field. While one stream stays up, MsgApp messages stay in
    /// order, and so do all other messages. Never blocks: at most 4096 messages or 64 MiB of MsgApp are
    /// queued for one peer, and 4096 messages or 16 MiB of all others; further messages are dropped, and
    /// [`Handler::unreachable`] reports the loss. Messages to ids that are neither members nor known senders
    /// are dropped. A MsgSnap must be sent with [`Peers::send_snapshot`]; a MsgSnap in `messages` is reported
    /// as not delivered.
    pub fn send(&self, messages: Vec<Message>) {
        self.inbox.send(messages);
    }

    /// Sets the other members (without this one) and their peer URLs. Connections to members that are already
    /// known are kept, and their new URLs are used from the next dial on. A URL that cannot be used is logged
    /// and ignored.
    pub fn set_members(&self, members: Vec<(u64, Vec<String>)>) {
        self.inbox.set_members(members);
    }

    /// Forgets the counters of nodes that are no longer set with [`Peers::set_members`]. For nodes that may be
    /// many in the course of time, such as observers.
    pub fn forget(&self, ids: &[u64]) {
        ids.iter().for_each(|id| self.inbox.forget_remote(*id));
    }

    /// Checks the certificates of all open TLS connections again, and closes the connections that are no
    /// longer trusted. To be called after TLS files were reloaded.
    pub fn tls_reloaded(&self) {
        self.inbox.push(Command::TlsReloaded);
    }

    /// Sends a snapshot: `message` (a MsgSnap with metadata, `to` and `from`), followed by the data that
    /// `source` provides for this receiver. [`Handler::snapshot_sent`] reports the outcome. At most 16
    /// snapshots are sent concurrently, and at most one to each peer; a further snapshot fails immediately.
    /// If a snapshot fails later, [`Handler::unreachable`] is called, too.
    pub fn send_snapshot(&self, message: Message, source: Box<dyn SnapshotSource>) {
        self.snapshots.send(message, source);
    }

    /// Returns the time since which a peer has been active without interruption; `None` while it is inactive.
    /// A peer is active while a stream from it or to it is up, or while it accepts messages of the pipeline.
    pub fn active_since(&self, id: u64) -> Option<Instant> {
        self.inbox.account(id)?.active_since()
    }

    /// Returns the major and minor version number that a peer last announced in the headers of its requests
    /// and answers; `None` if it has announced none.
    pub fn release(&self, id: u64) -> Option<(u32, u32)> {
        self.inbox.account(id)?.release()
    }

    /// Returns true if the last request or answer of a peer said that it knows witnesses. Members that run etcd, and
    /// older versions of Mainstay, do not say so.
    pub fn knows_witnesses(&self, id: u64) -> bool {
        self.inbox.account(id).is_some_and(|account| account.knows_witnesses())
    }

    /// Returns the zone that a peer last announced in the headers of its requests and answers; empty if it has
    /// announced none.
    pub fn zone(&self, id: u64) -> Arc<str> {
        self.inbox.account(id).map_or_else(|| "".into(), |account| account.zone())
    }

    /// Sends an HTTP request to a member or to a URL, for purposes other than raft messages. The URI of
    /// `request` is a path and query. Returns the answer, with any HTTP status. The future works on any
    /// executor.
    ///
    /// # Errors
    ///
    /// Returns an error if 1024 requests are already in flight; if the member, the URL or the request cannot
    /// be used; if the connection fails; if no complete answer arrives in time; if the body of the answer is
    /// longer than 16 MiB; or if this member is stopping.
    pub fn request(
        &self,
        target: Target,
        request: http::Request<Bytes>,
        timeout: Duration,
    ) -> impl Future<Output = Result<http::Response<Bytes>, RequestError>> + Send + use<> {
        let (answer, answered) = oneshot::channel();
        let refused = match Arc::clone(&self.requests).try_acquire_owned() {
            Ok(permit) => {
                let permit = Some(permit);
                self.inbox.push(Command::Request { target, request, timeout, answer, permit });
                None
            }
            Err(_) => Some(RequestError::TooMany),
        };
        async move {
            if let Some(refused) = refused {
                return Err(refused);
            }
            answered.await.unwrap_or(Err(RequestError::Stopping))
        }
    }

    /// Returns the counters since the start.
    pub fn figures(&self) -> Figures {
        self.inbox.figures()
    }

    /// Closes all connections and waits for the end of the peer thread. Threads of snapshots may end later.
    pub fn stop(self) {
        drop(self);
    }

    /// Stops sending and receiving messages, like [`Peers::stop`], but does not consume the handle and does
    /// not wait for the thread. For callers that share the handle with others.
    pub fn close(&self) {
        self.inbox.stop();
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.inbox.stop();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            // The result is ignored: if the thread panicked, the panic hook has already reported that.
            let _ = thread.join();
        }
    }
}
