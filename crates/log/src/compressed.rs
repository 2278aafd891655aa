//! Reads compressed values: finds the record of a value, verifies it, decompresses it, and verifies the value.

use std::cell::RefCell;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use planted::Bug;

use crate::format::{
    COMPRESSED_HEAD_BYTES, COMPRESSED_LEN_MAX, Found, Kind, RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES,
    VALUE_COMPRESSED, VALUE_HEAD_BYTES, find, padded, u32_at,
};
use crate::segment::Segment;
use crate::values::{MISMATCH, damaged};
use crate::{Compressed, ReadError, Values, Wanted};

thread_local! {
    /// Buffer for the record of the value that this thread reads: at most some 100 KiB.
    static RECORD: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Returns the maximum number of bytes of the record of a compressed value.
pub(crate) fn record_bytes_max(wanted: &Wanted) -> u64 {
    padded(wanted.location.stored_bytes(wanted.len) as usize) as u64
}

/// Returns the part of a segment's file that contains a value: its offset and its length, or, if the value is
/// compressed, at least its length, but no more than the rest of the file.
pub(crate) fn extent(segment: &Segment, wanted: &Wanted) -> Result<(u64, u64), ReadError> {
    let offset = u64::from(wanted.location.offset());
    let capacity = segment.capacity.load(Ordering::Relaxed);
    let is_compressed = wanted.location.is_compressed();
    let bytes = match is_compressed {
        true => record_bytes_max(wanted).min(capacity.saturating_sub(offset)),
        false => u64::from(wanted.len),
    };
    if offset < SEGMENT_HEADER_BYTES as u64
        || offset + bytes > capacity
        || is_compressed && (bytes < RECORD_HEADER_BYTES as u64 || wanted.len > COMPRESSED_LEN_MAX)
    {
        return Err(damaged(segment, offset, "no value can be at this location"));
    }
    Ok((offset, bytes))
}

/// Result of [`Values::decompress`].
enum Decompressed {
    Whole,
    /// The bytes end before the record does.
    Cut,
}

impl Values {
    /// Reads a compressed value and appends it to `into`. Returns false, and leaves `into` unchanged, if that
    /// would need a wait for a disk although `waits` is false.
    pub(crate) fn read_compressed(
        &self,
        wanted: &Wanted,
        waits: bool,
        into: &mut BytesMut,
    ) -> Result<bool, ReadError> {
        let segment = self.shared.segment(wanted.location.segment()).ok_or(ReadError::Moved)?;
        let (offset, bytes) = extent(&segment, wanted)?;
        let outcome = RECORD.with_borrow_mut(|record| {
            record.resize(bytes as usize, 0);
            let read = match waits {
                true => segment.file.read_at(record, offset),
                false => segment.file.read_cached_at(record, offset),
            };
            let read = read.map_err(|error| ReadError::Io { path: segment.path.clone(), error })?;
            match self.decompress(&segment, wanted, &record[..read], into)? {
                Decompressed::Whole => Ok(true),
                Decompressed::Cut if !waits => Ok(false),
                Decompressed::Cut => Err(damaged(&segment, offset, CUT)),
            }
        });
        // If the segment was released during the read, its file may already be reused for other data. In that
        // case the value is not damaged: it was copied to another segment.
        if outcome.is_err() && self.shared.segment(wanted.location.segment()).is_none() {
            return Err(ReadError::Moved);
        }
        outcome
    }

    /// Takes a value out of bytes that were read from its segment, from its location on, and appends it to
    /// `into`. Returns false, and leaves `into` unchanged, if the bytes do not contain the value as it was
    /// written: if they end too early, or if they were read before the value was written.
    pub fn take_from(&self, wanted: &Wanted, bytes: &[u8], into: &mut BytesMut) -> bool {
        if !wanted.location.is_compressed() {
            let value = bytes.get(..wanted.len as usize);
            let value = value.filter(|value| crc32c::crc32c(value) == wanted.crc);
            value.inspect(|value| into.extend_from_slice(value)).is_some()
        } else if let Some(segment) = self.shared.segment(wanted.location.segment()) {
            matches!(self.decompress(&segment, wanted, bytes, into), Ok(Decompressed::Whole))
        } else {
            false
        }
    }

    /// Reads a compressed value as it is stored: the frame, and what is needed to decompress it. The frame is
    /// verified by the checksum of its record. Waits for a disk.
    ///
    /// # Errors
    ///
    /// As for [`Values::read`].
    pub fn read_frame(&self, wanted: &Wanted) -> Result<(Bytes, Compressed), ReadError> {
        let segment = self.shared.segment(wanted.location.segment()).ok_or(ReadError::Moved)?;
        let (offset, bytes) = extent(&segment, wanted)?;
        let mut record = vec![0; bytes as usize];
        let outcome = match segment.file.read_at(&mut record, offset) {
            Ok(read) => find_frame(&segment, wanted, &record[..read]),
            Err(error) => Err(ReadError::Io { path: segment.path.clone(), error }),
        };
        if outcome.is_err() && self.shared.segment(wanted.location.segment()).is_none() {
            return Err(ReadError::Moved);
        }
        let Some((frame, dictionary)) = outcome? else { return Err(damaged(&segment, offset, CUT)) };
        Ok((Bytes::copy_from_slice(frame), Compressed { len: wanted.len, dictionary }))
    }

    /// Appends the value in a record to `into`. `bytes` are those of the segment from the record on. After an
    /// error `into` is unchanged.
    fn decompress(
        &self,
        segment: &Segment,
        wanted: &Wanted,
        bytes: &[u8],
        into: &mut BytesMut,
    ) -> Result<Decompressed, ReadError> {
        let Some((frame, dictionary)) = find_frame(segment, wanted, bytes)? else {
            return Ok(Decompressed::Cut);
        };
        let offset = u64::from(wanted.location.offset());
        let before = into.len();
        into.resize(before + wanted.len as usize, 0);
        let out = &mut into[before..];
        let outcome = match self.shared.dictionaries.decompress(dictionary, frame, out) {
            Ok(()) if crc32c::crc32c(out) == wanted.crc || planted::is(Bug::DecompressedUnverified) => {
                return Ok(Decompressed::Whole);
            }
            Ok(()) => Err(damaged(segment, offset, MISMATCH)),
            Err(error) => Err(ReadError::Undecodable { path: segment.path.clone(), offset, error }),
        };
        into.truncate(before);
        outcome
    }
}

/// Finds the frame of a compressed value, and the number of its dictionary, in bytes that were read from its
/// location on. Returns `None` if the bytes end before the record does.
fn find_frame<'b>(
    segment: &Segment,
    wanted: &Wanted,
    bytes: &'b [u8],
) -> Result<Option<(&'b [u8], u32)>, ReadError> {
    let offset = u64::from(wanted.location.offset());
    let capacity = segment.capacity.load(Ordering::Relaxed);
    let (header, payload) = match find(bytes, offset, capacity, segment.identity) {
        Found::Record(header, payload) => (header, payload),
        // A longer record than the location allows is another one.
        Found::Short(needed) if needed as u64 <= record_bytes_max(wanted) => return Ok(None),
        Found::Invalid(why) => return Err(damaged(segment, offset, why)),
        Found::Short(_) | Found::End => return Err(damaged(segment, offset, OTHER)),
    };
    let payload = &bytes[RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + payload];
    if header.kind != Kind::Value
        || header.entry_type != VALUE_COMPRESSED
        || payload.len() < COMPRESSED_HEAD_BYTES
    {
        return Err(damaged(segment, offset, OTHER));
    }
    if u32_at(payload, VALUE_HEAD_BYTES) != wanted.len || wanted.len > COMPRESSED_LEN_MAX {
        return Err(damaged(segment, offset, "the value has another length"));
    }
    let dictionary = u32_at(payload, VALUE_HEAD_BYTES + 4);
    Ok(Some((&payload[COMPRESSED_HEAD_BYTES..], dictionary)))
}

const CUT: &str = "the file ends within a value";
const OTHER: &str = "another record is where the value was";
