//! Reads values that follow each other in the log with few large reads. Used for hashes and snapshots, which
//! read values in the order of revisions, which is also the order of the values in the log. One read of 64
//! KiB takes a tenth of the time of two hundred reads of single values.

use std::cell::RefCell;
use std::rc::Rc;

use accounting::{Account, Held};
use bytes::BytesMut;
use machine::ReadError;
use mvcc::Value;
use numbers::Location;

use crate::buffers::{BUFFER_BYTES_MAX, Buffer};
use crate::readers::Reading;
use crate::values::{LogValues, Source};

/// Size of the first read in bytes, and minimum size at which reading ahead is tried.
const AHEAD_BYTES_MIN: usize = 4 << 10;
/// If a value starts at most this many bytes after the end of the last value, it counts as its successor, so
/// that reading ahead is worthwhile.
const GAP_BYTES_MAX: u32 = 16 << 10;

/// Reader of the values of one call. It buffers a part of the log that probably contains the next values of
/// the call.
pub struct ReadAhead {
    values: Rc<LogValues>,
    window: RefCell<Window>,
}

/// The buffered part of the log.
struct Window {
    start: Location,
    /// Buffer whose first `len` bytes are valid, and the reservation for it in the memory account of the
    /// connection whose work was running when the buffer was taken.
    buffer: Option<(Buffer, Option<Held>)>,
    len: usize,
    /// Location of the end of the value that was read last.
    end: Location,
    /// Number of bytes of the next read. The number grows if a value starts soon after the end of the
    /// previous one, and shrinks otherwise.
    ahead: usize,
}

impl ReadAhead {
    /// Returns a reader that reads ahead and takes all other values from `values`.
    pub fn of(values: &Rc<LogValues>) -> Rc<ReadAhead> {
        let nowhere = Location::new(0, 0);
        let window = Window { start: nowhere, buffer: None, len: 0, end: nowhere, ahead: AHEAD_BYTES_MIN };
        Rc::new(ReadAhead { values: values.clone(), window: RefCell::new(window) })
    }
}

impl Window {
    /// Appends the bytes of a value to `out` and returns true, if the window contains them. Returns false if
    /// it does not, or if the checksum does not match: the window may have been read before the value was
    /// written, so the caller reads the value itself.
    fn give(&self, values: &LogValues, value: Value, out: &mut BytesMut) -> bool {
        let Some((buffer, _)) = &self.buffer else { return false };
        let Some(from) = value.location.offset().checked_sub(self.start.offset()) else { return false };
        if value.location.segment() != self.start.segment() {
            return false;
        }
        let bytes = buffer.as_ref()[..self.len].get(from as usize..);
        bytes.is_some_and(|bytes| values.take_from(value, bytes, out))
    }

    /// Doubles the size of the next read if a value that is not in the window follows the last value;
    /// otherwise divides the size by four.
    fn look(&mut self, value: Value) {
        let (start, end) = (value.location, self.end);
        let gap = start.offset().wrapping_sub(end.offset());
        let behind = start.segment() == end.segment() && gap <= GAP_BYTES_MAX;
        self.ahead =
            if behind { (self.ahead * 2).clamp(AHEAD_BYTES_MIN, BUFFER_BYTES_MAX) } else { self.ahead / 4 };
    }

    /// Reads the bytes of the log from `value` on into the window, if that will probably save later reads.
    fn fill(&mut self, values: &LogValues, value: Value) {
        self.len = 0;
        let stored_bytes = value.location.stored_bytes(value.len) as usize;
        if self.ahead < AHEAD_BYTES_MIN.max(4 * stored_bytes) {
            return;
        }
        let (buffer, _) = self.buffer.get_or_insert_with(|| {
            let buffer = Buffer::take(BUFFER_BYTES_MAX);
            (buffer, Account::of_turn().map(|account| account.hold(BUFFER_BYTES_MAX)))
        });
        let read = values.read_ahead(value.location, &mut buffer.bytes_mut()[..self.ahead]);
        // A short read means that the following bytes are not in memory or do not exist. That will probably
        // not change soon, so the next read does not ask for more.
        self.ahead = self.ahead.min(read);
        (self.start, self.len) = (value.location, read);
    }
}

