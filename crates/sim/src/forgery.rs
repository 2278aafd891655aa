//! Values of an attacker who knows how the log writes its records, the ids that every answer's header tells, and how
//! segments are numbered: were a segment's identity made of these alone, such a value could be taken for a part of the log.

use std::path::Path;

use disk::MemDisk;
use server::stepped::Identity;

use crate::rng::Rng;

/// What a client knows of a member.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    cluster: u64,
    member: u64,
    /// The newest segment of its log; from how much was written a client can tell about where it is.
    segment: u32,
}

/// Bytes of a record's head.
const HEAD_BYTES: usize = 32;
/// Bytes before a segment's first record.
const SEGMENT_HEADER_BYTES: u32 = 4096;
/// A value's bytes at most.
const BYTES_MAX: usize = 24 << 10;
/// Files are used again for a segment so many numbers later, at most.
const SEGMENTS_AHEAD: u32 = 8;

impl Known {
    /// What there is to know of the member with this disk.
    pub fn of(identity: &Identity, disk: &MemDisk) -> Known {
        let number = |path: &Path| {
            let name = path.file_name()?.to_str()?.strip_suffix(".seg")?;
            u32::from_str_radix(name, 16).ok()
        };
        let segment = disk.files().iter().filter_map(|(path, _)| number(path)).max().unwrap_or(0);
        Known { cluster: identity.cluster_id, member: identity.member_id, segment }
    }

    /// What identifies a segment whose header has no secret: its ids, the first incarnation and its number, summed.
    fn guess(&self, segment: u32) -> u32 {
        let mut bytes = Vec::with_capacity(28);
        for number in [self.cluster, self.member, 1] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&segment.to_le_bytes());
        crc32c::crc32c(&bytes)
    }

    /// A record without a payload.
    fn record(&self, segment: u32, kind: u8, batch_start: u32) -> [u8; HEAD_BYTES] {
        let identity = self.guess(segment);
        let mark = (identity >> 16) as u16 ^ identity as u16;
        let mut bytes = [0; HEAD_BYTES];
        bytes[8] = kind;
        bytes[10..12].copy_from_slice(&mark.to_le_bytes());
        bytes[12..16].copy_from_slice(&batch_start.to_le_bytes());
        bytes[16..24].copy_from_slice(&(1_u64 << 40).to_le_bytes());
        bytes[24..32].copy_from_slice(&(1_u64 << 20).to_le_bytes());
        let crc = crc32c::crc32c_append(identity, &bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Makes a value long, of records for the segments that come next. Where it comes to lie is not known, so that each
    /// eighth of it has the records at other offsets.
    pub fn forge(&self, rng: &mut Rng, segment_bytes: u32, value: &mut Vec<u8>) {
        let bytes = (segment_bytes as usize / 3).min(BYTES_MAX);
        for shift in 0..8 {
            let end = value.len().next_multiple_of(8) + shift;
            value.resize(end, b'.');
            for _ in 0..bytes / 8 / HEAD_BYTES {
                let segment = self.segment.wrapping_add(rng.below(u64::from(SEGMENTS_AHEAD)) as u32);
                let kind = rng.pick(&[1, 2, 3, 6]);
                let places = u64::from((segment_bytes - SEGMENT_HEADER_BYTES) / 8);
                let batch_start = SEGMENT_HEADER_BYTES + 8 * rng.below(places) as u32;
                value.extend_from_slice(&self.record(segment, kind, batch_start));
            }
        }
    }
}
