//! One client's stream: its watches ([`Watch`]) and the responses that wait for it ([`Stream`]). It does not read history; the
//! hub does, in the stream's turns.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use accounting::{Account, Held};
use api::Status;
use bytes::Bytes;
use front::Messages;
use mvcc::{Snapshot, Version, View};
use numbers::Revision;
use planted::Bug;

use super::by_id::ById;
use super::hold::Hold;
use super::index::Keys;
use super::long::{Given, Long};
use super::permit::Permit;
use super::queued::{Body, QUEUED_BYTES, Queued};
use storage::values::Attempt;
use telemetry::callers::Caller;
use telemetry::metrics::Gauge;
use telemetry::tracing::{OpenSpan, Within};

/// Bytes of responses that a stream holds before its watches fall behind; one response may be larger.
pub const QUEUE_BYTES_MAX: usize = 1 << 20;

/// Memory of a watch besides its keys, in its stream and in an index, in bytes.
const WATCH_BYTES: usize = 1024;
/// Places of a stream's queue that are kept while nothing waits in it.
const QUEUE_PLACES_KEPT: usize = 4;

/// One watch.
pub(super) struct Watch {
    /// Number of the watch, unique among all watches of the hub.
    pub serial: u64,
    /// Watch id, unique on its stream.
    pub id: i64,
    /// The stream it belongs to. The circle is broken when the stream closes.
    pub stream: Rc<Stream>,
    /// Keys that are watched.
    pub keys: Keys,
    /// A hash of these that no client can foresee.
    pub keys_hash: u64,
    /// The revision it was asked to begin at; otherwise the newest there was when it was made, of which it is told
    /// nothing.
    pub start: Revision,
    /// True if events carry the previous key-value pair (`prev_kv`).
    pub previous: bool,
    /// True if puts are filtered out.
    pub no_put: bool,
    /// True if deletions are filtered out.
    pub no_delete: bool,
    /// True if large responses are fragmented.
    pub fragment: bool,
    /// True if the client wants periodic progress notifications.
    pub progress: bool,
    /// The watch has been told of everything below this revision. While it is synced, the hub's revision says more.
    pub next: Cell<Revision>,
    /// True if the watch is in the hub's index of synced watches, and not in its stream's.
    pub synced: Cell<bool>,
    /// True if the history that it should read next was compacted: it is in no index, and waits for the client to cancel
    /// it.
    pub compacted: Cell<bool>,
    /// True if its stream counts it among those that begin above the hub's revision.
    pub ahead: Cell<bool>,
    /// True if it was sent no event since the last periodic progress notification.
    pub quiet: Cell<bool>,
    /// True if the present slice could not be queued for it.
    pub left_behind: Cell<bool>,
    /// True if it is chosen to be told next of a revision that concerns many watches.
    pub chosen: Cell<bool>,
    /// While it is behind and was not when it was made: what it keeps readable.
    pub hold: Cell<Option<Rc<Hold>>>,
    /// The events of the slice at hand that are for it.
    pub matched: Cell<Matched>,
    /// The watch's span, if its stream is traced. It ends with the watch.
    pub _span: Option<Box<OpenSpan>>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stream.charge(0, WATCH_BYTES + self.keys.bytes());
    }
}

impl Watch {
    /// A state in which it can read what it has to read next though that was compacted, if it keeps that readable.
    pub fn held<'a>(&self, view: &'a View) -> Option<Snapshot<'a>> {
        let hold = self.hold.take()?;
        let held = hold.snapshot(view, self.next.get());
        self.hold.set(Some(hold));
        held
    }

    /// Sets what keeps history readable for this watch; `None` for nothing.
    pub fn set_hold(&self, hold: Option<Rc<Hold>>) {
        let holds = usize::from(hold.is_some());
        let held = usize::from(self.hold.replace(hold).is_some());
        if holds != held {
            let held_watches = &self.stream.rare().held_watches;
            held_watches.set(held_watches.get() + holds - held);
        }
    }

    /// Returns true if a change, which is about one of its keys, is for it.
    pub fn wants(&self, version: Version<'_>) -> bool {
        let left_out = if version.is_tombstone() { self.no_delete } else { self.no_put };
        !left_out && version.main() >= self.next.get()
    }
}

