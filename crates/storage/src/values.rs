//! Reads values from the log, with a small cache of values that are read repeatedly.
//!
//! Threads that may wait for a disk read through [`LogValues`]. Shards (the threads that serve clients) and
//! the core (the thread that applies log entries) must not wait. A shard makes an [`Attempt`] to build a
//! response from the values that are in memory; if some are missing, the reader threads fetch them, and the
//! shard builds the response again. The core reads through [`AtHand`]: an entry that needs missing values is
//! applied only after they have been fetched, and the entries after it wait for it.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use accounting::{Account, Charge, Held};
use api::{Code, Status};
use bytes::{BufMut, Bytes, BytesMut};
use log::Compressed;
use machine::{ReadError, Values};
use mvcc::{Value, Version};
use numbers::Location;

use crate::buffers::{BUFFER_BYTES_MAX, Buffer};
use crate::readers::{ReadValue, Readers, Reading, place_of};
use crate::shared_values::SharedRead;

/// Number of slots in the cache of values; a power of two.
const SLOTS: usize = 4096;
/// Maximum size in bytes of a value that is cached. A larger value is not cached, because copying it takes as
/// long as reading it.
const CACHED_BYTES_MAX: u32 = 2048;
/// Number of slots in the table of large values whose checksum was verified; a power of two.
const CHECKED_SLOTS: usize = 1024;
/// Maximum number of failed reads from memory in one pass (one run of the code that builds a result). After
/// that, the pass records its other values as missing without checking whether they are in memory.
const MISSES_PER_PASS: usize = 16;
/// Number of passes after which every value that has not been fetched is recorded as missing without checking
/// whether it is in memory. Otherwise the number of passes would have no limit, because the operating system
/// can evict pages between two passes.
const PASSES_WITH_QUESTIONS: u32 = 3;

/// Minimum size, in bytes, that [`Attempt::piece_bytes`] returns for a chunk of a response if values of the
/// chunk have to be fetched, so that several values are fetched together.
const FETCHED_PIECE_BYTES: usize = 64 << 10;

/// Returns the status with which a call fails if a value cannot be read.
pub fn unreadable(error: &ReadError) -> Status {
    Status::with(Code::Internal, format!("mainstay: a value could not be read: {error}"))
}

/// Reader of values for one thread.
///
/// Reading a value from the log costs a system call and the computation of a checksum. A value is cached when
/// it is read twice before another value of the same cache slot is read. So a value that is read frequently
/// costs neither. The bytes at a location in the log never change, so cached values are never stale.
pub struct LogValues {
    log: log::Values,
    /// Threads that fetch values that are not in memory. If `None`, the calling thread itself waits for the
    /// disk.
    readers: Option<Arc<Readers>>,
    cache: RefCell<Vec<Cached>>,
    /// Locations of large values whose checksum was verified, see [`Attempt::check`].
    checked: RefCell<Vec<u64>>,
}

#[derive(Clone, Default)]
struct Cached {
    /// Location of the value that last missed this slot, or that is cached in it.
    place: u64,
    bytes: Option<Bytes>,
}

impl LogValues {
    /// Returns a reader for a thread that may wait for a disk.
    pub fn new(log: log::Values) -> LogValues {
        LogValues {
            log,
            readers: None,
            cache: RefCell::new(vec![Cached::default(); SLOTS]),
            checked: RefCell::new(vec![0; CHECKED_SLOTS]),
        }
    }

    /// Returns a reader for a thread that must not wait for a disk and reads through [`Attempt`].
    pub fn fetched_by(readers: &Arc<Readers>, log: log::Values) -> LogValues {
        LogValues { readers: Some(Arc::clone(readers)), ..LogValues::new(log) }
    }

    /// Fetches values for the core, before those of all clients. Returns `None` if this reader has no threads
    /// that could fetch them.
    pub fn fetch_first(&self, values: &[Value]) -> Option<Reading> {
        self.readers.as_ref().map(|readers| readers.read_first(values))
    }

