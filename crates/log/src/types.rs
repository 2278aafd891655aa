//! What goes into the log and what comes back.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use numbers::{ClusterId, EntryId, Index, Location, MemberId, Term};

use crate::LogEnd;

/// A raft entry. The log never looks into `data`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The term of the leader who wrote it.
    pub term: Term,
    /// Position of the entry in the log.
    pub index: Index,
    /// Raft's entry type as its number on the wire.
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
    /// Highest index known to be committed.
    pub commit: Index,
}

/// The log starts again behind a snapshot that was installed: entries up to now are void, the next has
/// `index + 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reset {
    /// Last index the snapshot contains.
    pub index: Index,
    /// Term of that entry.
    pub term: Term,
}

/// A live value moved out of a segment that is to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Revision that wrote the value.
    pub id: ValueId,
    /// The value, less than 1 GiB.
    pub data: Bytes,
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
    /// The place of its data's first byte.
    pub location: Location,
}

/// One append. Written in the order of the fields, so that whatever part of it survives a crash before it was
/// acknowledged is a prefix: a hard state is never there without the entries given with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The log restarts behind a snapshot.
    pub reset: Option<Reset>,
    /// Entries, contiguous. An index already in the log replaces that entry and all after it.
    pub entries: Vec<Entry>,
    /// Relocated values.
    pub values: Vec<Value>,
    /// The new hard state.
    pub hard_state: Option<HardState>,
}

/// An event of the log, reported on its own thread (or in [`crate::Log::turn`] when it is driven by hand).
#[derive(Debug)]
pub enum LogEvent {
    /// These batches are on disk.
    Synced(Synced),
    /// Room came or went.
    SpaceChanged(Space),
    /// A write or sync failed. The log accepts nothing more; the member must stop. Told once.
    Failed(crate::Fatal),
}

/// The batches that one sync made durable.
///
/// From one to the next the ticket never goes back. The last index does where entries were replaced by fewer, or the log
/// began anew behind a snapshot. A hard state may say that entries beyond the last index are committed: that was learned
/// from others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Synced {
    /// Every batch up to and including this ticket is durable, whole; 0 if none is yet.
    pub ticket: u64,
    /// Index of the last entry in the log; everything up to it is durable.
    pub last_index: Index,
    /// The newest durable hard state, if this sync changed it.
    pub hard_state: Option<HardState>,
    /// Location of the data of each entry of this sync, in the order in which they were appended.
    pub locations: Vec<EntryPlace>,
    /// Location of each value of this sync.
    pub values: Vec<(ValueId, Location)>,
    /// Time when the last of it was written, and its sync began; `None` if nothing was written.
    pub written: Option<Instant>,
    /// Time that the sync took; `None` if nothing was synced, or the log is moved by hand: then all that follows is to depend on
    /// nothing but what is done.
    pub took: Option<Duration>,
}

/// Whose log it is: written into each segment, and checked when it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The cluster.
    pub cluster_id: ClusterId,
    /// The member.
    pub member_id: MemberId,
}

/// How much those need room whom it is held for ([`crate::Values::hold_room`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// They take it within moments: the log waits for that, and finds no shortage.
    Passing,
    /// They should have more than they have.
    More,
    /// They cannot go on with what they have: where the file system does not tell that it is full, the log gives up the segment that
    /// it has made ahead, as long as the one in use has room for what ends a shortage.
    Urgent,
}

/// Room for more log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// The next segment and the reserve are there.
    Ample,
    /// The disk gave no room for another segment and the reserve had to be taken: time to raise the alarm.
    Low,
    /// Nothing is left but the rest of the current segment.
    Exhausted,
}

/// The settings of a log.
#[derive(Clone, Debug)]
pub struct Options {
    /// The log's own directory, `<data-dir>/member/log`; created if missing. The caller holds the data
    /// directory's lock.
    pub dir: PathBuf,
    /// Written into each segment, and checked when it is opened.
    pub cluster_id: ClusterId,
    /// Written into each segment, and checked when it is opened.
    pub member_id: MemberId,
    /// Written into each segment.
    pub incarnation: u64,
    /// Source of the secrets of segments: `None` is the operating system's randomness. With a seed they repeat, for
    /// simulation and tests; a client that knows the seed can write values that read as records.
    pub secret_seed: Option<u64>,
    /// Size of a segment's file; a record that does not fit makes its segment larger. From 16 KiB to 1 GiB.
    pub segment_bytes: u32,
    /// [`crate::Log::append`] refuses when this many bytes wait; a single batch may be larger.
    pub queued_bytes_max: usize,
    /// Free files kept at most, for reuse; at least 1, which is the reserve.
    pub spare_files_max: usize,
    /// Age of the current segment from which the next one is filled with zeros in the background: a sync then takes less
    /// time, for twice the bytes written.
    pub quiet_after: Duration,
    /// Acknowledge without syncing. Data may be lost.
    pub unsafe_no_fsync: bool,
    /// Verify every record of every segment at open, not only from the index asked for.
    pub verify_all: bool,
    /// The end of the log when it was closed cleanly, if it was: opening is refused if it ends elsewhere.
    pub closed_at: Option<LogEnd>,
    /// An end that the log once had with all of it durable, if one is known: opening is refused if it ends before.
    pub synced_to: Option<LogEnd>,
    /// No threads: appends are carried out by [`crate::Log::turn`]. For simulation.
    pub by_hand: bool,
    /// The log is opened to be read: no room is reserved for what is to be appended.
    pub only_read: bool,
}

