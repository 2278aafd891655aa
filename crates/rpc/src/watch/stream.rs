//! Holds the state of one watch stream of a client: its watches and its queue of responses ([`Stream`]). The stream does not read history itself; the hub reads history for it, in the stream's
//! turns.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use accounting::{Account, Held};
use api::Status;
use bytes::Bytes;
use front::{Messages, Room};
use numbers::Revision;
use planted::Bug;

use super::by_id::ById;
use super::counts::Counts;
use super::index::Keys;
use super::long::{Given, Long};
use super::pace::Pace;
use super::permit::Permit;
use super::portion::{SliceLimits, UNLIMITED};
use super::queued::{Body, QUEUED_BYTES, Queued, SHORT_BYTES};
use super::state::Watch;
use storage::values::Attempt;
use telemetry::callers::Caller;
use telemetry::tracing::Within;

/// Maximum bytes of responses in the queue of a stream. A watch whose next response does not fit becomes
/// unsynced. A single larger response fits if hardly anything is queued.
pub const QUEUE_BYTES_MAX: usize = 1 << 20;
/// Bytes of queued responses beside which a stream still reads history: events for its synced watches may
/// arrive in every turn.
const FEW_BYTES: usize = 64 << 10;

/// Memory in bytes that a watch takes in its stream and in an index, without its keys.
const WATCH_BYTES: usize = 1024;
/// Capacity of a stream's queue, in responses, that is kept while the queue is empty.
const QUEUE_PLACES_KEPT: usize = 4;

/// Maximum bytes of short responses that are sent together: as many as most clients accept in one frame.
const TOGETHER_BYTES_MAX: usize = 16 << 10;

/// Maximum initial capacity in bytes of the buffer for short responses that are sent together, in addition to
/// the first of them.
const SHORT_ROOM_BYTES: usize = 1536;

/// Number of bytes by which the watch ids of a stream with few watches differ in length.
const WATCH_ID_SPARE: usize = 4;

/// The unused part of that buffer needs no reservation of its own: it takes at most one short response per
/// watch, and a watch with its place in the index takes less than the rest of [`WATCH_BYTES`].
const _: () = assert!(Messages::wire_len(SHORT_BYTES) + WATCH_ID_SPARE <= WATCH_BYTES - 384);

/// Class of a stream that waits to read history. Streams of one class get their turns in the order of their
/// arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    /// The stream holds fetched values, or a response that another stream has made, until its turn.
    Laden,
    /// The stream has a watch that was synced before, for which a hold keeps history for one minute only.
    Held,
    /// The stream's watches read history that their clients asked for.
    Other,
}

/// Position of a stream in the queue: its class, and its number in that class.
pub(super) type Place = (Class, u64);

/// Position of a stream in the order in which streams fall behind: the published revision from which on it
/// does ([`Pace::due`]), and its place in the queue.
pub(super) type Due = (Revision, Place);

/// Key of an unsynced watch: ordered by the revision that the watch reads next.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ReadsNext {
    revision: Revision,
    /// Serial number of the watch ([`Watch::serial`]).
    serial: u64,
}

impl ReadsNext {
    fn of(watch: &Watch) -> ReadsNext {
        ReadsNext { revision: watch.next.get(), serial: watch.serial }
    }
}

/// Maximum number of watches that read history together, for reads that begin in this range of revisions.
#[derive(Clone, Copy, Default)]
struct Together {
    /// First revision of the range.
    from: Revision,
    /// Last revision of the range.
    through: Revision,
    watches: usize,
}

