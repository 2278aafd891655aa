//! Reads history for unsynced watches, in the turns of their streams.
//!
//! # Example: catching up, and the hand-over to the synced watches
//!
//! A watch begins at revision 5. The hub has delivered all changes through revision 20 to its synced watches.
//!
//! ```text
//!                              watch.next  hub revision
//! watch is made                5           20            unsynced
//! slice 1 reads 5 .. 12        13          20
//! revisions 21 .. 25 written   13          25            the hub tells synced watches, not this one
//! slice 2 reads 13 .. 25       26          25            26 > 25: the watch joins the synced ones
//! revision 26 written          26          26            the hub tells it
//! ```
//!
//! If the hub is delivering 26 .. 30 over several turns when slice 2 ends, the hub's revision is still 25 but
//! `begun()` is 30. The watch has `next` 26, which is not above 30, so it stays unsynced. It reads 26 .. 30
//! itself and joins with `next` 31. So each change reaches the watch once: the hub delivers a change to the
//! watch only if the watch was synced when the hub began to deliver that change.

use std::rc::{Rc, Weak};

use api::etcdserverpb::{ResponseHeader, WatchResponse};
use numbers::Revision;
use planted::Bug;

use super::{Hub, LONG_HISTORY, TOGETHER_MAX};
use crate::watch::hold::Hold;
use crate::watch::index::Index;
use crate::watch::long::{Claim, Failed, Given, Long, Part, Previous};
use crate::watch::portion::{Done, Portion, SliceLimits};
use crate::watch::queued::Queued;
use crate::watch::slice::{Gathered, SLICE_BYTES_MAX, Slice, cannot_read, too_long};
use crate::watch::state::Watch;
use crate::watch::stream::Stream;
use replica::shared::Published;
use storage::values::Attempt;

/// Maximum number of entries of [`Hub::claimed`]. If there are more, the oldest entry is dropped: its stream
/// completes the response, but no further stream can wait for it. That happens only if the streams of a shard
/// make very many different responses at the same time.
const CLAIMED_MAX: usize = 64;

impl Hub {
    /// Reads history for the waiting streams, one after the other, until they have read enough for one turn.
    /// Returns true if no stream waited.
    pub(in crate::watch) fn read_some(&self) -> bool {
        // Reads from the newest state that may be delivered. If users or roles have changed since the watches
        // were checked, this is not the newest state until the watches are checked again.
        let Some(state) = self.readable(&self.shared.state.load_full()) else { return false };
        let current = state.view.snapshot().current_revision();
        let whole = self.portion.get();
        let (mut left, mut enough) = (Some(whole), Some(self.history.get()));
        let mut none_reads = true;
        while let Some(portion) = left {
            let next = match enough {
                Some(_) => self.readers.borrow_mut().pop(),
                None => self.readers.borrow_mut().pop_due(current),
            };
            let Some(stream) = next else { break };
            none_reads = false;
            let done = if !stream.may_read() || !stream.goes_on_without_room() && stream.room().soon == 0 {
                // The stream is queued again when it may read, or when its client can take more: its task is
                // woken to wait for that. Skipping it counts as work, because there may be many such streams.
                self.note_work(1, 0);
                Done { walked: 1, ..Done::default() }
            } else {
                let Some(done) = self.catch_up(&stream, &state, portion, portion == whole) else {
                    // The stream needs more work than is left in this turn, so it goes first in the next turn.
                    self.readers.borrow_mut().enter_first(&stream);
                    break;
                };
                done
            };
            left = done.left_of(portion);
            enough = enough.and_then(|enough| done.left_of(enough));
            stream.wake();
        }
        none_reads
    }

    /// Queues a stream to read history in its turn.
    pub(in crate::watch) fn read_later(&self, stream: &Rc<Stream>) {
        stream.resume_pace(|| self.published());
        self.readers.borrow_mut().enter(stream);
        self.go_on_later();
    }

