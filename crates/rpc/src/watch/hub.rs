//! Manages all watches of one shard with a [`Hub`]. [`Hub::advance`] takes a newly published state and
//! delivers its changes, as many as fit into one turn of the shard; [`Hub::poll_work`] delivers the rest in
//! later turns. Delivery of new changes is in `hub/synced.rs`, reading of history in `hub/catch_up.rs`;
//! progress and requests have their own files.

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
use super::counts::Counts;
use super::hold::Hold;
use super::index::Index;
use super::long::Claim;
use super::permit::Permit;
use super::portion::Portion;
use super::state::Watch;
use super::stream::Stream;
use clock::Sleep;
use replica::shared::{Published, Shared};
use storage::values::Source;
use telemetry::callers::Caller;
use telemetry::tracing::Within;

/// Key of a stream among those that wait to send a progress notification: ordered by the revision that the
/// hub must reach first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ProgressDue {
    /// Revision that the hub has to reach before the stream sends the notification.
    revision: Revision,
    /// Serial number of the stream ([`Stream::serial`]).
    stream: u64,
}

/// All watches of one shard. The hub lives on that shard's thread.
///
/// The hub's revision only rises, and it rises to revisions of published views only. Progress notifications
/// contain the hub's revision, so they are never ahead of the published revision. For example, with revision
/// 9 published and the hub at 7, a progress notification says 7, and the changes of 8 and 9 come after it.
pub struct Hub {
    shared: Arc<Shared>,
    shard: usize,
    values: Rc<dyn Source>,
    /// Revision up to which synced watches have received all changes.
    revision: Cell<Revision>,
    synced: RefCell<Index<Rc<Watch>>>,
    streams: RefCell<BTreeMap<u64, Rc<Stream>>>,
    /// Streams that wait to send a progress notification, by the revision that the hub must reach first.
    waiting: RefCell<BTreeMap<ProgressDue, Rc<Stream>>>,
    serial: Cell<u64>,
    /// Delivery of revisions to the synced watches that takes several turns, while it is in progress.
    under_way: RefCell<Option<UnderWay>>,
    /// The newest hold, which keeps history readable for the watches that became unsynced last.
    hold: RefCell<Weak<Hold>>,
    /// Responses with the events of a revision of many changes, which streams are making now. Other streams
    /// that need the same response wait for it.
    claimed: RefCell<Vec<Weak<Claim>>>,
    /// Hashes watched keys. The random state prevents clients from choosing keys with equal hashes.
    hasher: RandomState,
    /// Counts of what the hub's streams queue and send.
    pub(super) counts: Rc<Counts>,
    /// Maximum work of one turn.
    portion: Cell<Portion>,
    /// Work after which the streams that read history have read enough in one turn, unless they fall behind.
    history: Cell<Portion>,
    /// Ended streams whose watches are still in the index; the watches are removed in slices.
    ended: RefCell<VecDeque<Rc<Stream>>>,
    /// Identifies the users and roles against which all watches were checked last.
    reviewed: Cell<Reviewed>,
    /// Check of all watches against changed users and roles, while it is in progress.
    reviewing: RefCell<Option<Round>>,
    /// Newest state whose changes may be delivered. Set only while the published state is newer and must not
    /// be delivered before all watches are checked against its users and roles.
    cleared: RefCell<Option<Arc<Published>>>,
    /// Number of watches and ended streams that may still be removed before the next turn of
    /// [`Hub::poll_work`].
    reaped_left: Cell<usize>,
    /// Streams that wait for their turn to read history.
    readers: RefCell<Line>,
    /// True if some published changes are left for later turns.
    is_told_later: Cell<bool>,
    /// Waker of the task that continues work left for later turns; `None` while that task is awake.
    worker: Cell<Option<Waker>>,
    /// Maximum number of changes that any turn has walked, and maximum number of times that any turn has
    /// checked a watch against a change.
    #[cfg(test)]
    work_max: Cell<(usize, usize)>,
    /// Number of changes walked, and number of times that a watch was checked against a change, summed over
    /// all turns since this field was last read.
    #[cfg(test)]
    work_done: Cell<(usize, usize)>,
}

/// Number of watches that are removed from the index, or made to read history, before other calls run.
const MOVED_AT_ONCE: usize = 256;
/// Number of queued responses that take as long to free as one watch takes to remove.
const QUEUED_FREED_AS_ONE: usize = 16;
/// Maximum number of watches of a stream that read history together, or get progress, before other calls run.
const TOGETHER_MAX: usize = 256;