/// Bytes of short responses that are sent together: as many as most clients take in one frame.
const TOGETHER_BYTES_MAX: usize = 16 << 10;

/// Memory made at first for short responses that are sent together.
const SHORT_ROOM_BYTES: usize = 1024;

/// Counts the events that wait in the streams of a hub. All shards share the gauge, so it is told once a turn and not of each
/// event.
pub(super) struct PendingEvents {
    gauge: Gauge,
    /// What the gauge was not told of yet.
    untold: Cell<i64>,
}

impl PendingEvents {
    pub fn new(gauge: Gauge) -> PendingEvents {
        PendingEvents { gauge, untold: Cell::new(0) }
    }

    fn add(&self, events: i64) {
        self.untold.set(self.untold.get() + events);
    }

    /// Tells the gauge.
    pub fn publish(&self) {
        let untold = self.untold.take();
        if untold != 0 {
            self.gauge.add(untold);
        }
    }
}

/// Numbers of the events of a slice that are for one watch, in ascending order. As a rule there is one, which takes no memory
/// of its own.
#[derive(Default, PartialEq, Eq)]
pub(super) struct Matched {
    first: Option<u32>,
    #[expect(
        clippy::box_collection,
        reason = "each watch has it, and hardly any has more than one event at a time"
    )]
    rest: Option<Box<Vec<u32>>>,
}

impl Matched {
    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Returns the count of numbers.
    pub fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.as_ref().map_or(0, |rest| rest.len())
    }

    /// Appends a number.
    pub fn push(&mut self, number: u32) {
        if self.first.is_none() {
            self.first = Some(number);
        } else {
            self.rest.get_or_insert_default().push(number);
        }
    }

    /// Takes those from this one on out again.
    pub fn truncate(&mut self, from: usize) {
        let is_kept = |number: &u32| (*number as usize) < from;
        if let Some(rest) = &mut self.rest {
            rest.truncate(rest.partition_point(is_kept));
        }
        self.rest.take_if(|rest| rest.is_empty());
        self.first = self.first.filter(is_kept);
    }

    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.first.into_iter().chain(self.rest.iter().flat_map(|rest| rest.iter().copied()))
    }
}

/// The class of a waiting stream. Streams of one class get their turns in the order of their arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    /// The stream holds fetched values, or a response that another stream has made, until its turn.
    Laden,
    /// The stream has a watch that was synced, for which history is kept for a minute only.
    Held,
    /// The stream's watches read history that they asked for.
    Other,
}

/// A stream's place in the line: its class, and its number in that.
pub(super) type Place = (Class, u64);

/// The place of a watch among those that are behind: the one that reads the oldest revision next is first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ReadsNext {
    revision: Revision,
    /// [`Watch::serial`].
    serial: u64,
}

impl ReadsNext {
    fn of(watch: &Watch) -> ReadsNext {
        ReadsNext { revision: watch.next.get(), serial: watch.serial }
    }
}

/// Maximum number of watches that read together from any of a range of revisions on.
#[derive(Clone, Copy, Default)]
struct Together {
    /// The first of these revisions.
    from: Revision,
    /// The last of these revisions.
    through: Revision,
    watches: usize,
}

/// The state that few streams need: it is made once a watch is behind, begins above the hub's revision, or is asked for its
/// progress, and for a stream that is traced.
#[derive(Default)]
pub(super) struct Rare {
    /// Begins the spans of watches, if the stream is traced.
    pub spans: OnceCell<Within>,
    /// Number of watches of the stream that were compacted away and that the client has not cancelled yet.
    pub compacted: Cell<usize>,
    /// The revision that a word of progress must reach, if the client waits for one: the newest when it asked.
    pub progress_wanted: Cell<Option<Revision>>,
    /// The newest revision that a watch was told of as history: it may be above the hub's.
    pub told_through: Cell<Revision>,
    /// Id of the watch from which on periodic progress is still to be sent.
    pub ticks_from: Cell<Option<i64>>,
    /// The revision with which it is among the streams that wait in the hub to tell of that, if it is.
    pub waits_for_progress: Cell<Option<Revision>>,
    /// The starts of watches that began above the hub's revision of then, and how many begin there. Entries that the
    /// revision has passed by now stay until their watches go.
    pub ahead: RefCell<BTreeMap<Revision, usize>>,
    /// Place of the stream in the line of those that wait to read history, if it waits.
    pub place: Cell<Option<Place>>,
    /// True if another stream is making the response that this one waits for.
    pub waits_for_another: Cell<bool>,
    /// Unsynced watches, by the revision they read next and their number.
    unsynced: RefCell<BTreeMap<ReadsNext, Rc<Watch>>>,
    /// Values on their way that its history needs.
    fetching: RefCell<Option<Box<Attempt>>>,
    /// Revision from which the history in `fetching` begins.
    fetching_from: Cell<Revision>,
    /// Bytes of values that were fetched and that it holds until its turn.
    fetched_bytes: Cell<usize>,
    /// Number of its watches that keep readable what they read.
    held_watches: Cell<usize>,
    /// A revision of many changes that some watches are reading, and what is charged for it.
    long: RefCell<Option<Long>>,
    long_bytes: Cell<usize>,
    /// A range of revisions, first and last, and the maximum number of watches that may read together from any of them
    /// on.
    together_max: Cell<Together>,
}