    /// Fills `into` with the bytes of the log from a location on, and returns their number. Returns 0 if the
    /// read would have to wait for a disk and this thread must not wait. Used by [`crate::read_ahead`].
    pub(crate) fn read_ahead(&self, from: Location, into: &mut [u8]) -> usize {
        self.log.read_ahead(from, into, self.readers.is_none())
    }

    /// Appends a value to `out` if `bytes`, which [`LogValues::read_ahead`] has read from the value's location
    /// on, contain it; otherwise returns false. Used by [`crate::read_ahead`].
    pub(crate) fn take_from(&self, value: Value, bytes: &[u8], out: &mut BytesMut) -> bool {
        self.log.take_from(&wanted(value), bytes, out)
    }

    /// Reads a compressed value as it is stored. Waits for a disk.
    ///
    /// # Errors
    ///
    /// As for [`log::Values::read_frame`].
    pub(crate) fn read_frame(&self, version: Version<'_>) -> Result<(Bytes, Compressed), log::ReadError> {
        self.log.read_frame(&wanted(version.value()))
    }

    fn read_log(&self, value: Value, out: &mut BytesMut, waits: bool) -> Result<bool, ReadError> {
        let location = value.location;
        let read = if waits {
            self.log.read_into(location, value.len, value.crc, out).map(|()| true)
        } else {
            self.log.read_cached_into(location, value.len, value.crc, out)
        };
        read.map_err(read_error)
    }

    fn read(&self, value: Value, out: &mut BytesMut, waits: bool) -> Result<bool, ReadError> {
        if value.len == 0 {
            // An empty value has no location and no bytes to read.
            return Ok(true);
        }
        if value.len > CACHED_BYTES_MAX {
            return self.read_log(value, out, waits);
        }
        let place = place_of(value);
        let mut cache = self.cache.borrow_mut();
        let slot = &mut cache[slot_of(place, SLOTS)];
        if slot.place == place
            && let Some(bytes) = &slot.bytes
            && bytes.len() == value.len as usize
        {
            out.put_slice(bytes);
            return Ok(true);
        }
        let start = out.len();
        if !self.read_log(value, out, waits)? {
            return Ok(false);
        }
        slot.bytes = (slot.place == place).then(|| Bytes::copy_from_slice(&out[start..]));
        slot.place = place;
        Ok(true)
    }
}

/// Returns the slot of a location in a table of `slots` slots.
fn slot_of(place: u64, slots: usize) -> usize {
    // Fibonacci hashing: the highest bits of the product are the slot, which distributes neighboring
    // locations over the slots.
    (place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - slots.trailing_zeros())) as usize
}

fn wanted(value: Value) -> log::Wanted {
    log::Wanted { location: value.location, len: value.len, crc: value.crc }
}

fn read_error(error: log::ReadError) -> ReadError {
    match error {
        log::ReadError::Moved => ReadError::Moved,
        other => ReadError::Failed(other.to_string()),
    }
}

impl Values for LogValues {
    fn read_into(&self, value: Value, out: &mut BytesMut) -> Result<(), ReadError> {
        self.read(value, out, true).map(|_| ())
    }
}

/// Source of the values of an [`Attempt`].
pub trait Source {
    /// Appends the bytes of a value to `out` if they are in memory, and returns true. Otherwise returns
    /// false, and leaves `out` unchanged.
    ///
    /// # Errors
    ///
    /// Returns the errors that [`ReadError`] lists.
    fn read_at_hand(&self, value: Value, out: &mut BytesMut) -> Result<bool, ReadError>;

    /// Verifies the checksum of a value if its bytes are in memory. Returns false if they have to be fetched.
    ///
    /// # Errors
    ///
    /// Returns the errors that [`ReadError`] lists.
    fn check_at_hand(&self, value: Value) -> Result<bool, ReadError> {
        self.read_at_hand(value, &mut BytesMut::new())
    }