    /// Records that a stream waits for its client, and not for its turn to read history.
    pub(in crate::watch) fn pause_reading(&self, stream: &Stream) {
        stream.pause_pace(|| self.published());
        self.readers.borrow_mut().pause(stream);
    }

    /// Returns the newest published revision.
    fn published(&self) -> Revision {
        self.shared.state.load().view.snapshot().current_revision()
    }

    /// Makes a synced watch unsynced, to read the undelivered changes from `next` on as history. A hold keeps
    /// that history readable even if it is compacted.
    pub(super) fn leave_behind(&self, watch: &Rc<Watch>, next: Revision) {
        // A hold whose history was removed despite the hold protects nothing. In that case a new hold is
        // created.
        let keeps = |hold: &Rc<Hold>| hold.snapshot(&self.shared.state.load().view, next).is_some();
        let held = self.hold.borrow().upgrade().filter(|hold| hold.from == next && keeps(hold));
        let hold = held.unwrap_or_else(|| {
            let hold = Rc::new(Hold::new(&self.shared, next));
            *self.hold.borrow_mut() = Rc::downgrade(&hold);
            hold
        });
        // If the history may have been removed already, the watch gets no hold: it would not help the watch,
        // but would delay the removal of other versions.
        watch.set_hold(keeps(&hold).then_some(hold));
        self.fall_behind(watch, next);
    }

    /// Makes a synced watch unsynced; it reads history from `next` on.
    pub(super) fn fall_behind(&self, watch: &Rc<Watch>, next: Revision) {
        let removed = self.synced.borrow_mut().remove(&watch.keys, watch.serial);
        assert!(removed.is_some(), "only a synced watch falls behind");
        let next = if planted::is(Bug::WatchFallsTooFarBehind) { next - 1 } else { next };
        watch.next.set(watch.next.get().max(next));
        watch.synced.set(false);
        watch.stream.fall_behind(watch);
        self.count_slow(&watch.stream, 1);
        watch.stream.wake();
    }

