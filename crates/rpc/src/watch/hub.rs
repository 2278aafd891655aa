//! All watches of one shard: [`Hub`]. [`Hub::advance`] takes a newly published state, [`Hub::poll_work`] does what is left of
//! it in later turns. News is in `hub/synced.rs`, history in `hub/catch_up.rs`, progress and requests in the other files.

mod catch_up;
mod line;
mod progress;
mod requests;
mod review;
mod synced;

use std::cell::{Cell, RefCell};
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use accounting::Account;
use api::error;
use api::etcdserverpb::ResponseHeader;
use api::limits::GRPC_OVERHEAD_BYTES;
use numbers::Revision;

use self::line::Line;
use self::review::{Reviewed, Round};
use self::synced::UnderWay;
use super::after_others::after_others;
use super::hold::Hold;
use super::index::Index;
use super::long::Claim;
use super::permit::Permit;
use super::portion::Portion;
use super::stream::{PendingEvents, Stream, Watch};
use clock::Sleep;
use replica::shared::{Published, Shared};
use storage::values::Source;
use telemetry::callers::Caller;
use telemetry::tracing::Within;

/// The place of a stream among those that wait to tell of progress: the one that is due first is first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ProgressDue {
    /// The hub has to reach this revision before.
    revision: Revision,
    /// [`Stream::serial`].
    stream: u64,
}

/// All watches of one shard. The hub lives on that shard's thread.
///
/// The hub's revision only rises, and it rises to revisions of published views only. So the progress that watches are told
/// of, which is the hub's revision, is not ahead of the published revision. For example, with revision 9 published and
/// the hub at 7, a progress notification says 7, and the changes of 8 and 9 come after it.
pub struct Hub {
    shared: Arc<Shared>,
    shard: usize,
    values: Rc<dyn Source>,
    /// Synced watches have been given everything up to here.
    revision: Cell<Revision>,
    synced: RefCell<Index<Rc<Watch>>>,
    streams: RefCell<BTreeMap<u64, Rc<Stream>>>,
    /// Streams that wait to tell of progress, by the revision from which on they may and by their numbers.
    waiting: RefCell<BTreeMap<ProgressDue, Rc<Stream>>>,
    serial: Cell<u64>,
    /// Revisions that synced watches are being told of over several turns.
    under_way: RefCell<Option<UnderWay>>,
    /// Keeps history readable for the watches that fell behind last.
    hold: RefCell<Weak<Hold>>,
    /// The newest responses to revisions of many changes that streams are making, for others to wait for.
    claimed: RefCell<Vec<Weak<Claim>>>,
    /// Hashes watched keys.
    hasher: RandomState,
    /// Pending events in the streams.
    pending_events: Rc<PendingEvents>,
    /// Work that is done in one turn.
    portion: Cell<Portion>,
    /// Streams that have ended and whose watches are still in the index, to be taken out in slices.
    ended: RefCell<VecDeque<Rc<Stream>>>,
    /// The users and roles by which all watches are allowed.
    reviewed: Cell<Reviewed>,
    /// The round of questions for all watches that is under way.
    reviewing: RefCell<Option<Round>>,
    /// The newest state that may be handed out, while the published one may not be.
    cleared: RefCell<Option<Arc<Published>>>,
    /// Number of watches and ended streams that may still be taken out before the next turn of [`Hub::poll_work`].
    reaped_left: Cell<usize>,
    /// Streams that have history to read.
    readers: RefCell<Line>,
    /// True if some of what was published is left for later turns.
    is_told_later: Cell<bool>,
    /// Wakes the task that goes on with what was left for later turns, unless it is awake.
    worker: Cell<Option<Waker>>,
    /// The most changes that one turn walked over, and the most times that one looked at a watch.
    #[cfg(test)]
    work_max: Cell<(usize, usize)>,
    /// The same figures summed over all turns since they were last asked for.
    #[cfg(test)]
    work_done: Cell<(usize, usize)>,
}

