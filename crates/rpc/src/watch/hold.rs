//! Protects changes from compaction until a watch that was synced when they were made has received them.
//!
//! etcd delivers every change to the synced watches when the change is made, whatever is compacted next. In
//! Mainstay, such a watch may have to read the change later, as history: because the revision has many
//! changes, because values are not in memory, or because more was published than the queue of the stream can
//! hold. Until the watch is synced again, but for a minute at most, a [`Hold`] keeps compactions from
//! removing what the watch reads (COMPAT-79).

use std::sync::Arc;

use mvcc::{Snapshot, View};
use numbers::Revision;

use machine::AsOf;
use replica::long_reads::Reader;
use replica::shared::Shared;

/// Protects everything that was written from a revision on from being removed by compactions.
pub(super) struct Hold {
    /// First protected revision.
    pub from: Revision,
    state: AsOf,
}

impl Hold {
    /// Protects what was written from this revision on. If that may have been removed already,
    /// [`Hold::snapshot`] returns `None`.
    pub fn new(shared: &Arc<Shared>, from: Revision) -> Hold {
        let moment = shared.state.load().view.moment().keeping_from(from - 1);
        Hold { from, state: shared.read_long_at(Reader::Watch, moment) }
    }

    /// Returns a snapshot from which everything from `next` on can be read by [`Snapshot::written`], whatever
    /// was compacted. If `next` is not above the revision that was current when the hold was created, returns
    /// the state at that revision, because that state also has the previous values of the changes. Returns
    /// `None` if some of the history may have been removed.
    pub fn snapshot<'a>(&self, view: &'a View, next: Revision) -> Option<Snapshot<'a>> {
        let moment = self.state.moment();
        let then = view.snapshot_at(moment).ok().filter(|_| next >= self.from)?;
        Some(if next <= moment.revision() { then } else { view.snapshot() })
    }
}
