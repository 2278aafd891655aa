//! Defines the types of the log's input and output.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use numbers::{ClusterId, EntryId, Index, Location, MemberId, Term};

use crate::LogEnd;
use crate::format::{
    COMPRESSED_HEAD_BYTES, COMPRESSED_LEN_MAX, RECORD_HEADER_BYTES, VALUE_HEAD_BYTES, padded,
};

/// A raft entry. The log never interprets `data`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Raft term of the leader that created the entry.
    pub term: Term,
    /// Raft log index of the entry.
    pub index: Index,
    /// Raft's entry type, as its number on the wire.
    pub entry_type: u8,
    /// The command, less than 1 GiB.
    pub data: Bytes,
}

/// Raft's persistent state besides entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    /// Current term.
    pub term: Term,
    /// Member that this member voted for in `term`; 0 for none.
    pub vote: MemberId,
    /// Highest raft index known to be committed.
    pub commit: Index,
}

/// Restart of the log after a snapshot was installed: all earlier entries are void, and the next entry has
/// `index + 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reset {
    /// Last raft index that the snapshot contains.
    pub index: Index,
    /// Raft term of the entry at `index`.
    pub term: Term,
}

/// A live value that is copied from a segment that will be released into the segment in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Id of the revision that wrote the value.
    pub id: ValueId,
    /// The value, less than 1 GiB; its frame, if it is compressed.
    pub data: Bytes,
    /// Says how to decompress `data`; `None` if it is the value as it is.
    pub compressed: Option<Compressed>,
}

impl Value {
    /// Number of bytes of the record's payload before `data`.
    pub(crate) fn head_bytes(&self) -> usize {
        if self.compressed.is_some() { COMPRESSED_HEAD_BYTES } else { VALUE_HEAD_BYTES }
    }
}

/// Length and dictionary of a compressed value, with which it is decompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compressed {
    pub(crate) len: u32,
    pub(crate) dictionary: u32,
}

impl Compressed {
    /// Returns the description of a value of `len` bytes that was compressed to a frame of `frame_bytes` with
    /// this dictionary. Returns `None` if the value is better stored as it is: because that takes hardly more
    /// space, or because the value has more than 128 KiB and is sent in parts.
    pub fn new(len: usize, frame_bytes: usize, dictionary: u32) -> Option<Compressed> {
        let len = u32::try_from(len).ok().filter(|len| *len <= COMPRESSED_LEN_MAX)?;
        let stored = u32::try_from(COMPRESSED_HEAD_BYTES + frame_bytes).ok()?;
        Location::compressed(0, 0, stored, len)?;
        Some(Compressed { len, dictionary })
    }
}

/// A value's identity: the mvcc revision that wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId {
    /// Main revision.
    pub main: i64,
    /// Sub revision within the transaction.
    pub sub: i64,
}

/// Location of a raft entry's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryPlace {
    /// The entry's position in the raft log.
    pub index: Index,
    /// Location of the first byte of the entry's data.
    pub location: Location,
}

/// The data of one call of [`crate::Log::append`]. It is written in the order of the fields. After a crash
/// before the acknowledgement, any prefix of it may exist. So a hard state never exists without the entries
/// of the same batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Restart of the log after a snapshot.
    pub reset: Option<Reset>,
    /// Entries with contiguous indexes. If the first index is already in the log, the entry with that index
    /// and all later ones are replaced.
    pub entries: Vec<Entry>,
    /// Live values copied from segments that will be released.
    pub values: Vec<Value>,
    /// The new hard state.
    pub hard_state: Option<HardState>,
}

impl Batch {
    /// Maximum number of bytes that an entry or a value takes in the log in addition to its data: for the
    /// record's header, the head of a value, and padding.
    pub const RECORD_BYTES_MAX: usize = RECORD_HEADER_BYTES + COMPRESSED_HEAD_BYTES + 7;
    /// Bytes counted for a batch in addition to its entries and values: the sizes of a Reset record and a
    /// HardState record.
    pub const OWN_BYTES: usize = padded(0) + padded(8);
}

/// An event of the log. It is reported on the log's thread, or on the caller's thread in
/// [`crate::Log::write_here`] and [`crate::Log::turn`].
#[derive(Debug)]
pub enum LogEvent {
    /// The log has synced these batches to disk.
    Synced(Synced),
    /// The amount of space that the log has for more data has changed.
    SpaceChanged(Space),
    /// A write or sync failed. The log accepts no more batches, and the member must stop. Reported once.
    Failed(crate::Fatal),
}