    /// Remembers that a value is intact, so that [`Source::check_at_hand`] does not read it again for some
    /// time.
    fn trust(&self, _value: Value) {}

    /// Forgets that a value is intact, so that the next check reads its bytes.
    fn distrust(&self, _value: Value) {}

    /// Returns false if the operating system cannot tell whether the bytes of this value are in memory. A
    /// read without waiting then never finds the value, even directly after it was fetched.
    fn tells_at_hand(&self, _value: Value) -> bool {
        true
    }

    /// Fills `part` with the bytes of a value from its byte `from` on, without verifying the checksum, if
    /// they are in memory. Returns false if they have to be fetched; `part` is then undefined.
    ///
    /// # Errors
    ///
    /// Returns the errors that [`ReadError`] lists.
    fn read_part_at_hand(&self, value: Value, from: usize, part: &mut [u8]) -> Result<bool, ReadError> {
        let mut whole = BytesMut::new();
        let is_at_hand = self.read_at_hand(value, &mut whole)?;
        if is_at_hand {
            part.copy_from_slice(&whole[from..from + part.len()]);
        }
        Ok(is_at_hand)
    }

    /// Notes that a response begins to send a large value, so that other responses can share it. Returns
    /// `None` if this source's values are not shared.
    fn join(&self, _value: Value) -> Option<SharedRead> {
        None
    }

    /// Reads a large value for all responses that send it at the same time, if there are others, the value is
    /// in memory and there is space ([`SharedRead::fill`]).
    ///
    /// # Errors
    ///
    /// Returns the errors that [`ReadError`] lists.
    fn fill(&self, _shared: &mut SharedRead, _value: Value) -> Result<(), ReadError> {
        Ok(())
    }

    /// Fetches values that are not in memory. Returns `None` if this source has no threads that could fetch
    /// them.
    fn fetch(&self, values: &[Value]) -> Option<Reading>;
}

impl Source for LogValues {
    fn read_at_hand(&self, value: Value, out: &mut BytesMut) -> Result<bool, ReadError> {
        self.read(value, out, self.readers.is_none())
    }

    fn check_at_hand(&self, value: Value) -> Result<bool, ReadError> {
        let place = place_of(value);
        if self.checked.borrow()[slot_of(place, CHECKED_SLOTS)] == place {
            return Ok(true);
        }
        if let Some(account) = Account::of_turn() {
            account.looked_at(value.len as usize);
        }
        let mut buffer = Buffer::take(BUFFER_BYTES_MAX);
        let waits = self.readers.is_none();
        let is_whole = self.log.check(wanted(value), buffer.bytes_mut(), waits).map_err(read_error)?;
        if is_whole {
            self.trust(value);
        }
        Ok(is_whole)
    }

    fn trust(&self, value: Value) {
        let place = place_of(value);
        self.checked.borrow_mut()[slot_of(place, CHECKED_SLOTS)] = place;
    }

    fn distrust(&self, value: Value) {
        self.checked.borrow_mut()[slot_of(place_of(value), CHECKED_SLOTS)] = 0;
    }

    fn tells_at_hand(&self, value: Value) -> bool {
        self.log.tells_cached(value.location)
    }

    fn read_part_at_hand(&self, value: Value, from: usize, part: &mut [u8]) -> Result<bool, ReadError> {
        self.log.read_part(wanted(value), from, part, self.readers.is_none()).map_err(read_error)
    }

    fn join(&self, value: Value) -> Option<SharedRead> {
        self.readers.as_ref().map(|readers| readers.join(value))
    }

    fn fill(&self, shared: &mut SharedRead, value: Value) -> Result<(), ReadError> {
        let Some(readers) = &self.readers else { return Ok(()) };
        readers.fill(shared, |out| {
            if let Some(account) = Account::of_turn() {
                account.looked_at(value.len as usize);
            }
            self.read_log(value, out, false)
        })
    }

    fn fetch(&self, values: &[Value]) -> Option<Reading> {
        self.readers.as_ref().map(|readers| readers.read(values))
    }
}

