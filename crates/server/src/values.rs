//! Reading values from the log, with a small cache of those read again and again.

use std::cell::RefCell;

use bytes::{BufMut, Bytes, BytesMut};
use machine::ReadError;
use mvcc::Value;

/// Places in the cache; a power of two.
const SLOTS: usize = 4096;
/// Larger values are not kept: copying them costs as much as reading them.
const CACHED_BYTES_MAX: u32 = 2048;

/// One thread's reader of values.
///
/// A read costs a system call and a checksum. A value that is read twice in a row from among those that share its
/// place in the cache stays there, so hot keys cost neither. A place in the log never holds other bytes, so nothing
/// is ever out of date.
pub struct LogValues {
    log: log::Values,
    cache: RefCell<Vec<Cached>>,
}

#[derive(Clone, Default)]
struct Cached {
    /// The place last missed or held.
    place: u64,
    bytes: Option<Bytes>,
}

fn place_of(value: Value) -> u64 {
    (u64::from(value.location.segment) << 32) | u64::from(value.location.offset)
}

impl LogValues {
    /// A reader of its own for this thread.
    pub fn new(log: log::Values) -> LogValues {
        LogValues { log, cache: RefCell::new(vec![Cached::default(); SLOTS]) }
    }

    fn read_log(&self, value: Value, out: &mut BytesMut) -> Result<(), ReadError> {
        let location = log::Location { segment: value.location.segment, offset: value.location.offset };
        self.log.read_into(location, value.len, value.crc, out).map_err(|error| match error {
            log::ReadError::Moved => ReadError::Moved,
            other => ReadError::Failed(other.to_string()),
        })
    }
}

impl machine::Values for LogValues {
    fn read_into(&self, value: Value, out: &mut BytesMut) -> Result<(), ReadError> {
        if value.len > CACHED_BYTES_MAX {
            return self.read_log(value, out);
        }
        let place = place_of(value);
        let mut cache = self.cache.borrow_mut();
        // Fibonacci hashing: the top bits of the product spread neighbouring places.
        let slot =
            &mut cache[(place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SLOTS.trailing_zeros())) as usize];
        if slot.place == place
            && let Some(bytes) = &slot.bytes
            && bytes.len() == value.len as usize
        {
            out.put_slice(bytes);
            return Ok(());
        }
        let start = out.len();
        self.read_log(value, out)?;
        slot.bytes = (slot.place == place).then(|| Bytes::copy_from_slice(&out[start..]));
        slot.place = place;
        Ok(())
    }
}