/// State that few streams need. It is created when a watch becomes unsynced, starts above the hub's revision
/// or is asked for its progress, and for a stream that is traced.
#[derive(Default)]
pub(super) struct Rare {
    /// Factory of the watches' spans, if the stream is traced.
    pub spans: OnceCell<Within>,
    /// Number of watches that were cancelled by a compaction and that the client has not cancelled yet.
    pub compacted: Cell<usize>,
    /// Revision that a progress notification must reach, if the client waits for one: the newest revision
    /// when the client asked.
    pub progress_wanted: Cell<Option<Revision>>,
    /// Newest revision that a watch of the stream has received as history; it may be above the hub's
    /// revision.
    pub told_through: Cell<Revision>,
    /// Id of the first watch that is still to be notified in the current round of periodic progress; `None`
    /// between two rounds.
    pub ticks_from: Cell<Option<i64>>,
    /// Revision that the hub must reach before this stream sends progress, if the stream waits for that in
    /// the hub.
    pub waits_for_progress: Cell<Option<Revision>>,
    /// Start revisions of watches that began above the hub's revision, with the number of watches at each. An
    /// entry stays until its watches are removed, even after the hub has passed the revision.
    pub ahead: RefCell<BTreeMap<Revision, usize>>,
    /// Position in the queue of streams that wait to read history, if the stream waits.
    pub place: Cell<Option<Place>>,
    /// Position among those that fall behind, if the stream waits and its client can take more.
    pub due: Cell<Option<Due>>,
    /// True while this stream waits for a response that another stream is making.
    pub waits_for_another: Cell<bool>,
    /// Unsynced watches, ordered by the revision that they read next.
    unsynced: RefCell<BTreeMap<ReadsNext, Rc<Watch>>>,
    /// Values for the stream's next slice of history. The values that were not in memory are being fetched,
    /// or have arrived.
    fetching: RefCell<Option<Box<Attempt>>>,
    /// Revision from which the history in `fetching` begins.
    fetching_from: Cell<Revision>,
    /// Limits of the slice for which the values in `fetching` were missing, and its last revision.
    fetching_limits: Cell<Option<SliceLimits>>,
    fetching_through: Cell<Revision>,
    /// Bytes of fetched values that the stream holds until its next turn.
    fetched_bytes: Cell<usize>,
    /// Number of watches that have a hold.
    held_watches: Cell<usize>,
    /// A revision of many changes that some watches are reading, with the responses made so far.
    long: RefCell<Option<Long>>,
    long_bytes: Cell<usize>,
    /// Limit on the number of watches that read together, and the range of revisions for which it applies.
    together_max: Cell<Together>,
    /// Tells how many bytes the client can take now; see [`Stream::room`].
    room: OnceCell<RoomSource>,
    /// Pace at which the stream reads history; `None` while all its watches are synced.
    pace: Cell<Option<Pace>>,
}

/// Returns the number of bytes that a client can take now ([`Responses::room`](super::drive::Responses::room)).
pub(super) type RoomSource = Box<dyn Fn() -> Room>;

/// One client's stream.
pub(super) struct Stream {
    /// Number of the stream, unique among all streams of the hub.
    pub serial: u64,
    /// True if the stream ends when there is no leader.
    pub needs_leader: bool,
    /// Rights of the stream's user to watch keys.
    pub permit: Box<dyn Permit>,
    /// Statistics of the client that opened the stream.
    pub caller: Arc<Caller>,
    /// All watches of the stream, by watch id.
    pub watches: RefCell<ById<Rc<Watch>>>,
    /// Next watch id that the server assigns if the client gives none.
    pub next_id: Cell<i64>,
    /// True if any watch of the stream has asked for periodic progress.
    pub wants_ticks: Cell<bool>,
    queue: RefCell<VecDeque<Queued>>,
    /// Bytes of the queued responses: at most [`QUEUE_BYTES_MAX`], or [`FEW_BYTES`] and the length of a single
    /// larger response, plus responses without events, which are short. A `u32` suffices, because the length
    /// of a gRPC message fits into 32 bits.
    queued_bytes: Cell<u32>,
    waker: Cell<Option<Waker>>,
    /// Boxed and created only when needed, because most streams do not need it.
    rare: OnceCell<Box<Rare>>,
    end: OnceCell<Box<Status>>,
    counts: Rc<Counts>,
    /// Reservation for the watches and the queued responses in the memory account of the client's connection;
    /// `None` for a stream that was not opened over such a connection.
    held: Option<Held>,
}

