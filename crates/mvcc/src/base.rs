//! Defines the base of an index: a file of blocks from which leaves of the key tree are read on demand.
//!
//! A base is written from one moment of the store. Let C be the compact revision of that moment. The versions
//! below C that are still readable at C cannot change any more, except that a later write supersedes them.
//! They are *settled*. A block of keys whose entries are all settled can stand in for a leaf of the key tree
//!; a leaf is read again from its block when somebody needs it. The base also lists
//! all settled versions in the order of revisions, in blocks of changes.
//!
//! The crate does no IO: it calls [`Blocks`].

use numbers::{ChangeId, Revision};

use crate::load::LoadedVersion;

/// Maximum number of versions of a block of settled keys, and of a block of changes.
pub const BLOCK_VERSIONS_MAX: usize = crate::node::LEAF;

/// Number of the key block of a change whose version is in no settled block of keys.
pub const NO_BLOCK: u32 = u32::MAX;

/// A block of a base.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlockId {
    /// A block of keys, by its number in key order from 0.
    Keys(u32),
    /// A block of changes, by its number in the order of revisions from 0.
    Changes(u32),
}

/// Description of a block of keys, without its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyBlock<'a> {
    /// First key of the block.
    pub first_key: &'a [u8],
    /// Number of versions in the block.
    pub versions: u32,
    /// True if the block has at most [`BLOCK_VERSIONS_MAX`] versions, and each of them is a put without a
    /// lease, the only version of its key, and at or below [`Blocks::settled`].
    pub is_settled: bool,
}

/// Description of a block of changes, without its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeBlock {
    /// First change of the block.
    pub first: ChangeId,
    /// Number of versions in the block.
    pub versions: u32,
}

/// The blocks of one base: their descriptions, which are in memory, and their contents, which are read from
/// files.
///
/// The key blocks together contain every version that the moment of the base can read, in the order of
/// [`Snapshot::histories`](crate::Snapshot::histories); both settled and other blocks are described. The
/// blocks of changes contain every such version whose main revision is at or below [`Blocks::settled`], in
/// ascending order.
pub trait Blocks: Send + Sync {
    /// Returns the highest main revision of settled versions: the compact revision of the moment from which
    /// the base was written, minus 1.
    fn settled(&self) -> Revision;

    /// Returns the number of blocks of keys.
    fn key_blocks(&self) -> u32;

    /// Returns the number of blocks of changes.
    fn change_blocks(&self) -> u32;

    /// Returns the description of a block of keys. `number` is below [`Blocks::key_blocks`].
    fn key_block(&self, number: u32) -> KeyBlock<'_>;

    /// Returns the description of a block of changes. `number` is below [`Blocks::change_blocks`].
    fn change_block(&self, number: u32) -> ChangeBlock;

    /// Reads a block, and calls `visit` with each version in order. In a block of changes, the second
    /// argument is the number of the settled key block that contains the version, or [`NO_BLOCK`]; in a block
    /// of keys it is [`NO_BLOCK`]. Several threads may call this function at the same time.
    ///
    /// # Errors
    ///
    /// Returns a message if the block cannot be read, or its checksum is wrong. The message does not repeat
    /// [`Blocks::describe`].
    fn read(&self, block: BlockId, visit: &mut dyn FnMut(&LoadedVersion<'_>, u32)) -> Result<(), String>;

    /// Returns the file and the place of a block, for messages.
    fn describe(&self, block: BlockId) -> String;
}
