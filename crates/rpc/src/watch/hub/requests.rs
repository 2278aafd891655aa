//! Answers the requests of watch clients: to create and cancel watches, and to report progress.

use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use api::etcdserverpb::watch_request::RequestUnion;
use api::etcdserverpb::{WatchCreateRequest, WatchRequest, WatchResponse};
use api::{Status, elements, error};
use bytes::Bytes;
use numbers::Revision;
use telemetry::tracing::Attribute;

use super::Hub;
use crate::services::decode_streamed;
use crate::watch::index::Keys;
use crate::watch::permit;
use crate::watch::queued::Queued;
use crate::watch::response::NO_WATCH;
use crate::watch::state::{Options, Watch};
use crate::watch::stream::Stream;

impl Hub {
    /// Answers one request.
    pub(in crate::watch) fn request(&self, stream: &Rc<Stream>, message: Bytes) -> Result<(), Status> {
        if elements::has_too_many_filters(&message) {
            return Err(elements::TOO_MANY_FILTERS);
        }
        let request: WatchRequest = decode_streamed(message)?;
        match request.request_union {
            Some(RequestUnion::CreateRequest(create)) => self.create(stream, &create),
            Some(RequestUnion::CancelRequest(cancel)) => self.cancel(stream, cancel.watch_id),
            Some(RequestUnion::ProgressRequest(_)) => {
                let now = self.present_revision(&self.shared.state.load());
                // One response answers all progress requests that are open at the same time.
                let wanted = stream.progress_wanted().unwrap_or(now);
                stream.rare().progress_wanted.set((!stream.watches.borrow().is_empty()).then_some(wanted));
                self.tell_progress(stream);
            }
            // As in etcd, an unknown request is ignored.
            None => {}
        }
        Ok(())
    }

    fn create(&self, stream: &Rc<Stream>, request: &WatchCreateRequest) {
        // The watch is counted before the state is read, so that no state is missed. For every state that the
        // core publishes, either the core sees the count and wakes this shard, or it published the state
        // before the watch was counted, and this shard reads that state below.
        self.shared.core.attendance.watch_begins(self.shard);
        self.advance();
        let header = self.present_header();
        let now = Revision(header.revision);
        let mut response = WatchResponse { header: Some(header), created: true, ..WatchResponse::default() };
        match self.admit(stream, request, now) {
            Ok(watch) => {
                response.watch_id = watch.id;
                stream.push(Queued::control(&response));
                let start = Revision(request.start_revision);
                self.begin(watch, if start == Revision(0) { now } else { start });
            }
            Err(reason) => {
                self.shared.core.attendance.watch_ends(self.shard);
                response.watch_id = NO_WATCH;
                response.canceled = true;
                response.cancel_reason = reason.message.into_owned();
                stream.push(Queued::control(&response));
            }
        }
    }

    /// Checks a request to create a watch, in etcd's order, and returns the watch.
    fn admit(
        &self,
        stream: &Rc<Stream>,
        request: &WatchCreateRequest,
        now: Revision,
    ) -> Result<Watch, Status> {
        if request.start_revision < 0 {
            return Err(error::COMPACTED);
        }
        let key = if request.key.is_empty() { b"\0" } else { request.key.as_ref() };
        let start = Revision(request.start_revision);
        let permit = &stream.permit;
        if let Err(refusal) = permit.allows(key, &request.range_end).and_then(|()| permit.begins(start, now))
        {
            return Err(Status::with(refusal.code, permit::reason(&refusal)));
        }
        let keys = Keys::of_request(&request.key, &request.range_end).ok_or(error::WATCH_EMPTY_RANGE)?;
        let watches = stream.watches.borrow();
        let id = if request.watch_id != 0 {
            if watches.contains(request.watch_id) {
                return Err(error::WATCH_DUPLICATE_ID);
            }
            request.watch_id
        } else {
            let mut id = stream.next_id.get();
            while watches.contains(id) {
                id += 1;
            }
            stream.next_id.set(id + 1);
            id
        };
        stream.hold_watch(&keys);
        let next = if request.start_revision == 0 { now + 1 } else { Revision(request.start_revision) };
        let span = stream.spans().map(|spans| spans.begin("watch", told(request)));
        Ok(Watch::new(self.next_serial(), id, stream, keys, Options::of(request), next, span))
    }

