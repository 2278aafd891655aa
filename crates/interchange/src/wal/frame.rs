//! Reads the frames of one log file.

use std::io;

use crate::error::Error;
use crate::source::Source;
use crate::wal::CRC;
use crate::wire::{Field, Fields};

const HEAD_BYTES: u64 = 8;
const SECTOR_BYTES: u64 = 512;
const WINDOW_BYTES: u64 = 256 << 10;

/// Reads the frames of one log file, in order. A frame is a record with its length and padding.
pub(super) struct Frames<'a, S> {
    source: &'a S,
    len: u64,
    /// Offset of the next frame.
    at: u64,
    /// Running checksum of all records so far.
    crc: u32,
    is_last: bool,
    window: Window,
}

#[derive(Default)]
struct Window {
    bytes: Vec<u8>,
    at: u64,
}

/// Result of reading the next frame of a log file.
pub(super) enum Next<'w> {
    Record(Record<'w>),
    /// The file has no more frames, and ends regularly.
    End,
    /// The frame is an unfinished write, so the log ends before it.
    Torn,
}

pub(super) struct Record<'w> {
    pub kind: u64,
    pub crc: u32,
    pub data: &'w [u8],
    /// Offset of the frame.
    pub offset: u64,
}

impl<'a, S: Source> Frames<'a, S> {
    pub fn new(source: &'a S, len: u64, crc: u32, is_last: bool) -> Frames<'a, S> {
        Frames { source, len, at: 0, crc, is_last, window: Window::default() }
    }

    /// Returns the offset of the next frame; after the last frame, the offset at which it ends.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Returns the running checksum of all records so far.
    pub fn crc(&self) -> u32 {
        self.crc
    }

    /// Sets the running checksum to the value that a record of type `crc` contains.
    pub fn set_crc(&mut self, crc: u32) {
        self.crc = crc;
    }

    pub fn next(&mut self) -> Result<Next<'_>, Error> {
        let offset = self.at;
        let left = self.len - offset;
        if left == 0 {
            return Ok(Next::End);
        }
        if left < HEAD_BYTES {
            let rest = self.window.get(self.source, self.len, offset, left)?;
            return match rest.iter().all(|byte| *byte == 0) {
                true => Ok(Next::End),
                false => self.torn(offset, "the file ends within the length of a frame"),
            };
        }
        let head = self.window.get(self.source, self.len, offset, HEAD_BYTES)?;
        let head = u64::from_le_bytes(head.try_into().unwrap_or_default());
        if head == 0 {
            return Ok(Next::End);
        }
        let record = head & !(0xff << 56);
        let padding = if head >> 63 == 1 { head >> 56 & 7 } else { 0 };
        if record + padding > left - HEAD_BYTES {
            return self.torn(offset, "a frame is longer than what is left of the file");
        }
        self.window.get(self.source, self.len, offset, HEAD_BYTES + record + padding)?;
        let frame = self.window.held(offset + HEAD_BYTES, record + padding);
        let parsed = parse(frame.get(..record as usize).unwrap_or_default());
        let crc = match &parsed {
            Ok((CRC, ..)) => Some(self.crc),
            Ok((_, crc, data)) => Some(crc32c::crc32c_append(self.crc, data)).filter(|found| found == crc),
            Err(()) => None,
        };
        let (Ok((kind, stored, data)), Some(crc)) = (parsed, crc) else {
            return match self.is_last && has_empty_sector(frame, offset + HEAD_BYTES) {
                true => Ok(Next::Torn),
                false => Err(Error::damaged(offset, "a record does not match its checksum")),
            };
        };
        self.crc = crc;
        self.at = offset + HEAD_BYTES + record + padding;
        Ok(Next::Record(Record { kind, crc: stored, data, offset }))
    }

    fn torn(&self, offset: u64, what: &str) -> Result<Next<'_>, Error> {
        if self.is_last { Ok(Next::Torn) } else { Err(Error::damaged(offset, what)) }
    }
}

impl Window {
    /// Returns the bytes `at..at + len`, which lie within the file.
    fn get(&mut self, source: &impl Source, file_len: u64, at: u64, len: u64) -> Result<&[u8], Error> {
        let end = self.at + self.bytes.len() as u64;
        if at < self.at || at + len > end {
            let wanted = len.max(WINDOW_BYTES).min(file_len - at);
            let failed = |e| Error::io(format!("reading the log at byte {at}"), e);
            self.bytes.clear();
            let wanted = usize::try_from(wanted).ok();
            let wanted = wanted.filter(|wanted| self.bytes.try_reserve(*wanted).is_ok());
            let wanted = wanted.ok_or_else(|| failed(io::ErrorKind::OutOfMemory.into()))?;
            self.bytes.resize(wanted, 0);
            self.at = at;
            source.read_exact_at(&mut self.bytes, at).map_err(failed)?;
        }
        Ok(self.held(at, len))
    }

    fn held(&self, at: u64, len: u64) -> &[u8] {
        let from = (at - self.at) as usize;
        self.bytes.get(from..from + len as usize).unwrap_or_default()
    }
}

/// Decodes type, checksum and data of a record.
fn parse(record: &[u8]) -> Result<(u64, u32, &[u8]), ()> {
    let (mut kind, mut crc, mut data) = (0, 0, &[][..]);
    let mut fields = Fields(record);
    while let Some(field) = fields.next()? {
        match field {
            (1, Field::Varint(n)) => kind = n,
            (2, Field::Varint(n)) => crc = u32::try_from(n).map_err(|_| ())?,
            (3, Field::Bytes(bytes)) => data = bytes,
            _ => return Err(()),
        }
    }
    Ok((kind, crc, data))
}

fn has_empty_sector(mut frame: &[u8], mut offset: u64) -> bool {
    while !frame.is_empty() {
        let len = (SECTOR_BYTES - offset % SECTOR_BYTES) as usize;
        let (sector, rest) = frame.split_at(len.min(frame.len()));
        if sector.iter().all(|byte| *byte == 0) {
            return true;
        }
        offset += sector.len() as u64;
        frame = rest;
    }
    false
}
