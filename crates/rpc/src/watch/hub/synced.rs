//! Delivers new changes to synced watches. The delivery is spread over several turns if the changes match
//! many watches or a revision has many changes.

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
use crate::watch::state::Watch;
use replica::shared::Published;
use storage::values::Attempt;

/// Delivery of revisions to synced watches over several turns. Until the delivery ends, the hub's revision
/// stays the same, and an unsynced watch becomes synced only if it has read all revisions of the delivery
/// itself.
pub(super) enum UnderWay {
    /// Delivery of a few revisions that match many watches.
    Broadcast(Broadcast),
    /// Walk over a revision of many changes. The watches that match become unsynced and read the revision
    /// through their streams.
    Walk(Walk),
    /// Revisions up to `through` may have been removed before this shard saw them. All synced watches are
    /// made to read history; the watches whose history was removed are cancelled when they try to read it.
    /// Done for the streams before `stream`, and for the watches of `stream` before `watch`.
    Overtaken { through: Revision, stream: u64, watch: i64 },
}

/// Progress of a walk over the changes of one revision.
pub(super) struct Walk {
    revision: Revision,
    /// Sub revision of the change that the walk has reached.
    sub: u32,
    /// Last watch that was visited for the key of that change.
    behind: Option<Place>,
}

impl Walk {
    fn new(revision: Revision) -> Walk {
        Walk { revision, sub: 0, behind: None }
    }
}

/// Progress of a delivery of a few revisions that match many watches. Watches that have received these
/// revisions have a [`Watch::next`] above `through`.
pub(super) struct Broadcast {
    from: Revision,
    through: Revision,
    /// Number of changes in these revisions; each turn may walk over all of them.
    changes: usize,
    /// Change that the delivery has reached.
    at: ChangeId,
    /// Last watch that was visited for the key of that change.
    behind: Option<Place>,
    /// Number of watches that get the changes together in one turn; at most `together_max`.
    together: usize,
    together_max: usize,
}

/// Number of changes in one broadcast after which no further revision is added to it.
const BROADCAST_CHANGES: usize = 64;
/// Number of bytes in one broadcast after which no further revision is added to it.
const BROADCAST_BYTES: usize = 64 << 10;

