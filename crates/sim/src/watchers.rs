//! Simulates the watch streams of clients: some are read slowly, some break and resume at their last
//! revision.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use api::etcdserverpb::watch_request::RequestUnion;
use api::etcdserverpb::{
    WatchCancelRequest, WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse,
};
use api::{Status, error};
use bytes::Bytes;
use front::TrySend;
use oracle::{End, Watch, WatchAnswer};
use prost::Message;
use server::stepped::{Requests, Responses};

use crate::profile::{Profile, Work};
use crate::rng::Rng;
use crate::schedule::{MILLI, Nanos};

/// Lowest watch id of the watches whose responses the client ignores (see `crowd`).
const CROWD: i64 = 1 << 20;

/// Buffers between a client's stream and the member that serves it.
#[derive(Default)]
pub struct Pipe {
    requests: VecDeque<Bytes>,
    responses: VecDeque<Bytes>,
    /// Number of responses that may wait for the client.
    window: usize,
    closed: bool,
    reads: Option<Waker>,
    writes: Option<Waker>,
}

impl Pipe {
    /// Creates a pipe in which `window` responses may wait for the client.
    pub fn new(window: usize) -> Rc<RefCell<Pipe>> {
        Rc::new(RefCell::new(Pipe { window, ..Pipe::default() }))
    }

    fn send(&mut self, request: &WatchRequest) {
        self.requests.push_back(request.encode_to_vec().into());
        self.reads.take().into_iter().for_each(Waker::wake);
    }

    fn receive(&mut self, count: usize) -> Vec<Bytes> {
        let count = count.min(self.responses.len());
        let taken = self.responses.drain(..count).collect();
        self.writes.take().into_iter().for_each(Waker::wake);
        taken
    }

    fn close(&mut self) {
        self.closed = true;
        self.reads.take().into_iter().for_each(Waker::wake);
        self.writes.take().into_iter().for_each(Waker::wake);
    }
}

/// Member's end of the pipe for requests.
pub struct Incoming(pub Rc<RefCell<Pipe>>);

impl Requests for Incoming {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        let mut pipe = self.0.borrow_mut();
        if let Some(request) = pipe.requests.pop_front() {
            return Poll::Ready(Ok(Some(request)));
        }
        if pipe.closed {
            return Poll::Ready(Err(error::CANCELED));
        }
        pipe.reads = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// Member's end of the pipe for responses.
pub struct Returning(pub Rc<RefCell<Pipe>>);

impl Responses for Returning {
    fn open(&mut self) -> Result<(), Status> {
        Ok(())
    }

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        let mut pipe = self.0.borrow_mut();
        if pipe.closed {
            return Poll::Ready(Err(error::CANCELED));
        }
        if pipe.responses.len() < pipe.window {
            return Poll::Ready(Ok(()));
        }
        pipe.writes = Some(cx.waker().clone());
        Poll::Pending
    }

    fn try_send(&mut self, message: Bytes) -> Result<(), TrySend> {
        let mut pipe = self.0.borrow_mut();
        if pipe.closed {
            return Err(TrySend::Closed);
        }
        if pipe.responses.len() >= pipe.window {
            return Err(TrySend::Full(message));
        }
        pipe.responses.push_back(message);
        Ok(())
    }
}

/// One watch of a stream, and the revision at which it resumes after a break.
struct Open {
    record: Watch,
    /// Watch id that the server uses.
    watch_id: i64,
    /// Revision at which the watch resumes.
    next_revision: i64,
    /// True if the last response was a fragment and the rest has not arrived.
    partial: bool,
    ended: bool,
}

/// Client that has at most one watch stream at a time.
pub struct Watcher {
    /// Number of the watcher, which also serves as a client number.
    pub number: u64,
    rng: Rng,
    pipe: Option<Rc<RefCell<Pipe>>>,
    open: Vec<Open>,
    /// Mean time between two reads of the stream.
    pub pace: Nanos,
    /// Number of streams so far; events scheduled for an older stream are ignored.
    pub streams: u64,
    /// Place of the member that serves the stream.
    pub place: usize,
    /// Time at which the last event was received, or at which the stream was opened if that is later.
    pub told_at: Nanos,
    /// Watches that have ended.
    pub done: Vec<Watch>,
}

impl Watcher {
    /// Creates watcher `number` for the world of this seed, with its own random stream.
    pub fn new(seed: u64, number: u64) -> Watcher {
        let mut rng = Rng::stream(seed, &format!("watcher {number}"));
        let pace = rng.pick(&[MILLI, 20 * MILLI, 300 * MILLI, 1500 * MILLI, 6000 * MILLI]);
        Watcher {
            number,
            rng,
            pipe: None,
            open: Vec::new(),
            pace,
            streams: 0,
            place: 0,
            told_at: 0,
            done: Vec::new(),
        }
    }

