//! Builds values that look like log records, as an attacker would write them. The attacker knows the record
//! format of the log, the ids in every response header, and the numbering of segments, but not the random
//! identity of a segment. If the identity could be computed from the rest, recovery could mistake such a
//! value for log records.

use std::path::Path;

use disk::MemDisk;
use server::stepped::Identity;

use crate::rng::Rng;

/// Data about a member that any client can learn.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    cluster: u64,
    member: u64,
    /// Number of the newest log segment, which a client can estimate from the amount of data written.
    segment: u32,
}

/// Length of a record header in bytes.
const HEAD_BYTES: usize = 32;
/// Offset of the first record of a segment, in bytes.
const SEGMENT_HEADER_BYTES: u32 = 4096;
/// Largest length of a forged value in bytes.
const BYTES_MAX: usize = 24 << 10;
/// Number of segment numbers for which records are forged, from the newest segment on, because a reused file
/// may get any of these numbers.
const SEGMENTS_AHEAD: u32 = 8;

impl Known {
    /// Collects what a client can learn about the member whose disk this is.
    pub fn of(identity: &Identity, disk: &MemDisk) -> Known {
        let number = |path: &Path| {
            let name = path.file_name()?.to_str()?.strip_suffix(".seg")?;
            u32::from_str_radix(name, 16).ok()
        };
        let segment = disk.files().iter().filter_map(|(path, _)| number(path)).max().unwrap_or(0);
        Known { cluster: identity.cluster_id, member: identity.member_id, segment }
    }

    /// Guesses the identity of a segment as version 1 of the log format computed it: as a checksum of the
    /// cluster id, the member id, the number of the incarnation (here 1) and the segment number.
    fn guess(&self, segment: u32) -> u32 {
        let mut bytes = Vec::with_capacity(28);
        for number in [self.cluster, self.member, 1] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&segment.to_le_bytes());
        crc32c::crc32c(&bytes)
    }

    /// Builds a record without a payload.
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

    /// Fills a value with records for the next segments. The offset at which the value will be stored is
    /// unknown, so each eighth of the value places its records at another alignment.
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
