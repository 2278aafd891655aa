//! Replaces the log in targets that use state machines: keeps entries in memory, assigns locations to them
//! and reads values back.

use std::cell::RefCell;
use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use machine::{ReadError, Values};
use mvcc::{Location, Value};

/// Size of a segment in bytes. It is small, so that there are many segments.
const SEGMENT_BYTES: u32 = 8 << 10;

/// In-memory log that keeps all data that was appended to it.
#[derive(Default)]
pub struct Journal {
    records: RefCell<BTreeMap<(u32, u32), Bytes>>,
    end: RefCell<(u32, u32)>,
}

impl Journal {
    /// Stores bytes, and returns their location.
    pub fn append(&self, data: &Bytes) -> Location {
        let mut end = self.end.borrow_mut();
        if end.0 == 0 || end.1 > SEGMENT_BYTES {
            *end = (end.0 + 1, 32);
        }
        let location = Location::new(end.0, end.1);
        self.records.borrow_mut().insert(*end, data.clone());
        end.1 += data.len() as u32 + 8;
        location
    }
}

impl Values for Journal {
    fn read_into(&self, value: Value, out: &mut BytesMut) -> Result<(), ReadError> {
        if value.len == 0 {
            return Ok(());
        }
        let place = (value.location.segment(), value.location.offset());
        let records = self.records.borrow();
        let found = records.range(..=place).next_back().filter(|(start, _)| start.0 == place.0);
        let (start, record) = found.ok_or_else(|| ReadError::Failed(format!("nothing at {place:?}")))?;
        let from = (place.1 - start.1) as usize;
        let bytes = record
            .get(from..from + value.len as usize)
            .filter(|bytes| crc32c::crc32c(bytes) == value.crc)
            .ok_or_else(|| ReadError::Failed(format!("other bytes at {place:?}")))?;
        out.extend_from_slice(bytes);
        Ok(())
    }
}
