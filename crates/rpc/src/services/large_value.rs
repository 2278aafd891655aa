//! Sends values that are too large for one piece of a response. Such a value is read from its log segment in
//! parts, as the client reads the response, each part into a reused buffer. So the memory that a slow client
//! makes the server hold does not depend on the size of the values, as long as they stay in the page cache.
//!
//! The checksum covers the whole value, so no part can be verified alone. The value is verified twice:
//!
//! * Before the piece that ends with the beginning of the value is sent, the value is read and verified from
//!   its beginning to its end, part by part through one buffer. If a damaged value is found while no bytes of
//!   the response were sent, the call fails with a status that names the file and the offset; once bytes were
//!   sent, the call can only be reset. This check takes about a quarter of the time of a response, so a shard
//!   remembers which values it found intact.
//! * While the parts are sent, the checksum is computed again, and the last part is sent only if the checksum
//!   is correct. This check does not use remembered results, so a client never gets a complete message with a
//!   wrong byte, whatever happened to the disk between two parts.
//!
//! If a value is not in memory, the readers (the threads that read values from disk, with a common memory
//! limit) fetch the whole value and verify it. The first part of the value is taken from the fetched bytes.
//! Then the fetched bytes are dropped, and the rest is read from the page cache. If the value was evicted
//! from the page cache in between, it is fetched a second time and held until the last part is taken, so the
//! disk is read at most twice. On systems that cannot tell what is in the page cache, the value is already
//! held after the first fetch.
//!
//! If another response is already sending the same value, the value is read into a buffer as a whole and
//! verified, and later responses send slices of that buffer ([`storage::shared_values`]): they read nothing,
//! compute no checksum and copy nothing. So if a thousand clients read one value at the same time, for
//! example after a restart, nearly all of them share one read. The bytes of the buffer cannot change, so the
//! last part needs no check.
//!
//! Each part is read from the state of the response, which is protected from compaction only for a limited
//! time (COMPAT-80). So a response that was partly sent to a slow client is reset when a compaction has
//! waited for it for minutes, or when the member installs another member's state. This happens even if only
//! one value is left to be read. The alternative would be to hold the whole value in memory.

use std::rc::Rc;

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
use storage::shared_values::SharedRead;
use storage::values::{Attempt, unreadable};

use super::walk::BYTES_AT_ONCE;

/// Maximum number of bytes that may precede a value in its first part. These bytes are the end of the data
/// before the value, and its key.
const BEFORE_BYTES_MAX: usize = BUFFER_BYTES_MIN / 2;
/// Number of fetches after which a value is held until its last part is taken.
const FETCHES_MAX: u32 = 2;

/// A large value that is partly sent, or comes next in the response.
#[derive(Clone, Debug)]
pub(super) struct LargeValue {
    id: ChangeId,
    /// Number of the response field that contains the value's `KeyValue`.
    field: u8,
    /// True if no byte of the `KeyValue` was sent yet.
    is_next: bool,
    /// Number of bytes of the value that were sent.
    at: usize,
    /// Checksum of the bytes of the value that were sent.
    sum: u32,
    /// The value, with its location when it was last read.
    value: Value,
    /// Number of pieces for which the value had to be fetched.
    fetches: u32,
    /// The response's part in the values that several responses send at the same time.
    shared: Option<Rc<SharedRead>>,
}

/// The next part of a large value.
pub(super) struct Part {
    pub bytes: Bytes,
    /// State for the parts after this one; `None` if this is the last part of the `KeyValue`.
    pub rest: Option<LargeValue>,
}

/// Returns true if the value of a version is sent in parts.
pub(super) fn is_large(version: Version<'_>, projection: Projection) -> bool {
    !projection.keys_only && !version.is_tombstone() && version.value_len() as usize > BYTES_AT_ONCE
}