impl Stream {
    pub fn new(
        serial: u64,
        needs_leader: bool,
        caller: Arc<Caller>,
        permit: Box<dyn Permit>,
        spans: Option<Within>,
        counts: Rc<Counts>,
        account: Option<Rc<Account>>,
    ) -> Stream {
        let stream = Stream {
            held: account.map(|account| account.hold(0)),
            serial,
            permit,
            needs_leader,
            caller,
            watches: RefCell::default(),
            next_id: Cell::new(0),
            wants_ticks: Cell::new(false),
            queue: RefCell::default(),
            queued_bytes: Cell::new(0),
            waker: Cell::default(),
            rare: OnceCell::new(),
            end: OnceCell::new(),
            counts,
        };
        if let Some(spans) = spans {
            stream.rare().spans.get_or_init(|| spans);
        }
        stream
    }

    /// Returns the factory of the watches' spans; `None` for a stream that is not traced.
    pub fn spans(&self) -> Option<&Within> {
        self.rare_if_any()?.spans.get()
    }

    /// Returns the state that few streams need, creating it if it does not exist.
    pub fn rare(&self) -> &Rare {
        self.rare.get_or_init(Box::default)
    }

    /// Returns the state that few streams need, if this stream has it.
    pub fn rare_if_any(&self) -> Option<&Rare> {
        self.rare.get().map(|rare| &**rare)
    }

    /// Returns the revision that the hub must reach before this stream sends progress, if the stream waits
    /// for that.
    pub fn waits_for_progress(&self) -> Option<Revision> {
        self.rare_if_any()?.waits_for_progress.get()
    }

    /// Returns the revision that a progress notification must reach, if the client waits for one.
    pub fn progress_wanted(&self) -> Option<Revision> {
        self.rare_if_any()?.progress_wanted.get()
    }

    /// Returns true if a round of periodic progress is not finished yet.
    pub fn is_ticking(&self) -> bool {
        self.rare_if_any().is_some_and(|rare| rare.ticks_from.get().is_some())
    }

    /// Adds a watch to the unsynced watches.
    pub fn fall_behind(&self, watch: &Rc<Watch>) {
        let replaced = self.rare().unsynced.borrow_mut().insert(ReadsNext::of(watch), Rc::clone(watch));
        assert!(replaced.is_none(), "a watch is behind only once");
    }

    /// Removes a watch from the unsynced watches. Returns true if the watch was among them.
    pub fn catches_up(&self, watch: &Watch) -> bool {
        let rare = self.rare_if_any();
        rare.is_some_and(|rare| rare.unsynced.borrow_mut().remove(&ReadsNext::of(watch)).is_some())
    }

    /// Returns true if the stream has no unsynced watches.
    pub fn is_synced(&self) -> bool {
        self.rare_if_any().is_none_or(|rare| rare.unsynced.borrow().is_empty())
    }

    /// Returns up to `watches_max` unsynced watches, those with the oldest next revision first.
    pub fn most_behind(&self, watches_max: usize) -> Vec<Rc<Watch>> {
        let Some(rare) = self.rare_if_any() else { return Vec::new() };
        rare.unsynced.borrow().values().take(watches_max).cloned().collect()
    }

    /// Returns true if the stream may read a slice of history now: a watch is unsynced, nearly all queued
    /// responses have been passed to the front, and the stream neither waits for another stream's response
    /// nor is ending. The stream's task calls this again when the queue has become empty.
    pub fn may_read(&self) -> bool {
        let queued = self.queued_bytes.get() as usize;
        queued <= FEW_BYTES && !self.is_synced() && !self.waits_for_another() && !self.has_ended()
    }

