//! Reads the state at one moment for a long time without holding a view of it.
//!
//! While a view is held, every path of the index that later writes replace stays in memory: some kilobytes
//! per put. So a long reader (a client that reads a snapshot or a large range piece by piece, a checkpoint, a
//! hash) holds [`AsOf`]: it reads slice by slice, each slice from the newest view, but as of a fixed moment.
//! Versions that the moment needs must not be physically removed in the meantime. The remover learns about
//! the reader from the [`Newest`] that the reader holds, and may stop the reader; the reader then fails with
//! [`Overtaken`].

use std::sync::Arc;

use mvcc::{Moment, Snapshot, View};
use planted::Bug;

/// Error of a reader that took too long: the state that it reads has been removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overtaken;

impl std::fmt::Display for Overtaken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the revision was compacted while it was being read")
    }
}

impl std::error::Error for Overtaken {}

/// Source of the newest view of a store. Until it is dropped, it keeps the versions that a reader needs from
/// being removed.
pub trait Newest: Send + Sync {
    /// Returns the newest published view; `None` if no more views will be published, or the reader was
    /// stopped.
    fn view(&self) -> Option<Arc<View>>;

    /// Reports that from now on the reader needs only the versions of this moment.
    fn needs(&self, moment: &Moment);
}

/// A view that is held: for tests, and for stores that are not written.
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

    /// Returns a reader of another moment that is protected from removal by the protection of this one: a
    /// later moment, or one with the same compact revision.
    #[must_use]
    pub fn at(&self, moment: Moment) -> AsOf {
        AsOf { moment, newest: Arc::clone(&self.newest) }
    }

    /// Stops protecting tombstones that can no longer be read, so that they may be removed from now on.
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

    /// Returns the newest view, read as of the moment. The caller drops it soon, because it holds a view.
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