/// Maximum work of one turn of the hub, which takes some milliseconds. The shard checks its sockets between
/// two turns.
const PORTION: Portion = Portion { changes: 16 << 10, watches: 1024, looks: 16 << 10, bytes: 8 << 20 };

/// Work after which all streams that read history together have read enough in one turn. It takes 0.1 to
/// 0.2 ms, like a long turn of a connection, because it is done again in every turn until all watches have
/// caught up, and every other call and event of the shard has to wait for it. Larger turns do not let watches
/// catch up faster: a turn that finds nothing else to do takes some microseconds. Streams that would fall
/// behind the published revisions ([`Pace`]) read more, up to [`PORTION`] in all.
///
/// [`Pace`]: super::pace::Pace
const HISTORY: Portion = Portion { changes: 1024, watches: 128, looks: 128, bytes: 64 << 10 };
/// Maximum work of one turn on a revision of many changes, for a stream that does not fall behind. It is more
/// than [`HISTORY`], because each such turn finds the watches again.
const LONG_HISTORY: Portion = Portion { changes: 4096, watches: 1024, looks: 4096, bytes: 256 << 10 };

/// Registration of a stream in the hub. Dropping it removes the stream with all its watches.
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
        // Breaks the reference cycles between streams and watches that have not been removed yet.
        for stream in self.ended.get_mut().drain(..) {
            stream.set_long(None);
            stream.watches.take();
        }
    }
}

impl Hub {
    /// Returns the message of a block of the index that could not be read.
    pub(super) fn index_fault(&self) -> Option<String> {
        self.shared.data.index_fault().map(str::to_owned)
    }

    /// Returns the hub of this shard, at the current published state.
    pub fn new(shared: Arc<Shared>, shard: usize, values: Rc<dyn Source>) -> Rc<Hub> {
        let state = shared.state.load_full();
        let revision = state.view.snapshot().current_revision();
        Rc::new(Hub {
            reviewed: Cell::new(Reviewed::by(&state, shared.clients.credentials.withdrawals())),
            reviewing: RefCell::default(),
            cleared: RefCell::default(),
            counts: Rc::new(Counts::new(Arc::clone(&shared.diagnostics.metrics))),
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
            history: Cell::new(HISTORY),
            #[cfg(test)]
            work_max: Cell::default(),
            #[cfg(test)]
            work_done: Cell::default(),
        })
    }

    /// Takes the newest published state and delivers the changes since the state that it took last. If they
    /// are too many for one turn, [`Hub::poll_work`] delivers the rest. Called whenever the shard is woken;
    /// costs almost nothing if there are no changes.
    pub fn advance(&self) {
        // If work is already left for later turns, [`Hub::poll_work`] will do it, and this call does nothing.
        // Otherwise hundreds of requests could each do a whole turn's work before the shard checks its
        // sockets again.
        if self.is_told_later.get() {
            return;
        }
        if !self.turn() {
            self.is_told_later.set(true);
            self.go_on_later();
        }
        self.counts.publish();
    }

    fn go_on_later(&self) {
        if let Some(worker) = self.worker.take() {
            worker.wake();
        }
    }

    /// Continues work that was left for later turns. A dedicated task polls this function.
    pub fn poll_work(&self, context: &mut Context<'_>) {
        let told_all = self.turn();
        self.is_told_later.set(!told_all);
        self.reaped_left.set(MOVED_AT_ONCE);
        let reaped_all = self.reap();
        // Runs after the synced watches were served, so streams that read history delay synced watches by one
        // turn's work at most. A stream that wants to read another slice gets its turn after the shard has
        // checked its sockets.
        let none_reads = self.read_some();
        self.counts.publish();
        if told_all && reaped_all && none_reads {
            self.worker.set(Some(context.waker().clone()));
        } else {
            after_others(context);
        }
    }

    /// Ends all streams whose clients require a leader, because there has been no leader for too long.
    pub fn leader_lost(&self) {
        for stream in self.streams.borrow().values().filter(|stream| stream.needs_leader) {
            stream.end(error::NO_LEADER);
        }
    }

    /// Ends all streams if this member is quarantined: its state is known to differ from the state of other
    /// members.
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

    /// Returns the revision up to which synced watches have received all changes.
    pub fn revision(&self) -> Revision {
        self.revision.get()
    }

