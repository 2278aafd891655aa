//! Keeps the state of one other member on the peer thread: [`Peer`] contains the queues of messages to that
//! member, which of its streams are up, the state of its pipeline, and whether the member is active. A
//! [`Peer`] opens no connection and starts no task. The hub starts the tasks of `stream_reader` and
//! `pipeline`, which open connections; `stream_writer` writes the streams that this member has accepted.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use api::raftpb::Message;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::account::{Account, is_app};
use crate::endpoint::{Endpoint, Endpoints};
use crate::error::NoUrl;
use crate::local_member::LocalMember;
use crate::options::{Level, PIPELINE_CONNECTIONS, PIPELINED_MAX};

/// Kind of a stream. Each pair of members has one stream of each kind per direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Stream `msgappv2`, for MsgApp only.
    App,
    /// Stream for all other messages, and for MsgApp while no stream for MsgApp is up.
    Message,
}

impl Kind {
    /// Returns the name of the stream in its path.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::App => "msgapp",
            Kind::Message => "message",
        }
    }
}

/// State of a stream that the peer dialed, and on which this member writes.
#[derive(Debug, Default)]
struct Slot {
    /// Incremented with every new stream, so that the writer of an older stream notices that its stream was
    /// replaced.
    generation: u64,
    attached: bool,
    waker: Option<Waker>,
}

/// Queues of messages to send.
#[derive(Debug, Default)]
struct Queues {
    apps: VecDeque<Message>,
    others: VecDeque<Message>,
    /// Messages for the pipeline: no stream for their kind was up when they were queued.
    piped: VecDeque<Message>,
}

/// Result of [`Peer::enqueue`].
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueOutcome {
    /// The message is queued for a stream, or for the pipeline, of which enough tasks run already.
    Queued,
    /// The message is queued for the pipeline, which needs one more task; the caller starts that task.
    PipelineNeeded,
    /// The message is dropped, because the queue of the pipeline is full.
    Dropped,
}

/// Another member, or a *remote*: a sender that is not known as a member. Messages to a remote are sent over
/// the pipeline only.
pub(crate) struct Peer {
    pub(crate) id: u64,
    pub(crate) account: Arc<Account>,
    pub(crate) is_remote: bool,
    endpoints: RefCell<Endpoints>,
    queues: RefCell<Queues>,
    app: RefCell<Slot>,
    message: RefCell<Slot>,
    /// Number of streams that are up, in both directions.
    links: Cell<u32>,
    /// Number of tasks of the pipeline that run now. Each posts messages from the pipeline's queue.
    pipelines: Cell<usize>,
    /// True after a failure of the pipeline was reported, until the pipeline works again or is idle. Further
    /// failures are not reported meanwhile.
    pipeline_failed: Cell<bool>,
    /// Time at which the peer last accepted a message from the pipeline; `None` if the pipeline has failed
    /// since.
    pipeline_worked: Cell<Option<Instant>>,
    /// Notified when a dial to the peer is likely to succeed. A task that waits before its next dial then
    /// waits no longer than the minimum interval between two dials.
    pub(crate) presence: Notify,
    /// Addresses at which the peer accepted the streams that this member dialed, one per stream kind; `None`
    /// for a stream that is not up.
    reached_at: [Cell<Option<IpAddr>>; 2],
    tasks: RefCell<Vec<AbortHandle>>,
    closed: Cell<bool>,
}

impl Peer {
    pub(crate) fn member(local: &LocalMember, account: Arc<Account>, urls: &[String]) -> Peer {
        Peer::new(local, account, urls, false)
    }

    pub(crate) fn remote(local: &LocalMember, account: Arc<Account>, urls: &[String]) -> Peer {
        Peer::new(local, account, urls, true)
    }

    fn new(local: &LocalMember, account: Arc<Account>, urls: &[String], is_remote: bool) -> Peer {
        let peer = Peer {
            id: account.id,
            account,
            is_remote,
            endpoints: RefCell::default(),
            queues: RefCell::default(),
            app: RefCell::default(),
            message: RefCell::default(),
            links: Cell::new(0),
            pipelines: Cell::new(0),
            pipeline_failed: Cell::new(false),
            pipeline_worked: Cell::new(None),
            presence: Notify::new(),
            reached_at: Default::default(),
            tasks: RefCell::default(),
            closed: Cell::new(false),
        };
        peer.set_urls(local, urls);
        peer
    }