/// One client's stream.
pub(super) struct Stream {
    /// Number of the stream, unique among all streams of the hub.
    pub serial: u64,
    /// True if the stream ends when there is no leader.
    pub needs_leader: bool,
    /// The permission of the stream's user to watch keys.
    pub permit: Box<dyn Permit>,
    /// Figures of the client whose watches these are.
    pub caller: Arc<Caller>,
    /// All watches of the stream, by watch id.
    pub watches: RefCell<ById<Rc<Watch>>>,
    /// The next number the server would choose.
    pub next_id: Cell<i64>,
    /// True if a watch of the stream ever asked for periodic progress.
    pub wants_ticks: Cell<bool>,
    queue: RefCell<VecDeque<Queued>>,
    /// At most [`QUEUE_BYTES_MAX`], or one response, which is no longer than a message can be.
    queued_bytes: Cell<u32>,
    waker: Cell<Option<Waker>>,
    /// In a box, and once it is needed.
    rare: OnceCell<Box<Rare>>,
    end: OnceCell<Box<Status>>,
    pending_events: Rc<PendingEvents>,
    /// Charges the watches and what waits; `None` for a stream that did not come through a front end.
    held: Cell<Option<Held>>,
}

impl Stream {
    pub fn new(
        serial: u64,
        needs_leader: bool,
        caller: Arc<Caller>,
        permit: Box<dyn Permit>,
        spans: Option<Within>,
        pending_events: Rc<PendingEvents>,
        account: Option<Rc<Account>>,
    ) -> Stream {
        let stream = Stream {
            held: Cell::new(account.map(|account| account.hold(0))),
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
            pending_events,
        };
        if let Some(spans) = spans {
            stream.rare().spans.get_or_init(|| spans);
        }
        stream
    }

    /// Returns the span within which those of the stream's watches begin; `None` for a stream that is not traced.
    pub fn spans(&self) -> Option<&Within> {
        self.rare_if_any()?.spans.get()
    }

    /// Returns the state that few streams need, and makes it if it is not there.
    pub fn rare(&self) -> &Rare {
        self.rare.get_or_init(Box::default)
    }

    /// Returns the state that few streams need, if this one has it.
    pub fn rare_if_any(&self) -> Option<&Rare> {
        self.rare.get().map(|rare| &**rare)
    }

    /// The revision with which it is among the streams that wait in the hub to tell of that, if it is.
    pub fn waits_for_progress(&self) -> Option<Revision> {
        self.rare_if_any()?.waits_for_progress.get()
    }

    /// The revision that a word of progress must reach, if the client waits for one.
    pub fn progress_wanted(&self) -> Option<Revision> {
        self.rare_if_any()?.progress_wanted.get()
    }

    /// Returns true if periodic progress is still to be sent.
    pub fn is_ticking(&self) -> bool {
        self.rare_if_any().is_some_and(|rare| rare.ticks_from.get().is_some())
    }

    /// Takes a watch in among those that are behind.
    pub fn fall_behind(&self, watch: &Rc<Watch>) {
        let replaced = self.rare().unsynced.borrow_mut().insert(ReadsNext::of(watch), Rc::clone(watch));
        assert!(replaced.is_none(), "a watch is behind only once");
    }

