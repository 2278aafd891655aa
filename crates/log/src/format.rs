//! Encodes and decodes segment files: their header and their records. This is version 2 of the format. All
//! numbers are little-endian. Every later release must be able to read the files of every version.
//!
//! ```text
//! segment file  <data-dir>/member/log/<seq, 16 hex digits>.seg
//!
//!        0  magic            8   "MNSTSEG\n"
//!        8  version          4   2
//!       12  sequence number  4   the same as in the file's name
//!       16  cluster id       8
//!       24  member id        8
//!       32  incarnation      8   given by the caller
//!       40  capacity         8   bytes of the file when it was prepared
//!       48  secret           8   random, drawn for this use of the file; zeros in version 1
//!       56  zeros         4036
//!     4092  crc32c           4   of bytes 0..4092
//!     4096  records, each at a multiple of 8, up to the end
//!
//! record
//!        0  crc32c           4   of bytes 4..32 and the payload; initial value: lower half
//!                            of the secret xor offset
//!        4  payload length   4
//!        8  kind             1   1 Entry, 2 HardState, 3 Reset, 4 Value, 5 Start, 6 Released
//!        9  entry type       1   raft's, for Entry; 1 for a compressed Value; else 0
//!       10  mark             2   bytes 4..6 of the secret: most foreign bytes fail here already
//!       12  batch start      4   offset of the first record of the write batch this one belongs to
//!       16  term             8
//!       24  index            8
//!       32  payload, then zeros up to a multiple of 8
//!
//! kind       term            index                 payload
//! Entry      entry's         entry's               the entry's data
//! HardState  term            commit                vote u64
//! Reset      snapshot's      snapshot's            none: the log starts again at index + 1
//! Value      0               main (revision)       sub i64, value bytes; if it is compressed, see below
//! Start      last entry's    next entry's index    see below; the first record of every segment
//! Released   0               sequence number       none: that segment's file is deleted or reused
//!
//! Start      0 term u64, 8 vote u64, 16 commit u64      the hard state as it was when the segment began
//!           24 base index u64, 32 base term u64         the latest Reset, or zeros
//!           40 end u32                                  where the segment before ends; 0 if there is none
//!           44 count u32, 48 sequence numbers u32 each  the segments before this one that are not released
//! ```
//!
//! compressed Value   0 sub i64
//!                    8 length u32, of the value      at most 128 KiB
//!                   12 dictionary u32               id of the dictionary's file; 0 for none
//!                   16 a frame of zstd
//!
//! A release that does not know compressed values ignores Value records when it opens the log, and refuses the
//! checkpoints that name their locations. So it never takes compressed bytes for a value.
//!
//! After the last record there are 16 zero bytes, if the file has space for them. They mark the end, because
//! they look like the header of a record of kind 0, which does not exist.
//!
//! After the end of the records a file may contain anything: values of clients, whole copies of segments,
//! data of the previous use of the file. None of these bytes must ever be read as a record. Therefore 48 bits
//! of each record are derived from the secret in the file's header. A new random secret is drawn each time a
//! file is put into use, and it is stored only in this file. A file of 64 MiB has space for 2^21 forged
//! records, and each of them is accepted with a probability of 2^-48. The record's offset is part of its
//! checksum, so even a genuine record that was copied to another place of the same file does not verify.
//!
//! In version 1 a checksum over cluster id, member id, incarnation and sequence number was used instead of a
//! secret (the mark was the upper half of that checksum xor its lower half, and the offset was not part of
//! the record's checksum). Clients can guess all four numbers, and so could forge records. Segments of
//! version 1 can still be read. A segment of version 1 that is in use is replaced as soon as the next segment
//! is ready.
//!
//! The header is written and synced before the file is renamed to its final name, and never changes
//! afterwards. Facts that are known only when a segment is put into use (such as the index of its first
//! entry) are in the first record of the segment.
//!
//! All records of one write are synced together, and the next write starts only after that sync. So a valid
//! record whose batch starts after offset p proves that all bytes before this batch, including those at p,
//! had been synced.

use numbers::{ClusterId, EntryId, Index, MemberId, Term};

use crate::{HardState, Location};