/// Watches that are taken out of the index, or made to read history, between two looks at other calls.
const MOVED_AT_ONCE: usize = 256;
/// Responses whose memory is freed in the time in which a watch is taken out.
const QUEUED_FREED_AS_ONE: usize = 16;
/// Maximum number of watches of a stream that read history together, or get progress, before other calls run.
const TOGETHER_MAX: usize = 256;

/// Maximum work of one turn of the hub, once for synced watches and once for all that read history: some milliseconds
/// each. The shard looks at its sockets between two turns.
const PORTION: Portion = Portion { changes: 16 << 10, watches: 1024, looks: 16 << 10, bytes: 8 << 20 };

/// Responses that were sent in one turn.
#[derive(Default)]
pub(super) struct Sent {
    /// Responses without events.
    pub controls: u64,
    /// Responses with events.
    pub responses: u64,
    /// Events in these.
    pub events: u64,
}

impl Sent {
    /// Counts responses with so many events in all of them.
    pub fn add(&mut self, responses: u32, events: u32) {
        if events == 0 {
            self.controls += u64::from(responses);
        } else {
            self.responses += u64::from(responses);
            self.events += u64::from(events);
        }
    }
}

/// A stream's place in the hub; leaves it, with all its watches, when dropped.
pub(super) struct Registration {
    pub hub: Rc<Hub>,
    pub stream: Rc<Stream>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.hub.close(&self.stream);
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        // Breaks the circles of watches and streams that were not taken out yet.
        for stream in self.ended.get_mut().drain(..) {
            stream.set_long(None);
            stream.watches.take();
        }
    }
}

impl Hub {
    /// The hub of this shard, at the present state.
    pub fn new(shared: Arc<Shared>, shard: usize, values: Rc<dyn Source>) -> Rc<Hub> {
        let state = shared.state.load_full();
        let revision = state.view.snapshot().current_revision();
        Rc::new(Hub {
            reviewed: Cell::new(Reviewed::by(&state, shared.clients.credentials.withdrawals())),
            reviewing: RefCell::default(),
            cleared: RefCell::default(),
            pending_events: Rc::new(PendingEvents::new(
                shared.diagnostics.metrics.mvcc.pending_events.clone(),
            )),
            shared,
            shard,
            values,
            revision: Cell::new(revision),
            synced: RefCell::default(),
            streams: RefCell::default(),
            waiting: RefCell::default(),
            serial: Cell::new(0),
            ended: RefCell::default(),
            reaped_left: Cell::new(MOVED_AT_ONCE),
            readers: RefCell::default(),
            is_told_later: Cell::new(false),
            worker: Cell::default(),
            under_way: RefCell::default(),
            hold: RefCell::default(),
            claimed: RefCell::default(),
            hasher: RandomState::new(),
            portion: Cell::new(PORTION),
            #[cfg(test)]
            work_max: Cell::default(),
            #[cfg(test)]
            work_done: Cell::default(),
        })
    }

    /// Takes the newest state and hands out what changed since the last, or the beginning of it: [`Hub::poll_work`] does
    /// the rest. Called whenever the shard is woken; without news it costs next to nothing.
    pub fn advance(&self) {
        // Requests may come by the hundred between two turns.
        if self.is_told_later.get() {
            return;
        }
        if !self.turn() {
            self.is_told_later.set(true);
            self.go_on_later();
        }
        self.publish_pending();
    }

    fn go_on_later(&self) {
        if let Some(worker) = self.worker.take() {
            worker.wake();
        }
    }

    /// Goes on with what was left for later turns; to be polled by a task of its own.
    pub fn poll_work(&self, context: &mut Context<'_>) {
        let told_all = self.turn();
        self.is_told_later.set(!told_all);
        self.reaped_left.set(MOVED_AT_ONCE);
        let reaped_all = self.reap();
        // After the synced watches, so that those who read never hold these up by more than a portion. A stream that wants to
        // read next comes to it once the sockets were looked at.
        let none_reads = self.read_some();
        self.publish_pending();
        if told_all && reaped_all && none_reads {
            self.worker.set(Some(context.waker().clone()));
        } else {
            after_others(context);
        }
    }