impl Source for ReadAhead {
    fn read_at_hand(&self, value: Value, out: &mut BytesMut) -> Result<bool, ReadError> {
        let mut window = self.window.borrow_mut();
        let given = window.give(&self.values, value, out) || {
            window.look(value);
            window.fill(&self.values, value);
            window.give(&self.values, value, out)
        };
        let place = value.location;
        // Where the record of a compressed value ends is not known exactly, so its beginning is noted. Most such
        // records are smaller than the largest gap.
        let bytes = if place.is_compressed() { 0 } else { value.len };
        window.end = Location::new(place.segment(), place.offset().saturating_add(bytes));
        // A value that the window does not contain is read alone. That read also reports the error if the
        // value is damaged.
        if given { Ok(true) } else { self.values.read_at_hand(value, out) }
    }

    fn check_at_hand(&self, value: Value) -> Result<bool, ReadError> {
        self.values.check_at_hand(value)
    }

    fn trust(&self, value: Value) {
        self.values.trust(value);
    }

    fn distrust(&self, value: Value) {
        self.values.distrust(value);
    }

    fn tells_at_hand(&self, value: Value) -> bool {
        self.values.tells_at_hand(value)
    }

    fn read_part_at_hand(&self, value: Value, from: usize, part: &mut [u8]) -> Result<bool, ReadError> {
        self.values.read_part_at_hand(value, from, part)
    }