    /// Reads one slice of history for the unsynced watches of a stream that have the oldest next revisions.
    /// `portion` limits the work; `whole` is true if it is the limit of a complete turn. Returns `None` if
    /// `portion` is only the rest of a turn and is too small for the first revision of the slice.
    fn catch_up(
        &self,
        stream: &Rc<Stream>,
        state: &Published,
        portion: Portion,
        whole: bool,
    ) -> Option<Done> {
        if let Some(long) = stream.take_long() {
            return Some(self.read_long(stream, state, portion, long));
        }
        let snapshot = state.view.snapshot();
        let (current, compacted) = (snapshot.current_revision(), snapshot.compact_revision());
        let mut together = stream.most_behind(TOGETHER_MAX);
        let at_once = together.len();
        together.retain(|watch| {
            let readable = watch.next.get() >= compacted || watch.held(&state.view).is_some();
            if !readable {
                self.cancel_compacted(watch, state, compacted);
            }
            readable
        });
        let idle = Done { told: 1, looks: at_once, ..Done::default() };
        let Some(first) = together.first() else { return Some(idle) };
        let from = first.next.get();
        // All watches of the slice are served from one snapshot, which only has to suffice for the first
        // watch, because that watch reads the oldest revision. The snapshot of a hold is preferred, because
        // it may be the only one with the previous values of the first change. Any watch that reads from the
        // same revision may have that hold.
        let mut beside = together.iter().take_while(|watch| watch.next.get() == from);
        let held = beside.find_map(|watch| watch.held(&state.view));
        // The slice whose values were fetched ends where it ended before: further values may be missing.
        let end = stream.fetched_through(from).unwrap_or(current).min(current);
        let (snapshot, changes) = match (held, snapshot.changes(from, end)) {
            (Some(held), _) => (held, held.written(from, end)),
            (None, Ok(changes)) => (snapshot, changes),
            (None, Err(_)) => return Some(idle),
        };
        together.truncate(stream.together_max(from));
        let header = self.header(state, current);
        // A slice for many watches may be longer, because to find the watches and to move each of them costs as
        // much as some looks.
        let enough = self.history.get();
        let limits = SliceLimits {
            portion,
            enough: Portion {
                looks: enough.looks.max(4 * together.len()),
                watches: enough.watches.max(together.len()),
                ..enough
            },
            revisions_min: stream.pace().map_or(0, |pace| pace.revisions_min(current)),
            room: stream.room(),
        };
        let limits = stream.limits_of_slice(limits, from, current);
        let mut values = stream.attempt(from, || Attempt::new(self.values.clone()));
        // Makes the attempt look for values in memory again before it fetches them: values that were written
        // since the last slice are usually in the page cache.
        values.ask_again();
        let mut group = Index::default();
        for watch in &together {
            group.insert(Rc::clone(watch));
        }
        let end = snapshot.current_revision().min(end);
        let (slice, gathered) = Slice::gather(snapshot, &values, changes, &group, end, limits);
        let done = slice.done();
        self.note_work(done.walked, done.looks);
        // The unsynced watches among which `together` was chosen count as checked watches. A stream that got
        // no event counts as one served watch, so that many such streams use up the turn.
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
                    // Makes the next turn read for fewer watches.
                    Gathered::TooMuch(revision) if together.len() > 1 => {
                        stream.read_fewer_together(from, revision, together.len() / 2);
                        stream.fetch(values);
                    }
                    // Makes the next turns read this revision in parts, one part per turn.
                    Gathered::TooMuch(revision) | Gathered::TooLong(revision) => {
                        together.retain(|watch| watch.next.get() <= revision);
                        // What is published until the revision has been read counts.
                        stream.note_limits(current);
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
        let (mut advanced, group) = (false, together.len());
        for watch in together {
            if watch.left_behind.replace(false) {
                continue;
            }
            advanced |= self.has_read(stream, &watch, through);
        }
        if advanced {
            stream.note_slice((through.0 - from.0 + 1).max(0) as usize, group);
        }
        if !values.is_complete() {
            if advanced {
                // The fetched values were used for this slice and are dropped here. The next slice needs
                // other values.
                values.forget();
            } else {
                stream.fetch_through(through);
            }
            stream.fetch(values);
        }
        Some(done)
    }

    /// Records that an unsynced watch has read all changes through this revision, and makes it synced if it
    /// has caught up. Returns true if the watch advanced.
    fn has_read(&self, stream: &Stream, watch: &Rc<Watch>, through: Revision) -> bool {
        assert!(stream.catches_up(watch), "a watch is where it says");
        let next = watch.next.get().max(through + 1);
        let told = &stream.rare().told_through;
        told.set(told.get().max(through));
        let advanced = watch.next.replace(next) < next;
        if next > self.begun() {
            self.count_slow(stream, -1);
            watch.synced.set(true);
            watch.set_hold(None);
            self.synced.borrow_mut().insert(Rc::clone(watch));
        } else {
            stream.fall_behind(watch);
        }
        advanced
    }

    /// Reads some changes of a revision of many changes, for the watches of a stream that read this revision.
    fn read_long(&self, stream: &Rc<Stream>, state: &Published, portion: Portion, mut long: Long) -> Done {
        let snapshot = state.view.snapshot();
        let (revision, current) = (long.revision, snapshot.current_revision());
        let compacted = snapshot.compact_revision();
        // Comparing the keys with those of other streams' responses counts as work on `keys_bytes` bytes.
        let idle = Done { told: 1, looks: long.parts.len(), bytes: long.keys_bytes(), ..Done::default() };
        if let Some(given) = long.given.take()
            && let Some(watch) = long.takes(&given, &self.hasher)
        {
            if let Some((bytes, events)) = &given.response {
                stream.push(Queued::shared(bytes.clone(), *events));
                watch.quiet.set(false);
            }
            stream.set_long(None);
            self.has_read(stream, &watch, revision);
            return idle;
        }
        if revision < compacted {
            // The revision was compacted while its responses were being made, so watches without a hold
            // cannot finish them and are cancelled.
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
        // If a watch has a hold, the state that the hold protects is read, so that compactions do not change
        // the events during the read.
        let held = long.parts.iter().find_map(|part| part.watch.held(&state.view));
        let previous = match held {
            Some(snapshot) => Previous::of(snapshot, revision, true),
            None => Previous::of(snapshot, revision, false),
        };
        let snapshot = held.unwrap_or(snapshot);
        if let Some(same) = long.same(previous, &self.hasher)
            && long.claim.is_none()
        {
            let of_another = {
                let mut claimed = self.claimed.borrow_mut();
                claimed.retain(|claim| claim.strong_count() > 0);
                claimed.iter().filter_map(Weak::upgrade).find(|claim| claim.same == same)
            };
            if let Some(claim) = of_another {
                stream.set_long(Some(long));
                claim.wait(stream);
                return idle;
            }
            let claim = Claim::new(same, stream);
            let mut claimed = self.claimed.borrow_mut();
            if claimed.len() == CLAIMED_MAX {
                claimed.remove(0);
            }
            claimed.push(Rc::downgrade(&claim));
            long.claim = Some(claim);
        }
        let mut values = stream.attempt(revision, || Attempt::new(self.values.clone()));
        values.ask_again();
        let falls_behind = stream.pace().is_some_and(|pace| pace.due() <= current);
        let portion = if falls_behind { portion } else { portion.min(LONG_HISTORY) };
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
        // Ends the reservation for the unfinished responses: finished bytes move to the queue, which reserves
        // memory for them, and `set_long` below reserves memory again for those that are still unfinished.
        stream.release_long();
        if turn.is_whole {
            if let Some(claim) = long.claim.take() {
                self.share_long(&claim, &mut long, &header);
            }
            let watches = long.send_all(&header);
            stream.set_long(None);
            stream.note_slice(1, watches.len());
            for watch in watches {
                self.has_read(stream, &watch, revision);
            }
            return done;
        }
        long.send_some(&header);
        stream.set_long(Some(long));
        if !values.is_complete() {
            if turn.advanced {
                // The fetched values were used in this turn and are dropped here. The next turn needs other
                // values.
                values.forget();
            }
            stream.fetch(values);
        }
        done
    }

    /// Gives a finished response to the streams that wait for the same response. A stream whose queue is
    /// empty takes the response in its next turn. Every other stream makes the response itself, after its
    /// client has read the queued responses.
    fn share_long(&self, claim: &Claim, made: &mut Long, header: &ResponseHeader) {
        let given = Rc::new(Given { same: claim.same.clone(), response: made.shared(header) });
        for waiting in claim.take_waiting() {
            waiting.rare().waits_for_another.set(false);
            if waiting.give(&given) {
                self.read_later(&waiting);
            } else {
                waiting.wake();
            }
        }
    }

    /// Tells the client that a watch is cancelled because its history was compacted. As in etcd, the stream
    /// keeps the watch until the client cancels it too: until then the watch id stays in use, and the stream
    /// sends no progress. The client's own cancel request is answered.
    fn cancel_compacted(&self, watch: &Watch, state: &Published, compacted: Revision) {
        self.rest(watch);
        watch.compacted.set(true);
        let waiting = &watch.stream.rare().compacted;
        waiting.set(waiting.get() + 1);
        watch.synced.set(false);
        let response = WatchResponse {
            header: Some(self.header(state, Revision(0))),
            watch_id: watch.id,
            canceled: true,
            compact_revision: compacted.0,
            ..WatchResponse::default()
        };
        watch.stream.push(Queued::control(&response));
    }
}
