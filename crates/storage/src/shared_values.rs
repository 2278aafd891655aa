//! Lets responses that send the same large value at the same time send it from one buffer ([`SharedValues`]).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use accounting::{Budget, Charge};
use bytes::{Bytes, BytesMut};
use machine::ReadError;
use mvcc::Value;

/// Maximum length in bytes of a value that is shared: it is read and verified in one go, while the other
/// connections of the shard wait.
const VALUE_BYTES_MAX: usize = 2 << 20;

/// Returns the location of a value as one number, which identifies the value: a location in the log never
/// contains another value later.
pub fn place_of(value: Value) -> u64 {
    place(value.location.segment(), value.location.offset())
}

pub(crate) fn place(segment: u32, offset: u32) -> u64 {
    (u64::from(segment) << 32) | u64::from(offset)
}

/// Table of the large values that responses are sending now, for all shards of a member.
///
/// A response that sends a large value reads it in parts from the page cache and computes its checksum, so
/// that it holds little memory however slow its client is. If another response that sends the same value
/// begins before the first one has ended, it reads the whole value into a buffer, verifies it, and leaves the
/// buffer here for all responses that begin later. They send slices of the buffer: they read nothing and
/// compute no checksum. The table drops its reference to the buffer when the last of them has ended, so no
/// memory is held for values that no response is sending.
///
/// Memory is bounded: a buffer counts against a limit ([`SharedRead::fill`]), and in the clients' memory
/// budget, until its last slice is dropped, which may be in the output of a slow client. While the limit is
/// reached, further values are read in parts. A cache that keeps the values that were read most often was
/// rejected: it holds memory for clients that are gone, and reads of ever different values would replace its
/// contents.
///
/// # Example: four responses that send a value of 1 MB
///
/// ```text
/// response  begins while    reads                      checksums  sends
/// A         no other sends  the value, in parts        1          copies of parts
/// B         A sends         the value, into a buffer   1          slices of the buffer
/// C         A, B send       nothing                    0          slices of the buffer
///           B, C end                                              the buffer is deallocated
/// D         A sends         the value, into a buffer   1          slices of the buffer
/// ```
#[derive(Default)]
pub struct SharedValues(Arc<Table>);

#[derive(Default)]
struct Table {
    /// The values that are being sent.
    entries: Mutex<BTreeMap<Key, Entry>>,
    /// Total length of the buffers that still exist, in bytes.
    held_bytes: AtomicUsize,
}

/// Identifies a value: its place, length and checksum. The place would be enough, but a buffer is sent
/// without another check, so nothing depends on a place alone.
type Key = (u64, u32, u32);

fn key_of(value: Value) -> Key {
    (place_of(value), value.len, value.crc)
}

/// A value that is being sent.
#[derive(Default)]
struct Entry {
    /// Number of responses that are sending the value.
    responses: usize,
    /// Number of those of them that send slices of `whole`.
    sharing: usize,
    whole: Option<Bytes>,
    /// True if a response is reading the value into a buffer.
    is_filling: bool,
}

impl Table {
    fn entries(&self) -> MutexGuard<'_, BTreeMap<Key, Entry>> {
        // No code panics while it holds the lock with half-changed data, so the table is consistent even if
        // the lock is poisoned.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts `bytes` against the limit. Returns false if they exceed it.
    fn reserve(&self, bytes: usize, bytes_max: usize) -> bool {
        let raised = |held: usize| held.checked_add(bytes).filter(|held| *held <= bytes_max);
        self.held_bytes.fetch_update(Relaxed, Relaxed, raised).is_ok()
    }
}

impl SharedValues {
    /// Notes that a response begins to send a value. The result must be kept until the response has ended.
    pub fn join(&self, value: Value) -> SharedRead {
        let key = key_of(value);
        let mut entries = self.0.entries();
        let entry = entries.entry(key).or_default();
        entry.responses += 1;
        let whole = entry.whole.clone();
        entry.sharing += usize::from(whole.is_some());
        SharedRead { table: Arc::clone(&self.0), key, whole }
    }

    /// Returns the number of bytes of the buffers that still exist.
    #[cfg(test)]
    fn held_bytes(&self) -> usize {
        self.0.held_bytes.load(Relaxed)
    }
}

