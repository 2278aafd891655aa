//! All watches of one shard.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use api::etcdserverpb::watch_create_request::FilterType;
use api::etcdserverpb::watch_request::RequestUnion;
use api::etcdserverpb::{ResponseHeader, WatchCreateRequest, WatchRequest, WatchResponse};
use api::limits::GRPC_OVERHEAD_BYTES;
use api::{Status, error};
use bytes::Bytes;
use front::{Account, Closing, Head, Inbound, LocalBoxFuture, Outbound};
use planted::Bug;

use super::drive::{self, Requests, Responses};
use super::index::{End, Index, Keys};
use super::response::NO_WATCH;
use super::slice::Slice;
use super::stream::{Queued, Stream, Watch};
use crate::callers::Caller;
use crate::clock::Sleep;
use crate::services::decode_streamed;
use crate::shared::{Published, Shared};
use crate::values::{Attempt, Source};

/// All watches of one shard. It lives on that shard's thread.
pub struct Hub {
    shared: Arc<Shared>,
    shard: usize,
    values: Rc<dyn Source>,
    /// Synced watches have been given everything up to here.
    revision: Cell<i64>,
    synced: RefCell<Index<Rc<Watch>>>,
    streams: RefCell<BTreeMap<u64, Rc<Stream>>>,
    /// Streams that wait for the revision to reach the start of a watch before they tell of progress.
    waiting: RefCell<Vec<Rc<Stream>>>,
    serial: Cell<u64>,
    /// Streams that have ended and whose watches are still in the index, to be taken out in slices.
    ended: RefCell<VecDeque<Rc<Stream>>>,
    /// Wakes the task that does so.
    reaper: Cell<Option<Waker>>,
}

/// Watches that are taken out of the index between two looks at other calls.
const REAPED_AT_ONCE: usize = 256;

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
        // Breaks the circles of watches and streams that the reaper did not come to.
        for stream in self.ended.get_mut().drain(..) {
            stream.watches.take();
        }
    }
}

impl Hub {
    /// The hub of this shard, at the present state.
    pub fn new(shared: Arc<Shared>, shard: usize, values: Rc<dyn Source>) -> Rc<Hub> {
        let revision = shared.state.load().view.snapshot().current_revision();
        Rc::new(Hub {
            shared,
            shard,
            values,
            revision: Cell::new(revision),
            synced: RefCell::default(),
            streams: RefCell::default(),
            waiting: RefCell::default(),
            serial: Cell::new(0),
            ended: RefCell::default(),
            reaper: Cell::default(),
        })
    }

    /// Takes the newest state and hands out what changed since the last. Called whenever the shard is woken;
    /// without news it costs next to nothing.
    pub fn advance(&self) {
        let state = self.shared.state.load_full();
        let snapshot = state.view.snapshot();
        let current = snapshot.current_revision();
        if current <= self.revision.get() {
            return;
        }
        let header = self.header(&state, current);
        // What is not at hand is fetched for each stream that needs it, while the others go on.
        let values = Attempt::new(self.values.clone());
        let from = self.revision.get() + 1;
        // Above what may have been removed, everything written is still there, compacted or not.
        let changes = if from > state.removed_through || planted::is(Bug::WatchLostAtCompaction) {
            Ok(snapshot.written(from, current))
        } else {
            snapshot.changes(from, current)
        };
        let mut changes = match changes {
            _ if self.synced.borrow().is_empty() => None,
            Ok(changes) => Some(changes.peekable()),
            Err(_) => {
                // Compacted before this shard came to see it: the streams find out for each watch.
                let mut all = Vec::new();
                self.synced.borrow().visit_all(&mut |watch| all.push(Rc::clone(watch)));
                // Not in the order of a hash map, which differs from run to run.
                all.sort_unstable_by_key(|watch| watch.serial);
                all.iter().for_each(|watch| self.fall_behind(watch, from));
                None
            }
        };
        while let Some(changes) = &mut changes {
            let from = self.revision.get() + 1;
            let (slice, through) = Slice::gather(snapshot, &values, changes, &self.synced.borrow(), current);
            for watch in slice.hand_out(&header, self.fragment_bytes_max()) {
                self.fall_behind(&watch, from);
            }
            self.revision.set(through);
            if through >= current || self.synced.borrow().is_empty() {
                break;
            }
        }
        self.revision.set(current);
        self.shared.saw(self.shard, current);
        for stream in self.waiting.take() {
            stream.waits_for_progress.set(false);
            stream.wake();
        }
    }

