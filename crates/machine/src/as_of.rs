//! Lets a long read see the state at one point in time, without holding a view during the whole read.
//!
//! While a view is held, every path of the index that later writes replace stays in memory: some kilobytes
//! per put. So a long reader (a client that reads a snapshot or a large range chunk by chunk, a checkpoint, a
//! hash) holds an [`AsOf`] instead: it reads slice by slice, each slice from the newest view, but always the
//! state at the same point in time (a [`Moment`]). In the meantime, the versions that exist at this moment
//! must not be physically removed. The code that removes versions therefore knows every reader, through the
//! [`Newest`] that the reader holds. That code may stop a reader that takes too long; the reader then fails
//! with [`Overtaken`].

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

/// Source of the newest view of a store, for one reader. While the source exists, versions that its reader
/// needs are not removed, unless the reader is stopped.
pub trait Newest: Send + Sync {
    /// Returns the newest published view; `None` if no more views will be published, or the reader was
    /// stopped.
    fn view(&self) -> Option<Arc<View>>;

    /// Reports that the reader from now on needs only the versions of this moment, so that the others may be
    /// removed.
    fn needs(&self, moment: &Moment);
}

/// A source that always returns the same view, for tests and for stores that are not written.
struct Held(Arc<View>);

impl Newest for Held {
    fn view(&self) -> Option<Arc<View>> {
        Some(Arc::clone(&self.0))
    }

    fn needs(&self, _moment: &Moment) {}
}

/// Handle for a long read of the state at one point in time.
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
    /// Creates a reader of the state of this view. The reader holds the view.
    fn from(view: Arc<View>) -> AsOf {
        AsOf { moment: view.moment(), newest: Arc::new(Held(view)) }
    }
}

impl AsOf {
    /// Creates a reader of the state at `moment`. It reads from the views that `newest` returns.
    pub fn new(moment: Moment, newest: Arc<dyn Newest>) -> AsOf {
        AsOf { moment, newest }
    }

    /// Returns the moment that is read.
    pub fn moment(&self) -> &Moment {
        &self.moment
    }

    /// Returns a reader of another moment. That moment must be later than this reader's moment, or have the
    /// same compact revision: the versions that it needs are then already protected from removal by this
    /// reader.
    #[must_use]
    pub fn at(&self, moment: Moment) -> AsOf {
        AsOf { moment, newest: Arc::clone(&self.newest) }
    }

    /// Returns the reader, and gives up its protection of tombstones that can no longer be read, so that
    /// these may be removed from now on.
    #[must_use]
    pub fn of_what_is_readable(self) -> AsOf {
        let moment = self.moment.keeping_readable();
        self.newest.needs(&moment);
        AsOf { moment, ..self }
    }

    /// Returns true if the whole store has been replaced by another state, in which this reader's moment does
    /// not exist. After a compaction, in contrast, it exists, although its versions may be gone.
    pub fn is_replaced(&self) -> bool {
        self.newest.view().is_some_and(|view| !view.has_moment(&self.moment))
    }

    /// Returns a [`Slice`]: the newest view, to be read as of this reader's moment. The caller should drop it
    /// soon, because a held view keeps replaced parts of the index in memory.
    ///
    /// # Errors
    ///
    /// Returns an error if a version that the moment needs was removed, if a block of the index could not be
    /// read, or if [`Newest::view`] returns `None`.
    pub fn slice(&self) -> Result<Slice, Overtaken> {
        let view = self.newest.view().ok_or(Overtaken)?;
        if view.fault().is_some() {
            return Err(Overtaken);
        }
        view.snapshot_at(&self.moment).map_err(|_| Overtaken)?;
        let moment = if planted::is(Bug::LongReadMixesRevisions) { view.moment() } else { self.moment };
        Ok(Slice { view, moment })
    }
}

impl AsOf {
    /// Returns the message of a block of the index that could not be read ([`View::fault`]).
    pub fn fault(&self) -> Option<String> {
        self.newest.view().and_then(|view| view.fault().map(str::to_owned))
    }

    /// Checks that what was read in earlier slices is complete. A long read calls it after its last slice,
    /// before it uses the result.
    ///
    /// # Errors
    ///
    /// Returns an error if a block of the index could not be read ([`View::fault`]).
    pub fn intact(&self) -> Result<(), Overtaken> {
        if self.fault().is_some() { Err(Overtaken) } else { Ok(()) }
    }
}

/// One slice of a long read; see [`AsOf::slice`].
pub struct Slice {
    view: Arc<View>,
    moment: Moment,
}

impl Slice {
    /// Returns the state at the reader's moment.
    pub fn snapshot(&self) -> Snapshot<'_> {
        self.view.snapshot_at(&self.moment).expect("a view that had everything has everything")
    }
}