    /// Takes a watch out from among those that are behind; returns true if it was one of them.
    pub fn catches_up(&self, watch: &Watch) -> bool {
        let rare = self.rare_if_any();
        rare.is_some_and(|rare| rare.unsynced.borrow_mut().remove(&ReadsNext::of(watch)).is_some())
    }

    /// Returns true if all its watches are as far as the hub.
    pub fn is_synced(&self) -> bool {
        self.rare_if_any().is_none_or(|rare| rare.unsynced.borrow().is_empty())
    }

    /// Returns up to `watches_max` unsynced watches, those with the oldest next revision first.
    pub fn most_behind(&self, watches_max: usize) -> Vec<Rc<Watch>> {
        let Some(rare) = self.rare_if_any() else { return Vec::new() };
        rare.unsynced.borrow().values().take(watches_max).cloned().collect()
    }

    /// Returns true if it may read a slice of history now: there is some to read, and all before it is with the front.
    /// Once that is so again, the stream comes to it by itself.
    pub fn may_read(&self) -> bool {
        self.is_drained() && !self.is_synced() && !self.waits_for_another() && !self.has_ended()
    }

    fn waits_for_another(&self) -> bool {
        self.rare_if_any().is_some_and(|rare| rare.waits_for_another.get())
    }

    /// Returns the number of watches that may read together from this revision on.
    pub fn together_max(&self, from: Revision) -> usize {
        let Some(rare) = self.rare_if_any() else { return usize::MAX };
        let Together { from: first, through, watches } = rare.together_max.get();
        if (first..=through).contains(&from) { watches } else { usize::MAX }
    }

    /// Limits the number of watches that read together to `watches`, for reads that begin at `from` through `through`.
    pub fn read_fewer_together(&self, from: Revision, through: Revision, watches: usize) {
        self.rare().together_max.set(Together { from, through, watches });
    }

    /// Returns true if a response of this length may be queued.
    pub fn has_room(&self, len: usize) -> bool {
        let queued = self.queued_bytes.get() as usize;
        (queued == 0 || queued + len <= QUEUE_BYTES_MAX) && !self.is_half_sent()
    }

    /// Returns true if the client has had a fragment of a revision, and not the last: clients expect nothing else before
    /// it.
    pub fn is_half_sent(&self) -> bool {
        self.rare_if_any().is_some_and(|rare| {
            let long = rare.long.borrow();
            long.as_ref().is_some_and(|long| long.is_half_sent)
        })
    }

    /// Sets the revision of many changes that some watches read before others read on; `None` for none.
    pub fn set_long(&self, long: Option<Long>) {
        let bytes = long.as_ref().map_or(0, Long::bytes);
        if long.is_none() {
            let Some(rare) = self.rare_if_any() else { return };
            rare.waits_for_another.set(false);
        }
        let rare = self.rare();
        // Dropping it may wake others.
        let before = rare.long.replace(long);
        drop(before);
        self.charge(bytes, rare.long_bytes.replace(bytes));
    }

    /// Gives it what another stream has made of what it waits to read, which nobody is charged for until it is its turn;
    /// returns false if it might not take it soon.
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

    /// Charges nothing any more for what was made of a revision of many changes.
    pub fn release_long(&self) {
        if let Some(rare) = self.rare_if_any() {
            self.charge(0, rare.long_bytes.replace(0));
        }
    }

    /// Lets others make what they wait for themselves: this stream does not go on.
    pub fn give_up_claim(&self) {
        let Some(rare) = self.rare_if_any() else { return };
        let claim = rare.long.borrow_mut().as_mut().and_then(|long| long.claim.take());
        drop(claim);
    }

    /// Takes out what [`Stream::set_long`] has set. It stays charged until something else is set.
    pub fn take_long(&self) -> Option<Long> {
        self.rare_if_any()?.long.borrow_mut().take()
    }

    /// Returns the bytes charged for a revision of many changes.
    #[cfg(test)]
    pub fn long_bytes(&self) -> usize {
        self.rare_if_any().map_or(0, |rare| rare.long_bytes.get())
    }

    /// Takes a watch out from among those that read a revision of many changes.
    pub fn leave_long(&self, watch: &Watch) {
        let Some(mut long) = self.take_long() else { return };
        long.parts.retain(|part| part.watch.serial != watch.serial);
        self.set_long(if long.parts.is_empty() { None } else { Some(long) });
    }