    /// Returns the number of bytes that the client can take now: history is read for a client only if it can
    /// be sent, so that clients that read slowly, or nothing, do not make the server hold it.
    pub fn room(&self) -> Room {
        let Some(room) = self.rare_if_any().and_then(|rare| rare.room.get()) else { return UNLIMITED };
        let (Room { soon, most }, queued) = (room(), self.queued_bytes.get() as usize);
        Room { soon: soon.saturating_sub(queued), most: most.saturating_sub(queued) }
    }

    /// Sets the source of [`Stream::room`], if it is not set.
    pub fn ask_for_room(&self, source: impl FnOnce() -> RoomSource) {
        self.rare().room.get_or_init(source);
    }

    /// Returns true if the stream reads even if its client can take nothing: if it holds fetched values, or a
    /// response that another stream has made, which take memory until the stream's turn, or if other streams
    /// wait for a response that it makes.
    pub fn goes_on_without_room(&self) -> bool {
        let is_awaited = |long: &Long| long.claim.as_ref().is_some_and(|claim| claim.is_awaited());
        let Some(rare) = self.rare_if_any() else { return false };
        self.class() == Class::Laden || rare.long.borrow().as_ref().is_some_and(is_awaited)
    }

    /// Returns how fast the stream reads history, if it does.
    pub fn pace(&self) -> Option<Pace> {
        self.rare_if_any()?.pace.get()
    }

    /// Begins, or goes on, to compare how fast the stream reads history with what is published.
    pub fn resume_pace(&self, current: impl FnOnce() -> Revision) {
        let pace = match self.pace() {
            None => Pace::new(current()),
            Some(pace) => pace.resumed(current()),
        };
        self.rare().pace.set(Some(pace));
    }

    /// Records that the stream waits for its client, if it reads history and did not wait before.
    pub fn pause_pace(&self, current: impl FnOnce() -> Revision) {
        if let Some(pace) = self.pace().filter(|pace| !pace.is_paused()) {
            self.rare().pace.set(Some(pace.paused(current())));
        }
    }

    /// Records that `current` was the newest revision when the limits of the next slice were set.
    pub fn note_limits(&self, current: Revision) {
        let rare = self.rare();
        rare.pace.set(rare.pace.get().map(|pace| pace.at_slice(current)));
    }

    /// Records that the stream has read a slice of so many revisions for `group` of its unsynced watches.
    pub fn note_slice(&self, revisions: usize, group: usize) {
        let rare = self.rare();
        let groups = rare.unsynced.borrow().len().div_ceil(group.max(1)).max(1);
        rare.pace.set(rare.pace.get().map(|pace| pace.after_slice(revisions, groups)));
    }

    fn waits_for_another(&self) -> bool {
        self.rare_if_any().is_some_and(|rare| rare.waits_for_another.get())
    }

    /// Returns the maximum number of watches that may read together from this revision on.
    pub fn together_max(&self, from: Revision) -> usize {
        let Some(rare) = self.rare_if_any() else { return usize::MAX };
        let Together { from: first, through, watches } = rare.together_max.get();
        if (first..=through).contains(&from) { watches } else { usize::MAX }
    }

    /// Limits the number of watches that read together, for reads that begin at any revision from `from` to
    /// `through`.
    pub fn read_fewer_together(&self, from: Revision, through: Revision, watches: usize) {
        self.rare().together_max.set(Together { from, through, watches });
    }

    /// Returns true if a response of `len` bytes may be queued.
    pub fn has_room(&self, len: usize) -> bool {
        let queued = self.queued_bytes.get() as usize;
        (queued <= FEW_BYTES || queued + len <= QUEUE_BYTES_MAX) && !self.is_half_sent()
    }