    /// Ends all streams whose clients insist on a leader: there has been none for too long.
    pub fn leader_lost(&self) {
        for stream in self.streams.borrow().values().filter(|stream| stream.needs_leader) {
            stream.end(error::NO_LEADER);
        }
    }

    /// Ends all streams when this member's state is known to differ from the others'.
    pub fn end_if_quarantined(&self) {
        if self.shared.state.load().is_quarantined(self.shared.member.identity.member_id) {
            for stream in self.streams.borrow().values() {
                stream.end(error::CORRUPT);
            }
        }
    }

    /// Returns the number of watches on this shard.
    pub fn watches(&self) -> usize {
        self.shared.core.attendance.watches(self.shard)
    }

    /// The revision up to which synced watches have been given everything.
    pub fn revision(&self) -> Revision {
        self.revision.get()
    }

    /// The most bytes that any stream holds.
    #[cfg(test)]
    pub(super) fn queued_bytes_max(&self) -> usize {
        self.streams.borrow().values().map(|stream| stream.queued_bytes()).max().unwrap_or(0)
    }

    /// The most bytes that any stream has made of a revision that it has not read to its end.
    #[cfg(test)]
    pub(super) fn long_bytes_max(&self) -> usize {
        self.streams.borrow().values().map(|stream| stream.long_bytes()).max().unwrap_or(0)
    }

    /// Returns the number of streams that hold values which were fetched for them, charged to their clients.
    #[cfg(test)]
    pub(super) fn laden_streams(&self) -> usize {
        self.streams.borrow().values().filter(|stream| stream.fetched_bytes() > 0).count()
    }

    /// Returns the number of streams that have begun a response to such a revision.
    #[cfg(test)]
    pub(super) fn long_streams(&self) -> usize {
        self.streams.borrow().values().filter(|stream| stream.long_bytes() > 0).count()
    }

    /// The most changes that one turn walked over, and the most times that one looked at a watch.
    #[cfg(test)]
    pub(super) fn work_max(&self) -> (usize, usize) {
        self.work_max.take()
    }

    #[cfg(test)]
    fn note_work(&self, walked: usize, looks: usize) {
        let (walked_max, looks_max) = self.work_max.get();
        self.work_max.set((walked_max.max(walked), looks_max.max(looks)));
        let (walked_before, looks_before) = self.work_done.get();
        self.work_done.set((walked_before + walked, looks_before + looks));
    }

    /// Returns the changes walked over and the looks at watches since the last call.
    #[cfg(test)]
    pub(super) fn work_done(&self) -> (usize, usize) {
        self.work_done.take()
    }

    #[cfg(not(test))]
    fn note_work(&self, _walked: usize, _looks: usize) {}

    /// Has less done in a turn.
    #[cfg(test)]
    pub(super) fn do_less_in_a_turn(&self, watches: usize, looks: usize) {
        self.portion.set(Portion { watches, looks, ..self.portion.get() });
    }

    /// Has fewer changes walked over, and fewer bytes of events made, in a turn.
    #[cfg(test)]
    pub(super) fn walk_less_in_a_turn(&self, changes: usize, bytes: usize) {
        self.portion.set(Portion { changes, bytes, ..self.portion.get() });
    }

    /// Returns true if this member knows a leader.
    pub fn has_leader(&self) -> bool {
        self.shared.state.load().leader != 0
    }

    /// Resolves after this time, by the member's clock.
    pub(super) fn sleep(&self, time: Duration) -> Sleep {
        self.shared.member.clock.sleep(time)
    }

    /// Returns the least time in which the cluster notices that a leader is lost.
    pub fn election_timeout(&self) -> Duration {
        self.shared.member.limits.election_timeout
    }