/// An attempt to build a result from values without waiting for a disk.
///
/// A value that is not in memory is read as zeros of its length, and recorded as missing. If values are
/// missing, the caller drops the result, lets the missing values be fetched, and builds the result again.
pub struct Attempt {
    source: Rc<dyn Source>,
    passes: u32,
    /// Fetched values in ascending order of location.
    arrived: Vec<ReadValue>,
    arrived_bytes: usize,
    charged: Charged,
    missing: RefCell<Vec<Value>>,
    /// Number of values that were not in memory in this pass.
    misses: Cell<usize>,
    reading: Option<Reading>,
}

impl Attempt {
    /// Returns an attempt for the first pass.
    pub fn new(source: Rc<dyn Source>) -> Attempt {
        Attempt {
            source,
            passes: 0,
            arrived: Vec::new(),
            arrived_bytes: 0,
            charged: Charged::NO_ONE,
            missing: RefCell::default(),
            misses: Cell::new(0),
            reading: None,
        }
    }

    /// Returns true if no value was missing in this pass, so that the result that was built is valid, even if
    /// it is an error.
    pub fn is_complete(&self) -> bool {
        self.missing.borrow().is_empty() || planted::is(planted::Bug::AnsweredWithoutValues)
    }

    /// Returns the size of the next chunk of a response to a client that reads `wanted` bytes. If a value of
    /// the chunk has to be fetched, the size is at least 64 KiB, so that a client that reads one byte at a
    /// time does not cause a disk read for each byte. The caller must call this after each value, because the
    /// result can change with the value.
    pub fn piece_bytes(&self, wanted: usize) -> usize {
        let fetches = !self.arrived.is_empty() || !self.missing.borrow().is_empty();
        if fetches { wanted.max(FETCHED_PIECE_BYTES) } else { wanted }
    }

    /// Returns true if a value is intact, or was intact when it was last verified; its bytes are possibly not
    /// in memory now. Returns false, and records the value as missing, if it has to be fetched to be
    /// verified.
    ///
    /// # Errors
    ///
    /// Returns an error if the value is damaged, has moved or cannot be read.
    pub fn check(&self, value: Value) -> Result<bool, ReadError> {
        match self.fetched_value(value) {
            Some(arrived) => {
                self.noted(value, arrived)?;
                // The value is intact, because the reader threads verify the checksum of each value that they
                // fetch.
                self.source.trust(value);
                Ok(true)
            }
            None => self.unless_missing(value, || self.source.check_at_hand(value)),
        }
    }

    /// Returns true if a value was fetched and was not dropped since.
    pub fn has_fetched(&self, value: Value) -> bool {
        self.fetched_value(value).is_some()
    }

    /// Returns false if the operating system cannot tell whether the bytes of this value are in memory. A
    /// fetched value that [`Attempt::forget`] has dropped then has to be fetched again, even if it is needed
    /// immediately.
    pub fn tells_at_hand(&self, value: Value) -> bool {
        self.source.tells_at_hand(value)
    }

    /// Begins to send a large value. Returns true if the value is intact, as [`Attempt::check`] does; `false`
    /// if it has to be fetched. Sets `shared` to the response's part in the values that several responses
    /// send at the same time, which the caller keeps until the value is sent.
    ///
    /// # Errors
    ///
    /// Returns an error if the value is damaged, has moved or cannot be read.
    pub fn begin(&self, value: Value, shared: &mut Option<SharedRead>) -> Result<bool, ReadError> {
        let mut joined = self.source.join(value);
        if let Some(joined) = &mut joined {
            self.noted(value, self.source.fill(joined, value))?;
        }
        // A value in a buffer is verified already.
        let is_verified = joined.as_ref().is_some_and(|joined| joined.whole().is_some());
        let is_intact = is_verified || self.check(value)?;
        *shared = joined;
        Ok(is_intact)
    }

    /// Makes the next [`Attempt::check`] of a value read its bytes again.
    pub fn distrust(&self, value: Value) {
        self.source.distrust(value);
    }