    /// Adds a watch to its stream, and to the synced watches of the hub or the unsynced watches of the
    /// stream. The caller has already counted the watch. `start` is the start revision that the client asked for; if
    /// it gave none, the newest revision when the watch was created, whose changes the watch does not receive.
    fn begin(&self, watch: Watch, start: Revision) {
        let watch = Rc::new(watch);
        let stream = &watch.stream;
        watch.synced.set(watch.next.get() > self.begun());
        if watch.synced.get() {
            self.synced.borrow_mut().insert(Rc::clone(&watch));
        } else {
            stream.fall_behind(&watch);
            self.count_slow(stream, 1);
        }
        self.shared.diagnostics.metrics.mvcc.watchers.add(1);
        stream.caller.watches.fetch_add(1, Relaxed);
        stream.wants_ticks.set(stream.wants_ticks.get() || watch.options.progress());
        if start > self.revision.get() {
            watch.set_ahead(start);
            *stream.rare().ahead.borrow_mut().entry(start).or_default() += 1;
        }
        stream.watches.borrow_mut().insert(watch.id, Rc::clone(&watch));
    }

    /// Removes a watch from the synced or unsynced watches and from the counts.
    pub(super) fn forget(&self, watch: &Watch) {
        if watch.compacted.get() {
            let waiting = &watch.stream.rare().compacted;
            waiting.set(waiting.get() - 1);
        } else {
            self.rest(watch);
        }
        if let Some(start) = watch.ahead() {
            let mut ahead = watch.stream.rare().ahead.borrow_mut();
            if let Some(count) = ahead.get_mut(&start) {
                *count -= 1;
                if *count == 0 {
                    ahead.remove(&start);
                }
            }
        }
        self.shared.diagnostics.metrics.mvcc.watchers.add(-1);
        watch.stream.caller.watches.fetch_sub(1, Relaxed);
    }

    /// Adds `watches` to the count of slow watches. The number is positive for watches of the stream that
    /// became unsynced, and negative for watches that caught up.
    pub(super) fn count_slow(&self, stream: &Stream, watches: i64) {
        self.shared.diagnostics.metrics.mvcc.slow_watchers.add(watches);
        stream.caller.slow_watches.fetch_add(watches, Relaxed);
    }

    /// Removes a watch from the synced or unsynced watches, so that it receives nothing more.
    pub(super) fn rest(&self, watch: &Watch) {
        let removed = if watch.synced.get() {
            self.synced.borrow_mut().remove(&watch.keys, watch.serial).is_some()
        } else {
            self.count_slow(&watch.stream, -1);
            watch.stream.leave_long(watch);
            watch.set_hold(None);
            watch.stream.catches_up(watch)
        };
        assert!(removed, "a watch is where it says");
        self.shared.core.attendance.watch_ends(self.shard);
    }

    fn cancel(&self, stream: &Rc<Stream>, id: i64) {
        let Some(watch) = stream.watches.borrow_mut().remove(id) else { return };
        self.forget(&watch);
        // Takes the newest state first, so that this header's revision is not lower than that of an earlier
        // response of the stream.
        self.advance();
        let response = WatchResponse {
            header: Some(self.present_header()),
            watch_id: id,
            canceled: true,
            ..WatchResponse::default()
        };
        stream.push(Queued::control(&response));
    }
}

/// Returns etcd's span attributes for a watch, with the keys as etcd stores them.
fn told(request: &WatchCreateRequest) -> Vec<(&'static str, Attribute)> {
    let key = if request.key.is_empty() { b"\0" } else { request.key.as_ref() };
    let range_end = if request.range_end.as_ref() == b"\0" { b"" } else { request.range_end.as_ref() };
    vec![
        ("key", Attribute::bytes(key)),
        ("range_end", Attribute::bytes(range_end)),
        ("start_rev", Attribute::Int(request.start_revision)),
        ("progress_notify", Attribute::Bool(request.progress_notify)),
        ("prev_kv", Attribute::Bool(request.prev_kv)),
        ("fragment", Attribute::Bool(request.fragment)),
    ]
}
