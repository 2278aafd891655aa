//! Copies a database to a new file without its free pages, and optionally changes one key.

use std::io::Write;

use crate::bolt::{Bolt, Layout, Plan, Writer};
use crate::error::{Error, WriteError};
use crate::source::Source;

/// Change of one key while a database is rewritten: a new value, or the removal of the key.
#[derive(Clone, Debug)]
pub struct Edit {
    /// Bucket of the key. If the database has no such bucket, nothing is changed.
    pub bucket: &'static [u8],
    /// Key that is added, replaced or removed.
    pub key: &'static [u8],
    /// New value of the key; `None` removes the key.
    pub value: Option<Vec<u8>>,
}

/// Error returned when a database cannot be rewritten.
#[derive(Debug)]
pub enum RewriteError {
    /// The source database cannot be read.
    Read(Error),
    /// The new database cannot be written.
    Write(WriteError),
}

impl From<Error> for RewriteError {
    fn from(error: Error) -> RewriteError {
        RewriteError::Read(error)
    }
}

impl From<WriteError> for RewriteError {
    fn from(error: WriteError) -> RewriteError {
        RewriteError::Write(error)
    }
}

impl std::fmt::Display for RewriteError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RewriteError::Read(error) => error.fmt(f),
            RewriteError::Write(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RewriteError {}

/// Receiver of the buckets and their pairs: the [`Layout`] in the first pass, the [`Writer`] in the second.
trait Pairs {
    fn bucket(&mut self, name: &[u8]) -> Result<(), WriteError>;
    fn pair(&mut self, key: &[u8], value: &[u8]) -> Result<(), WriteError>;
}

impl Pairs for Layout {
    fn bucket(&mut self, name: &[u8]) -> Result<(), WriteError> {
        Layout::bucket(self, name)
    }

    fn pair(&mut self, key: &[u8], value: &[u8]) -> Result<(), WriteError> {
        Layout::pair(self, key, value.len())
    }
}

impl<W: Write> Pairs for Writer<W> {
    fn bucket(&mut self, name: &[u8]) -> Result<(), WriteError> {
        Writer::bucket(self, name)
    }

    fn pair(&mut self, key: &[u8], value: &[u8]) -> Result<(), WriteError> {
        Writer::pair(self, key, &[value])
    }
}

impl<S: Source> Bolt<S> {
    /// Computes the size and layout of the rewritten database: the first of two passes.
    ///
    /// # Errors
    ///
    /// Returns an error if the database cannot be read, or has nested buckets, which etcd's databases never
    /// have.
    pub fn plan_rewrite(&self, edit: Option<&Edit>) -> Result<Plan, RewriteError> {
        let mut layout = Layout::default();
        self.pass(&mut layout, edit, &mut |_| {})?;
        Ok(layout.finish()?)
    }

    /// Writes the database to `out`, with the same buckets, keys and values except for the edit: the second
    /// of two passes. Calls `passed` with the number of bytes of each pair.
    ///
    /// # Errors
    ///
    /// Returns an error if the database cannot be read or has nested buckets, or if the output fails.
    pub fn rewrite<W: Write>(
        &self,
        out: W,
        plan: Plan,
        edit: Option<&Edit>,
        passed: &mut dyn FnMut(u64),
    ) -> Result<W, RewriteError> {
        let mut writer = Writer::new(out, plan)?;
        self.pass(&mut writer, edit, passed)?;
        Ok(writer.finish()?)
    }

    fn pass(
        &self,
        to: &mut dyn Pairs,
        edit: Option<&Edit>,
        passed: &mut dyn FnMut(u64),
    ) -> Result<(), RewriteError> {
        let mut buckets = self.root();
        while let Some(item) = buckets.step()? {
            let Some(bucket) = item.bucket else {
                return Err(Error::page(item.page, item.offset, "a key outside of all buckets").into());
            };
            to.bucket(item.key)?;
            let mut edit = edit.filter(|edit| edit.bucket == item.key);
            let mut pairs = self.walk(&bucket);
            while let Some(pair) = pairs.step()? {
                if pair.bucket.is_some() {
                    return Err(Error::page(pair.page, pair.offset, "a bucket inside of a bucket").into());
                }
                passed((pair.key.len() + pair.value.len()) as u64);
                if let Some(change) = edit.take_if(|edit| edit.key <= pair.key) {
                    if let Some(value) = &change.value {
                        to.pair(change.key, value)?;
                    }
                    if change.key == pair.key {
                        continue;
                    }
                }
                to.pair(pair.key, pair.value)?;
            }
            if let Some(Edit { key, value: Some(value), .. }) = edit {
                to.pair(key, value)?;
            }
        }
        Ok(())
    }
}
