//! Reading the state of one moment for a long time without holding a view of it.
//!
//! While a view is held, every path of the index that later writes replace stays in memory for it: some kilobytes for
//! each put. So a reader that takes long (a client that takes a snapshot or a large range piece by piece, a checkpoint, a hash)
//! holds [`AsOf`]: it reads slice by slice, each from the newest view, as of a moment that stays the same. Versions that
//! the moment needs must not be physically removed meanwhile; who removes them learns of it from the [`Newest`] that the
//! reader holds, and may put an end to the reading: it is [`Overtaken`] then.

use std::sync::Arc;

use mvcc::{Moment, Snapshot, View};
use planted::Bug;

/// The error of a reader that has taken too long: the state is no longer there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overtaken;

impl std::fmt::Display for Overtaken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the revision was compacted while it was being read")
    }
}

impl std::error::Error for Overtaken {}

/// Gives the newest view of a store, and keeps what a reader needs from being removed until it is dropped.
pub trait Newest: Send + Sync {
    /// Returns the newest published view; `None` when there will be none any more, or the reader was ended.
    fn view(&self) -> Option<Arc<View>>;

    /// The reader needs no more than this moment does from now on.
    fn needs(&self, moment: &Moment);
}

/// A view that is held: for tests, and for stores that nobody writes.
struct Held(Arc<View>);

impl Newest for Held {
    fn view(&self) -> Option<Arc<View>> {
        Some(Arc::clone(&self.0))
    }

    fn needs(&self, _moment: &Moment) {}
}

/// The state as of one moment, for a reader that takes long.
#[derive(Clone)]
pub struct AsOf {
    moment: Moment,
    newest: Arc<dyn Newest>,
}

impl std::fmt::Debug for AsOf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("AsOf").field(&self.moment).finish()
    }
}

impl From<Arc<View>> for AsOf {
    /// The state of this view, which is held.
    fn from(view: Arc<View>) -> AsOf {
        AsOf { moment: view.moment(), newest: Arc::new(Held(view)) }
    }
}

impl AsOf {
    /// The state as of `moment`, read in the views that `newest` gives.
    pub fn new(moment: Moment, newest: Arc<dyn Newest>) -> AsOf {
        AsOf { moment, newest }
    }

    /// The moment.
    pub fn moment(&self) -> &Moment {
        &self.moment
    }

    /// The state as of another moment of which nothing is removed as long as nothing of this one's is: a later one, or one
    /// of the same compact revision.
    #[must_use]
    pub fn at(&self, moment: Moment) -> AsOf {
        AsOf { moment, newest: Arc::clone(&self.newest) }
    }

    /// Gives up tombstones that cannot be read any more, so that they may be removed from now on.
    #[must_use]
    pub fn of_what_is_readable(self) -> AsOf {
        let moment = self.moment.keeping_readable();
        self.newest.needs(&moment);
        AsOf { moment, ..self }
    }

    /// Returns true if it was overtaken by another state that took this one's place: nothing of it was compacted.
    pub fn is_replaced(&self) -> bool {
        self.newest.view().is_some_and(|view| !view.has_moment(&self.moment))
    }

    /// The newest view, to be read as of the moment. To be dropped soon: it is a view that is held.
    ///
    /// # Errors
    ///
    /// When something that the moment needs was removed.
    pub fn slice(&self) -> Result<Slice, Overtaken> {
        let view = self.newest.view().ok_or(Overtaken)?;
        view.snapshot_at(&self.moment).map_err(|_| Overtaken)?;
        let moment = if planted::is(Bug::LongReadMixesRevisions) { view.moment() } else { self.moment };
        Ok(Slice { view, moment })
    }
}

/// A piece of a long reading; see [`AsOf::slice`].
pub struct Slice {
    view: Arc<View>,
    moment: Moment,
}

impl Slice {
    /// The state as of the moment.
    pub fn snapshot(&self) -> Snapshot<'_> {
        self.view.snapshot_at(&self.moment).expect("a view that had everything has everything")
    }
}