pub(crate) const MAGIC: [u8; 8] = *b"MNSTSEG\n";
pub(crate) const VERSION: u32 = 2;
/// Version 1 of the format, in which the checksums of records are derived from numbers that clients can
/// guess.
const VERSION_GUESSABLE: u32 = 1;
/// Versions of segment files that this release reads. It writes the last one.
pub const VERSIONS_READ: std::ops::RangeInclusive<u32> = VERSION_GUESSABLE..=VERSION;
pub(crate) const SEGMENT_HEADER_BYTES: usize = 4096;
pub(crate) const RECORD_HEADER_BYTES: usize = 32;
/// Minimum size of a segment in bytes. Smaller sizes in the options or in a segment's header are refused.
pub(crate) const SEGMENT_BYTES_MIN: u32 = 16 << 10;
/// Number of zero bytes after the last record. They mark the end of the records, because no record has kind
/// 0.
pub(crate) const END_BYTES: usize = 16;
/// Upper bound in bytes of a record's payload: the payload must be smaller than this, so that offsets and
/// lengths within a segment fit into 32 bits.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 1 << 30;
/// Number of bytes of the sub revision, which precedes the value in the payload of a Value record.
pub(crate) const VALUE_HEAD_BYTES: usize = 8;
/// Number of bytes that precede the frame in the payload of a Value record with a compressed value.
pub(crate) const COMPRESSED_HEAD_BYTES: usize = 16;
/// Entry type of the record of a value as it is.
pub(crate) const VALUE_RAW: u8 = 0;
/// Entry type of the record of a compressed value.
pub(crate) const VALUE_COMPRESSED: u8 = 1;
/// Maximum length in bytes of a value that is stored compressed. A larger value is sent in parts, which would
/// decompress it again for every part.
pub const COMPRESSED_LEN_MAX: u32 = 128 << 10;
const START_HEAD_BYTES: usize = 48;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Entry = 1,
    HardState = 2,
    Reset = 3,
    Value = 4,
    Start = 5,
    Released = 6,
}

