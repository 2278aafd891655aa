//! What keeps history readable for a watch that had everything when it was published.
//!
//! etcd gives every change to the watches that are synced when it is made, whatever is compacted next. Here such a watch
//! may have to read the change as history: because its revision is long, its values are not in memory, or because more was
//! published than its stream takes at once. Until it is synced again a [`Hold`] keeps compactions from removing what it
//! reads, for a minute at most (COMPAT-79).

use std::sync::Arc;

use mvcc::{Snapshot, View};
use numbers::Revision;

use machine::AsOf;
use replica::long_reads::Reader;
use replica::shared::Shared;

/// Keeps everything that was written from a revision on.
pub(super) struct Hold {
    /// The revision.
    pub from: Revision,
    state: AsOf,
}

impl Hold {
    /// Keeps what was written from this revision on, unless it may have been removed already: then reading it fails.
    pub fn new(shared: &Arc<Shared>, from: Revision) -> Hold {
        let moment = shared.state.load().view.moment().keeping_from(from - 1);
        Hold { from, state: shared.read_long_at(Reader::Watch, moment) }
    }

    /// A state in which everything from `next` on can be read by [`Snapshot::written`], whatever was compacted: that of
    /// when the hold began, which has previous values too, as long as there is something to read in it. `None` if some of it
    /// may have been removed.
    pub fn snapshot<'a>(&self, view: &'a View, next: Revision) -> Option<Snapshot<'a>> {
        let moment = self.state.moment();
        let then = view.snapshot_at(moment).ok().filter(|_| next >= self.from)?;
        Some(if next <= moment.revision() { then } else { view.snapshot() })
    }
}
