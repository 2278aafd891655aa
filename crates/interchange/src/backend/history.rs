//! Iterates over the changes and the leases of a database one by one, because a database may have too many of
//! them to load all into memory.

use prost::Message as _;

use crate::backend::change::Change;
use crate::bolt::Cursor;
use crate::error::Error;
use crate::source::Source;

/// Iterates over all stored changes in order of revision.
pub struct History<'b, S> {
    /// Position in the bucket `key`; `None` if the database has no such bucket.
    pub(super) cursor: Option<Cursor<'b, S>>,
}

impl<S: Source> History<'_, S> {
    /// Returns the next change; `None` after the last one. After an error the iterator must not be used any
    /// more.
    ///
    /// # Errors
    ///
    /// Returns an error if the database cannot be read or is damaged.
    pub fn step(&mut self) -> Result<Option<Change<'_>>, Error> {
        Ok(self.step_stored()?.map(|stored| stored.change))
    }

    /// Returns the next change as [`History::step`] does, together with its stored key and value.
    pub(crate) fn step_stored(&mut self) -> Result<Option<Stored<'_>>, Error> {
        let Some(cursor) = &mut self.cursor else { return Ok(None) };
        let Some(item) = cursor.step()? else { return Ok(None) };
        if item.bucket.is_some() {
            return Err(Error::page(item.page, item.offset, "a bucket inside of the bucket `key`"));
        }
        let change =
            Change::decode(item.key, item.value).map_err(|what| Error::page(item.page, item.offset, what))?;
        Ok(Some(Stored { key: item.key, value: item.value, change }))
    }
}

/// A change with its stored key and value.
pub(crate) struct Stored<'c> {
    pub key: &'c [u8],
    pub value: &'c [u8],
    pub change: Change<'c>,
}

/// Iterates over all leases in order of id.
pub struct Leases<'b, S> {
    pub(super) cursor: Option<Cursor<'b, S>>,
}

impl<S: Source> Leases<'_, S> {
    /// Returns the next lease: its id, the seconds for which it was granted, and the seconds that were left
    /// at the last checkpoint, or 0. Returns `None` after the last lease.
    ///
    /// # Errors
    ///
    /// Returns an error if the database cannot be read or is damaged.
    pub fn step(&mut self) -> Result<Option<api::leasepb::Lease>, Error> {
        let Some(cursor) = &mut self.cursor else { return Ok(None) };
        let Some(item) = cursor.step()? else { return Ok(None) };
        let wrong = |what: &str| Error::page(item.page, item.offset, what);
        let lease = api::leasepb::Lease::decode(item.value).map_err(|_| wrong("an invalid lease"))?;
        if item.bucket.is_some() || item.key != lease.id.to_be_bytes() {
            return Err(wrong("a lease under another id"));
        }
        Ok(Some(lease))
    }
}