    /// Serves one stream until the client leaves, the front closes, or the server has to end it. A client that
    /// closes its side only ends its requests: what it watches goes on, as with etcd (its gateway depends on that).
    pub fn stream(
        self: &Rc<Self>,
        head: Head,
        caller: Arc<Caller>,
        inbound: Inbound,
        outbound: Outbound,
        mut closing: Closing,
    ) -> LocalBoxFuture<Result<(), Status>> {
        let closed = async move { closing.begun().await };
        self.serve(head.requires_leader(), caller, inbound, outbound, closed)
    }

    /// As [`Hub::stream`], for streams that are not the front's. `closed` resolves when the server stops.
    pub fn serve(
        self: &Rc<Self>,
        needs_leader: bool,
        caller: Arc<Caller>,
        requests: impl Requests,
        responses: impl Responses,
        closed: impl Future<Output = ()> + 'static,
    ) -> LocalBoxFuture<Result<(), Status>> {
        Box::pin(drive::run(Rc::clone(self), needs_leader, caller, requests, responses, closed))
    }

    /// Ends all streams whose clients insist on a leader: there has been none for too long.
    pub fn leader_lost(&self) {
        for stream in self.streams.borrow().values().filter(|stream| stream.needs_leader) {
            stream.end(error::NO_LEADER);
        }
    }

    /// Ends all streams when this member's state is known to differ from the others'.
    pub fn end_if_quarantined(&self) {
        if self.shared.state.load().is_quarantined(self.shared.identity.member_id) {
            for stream in self.streams.borrow().values() {
                stream.end(error::CORRUPT);
            }
        }
    }

    /// How many watches there are on this shard.
    pub fn watches(&self) -> usize {
        self.shared.attendance.watches(self.shard)
    }

    /// The revision up to which synced watches have been given everything.
    pub fn revision(&self) -> i64 {
        self.revision.get()
    }

    /// The most bytes that any stream holds.
    #[cfg(test)]
    pub(super) fn queued_bytes_max(&self) -> usize {
        self.streams.borrow().values().map(|stream| stream.queued_bytes()).max().unwrap_or(0)
    }

    /// Whether this member knows a leader.
    pub fn has_leader(&self) -> bool {
        self.shared.state.load().leader != 0
    }

    /// Resolves after this time, by the member's clock.
    pub(super) fn sleep(&self, time: Duration) -> Sleep {
        self.shared.clock.sleep(time)
    }

    /// How long the cluster takes to notice that a leader is gone, at the least.
    pub fn election_timeout(&self) -> Duration {
        self.shared.limits.election_timeout
    }

    /// Counts a response that took so long to send.
    pub(super) fn count_sent(&self, events: u32, took: Duration) {
        let metrics = &self.shared.metrics;
        if events == 0 {
            metrics.server.watch_send_control.observe_seconds(took);
            return;
        }
        metrics.mvcc.events.add(u64::from(events));
        metrics.server.watch_send_stream.observe_seconds(took);
        metrics.server.watch_send_event.observe_seconds(took / events);
    }

    /// The time between two periodic words of progress on a stream; some differ, so that not all come at once.
    pub(super) fn progress_interval(&self, stream: &Stream) -> Duration {
        let interval = self.shared.limits.progress_interval;
        let spread = stream.serial.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
        (interval + interval * (spread as u32) / 10_240).max(Duration::from_millis(1))
    }

    pub(super) fn open(
        self: &Rc<Self>,
        needs_leader: bool,
        caller: Arc<Caller>,
        account: Option<Rc<Account>>,
    ) -> Registration {
        let serial = self.next_serial();
        let stream = Rc::new(Stream::new(
            serial,
            needs_leader,
            caller,
            self.shared.metrics.mvcc.pending_events.clone(),
            account,
        ));
        self.streams.borrow_mut().insert(serial, Rc::clone(&stream));
        self.shared.metrics.mvcc.watch_streams.add(1);
        Registration { hub: Rc::clone(self), stream }
    }

    /// Takes a stream out. A client decides how many watches it has, so those beyond a slice go later.
    fn close(&self, stream: &Rc<Stream>) {
        // Watches that are still in the index are passed over from now on.
        stream.end(error::WATCH_CANCELED);
        self.streams.borrow_mut().remove(&stream.serial);
        if stream.waits_for_progress.replace(false) {
            self.waiting.borrow_mut().retain(|waiting| !Rc::ptr_eq(waiting, stream));
        }
        self.shared.metrics.mvcc.watch_streams.add(-1);
        if !self.forget_some(stream) {
            self.ended.borrow_mut().push_back(Rc::clone(stream));
            if let Some(reaper) = self.reaper.take() {
                reaper.wake();
            }
        }
    }

