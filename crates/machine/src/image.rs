//! The state as checkpoints hold it: blocks of bytes, made on any thread from a view, and read back at start.
//!
//! A checkpoint consists of *runs*. The base run holds every version that can still be read; each delta run after
//! it holds the versions with main revisions above the run before. [`restore()`] merges them by key. The store of
//! the blocks frames each with its length and a checksum; within a block nothing is checksummed again.
//!
//! A run is one head block, any number of key blocks, and one end block:
//!
//! ```text
//! head   01 | format (varint, 4) | from | revision | compact revision (zigzag) | applied index | applied term
//!        | versions (a hint, for reserving memory)
//!        | leases:  count, each id (zigzag), ttl (zigzag), time left (zigzag); ids ascending
//!        | alarms:  count, each type (zigzag), member
//!        | members: count, each its JSON with its length; count of removed ids, each id;
//!                   cluster version with its length; downgrading (0 or 1), its target with its length
//!        | state hash: known (0 or 1), if so 8 bytes, little-endian; format 1 ends before it. In formats 2 and 3 it
//!          is of another function, and counts as unknown
//!        | auth: required (0 or 1), auth revision; count of users, each an authpb.User with its length; count of
//!          roles, each an authpb.Role with its length; format 2 ends before it
//! keys   02 | entries until the end of the block
//! end    03 | entries in all key blocks of this run
//!
//! entry  flags (1 byte)
//!        | unless SAME_KEY: shared (bytes taken over from the key before it in this block), length of the rest, rest
//!        | main revision: as it is; with SAME_KEY the difference to the version before it
//!        | sub, if SUB
//!        | unless TOMBSTONE, FIRST or FOLLOWS: main revision - create revision, version
//!        | lease (zigzag), if LEASE
//!        | if VALUE: segment unless SAME_SEGMENT, offset, length, CRC-32C (4 bytes, little-endian)
//!
//! flags  01 SAME_KEY      another version of the key before it in this block
//!        02 TOMBSTONE     a deletion: no create revision, no version, no lease, no value
//!        04 FIRST         created here: create revision = main revision, version = 1
//!        08 FOLLOWS       create revision of the version before it in this block, its version + 1; with SAME_KEY
//!        10 SUB           sub is not 0
//!        20 LEASE         lease is not 0
//!        40 VALUE         the value is not empty
//!        80 SAME_SEGMENT  the segment of the last value before it in this block
//! ```
//!
//! An entry with an empty key is a raised revision, see [`crate::snapshot::SnapshotVersion::bump`]; no request writes one.
//!
//! Numbers without a note are LEB128 varints. Keys ascend; the versions of a key go from old to new. Every block
//! stands alone: its first entry has its whole key (perhaps that of the block before, whose history then goes on).
//! A version that is alone under a key of 24 bytes takes some 20 bytes and what the key does not share with the
//! key before it.
//!
//! Merging drops what the compact revision of the newest run made unreadable: of each key all versions at or below it
//! but the newest, and that one too if it is a deletion below it. (A deletion at it stays, also when a put of the same
//! revision follows it.) A delta run must therefore hold every deletion of a key that an earlier run knows;
//! [`Head::delta_from_min`] says from where on it does.
//!
//! What a checkpoint does not record is that a value was moved: a run written before keeps naming the old place. So
//! a segment may be deleted only when a *base* run whose head was taken after the move is durable.

mod entry;
mod head;
mod restore;
mod run;

pub use head::Head;
pub use restore::{Building, Reading, RestoreError, Versions, begin, restore};
pub use run::RunWriter;

pub(crate) use entry::{Entry, EntryReader, EntryWriter, Payload};
pub(crate) use head::SavedHead;
pub(crate) use restore::{Intake, RunReader, merge};
pub(crate) use run::Walk;

/// The format this version writes.
pub(crate) const FORMAT: u64 = 4;
/// The first format whose state hash can be gone on with. It rises with every change of what the hash is of.
pub(crate) const FORMAT_HASHED: u64 = 4;
/// First byte of a head block.
pub(crate) const HEAD: u8 = 1;
/// First byte of a block of keys.
pub(crate) const KEYS: u8 = 2;
/// First byte of the last block.
pub(crate) const END: u8 = 3;
/// Bytes at which a block of keys is full. One entry more may be behind it.
pub(crate) const BLOCK_BYTES: usize = 128 << 10;
