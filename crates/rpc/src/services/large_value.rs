//! Values too large for a piece of an answer: they are read from their segment in parts, as their client takes them, each part
//! into a buffer that another had before. So what a client that is slow, or one of thousands, makes the server hold does
//! not depend on how large its values are, as long as they stay in the page cache.
//!
//! A value's checksum is that of the whole, so it is looked at twice, for two purposes:
//!
//! * The value is checked from its beginning to its end, part by part through one buffer, before the piece leaves that goes up to
//!   it. A damaged one is refused with a status that names file and offset, if that piece is the first; once bytes have left, a
//!   call can only be reset. This look costs about a quarter of an answer, so a shard remembers which values it found whole.
//! * The checksums of the parts, as they are sent, are added up. The last part leaves only if the sum is right. That look
//!   relies on nothing remembered: a client never has a whole message with a wrong byte in it, whatever happened to the
//!   disk between two parts.
//!
//! A value that is not in memory is fetched whole by the readers, which have a bound for all of them, and checked there. Its
//! first part is taken from that; the rest should be in the page cache then, and is read from there. If the system has
//! dropped it again, it is fetched once more, and held until the last part is taken, so that a disk is asked twice at most. Where
//! the system cannot tell what is in the page cache, it is held from the first time on.
//!
//! Each part is read in the state that the answer is made of, which is there for a time only (COMPAT-80). So the answer to a
//! client that is too slow is reset behind its first part, though nothing is left to be read but one value: when a compaction has
//! waited for it for minutes, or when the member installs another member's state. The alternative is to hold the value whole.

use api::Status;
use api::wire::put_field_head;
use bytes::{Bytes, BytesMut};
use machine::ReadError;
use machine::key_value::{
    AFTER_VALUE_BYTES_MAX, Projection, kv_len, put_kv_after_value, put_kv_before_value, read_where_it_is,
};
use mvcc::{Value, Version};
use numbers::ChangeId;
use storage::buffers::{BUFFER_BYTES_MAX, BUFFER_BYTES_MIN, Buffer};
use storage::values::{Attempt, unreadable};

use super::range::BYTES_AT_ONCE;

/// Bytes that may precede a value in one part with it: the end of what came before, and its key.
const BEFORE_BYTES_MAX: usize = BUFFER_BYTES_MIN / 2;
/// A value is held once it was fetched so often.
const FETCHES_MAX: u32 = 2;

/// A large value of which a client has a part, or that comes next.
#[derive(Clone, Copy, Debug)]
pub(super) struct LargeValue {
    id: ChangeId,
    /// Number of the field that its `KeyValue` is in the answer.
    field: u8,
    /// True if the client has nothing of the `KeyValue` yet.
    is_next: bool,
    /// Bytes of the value that the client has.
    at: usize,
    /// Checksum of these.
    sum: u32,
    /// The value, and its place when it was read last.
    value: Value,
    /// Pieces for which it had to be fetched.
    fetches: u32,
}

/// The next part of a large value.
pub(super) struct Part {
    pub bytes: Bytes,
    /// What comes behind it; `None` if it is the last of the `KeyValue`.
    pub rest: Option<LargeValue>,
}

/// Returns true if a version's value comes in parts.
pub(super) fn is_large(version: Version<'_>, projection: Projection) -> bool {
    !projection.keys_only && !version.is_tombstone() && version.value_len() as usize > BYTES_AT_ONCE
}

impl LargeValue {
    /// The piece that begins with `before`, behind which comes the field of a version, whose value is large. It has the beginning
    /// of that as well, unless `before` is long. If `values` are not complete, it is to be made again.
    ///
    /// # Errors
    ///
    /// When the value is damaged or cannot be read.
    pub fn begin(
        before: BytesMut,
        field: u8,
        version: Version<'_>,
        projection: Projection,
        values: &Attempt,
        wanted: usize,
    ) -> Result<Part, Status> {
        let (id, value) = (version.id(), version.value());
        let mut next = LargeValue { id, field, is_next: true, at: 0, sum: 0, value, fetches: 0 };
        let is_whole = read_where_it_is(version, |value| {
            next.value = value;
            values.check(value)
        });
        if !is_whole.map_err(|e| unreadable(&e))? {
            return Ok(Part { bytes: Bytes::new(), rest: Some(next) });
        }
        if before.len() > BEFORE_BYTES_MAX {
            return Ok(Part { bytes: fitted(before), rest: Some(next) });
        }
        next.first(before, version, projection, values, wanted)
    }