    fn fetch(&self, values: &[Value]) -> Option<Reading> {
        self.values.fetch(values)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use bytes::Bytes;
    use disk::{Disk as _, MemDisk};
    use log::{Batch, Entry, Log, LogEvent, Options};
    use numbers::{ClusterId, Index, MemberId, Term};

    use super::*;
    use crate::readers::Readers;

    /// A log, and the values that were written to it.
    struct Written {
        disk: MemDisk,
        log: Log,
        synced: Receiver<Location>,
        values: Vec<(Value, Bytes)>,
    }

    impl Written {
        fn new() -> Written {
            let disk = MemDisk::new(1);
            let options = Options {
                by_hand: true,
                segment_bytes: 64 << 10,
                ..Options::new("/log", ClusterId(1), MemberId(2))
            };
            let (tell, synced) = channel();
            let on_event = Box::new(move |event| {
                if let LogEvent::Synced(synced) = event {
                    synced
                        .locations
                        .iter()
                        .for_each(|place| tell.send(place.location).expect("the test waits"));
                }
            });
            let memory = std::sync::Arc::new(disk.clone());
            let (log, _) = Log::open(options, memory, Index(1), &mut |_| {}, on_event).expect("opens");
            Written { disk, log, synced, values: Vec::new() }
        }

        /// Appends `values` values of `bytes` bytes each.
        fn put(&mut self, values: usize, bytes: usize) {
            for _ in 0..values {
                let n = self.values.len();
                let data: Bytes = (0..bytes).map(|at| (n * 31 + at) as u8).collect();
                let index = Index(n as u64 + 1);
                let entry = Entry { term: Term(1), index, entry_type: 0, data: data.clone() };
                self.log.append(Batch { entries: vec![entry], ..Batch::default() }).expect("there is room");
                self.log.turn();
                let location = self.synced.recv().expect("is synced");
                self.values.push((Value { location, len: bytes as u32, crc: crc32c::crc32c(&data) }, data));
            }
        }

        fn reader(&self) -> Rc<LogValues> {
            Rc::new(LogValues::new(self.log.values()))
        }

        fn reader_that_may_not_wait(&self) -> Rc<LogValues> {
            let readers = Readers::new(self.log.values());
            Rc::new(LogValues::fetched_by(&readers, self.log.values()))
        }
    }

    fn assert_reads(ahead: &ReadAhead, (value, data): &(Value, Bytes)) {
        let mut out = BytesMut::from("before");
        assert_eq!(ahead.read_at_hand(*value, &mut out), Ok(true));
        assert_eq!((&out[..6], &out[6..]), (b"before".as_slice(), &data[..]));
    }

    #[test]
    fn values_behind_each_other_are_read_together_and_others_one_by_one() {
        let mut written = Written::new();
        // Enough values for more than one segment.
        written.put(2000, 100);
        let reads = |ahead: &ReadAhead, order: &mut dyn Iterator<Item = usize>| {
            let before = written.disk.reads();
            order.for_each(|n| assert_reads(ahead, &written.values[n]));
            written.disk.reads() - before
        };
        let ahead = ReadAhead::of(&written.reader());
        assert!(reads(&ahead, &mut (0..2000)) < 40);
        let backwards = reads(&ahead, &mut (0..2000).rev());
        // Only a few reads ahead are useless before the window shrinks.
        assert!((1850..2010).contains(&backwards), "{backwards}");
        assert!(reads(&ahead, &mut (0..2000)) < 40, "in order again");
        let jumping = reads(&ahead, &mut (0..2000).map(|n| n * 1237 % 2000));
        assert!((1850..2010).contains(&jumping), "{jumping}");
    }

    #[test]
    fn what_is_in_memory_is_used_where_what_lies_behind_is_not() {
        let mut written = Written::new();
        written.put(2000, 100);
        let ahead = ReadAhead::of(&written.reader_that_may_not_wait());
        let before = written.disk.reads();
        written.disk.set_cached_bytes_max(6000);
        written.values.iter().for_each(|value| assert_reads(&ahead, value));
        let reads = written.disk.reads() - before;
        assert!(reads < 150, "{reads}");
        assert!(ahead.window.borrow().ahead <= 6000, "it asks for no more");
        // Only the value itself is in memory.
        written.disk.set_cached_bytes_max(100);
        written.values.iter().for_each(|value| assert_reads(&ahead, value));
        assert!(ahead.window.borrow().ahead < AHEAD_BYTES_MIN, "nor for what is never there");
    }

    #[test]
    fn what_was_read_before_it_was_written_is_read_again() {
        let mut written = Written::new();
        written.put(50, 100);
        let ahead = ReadAhead::of(&written.reader());
        written.values.iter().for_each(|value| assert_reads(&ahead, value));
        assert!(ahead.window.borrow().len > 100, "it has looked behind the log's end");
        written.put(50, 100);
        written.values.iter().skip(50).for_each(|value| assert_reads(&ahead, value));
    }

    #[test]
    fn large_empty_and_damaged_values_are_as_without_it() {
        let mut written = Written::new();
        written.put(20, 100);
        written.put(2, 30_000);
        written.put(20, 100);
        let ahead = ReadAhead::of(&written.reader());
        written.values.iter().for_each(|value| assert_reads(&ahead, value));
        assert_eq!(ahead.read_at_hand(Value::default(), &mut BytesMut::new()), Ok(true));
        let (damaged, _) = written.values[10];
        let name = |path: &std::path::PathBuf| path.to_string_lossy().ends_with(".seg");
        let files = written.disk.list(std::path::Path::new("/log")).expect("lists");
        let path = files
            .into_iter()
            .map(|file| std::path::Path::new("/log").join(file))
            .find(name)
            .expect("a segment");
        let file = written.disk.open(&path).expect("opens");
        file.write_at(b"damaged", u64::from(damaged.location.offset()) + 5).expect("writes");
        let ahead = ReadAhead::of(&written.reader());
        for (n, value) in written.values.iter().enumerate() {
            if n == 10 {
                let mut out = BytesMut::new();
                assert!(matches!(ahead.read_at_hand(damaged, &mut out), Err(ReadError::Failed(_))));
                assert!(out.is_empty());
            } else {
                assert_reads(&ahead, value);
            }
        }
    }
}
