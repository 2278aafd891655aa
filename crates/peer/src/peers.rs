use std::future::Future;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use api::raftpb::Message;
use bytes::Bytes;
use tokio::sync::{Semaphore, oneshot};

use crate::error::RequestError;
use crate::handler::{Handler, SnapshotSource};
use crate::hub::Hub;
use crate::inbox::{Command, Inbox};
use crate::options::{Log, Options, REQUESTS_MAX};
use crate::snapshot_sender::SnapshotSender;

/// The recipient of a request outside of raft.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A member, at whichever of its URLs answers.
    Member(u64),
    /// The server at this URL, such as `http://10.0.0.1:2380`.
    Url(String),
}

/// The other members, and the thread that talks to them.
///
/// Dropping it stops it. Nothing of it blocks but [`Peers::stop`] and the drop.
pub struct Peers {
    inbox: Arc<Inbox>,
    requests: Arc<Semaphore>,
    snapshots: SnapshotSender,
    thread: Option<JoinHandle<()>>,
}

impl Peers {
    /// Starts serving and waits for [`Peers::set_members`].
    ///
    /// # Errors
    ///
    /// When the thread cannot be started, a listener cannot be set up, or a header value of the options (versions,
    /// peer URLs) is none.
    pub fn start(options: Options, handler: Arc<dyn Handler>, log: Log) -> io::Result<Peers> {
        let inbox = Arc::new(Inbox::new());
        let snapshots = SnapshotSender::new(Arc::clone(&inbox), Arc::clone(&handler), Arc::clone(&log));
        let thread = Hub::start(options, handler, log, Arc::clone(&inbox))?;
        let requests = Arc::new(Semaphore::new(REQUESTS_MAX));
        Ok(Peers { inbox, requests, snapshots, thread: Some(thread) })
    }

    /// Sends messages to the peers they name, those of one kind in order. Never blocks: at most 4096 messages or 64 MiB
    /// of MsgApp wait for one peer, and 4096 or 16 MiB of all others; the rest is dropped and [`Handler::unreachable`]
    /// reports it. Messages to ids that are neither members nor known senders are dropped. A MsgSnap goes through
    /// [`Peers::send_snapshot`]; here it is reported as not delivered.
    pub fn send(&self, messages: Vec<Message>) {
        self.inbox.send(messages);
    }

    /// The other members (never this one) with their peer URLs from now on. Connections of those that stay are
    /// kept; a changed URL counts from the next dial on. A URL that cannot be used is logged and left out.
    pub fn set_members(&self, members: Vec<(u64, Vec<String>)>) {
        self.inbox.set_members(members);
    }

    /// Looks again at who is at the other end of each TLS connection, after files were reloaded: those that would not be
    /// let in now are closed.
    pub fn tls_reloaded(&self) {
        self.inbox.push(Command::TlsReloaded);
    }

    /// Sends a snapshot: `message` (a MsgSnap with metadata, `to` and `from`), and what the source gives for this
    /// receiver. [`Handler::snapshot_sent`] tells the outcome; a failure is also reported as unreachable. At most
    /// 16 at once, and one per peer: more are refused at once.
    pub fn send_snapshot(&self, message: Message, source: Box<dyn SnapshotSource>) {
        self.snapshots.send(message, source);
    }

    /// Returns the time since when a peer has been heard of without a break: a stream from or to it is up, or its
    /// pipeline takes messages. `None` while it is not.
    pub fn active_since(&self, id: u64) -> Option<Instant> {
        self.inbox.account(id)?.active_since()
    }

    /// Returns the major and minor number of the release that a peer told last, in the headers of its requests and streams;
    /// `None` if it has told none.
    pub fn release(&self, id: u64) -> Option<(u32, u32)> {
        self.inbox.account(id)?.release()
    }

    /// Sends a request outside of raft to a member or URL; `request`'s URI is a path and query. Any status is an
    /// answer. Works on any executor; at most 1024 at once, bodies of answers up to 16 MiB.
    ///
    /// # Errors
    ///
    /// When there is no answer in time, or a member or URL cannot be used.
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
    pub fn figures(&self) -> crate::Figures {
        self.inbox.figures()
    }

    /// Closes all connections and ends the thread. Threads of snapshots end as they notice.
    pub fn stop(self) {
        drop(self);
    }

    /// Stops as [`Peers::stop`] does, for one of several owners: nothing is sent or received any more. Does not wait.
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
            // A thread that panicked was reported where it did.
            let _ = thread.join();
        }
    }
}
