//! The interface of the node whose log is backed up.

use bytes::Bytes;
use log::Entry;

use crate::manifest::{HashKv, Position};
use crate::trouble::Trouble;

/// Entries of the log of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fetched {
    /// The entries from the given index on; at least one.
    Entries(Vec<Entry>),
    /// The log no longer has the first of them.
    Gone,
}

/// A node that applies the committed entries of a cluster.
pub trait Source: Send + Sync {
    /// Returns the id of the cluster.
    fn cluster_id(&self) -> u64;

    /// Returns the name of the log. Two logs of one name have the same entries at equal indexes.
    fn stream(&self) -> String;

    /// Returns the position of the published state: every entry up to its index is committed and applied.
    fn position(&self) -> Position;

    /// Returns an error if the state of the node is known to be wrong, so that nothing of it may be kept.
    ///
    /// # Errors
    ///
    /// As said.
    fn check(&self) -> Result<(), Trouble> {
        Ok(())
    }

    /// Returns true if the node receives what the cluster does, so that an unchanged position means that nothing has
    /// changed.
    fn is_current(&self) -> bool;

    /// Returns the entries from `from` through `to`, or fewer if they have more than `bytes_max` bytes. `to` is at
    /// most the index of [`Source::position`].
    ///
    /// # Errors
    ///
    /// Returns an error if the log cannot be read.
    fn entries(&self, from: u64, to: u64, bytes_max: u64) -> Result<Fetched, Trouble>;

    /// Returns the term of an entry, if the log still knows it.
    fn term(&self, index: u64) -> Option<u64>;

    /// Returns the rolling hash of the state after an entry, if it is still known.
    fn state_hash(&self, index: u64) -> Option<u64>;

    /// Writes the whole state, as of an entry at or after the present position, to `write`, in chunks of a transfer.
    /// Returns the position of the state, its rolling hash and its HashKV, where they are known.
    ///
    /// # Errors
    ///
    /// Returns the error of `write`, or an error if the state cannot be read.
    fn state(&self, write: &mut dyn FnMut(Bytes) -> Result<(), Trouble>) -> Result<WrittenState, Trouble>;
}

/// A state that [`Source::state`] has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenState {
    /// Position of the state.
    pub at: Position,
    /// Rolling hash of the state.
    pub state_hash: Option<u64>,
    /// HashKV of the state.
    pub hash_kv: Option<HashKv>,
}
