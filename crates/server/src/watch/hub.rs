//! All watches of one shard.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::rc::{Rc, Weak};
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
use mvcc::Snapshot;
use planted::Bug;

use super::drive::{self, Requests, Responses};
use super::hold::Hold;
use super::index::{Index, Keys, Place};
use super::long::{Claim, Failed, Given, Long, Part};
use super::response::NO_WATCH;
use super::slice::{Done, Gathered, Portion, SLICE_BYTES_MAX, Slice, cannot_read, event_len, too_long};
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
    /// What synced watches are told in more than one turn.
    under_way: RefCell<Option<UnderWay>>,
    /// What the watches that fell behind last keep readable.
    hold: RefCell<Weak<Hold>>,
    /// The newest responses to revisions of many changes that streams are making, for others to wait for.
    claimed: RefCell<Vec<Weak<Claim>>>,
    /// How much of that is done in a turn.
    portion: Cell<Portion>,
    /// Streams that have ended and whose watches are still in the index, to be taken out in slices.
    ended: RefCell<VecDeque<Rc<Stream>>>,
    /// Streams that have history to read, in the order in which they come to it.
    readers: RefCell<VecDeque<Rc<Stream>>>,
    /// Whether some of what was published is left for later turns.
    is_told_later: Cell<bool>,
    /// Wakes the task that goes on with what was left for later turns, unless it is awake.
    worker: Cell<Option<Waker>>,
    /// The most changes that one turn walked over, and the most times that one looked at a watch.
    #[cfg(test)]
    work_max: Cell<(usize, usize)>,
    /// The same of all turns together, since somebody asked.
    #[cfg(test)]
    work_done: Cell<(usize, usize)>,
}

/// Responses that others may wait for at a time; there are more only where hardly any two are the same.
const CLAIMED_MAX: usize = 64;
/// Watches that are taken out of the index, or made to read history, between two looks at other calls.
const MOVED_AT_ONCE: usize = 256;
/// Watches of a stream that read history together, and that hear of progress, between two looks at other calls.
const TOGETHER_MAX: usize = 256;

/// What one turn of the hub does at the most, once for synced watches and once for all that read history: some
/// milliseconds each. The shard looks at its sockets between two turns.
const PORTION: Portion = Portion { changes: 16 << 10, watches: 1024, looks: 16 << 10, bytes: 8 << 20 };

/// What synced watches are told in more than one turn. Meanwhile the hub's revision stays, and a watch joins the synced
/// ones only if it has been told more than they are being told.
enum UnderWay {
    /// Revisions that concern many watches.
    Crowd(Crowd),
    /// A revision of many changes. Streams read it for the watches that it concerns.
    Walk(Walk),
    /// Revisions up to this one may have been removed before this shard came to see them: the streams find out for each
    /// watch. Those of the streams before this one, and those of this one before this watch, know.
    Overtaken { through: i64, stream: u64, watch: i64 },
}

/// How far the changes of a revision have been walked.
struct Walk {
    revision: i64,
    /// The change that is being looked at, and the last watch looked at of those that are about its key.
    sub: u32,
    behind: Option<Place>,
}

impl Walk {
    fn new(revision: i64) -> Walk {
        Walk { revision, sub: 0, behind: None }
    }
}

/// How far watches have been told of some revisions that concern many. Those told read on behind these
/// ([`Watch::next`]).
struct Crowd {
    from: i64,
    through: i64,
    /// The number of changes in these revisions; each turn may walk over all of them.
    changes: usize,
    /// The change that is being looked at, and the last watch told of those that are about its key.
    at: (i64, u32),
    behind: Option<Place>,
    /// Watches that are told together, and how many may be.
    together: usize,
    together_max: usize,
}

