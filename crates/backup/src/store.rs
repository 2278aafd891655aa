//! The interface of a place that keeps objects: a bucket, or a directory.

use bytes::Bytes;

use crate::trouble::Trouble;

/// Result of [`Store::create`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Creation {
    /// The object was created.
    Created,
    /// An object of this name existed already, and is unchanged. It may be the one of an earlier attempt whose
    /// answer was lost.
    Existed,
}

/// Objects and directories directly below a directory, with names relative to it, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Names of directories.
    pub directories: Vec<String>,
    /// Names of objects.
    pub objects: Vec<String>,
}

/// A place that keeps objects under names. Names are relative to the place, with `/` between their parts.
///
/// An object appears as a whole or not at all, is never changed, and is durable when [`Store::create`] returns. The
/// methods wait for the network or a disk, and may be called by several threads at the same time.
pub trait Store: Send + Sync {
    /// Creates an object, unless one of this name exists.
    ///
    /// # Errors
    ///
    /// Returns an error if the store does not answer or refuses. The object may exist nevertheless.
    fn create(&self, name: &str, data: Bytes) -> Result<Creation, Trouble>;

    /// Returns the contents of an object; `None` if there is none of this name.
    ///
    /// # Errors
    ///
    /// Returns an error if the store does not answer or refuses.
    fn read(&self, name: &str) -> Result<Option<Bytes>, Trouble>;

    /// Returns the number of bytes of an object; `None` if there is none of this name.
    ///
    /// # Errors
    ///
    /// Returns an error if the store does not answer or refuses.
    fn size(&self, name: &str) -> Result<Option<u64>, Trouble>;

    /// Lists a directory; an empty text is the place itself. A directory that does not exist is empty.
    ///
    /// # Errors
    ///
    /// Returns an error if the store does not answer or refuses.
    fn list(&self, directory: &str) -> Result<Listing, Trouble>;

    /// Deletes an object, if it exists.
    ///
    /// # Errors
    ///
    /// Returns an error if the store does not answer or refuses, for example because the object is locked.
    fn remove(&self, name: &str) -> Result<(), Trouble>;

    /// Returns the URL of the place.
    fn url(&self) -> &str;

    /// Returns true if reading an object twice costs no more than reading a copy of it.
    fn is_local(&self) -> bool {
        false
    }
}