    /// Takes a slice of a stream's watches out; returns true if none is left.
    fn forget_some(&self, stream: &Stream) -> bool {
        for _ in 0..REAPED_AT_ONCE {
            let Some((_, watch)) = stream.watches.borrow_mut().pop_first() else { return true };
            self.forget(&watch);
        }
        stream.watches.borrow().is_empty()
    }

    /// Takes a slice of the watches of ended streams out; to be polled by a task of its own.
    pub fn poll_reap(&self, context: &mut Context<'_>) {
        let next = self.ended.borrow_mut().pop_front();
        if let Some(stream) = next
            && !self.forget_some(&stream)
        {
            self.ended.borrow_mut().push_front(stream);
        }
        if self.ended.borrow().is_empty() {
            self.reaper.set(Some(context.waker().clone()));
        } else {
            context.waker().wake_by_ref();
        }
    }

    fn next_serial(&self) -> u64 {
        self.serial.set(self.serial.get() + 1);
        self.serial.get()
    }

    fn header(&self, state: &Published, revision: i64) -> ResponseHeader {
        self.shared.header(revision, state.applied_term)
    }

    fn present_header(&self) -> ResponseHeader {
        self.header(&self.shared.state.load(), self.revision.get())
    }

    fn fragment_bytes_max(&self) -> usize {
        self.shared.limits.request_bytes_max + GRPC_OVERHEAD_BYTES
    }

    /// Answers one request.
    pub(super) fn request(&self, stream: &Rc<Stream>, message: Bytes) -> Result<(), Status> {
        let request: WatchRequest = decode_streamed(message)?;
        match request.request_union {
            Some(RequestUnion::CreateRequest(create)) => self.create(stream, &create),
            Some(RequestUnion::CancelRequest(cancel)) => self.cancel(stream, cancel.watch_id),
            Some(RequestUnion::ProgressRequest(_)) => {
                stream.progress_wanted.set(!stream.watches.borrow().is_empty());
                self.tell_progress(stream);
            }
            // etcd passes over what it does not know.
            None => {}
        }
        Ok(())
    }

    fn create(&self, stream: &Rc<Stream>, request: &WatchCreateRequest) {
        // Counted before looking at the state: then either the core sees the count and wakes this shard for what it
        // publishes next, or this shard sees what was published.
        self.shared.attendance.watch_begins(self.shard);
        self.advance();
        let mut response =
            WatchResponse { header: Some(self.present_header()), created: true, ..WatchResponse::default() };
        match self.admit(stream, request) {
            Ok(watch) => {
                response.watch_id = watch.id;
                stream.push(Queued::control(&response));
                self.begin(watch);
            }
            Err(reason) => {
                self.shared.attendance.watch_ends(self.shard);
                response.watch_id = NO_WATCH;
                response.canceled = true;
                response.cancel_reason = reason.message.into_owned();
                stream.push(Queued::control(&response));
            }
        }
    }

    /// Checks a request in etcd's order, and makes the watch.
    fn admit(&self, stream: &Rc<Stream>, request: &WatchCreateRequest) -> Result<Watch, Status> {
        if request.start_revision < 0 {
            return Err(error::COMPACTED);
        }
        // Copies, since what was decoded keeps the whole frame that it came in.
        let key = if request.key.is_empty() { &b"\0"[..] } else { &request.key };
        let key = Bytes::copy_from_slice(key);
        let keys = match &*request.range_end {
            b"" => Keys::Single(key),
            b"\0" => Keys::Range(key, End::Unbounded),
            end if *end <= *key => return Err(error::WATCH_EMPTY_RANGE),
            end => Keys::Range(key, End::Before(Bytes::copy_from_slice(end))),
        };
        let watches = stream.watches.borrow();
        let id = if request.watch_id != 0 {
            if watches.contains_key(&request.watch_id) {
                return Err(error::WATCH_DUPLICATE_ID);
            }
            request.watch_id
        } else {
            let mut id = stream.next_id.get();
            while watches.contains_key(&id) {
                id += 1;
            }
            stream.next_id.set(id + 1);
            id
        };
        // Values that are no filter are passed over, as etcd does.
        let filters = |filter: FilterType| request.filters.contains(&(filter as i32));
        Ok(Watch {
            serial: self.next_serial(),
            id,
            stream: Rc::clone(stream),
            keys,
            start: request.start_revision,
            previous: request.prev_kv,
            no_put: filters(FilterType::Noput),
            no_delete: filters(FilterType::Nodelete),
            fragment: request.fragment,
            progress: request.progress_notify,
            next: Cell::new(match request.start_revision {
                0 => self.revision.get() + 1,
                start => start,
            }),
            synced: Cell::new(true),
            compacted: Cell::new(false),
            ahead: Cell::new(false),
            quiet: Cell::new(true),
            left_behind: Cell::new(false),
            matched: RefCell::default(),
            _held: stream.hold_watch(request.key.len() + request.range_end.len()),
        })
    }