    /// Returns true if the client has received a fragment of a revision but not the last one. Clients expect
    /// no other response in between.
    pub fn is_half_sent(&self) -> bool {
        self.rare_if_any().is_some_and(|rare| {
            let long = rare.long.borrow();
            long.as_ref().is_some_and(|long| long.is_half_sent)
        })
    }

    /// Sets the revision of many changes that some watches are reading; `None` if there is none. The other
    /// unsynced watches of the stream wait until that revision has been read.
    pub fn set_long(&self, long: Option<Long>) {
        let bytes = long.as_ref().map_or(0, Long::bytes);
        if long.is_none() {
            let Some(rare) = self.rare_if_any() else { return };
            rare.waits_for_another.set(false);
        }
        let rare = self.rare();
        // Dropped after the replacement, because dropping it may wake other streams.
        let before = rare.long.replace(long);
        drop(before);
        self.charge(bytes, rare.long_bytes.replace(bytes));
    }

    /// Gives this stream a response that it waits for and that another stream has made. Memory for the
    /// response is not reserved for this stream before its turn. Returns false if this stream cannot take the
    /// response in its next turn, because its queue is not empty or the stream is ending.
    pub fn give(&self, given: &Rc<Given>) -> bool {
        if !self.is_drained() || self.ending().is_some() {
            return false;
        }
        let Some(rare) = self.rare_if_any() else { return false };
        let mut long = rare.long.borrow_mut();
        let Some(long) = long.as_mut() else { return false };
        long.given = Some(Rc::clone(given));
        true
    }

    /// Ends the reservation of memory for the unfinished responses with the events of a revision of many
    /// changes.
    pub fn release_long(&self) {
        if let Some(rare) = self.rare_if_any() {
            self.charge(0, rare.long_bytes.replace(0));
        }
    }

    /// Gives up the response that other streams wait for, because this stream cannot continue. The other
    /// streams then make the response themselves.
    pub fn give_up_claim(&self) {
        let Some(rare) = self.rare_if_any() else { return };
        let claim = rare.long.borrow_mut().as_mut().and_then(|long| long.claim.take());
        drop(claim);
    }

    /// Takes the revision of many changes that [`Stream::set_long`] has set. The memory for its responses
    /// stays reserved until [`Stream::set_long`] or [`Stream::release_long`] is called.
    pub fn take_long(&self) -> Option<Long> {
        self.rare_if_any()?.long.borrow_mut().take()
    }

    /// Returns the bytes reserved for the responses with the events of a revision of many changes.
    #[cfg(test)]
    pub fn long_bytes(&self) -> usize {
        self.rare_if_any().map_or(0, |rare| rare.long_bytes.get())
    }

    /// Removes a watch from those that read the revision of many changes.
    pub fn leave_long(&self, watch: &Watch) {
        let Some(mut long) = self.take_long() else { return };
        long.parts.retain(|part| part.watch.serial != watch.serial);
        self.set_long(if long.parts.is_empty() { None } else { Some(long) });
    }

    /// Returns the hub revision at which the requested progress notification may be sent: at that revision
    /// all watches have received everything, no watch starts later, and no watch has received more. Returns
    /// `None` if the client waits for no notification, if a watch is unsynced, or if the client has not yet
    /// cancelled a watch that was cancelled by a compaction. The function does not visit each watch, because
    /// a client can request progress with a few bytes.
    pub fn progress_due(&self) -> Option<Revision> {
        let rare = self.rare_if_any()?;
        let wanted = rare.progress_wanted.get()?;
        let may_be = self.is_synced() && rare.compacted.get() == 0;
        let ahead = rare.ahead.borrow().last_key_value().map_or(wanted, |(start, _)| *start);
        let told = if planted::is(Bug::ProgressBelowHistory) { wanted } else { rare.told_through.get() };
        may_be.then(|| wanted.max(ahead).max(told))
    }

    /// Changes the number of watches that have a hold: adds `more`, and subtracts `fewer`.
    pub fn count_held(&self, more: usize, fewer: usize) {
        let watches = &self.rare().held_watches;
        watches.set(watches.get() + more - fewer);
    }