    /// Registers a task of the peer, which is aborted when the peer is closed.
    pub(crate) fn own_task(&self, task: AbortHandle) {
        self.tasks.borrow_mut().push(task);
    }

    /// Sets the peer's URLs, which are used from the next dial on.
    pub(crate) fn set_urls(&self, local: &LocalMember, urls: &[String]) {
        let (endpoints, complaints) = Endpoints::parse(urls, local.client.dialer.has_tls());
        for complaint in complaints {
            local.log_peer(Level::Error, "cannot use a peer URL", self.id, &complaint.to_string());
        }
        *self.endpoints.borrow_mut() = endpoints;
        self.presence.notify_waiters();
    }

    /// Returns true if a stream is up that this member dialed to the peer at this IP address. If the peer's
    /// URL contains a host name, the address that was resolved counts.
    pub(crate) fn is_reached_at(&self, address: IpAddr) -> bool {
        self.reached_at.iter().any(|reached| reached.get() == Some(address))
    }

    /// Records the address at which the peer accepted the stream of this kind; `None` when the stream is
    /// lost.
    pub(crate) fn set_reached_at(&self, kind: Kind, address: Option<IpAddr>) {
        let [app, message] = &self.reached_at;
        match kind {
            Kind::App => app.set(address),
            Kind::Message => message.set(address),
        }
    }

    pub(crate) fn endpoint(&self) -> Result<Endpoint, NoUrl> {
        self.endpoints.borrow().pick().ok_or(NoUrl { member_id: self.id })
    }

    /// Records that the endpoint failed. The next dial or request uses the peer's next URL.
    pub(crate) fn endpoint_failed(&self, endpoint: &Endpoint) {
        self.endpoints.borrow_mut().unreachable(endpoint);
    }

