//! Encodes the state for checkpoints as blocks of bytes, which are written from a view on any thread, and
//! decodes them when a member starts.
//!
//! A checkpoint consists of *runs*. The base run contains every version that can still be read; each later
//! run, a delta run, contains the versions whose main revisions are above the current revision of the
//! previous run. [`restore()`] merges the runs by key. The store that saves the blocks adds a length and a
//! checksum to each block, so blocks contain no checksums themselves.
//!
//! A run is one head block, any number of lease blocks and key blocks, and one end block:
//!
//! ```text
//! head   01 | format (varint, 4 to 11) | from | revision | compact revision (zigzag) | applied index
//!        | applied term | versions (a hint, for reserving memory)
//!        | leases:  count, each id (zigzag), TTL (zigzag), remaining TTL (zigzag); ids ascending
//!        | alarms:  count, each type (zigzag), member
//!        | members: count, each its JSON with its length; count of removed ids, each id;
//!                   cluster version with its length; downgrading (0 or 1), its target with its length
//!        | state hash: known (0 or 1), if so 8 bytes, little-endian; format 1 ends before it. In formats
//!          2 and 3 the hash is of another hash function, and is treated as unknown
//!        | auth: required (0 or 1), auth revision; count of users, each an authpb.User with its length;
//!          count of roles, each an authpb.Role with its length; format 2 ends before it
//!          Format 5 is format 4 with locations of compressed values in the run. It is written only by
//!          members that compress values or have compressed ones. Formats 6 and 7 are 4 and 5 with only the
//!          count of leases in the head, and the leases in blocks of their own. They are written only if
//!          there are more than 65,536 leases, so that no block has to contain millions of them.
//!          Formats 8 to 11 are 4 to 7 for base runs in blocks, see below
//! leases 04 | count | for each its id (zigzag; after the first one the difference to the id before it),
//!          TTL (zigzag), remaining TTL (zigzag); ids ascending, in the block and from block to block
//! keys   02 | entries until the end of the block
//! end    03 | entries in all key blocks of this run
//!
//! entry  flags (1 byte)
//!        | unless SAME_KEY: shared (bytes shared with the key before it in this block),
//!          length of the rest, rest
//!        | main revision: as it is; with SAME_KEY the difference to the version before it
//!        | sub, if SUB
//!        | unless TOMBSTONE, FIRST or FOLLOWS: main revision - create revision, version
//!        | lease (zigzag), if LEASE
//!        | if VALUE: segment unless SAME_SEGMENT, offset, length, CRC-32C (4 bytes, little-endian);
//!          segment and offset are the upper and the lower half of a [`numbers::Location`]
//!
//! flags  01 SAME_KEY      another version of the key before it in this block
//!        02 TOMBSTONE     a deletion: no create revision, no version, no lease, no value
//!        04 FIRST         created here: create revision = main revision, version = 1
//!        08 FOLLOWS       same create revision as the version before it in this block, and a version number
//!                         that is higher by 1; only with SAME_KEY
//!        10 SUB           sub is not 0
//!        20 LEASE         lease is not 0
//!        40 VALUE         the value is not empty
//!        80 SAME_SEGMENT  the segment of the last value before it in this block
//! ```
//!
//! An entry with an empty key represents a raised revision, see [`crate::snapshot::SnapshotVersion::bump`];
//! no request writes such an entry.
//!
//! Numbers without a note are LEB128 varints. Keys are in ascending order, and the versions of a key are
//! ordered from old to new. Every block can be decoded alone, because its first entry contains the whole key.
//! That key may also be the last key of the previous block, if the history of the key continues. A key of 24
//! bytes with a single version takes about 20 bytes plus the part of the key that it does not share with the
//! key before it.
//!
//! A merge drops the versions that the compact revision of the newest run made unreadable: for each key, all
//! versions at or below that revision except the newest one, and also the newest one if it is a deletion
//! below that revision. (A deletion exactly at the compact revision stays, even if a put of the same revision
//! follows it.) A delta run must therefore contain every deletion of a key that an earlier run contains;
//! [`Head::delta_from_min`] is the oldest revision from which a delta run can contain them all.
//!
//! # A base in blocks
//!
//! A member with a memory budget keeps only a part of the index in memory and reads the rest from its base run, one
//! block at a time. Such a base has format 8 to 11. It consists of three files: the run, whose blocks of keys end
//! where leaves of the index end; the *changes*, which are its settled versions in the order of revisions; and the
//! *top*, the list of the blocks of both. A version is *settled* if its main revision is below the compact
//! revision of the run: only a later version of its key can make it unreadable.
//!
//! ```text
//! in the run, beside the blocks of keys:
//! settled  05 | at most 62 entries, each of them the only version of its key, a settled put without a lease
//!
//! changes  06 | at most 62 entries, of all settled versions in the run, in the order of main and sub revisions
//! end      03 | entries in the file
//!
//! top      07 | 1 | key blocks: versions * 2 + (1 if settled) | length | CRC-32C (4 bytes) | first key: bytes shared with
//!             that of the block before it, length of the rest, rest
//!          07 | 2 | change blocks: versions | length | CRC-32C (4 bytes) | first main revision: the difference to that of
//!             the block before it | its sub
//! totals   08 | revision | compact revision (zigzag) | applied index
//!             | number of the first key block in its file, its offset, count of key blocks; the same of change blocks
//!             | of all settled blocks: versions, bytes in use, count of segments, each segment, its live values,
//!             their bytes, those of uncompressed values
//! ```
//!
//! Number, length and checksum of a block are those that the store of checkpoints gives it, so the top says of every
//! byte of the two other files if it is the right one. A restore without a budget reads only the run.
//!
//! A delta run does not record that a value was relocated: an earlier run keeps the old location. So a
//! segment may be deleted only when a *base* run whose head was taken after the relocation is durable.