/// Bytes of a segment on ordinary disks.
const SEGMENT_BYTES: u32 = 64 << 20;
/// Bytes of a segment on the smallest file systems.
const SEGMENT_BYTES_LEAST: u32 = 512 << 10;
/// A segment takes at most this part of the file system: some are always in use, prepared or in reserve.
const SEGMENTS_PER_DISK: u64 = 32;

/// Bytes that segments should have on a file system of this size: 64 MiB from 2 GiB on, and down to 512 KiB.
pub fn segment_bytes_for(total_bytes: u64) -> u32 {
    let part = u32::try_from(total_bytes / SEGMENTS_PER_DISK).unwrap_or(SEGMENT_BYTES);
    part.clamp(SEGMENT_BYTES_LEAST, SEGMENT_BYTES) & !4095
}

impl Options {
    /// The defaults for a log in `dir`.
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

/// A segment as the caller who reclaims room sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentState {
    /// Sequence number.
    pub seq: u32,
    /// Size of the file.
    pub file_bytes: u64,
    /// Bytes of header and records; equals what a relocation could at most free.
    pub used_bytes: u64,
    /// Index the first entry was expected to have when the segment came into use.
    pub first_index: Index,
    /// Index that was expected next when the segment was sealed, less one; for the active one, the log's last. After
    /// an open it may be larger, if segments behind this one were released.
    pub last_index: Index,
    /// No more is written to it, so it may be released.
    pub sealed: bool,
    /// True if it was released. It is deleted once the log has recorded that, which may need space that is not there yet.
    pub releasing: bool,
}

/// A record that is replayed at open, in the order in which it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replayed {
    /// An entry and where its data lies. It replaces every entry replayed before that has its index or a higher
    /// one, even if its own index is below the one asked for.
    Entry(Entry, Location),
    /// A hard state.
    HardState(HardState),
    /// The log restarted: entries seen before are void.
    Reset(Reset),
    /// A value was moved to this location; the number is its length in bytes.
    Value(ValueId, Location, u32),
}

/// The result of opening a log.
///
/// The log has no gap: `base.index` and `first_index - 1` are at most `last_index`. The commit index of the hard state may
/// be beyond `last_index`, if the last entries were never synced here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The newest hard state.
    pub hard_state: HardState,
    /// First index that [`crate::Entries::read`] can give; `last_index + 1` if there is none.
    pub first_index: Index,
    /// Last index in the log; the latest Reset's when no entry follows it.
    pub last_index: Index,
    /// Term of `last_index`.
    pub last_term: Term,
    /// Entry behind which the latest [`Reset`] restarted the log; zeros if there was none.
    pub base: EntryId,
    /// Torn tails that were cut off: the remains of writes never acknowledged.
    pub repairs: Vec<Repair>,
    /// Bytes of segments that were read and verified.
    pub scanned_bytes: u64,
}

/// A torn tail that was cut off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    /// The segment's file.
    pub file: PathBuf,
    /// Offset at which the log now ends in it.
    pub offset: u64,
    /// Description of what was found there.
    pub found: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES, Start};

    #[test]
    fn a_segment_can_list_all_others_that_fit_on_its_file_system() {
        // Up to half a pebibyte.
        for shift in 20..50 {
            let total_bytes = 1u64 << shift;
            let segment_bytes = u64::from(segment_bytes_for(total_bytes));
            let others = total_bytes / segment_bytes;
            let head = Start::default().encode().len() + SEGMENT_HEADER_BYTES + RECORD_HEADER_BYTES;
            assert!(head as u64 + 4 * others <= segment_bytes, "2^{shift} bytes, {segment_bytes} each");
        }
    }
}