impl Hub {
    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.borrow().is_some()
    }

    /// Returns the last revision that is delivered, or being delivered, to the synced watches.
    pub(super) fn begun(&self) -> Revision {
        match &*self.under_way.borrow() {
            None => self.revision.get(),
            Some(UnderWay::Broadcast(broadcast)) => broadcast.through,
            Some(UnderWay::Walk(walk)) => walk.revision,
            Some(UnderWay::Overtaken { through, .. }) => *through,
        }
    }

    /// Delivers as many of the new changes as one turn may; returns true if nothing is left.
    pub(super) fn turn(&self) -> bool {
        let newest = self.shared.state.load_full();
        let Some(state) = self.review(&newest) else { return false };
        // If `state` is not the newest, later changes are delivered only after all watches have been checked
        // again, so this call cannot return true.
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

    /// Delivers the next revisions, as many as fit into one slice, to the watches that match them. Returns
    /// the work done, and true if the caller may deliver a further slice in this turn.
    ///
    /// The result is false if nothing was delivered, because the next revision alone exceeds `portion`, the
    /// work that this turn may still do. If `portion` is less than the work limit of a whole turn, the next
    /// turn tries again. Otherwise this method has set `under_way`, so that later turns deliver the revision
    /// step by step.
    fn tell_all(&self, state: &Published, portion: Portion) -> (Done, bool) {
        let snapshot = state.view.snapshot();
        let current = snapshot.current_revision();
        // A watch that needs a value that is not in memory becomes unsynced, and its stream fetches the
        // value. The other watches do not wait for it.
        let values = Attempt::new(self.values.clone());
        let from = self.revision.get() + 1;
        let changes = snapshot.written(from, current);
        let (slice, gathered) =
            Slice::gather(snapshot, &values, changes, &self.synced.borrow(), current, portion.into());
        let done = slice.done();
        let through = match gathered {
            Gathered::Through(through) => through,
            // An earlier slice has used some of this turn's work limit, so this revision is tried again in
            // the next turn, with the whole limit.
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

    /// Returns the delivery of the next revisions, which match many watches: a broadcast, or a walk if the
    /// first of these revisions has too many changes for a broadcast.
    fn broadcast_from(&self, snapshot: Snapshot<'_>, from: Revision) -> UnderWay {
        let portion = self.portion.get();
        let (mut changes, mut bytes, mut through) = (0, 0, from);
        // Totals at the end of the last complete revision: number of changes, number of bytes, and the
        // revision itself.
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
        // As many watches as `portion.bytes` allows if each of them receives all changes, but at most
        // `portion.watches`. If there are very many changes, every turn is long, even one for a single watch,
        // because it walks over all of them. So the maximum is raised to an eighth of the number of changes,
        // which makes the turns fewer.
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

    /// Walks over some more changes of a revision, and makes the matching watches read it through their
    /// streams. So the hub holds no events of the revision, and watches that do not match continue soon.
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

    /// Delivers the revisions of a broadcast to some more watches: first those that match the key of the
    /// first change, then those of the second, and so on.
    fn broadcast(&self, state: &Published, mut broadcast: Broadcast) -> Done {
        let snapshot = state.view.snapshot();
        let looks_max = self.portion.get().looks + broadcast.changes;
        let (at, through) = (broadcast.at, broadcast.through);
        let begun = (broadcast.at, broadcast.behind.clone());
        // The walk begins at `at` and not at the first change of the broadcast: all watches that match an
        // earlier change were visited already, so the watches chosen below need none of the earlier changes.
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
            group.insert(Rc::clone(watch));
        }
        let portion = Portion { looks: looks_max, bytes: self.portion.get().bytes, ..Portion::ALL };
        let (slice, gathered) = Slice::gather(snapshot, &values, changes(), &group, through, portion.into());
        let gathering = slice.done();
        let told = chosen.len();
        let done =
            Done { walked: walked + gathering.walked, told, looks: looks + gathering.looks, ..gathering };
        // All revisions are delivered to the chosen watches now, since later turns do not visit these watches
        // again.
        if gathered == Gathered::Through(through) {
            let header = self.header(state, snapshot.current_revision());
            for watch in slice.hand_out(&header, self.fragment_bytes_max()) {
                watch.left_behind.set(true);
            }
            if gathering.bytes < portion.bytes / 4 && gathering.looks < portion.looks / 4 {
                // This turn used little of its work limit, so the next turn serves twice as many watches.
                broadcast.together = (2 * broadcast.together).min(broadcast.together_max);
            }
        } else {
            slice.leave();
            if told > 1 {
                // The next turn starts at the same position with fewer watches.
                let (at, behind) = begun;
                let broadcast = Broadcast { at, behind, together: told.div_ceil(2), ..broadcast };
                *self.under_way.borrow_mut() = Some(UnderWay::Broadcast(broadcast));
                return Done { told: 0, ..done };
            }
            // The revisions exceed the work limit of a turn even for one watch, so the stream of this watch
            // reads them over several turns.
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

    /// Makes some more synced watches read as history the revisions up to `through`, which may have been
    /// removed. A stream without watches counts as work, too, because there may be many of them.
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
                // A watch that starts after `through` has lost nothing.
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

/// Returns true if all changes from this revision on can still be read: the revision is above those that may
/// have been removed, or it is not compacted.
fn is_there(state: &Published, from: Revision) -> bool {
    let compacted = state.view.snapshot().compact_revision();
    from > state.removed_through || from >= compacted || planted::is(Bug::WatchLostAtCompaction)
}
