//! The queues between the core and the other threads, and the limits for the requests and messages in them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use api::{Status, error};
use log::LogEvent;
use storage::opening::LogEvents;
use tokio::sync::oneshot;

use crate::arrivals::Arrivals;
use crate::attendance::Attendance;
use crate::core::Core;
use crate::inbox::{Inbox, Outbox};
use crate::requests::{CoreRequest, Reply, RequestId, StorageRequest};
use crate::seat::{Borrower, Seat};

/// Maximum total size in bytes of the commands that shards have sent and that the core has not proposed yet.
/// Further commands are refused with `too many requests`.
const PROPOSAL_BYTES_MAX: usize = 512 << 20;

/// Maximum number of requests in a turn that the thread of the other members, of the log, or a shard runs.
/// More of them come from clients, whose requests wait for the tick or for a round: the network should not
/// have to wait for those.
const BORROWED_MAX: usize = 32;

/// Maximum number of entries in a batch after whose sync the log's thread runs a turn of the core. With more,
/// the next batch waits already, or would be smaller because it is proposed earlier.
const BORROWED_ENTRIES_MAX: usize = 1;

/// Passes the log's events to the core, whose inbox it holds. It is made before the core and its other
/// queues.
#[derive(Default)]
pub struct LogEventQueue {
    /// Queue of requests to the core.
    pub inbox: Arc<Inbox<CoreRequest>>,
    seat: Arc<Seat<Core>>,
    /// Number of syncs after which a turn of the core ran on the log's thread, and the core's own thread
    /// stayed asleep.
    lent: Arc<AtomicU64>,
}