    /// The revision from which on the word of progress that the client waits for may be said about all watches: they have
    /// everything up to there, none begins above it, and none was told of more. `None` if the client waits for no word, or if
    /// something else has to happen first: a watch reads on, or the client cancels one that was compacted away. The word is
    /// asked for by a few bytes, so this does not look at each watch.
    pub fn progress_due(&self) -> Option<Revision> {
        let rare = self.rare_if_any()?;
        let wanted = rare.progress_wanted.get()?;
        let may_be = self.is_synced() && rare.compacted.get() == 0;
        let ahead = rare.ahead.borrow().last_key_value().map_or(wanted, |(start, _)| *start);
        let told = if planted::is(Bug::ProgressBelowHistory) { wanted } else { rare.told_through.get() };
        may_be.then(|| wanted.max(ahead).max(told))
    }

    /// Charges a watch of these keys to the client, for as long as there is the watch.
    pub fn hold_watch(&self, keys: &Keys) {
        self.charge(WATCH_BYTES + keys.bytes(), 0);
    }

    /// Charges bytes that this stream and others may wait for, once.
    pub fn share(&self, bytes: Bytes) -> Bytes {
        match self.account() {
            Some(account) => account.share(bytes),
            None => bytes,
        }
    }

    /// Most bytes that the events of one revision may make for one watch.
    pub fn revision_bytes_max(&self) -> usize {
        let budget = self.account().map_or(usize::MAX, |account| account.budget().bytes_max() / 4);
        budget.min(i32::MAX as usize)
    }

    fn charge(&self, more: usize, less: usize) {
        if let Some(mut held) = self.held.take() {
            held.set(held.bytes() + more - less);
            self.held.set(Some(held));
        }
    }

    /// The account that the watches and what waits are charged to; `None` for a stream that did not come through a front end.
    fn account(&self) -> Option<Rc<Account>> {
        let held = self.held.take()?;
        let account = Rc::clone(held.account());
        self.held.set(Some(held));
        Some(account)
    }

    /// Number of watches that read a revision of many changes.
    pub fn long_parts(&self) -> usize {
        let Some(rare) = self.rare_if_any() else { return 0 };
        rare.long.borrow().as_ref().map_or(0, |long| long.parts.len())
    }

    /// Number of responses that wait to be sent.
    pub fn queued(&self) -> usize {
        self.queue.borrow().len()
    }

    /// Returns true if nothing waits to be sent.
    pub fn is_drained(&self) -> bool {
        self.queue.borrow().is_empty()
    }

