//! Copies etcd's state from one database to a new one, for example for a snapshot restore.

use std::io::Write;

use numbers::Revision;

use crate::backend::change::ChangeHead;
use crate::backend::content::{Membership, Meta, Release};
use crate::backend::{Backend, BackendLayout, BackendWriter};
use crate::bolt::Plan;
use crate::error::{Error, WriteError};
use crate::source::Source;

/// A copy of a database in which the data about the member and its cluster is replaced. All keys, leases,
/// users, roles and alarms stay unchanged. The HashKV also stays unchanged unless `bump` is set.
pub struct Copy<'b, S> {
    /// Database to copy.
    pub from: &'b Backend<S>,
    /// Replaces the contents of the database's bucket `meta`.
    pub meta: Meta,
    /// Replaces the members in the database.
    pub membership: Membership,
    /// Release of etcd for which the copy is written.
    pub release: Release,
    /// Unless `None`, a pair without a key is added after all changes, which raises the current revision of
    /// the copy to this revision, as `etcdutl snapshot restore --bump-revision` does.
    pub bump: Option<Revision>,
}

/// Error returned when a copy cannot be made.
#[derive(Debug)]
pub enum CopyError {
    /// The database cannot be read.
    Read(Error),
    /// The copy cannot be written.
    Write(WriteError),
}

macro_rules! pass {
    ($copy:expr, $to:expr, $change:expr) => {{
        let (copy, to) = ($copy, $to);
        to.meta(&copy.meta)?;
        to.membership(&copy.membership)?;
        to.alarms(&copy.from.alarms()?)?;
        to.auth(&copy.from.auth()?)?;
        let mut leases = copy.from.leases()?;
        while let Some(lease) = leases.step()? {
            to.lease(&lease)?;
        }
        let mut history = copy.from.history()?;
        while let Some(change) = history.step()? {
            #[allow(clippy::redundant_closure_call, reason = "the passes differ in this one call")]
            $change(&mut *to, &change)?;
        }
        if let Some(revision) = copy.bump {
            let bump = crate::backend::Change { head: ChangeHead::bump(revision), value: &[] };
            #[allow(clippy::redundant_closure_call, reason = "the passes differ in this one call")]
            $change(&mut *to, &bump)?;
        }
    }};
}

impl<'b, S: Source> Copy<'b, S> {
    /// Prepares a copy that replaces nothing.
    ///
    /// # Errors
    ///
    /// Returns an error if the database cannot be read.
    pub fn of(from: &'b Backend<S>, release: Release) -> Result<Copy<'b, S>, Error> {
        Ok(Copy { from, meta: from.meta()?, membership: from.membership()?, release, bump: None })
    }

    /// Computes the size and layout of the copy, without writing it: the first of two passes.
    ///
    /// # Errors
    ///
    /// Returns an error if the database cannot be read, or contains something that etcd's database cannot
    /// contain.
    pub fn plan(&self) -> Result<Plan, CopyError> {
        self.plan_with(&mut |_| {})
    }

    /// Computes the same as [`Copy::plan`], and calls `passed` with the revision of each processed change.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Copy::plan`].
    pub fn plan_with(&self, passed: &mut dyn FnMut(Revision)) -> Result<Plan, CopyError> {
        let mut layout = BackendLayout::new(self.release);
        pass!(self, &mut layout, |to: &mut BackendLayout, change: &crate::backend::Change<'_>| {
            passed(change.head.revision.main);
            to.change(&change.head, change.value.len())
        });
        Ok(layout.finish()?)
    }

    /// Writes the copy: the second of two passes. `to` must have been created with the plan that the first
    /// pass returned.
    ///
    /// # Errors
    ///
    /// Returns an error if the database cannot be read or has changed since the first pass, or if the output
    /// fails.
    pub fn write<W: Write>(&self, to: &mut BackendWriter<W>) -> Result<(), CopyError> {
        self.write_with(to, &mut |_| {})
    }

    /// Writes the copy as [`Copy::write`] does, and calls `passed` with the revision of each processed
    /// change.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Copy::write`].
    pub fn write_with<W: Write>(
        &self,
        to: &mut BackendWriter<W>,
        passed: &mut dyn FnMut(Revision),
    ) -> Result<(), CopyError> {
        pass!(self, to, |to: &mut BackendWriter<W>, change: &crate::backend::Change<'_>| {
            passed(change.head.revision.main);
            to.change(change)
        });
        Ok(())
    }
}

impl From<Error> for CopyError {
    fn from(error: Error) -> CopyError {
        CopyError::Read(error)
    }
}

impl From<WriteError> for CopyError {
    fn from(error: WriteError) -> CopyError {
        CopyError::Write(error)
    }
}

impl std::fmt::Display for CopyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CopyError::Read(error) => error.fmt(f),
            CopyError::Write(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CopyError {}