    /// Returns the watcher's random stream.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    /// Returns true if the watcher has a stream.
    pub fn is_open(&self) -> bool {
        self.pipe.is_some()
    }

    /// Returns true if the pipe is the watcher's current one.
    pub fn is_of(&self, pipe: &Rc<RefCell<Pipe>>) -> bool {
        self.pipe.as_ref().is_some_and(|own| Rc::ptr_eq(own, pipe))
    }

    /// Opens a stream to a member: resumes the watches of a broken stream, or creates new watches.
    pub fn connect(
        &mut self,
        place: usize,
        life: u64,
        profile: &Profile,
        newest: i64,
        next_id: &mut u64,
        now: Nanos,
    ) -> Rc<RefCell<Pipe>> {
        let window = self.rng.pick(&[1, 2, 16, 1024]);
        let pipe = Pipe::new(window);
        let before = std::mem::take(&mut self.open);
        let mut wanted: Vec<(Watch, i64)> = before
            .into_iter()
            .filter(|open| !open.ended)
            .map(|open| (open.record, open.next_revision))
            .collect();
        if wanted.is_empty() || self.rng.one_in(6) {
            wanted = (0..self.rng.between(1, 3)).map(|_| self.draw(profile, newest)).collect();
        }
        for (watch_id, (shape, start_revision)) in (1..).zip(wanted) {
            *next_id += 1;
            let record = Watch {
                id: *next_id,
                client: self.number,
                member: place as u64 + 1,
                life,
                opened: now,
                start_revision,
                responses: Vec::new(),
                end: End::Broken,
                ..shape
            };
            let mut filters = Vec::new();
            if record.no_put {
                filters.push(0);
            }
            if record.no_delete {
                filters.push(1);
            }
            let create = WatchCreateRequest {
                key: record.key.clone().into(),
                range_end: record.range_end.clone().into(),
                start_revision,
                progress_notify: self.rng.one_in(2),
                filters,
                prev_kv: record.prev_kv,
                watch_id,
                fragment: record.fragment,
            };
            let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
            pipe.borrow_mut().send(&request);
            let next_revision = start_revision;
            self.open.push(Open { record, watch_id, next_revision, partial: false, ended: false });
        }
        if profile.works(Work::Hostile) && self.rng.one_in(6) {
            self.crowd(&pipe);
        }
        self.streams += 1;
        self.place = place;
        // No event can have arrived yet, so the watcher gets the full time to receive one before it is
        // assumed to have received all events.
        self.told_at = now;
        self.pipe = Some(Rc::clone(&pipe));
        pipe
    }