impl Kind {
    fn of(byte: u8) -> Option<Kind> {
        Some(match byte {
            1 => Kind::Entry,
            2 => Kind::HardState,
            3 => Kind::Reset,
            4 => Kind::Value,
            5 => Kind::Start,
            6 => Kind::Released,
            _ => return None,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub seq: u32,
    pub cluster_id: ClusterId,
    pub member_id: MemberId,
    pub incarnation: u64,
    pub capacity: u64,
    /// Random secret of this use of the file; `None` for version 1, which has no secret.
    pub secret: Option<u64>,
}

/// Numbers that identify one use of a segment file. All records written in this use contain them, or have
/// checksums that depend on them. In any other use of the file they are different.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    seed: u32,
    mark: u16,
    /// True if a record's offset is part of its checksum, which is so from format version 2 on.
    placed: bool,
}

impl Identity {
    /// Returns the initial value of the checksum of a record at `offset`.
    fn seed_at(&self, offset: u64) -> u32 {
        if self.placed { self.seed ^ offset as u32 } else { self.seed }
    }
}

impl SegmentHeader {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(SEGMENT_HEADER_BYTES);
        bytes.extend_from_slice(&MAGIC);
        let version = if self.secret.is_some() { VERSION } else { VERSION_GUESSABLE };
        bytes.extend_from_slice(&version.to_le_bytes());
        bytes.extend_from_slice(&self.seq.to_le_bytes());
        bytes.extend_from_slice(&self.cluster_id.0.to_le_bytes());
        bytes.extend_from_slice(&self.member_id.0.to_le_bytes());
        bytes.extend_from_slice(&self.incarnation.to_le_bytes());
        bytes.extend_from_slice(&self.capacity.to_le_bytes());
        bytes.extend_from_slice(&self.secret.unwrap_or(0).to_le_bytes());
        bytes.resize(SEGMENT_HEADER_BYTES - 4, 0);
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a segment header. Returns a description of the damage if it is not valid.
    pub fn decode(bytes: &[u8]) -> Result<SegmentHeader, &'static str> {
        if bytes.len() < SEGMENT_HEADER_BYTES {
            return Err("the file is shorter than a segment header");
        }
        if bytes[..8] != MAGIC {
            return Err("the file does not start with a log segment header");
        }
        let body = &bytes[..SEGMENT_HEADER_BYTES - 4];
        if crc32c::crc32c(body) != u32_at(bytes, SEGMENT_HEADER_BYTES - 4) {
            return Err("the checksum of the segment header does not match");
        }
        let version = u32_at(bytes, 8);
        if version != VERSION && version != VERSION_GUESSABLE {
            return Err("the segment has a format version that this release does not know");
        }
        let capacity = u64_at(bytes, 40);
        if !(u64::from(SEGMENT_BYTES_MIN)..=u64::from(u32::MAX)).contains(&capacity) {
            return Err("the segment header gives a size that no segment has");
        }
        let seq = u32_at(bytes, 12);
        if seq > Location::SEGMENT_MAX {
            return Err("the segment header gives a number that no log reaches");
        }
        Ok(SegmentHeader {
            seq,
            cluster_id: ClusterId(u64_at(bytes, 16)),
            member_id: MemberId(u64_at(bytes, 24)),
            incarnation: u64_at(bytes, 32),
            capacity,
            secret: (version == VERSION).then(|| u64_at(bytes, 48)),
        })
    }

    pub fn identity(&self) -> Identity {
        if let Some(secret) = self.secret
            && !planted::is(planted::Bug::SegmentGuessable)
        {
            return Identity { seed: secret as u32, mark: (secret >> 32) as u16, placed: true };
        }
        let mut bytes = [0; 28];
        bytes[..8].copy_from_slice(&self.cluster_id.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.member_id.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.incarnation.to_le_bytes());
        bytes[24..].copy_from_slice(&self.seq.to_le_bytes());
        let seed = crc32c::crc32c(&bytes);
        Identity { seed, mark: (seed >> 16) as u16 ^ seed as u16, placed: false }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub kind: Kind,
    pub entry_type: u8,
    pub batch_start: u32,
    pub term: u64,
    pub index: u64,
}

impl RecordHeader {
    /// Encodes the header of a record that will be written at `offset`.
    pub fn encode(&self, identity: Identity, offset: u32, payload: &[&[u8]]) -> [u8; RECORD_HEADER_BYTES] {
        let len: usize = payload.iter().map(|part| part.len()).sum();
        assert!(len < PAYLOAD_BYTES_MAX, "a record of {len} bytes exceeds the format's limit");
        let mut bytes = [0; RECORD_HEADER_BYTES];
        bytes[4..8].copy_from_slice(&(len as u32).to_le_bytes());
        bytes[8] = self.kind as u8;
        bytes[9] = self.entry_type;
        bytes[10..12].copy_from_slice(&identity.mark.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.batch_start.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.term.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.index.to_le_bytes());
        let mut crc = crc32c::crc32c_append(identity.seed_at(u64::from(offset)), &bytes[4..]);
        for part in payload {
            crc = crc32c::crc32c_append(crc, part);
        }
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

/// Result of [`find`]: what the segment contains at the offset.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The header of a verified record, and the length of its payload in bytes. The bytes that were passed to
    /// [`find`] contain the whole record with its padding.
    Record(RecordHeader, usize),
    /// The end of the records: an end mark, or fewer bytes up to the end of the file than a record header
    /// has.
    End,
    /// Too few bytes were passed. Contains the number of bytes that are needed, counted from the start of the
    /// record.
    Short(usize),
    /// The bytes are no valid record of this segment. Contains the reason.
    Invalid(&'static str),
}

/// Returns the payload length and the batch start that `head` contains, if it can be the beginning of a
/// record with this identity. Does not verify the checksum. Does not check that the record ends inside the
/// file either: the file may have been extended for the record, and a crash may have undone the extension.
pub(crate) fn outline(head: &[u8; END_BYTES], identity: Identity) -> Option<(usize, u32)> {
    Kind::of(head[8])?;
    let (payload, batch_start) = (u32_at(head, 4) as usize, u32_at(head, 12));
    let is_of_this_use = u16::from_le_bytes([head[10], head[11]]) == identity.mark;
    (is_of_this_use && payload < PAYLOAD_BYTES_MAX).then_some((payload, batch_start))
}

/// Decodes and verifies the record at `offset` of a segment of `len` bytes. `bytes` are the bytes read from
/// `offset` on, possibly fewer than the whole record.
pub(crate) fn find(bytes: &[u8], offset: u64, len: u64, identity: Identity) -> Found {
    let room = len.saturating_sub(offset);
    if room < RECORD_HEADER_BYTES as u64 {
        return Found::End;
    }
    if bytes.len() < RECORD_HEADER_BYTES {
        return Found::Short(RECORD_HEADER_BYTES);
    }
    if bytes[..END_BYTES].iter().all(|byte| *byte == 0) {
        return Found::End;
    }
    let Some(kind) = Kind::of(bytes[8]) else { return Found::Invalid("the record's kind is unknown") };
    if u16::from_le_bytes([bytes[10], bytes[11]]) != identity.mark {
        return Found::Invalid("the record belongs to another segment");
    }
    let payload = u32_at(bytes, 4) as usize;
    if payload >= PAYLOAD_BYTES_MAX || padded(payload) as u64 > room {
        return Found::Invalid("the record's length reaches beyond the segment");
    }
    let batch_start = u32_at(bytes, 12);
    if u64::from(batch_start) > offset
        || !batch_start.is_multiple_of(8)
        || (batch_start as usize) < SEGMENT_HEADER_BYTES
    {
        return Found::Invalid("the record's batch start is impossible");
    }
    let total = RECORD_HEADER_BYTES + payload;
    let full = padded(payload);
    if bytes.len() < full {
        return Found::Short(full);
    }
    if crc32c::crc32c_append(identity.seed_at(offset), &bytes[4..total]) != u32_at(bytes, 0)
        && !planted::is(planted::Bug::ChecksumIgnored)
    {
        return Found::Invalid("the record's checksum does not match");
    }
    if bytes[total..full].iter().any(|byte| *byte != 0) {
        return Found::Invalid("the record's padding is not zero");
    }
    let header = RecordHeader {
        kind,
        entry_type: bytes[9],
        batch_start,
        term: u64_at(bytes, 16),
        index: u64_at(bytes, 24),
    };
    Found::Record(header, payload)
}

/// Contents of the Start record, which is the first record of each segment: the state of the log when the
/// segment was begun.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Start {
    pub next_index: Index,
    pub last_term: Term,
    pub hard_state: HardState,
    pub base: EntryId,
    pub end_before: u32,
    pub live: Vec<u32>,
}

impl Start {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(START_HEAD_BYTES + 4 * self.live.len());
        for number in [
            self.hard_state.term.0,
            self.hard_state.vote.0,
            self.hard_state.commit.0,
            self.base.index.0,
            self.base.term.0,
        ] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&self.end_before.to_le_bytes());
        bytes.extend_from_slice(&(self.live.len() as u32).to_le_bytes());
        for seq in &self.live {
            bytes.extend_from_slice(&seq.to_le_bytes());
        }
        bytes
    }

    pub fn decode(header: &RecordHeader, payload: &[u8]) -> Option<Start> {
        if header.kind != Kind::Start || payload.len() < START_HEAD_BYTES {
            return None;
        }
        let count = u32_at(payload, 44) as usize;
        let list = &payload[START_HEAD_BYTES..];
        if list.len() != count.checked_mul(4)? {
            return None;
        }
        Some(Start {
            next_index: Index(header.index),
            last_term: Term(header.term),
            hard_state: HardState {
                term: Term(u64_at(payload, 0)),
                vote: MemberId(u64_at(payload, 8)),
                commit: Index(u64_at(payload, 16)),
            },
            base: EntryId { index: Index(u64_at(payload, 24)), term: Term(u64_at(payload, 32)) },
            end_before: u32_at(payload, 40),
            live: list.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect(),
        })
    }
}

/// Returns the number of bytes that a record with a payload of this length takes in the file.
pub(crate) const fn padded(payload: usize) -> usize {
    (RECORD_HEADER_BYTES + payload).next_multiple_of(8)
}

/// Returns the location of the payload of the record at `offset`.
pub(crate) fn payload_location(segment: u32, offset: u32) -> Location {
    Location::new(segment, offset + RECORD_HEADER_BYTES as u32)
}

/// Returns the location of the value as it is in the Value record at `offset`.
pub(crate) fn value_location(segment: u32, offset: u32) -> Location {
    Location::new(segment, offset + (RECORD_HEADER_BYTES + VALUE_HEAD_BYTES) as u32)
}

/// Decodes a little-endian number at `at`; the caller has checked the length of `bytes`.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(number)
}

/// Decodes a little-endian number at `at`; the caller has checked the length of `bytes`.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}