/// Changes that a crowd is told of together, and their bytes; the last revision of them may go beyond.
const CROWD_CHANGES: usize = 64;
const CROWD_BYTES: usize = 64 << 10;

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
            readers: RefCell::default(),
            is_told_later: Cell::new(false),
            worker: Cell::default(),
            under_way: RefCell::default(),
            hold: RefCell::default(),
            claimed: RefCell::default(),
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
        if !self.is_told_later.get() && !self.turn() {
            self.is_told_later.set(true);
            self.go_on_later();
        }
    }

    fn is_under_way(&self) -> bool {
        self.under_way.borrow().is_some()
    }

    /// The last revision that synced watches have been told of or are being told of.
    fn begun(&self) -> i64 {
        match &*self.under_way.borrow() {
            None => self.revision.get(),
            Some(UnderWay::Crowd(crowd)) => crowd.through,
            Some(UnderWay::Walk(walk)) => walk.revision,
            Some(UnderWay::Overtaken { through, .. }) => *through,
        }
    }

    /// Hands out a portion of what changed; returns true if nothing is left.
    fn turn(&self) -> bool {
        let state = self.shared.state.load_full();
        let current = state.view.snapshot().current_revision();
        if current <= self.revision.get() {
            return true;
        }
        let mut portion = self.portion.get();
        let begun_at = self.revision.get();
        let (mut walked, mut looks) = (0, 0);
        while self.revision.get() < current {
            if self.synced.borrow().is_empty() {
                self.under_way.take();
                self.revision.set(current);
                break;
            }
            let under_way = self.under_way.take();
            let (done, more) = match under_way {
                Some(UnderWay::Overtaken { through, stream, watch }) => {
                    self.overtake(through, stream, watch);
                    (Done::default(), false)
                }
                _ if !is_there(&state, self.revision.get() + 1) => {
                    self.overtake(current, 0, i64::MIN);
                    (Done::default(), false)
                }
                Some(UnderWay::Crowd(crowd)) => (self.tell_crowd(&state, crowd), false),
                Some(UnderWay::Walk(walk)) => (self.walk(&state, walk), false),
                None => self.tell_all(&state, portion),
            };
            (walked, looks) = (walked + done.walked, looks + done.looks);
            let Some(left) = done.left_of(portion) else { break };
            portion = left;
            if !more {
                break;
            }
        }
        self.note_work(walked, looks);
        if self.revision.get() > begun_at {
            self.shared.saw(self.shard, self.revision.get());
        }
        if !self.is_under_way() {
            for stream in self.waiting.take() {
                stream.waits_for_progress.set(false);
                self.say_progress(&stream);
            }
        }
        !self.is_under_way() && self.revision.get() >= current
    }

    /// Hands out a slice of what changed. Also returns false if the next revision takes a turn, or more, of its own.
    fn tell_all(&self, state: &Published, portion: Portion) -> (Done, bool) {
        let snapshot = state.view.snapshot();
        let current = snapshot.current_revision();
        // What is not at hand is fetched for each stream that needs it, while the others go on.
        let values = Attempt::new(self.values.clone());
        let from = self.revision.get() + 1;
        let changes = snapshot.written(from, current);
        let (slice, gathered) =
            Slice::gather(snapshot, &values, changes, &self.synced.borrow(), current, portion);
        let done = slice.done();
        let through = match gathered {
            Gathered::Through(through) => through,
            // Some of the portion was used up before: the next turn begins with this revision.
            _ if portion != self.portion.get() => return (done, false),
            Gathered::TooMuch(_) => {
                *self.under_way.borrow_mut() = Some(self.crowd(snapshot, from));
                return (done, false);
            }
            Gathered::TooLong(revision) => {
                *self.under_way.borrow_mut() = Some(UnderWay::Walk(Walk::new(revision)));
                return (done, false);
            }
        };
        let header = self.header(state, current);
        for watch in slice.hand_out(&header, self.fragment_bytes_max()) {
            self.leave_behind(&watch, from);
        }
        self.revision.set(through);
        (done, true)
    }

    /// What many watches are to be told of next.
    fn crowd(&self, snapshot: Snapshot<'_>, from: i64) -> UnderWay {
        let portion = self.portion.get();
        let (mut changes, mut bytes, mut through) = (0, 0, from);
        // The same up to the end of the revision before.
        let mut whole = None;
        for version in snapshot.written(from, i64::MAX) {
            if changes > 0 && version.main() > through {
                whole = Some((changes, bytes, through));
                if changes >= CROWD_CHANGES || bytes >= CROWD_BYTES {
                    break;
                }
            }
            if changes >= portion.changes {
                let Some(before) = whole else { return UnderWay::Walk(Walk::new(through)) };
                (changes, bytes, through) = before;
                break;
            }
            (changes, bytes, through) = (changes + 1, bytes + event_len(version), version.main());
        }
        // Each may be told of all. Where there are very many changes, each turn is long anyway.
        let together = (portion.bytes / bytes.max(1)).clamp(1, portion.watches.max(changes / 8));
        let at = (from, 0);
        UnderWay::Crowd(Crowd { from, through, changes, at, behind: None, together, together_max: together })
    }

    /// Walks over some more changes of a revision, and has the watches that these concern read it with their streams: so
    /// nothing of it is held here, and those that it does not concern go on soon.
    fn walk(&self, state: &Published, mut walk: Walk) -> Done {
        let portion = self.portion.get();
        let (mut done, mut concerned, mut stopped) = (Done::default(), Vec::new(), false);
        let changes = state.view.snapshot().written_from(walk.revision, walk.sub, walk.revision);
        for version in changes {
            let behind = walk.behind.take().filter(|_| version.sub() == walk.sub);
            walk.sub = version.sub();
            stopped = done.walked >= portion.changes;
            if stopped {
                break;
            }
            done.walked += 1;
            let mut visit = |watch: &Rc<Watch>| {
                done.looks += 1;
                if watch.wants(version) && !watch.chosen.replace(true) {
                    concerned.push(Rc::clone(watch));
                }
                if concerned.len() < MOVED_AT_ONCE && done.looks < portion.looks {
                    return ControlFlow::Continue(());
                }
                walk.behind = Some(Place { keys: watch.keys.clone(), serial: watch.serial });
                ControlFlow::Break(())
            };
            stopped =
                self.synced.borrow().visit_behind(version.key(), behind.as_ref(), &mut visit).is_break();
            if stopped {
                break;
            }
        }
        for watch in concerned {
            watch.chosen.set(false);
            self.leave_behind(&watch, walk.revision);
        }
        if stopped {
            *self.under_way.borrow_mut() = Some(UnderWay::Walk(walk));
        } else {
            self.revision.set(walk.revision);
        }
        done
    }

    /// Tells some more watches of what concerns many: some of those that are about the key of the first change, then of
    /// the second, and so on.
    fn tell_crowd(&self, state: &Published, mut crowd: Crowd) -> Done {
        let snapshot = state.view.snapshot();
        let looks_max = self.portion.get().looks + crowd.changes;
        let ((main, sub), through) = (crowd.at, crowd.through);
        let begun = (crowd.at, crowd.behind.clone());
        // A watch that is found at a change wants none of those before it.
        let changes = || snapshot.written_from(main, sub, through);
        let (mut walked, mut looks, mut chosen, mut stopped) = (0, 0, Vec::new(), false);
        for version in changes() {
            walked += 1;
            let at = (version.main(), version.sub());
            let behind = if at == crowd.at { crowd.behind.take() } else { None };
            crowd.at = at;
            let visited =
                self.synced.borrow().visit_behind(version.key(), behind.as_ref(), &mut |watch: &Rc<
                    Watch,
                >| {
                    looks += 1;
                    if watch.wants(version) && !watch.chosen.replace(true) {
                        chosen.push(Rc::clone(watch));
                    }
                    if chosen.len() < crowd.together && looks < looks_max {
                        return ControlFlow::Continue(());
                    }
                    crowd.behind = Some(Place { keys: watch.keys.clone(), serial: watch.serial });
                    ControlFlow::Break(())
                });
            if visited.is_break() {
                stopped = true;
                break;
            }
        }
        let values = Attempt::new(self.values.clone());
        let mut group = Index::default();
        for watch in &chosen {
            watch.chosen.set(false);
            group.insert(&watch.keys, watch.serial, Rc::clone(watch));
        }
        let portion = Portion { looks: looks_max, bytes: self.portion.get().bytes, ..Portion::ALL };
        let (slice, gathered) = Slice::gather(snapshot, &values, changes(), &group, through, portion);
        let gathering = slice.done();
        let told = chosen.len();
        let done =
            Done { walked: walked + gathering.walked, told, looks: looks + gathering.looks, ..gathering };
        // All revisions are told of at once, since the next turn does not look at the first again.
        if gathered == Gathered::Through(through) {
            let header = self.header(state, snapshot.current_revision());
            for watch in slice.hand_out(&header, self.fragment_bytes_max()) {
                watch.left_behind.set(true);
            }
            if gathering.bytes < portion.bytes / 4 && gathering.looks < portion.looks / 4 {
                // Those told before may have asked for more than these.
                crowd.together = (2 * crowd.together).min(crowd.together_max);
            }
        } else {
            slice.leave();
            if told > 1 {
                // The next turn begins at the same place, with fewer.
                let (at, behind) = begun;
                let crowd = Crowd { at, behind, together: told.div_ceil(2), ..crowd };
                *self.under_way.borrow_mut() = Some(UnderWay::Crowd(crowd));
                return Done { told: 0, ..done };
            }
            // Its stream reads them a part at a time.
            chosen.iter().for_each(|watch| watch.left_behind.set(true));
        }
        for watch in chosen {
            if watch.left_behind.replace(false) {
                self.leave_behind(&watch, crowd.from);
            } else {
                watch.next.set(watch.next.get().max(through + 1));
            }
        }
        if stopped {
            *self.under_way.borrow_mut() = Some(UnderWay::Crowd(crowd));
        } else {
            self.revision.set(through);
        }
        done
    }

    /// Makes some more watches read history that may have been removed.
    fn overtake(&self, through: i64, stream: u64, watch: i64) {
        let from = self.revision.get() + 1;
        let streams = self.streams.borrow();
        let (mut looks, mut behind) = (0, Vec::new());
        for (serial, at) in streams.range(stream..) {
            let first = if *serial == stream { watch } else { i64::MIN };
            for (id, watch) in at.watches.borrow().range(first..) {
                if looks == MOVED_AT_ONCE {
                    *self.under_way.borrow_mut() =
                        Some(UnderWay::Overtaken { through, stream: *serial, watch: *id });
                    break;
                }
                looks += 1;
                // What begins behind it has lost nothing.
                if watch.synced.get() && watch.next.get() <= through {
                    behind.push(Rc::clone(watch));
                }
            }
            if looks == MOVED_AT_ONCE {
                self.under_way.borrow_mut().get_or_insert(UnderWay::Overtaken {
                    through,
                    stream: serial + 1,
                    watch: i64::MIN,
                });
                break;
            }
        }
        drop(streams);
        if !self.is_under_way() {
            self.revision.set(through);
        }
        behind.iter().for_each(|watch| self.fall_behind(watch, from));
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
        let reaped_all = self.reap();
        // After the synced watches, so that those who read never hold these up by more than a portion. Whoever wants to
        // read next comes to it once the sockets were looked at.
        let none_reads = self.read_some();
        if told_all && reaped_all && none_reads {
            self.worker.set(Some(context.waker().clone()));
        } else {
            drive::after_others(context);
        }
    }

    /// Reads history for the streams that wait to, one after the other, until a portion is used up. Returns true if none
    /// waited.
    pub(super) fn read_some(&self) -> bool {
        let whole = self.portion.get();
        let (mut left, mut none_reads) = (Some(whole), true);
        while let Some(portion) = left {
            let Some(stream) = self.readers.borrow_mut().pop_front() else { break };
            none_reads = false;
            stream.in_line.set(false);
            if !stream.may_read() {
                // It comes back once it may.
                continue;
            }
            let Some(done) = self.catch_up(&stream, portion, portion == whole) else {
                // It asks for more than others have left it of this turn: it is the first of the next.
                stream.in_line.set(true);
                self.readers.borrow_mut().push_front(stream);
                break;
            };
            left = done.left_of(portion);
            stream.wake();
        }
        none_reads
    }

    /// Has a stream wait for its turn to read history.
    pub(super) fn read_later(&self, stream: &Rc<Stream>) {
        if !stream.in_line.replace(true) {
            self.readers.borrow_mut().push_back(Rc::clone(stream));
            self.go_on_later();
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
        self.serve(head.requires_leader, caller, inbound, outbound, closed)
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

    /// The most bytes that any stream has made of a revision that it has not read to its end.
    #[cfg(test)]
    pub(super) fn long_bytes_max(&self) -> usize {
        self.streams.borrow().values().map(|stream| stream.long_bytes()).max().unwrap_or(0)
    }

    /// How many streams have made something of such a revision.
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

    /// How many changes were walked over, and how often a watch was looked at, since this was asked last.
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
        stream.set_long(None);
        self.streams.borrow_mut().remove(&stream.serial);
        if stream.waits_for_progress.replace(false) {
            self.waiting.borrow_mut().retain(|waiting| !Rc::ptr_eq(waiting, stream));
        }
        self.shared.metrics.mvcc.watch_streams.add(-1);
        if !self.forget_some(stream) {
            self.ended.borrow_mut().push_back(Rc::clone(stream));
            self.go_on_later();
        }
    }

    /// Takes a slice of a stream's watches out; returns true if none is left.
    fn forget_some(&self, stream: &Stream) -> bool {
        for _ in 0..MOVED_AT_ONCE {
            let Some((_, watch)) = stream.watches.borrow_mut().pop_first() else { return true };
            self.forget(&watch);
        }
        stream.watches.borrow().is_empty()
    }

    /// Takes a slice of the watches of ended streams out; returns true if none is left.
    fn reap(&self) -> bool {
        let next = self.ended.borrow_mut().pop_front();
        if let Some(stream) = next
            && !self.forget_some(&stream)
        {
            self.ended.borrow_mut().push_front(stream);
        }
        self.ended.borrow().is_empty()
    }

    fn next_serial(&self) -> u64 {
        self.serial.set(self.serial.get() + 1);
        self.serial.get()
    }

    fn header(&self, state: &Published, revision: i64) -> ResponseHeader {
        self.shared.header(revision, state.applied_term)
    }

    /// The header of an answer to a request: no watch made from now on hears of this revision, or of one before it,
    /// unless it asks to.
    fn present_header(&self) -> ResponseHeader {
        let state = self.shared.state.load();
        self.header(&state, self.present_revision(&state))
    }

    fn present_revision(&self, state: &Published) -> i64 {
        state.view.snapshot().current_revision().max(self.revision.get())
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
                let now = self.present_revision(&self.shared.state.load());
                // One that is open already is answered by the same word.
                let wanted = stream.progress_wanted.get().unwrap_or(now);
                stream.progress_wanted.set((!stream.watches.borrow().is_empty()).then_some(wanted));
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
        let header = self.present_header();
        let now = header.revision;
        let mut response = WatchResponse { header: Some(header), created: true, ..WatchResponse::default() };
        match self.admit(stream, request, now) {
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
    fn admit(&self, stream: &Rc<Stream>, request: &WatchCreateRequest, now: i64) -> Result<Watch, Status> {
        if request.start_revision < 0 {
            return Err(error::COMPACTED);
        }
        let keys = Keys::of_request(&request.key, &request.range_end).ok_or(error::WATCH_EMPTY_RANGE)?;
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
            start: if request.start_revision == 0 { now } else { request.start_revision },
            previous: request.prev_kv,
            no_put: filters(FilterType::Noput),
            no_delete: filters(FilterType::Nodelete),
            fragment: request.fragment,
            progress: request.progress_notify,
            next: Cell::new(if request.start_revision == 0 { now + 1 } else { request.start_revision }),
            synced: Cell::new(true),
            compacted: Cell::new(false),
            ahead: Cell::new(false),
            quiet: Cell::new(true),
            left_behind: Cell::new(false),
            chosen: Cell::new(false),
            hold: RefCell::default(),
            matched: RefCell::default(),
            _held: stream.hold_watch(request.key.len() + request.range_end.len()),
        })
    }

    /// Takes a watch in; it is counted already.
    fn begin(&self, watch: Watch) {
        let watch = Rc::new(watch);
        let stream = &watch.stream;
        watch.synced.set(watch.next.get() > self.begun());
        if watch.synced.get() {
            self.synced.borrow_mut().insert(&watch.keys, watch.serial, Rc::clone(&watch));
        } else {
            stream.fall_behind(&watch);
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
            self.synced.borrow_mut().remove(&watch.keys, watch.serial).is_some()
        } else {
            self.shared.metrics.mvcc.slow_watchers.add(-1);
            watch.stream.leave_long(watch);
            watch.hold.take();
            watch.stream.catches_up(watch)
        };
        assert!(removed, "a watch is where it says");
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

    /// Makes a synced watch read what it was not told of, from `next` on, whatever is compacted meanwhile.
    fn leave_behind(&self, watch: &Rc<Watch>, next: i64) {
        let held = self.hold.borrow().upgrade().filter(|hold| hold.from == next);
        let hold = held.unwrap_or_else(|| {
            let hold = Rc::new(Hold::new(&self.shared, next));
            *self.hold.borrow_mut() = Rc::downgrade(&hold);
            hold
        });
        *watch.hold.borrow_mut() = Some(hold);
        self.fall_behind(watch, next);
    }

    /// Makes a synced watch read history from `next` on.
    fn fall_behind(&self, watch: &Rc<Watch>, next: i64) {
        let removed = self.synced.borrow_mut().remove(&watch.keys, watch.serial);
        assert!(removed.is_some(), "only a synced watch falls behind");
        let next = if planted::is(Bug::WatchFallsTooFarBehind) { next - 1 } else { next };
        watch.next.set(watch.next.get().max(next));
        watch.synced.set(false);
        watch.stream.fall_behind(watch);
        self.shared.metrics.mvcc.slow_watchers.add(1);
        watch.stream.wake();
    }

    /// Reads one slice of history for some watches of a stream that are behind, those first that are most. Returns `None`
    /// if it asks for more than this portion, which is not a `whole` one.
    fn catch_up(&self, stream: &Rc<Stream>, portion: Portion, whole: bool) -> Option<Done> {
        let state = self.shared.state.load_full();
        if let Some(long) = stream.take_long() {
            return Some(self.read_long(stream, &state, portion, long));
        }
        let snapshot = state.view.snapshot();
        let (current, compacted) = (snapshot.current_revision(), snapshot.compact_revision());
        let mut together = stream.most_behind(TOGETHER_MAX);
        let at_once = together.len();
        together.retain(|watch| {
            let readable = watch.next.get() >= compacted || watch.held(&state.view).is_some();
            if !readable {
                self.cancel_compacted(watch, &state, compacted);
            }
            readable
        });
        let idle = Done { told: 1, looks: at_once, ..Done::default() };
        let Some(first) = together.first() else { return Some(idle) };
        let from = first.next.get();
        // What the first can read is all that any of them has to read.
        let (snapshot, changes) = match (first.held(&state.view), snapshot.changes(from, current)) {
            (Some(held), _) => (held, held.written(from, current)),
            (None, Ok(changes)) => (snapshot, changes),
            (None, Err(_)) => return Some(idle),
        };
        together.truncate(stream.together_max(from));
        let header = self.header(&state, current);
        let mut values = stream.attempt(from, || Attempt::new(self.values.clone()));
        // What was written since is at hand as a rule.
        values.ask_again();
        let mut group = Index::default();
        for watch in &together {
            group.insert(&watch.keys, watch.serial, Rc::clone(watch));
        }
        let newest = snapshot.current_revision();
        let (slice, gathered) = Slice::gather(snapshot, &values, changes, &group, newest, portion);
        let done = slice.done();
        self.note_work(done.walked, done.looks);
        // Those that it chose among count too, and so does a stream that is told nothing.
        let done = Done { told: done.told.max(1), looks: done.looks + at_once, ..done };
        let through = match gathered {
            Gathered::Through(through) => through,
            _ => {
                slice.leave();
                if !whole {
                    stream.fetch(values);
                    return None;
                }
                match gathered {
                    // The next turn begins with fewer.
                    Gathered::TooMuch(revision) if together.len() > 1 => {
                        stream.read_fewer_together(revision, together.len() / 2);
                        stream.fetch(values);
                    }
                    // A turn for each part of it.
                    Gathered::TooMuch(revision) | Gathered::TooLong(revision) => {
                        together.retain(|watch| watch.next.get() <= revision);
                        stream.set_long(Some(Long::new(revision, together)));
                    }
                    Gathered::Through(_) => {}
                }
                return Some(done);
            }
        };
        for watch in slice.hand_out(&header, self.fragment_bytes_max()) {
            watch.left_behind.set(true);
        }
        let mut advanced = false;
        for watch in together {
            if watch.left_behind.replace(false) {
                continue;
            }
            advanced |= self.has_read(stream, &watch, through);
        }
        if !values.is_complete() {
            if advanced {
                // The next slice is another one.
                values.forget();
            }
            stream.fetch(values);
        }
        Some(done)
    }

    /// Takes note that a watch that is behind has read through this revision; returns true if that is news.
    fn has_read(&self, stream: &Stream, watch: &Rc<Watch>, through: i64) -> bool {
        assert!(stream.catches_up(watch), "a watch is where it says");
        let next = watch.next.get().max(through + 1);
        stream.told_through.set(stream.told_through.get().max(through));
        let advanced = watch.next.replace(next) < next;
        if next > self.begun() {
            self.shared.metrics.mvcc.slow_watchers.add(-1);
            watch.synced.set(true);
            watch.hold.take();
            self.synced.borrow_mut().insert(&watch.keys, watch.serial, Rc::clone(watch));
        } else {
            stream.fall_behind(watch);
        }
        advanced
    }

    /// Reads a portion of a revision of many changes, for the watches of a stream that are at it.
    fn read_long(&self, stream: &Rc<Stream>, state: &Published, portion: Portion, mut long: Long) -> Done {
        let snapshot = state.view.snapshot();
        let (revision, current) = (long.revision, snapshot.current_revision());
        let compacted = snapshot.compact_revision();
        let idle = Done { told: 1, looks: long.parts.len(), ..Done::default() };
        if let Some(given) = long.given.take()
            && let Some(watch) = long.takes(&given)
        {
            if let Some((bytes, events)) = &given.response {
                stream.push(Queued { bytes: bytes.clone(), events: *events, shared: true });
                watch.quiet.set(false);
            }
            stream.set_long(None);
            self.has_read(stream, &watch, revision);
            return idle;
        }
        if revision < compacted {
            // What was made of it is half of it.
            let parts = std::mem::take(&mut long.parts);
            let (held, lost) = parts.into_iter().partition(|part| part.watch.held(&state.view).is_some());
            long.parts = held;
            for Part { watch, .. } in lost as Vec<Part> {
                self.cancel_compacted(&watch, state, compacted);
            }
            if long.parts.is_empty() {
                stream.set_long(None);
                return idle;
            }
        }
        // Those that keep it read it as it was, so that none of what it is made of changes meanwhile.
        let snapshot = long.parts.iter().find_map(|part| part.watch.held(&state.view)).unwrap_or(snapshot);
        if let Some(same) = long.same()
            && long.claim.is_none()
        {
            let mut claimed = self.claimed.borrow_mut();
            claimed.retain(|claim| claim.strong_count() > 0);
            if let Some(claim) = claimed.iter().filter_map(Weak::upgrade).find(|claim| claim.same == same) {
                claim.wait(stream);
                stream.set_long(Some(long));
                return idle;
            }
            if claimed.len() == CLAIMED_MAX {
                claimed.remove(0);
            }
            let claim = Claim::new(same);
            claimed.push(Rc::downgrade(&claim));
            long.claim = Some(claim);
        }
        let mut values = stream.attempt(revision, || Attempt::new(self.values.clone()));
        values.ask_again();
        let bytes_max = portion.bytes.min(SLICE_BYTES_MAX);
        let turn = match long.read(snapshot, &values, portion, bytes_max, self.fragment_bytes_max()) {
            Ok(turn) => turn,
            Err(failed) => {
                stream.set_long(None);
                stream.end(match failed {
                    Failed::Read(error) => cannot_read(&error),
                    Failed::TooLong { len, bytes_max } => too_long(len, bytes_max),
                });
                return idle;
            }
        };
        self.note_work(turn.walked, turn.looks);
        let done =
            Done { walked: turn.walked, told: 1, looks: turn.looks + long.parts.len(), bytes: turn.bytes };
        let header = self.header(state, current);
        if turn.is_whole {
            if let Some(claim) = long.claim.take() {
                self.share_long(&claim, &mut long, &header);
            }
            let watches = long.send_all(&header);
            stream.set_long(None);
            for watch in watches {
                self.has_read(stream, &watch, revision);
            }
            return done;
        }
        long.send_some(&header);
        stream.set_long(Some(long));
        if !values.is_complete() {
            if turn.advanced {
                // What was fetched before was read now.
                values.forget();
            }
            stream.fetch(values);
        }
        done
    }

    /// Gives the response that a stream has made to those that wait for the same: each takes it in its turn.
    fn share_long(&self, claim: &Claim, made: &mut Long, header: &ResponseHeader) {
        let given = Rc::new(Given { same: claim.same.clone(), response: made.shared(header) });
        for waiting in claim.take_waiting() {
            waiting.waits_for_another.set(false);
            waiting.give(&given);
            self.read_later(&waiting);
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
        if stream.progress_wanted.get().is_some() && planted::is(Bug::ProgressAhead) {
            stream.progress_wanted.set(None);
            return self.push_progress(stream, NO_WATCH);
        }
        if stream.progress_wanted.get().is_none() || !stream.is_synced() {
            return;
        }
        self.advance();
        self.say_progress(stream);
    }

    /// Says a word of progress, or has the stream wait for the end of a turn at which it may be said.
    fn say_progress(&self, stream: &Rc<Stream>) {
        let Some(wanted) = stream.progress_wanted.get() else { return };
        if !stream.is_synced() {
            // It comes back itself.
            return;
        }
        let revision = self.revision.get();
        // In the middle of a revision some of its watches may have been told of that and others not.
        if !self.is_under_way() && revision >= wanted && stream.is_abreast(revision) {
            stream.progress_wanted.set(None);
            self.push_progress(stream, NO_WATCH);
        } else if !stream.waits_for_progress.replace(true) {
            self.waiting.borrow_mut().push(Rc::clone(stream));
        }
    }

    /// Tells some more of the watches that asked for it, and heard nothing since the last time, how far they are.
    pub(super) fn tell_periodic_progress(&self, stream: &Stream) {
        let begun = Instant::now();
        self.advance();
        let Some(from) = stream.ticks_from.take() else { return };
        for (n, (id, watch)) in stream.watches.borrow().range(from..).enumerate() {
            if n == TOGETHER_MAX {
                stream.ticks_from.set(Some(*id));
                break;
            }
            // A watch that has read history, or was told of a revision which others are still being told of, may be further.
            let is_further = watch.next.get() > self.revision.get() + 1;
            if watch.progress
                && watch.quiet.replace(true)
                && self.is_abreast(watch)
                && !is_further
                && stream.has_room(64)
            {
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
        let header = self.header(&self.shared.state.load(), self.revision.get());
        let response = WatchResponse { header: Some(header), watch_id, ..WatchResponse::default() };
        stream.push(Queued::control(&response));
    }
}

/// Whether all that was written from this revision on is still there, compacted or not: it is above what may have been
/// removed, or not compacted.
fn is_there(state: &Published, from: i64) -> bool {
    let compacted = state.view.snapshot().compact_revision();
    from > state.removed_through || from >= compacted || planted::is(Bug::WatchLostAtCompaction)
}