    /// The part with what precedes the value in its `KeyValue`, which follows `before`.
    fn first(
        self,
        mut before: BytesMut,
        version: Version<'_>,
        projection: Projection,
        values: &Attempt,
        wanted: usize,
    ) -> Result<Part, Status> {
        put_field_head(&mut before, self.field, kv_len(version, projection));
        put_kv_before_value(version, projection, &mut before);
        let begun = LargeValue { is_next: false, ..self };
        if before.len() > BEFORE_BYTES_MAX {
            return Ok(Part { bytes: fitted(before), rest: Some(begun) });
        }
        begun.part(&before, version, projection, values, wanted)
    }

    /// The change that wrote the value.
    pub fn id(&self) -> ChangeId {
        self.id
    }

    /// The next part, of about `wanted` bytes. `version` is that of [`LargeValue::id`]. If `values` are not complete, it is to be
    /// made again.
    ///
    /// # Errors
    ///
    /// When the value is damaged or cannot be read.
    pub fn go_on(
        self,
        version: Version<'_>,
        projection: Projection,
        values: &Attempt,
        wanted: usize,
    ) -> Result<Part, Status> {
        if self.is_next {
            return self.first(BytesMut::new(), version, projection, values, wanted);
        }
        self.part(&[], version, projection, values, wanted)
    }

    fn part(
        mut self,
        before: &[u8],
        version: Version<'_>,
        projection: Projection,
        values: &Attempt,
        wanted: usize,
    ) -> Result<Part, Status> {
        let wanted = wanted.clamp(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX);
        let (left, space) = (version.value_len() as usize - self.at, wanted - before.len());
        let mut buffer = Buffer::take(before.len() + space.min(left + AFTER_VALUE_BYTES_MAX));
        // What follows a value leaves with its last byte.
        let is_last = left + AFTER_VALUE_BYTES_MAX <= space;
        let bytes = if is_last { left } else { space.min(left - 1) };
        let end = before.len() + bytes;
        buffer.bytes_mut()[..before.len()].copy_from_slice(before);
        let part = &mut buffer.bytes_mut()[before.len()..end];
        let is_read = read_where_it_is(version, |value| {
            self.value = value;
            values.read_part(value, self.at, part)
        });
        if !is_read.map_err(|e| unreadable(&e))? {
            return Ok(Part { bytes: Bytes::new(), rest: Some(self) });
        }
        let sum = crc32c::crc32c_append(self.sum, part);
        if !is_last {
            let rest = LargeValue { at: self.at + bytes, sum, ..self };
            return Ok(Part { bytes: buffer.freeze(end), rest: Some(rest) });
        }
        if sum != version.value_crc() {
            return self.damaged(version, values);
        }
        let mut after = BytesMut::with_capacity(AFTER_VALUE_BYTES_MAX);
        put_kv_after_value(version, projection, &mut after);
        buffer.bytes_mut()[end..end + after.len()].copy_from_slice(&after);
        Ok(Part { bytes: buffer.freeze(end + after.len()), rest: None })
    }

    /// Says why a value, of which all parts were read, is not what was written.
    fn damaged(self, version: Version<'_>, values: &Attempt) -> Result<Part, Status> {
        let checked = read_where_it_is(version, |value| {
            values.distrust(value);
            values.check(value)
        });
        match checked {
            Err(error) => Err(unreadable(&error)),
            // The check waits for the disk.
            Ok(false) => Ok(Part { bytes: Bytes::new(), rest: Some(self) }),
            Ok(true) => {
                let why = format!("the value of revision {} read differently in parts", version.main());
                Err(unreadable(&ReadError::Failed(why)))
            }
        }
    }
}

/// The bytes of a piece that ends before the space for it does. They keep at most twice as much memory as they are.
fn fitted(bytes: BytesMut) -> Bytes {
    if bytes.len() <= bytes.capacity() / 2 { Bytes::copy_from_slice(&bytes) } else { bytes.freeze() }
}

/// Drops what was fetched for a piece that was made, unless the large value at its end needs it again.
pub(super) fn forget(values: &mut Attempt, large: &mut Option<LargeValue>) {
    if let Some(large) = large
        && values.has_fetched(large.value)
    {
        large.fetches += 1;
        if large.fetches >= FETCHES_MAX || !values.tells_at_hand(large.value) {
            return;
        }
    }
    values.forget();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_piece_does_not_keep_the_space_of_a_long_one() {
        for (len, moves) in [(8_200, true), (34_816, true), (34_817, false), (69_632, false)] {
            let mut bytes = BytesMut::with_capacity(68 << 10);
            bytes.extend_from_slice(&vec![b'x'; len]);
            let place = bytes.as_ptr();
            let fitted = fitted(bytes);
            assert_eq!((fitted.len(), fitted.as_ptr() != place), (len, moves));
        }
    }
}
