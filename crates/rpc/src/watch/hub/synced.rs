//! What synced watches are told of news, and how it is spread over turns if it concerns many or is long.

use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;

use mvcc::Snapshot;
use numbers::{ChangeId, Revision};
use planted::Bug;

use super::{Hub, MOVED_AT_ONCE};
use crate::watch::event::event_len;
use crate::watch::index::{Index, Place};
use crate::watch::portion::{Done, Portion};
use crate::watch::slice::{Gathered, Slice};
use crate::watch::stream::Watch;
use replica::shared::Published;
use storage::values::Attempt;

/// Work on revisions that synced watches are told of over several turns. Meanwhile the hub's revision stays, and a watch
/// joins the synced ones only if it has been told of later revisions.
pub(super) enum UnderWay {
    /// Revisions that concern many watches.
    Broadcast(Broadcast),
    /// A revision of many changes. Streams read it for the watches that it concerns.
    Walk(Walk),
    /// Revisions up to this one may have been removed before this shard came to see them: the streams find out for each
    /// watch. Those of the streams before this one, and those of this one before this watch, know.
    Overtaken { through: Revision, stream: u64, watch: i64 },
}

/// Progress of a walk over the changes of one revision.
pub(super) struct Walk {
    revision: Revision,
    /// The change that is being looked at, and the last watch looked at of those that are about its key.
    sub: u32,
    behind: Option<Place>,
}

impl Walk {
    fn new(revision: Revision) -> Walk {
        Walk { revision, sub: 0, behind: None }
    }
}

/// Progress in telling watches of some revisions that concern many of them. Those told go on behind these revisions
/// ([`Watch::next`]).
pub(super) struct Broadcast {
    from: Revision,
    through: Revision,
    /// The number of changes in these revisions; each turn may walk over all of them.
    changes: usize,
    /// The change that is being looked at, and the last watch told of those that are about its key.
    at: ChangeId,
    behind: Option<Place>,
    /// Watches that are told together, and how many may be.
    together: usize,
    together_max: usize,
}

/// Number of changes that one broadcast tells of, and their bytes; the last revision may exceed both.
const BROADCAST_CHANGES: usize = 64;
const BROADCAST_BYTES: usize = 64 << 10;