/// Report about the batches that one sync made durable.
///
/// The ticket never decreases from one event to the next. The last index may decrease: if existing entries
/// were replaced by fewer entries, or if the log restarted after a snapshot. The commit index of a hard state
/// may be beyond the last index, because the member learned it from other members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Synced {
    /// Ticket of the newest batch that is completely durable, with all batches before it; 0 if none is
    /// durable.
    pub ticket: u64,
    /// Index of the last entry in the log. All entries up to it are durable.
    pub last_index: Index,
    /// The newest durable hard state, if this sync changed it.
    pub hard_state: Option<HardState>,
    /// Location of the data of each entry that this sync made durable, in the order in which the entries were
    /// appended.
    pub locations: Vec<EntryPlace>,
    /// Location of each value of [`Batch::values`] that this sync made durable.
    pub values: Vec<(ValueId, Location)>,
    /// True if no further batch was queued when this sync ended.
    pub is_last: bool,
    /// Time at which the write ended and its sync began; `None` if nothing was written.
    pub written: Option<Instant>,
    /// Duration of the sync; `None` if nothing was synced, or if the log has no threads, because a simulation
    /// must not depend on measured time.
    pub took: Option<Duration>,
}

/// The member to which a log belongs. Its ids are written into each segment and checked when the log is
/// opened, so that no member uses the log of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Id of the cluster.
    pub cluster_id: ClusterId,
    /// Id of the member.
    pub member_id: MemberId,
}

/// Says how urgently other parts of the server need the disk space that [`crate::Values::hold_room`] holds
/// for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The space will be taken within moments. Until then the log postpones new files, and does not report
    /// that space is lacking.
    Passing,
    /// More space than is available now would be useful, but work continues without it. The log only leaves
    /// the held space free.
    More,
    /// Work cannot continue without more space. If the file system does not report its true free space, the
    /// log also deletes the next segment that it has prepared, provided that most of the segment in use is
    /// still free: the records that end the shortage must fit there.
    Urgent,
}

/// Space that the log has for more data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// The next segment and the reserve are ready.
    Ample,
    /// The next segment is ready, but there is no reserve, and the disk has no space for one. The NOSPACE
    /// alarm should be raised.
    Low,
    /// The disk has no space for a next segment. The log can only fill the rest of the segment in use.
    Exhausted,
}

/// Settings of a log.
#[derive(Clone, Debug)]
pub struct Options {
    /// The log's own directory, `<data-dir>/member/log`; it is created if it is missing. The caller must hold
    /// the lock of the data directory.
    pub dir: PathBuf,
    /// Cluster id, written into each segment and checked when the log is opened.
    pub cluster_id: ClusterId,
    /// Member id, written into each segment and checked when the log is opened.
    pub member_id: MemberId,
    /// Incarnation number, written into each segment.
    pub incarnation: u64,
    /// Seed from which the segments' secrets are derived, so that simulations and tests are reproducible;
    /// `None` for random secrets. A client that knows the seed could write values that are taken for records
    /// after a crash.
    pub secret_seed: Option<u64>,
    /// Size of a segment's file in bytes, from 16 KiB to 1 GiB. If a record does not fit into an empty
    /// segment, the file of that segment is enlarged.
    pub segment_bytes: u32,
    /// Maximum number of queued bytes. [`crate::Log::append`] refuses a batch that would exceed it, unless
    /// the queue is empty: then a batch of any size is accepted.
    pub queued_bytes_max: usize,
    /// Maximum number of free files kept for reuse; at least 1, which is the reserve.
    pub spare_files_max: usize,
    /// Age of the segment in use at which the next segment begins to be filled with zeros in the background.
    /// Syncs then take less time, but twice the bytes are written.
    pub quiet_after: Duration,
    /// If true, batches are acknowledged without a sync. Data may be lost.
    pub unsafe_no_fsync: bool,
    /// If true, every record of every segment is verified when the log is opened, not only those from the
    /// requested index on.
    pub verify_all: bool,
    /// Position at which the log ended when it was closed cleanly; `None` if it was not closed cleanly.
    /// Opening is refused if the log ends before this position.
    pub closed_at: Option<LogEnd>,
    /// Position up to which the log was durable when it was last opened; `None` if it is not known. Opening
    /// is refused if the log ends before this position.
    pub synced_to: Option<LogEnd>,
    /// If true, the log has no threads, and all its work is done in the calls of [`crate::Log::turn`]. For
    /// simulations.
    pub by_hand: bool,
    /// If true, the log is opened only for reading, and no space is reserved for appends.
    pub only_read: bool,
}