    /// Takes a watch in; it is counted already.
    fn begin(&self, watch: Watch) {
        let watch = Rc::new(watch);
        let stream = &watch.stream;
        watch.synced.set(watch.next.get() > self.revision.get());
        if watch.synced.get() {
            self.synced.borrow_mut().insert(&watch.keys, watch.serial, Rc::clone(&watch));
        } else {
            stream.unsynced.borrow_mut().insert(&watch.keys, watch.serial, Rc::clone(&watch));
            self.shared.metrics.mvcc.slow_watchers.add(1);
        }
        self.shared.metrics.mvcc.watchers.add(1);
        stream.caller.watches.fetch_add(1, Relaxed);
        stream.wants_ticks.set(stream.wants_ticks.get() || watch.progress);
        if watch.start > self.revision.get() {
            watch.ahead.set(true);
            *stream.ahead.borrow_mut().entry(watch.start).or_default() += 1;
        }
        stream.watches.borrow_mut().insert(watch.id, Rc::clone(&watch));
    }

    /// Takes a watch out of the index it is in, and of the counts.
    fn forget(&self, watch: &Watch) {
        if watch.compacted.get() {
            watch.stream.compacted.set(watch.stream.compacted.get() - 1);
        } else {
            self.rest(watch);
        }
        let mut ahead = watch.stream.ahead.borrow_mut();
        if watch.ahead.get()
            && let Some(count) = ahead.get_mut(&watch.start)
        {
            *count -= 1;
            if *count == 0 {
                ahead.remove(&watch.start);
            }
        }
        drop(ahead);
        self.shared.metrics.mvcc.watchers.add(-1);
        watch.stream.caller.watches.fetch_sub(1, Relaxed);
    }

    /// Takes a watch out of the index it is in: nothing will happen to it any more.
    fn rest(&self, watch: &Watch) {
        let removed = if watch.synced.get() {
            self.synced.borrow_mut().remove(&watch.keys, watch.serial)
        } else {
            self.shared.metrics.mvcc.slow_watchers.add(-1);
            watch.stream.unsynced.borrow_mut().remove(&watch.keys, watch.serial)
        };
        assert!(removed.is_some(), "a watch is in the index that it says");
        self.shared.attendance.watch_ends(self.shard);
    }

    fn cancel(&self, stream: &Rc<Stream>, id: i64) {
        let Some(watch) = stream.watches.borrow_mut().remove(&id) else { return };
        self.forget(&watch);
        // So that no header is behind one that the stream has had.
        self.advance();
        let response = WatchResponse {
            header: Some(self.present_header()),
            watch_id: id,
            canceled: true,
            ..WatchResponse::default()
        };
        stream.push(Queued::control(&response));
    }

    /// Makes a synced watch read history from `next` on.
    fn fall_behind(&self, watch: &Rc<Watch>, next: i64) {
        let removed = self.synced.borrow_mut().remove(&watch.keys, watch.serial);
        assert!(removed.is_some(), "only a synced watch falls behind");
        let next = if planted::is(Bug::WatchFallsTooFarBehind) { next - 1 } else { next };
        watch.next.set(watch.next.get().max(next));
        watch.synced.set(false);
        watch.stream.unsynced.borrow_mut().insert(&watch.keys, watch.serial, Rc::clone(watch));
        self.shared.metrics.mvcc.slow_watchers.add(1);
        watch.stream.wake();
    }