    /// Reserves memory for a watch of these keys in the account of the client's connection, until the watch
    /// is removed.
    pub fn hold_watch(&self, keys: &Keys) {
        self.charge(WATCH_BYTES + keys.bytes(), 0);
    }

    /// Ends the reservation for a watch of these keys.
    pub fn release_watch(&self, keys: &Keys) {
        self.charge(0, WATCH_BYTES + keys.bytes());
    }

    /// Reserves memory for bytes that this stream and other streams may queue. The bytes count once in total,
    /// not once per stream, until the returned `Bytes` and all its clones are dropped.
    pub fn share(&self, bytes: Bytes) -> Bytes {
        match self.account() {
            Some(account) => account.share(bytes),
            None => bytes,
        }
    }

    /// Returns the maximum number of bytes that the events of one revision may take for one watch. A stream
    /// that would have to send more ends with an error.
    pub fn revision_bytes_max(&self) -> usize {
        let budget = self.account().map_or(usize::MAX, |account| account.budget().bytes_max() / 4);
        budget.min(i32::MAX as usize)
    }

    fn charge(&self, more: usize, less: usize) {
        if let Some(held) = &self.held {
            held.set(held.bytes() + more - less);
        }
    }

    /// Returns the memory account of the client's connection, in which memory for the watches and the queue
    /// is reserved; `None` for a stream that was not opened over such a connection.
    fn account(&self) -> Option<&Rc<Account>> {
        self.held.as_ref().map(Held::account)
    }

    /// Returns the number of watches that read a revision of many changes.
    pub fn long_parts(&self) -> usize {
        let Some(rare) = self.rare_if_any() else { return 0 };
        rare.long.borrow().as_ref().map_or(0, |long| long.parts.len())
    }

    /// Returns the number of queued responses.
    pub fn queued(&self) -> usize {
        self.queue.borrow().len()
    }

    /// Returns true if no response is queued.
    pub fn is_drained(&self) -> bool {
        self.queue.borrow().is_empty()
    }

