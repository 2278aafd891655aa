//! A log in memory: it assigns locations to entries and reads values from them.

use std::cell::RefCell;
use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use mainstay_machine::{Applied, Command, ConfApplied, Fatal, Machine, ReadError, Values};
use mvcc::{Location, Value};
use numbers::Term;

/// Segments are small, so that the log has many of them.
const SEGMENT_BYTES: u32 = 8 << 10;

#[derive(Default)]
pub struct Journal {
    records: RefCell<BTreeMap<(u32, u32), Bytes>>,
    end: RefCell<(u32, u32)>,
}

impl Journal {
    /// Stores bytes and returns their location.
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

    pub fn value(&self, value: Value) -> Bytes {
        let mut out = BytesMut::new();
        if value.len > 0 {
            self.read_into(value, &mut out).expect("the journal keeps everything");
        }
        out.freeze()
    }
}

impl Values for Journal {
    fn read_into(&self, value: Value, out: &mut BytesMut) -> Result<(), ReadError> {
        if value.len == 0 {
            return Ok(());
        }
        let place = (value.location.segment(), value.location.offset());
        let records = self.records.borrow();
        let (start, record) = records
            .range(..=place)
            .next_back()
            .filter(|(start, _)| start.0 == place.0)
            .ok_or_else(|| ReadError::Failed(format!("nothing at {place:?}")))?;
        let from = (place.1 - start.1) as usize;
        let bytes = record
            .get(from..from + value.len as usize)
            .filter(|bytes| crc32c::crc32c(bytes) == value.crc)
            .ok_or_else(|| ReadError::Failed(format!("other bytes at {place:?}")))?;
        out.extend_from_slice(bytes);
        Ok(())
    }
}

/// An entry with its location, which can be applied to any number of machines.
#[derive(Clone)]
pub struct Placed {
    pub data: Bytes,
    pub location: Location,
    pub conf: bool,
}

#[derive(Debug, PartialEq)]
pub enum Effect {
    Applied(Result<Applied, Fatal>),
    Conf(Result<ConfApplied, Fatal>),
}

pub fn apply(machine: &mut Machine, placed: &Placed, journal: &Journal, answer: bool) -> Effect {
    let command = Command {
        index: machine.applied_index + 1,
        term: Term(1 + machine.applied_index.0 / 100),
        data: &placed.data,
        location: placed.location,
    };
    if placed.conf {
        Effect::Conf(machine.apply_conf_change(command))
    } else {
        Effect::Applied(machine.apply(command, journal, answer))
    }
}