/// A response's part in [`SharedValues`]. Dropped when the response has ended.
pub struct SharedRead {
    table: Arc<Table>,
    key: Key,
    whole: Option<Bytes>,
}

impl SharedRead {
    /// Returns the whole value, if the response sends it from the shared buffer. It is verified.
    pub fn whole(&self) -> Option<&Bytes> {
        self.whole.as_ref()
    }

    /// Reads the value into a buffer for this response and later ones, if another response is sending the
    /// same value, and all buffers together then have at most `bytes_max` bytes. `read` appends the verified
    /// value to its argument; if it returns false, the value is not in memory.
    ///
    /// # Errors
    ///
    /// Returns the error of `read`.
    pub fn fill(
        &mut self,
        bytes_max: usize,
        budget: Option<&Budget>,
        read: impl FnOnce(&mut BytesMut) -> Result<bool, ReadError>,
    ) -> Result<(), ReadError> {
        let len = self.key.1 as usize;
        if self.whole.is_some() || len > VALUE_BYTES_MAX {
            return Ok(());
        }
        {
            let mut entries = self.table.entries();
            let Some(entry) = entries.get_mut(&self.key) else { return Ok(()) };
            let is_alone = entry.responses < 2;
            // No client is disconnected for the sake of a buffer that only saves time.
            let exceeds = |budget: &Budget| budget.held_bytes().saturating_add(len) > budget.bytes_max();
            // A buffer that has been left here since this response joined is for those that join later.
            if is_alone
                || entry.is_filling
                || entry.whole.is_some()
                || budget.is_some_and(exceeds)
                || !self.table.reserve(len, bytes_max)
            {
                return Ok(());
            }
            entry.is_filling = true;
        }
        // From here on, dropping `buffer` gives the reserved bytes back.
        let charge = budget.map(|budget| budget.charge(len));
        let mut buffer = Buffer {
            bytes: BytesMut::with_capacity(len),
            len,
            table: Arc::clone(&self.table),
            _charge: charge,
        };
        let read = read(&mut buffer.bytes);
        self.whole = matches!(read, Ok(true)).then(|| Bytes::from_owner(buffer));
        let mut entries = self.table.entries();
        if let Some(entry) = entries.get_mut(&self.key) {
            entry.is_filling = false;
            entry.sharing += usize::from(self.whole.is_some());
            entry.whole.clone_from(&self.whole);
        }
        read.map(|_| ())
    }
}

impl Drop for SharedRead {
    fn drop(&mut self) {
        let mut entries = self.table.entries();
        let Some(entry) = entries.get_mut(&self.key) else { return };
        entry.responses -= 1;
        entry.sharing -= usize::from(self.whole.is_some());
        let unused = if entry.sharing == 0 { entry.whole.take() } else { None };
        if entry.responses == 0 {
            entries.remove(&self.key);
        }
        // The buffer may be deallocated here, which needs no lock.
        drop(entries);
        drop(unused);
    }
}

impl fmt::Debug for SharedRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedRead({}, {:?} bytes)", self.key.0, self.whole.as_ref().map(Bytes::len))
    }
}