    /// Returns the number of queued bytes.
    #[cfg(test)]
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes.get() as usize
    }

    /// Queues a response. For a response with events, the caller has checked [`Stream::has_room`], or the
    /// queue is empty. Short responses without events are queued without that check.
    pub fn push(&self, queued: Queued) {
        self.note_queued(&queued);
        let mut queue = self.queue.borrow_mut();
        if queue.capacity() == 0 {
            // Most streams never queue more than one response at a time, so the queue starts with space for
            // one.
            queue.reserve_exact(1);
        }
        queue.push_back(queued);
        // If other responses are queued before it, the sending task waits for space already and needs no
        // wake-up.
        let is_first = queue.len() == 1;
        drop(queue);
        if is_first {
            self.wake();
        }
    }

    /// Queues a short response of at most [`SHORT_BYTES`], which contains `count` events. `framed` is the
    /// response after its gRPC prefix ([`Messages::frame`]). The caller has checked [`Stream::has_room`].
    pub fn push_short(&self, framed: &[u8], count: u32) {
        let bytes = framed.len();
        let mut queue = self.queue.borrow_mut();
        if let Some(Queued { body: Body::Short(messages), events }) = queue.back_mut()
            && messages.wire_bytes() + bytes <= TOGETHER_BYTES_MAX
            && *events == count * messages.len() as u32
        {
            messages.push_framed(framed);
            *events += count;
            drop(queue);
            self.queued_bytes.set(self.queued_bytes.get() + bytes as u32);
            self.charge(QUEUED_BYTES + bytes, 0);
            self.counts.add_waiting(i64::from(count));
            return;
        }
        let is_first = queue.is_empty();
        drop(queue);
        // The watches of a stream often get the same event, so the buffer has space for all of them. The
        // other responses may be a little longer, because watch ids differ in length. Only the first buffer
        // that waits has such space: it is not charged, and a client that reads nothing could make many
        // buffers wait.
        let others = if is_first { self.watches.borrow().len().saturating_sub(1) } else { 0 };
        let room = bytes + (others * (bytes + WATCH_ID_SPARE)).min(SHORT_ROOM_BYTES);
        let mut messages = Messages::with_capacity(room);
        messages.push_framed(framed);
        self.push(Queued { body: Body::Short(messages), events: count });
    }

    fn note_queued(&self, queued: &Queued) {
        self.queued_bytes.set(self.queued_bytes.get() + queued.body.bytes() as u32);
        self.charge(queued.charged_bytes(), 0);
        self.counts.add_waiting(i64::from(queued.events));
        // If another stream has given a response to this stream, that response would be sent after `queued`
        // but with an older header, and possibly much later. So it is dropped, and this stream makes its own
        // response.
        if let Some(rare) = self.rare_if_any() {
            let given = rare.long.borrow_mut().as_mut().and_then(|long| long.given.take());
            drop(given);
        }
    }

    /// Takes the next response to send, or the next short responses that are sent together.
    pub fn pop(&self) -> Option<Queued> {
        let mut queue = self.queue.borrow_mut();
        let queued = queue.pop_front()?;
        if queue.is_empty() && (queue.capacity() > QUEUE_PLACES_KEPT || queued.events == 0) {
            // An idle stream must not keep the capacity that it needed when it had much to send. Nor must it
            // keep capacity for the single response that confirms a new watch, since the stream may then be
            // idle for days.
            *queue = VecDeque::new();
        }
        drop(queue);
        self.queued_bytes.set(self.queued_bytes.get() - queued.body.bytes() as u32);
        self.charge(0, queued.charged_bytes());
        self.counts.add_waiting(-i64::from(queued.events));
        Some(queued)
    }

    /// Puts a response at the front of the queue again, because it could not be sent.
    pub fn put_back(&self, queued: Queued) {
        self.queued_bytes.set(self.queued_bytes.get() + queued.body.bytes() as u32);
        self.charge(queued.charged_bytes(), 0);
        self.counts.add_waiting(i64::from(queued.events));
        self.queue.borrow_mut().push_front(queued);
    }

    /// Makes the stream end with this status. If it is called more than once, the first status is used.
    pub fn end(&self, status: Status) {
        self.end.get_or_init(|| Box::new(status));
        self.wake();
    }

    /// Returns true if [`Stream::end`] was called.
    pub fn has_ended(&self) -> bool {
        self.end.get().is_some()
    }

    /// Returns the status that was given to [`Stream::end`], if it was called.
    pub fn ending(&self) -> Option<Status> {
        self.end.get().map(|status| Status::clone(status))
    }

    /// Takes the [`Attempt`] that was kept by [`Stream::fetch`], with its fetched values, if it was begun for
    /// history from this revision on. Otherwise returns a new one from `begin`.
    pub fn attempt(&self, from: Revision, begin: impl FnOnce() -> Attempt) -> Attempt {
        let rare = self.rare();
        let begun = rare.fetching.borrow_mut().take();
        self.charge_fetched(0);
        let before = rare.fetching_from.replace(from);
        begun.filter(|_| before == from).map_or_else(begin, |begun| *begun)
    }

    /// Returns the limits of the stream's next slice: `limits`, or those of the slice before, if values were
    /// fetched for that. With more, further values would be missing, and with less, some would be fetched in
    /// vain. The slice begins at `from`, and `current` is the newest revision.
    pub fn limits_of_slice(&self, limits: SliceLimits, from: Revision, current: Revision) -> SliceLimits {
        let rare = self.rare();
        let is_same = rare.fetched_bytes.get() > 0 && rare.fetching_from.get() == from;
        let before = rare.fetching_limits.get().filter(|_| is_same);
        if before.is_none() {
            self.note_limits(current);
        }
        let limits = before.map_or(limits, |before| SliceLimits { portion: limits.portion, ..before });
        rare.fetching_limits.set(Some(limits));
        limits
    }

    /// Returns the last revision of the slice for which values were fetched, if it begins at `from`.
    pub fn fetched_through(&self, from: Revision) -> Option<Revision> {
        let rare = self.rare_if_any().filter(|rare| rare.fetched_bytes.get() > 0)?;
        let through = Some(rare.fetching_through.get()).filter(|through| *through >= from);
        through.filter(|_| rare.fetching_from.get() == from)
    }

    /// Records the last revision of a slice for which values are missing.
    pub fn fetch_through(&self, through: Revision) {
        self.rare().fetching_through.set(through);
    }

    /// Keeps this attempt, so that [`Stream::poll_fetched`] fetches the values that the attempt found
    /// missing.
    pub fn fetch(&self, attempt: Attempt) {
        self.charge_fetched(attempt.arrived_bytes());
        *self.rare().fetching.borrow_mut() = Some(Box::new(attempt));
    }

    /// Resolves when no values are being fetched. If the stream has no unsynced watches, it needs no values,
    /// and drops them first.
    pub fn poll_fetched(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.is_synced() {
            self.drop_fetched();
            if let Some(rare) = self.rare_if_any() {
                rare.pace.set(None);
            }
        }
        let Some(rare) = self.rare_if_any() else { return Poll::Ready(()) };
        let mut fetching = rare.fetching.borrow_mut();
        let Some(attempt) = fetching.as_mut() else { return Poll::Ready(()) };
        let polled = attempt.poll_fetched(context);
        if polled.is_ready() && self.account().is_some() {
            // A client that reads nothing can make the stream hold these values for a long time. So memory
            // for them is reserved in the account of the client's connection, and no longer in that of the
            // threads that fetch values.
            attempt.drop_charges();
        }
        self.charge_fetched(attempt.arrived_bytes());
        polled
    }

    /// Drops fetched values, and values that are being fetched.
    pub fn drop_fetched(&self) {
        if let Some(rare) = self.rare_if_any() {
            let dropped = rare.fetching.borrow_mut().take();
            drop(dropped);
            self.charge_fetched(0);
        }
    }

    fn charge_fetched(&self, bytes: usize) {
        let before = self.rare().fetched_bytes.replace(bytes);
        if bytes != before {
            self.charge(bytes, before);
        }
    }

    /// Returns the bytes of fetched values that wait for the stream's next turn.
    #[cfg(test)]
    pub fn fetched_bytes(&self) -> usize {
        self.rare_if_any().map_or(0, |rare| rare.fetched_bytes.get())
    }

    /// Returns the class by which the stream waits for its turn to read history.
    pub fn class(&self) -> Class {
        let Some(rare) = self.rare_if_any() else { return Class::Other };
        let is_given = || rare.long.borrow().as_ref().is_some_and(|long| long.given.is_some());
        if rare.fetched_bytes.get() > 0 || is_given() {
            Class::Laden
        } else if rare.held_watches.get() > 0 {
            Class::Held
        } else {
            Class::Other
        }
    }

    /// Sets the waker of the task that sends; `None` while that task runs.
    pub fn wait(&self, waker: Option<&Waker>) {
        self.waker.set(waker.cloned());
    }

    /// Wakes the task that sends.
    pub fn wake(&self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let events: i64 = self.queue.get_mut().iter().map(|queued| i64::from(queued.events)).sum();
        self.counts.add_waiting(-events);
        self.counts.publish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_small() {
        // With the 16 bytes of the `Rc` header these make 192 bytes, a size class of the allocator.
        assert!(size_of::<Stream>() <= 176, "a stream has {} bytes", size_of::<Stream>());
    }
}