    /// Bytes that wait to be sent.
    #[cfg(test)]
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes.get() as usize
    }

    /// Puts a response behind the others. The caller has looked for room.
    pub fn push(&self, queued: Queued) {
        self.note_queued(&queued);
        let mut queue = self.queue.borrow_mut();
        if queue.capacity() == 0 {
            // Most streams never have more to send at once.
            queue.reserve_exact(1);
        }
        queue.push_back(queued);
        // Behind others it is waited for already: the task that sends waits for space.
        let is_first = queue.len() == 1;
        drop(queue);
        if is_first {
            self.wake();
        }
    }

    /// Puts a response of at most [`SHORT_BYTES`](super::queued::SHORT_BYTES) behind the others. It comes in parts: what is
    /// before the events, and so many events. The caller has looked for room.
    pub fn push_short(&self, head: &[u8], fields: &[u8], count: u32) {
        let bytes = Messages::wire_len(head.len() + fields.len());
        let mut queue = self.queue.borrow_mut();
        if let Some(Queued { body: Body::Short(messages), events }) = queue.back_mut()
            && messages.wire_bytes() + bytes <= TOGETHER_BYTES_MAX
            && *events == count * messages.len() as u32
        {
            messages.push([head, fields]);
            *events += count;
            drop(queue);
            self.queued_bytes.set(self.queued_bytes.get() + bytes as u32);
            self.charge(QUEUED_BYTES + bytes, 0);
            self.pending_events.add(i64::from(count));
            return;
        }
        drop(queue);
        // Where there are other watches they may be told of the same.
        let is_alone = self.watches.borrow().len() == 1;
        let mut messages =
            Messages::with_capacity(if is_alone { bytes } else { bytes.max(SHORT_ROOM_BYTES) });
        messages.push([head, fields]);
        self.push(Queued { body: Body::Short(messages), events: count });
    }

    fn note_queued(&self, queued: &Queued) {
        self.queued_bytes.set(self.queued_bytes.get() + queued.body.bytes() as u32);
        self.charge(queued.charged_bytes(), 0);
        self.pending_events.add(i64::from(queued.events));
        // What it was given would go behind this with an older header, and its client may not take this soon.
        if let Some(rare) = self.rare_if_any() {
            let given = rare.long.borrow_mut().as_mut().and_then(|long| long.given.take());
            drop(given);
        }
    }

    /// Takes the next response to send, or the next that are sent together.
    pub fn pop(&self) -> Option<Queued> {
        let mut queue = self.queue.borrow_mut();
        let queued = queue.pop_front()?;
        if queue.is_empty() && (queue.capacity() > QUEUE_PLACES_KEPT || queued.events == 0) {
            // A stream that has nothing to send is not to hold what it needed when it had much, nor for the one response that
            // says that a watch was made, after which there may be nothing for days.
            *queue = VecDeque::new();
        }
        drop(queue);
        self.queued_bytes.set(self.queued_bytes.get() - queued.body.bytes() as u32);
        self.charge(0, queued.charged_bytes());
        self.pending_events.add(-i64::from(queued.events));
        Some(queued)
    }

    /// Puts back what could not be sent after all.
    pub fn put_back(&self, queued: Queued) {
        self.queued_bytes.set(self.queued_bytes.get() + queued.body.bytes() as u32);
        self.charge(queued.charged_bytes(), 0);
        self.pending_events.add(i64::from(queued.events));
        self.queue.borrow_mut().push_front(queued);
    }

    /// Ends the stream with this status; the first one counts.
    pub fn end(&self, status: Status) {
        self.end.get_or_init(|| Box::new(status));
        self.wake();
    }

    /// Returns true if it is time to end.
    pub fn has_ended(&self) -> bool {
        self.end.get().is_some()
    }

    /// The status to end with, if it is time.
    pub fn ending(&self) -> Option<Status> {
        self.end.get().map(|status| Status::clone(status))
    }

    /// Returns the attempt that was begun with the values for history from this revision on, or a new one from `begin`.
    pub fn attempt(&self, from: Revision, begin: impl FnOnce() -> Attempt) -> Attempt {
        let rare = self.rare();
        let begun = rare.fetching.borrow_mut().take();
        self.charge_fetched(0);
        let before = rare.fetching_from.replace(from);
        begun.filter(|_| before == from).map_or_else(begin, |begun| *begun)
    }

    /// Orders the values that this attempt found missing to be read.
    pub fn fetch(&self, attempt: Attempt) {
        self.charge_fetched(attempt.arrived_bytes());
        *self.rare().fetching.borrow_mut() = Some(Box::new(attempt));
    }

    /// Ready when no values are on their way.
    pub fn poll_fetched(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.is_synced() {
            self.drop_fetched();
        }
        let Some(rare) = self.rare_if_any() else { return Poll::Ready(()) };
        let mut fetching = rare.fetching.borrow_mut();
        let Some(attempt) = fetching.as_mut() else { return Poll::Ready(()) };
        let polled = attempt.poll_fetched(context);
        if polled.is_ready() && self.account().is_some() {
            // Held for as long as the client takes nothing, so this is what it is charged for.
            attempt.drop_charges();
        }
        self.charge_fetched(attempt.arrived_bytes());
        polled
    }

    /// Drops what was fetched, or is on its way.
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

    /// Bytes of values that were fetched and wait for its turn.
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

    /// Leaves a waker for the next response; `None` while the stream is being worked on.
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
        self.pending_events.add(-events);
        self.pending_events.publish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_and_its_watch_are_small() {
        // With the 16 bytes of a counted pointer they are 192 and 128, and the allocator has pieces of these sizes.
        assert!(size_of::<Stream>() <= 176, "a stream has {} bytes", size_of::<Stream>());
        assert!(size_of::<Watch>() <= 112, "a watch has {} bytes", size_of::<Watch>());
    }
}