impl Hub {
    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.borrow().is_some()
    }

    /// The last revision that synced watches have been told of or are being told of.
    pub(super) fn begun(&self) -> Revision {
        match &*self.under_way.borrow() {
            None => self.revision.get(),
            Some(UnderWay::Broadcast(broadcast)) => broadcast.through,
            Some(UnderWay::Walk(walk)) => walk.revision,
            Some(UnderWay::Overtaken { through, .. }) => *through,
        }
    }

    /// Hands out a portion of what changed; returns true if nothing is left.
    pub(super) fn turn(&self) -> bool {
        let newest = self.shared.state.load_full();
        let Some(state) = self.review(&newest) else { return false };
        // Otherwise some watches are to be asked for before the rest is handed out.
        let is_newest = Arc::ptr_eq(&state, &newest);
        let current = state.view.snapshot().current_revision();
        if current <= self.revision.get() {
            return self.say_due_progress() && is_newest;
        }
        let mut portion = self.portion.get();
        let begun_at = self.revision.get();
        let (mut walked, mut looks) = (0, 0);
        while self.revision.get() < current {
            if self.synced.borrow().is_empty() {
                self.under_way.take();
                self.reach(current);
                break;
            }
            let under_way = self.under_way.take();
            let (done, more) = match under_way {
                Some(UnderWay::Overtaken { through, stream, watch }) => {
                    (self.overtake(through, stream, watch), false)
                }
                _ if !is_there(&state, self.revision.get() + 1) => {
                    (self.overtake(current, 0, i64::MIN), false)
                }
                Some(UnderWay::Broadcast(broadcast)) => (self.broadcast(&state, broadcast), false),
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
            self.shared.core.attendance.saw(self.shard, self.revision.get());
        }
        !self.is_under_way() && self.say_due_progress() && self.revision.get() >= current && is_newest
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
                *self.under_way.borrow_mut() = Some(self.broadcast_from(snapshot, from));
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
        self.reach(through);
        (done, true)
    }

    /// Returns the work on the next revisions, which concern many watches.
    fn broadcast_from(&self, snapshot: Snapshot<'_>, from: Revision) -> UnderWay {
        let portion = self.portion.get();
        let (mut changes, mut bytes, mut through) = (0, 0, from);
        // The same up to the end of the revision before.
        let mut whole = None;
        for version in snapshot.written(from, Revision::MAX) {
            if changes > 0 && version.main() > through {
                whole = Some((changes, bytes, through));
                if changes >= BROADCAST_CHANGES || bytes >= BROADCAST_BYTES {
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
        let at = ChangeId::first_of(from);
        UnderWay::Broadcast(Broadcast {
            from,
            through,
            changes,
            at,
            behind: None,
            together,
            together_max: together,
        })
    }

    /// Walks over some more changes of a revision, and has the watches that these concern read it with their streams: so
    /// nothing of it is held here, and those that it does not concern go on soon.
    fn walk(&self, state: &Published, mut walk: Walk) -> Done {
        let portion = self.portion.get();
        let (mut done, mut concerned, mut stopped) = (Done::default(), Vec::new(), false);
        let changes = state
            .view
            .snapshot()
            .written_from(ChangeId { main: walk.revision, sub: walk.sub }, walk.revision);
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
            self.reach(walk.revision);
        }
        done
    }

    /// Tells some more watches of a broadcast: some of those that are about the key of the first change, then of
    /// the second, and so on.
    fn broadcast(&self, state: &Published, mut broadcast: Broadcast) -> Done {
        let snapshot = state.view.snapshot();
        let looks_max = self.portion.get().looks + broadcast.changes;
        let (at, through) = (broadcast.at, broadcast.through);
        let begun = (broadcast.at, broadcast.behind.clone());
        // A watch that is found at a change wants none of those before it.
        let changes = || snapshot.written_from(at, through);
        let (mut walked, mut looks, mut chosen, mut stopped) = (0, 0, Vec::new(), false);
        for version in changes() {
            walked += 1;
            let at = version.id();
            let behind = if at == broadcast.at { broadcast.behind.take() } else { None };
            broadcast.at = at;
            let visited =
                self.synced.borrow().visit_behind(version.key(), behind.as_ref(), &mut |watch: &Rc<
                    Watch,
                >| {
                    looks += 1;
                    if watch.wants(version) && !watch.chosen.replace(true) {
                        chosen.push(Rc::clone(watch));
                    }
                    if chosen.len() < broadcast.together && looks < looks_max {
                        return ControlFlow::Continue(());
                    }
                    broadcast.behind = Some(Place { keys: watch.keys.clone(), serial: watch.serial });
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
                broadcast.together = (2 * broadcast.together).min(broadcast.together_max);
            }
        } else {
            slice.leave();
            if told > 1 {
                // The next turn begins at the same place, with fewer.
                let (at, behind) = begun;
                let broadcast = Broadcast { at, behind, together: told.div_ceil(2), ..broadcast };
                *self.under_way.borrow_mut() = Some(UnderWay::Broadcast(broadcast));
                return Done { told: 0, ..done };
            }
            // Its stream reads them a part at a time.
            chosen.iter().for_each(|watch| watch.left_behind.set(true));
        }
        for watch in chosen {
            if watch.left_behind.replace(false) {
                self.leave_behind(&watch, broadcast.from);
            } else {
                watch.next.set(watch.next.get().max(through + 1));
            }
        }
        if stopped {
            *self.under_way.borrow_mut() = Some(UnderWay::Broadcast(broadcast));
        } else {
            self.reach(through);
        }
        done
    }

    /// Makes some more watches read history that may have been removed. Streams without watches count as a watch: there may
    /// be many of them, too.
    fn overtake(&self, through: Revision, stream: u64, watch: i64) -> Done {
        let from = self.revision.get() + 1;
        let streams = self.streams.borrow();
        let (mut looks, mut behind, mut stopped) = (0, Vec::new(), None);
        'streams: for (serial, at) in streams.range(stream..) {
            let first = if *serial == stream { watch } else { i64::MIN };
            if looks == MOVED_AT_ONCE {
                stopped = Some((*serial, first));
                break;
            }
            looks += 1;
            for (id, watch) in at.watches.borrow().range(first..) {
                if looks == MOVED_AT_ONCE {
                    stopped = Some((*serial, id));
                    break 'streams;
                }
                looks += 1;
                // What begins behind it has lost nothing.
                if watch.synced.get() && watch.next.get() <= through {
                    behind.push(Rc::clone(watch));
                }
            }
        }
        drop(streams);
        match stopped {
            Some((stream, watch)) => {
                *self.under_way.borrow_mut() = Some(UnderWay::Overtaken { through, stream, watch });
            }
            None => self.reach(through),
        }
        behind.iter().for_each(|watch| self.fall_behind(watch, from));
        Done { looks, ..Done::default() }
    }
}

/// Returns true if all that was written from this revision on is still there, compacted or not: it is above what may have
/// been removed, or not compacted.
fn is_there(state: &Published, from: Revision) -> bool {
    let compacted = state.view.snapshot().compact_revision();
    from > state.removed_through || from >= compacted || planted::is(Bug::WatchLostAtCompaction)
}