    /// Creates many watches of ranges that no client writes, in orders that would make a tree without
    /// balancing deep, and cancels some of the watches.
    fn crowd(&mut self, pipe: &Rc<RefCell<Pipe>>) {
        let count = self.rng.pick(&[50, 300, 300, 1000]);
        let order = self.rng.below(5);
        let far = |number: u64| format!("w{number:05}").into_bytes();
        for number in 0..count {
            let (key, range_end) = match order {
                0 => (far(number), far(number + 1)),
                1 => (far(count - number), far(count - number + 1)),
                // Each range contains the range after it.
                2 => (far(number), far(3 * count - number)),
                3 => (far(count - number), far(count + number + 1)),
                // Every other range is at the low end; the ranges between them all end at the same key.
                _ if number % 2 == 0 => (far(number), far(number + 1)),
                _ => (far(2 * count - number), far(2 * count)),
            };
            let watch_id = CROWD + i64::try_from(number).unwrap_or(0);
            let create = WatchCreateRequest {
                key: key.into(),
                range_end: range_end.into(),
                watch_id,
                ..Default::default()
            };
            pipe.borrow_mut()
                .send(&WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) });
        }
        for number in 0..self.rng.pick(&[0, count / 2, count]) {
            let watch_id = CROWD + i64::try_from(number).unwrap_or(0);
            let cancel = RequestUnion::CancelRequest(WatchCancelRequest { watch_id });
            pipe.borrow_mut().send(&WatchRequest { request_union: Some(cancel) });
        }
    }

    fn draw(&mut self, profile: &Profile, newest: i64) -> (Watch, i64) {
        let (key, range_end) = match self.rng.below(4) {
            0 => (format!("k{:03}", self.rng.below(profile.keys)).into_bytes(), Vec::new()),
            1 => {
                let from = self.rng.below(profile.keys);
                (format!("k{from:03}").into_bytes(), b"l".to_vec())
            }
            2 => (b"lock".to_vec(), b"locl".to_vec()),
            _ => (vec![0], vec![0]),
        };
        let start = match self.rng.below(4) {
            0 => newest + 1,
            1 => (newest - i64::try_from(self.rng.below(100)).unwrap_or(0)).max(1),
            _ => 0,
        };
        let mut watch = Watch {
            id: 0,
            client: 0,
            member: 0,
            life: 0,
            opened: 0,
            key,
            range_end,
            start_revision: start,
            prev_kv: self.rng.one_in(3),
            no_put: false,
            no_delete: false,
            fragment: self.rng.one_in(2),
            responses: Vec::new(),
            end: End::Broken,
        };
        match self.rng.below(8) {
            0 => watch.no_put = true,
            1 => watch.no_delete = true,
            _ => {}
        }
        (watch, start)
    }

    /// Lets up to 1024 responses wait for the client.
    pub fn widen(&mut self) {
        if let Some(pipe) = &self.pipe {
            pipe.borrow_mut().window = 1024;
        }
    }

    /// Reads the responses that have arrived.
    pub fn read(&mut self, now: Nanos, all: bool) {
        let Some(pipe) = &self.pipe else { return };
        let count = if all { usize::MAX } else { usize::try_from(self.rng.between(1, 20)).unwrap_or(1) };
        let messages = pipe.borrow_mut().receive(count);
        for message in messages {
            if let Ok(response) = WatchResponse::decode(message) {
                self.received(response, now);
            }
        }
        if self.rng.one_in(30) {
            let progress = RequestUnion::ProgressRequest(WatchProgressRequest {});
            pipe_send(&self.pipe, progress);
        }
        if !self.open.is_empty() && self.open.iter().all(|open| open.ended) {
            self.broken(now);
        }
    }

    fn received(&mut self, response: WatchResponse, now: Nanos) {
        let revision = response.header.as_ref().map_or(0, |header| header.revision);
        let note = |open: &mut Open, answer| {
            open.record.responses.push(oracle::WatchResponse { at: now, revision, answer });
        };
        if response.watch_id == -1 && !response.created {
            // The response to a progress request concerns all watches of the stream.
            for open in self.open.iter_mut().filter(|open| !open.ended) {
                note(open, WatchAnswer::Progress);
            }
            return;
        }
        if response.watch_id >= CROWD {
            // This response is ignored, but responses to the client's own watches may be waiting after it, so
            // the watcher counts as still receiving.
            self.told_at = now;
            return;
        }
        // A response to a failed creation has watch id -1. Responses to creations come in order, so such a
        // response belongs to the first watch without a response.
        let named = response.watch_id;
        let failed = response.created && response.canceled;
        let found = self.open.iter_mut().find(|open| {
            if failed { open.record.responses.is_empty() && !open.ended } else { open.watch_id == named }
        });
        let Some(open) = found else { return };
        if response.created {
            note(open, WatchAnswer::Created);
            if open.next_revision == 0 {
                open.next_revision = revision + 1;
            }
        }
        if response.canceled {
            let compact_revision = response.compact_revision;
            let reason = response.cancel_reason;
            note(open, WatchAnswer::Canceled { compact_revision, reason });
            open.record.end = End::Canceled;
            open.ended = true;
            return;
        }
        if response.created {
            return;
        }
        if response.events.is_empty() {
            note(open, WatchAnswer::Progress);
            return;
        }
        self.told_at = now;
        let last = response.events.last().and_then(|event| event.kv.as_ref()).map_or(0, |kv| kv.mod_revision);
        let events = response.events.into_iter().map(crate::wire::event).collect();
        note(open, WatchAnswer::Events { events, fragment: response.fragment });
        open.partial = response.fragment;
        // If the last response was a fragment, the watch resumes at the same revision, so that the events of
        // that revision are sent again.
        open.next_revision = if response.fragment { last } else { last + 1 };
    }

    /// Handles the end of the stream, whichever side has ended it.
    pub fn broken(&mut self, _now: Nanos) {
        let Some(pipe) = self.pipe.take() else { return };
        pipe.borrow_mut().close();
        self.streams += 1;
        self.done.extend(self.open.iter().map(|open| open.record.clone()));
    }

    /// Ends all watches of the watcher at the end of the run. If `drained` is given, events up to that
    /// revision must have arrived.
    pub fn finish(&mut self, drained: Option<i64>) {
        let connected = self.pipe.take();
        for open in self.open.drain(..).filter(|_| connected.is_some()) {
            let mut record = open.record;
            if let (false, Some(revision)) = (open.ended, drained)
                && !record.responses.is_empty()
            {
                record.end = End::Drained(revision);
            }
            self.done.push(record);
        }
        if let Some(pipe) = connected {
            pipe.borrow_mut().close();
        }
    }
}

fn pipe_send(pipe: &Option<Rc<RefCell<Pipe>>>, union: RequestUnion) {
    if let Some(pipe) = pipe {
        pipe.borrow_mut().send(&WatchRequest { request_union: Some(union) });
    }
}