impl LogEvents for LogEventQueue {
    /// Sends the event to the core. If the core of a cluster's member lends its work, and the event is the
    /// sync of a single entry and no other batch waits, a turn of the core runs within this call (`seat.rs`).
    fn tell(&self, event: LogEvent) {
        let is_small = matches!(
            &event,
            LogEvent::Synced(synced)
                if synced.is_last && synced.locations.len() <= BORROWED_ENTRIES_MAX && synced.values.is_empty()
        );
        if !self.inbox.put(StorageRequest::Log(event)) {
            return;
        }
        if !is_small {
            self.inbox.wake_receiver();
        } else if work_or_wake(&self.seat, &self.inbox) {
            self.lent.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn receive_here(&self) {
        self.inbox.receive_here();
    }

    fn receive(&self, into: &mut Vec<LogEvent>, patience: Duration) {
        let mut asked = Vec::new();
        self.inbox.drain(&mut asked, patience, 1);
        into.extend(asked.into_iter().filter_map(|request| match request {
            CoreRequest::Storage(StorageRequest::Log(event)) => Some(event),
            _ => None,
        }));
    }
}

/// Does what [`CoreQueues::work_or_wake`] says.
fn work_or_wake(seat: &Seat<Core>, inbox: &Inbox<CoreRequest>) -> bool {
    if seat.is_lent_to(Borrower::ClusterThreads) && !inbox.has_more_than(BORROWED_MAX) {
        // A second turn is the owner's, so that what the first one sends leaves at once.
        return seat.work_here(inbox, || true);
    }
    inbox.wake_receiver();
    false
}

/// Queues to and from the core, and the conditions under which an arriving request wakes the core.
pub struct CoreQueues {
    /// Queue of requests to the core.
    pub inbox: Arc<Inbox<CoreRequest>>,
    /// Lends the core's turns to other threads. Used only if the core runs on its own thread.
    pub seat: Arc<Seat<Core>>,
    /// Number of syncs after which the log's thread ran a turn of the core, whose own thread stayed asleep.
    pub lent_to_log: Arc<AtomicU64>,
    /// Queues of replies from the core, one for each shard.
    pub outboxes: Vec<Outbox<Reply>>,
    /// Limits the memory of messages from other members that wait for the core.
    pub arrivals: Arrivals,
    /// Records which shards serve watches, so that the core wakes no other shard for a change.
    pub attendance: Attendance,
    /// Total size in bytes of the commands that shards have sent and that the core has neither proposed nor
    /// refused yet.
    proposal_bytes: AtomicUsize,
    /// True if an arriving read should wake the core.
    wakes_for_reads: AtomicBool,
    /// True if an arriving write should wake the core.
    wakes_for_writes: AtomicBool,
}

impl CoreQueues {
    /// Returns the queues for a core that receives its requests from the queue of the log's events, with a
    /// queue of replies for each of `shards` shards.
    pub fn new(log_events: &LogEventQueue, shards: usize) -> CoreQueues {
        CoreQueues {
            inbox: Arc::clone(&log_events.inbox),
            seat: Arc::clone(&log_events.seat),
            lent_to_log: Arc::clone(&log_events.lent),
            outboxes: (0..shards).map(|_| Outbox::default()).collect(),
            arrivals: Arrivals::default(),
            attendance: Attendance::new(shards),
            proposal_bytes: AtomicUsize::new(0),
            wakes_for_reads: AtomicBool::new(true),
            wakes_for_writes: AtomicBool::new(false),
        }
    }

    /// Returns true if an arriving read should wake the core. The result is false if other reads already wait
    /// for the next ReadIndex round, or if a round is in flight. The read then shares a round with the other
    /// reads, and the end of the round in flight wakes the core anyway.
    pub fn wakes_for_reads(&self) -> bool {
        self.wakes_for_reads.load(Ordering::SeqCst)
    }

    /// Sets the result of [`CoreQueues::wakes_for_reads`]. The core calls it before it sleeps.
    pub fn set_wakes_for_reads(&self, wakes: bool) {
        self.wakes_for_reads.store(wakes, Ordering::SeqCst);
    }

    /// Returns true if an arriving write should wake the core immediately. This is so if the core sleeps only
    /// because it gathers logins into a batch, for which a write must not wait.
    pub fn wakes_for_writes(&self) -> bool {
        self.wakes_for_writes.load(Ordering::SeqCst)
    }

    /// Sets the result of [`CoreQueues::wakes_for_writes`]. The core calls it before it sleeps.
    pub fn set_wakes_for_writes(&self, wakes: bool) {
        if self.wakes_for_writes() != wakes {
            self.wakes_for_writes.store(wakes, Ordering::SeqCst);
        }
    }

    /// Sends a request to the core from a thread that is not a shard, and returns the reply.
    ///
    /// # Errors
    ///
    /// Returns `error::STOPPED` if the core has ended.
    pub async fn ask<R: Into<CoreRequest>>(
        &self,
        ask: impl FnOnce(RequestId) -> R + Send + 'static,
    ) -> Result<Reply, Status> {
        let (sender, receiver) = oneshot::channel();
        self.inbox.send(CoreRequest::Outside(sender, Box::new(|request_id| ask(request_id).into())));
        receiver.await.map_err(|_| error::STOPPED)
    }

    /// Sends a request on the thread that receives the messages of other members. If the core lends its work
    /// to that thread, and few other requests wait, a turn of the core runs within this call (`seat.rs`).
    /// Returns true if the core's own thread was not woken.
    pub fn send_from_peer_thread(&self, request: impl Into<CoreRequest>) -> bool {
        if !self.inbox.put(request) {
            return false;
        }
        self.work_or_wake()
    }

    /// Runs a turn of the core on the calling thread, if the core of a cluster's member lends its work and few
    /// requests wait; otherwise wakes the core's thread. The caller must have put requests into the inbox, and
    /// [`Inbox::put_all`] must have returned true. Returns true if the core's thread stayed asleep.
    pub fn work_or_wake(&self) -> bool {
        work_or_wake(&self.seat, &self.inbox)
    }

    /// Wakes a shard for the state that was just published, if the shard serves watches. Other shards need no
    /// wake-up.
    pub fn wake_watches(&self, shard: usize) {
        if self.attendance.is_watched(shard) {
            self.outboxes[shard].wake();
        }
    }

    /// Counts a command that is about to be sent to the core.
    ///
    /// # Errors
    ///
    /// Returns etcd's `too many requests` if the command and the waiting commands together exceed
    /// `PROPOSAL_BYTES_MAX`. A single command is always admitted if no other command waits.
    pub fn admit_proposal(&self, bytes: usize) -> Result<(), Status> {
        let before = self.proposal_bytes.fetch_add(bytes, Ordering::Relaxed);
        if before > 0 && before + bytes > PROPOSAL_BYTES_MAX {
            self.proposal_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Err(error::TOO_MANY_REQUESTS);
        }
        Ok(())
    }

    /// Subtracts a command that the core has proposed or refused.
    pub fn proposal_taken(&self, bytes: usize) {
        self.proposal_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Adds a command again that [`CoreQueues::proposal_taken`] has subtracted: the proposal was lost, and
    /// the command waits to be proposed once more.
    pub fn proposal_again(&self, bytes: usize) {
        self.proposal_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}