    /// Reads one slice of history for the watches of a stream that are behind.
    pub(super) fn catch_up(&self, stream: &Stream) {
        let state = self.shared.state.load_full();
        let snapshot = state.view.snapshot();
        let (current, compacted) = (snapshot.current_revision(), snapshot.compact_revision());
        let mut behind = Vec::new();
        stream.unsynced.borrow().visit_all(&mut |watch| behind.push(Rc::clone(watch)));
        behind.sort_unstable_by_key(|watch| watch.serial);
        behind.retain(|watch| {
            let readable = watch.next.get() >= compacted;
            if !readable {
                self.cancel_compacted(watch, &state, compacted);
            }
            readable
        });
        let Some(from) = behind.iter().map(|watch| watch.next.get()).min() else { return };
        // It cannot be compacted: that was looked at above.
        let Ok(changes) = snapshot.changes(from, current) else { return };
        let header = self.header(&state, current);
        let mut values = stream.attempt(|| Attempt::new(self.values.clone()));
        // What was written since is at hand as a rule.
        values.ask_again();
        let (slice, through) =
            Slice::gather(snapshot, &values, &mut changes.peekable(), &stream.unsynced.borrow(), current);
        for watch in slice.hand_out(&header, self.fragment_bytes_max()) {
            watch.left_behind.set(true);
        }
        let mut advanced = false;
        for watch in behind {
            if !watch.left_behind.replace(false) {
                let next = watch.next.get().max(through + 1);
                advanced |= watch.next.replace(next) < next;
            }
            if watch.next.get() > self.revision.get() {
                stream.unsynced.borrow_mut().remove(&watch.keys, watch.serial);
                self.shared.metrics.mvcc.slow_watchers.add(-1);
                watch.synced.set(true);
                self.synced.borrow_mut().insert(&watch.keys, watch.serial, watch.clone());
            }
        }
        if !values.is_complete() {
            if advanced {
                // The next slice is another one.
                values.forget();
            }
            stream.fetch(values);
        }
    }

    /// Tells the client that a watch cannot go on. As with etcd the stream knows it until the client cancels it too:
    /// its number stays taken, its cancellation is answered, and progress is not told of until then.
    fn cancel_compacted(&self, watch: &Watch, state: &Published, compacted: i64) {
        self.rest(watch);
        watch.compacted.set(true);
        watch.stream.compacted.set(watch.stream.compacted.get() + 1);
        watch.synced.set(false);
        let response = WatchResponse {
            header: Some(self.header(state, 0)),
            watch_id: watch.id,
            canceled: true,
            compact_revision: compacted,
            ..WatchResponse::default()
        };
        watch.stream.push(Queued::control(&response));
    }

    /// Whether a word of progress may be said about a watch: it has everything up to the hub's revision, and does not
    /// begin above it.
    fn is_abreast(&self, watch: &Watch) -> bool {
        watch.synced.get() && watch.start <= self.revision.get()
    }

    /// Answers a progress request, if one is open and all watches are abreast.
    ///
    /// etcd drops the request if they are not; here the client hears as soon as they are.
    pub(super) fn tell_progress(&self, stream: &Rc<Stream>) {
        if stream.progress_wanted.get() && planted::is(Bug::ProgressAhead) {
            stream.progress_wanted.set(false);
            return self.push_progress(stream, NO_WATCH);
        }
        if !stream.progress_wanted.get() || !stream.unsynced.borrow().is_empty() {
            return;
        }
        self.advance();
        if !stream.unsynced.borrow().is_empty() {
            return;
        }
        if stream.is_abreast(self.revision.get()) {
            stream.progress_wanted.set(false);
            self.push_progress(stream, NO_WATCH);
        } else if !stream.waits_for_progress.replace(true) {
            self.waiting.borrow_mut().push(Rc::clone(stream));
        }
    }

    /// Tells the watches that asked for it, and heard nothing since the last time, how far they are.
    pub(super) fn tell_periodic_progress(&self, stream: &Stream) {
        let begun = Instant::now();
        self.advance();
        for watch in stream.watches.borrow().values().filter(|watch| watch.progress) {
            if watch.quiet.replace(true) && self.is_abreast(watch) && stream.has_room(64) {
                self.push_progress(stream, watch.id);
            }
        }
        self.shared.metrics.server.watch_send_progress.observe_seconds(begun.elapsed());
    }

    fn push_progress(&self, stream: &Stream, watch_id: i64) {
        // What ends a stream may have kept events from its watches, and a client goes on behind what it was told.
        if stream.ending().is_some() {
            return;
        }
        let response =
            WatchResponse { header: Some(self.present_header()), watch_id, ..WatchResponse::default() };
        stream.push(Queued::control(&response));
    }
}
