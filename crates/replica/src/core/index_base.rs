//! Decides when a checkpoint is written from which the index can be read in blocks (`--memory-budget`), and
//! whether the index adopts it. [`IndexBase`] decides; the checkpointer writes, and the index adopts.
//!
//! # Example
//!
//! ```text
//! budget 1 GiB       the index has grown by 600 MiB since the last base, compacted at 7000
//! removal is done    a whole checkpoint is due: its base will be settled through 6999
//! a value arrives    it was moved within the log after the base was ordered: the base may have the old
//!                    location, so the index will not adopt it
//! compacted at 9000  the next base is due
//! it is written      no value moves: the index adopts it, in slices
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use mvcc::{Adoptable, Base, Cache, Moment, Stats, Store};
use numbers::Revision;

/// The index has to grow by the budget divided by this number before a new base is due.
const GROWTH_PART: u64 = 2;
/// Pause before a base that could not be written or adopted is due again.
const RETRY_PAUSE: Duration = Duration::from_secs(5);
/// Maximum number of leaves that are adopted in one turn, which takes about a millisecond.
pub(super) const LEAVES_PER_TURN: u64 = 32;
/// Maximum number of blocks that are evicted in one turn.
pub(super) const EVICTIONS_PER_TURN: usize = 256;

/// Tracks the bases of the index: the one that is being written, and the one that waits to be adopted.
///
/// The index compares its leaves with blocks without reading the blocks, and so without the locations of
/// values. Therefore no value may move from the beginning of a base until the index has adopted it. A base
/// during which a value has moved is not adopted.
#[derive(Default)]
pub(super) struct IndexBase {
    cache: Option<Arc<Cache>>,
    /// Compact revision for which a base was ordered last; `None` if that base could not be written or adopted.
    ordered_at: Option<Revision>,
    /// Time before which no base is due, after one could not be written.
    not_before: Option<Instant>,
    /// True if a value has moved since the newest checkpoint was ordered.
    has_moved: bool,
    /// True if loaded blocks took too much memory after the last turn, although it has evicted some.
    evicts: bool,
    /// Moment of the newest checkpoint that was ordered.
    moment: Option<Moment>,
    /// A base that is written, and that the index may adopt once versions are removed, with its moment.
    waiting: Option<(Arc<Base>, Moment)>,
}

impl IndexBase {
    /// Returns the tracker of a member whose index has this cache; `None` if all of the index is in memory.
    pub fn new(cache: Option<Arc<Cache>>) -> IndexBase {
        IndexBase { cache, ..IndexBase::default() }
    }

    /// Returns the cache, if the index has a budget.
    pub fn cache(&self) -> Option<&Arc<Cache>> {
        self.cache.as_ref()
    }

    /// Returns true if a base would make much memory free, and the compact revision allows more than the last
    /// one did. `stats` and `compacted` are those of the index, whose removal is done.
    pub fn is_due(&self, stats: &Stats, compacted: Revision, now: Instant) -> bool {
        self.waiting.is_none()
            && compacted > self.ordered_at.unwrap_or(Revision::FIRST)
            && self.not_before.is_none_or(|time| now >= time)
            && self.is_large(stats)
    }

    /// Returns true if so much of the index that could be in blocks is in memory that a base is due, and that no more
    /// should get there by moving values.
    pub fn is_large(&self, stats: &Stats) -> bool {
        let budget = self.cache.as_ref().map(|cache| cache.budget_bytes());
        budget.is_some_and(|bytes| stats.pinned_bytes > bytes / GROWTH_PART)
    }

    /// Records that a checkpoint of this moment was ordered, which may write a base, and does if it is a whole
    /// one.
    pub fn ordered(&mut self, moment: Moment, whole: bool) {
        if whole {
            self.ordered_at = Some(moment.compact_revision());
        }
        self.moment = Some(moment);
        self.has_moved = false;
    }

    /// Records that a value has moved. Its leaf is in memory now, so another base makes sense also without another
    /// compaction.
    pub fn moved(&mut self) {
        self.has_moved = true;
        (self.ordered_at, self.waiting) = (None, None);
    }

    /// Records that a checkpoint was written, with its base if it has one.
    pub fn written(&mut self, base: Option<Arc<Base>>, now: Instant) {
        match base {
            Some(base) if !self.has_moved => self.waiting = self.moment.map(|moment| (base, moment)),
            Some(_) => self.failed(now),
            None => {}
        }
    }