mod base_writer;
mod blocks;
mod entry;
mod head;
mod restore;
mod run;
mod top;

pub use base_writer::{BaseError, BaseWriter};
pub use blocks::{BaseBlocks, BlockSource};
pub use head::Head;
pub use restore::{
    BaseRun, Building, Halves, Reading, RestoreError, Versions, begin, begin_in_blocks, restore,
};
pub use run::RunWriter;
pub use top::{BaseFile, BaseTop};

pub(crate) use entry::{Entry, EntryReader, EntryWriter, Payload};
pub(crate) use head::SavedHead;
pub(crate) use restore::{Intake, RunReader, merge};
pub(crate) use run::Walk;

/// Format of the runs of members that have no compressed values.
pub(crate) const FORMAT: u64 = 4;
/// Format of runs in which locations of compressed values may occur.
pub(crate) const FORMAT_COMPRESSED: u64 = 5;
/// What is added to the format of a run whose leases are in blocks of their own.
pub(crate) const LEASES_APART: u64 = 2;
/// Number that is added to the format of a base run whose blocks of keys are cut where leaves of the index end.
pub(crate) const IN_BLOCKS: u64 = 4;
/// Maximum number of leases in the head of a run.
pub(crate) const LEASES_IN_HEAD_MAX: usize = 65_536;
/// Formats of runs that this release reads.
pub const FORMATS_READ: std::ops::RangeInclusive<u64> = 1..=FORMAT_COMPRESSED + LEASES_APART + IN_BLOCKS;

/// Returns the format of runs that this release writes: that of members whose values may be compressed, or of others,
/// with no more leases than a head contains. `in_blocks` is true for members with a memory budget, whose base runs
/// have a format of their own.
pub fn format_written(compressed_values: bool, in_blocks: bool) -> u64 {
    (if compressed_values { FORMAT_COMPRESSED } else { FORMAT }) + if in_blocks { IN_BLOCKS } else { 0 }
}

/// Oldest format whose state hash this release can continue. It must be raised with every change of the hash
/// function.
pub(crate) const FORMAT_HASHED: u64 = 4;
/// First byte of a head block.
pub(crate) const HEAD: u8 = 1;
/// First byte of a block of keys and versions.
pub(crate) const KEYS: u8 = 2;
/// First byte of the end block.
pub(crate) const END: u8 = 3;
/// First byte of a block of leases.
pub(crate) const LEASES: u8 = 4;
/// First byte of a block of keys with the settled versions of one leaf of the index.
pub(crate) const SETTLED: u8 = 5;
/// First byte of a block of versions in the order of revisions, in a change file.
pub(crate) const CHANGES: u8 = 6;
/// First byte of a list of blocks, in a top file.
pub(crate) const TOP: u8 = 7;
/// First byte of the last block of a top file.
pub(crate) const TOTALS: u8 = 8;
/// Size in bytes at which a block of keys or leases is full. A block may exceed this size by one entry.
pub(crate) const BLOCK_BYTES: usize = 128 << 10;