/// The buffer of a value. Its bytes count until it is dropped, together with the last slice of it.
struct Buffer {
    bytes: BytesMut,
    /// Number of bytes that count against the limit.
    len: usize,
    table: Arc<Table>,
    _charge: Option<Charge>,
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.table.held_bytes.fetch_sub(self.len, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use numbers::Location;

    use super::*;

    const LEN: usize = 1000;
    const BYTES_MAX: usize = 3 * LEN;

    fn value(segment: u32) -> Value {
        Value { location: Location::new(segment, 64), len: LEN as u32, crc: 0 }
    }

    fn read(out: &mut BytesMut) -> Result<bool, ReadError> {
        out.extend_from_slice(&[7; LEN]);
        Ok(true)
    }

    fn never(_: &mut BytesMut) -> Result<bool, ReadError> {
        panic!("the value is not to be read")
    }

    /// Returns two responses that send the same value; the second one has read it for both.
    fn shared(values: &SharedValues, value: Value) -> (SharedRead, SharedRead) {
        let (first, mut second) = (values.join(value), values.join(value));
        second.fill(BYTES_MAX, None, read).expect("is read");
        (first, second)
    }

    #[test]
    fn the_second_response_reads_the_value_for_all_later_ones() {
        let (values, budget) = (SharedValues::default(), Budget::new(1 << 20));
        let mut first = values.join(value(1));
        first.fill(BYTES_MAX, Some(&budget), never).expect("it is alone");
        let mut second = values.join(value(1));
        second.fill(BYTES_MAX, Some(&budget), read).expect("is read");
        assert_eq!(second.whole().map(Bytes::len), Some(LEN));
        let mut third = values.join(value(1));
        third.fill(BYTES_MAX, Some(&budget), never).expect("it shares");
        let place = |read: &SharedRead| read.whole().map(|whole| whole.as_ptr());
        assert!(place(&third).is_some() && place(&third) == place(&second));
        // The first response has begun to read in parts, and goes on with that.
        first.fill(BYTES_MAX, Some(&budget), never).expect("it does not share");
        assert_eq!((first.whole(), values.join(value(2)).whole()), (None, None));
        assert_eq!((values.held_bytes(), budget.held_bytes()), (LEN, LEN));
        drop((second, third));
        assert_eq!((values.held_bytes(), budget.held_bytes()), (0, 0), "no response sends the buffer");
        assert!(values.join(value(1)).whole().is_none());
        drop(first);
        assert!(values.0.entries().is_empty());
    }

    #[test]
    fn a_buffer_counts_until_its_last_slice_is_gone() {
        let values = SharedValues::default();
        let (first, second) = shared(&values, value(1));
        let slice = second.whole().expect("is shared").slice(..10);
        drop((first, second));
        assert!(values.0.entries().is_empty());
        assert_eq!(values.held_bytes(), LEN);
        drop(slice);
        assert_eq!(values.held_bytes(), 0);
    }

    #[test]
    fn what_exceeds_the_limit_is_not_shared() {
        let values = SharedValues::default();
        let mut held: Vec<_> = (0..3).map(|n| shared(&values, value(n))).collect();
        assert_eq!(values.held_bytes(), BYTES_MAX);
        let (_first, mut second) = (values.join(value(9)), values.join(value(9)));
        second.fill(BYTES_MAX, None, never).expect("there is no space");
        assert!(second.whole().is_none());
        held.pop();
        second.fill(BYTES_MAX, None, read).expect("is read");
        assert!(second.whole().is_some());
        let budget = Budget::new(2 * LEN - 1);
        let _charge = budget.charge(LEN);
        held.clear();
        let (_first, mut second) = (values.join(value(8)), values.join(value(8)));
        second.fill(BYTES_MAX, Some(&budget), never).expect("clients need the memory");
        let long = Value { len: VALUE_BYTES_MAX as u32 + 1, ..value(10) };
        let (_first, mut second) = (values.join(long), values.join(long));
        second.fill(usize::MAX, None, never).expect("it is too long");
    }

    #[test]
    fn a_value_that_cannot_be_read_is_not_shared() {
        let values = SharedValues::default();
        let (_first, mut second) = (values.join(value(1)), values.join(value(1)));
        second.fill(BYTES_MAX, None, |_| Ok(false)).expect("it is not in memory");
        assert!(second.whole().is_none());
        let failed = second.fill(BYTES_MAX, None, |_| Err(ReadError::Moved));
        assert_eq!((failed, values.held_bytes()), (Err(ReadError::Moved), 0));
        second.fill(BYTES_MAX, None, read).expect("is read");
        assert!(second.whole().is_some());
    }

    #[test]
    fn while_one_response_reads_the_value_another_does_not() {
        let values = SharedValues::default();
        let (_first, mut second) = (values.join(value(1)), values.join(value(1)));
        let mut third = None;
        let filled = second.fill(BYTES_MAX, None, |out| {
            let mut other = values.join(value(1));
            other.fill(BYTES_MAX, None, never)?;
            third = Some(other);
            read(out)
        });
        assert_eq!(filled, Ok(()));
        assert!(second.whole().is_some() && third.is_some_and(|third| third.whole().is_none()));
        assert_eq!(values.held_bytes(), LEN);
    }
}