    /// Records that a checkpoint could not be written, or that its base cannot be adopted. If it was to make memory free,
    /// another one is due after a pause.
    pub fn failed(&mut self, now: Instant) {
        (self.ordered_at, self.not_before) = (None, Some(now + RETRY_PAUSE));
    }

    /// Forgets the base that waits for the removal of versions, so that values may move. Returns false if no base waits
    /// for that.
    pub fn give_up_waiting(&mut self, store: &Store, now: Instant) -> bool {
        let waits = self.waiting_is(store) == Some(Adoptable::Later) && !store.is_adopting();
        if waits {
            self.waiting = None;
            self.failed(now);
        }
        waits
    }

    /// Forgets the base that waits: the state that it belongs to was replaced.
    pub fn state_replaced(&mut self) {
        (self.ordered_at, self.moment, self.waiting) = (None, None, None);
        self.has_moved = true;
    }

    /// Returns true if values have to stay where they are.
    pub fn keeps_places(&self, store: &Store) -> bool {
        self.waiting.is_some() || store.is_adopting()
    }

    /// Returns the base that waits, if the index can adopt it now.
    pub fn take_adoptable(&mut self, store: &Store, now: Instant) -> Option<(Arc<Base>, Moment)> {
        match self.waiting_is(store)? {
            Adoptable::Now => self.waiting.take(),
            Adoptable::Later => None,
            Adoptable::Never => {
                self.waiting = None;
                self.failed(now);
                None
            }
        }
    }

    fn waiting_is(&self, store: &Store) -> Option<Adoptable> {
        self.waiting.as_ref().map(|(base, moment)| store.adoptable(base, moment))
    }

    /// Records that blocks were evicted, as many as a turn may.
    pub fn evicted(&mut self) {
        self.evicts = self.cache.as_ref().is_some_and(|cache| cache.is_over());
    }

    /// Returns true if the next turn has something to do: a part of a base is to be adopted, or blocks are to be
    /// evicted.
    pub fn has_work(&self, store: &Store) -> bool {
        self.evicts || store.is_adopting() || self.waiting_is(store).is_some_and(|is| is != Adoptable::Later)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(pinned_bytes: u64) -> Stats {
        Stats { pinned_bytes, ..Store::new().stats() }
    }

    /// Returns a moment with this compact revision.
    fn moment(compacted: i64) -> Moment {
        let mut store = Store::new();
        while store.current_revision() < Revision(compacted) {
            store.begin().put(b"key", mvcc::Value::default(), numbers::LeaseId::NONE);
        }
        store.compact(Revision(compacted)).expect("it is the current revision");
        store.moment()
    }

    #[test]
    fn a_base_is_due_once_per_compaction_if_the_index_has_grown() {
        let now = Instant::now();
        let mut off = IndexBase::new(None);
        off.ordered(moment(3), true);
        assert!(!off.is_due(&stats(u64::MAX), Revision(9), now));
        let mut base = IndexBase::new(Some(Cache::new(1000)));
        assert!(!base.is_due(&stats(501), Revision::NEVER_COMPACTED, now), "nothing is settled");
        assert!(!base.is_due(&stats(500), Revision(7), now));
        assert!(base.is_due(&stats(501), Revision(7), now));
        base.ordered(moment(7), true);
        assert!(!base.is_due(&stats(501), Revision(7), now), "it was ordered for this compaction");
        assert!(base.is_due(&stats(501), Revision(8), now));
    }

    #[test]
    fn a_base_that_failed_is_due_again_after_a_pause_and_one_after_moves_at_once() {
        let now = Instant::now();
        let mut base = IndexBase::new(Some(Cache::new(1000)));
        base.ordered(moment(7), true);
        base.failed(now);
        assert!(!base.is_due(&stats(501), Revision(7), now));
        assert!(base.is_due(&stats(501), Revision(7), now + RETRY_PAUSE));
        let later = now + RETRY_PAUSE;
        base.ordered(moment(7), true);
        base.moved();
        assert!(base.is_due(&stats(501), Revision(7), later), "leaves are in memory because of that");
        base.written(None, later);
        assert!(!base.keeps_places(&Store::new()));
    }
}