    /// Counts responses that took so long to send, all of them: each took its share of that.
    pub(super) fn count_sent(&self, sent: &Sent, took: Duration) {
        let metrics = &self.shared.diagnostics.metrics;
        let Sent { controls, responses, events } = *sent;
        let took = took.as_secs_f64();
        let each = took / (controls + responses).max(1) as f64;
        if controls > 0 {
            metrics.server.watch_send_control.observe_each(each, controls);
        }
        if responses > 0 {
            metrics.mvcc.events.add(events);
            metrics.server.watch_send_stream.observe_each(each, responses);
            metrics.server.watch_send_event.observe_each(each * responses as f64 / events as f64, responses);
        }
    }

    /// Tells of events that wait to be sent since the last call, or wait no longer.
    pub(super) fn publish_pending(&self) {
        self.pending_events.publish();
    }

    pub(super) fn open(
        self: &Rc<Self>,
        needs_leader: bool,
        (caller, permit, spans): (Arc<Caller>, Box<dyn Permit>, Option<Within>),
        account: Option<Rc<Account>>,
    ) -> Registration {
        let serial = self.next_serial();
        let stream = Rc::new(Stream::new(
            serial,
            needs_leader,
            caller,
            permit,
            spans,
            Rc::clone(&self.pending_events),
            account,
        ));
        self.streams.borrow_mut().insert(serial, Rc::clone(&stream));
        self.shared.diagnostics.metrics.mvcc.watch_streams.add(1);
        Registration { hub: Rc::clone(self), stream }
    }

    /// Takes a stream out. Clients decide how many watches it has, and how many streams end at once with their connection,
    /// so what is beyond a slice goes later.
    fn close(&self, stream: &Rc<Stream>) {
        // Watches that are still in the index are passed over from now on.
        stream.end(error::WATCH_CANCELED);
        stream.give_up_claim();
        stream.drop_fetched();
        self.streams.borrow_mut().remove(&stream.serial);
        self.wait_for_progress(stream, None);
        self.shared.diagnostics.metrics.mvcc.watch_streams.add(-1);
        self.ended.borrow_mut().push_back(Rc::clone(stream));
        if !self.reap() {
            self.go_on_later();
        }
    }

    /// Takes some of the watches of ended streams out, as many as this turn has left, and lets go of the streams that have
    /// none; returns true if no such stream is left.
    fn reap(&self) -> bool {
        let mut left = self.reaped_left.get();
        while left > 0 {
            let Some(stream) = self.ended.borrow_mut().pop_front() else { break };
            left -= 1;
            left = left.saturating_sub(stream.long_parts());
            stream.set_long(None);
            while left > 0
                && let Some((_, watch)) = { stream.watches.borrow_mut().pop_first() }
            {
                self.forget(&watch);
                left -= 1;
            }
            if !stream.watches.borrow().is_empty() {
                self.ended.borrow_mut().push_front(stream);
            } else {
                // It goes with its queue.
                left = left.saturating_sub(stream.queued() / QUEUED_FREED_AS_ONE);
            }
        }
        self.reaped_left.set(left);
        self.ended.borrow().is_empty()
    }

    fn next_serial(&self) -> u64 {
        self.serial.set(self.serial.get() + 1);
        self.serial.get()
    }

    /// Notes that synced watches have been given everything up to a published revision.
    fn reach(&self, revision: Revision) {
        let before = self.revision.replace(revision);
        assert!(before <= revision, "watches that were told of {before} are told of {revision}");
    }

    fn header(&self, state: &Published, revision: Revision) -> ResponseHeader {
        self.shared.member.header(revision, state.applied_term)
    }

    /// Returns the header of an answer to a request. No watch made from now on is told of this revision or one below it,
    /// unless it asks for history.
    fn present_header(&self) -> ResponseHeader {
        let state = self.shared.state.load();
        self.header(&state, self.present_revision(&state))
    }

    fn present_revision(&self, state: &Published) -> Revision {
        state.view.snapshot().current_revision().max(self.revision.get())
    }

    fn fragment_bytes_max(&self) -> usize {
        self.shared.member.limits.request_bytes_max + GRPC_OVERHEAD_BYTES
    }
}