    /// Returns the maximum number of bytes that wait in the queue of any stream.
    #[cfg(test)]
    pub(super) fn queued_bytes_max(&self) -> usize {
        self.streams.borrow().values().map(|stream| stream.queued_bytes()).max().unwrap_or(0)
    }

    /// Returns the maximum number of bytes that any stream holds of unfinished responses with the events of a
    /// revision of many changes.
    #[cfg(test)]
    pub(super) fn long_bytes_max(&self) -> usize {
        self.streams.borrow().values().map(|stream| stream.long_bytes()).max().unwrap_or(0)
    }

    /// Returns the number of streams that hold fetched values.
    #[cfg(test)]
    pub(super) fn laden_streams(&self) -> usize {
        self.streams.borrow().values().filter(|stream| stream.fetched_bytes() > 0).count()
    }

    /// Returns the number of responses that a stream is making and others may wait for.
    #[cfg(test)]
    pub(super) fn claims(&self) -> usize {
        self.claimed.borrow().iter().filter(|claim| claim.strong_count() > 0).count()
    }

    /// Returns the number of streams that have begun a response with the events of a revision of many
    /// changes.
    #[cfg(test)]
    pub(super) fn long_streams(&self) -> usize {
        self.streams.borrow().values().filter(|stream| stream.long_bytes() > 0).count()
    }

    /// Returns the maximum number of changes that one turn has walked, and the maximum number of times that
    /// one turn has checked a watch against a change.
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

    /// Returns the number of changes walked, and the number of times that a watch was checked against a
    /// change, since the last call.
    #[cfg(test)]
    pub(super) fn work_done(&self) -> (usize, usize) {
        self.work_done.take()
    }

    #[cfg(not(test))]
    fn note_work(&self, _walked: usize, _looks: usize) {}

    /// Reduces the maximum number of watches that one turn serves, and of checks of a watch against a change.
    /// For tests.
    #[cfg(test)]
    pub(super) fn do_less_in_a_turn(&self, watches: usize, looks: usize) {
        self.portion.set(Portion { watches, looks, ..self.portion.get() });
        self.history.set(Portion { watches, looks, ..self.history.get() });
    }

    /// Reduces the maximum number of changes that one turn walks, and of bytes of events that it encodes. For
    /// tests.
    #[cfg(test)]
    pub(super) fn walk_less_in_a_turn(&self, changes: usize, bytes: usize) {
        self.portion.set(Portion { changes, bytes, ..self.portion.get() });
        self.history.set(Portion { changes, bytes, ..self.history.get() });
    }

    /// Returns true if this member knows a leader.
    pub fn has_leader(&self) -> bool {
        self.shared.state.load().leader != 0
    }

    /// Returns a future that resolves after this time, by the member's clock.
    pub(super) fn sleep(&self, time: Duration) -> Sleep {
        self.shared.member.clock.sleep(time)
    }

    /// Returns the election timeout. A cluster takes at least this long to notice that it has lost its
    /// leader.
    pub fn election_timeout(&self) -> Duration {
        self.shared.member.limits.election_timeout
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
            Rc::clone(&self.counts),
            account,
        ));
        self.streams.borrow_mut().insert(serial, Rc::clone(&stream));
        self.shared.diagnostics.metrics.mvcc.watch_streams.add(1);
        Registration { hub: Rc::clone(self), stream }
    }

    /// Removes a stream from the hub. A client may have any number of watches on a stream and may end many
    /// streams at the same time by closing its connection, so only a bounded number of watches is removed
    /// now, and the others in later turns.
    fn close(&self, stream: &Rc<Stream>) {
        // The stream is ended first. An ended stream gets no events, so its watches may stay in the index
        // until they are removed.
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

    /// Removes watches of ended streams, as many as this turn may still remove, and drops the streams that
    /// have no watches left. Returns true if no ended stream is left.
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
                // Dropping the stream also frees its queue, which counts as work.
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

    /// Raises the hub's revision to this published revision. Called when the synced watches have received all
    /// changes up to it, or have become unsynced.
    fn reach(&self, revision: Revision) {
        let before = self.revision.replace(revision);
        assert!(before <= revision, "watches that were told of {before} are told of {revision}");
    }

    fn header(&self, state: &Published, revision: Revision) -> ResponseHeader {
        self.shared.member.header(revision, state.applied_term)
    }

    /// Returns the header of a response to a request. A watch that is created later receives only changes
    /// after the header's revision, unless it asks for history.
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
