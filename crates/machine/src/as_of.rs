//! Reads the state at one moment for a long time without holding a view of it.
//!
//! While a view is held, every path of the index that later writes replace stays in memory: some kilobytes
//! per put. So a long reader (a client that reads a snapshot or a large range piece by piece, a checkpoint, a
//! hash) holds [`AsOf`]: it reads slice by slice, each slice from the newest view, but as of a fixed moment.
//! Versions that the moment needs must not be physically removed in the meantime. Through the [`Newest`] that
//! the reader holds, the code that removes versions knows of the reader, and may stop it. The reader then
//! fails with [`Overtaken`].

use std::sync::Arc;

use mvcc::{Moment, Snapshot, View};
use planted::Bug;

/// Error of a reader that took too long: versions of the state that it reads have been removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overtaken;

impl std::fmt::Display for Overtaken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the revision was compacted while it was being read")
    }
}

impl std::error::Error for Overtaken {}

/// Source of the newest view of a store. While it exists, it keeps the versions that a reader needs from
/// being removed.
pub trait Newest: Send + Sync {
    /// Returns the newest published view; `None` if no more views will be published, or the reader was
    /// stopped.
    fn view(&self) -> Option<Arc<View>>;

    /// Reports that the reader needs only the versions of this moment from now on.
    fn needs(&self, moment: &Moment);
}

/// A source that holds one view, for tests and for stores that are not written.
struct Held(Arc<View>);

impl Newest for Held {
    fn view(&self) -> Option<Arc<View>> {
        Some(Arc::clone(&self.0))
    }

    fn needs(&self, _moment: &Moment) {}
}

/// The state at one moment, for a reader that takes long.
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
    /// Reads the state of this view, which is held.
    fn from(view: Arc<View>) -> AsOf {
        AsOf { moment: view.moment(), newest: Arc::new(Held(view)) }
    }
}

impl AsOf {
    /// Reads the state at `moment` from the views that `newest` returns.
    pub fn new(moment: Moment, newest: Arc<dyn Newest>) -> AsOf {
        AsOf { moment, newest }
    }

    /// Returns the moment that is read.
    pub fn moment(&self) -> &Moment {
        &self.moment
    }

    /// Returns a reader of another moment that needs no separate protection from removal, because the
    /// protection of this reader is enough: the moment is later, or has the same compact revision.
    #[must_use]
    pub fn at(&self, moment: Moment) -> AsOf {
        AsOf { moment, newest: Arc::clone(&self.newest) }
    }

    /// Returns the reader without protection for tombstones that can no longer be read, so that these may be
    /// removed from now on.
    #[must_use]
    pub fn of_what_is_readable(self) -> AsOf {
        let moment = self.moment.keeping_readable();
        self.newest.needs(&moment);
        AsOf { moment, ..self }
    }

    /// Returns true if the whole store was replaced by another state, as opposed to being compacted.
    pub fn is_replaced(&self) -> bool {
        self.newest.view().is_some_and(|view| !view.has_moment(&self.moment))
    }

    /// Returns the newest view, to be read as of the moment. The caller should drop it soon, because a view
    /// keeps memory.
    ///
    /// # Errors
    ///
    /// Returns an error if a version that the moment needs was removed.
    pub fn slice(&self) -> Result<Slice, Overtaken> {
        let view = self.newest.view().ok_or(Overtaken)?;
        view.snapshot_at(&self.moment).map_err(|_| Overtaken)?;
        let moment = if planted::is(Bug::LongReadMixesRevisions) { view.moment() } else { self.moment };
        Ok(Slice { view, moment })
    }
}

/// One slice of a long read; see [`AsOf::slice`].
pub struct Slice {
    view: Arc<View>,
    moment: Moment,
}

impl Slice {
    /// Returns the state at the moment.
    pub fn snapshot(&self) -> Snapshot<'_> {
        self.view.snapshot_at(&self.moment).expect("a view that had everything has everything")
    }
}