    /// Fills `part` with the bytes of a value from its byte `from` on. Returns false, and records the value
    /// as missing, if it has to be fetched. The bytes are not verified, because the checksum covers the whole
    /// value.
    ///
    /// # Errors
    ///
    /// Returns an error if the value has moved or cannot be read.
    pub fn read_part(&self, value: Value, from: usize, part: &mut [u8]) -> Result<bool, ReadError> {
        match self.fetched_value(value) {
            Some(arrived) => {
                part.copy_from_slice(&self.noted(value, arrived)?[from..from + part.len()]);
                Ok(true)
            }
            None => self.unless_missing(value, || self.source.read_part_at_hand(value, from, part)),
        }
    }

    /// Returns the bytes of a fetched value, or the error of fetching it; `None` if it was not fetched.
    fn fetched_value(&self, value: Value) -> Option<Result<&Bytes, ReadError>> {
        let at = self.arrived.binary_search_by_key(&place_of(value), |(place, _)| *place).ok()?;
        self.arrived.get(at).map(|(_, read)| read.as_ref().map_err(Clone::clone))
    }

    /// Returns `fetched` unchanged. If it is an error, also makes the source forget that the value was
    /// intact.
    fn noted<T>(&self, value: Value, fetched: Result<T, ReadError>) -> Result<T, ReadError> {
        if fetched.is_err() {
            self.source.distrust(value);
        }
        fetched
    }

    fn unless_missing(
        &self,
        value: Value,
        look: impl FnOnce() -> Result<bool, ReadError>,
    ) -> Result<bool, ReadError> {
        if self.passes < PASSES_WITH_QUESTIONS && look()? {
            return Ok(true);
        }
        self.missing.borrow_mut().push(value);
        Ok(false)
    }

    /// Returns the number of values that were missing in this pass.
    pub fn missing(&self) -> usize {
        self.missing.borrow().len()
    }

    /// Fetches the missing values. Ready when all of them have arrived.
    pub fn poll_fetched(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.reading.is_none() {
            let missing = self.missing.take();
            self.misses.set(0);
            if missing.is_empty() {
                return Poll::Ready(());
            }
            self.passes += 1;
            self.reading = self.source.fetch(&missing);
        }
        let Some(reading) = &mut self.reading else { return Poll::Ready(()) };
        let polled = Pin::new(&mut *reading).poll(context);
        // The charges (memory reservations) are taken even if the reading is not complete, so that the values
        // that have arrived so far are charged to the connection's memory account.
        self.charged.take(reading.take_charges());
        let Poll::Ready(arrived) = polled else { return Poll::Pending };
        self.reading = None;
        self.arrived_bytes += arrived.iter().flat_map(|(_, read)| read).map(Bytes::len).sum::<usize>();
        self.arrived.extend(arrived);
        // `fetched_value` needs the values in ascending order of location.
        self.arrived.sort_by_key(|(place, _)| *place);
        Poll::Ready(())
    }

    /// Waits until the missing values are fetched; see [`Attempt::poll_fetched`].
    pub async fn fetched(&mut self) {
        poll_fn(|context| self.poll_fetched(context)).await;
    }

    /// Makes the next passes check again whether missing values are in memory, because they may be now.
    pub fn ask_again(&mut self) {
        self.passes = 0;
    }

    /// Returns the total bytes of the fetched values.
    pub fn arrived_bytes(&self) -> usize {
        self.arrived_bytes
    }

    /// Drops the memory reservations for the fetched values. Called by an owner of the attempt that reserves
    /// the memory of these values itself.
    pub fn drop_charges(&mut self) {
        self.charged = Charged::NO_ONE;
    }

    /// Drops the fetched values and their memory reservations, and starts to count the passes from 0 again.
    pub fn forget(&mut self) {
        (self.passes, self.arrived, self.arrived_bytes) = (0, Vec::new(), 0);
        self.charged = Charged::NO_ONE;
    }
}