/// Size of a segment in bytes on ordinary disks.
const SEGMENT_BYTES: u32 = 64 << 20;
/// Minimum recommended size of a segment in bytes, for the smallest file systems.
const SEGMENT_BYTES_LEAST: u32 = 512 << 10;
/// Number of segments that must fit on the file system, because several segments are in use, prepared or in
/// reserve at any time.
const SEGMENTS_PER_DISK: u64 = 32;

/// Returns the recommended segment size in bytes for a file system of this size: 1/32 of the size, but at
/// least 512 KiB and at most 64 MiB.
pub fn segment_bytes_for(total_bytes: u64) -> u32 {
    let part = u32::try_from(total_bytes / SEGMENTS_PER_DISK).unwrap_or(SEGMENT_BYTES);
    part.clamp(SEGMENT_BYTES_LEAST, SEGMENT_BYTES) & !4095
}

impl Options {
    /// Returns the default options for a log in `dir`.
    pub fn new(dir: impl Into<PathBuf>, cluster_id: ClusterId, member_id: MemberId) -> Options {
        Options {
            dir: dir.into(),
            cluster_id,
            member_id,
            incarnation: 1,
            secret_seed: None,
            segment_bytes: SEGMENT_BYTES,
            queued_bytes_max: 256 << 20,
            spare_files_max: 2,
            quiet_after: Duration::from_secs(60),
            unsafe_no_fsync: false,
            verify_all: false,
            closed_at: None,
            synced_to: None,
            by_hand: false,
            only_read: false,
        }
    }
}

/// State of a segment, for the caller that decides which segments to release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentState {
    /// Sequence number of the segment.
    pub seq: u32,
    /// Size of the file in bytes.
    pub file_bytes: u64,
    /// Bytes of the segment's header and records. The rest of the file is unused.
    pub used_bytes: u64,
    /// Raft index that was expected next when the segment was put into use.
    pub first_index: Index,
    /// Last raft index when the segment was sealed; for the segment in use, the log's last index. After the
    /// log was opened, the number may be too large if later segments were released.
    pub last_index: Index,
    /// True if nothing more will be written to the segment. Only such a segment can be released.
    pub sealed: bool,
    /// True if the release was requested. The file is deleted once the log has recorded the release, which
    /// may need free space first.
    pub releasing: bool,
}

/// A record that is replayed when the log is opened, in the order in which the records were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replayed {
    /// An entry and the location of its data. It replaces all previously replayed entries with the same or a
    /// higher index. Such a replacement is also replayed if its index is below the one from which
    /// [`crate::Log::open`] was asked to replay.
    Entry(Entry, Location),
    /// A hard state.
    HardState(HardState),
    /// The log restarted after a snapshot, so all entries replayed before are void.
    Reset(Reset),
    /// A value was copied to this location from a segment that was to be released. The number is the length
    /// of the value in bytes, before it was compressed.
    Value(ValueId, Location, u32),
}

/// The result of opening a log.
///
/// `base.index` and `first_index - 1` are at most `last_index`. The commit index of the hard state may be
/// beyond `last_index`, if this member never synced the last committed entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The newest hard state.
    pub hard_state: HardState,
    /// Index of the first entry that [`crate::Entries::read`] can return; `last_index + 1` if it can return
    /// none.
    pub first_index: Index,
    /// Index of the last entry in the log; the index of the latest [`Reset`] if no entry follows it.
    pub last_index: Index,
    /// Raft term of the entry at `last_index`.
    pub last_term: Term,
    /// Entry after which the latest [`Reset`] restarted the log; zeros if the log was never restarted.
    pub base: EntryId,
    /// Torn tails that were cut off: the remains of writes that were never acknowledged.
    pub repairs: Vec<Repair>,
    /// Bytes of segments that were read and verified when the log was opened.
    pub scanned_bytes: u64,
}

/// A torn tail that was cut off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    /// Path of the segment's file.
    pub file: PathBuf,
    /// Offset in bytes at which the log now ends in the file.
    pub offset: u64,
    /// Description of the invalid data at the offset.
    pub found: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES, Start};

    #[test]
    fn a_segment_can_list_all_others_that_fit_on_its_file_system() {
        // Sizes of file systems up to half a pebibyte.
        for shift in 20..50 {
            let total_bytes = 1u64 << shift;
            let segment_bytes = u64::from(segment_bytes_for(total_bytes));
            let others = total_bytes / segment_bytes;
            let head = Start::default().encode().len() + SEGMENT_HEADER_BYTES + RECORD_HEADER_BYTES;
            assert!(head as u64 + 4 * others <= segment_bytes, "2^{shift} bytes, {segment_bytes} each");
        }
    }
}