impl LargeValue {
    /// Returns a piece that starts with `before`, followed by the field of `version`, whose value is large.
    /// The piece also contains the beginning of that field, unless `before` is long. If `values` are
    /// incomplete afterwards, the caller fetches them and calls this again.
    ///
    /// # Errors
    ///
    /// Returns an error if the value is damaged or cannot be read.
    pub fn begin(
        before: BytesMut,
        field: u8,
        version: Version<'_>,
        projection: Projection,
        values: &Attempt,
        wanted: usize,
    ) -> Result<Part, Status> {
        let (id, value) = (version.id(), version.value());
        let mut shared = None;
        let mut next =
            LargeValue { id, field, is_next: true, at: 0, sum: 0, value, fetches: 0, shared: None };
        let is_whole = read_where_it_is(version, |value| {
            next.value = value;
            values.begin(value, &mut shared)
        });
        next.shared = shared.map(Rc::new);
        if !is_whole.map_err(|e| unreadable(&e))? {
            return Ok(Part { bytes: Bytes::new(), rest: Some(next) });
        }
        if before.len() > BEFORE_BYTES_MAX {
            return Ok(Part { bytes: fitted(before), rest: Some(next) });
        }
        next.first(before, version, projection, values, wanted)
    }

    /// Returns `before`, followed by the part of the `KeyValue` that precedes the value and, if there is
    /// space, the value's first bytes.
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
        if before.len() > BEFORE_BYTES_MAX || begun.whole().is_some() {
            return Ok(Part { bytes: fitted(before), rest: Some(begun) });
        }
        begun.part(&before, version, projection, values, wanted)
    }

    /// Returns the id of the change that wrote the value.
    pub fn id(&self) -> ChangeId {
        self.id
    }

    /// Returns the next part, of about `wanted` bytes. `version` is the one with the id [`LargeValue::id`].
    /// If `values` are incomplete afterwards, the caller fetches them and calls this again.
    ///
    /// # Errors
    ///
    /// Returns an error if the value is damaged or cannot be read.
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
        if let Some(whole) = self.whole().cloned() {
            return Ok(self.slice(&whole, version, projection, wanted));
        }
        self.part(&[], version, projection, values, wanted)
    }

    /// Returns the whole value, if several responses share it.
    fn whole(&self) -> Option<&Bytes> {
        self.shared.as_ref()?.whole()
    }

    /// Returns the next part, of at most `wanted` bytes, from `whole`, the value in the buffer that several
    /// responses share. The part is not copied. The fields after the value, if there are any, are a part of
    /// their own.
    fn slice(mut self, whole: &Bytes, version: Version<'_>, projection: Projection, wanted: usize) -> Part {
        let at = self.at;
        let end = whole.len().min(at + wanted.max(BUFFER_BYTES_MIN));
        let mut after = BytesMut::new();
        if end == whole.len() {
            put_kv_after_value(version, projection, &mut after);
        }
        if at == whole.len() {
            return Part { bytes: after.freeze(), rest: None };
        }
        self.at = end;
        let is_last = end == whole.len() && after.is_empty();
        Part { bytes: whole.slice(at..end), rest: (!is_last).then_some(self) }
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
        // The fields after the value are sent together with its last byte. If they do not fit into this part,
        // at least one byte of the value is left for the next part.
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

    /// Returns the error for a value that, as read in parts, does not match its checksum.
    fn damaged(self, version: Version<'_>, values: &Attempt) -> Result<Part, Status> {
        let checked = read_where_it_is(version, |value| {
            values.distrust(value);
            values.check(value)
        });
        match checked {
            Err(error) => Err(unreadable(&error)),
            // The value is not in memory, so it is fetched and this part is made again.
            Ok(false) => Ok(Part { bytes: Bytes::new(), rest: Some(self) }),
            Ok(true) => {
                let why = format!("the value of revision {} read differently in parts", version.main());
                Err(unreadable(&ReadError::Failed(why)))
            }
        }
    }
}

/// Freezes a piece, which may be shorter than its buffer. The piece is copied if its buffer is at least twice
/// as long, so that little unused memory is kept.
fn fitted(bytes: BytesMut) -> Bytes {
    if bytes.len() <= bytes.capacity() / 2 { Bytes::copy_from_slice(&bytes) } else { bytes.freeze() }
}

/// Drops the fetched values of a finished piece, unless the large value at its end needs them again.
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