/// The memory reservations (charges) for the values that an [`Attempt`] has received from the reader threads.
/// The reader threads reserve the bytes only in the total of all clients. This type moves the reservation to
/// the memory account of the connection that needs the values, if one is known. Otherwise, if such values
/// exceeded the memory budget, the server would close other connections, because their accounts would show
/// more memory.
enum Charged {
    /// Reserved for no connection, because the values were received while no connection's work was running.
    ToNoOne(Vec<Charge>),
    /// Reserved for the connection whose work was running when the values were received.
    ToConnection(Held),
}

impl Charged {
    const NO_ONE: Charged = Charged::ToNoOne(Vec::new());

    /// Adds the reservations for values that were received from the reader threads.
    fn take(&mut self, mut taken: Vec<Charge>) {
        if taken.is_empty() {
            return;
        }
        if let Charged::ToNoOne(before) = self
            && let Some(account) = Account::of_turn()
        {
            taken.append(before);
            *self = Charged::ToConnection(account.hold(0));
        }
        match self {
            Charged::ToNoOne(charges) => charges.extend(taken),
            Charged::ToConnection(held) => {
                let bytes: usize = taken.iter().map(Charge::bytes).sum();
                drop(taken);
                held.set(held.bytes() + bytes);
            }
        }
    }
}

impl Values for Attempt {
    fn read_into(&self, value: Value, out: &mut BytesMut) -> Result<(), ReadError> {
        if value.len == 0 {
            return Ok(());
        }
        if !self.arrived.is_empty()
            && let Some(arrived) = self.fetched_value(value)
        {
            out.put_slice(arrived?);
            return Ok(());
        }
        if self.misses.get() < MISSES_PER_PASS && self.passes < PASSES_WITH_QUESTIONS {
            if self.source.read_at_hand(value, out)? {
                return Ok(());
            }
            self.misses.set(self.misses.get() + 1);
        }
        self.missing.borrow_mut().push(value);
        out.resize(out.len() + value.len as usize, 0);
        Ok(())
    }
}

/// Reader of values for the core while it applies an entry. If a value is not in memory, applying the entry
/// fails with [`ReadError::NotAtHand`] before it has changed anything, and the core repeats it after the
/// value was fetched.
pub struct AtHand<'a> {
    source: &'a LogValues,
    /// Fetched values in ascending order of location.
    arrived: &'a [ReadValue],
    missing: RefCell<Vec<Value>>,
}

impl<'a> AtHand<'a> {
    /// Returns a reader of the values in `source` and in `arrived`, which is in ascending order of location.
    pub fn new(source: &'a LogValues, arrived: &'a [ReadValue]) -> AtHand<'a> {
        AtHand { source, arrived, missing: RefCell::default() }
    }

    /// Returns the values that were not in memory.
    pub fn into_missing(self) -> Vec<Value> {
        self.missing.into_inner()
    }
}

impl Values for AtHand<'_> {
    fn read_into(&self, value: Value, out: &mut BytesMut) -> Result<(), ReadError> {
        if !self.arrived.is_empty()
            && let Ok(at) = self.arrived.binary_search_by_key(&place_of(value), |(place, _)| *place)
            && let Some((_, read)) = self.arrived.get(at)
        {
            out.put_slice(read.as_ref().map_err(Clone::clone)?);
            return Ok(());
        }
        if value.len == 0 || self.source.read_at_hand(value, out)? {
            return Ok(());
        }
        self.missing.borrow_mut().push(value);
        Err(ReadError::NotAtHand)
    }
}

/// Calls `make`, fetches the values that it lacked, and repeats that until none is missing. Returns the last
/// result of `make`.
pub async fn made<T>(source: Rc<dyn Source>, mut make: impl FnMut(&Attempt) -> T) -> T {
    let mut attempt = Attempt::new(source);
    loop {
        let made = make(&attempt);
        if attempt.is_complete() {
            return made;
        }
        drop(made);
        attempt.fetched().await;
    }
}
