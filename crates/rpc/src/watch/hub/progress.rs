//! Sends progress notifications: those that clients request, and periodic ones.

use std::rc::Rc;
use std::time::{Duration, Instant};

use api::etcdserverpb::WatchResponse;
use numbers::Revision;
use planted::Bug;

use super::{Hub, ProgressDue, TOGETHER_MAX};
use crate::watch::queued::Queued;
use crate::watch::response::NO_WATCH;
use crate::watch::state::Watch;
use crate::watch::stream::Stream;

/// Number of streams that get a due progress notification before other calls run.
const TOLD_AT_ONCE: usize = 256;

impl Hub {
    /// Returns the time between two periodic progress notifications of a stream. It differs by up to a tenth
    /// between streams, so that they do not all send at the same time.
    pub(in crate::watch) fn progress_interval(&self, stream: &Stream) -> Duration {
        let interval = self.shared.member.limits.progress_interval;
        let spread = stream.serial.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
        (interval + interval * (spread as u32) / 10_240).max(Duration::from_millis(1))
    }

    /// Returns true if a progress notification may include the watch: it has received everything up to the
    /// hub's revision and does not start above that revision.
    fn is_abreast(&self, watch: &Watch) -> bool {
        watch.synced.get() && watch.ahead().is_none_or(|start| start <= self.revision.get())
    }

    /// Answers the client's open progress request if all watches of the stream are at the hub's revision.
    ///
    /// etcd drops the request if some watch is behind; here the answer is sent as soon as all have caught up.
    pub(in crate::watch) fn tell_progress(&self, stream: &Rc<Stream>) {
        if stream.progress_wanted().is_some() && planted::is(Bug::ProgressAhead) {
            stream.rare().progress_wanted.set(None);
            return self.push_progress(stream, NO_WATCH);
        }
        if stream.progress_wanted().is_none() && stream.waits_for_progress().is_none() {
            return;
        }
        if stream.progress_due().is_some() {
            self.advance();
        }
        self.say_progress(stream);
    }

    /// Sends a progress notification if it is due. If the only obstacle is that the hub has not reached the
    /// required revision, registers the stream, so that the notification is sent when the hub reaches it. A
    /// stream that first has to wait for something else, such as a cancel request of its client, calls this
    /// function again itself.
    fn say_progress(&self, stream: &Rc<Stream>) {
        let mut due = stream.progress_due();
        // While revisions are being delivered over several turns, no progress is sent: some watches of the
        // stream may have received these revisions and others not.
        if due.is_some_and(|due| due <= self.revision.get()) && !self.is_under_way() {
            stream.rare().progress_wanted.set(None);
            self.push_progress(stream, NO_WATCH);
            due = None;
        }
        self.wait_for_progress(stream, due);
    }

    /// Makes a stream wait for the hub to reach this revision before it sends progress; `None` ends the wait.
    pub(super) fn wait_for_progress(&self, stream: &Rc<Stream>, due: Option<Revision>) {
        let before = stream.waits_for_progress();
        if before == due {
            return;
        }
        stream.rare().waits_for_progress.set(due);
        let mut waiting = self.waiting.borrow_mut();
        if let Some(before) = before {
            self.note_work(0, 1);
            waiting.remove(&ProgressDue { revision: before, stream: stream.serial });
        }
        if let Some(due) = due {
            waiting.insert(ProgressDue { revision: due, stream: stream.serial }, Rc::clone(stream));
        }
    }

    /// Sends progress on some of the streams for which it is due. Returns true if no such stream is left.
    /// Does not visit streams that wait for a later revision.
    pub(super) fn say_due_progress(&self) -> bool {
        let revision = self.revision.get();
        for _ in 0..TOLD_AT_ONCE {
            let Some(stream) = self.pop_due(revision) else { return true };
            self.note_work(0, 1);
            self.say_progress(&stream);
        }
        self.waiting.borrow().first_key_value().is_none_or(|(due, _)| due.revision > revision)
    }

    fn pop_due(&self, revision: Revision) -> Option<Rc<Stream>> {
        let mut waiting = self.waiting.borrow_mut();
        let stream = waiting.first_entry().filter(|first| first.key().revision <= revision)?.remove();
        stream.rare().waits_for_progress.set(None);
        Some(stream)
    }

    /// Continues a round of periodic progress: notifies some of the watches that asked for it and received no
    /// event since the last round.
    pub(in crate::watch) fn tell_periodic_progress(&self, stream: &Stream) {
        let begun = Instant::now();
        self.advance();
        let Some(from) = stream.rare().ticks_from.take() else { return };
        for (n, (id, watch)) in stream.watches.borrow().range(from..).enumerate() {
            if n == TOGETHER_MAX {
                stream.rare().ticks_from.set(Some(id));
                break;
            }
            // A watch that has read history, or has received a revision whose delivery to others is still in
            // progress, may be ahead of the hub's revision. A notification would then contain a lower
            // revision than the watch's last response.
            let is_further = watch.next.get() > self.revision.get() + 1;
            if watch.options.progress()
                && watch.quiet.replace(true)
                && self.is_abreast(watch)
                && !is_further
                && stream.has_room(64)
            {
                self.push_progress(stream, watch.id);
            }
        }
        self.shared.diagnostics.metrics.server.watch_send_progress.observe_seconds(begun.elapsed());
    }

    fn push_progress(&self, stream: &Stream, watch_id: i64) {
        // Events may be missing in a stream that is ending. A client resumes after the revision of the last
        // notification, so a notification now would make the client skip these events.
        if stream.ending().is_some() {
            return;
        }
        let header = self.header(&self.shared.state.load(), self.revision.get());
        let response = WatchResponse { header: Some(header), watch_id, ..WatchResponse::default() };
        stream.push(Queued::control(&response));
    }
}