    /// Ends all streams and tasks of a member that was removed from the cluster, or of a remote that is
    /// replaced.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        for task in self.tasks.borrow_mut().drain(..) {
            task.abort();
        }
        for slot in [&self.app, &self.message] {
            let mut slot = slot.borrow_mut();
            slot.generation += 1;
            slot.attached = false;
            if let Some(waker) = slot.waker.take() {
                waker.wake();
            }
        }
        self.drop_queued(true, true);
        self.drop_piped();
        self.account.deactivate();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Queues a message for a stream that is up or, if no stream for this kind of message is up, for the
    /// pipeline.
    pub(crate) fn enqueue(&self, message: Message) -> QueueOutcome {
        let app_up = self.app.borrow().attached;
        let message_up = self.message.borrow().attached;
        let mut queues = self.queues.borrow_mut();
        let (queue, stream) = match is_app(&message) {
            true if app_up => (&mut queues.apps, &self.app),
            true if message_up => (&mut queues.apps, &self.message),
            false if message_up => (&mut queues.others, &self.message),
            _ if queues.piped.len() < PIPELINED_MAX => {
                queues.piped.push_back(message);
                if self.pipelines.get() >= PIPELINE_CONNECTIONS {
                    return QueueOutcome::Queued;
                }
                self.pipelines.set(self.pipelines.get() + 1);
                return QueueOutcome::PipelineNeeded;
            }
            _ => {
                self.account.give_back(&message);
                self.account.counters.send_failures.add(1);
                return QueueOutcome::Dropped;
            }
        };
        // Wake the writer of the stream only for the first message. If the queue was not empty, the writer
        // was already woken, or it waits until its connection accepts bytes.
        let wakes = queue.is_empty();
        queue.push_back(message);
        if wakes && let Some(waker) = stream.borrow_mut().waker.take() {
            waker.wake();
        }
        QueueOutcome::Queued
    }

    fn slot(&self, kind: Kind) -> &RefCell<Slot> {
        match kind {
            Kind::App => &self.app,
            Kind::Message => &self.message,
        }
    }

    /// Registers a stream that the peer dialed. It replaces the previous stream of this kind. Returns the
    /// generation of the new stream.
    pub(crate) fn attach(&self, local: &LocalMember, kind: Kind) -> u64 {
        let (generation, replaced) = {
            let mut slot = self.slot(kind).borrow_mut();
            slot.generation += 1;
            let replaced = std::mem::replace(&mut slot.attached, true);
            if let Some(waker) = slot.waker.take() {
                waker.wake();
            }
            (slot.generation, replaced)
        };
        if replaced {
            local.log_peer(
                Level::Warn,
                "closed a stream because its reader dialed again",
                self.id,
                kind.name(),
            );
            self.writer_lost(local, kind);
        } else {
            self.link_up(local);
        }
        local.log_peer(Level::Info, "a remote peer connected to a stream", self.id, kind.name());
        self.presence.notify_waiters();
        generation
    }

    /// Records that a stream that the peer dialed has ended, unless a newer stream has replaced it.
    pub(crate) fn detach(&self, local: &LocalMember, kind: Kind, generation: u64) {
        {
            let mut slot = self.slot(kind).borrow_mut();
            if slot.generation != generation {
                return;
            }
            slot.attached = false;
            slot.waker = None;
        }
        local.log_peer(Level::Warn, "lost a remote peer's connection to a stream", self.id, kind.name());
        self.writer_lost(local, kind);
        self.link_down(local, "the stream to the peer ended");
    }

    /// Handles the loss of a stream. The messages queued for it are dropped, and messages that were already
    /// handed to its connection may be lost. So the peer is reported as unreachable.
    fn writer_lost(&self, local: &LocalMember, kind: Kind) {
        let app_up = self.app.borrow().attached;
        self.drop_queued(kind == Kind::App || !app_up, kind == Kind::Message);
        local.report_unreachable(self.id);
    }

    fn drop_queued(&self, apps: bool, others: bool) {
        let mut queues = self.queues.borrow_mut();
        let Queues { apps: queued_apps, others: queued_others, .. } = &mut *queues;
        for queue in [(queued_apps, apps), (queued_others, others)].into_iter().filter(|q| q.1).map(|q| q.0) {
            self.account.counters.send_failures.add(queue.len() as u64);
            for message in queue.drain(..) {
                self.account.give_back(&message);
            }
        }
    }

    /// Registers the waker of the stream's writer, which is woken when a message is queued. Returns false if
    /// the stream has ended or another one has replaced it.
    pub(crate) fn watch(&self, kind: Kind, generation: u64, waker: &Waker) -> bool {
        let mut slot = self.slot(kind).borrow_mut();
        let is_current = slot.generation == generation && slot.attached;
        if is_current && !slot.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            slot.waker = Some(waker.clone());
        }
        is_current
    }

    /// Removes the next message for a stream from its queue and returns it.
    pub(crate) fn next(&self, kind: Kind) -> Option<Message> {
        let mut queues = self.queues.borrow_mut();
        let message = match kind {
            Kind::App => queues.apps.pop_front(),
            Kind::Message => match queues.others.pop_front() {
                None if !self.app.borrow().attached => queues.apps.pop_front(),
                other => other,
            },
        }?;
        self.account.give_back(&message);
        Some(message)
    }

    /// Removes the next message for the pipeline from its queue and returns it.
    pub(crate) fn next_piped(&self) -> Option<Message> {
        let message = self.queues.borrow_mut().piped.pop_front()?;
        self.account.give_back(&message);
        Some(message)
    }

    /// Records that the peer accepted a message from the pipeline.
    pub(crate) fn pipeline_worked(&self, local: &LocalMember) {
        self.pipeline_failed.set(false);
        self.pipeline_worked.set(Some(Instant::now()));
        if !self.is_closed() {
            self.activate(local);
        }
    }

    /// Records that posting a message failed. The other messages for the pipeline are dropped, because they
    /// would probably fail as well.
    pub(crate) fn pipeline_broke(&self, local: &LocalMember, error: &str) {
        self.account.counters.send_failures.add(1);
        self.drop_piped();
        self.pipeline_worked.set(None);
        self.failed(local, error);
        if !self.pipeline_failed.replace(true) {
            local.report_unreachable(self.id);
        }
    }

    /// Records that one of the pipeline's tasks ends because the queue is empty.
    pub(crate) fn pipeline_rests(&self) {
        self.pipelines.set(self.pipelines.get() - 1);
        if self.pipelines.get() == 0 {
            self.pipeline_failed.set(false);
        }
    }

    fn drop_piped(&self) {
        let piped = std::mem::take(&mut self.queues.borrow_mut().piped);
        self.account.counters.send_failures.add(piped.len() as u64);
        for message in piped {
            self.account.give_back(&message);
        }
    }

    /// Records that a stream, in either direction, is up.
    pub(crate) fn link_up(&self, local: &LocalMember) {
        self.links.set(self.links.get() + 1);
        self.activate(local);
    }

    /// Records that a stream, in either direction, has ended.
    pub(crate) fn link_down(&self, local: &LocalMember, error: &str) {
        self.links.set(self.links.get() - 1);
        self.failed(local, error);
    }

    fn activate(&self, local: &LocalMember) {
        if self.account.activate() {
            local.log_peer(Level::Info, "peer became active", self.id, "");
        }
    }

    /// Records that a stream or a message failed. The peer becomes inactive, unless another stream is up or
    /// the pipeline works.
    pub(crate) fn failed(&self, local: &LocalMember, error: &str) {
        let is_piped = self.pipeline_worked.get().is_some_and(|at| at.elapsed() < local.read_timeout);
        if self.links.get() == 0 && !is_piped && self.account.deactivate() {
            local.log_peer(Level::Warn, "peer became inactive (message send to peer failed)", self.id, error);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::io;
    use std::pin::Pin;
    use std::time::Duration;

    use bytes::Bytes;

    use super::*;
    use crate::client::Client;
    use crate::dialer::Dialer;
    use crate::handler::{Handler, SnapshotForm, SnapshotOutcome};
    use crate::identity::Identity;
    use crate::options::Options;
    use crate::{BoxError, Log};

    /// Handler of a member that receives nothing.
    struct NoHandler;

    impl Handler for NoHandler {
        fn received(&self, _: &mut Vec<Message>) {}

        fn is_removed(&self, _: u64) -> bool {
            false
        }

        fn unreachable(&self, _: u64) {}

        fn snapshot_sent(&self, _: u64, _: SnapshotOutcome) {}

        fn removed(&self, _: u64) {}

        fn receive_snapshot(
            &self,
            _: Message,
            _: SnapshotForm,
            _: &mut dyn Iterator<Item = io::Result<Bytes>>,
        ) -> Result<(), BoxError> {
            Ok(())
        }

        fn http(
            &self,
            _: http::Request<Bytes>,
        ) -> Pin<Box<dyn Future<Output = http::Response<Bytes>> + Send>> {
            Box::pin(async { http::Response::new(Bytes::new()) })
        }
    }

    fn local_member() -> LocalMember {
        let options = Options {
            local_id: 1,
            cluster_id: 7,
            peer_urls: Vec::new(),
            server_version: "3.7.0",
            min_cluster_version: "3.0.0",
            read_timeout: Duration::from_secs(5),
            write_timeout: Duration::from_secs(5),
            listeners: Vec::new(),
            tls: None,
            local_address: None,
            zone: String::new(),
        };
        let identity = Identity::new(&options).expect("the versions are header values");
        let (log, times): (Log, _) = (Arc::new(|_, _, _| {}), (options.read_timeout, options.write_timeout));
        LocalMember::new(identity, Arc::new(NoHandler), log, times, Client::new(Dialer::new(None, None)))
    }

    #[test]
    fn a_message_waits_for_a_stream_or_else_for_the_pipeline() {
        let (local, account) = (local_member(), Arc::new(Account::new(2)));
        let peer = Peer::member(&local, Arc::clone(&account), &[]);
        let enqueue = || {
            let message = Message { to: Some(2), ..Message::default() };
            assert!(account.take(&message));
            peer.enqueue(message)
        };
        let outcomes: Vec<QueueOutcome> = (0..=PIPELINED_MAX).map(|_| enqueue()).collect();
        let (first, rest) = outcomes.split_at(PIPELINE_CONNECTIONS);
        assert!(first.iter().all(|outcome| *outcome == QueueOutcome::PipelineNeeded), "{first:?}");
        let (last, between) = rest.split_last().expect("the queue is longer");
        assert!(between.iter().all(|outcome| *outcome == QueueOutcome::Queued), "{between:?}");
        assert_eq!(*last, QueueOutcome::Dropped);
        // A stream takes messages although the queue of the pipeline is full.
        let generation = peer.attach(&local, Kind::Message);
        assert_eq!(enqueue(), QueueOutcome::Queued);
        assert!(peer.next(Kind::Message).is_some() && peer.next(Kind::Message).is_none());
        peer.detach(&local, Kind::Message, generation);
        assert_eq!(enqueue(), QueueOutcome::Dropped);
        peer.close();
        assert_eq!(account.figures().queued_messages, 0);
    }
}
