//! Reading values from the log, with a small cache of those read again and again.
//!
//! Threads that may wait for a disk read by [`LogValues`]. Shards and the core may not. Shards make an [`Attempt`] with
//! what is at hand, and if that was not enough, have the rest fetched and make it again. The core reads what is
//! [`AtHand`]; an entry that needs more waits until it was fetched, and the entries behind it with it.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use api::{Code, Status};
use bytes::{BufMut, Bytes, BytesMut};
use front::{Account, Charge, Held};
use machine::{ReadError, Values};
use mvcc::Value;
use numbers::Location;

use crate::buffers::{BUFFER_BYTES_MAX, Buffer};
use crate::readers::{Arrived, Readers, Reading, place_of};

/// Places in the cache; a power of two.
const SLOTS: usize = 4096;
/// Larger values are not kept: copying them costs as much as reading them.
const CACHED_BYTES_MAX: u32 = 2048;
/// Places of large values that were checked, which are remembered; a power of two.
const CHECKED_SLOTS: usize = 1024;
/// After this many values of a pass that are not at hand, the others are not tried one by one: the readers find out.
const MISSES_PER_PASS: usize = 16;
/// After this many passes every value is fetched, so that pages which the system evicts between two passes do not lead to
/// endless passes.
const PASSES_WITH_QUESTIONS: u32 = 3;

/// Bytes of an answer that is made in pieces for which values are fetched together; the last value may go beyond them.
const FETCHED_PIECE_BYTES: usize = 64 << 10;

/// The status of a value that the disk did not give back.
pub fn unreadable(error: &ReadError) -> Status {
    Status::with(Code::Internal, format!("mainstay: a value could not be read: {error}"))
}

/// One thread's reader of values.
///
/// A read costs a system call and a checksum. A value that is read twice in a row from among those that share its
/// place in the cache stays there, so hot keys cost neither. A place in the log never holds other bytes, so nothing
/// is ever out of date.
pub struct LogValues {
    log: log::Values,
    /// Threads that fetch values which are not at hand; without them this thread waits for the disk itself.
    readers: Option<Arc<Readers>>,
    cache: RefCell<Vec<Cached>>,
    /// Places of large values that were whole when they were read, see [`Attempt::check`].
    checked: RefCell<Vec<u64>>,
}

#[derive(Clone, Default)]
struct Cached {
    /// The place last missed or held.
    place: u64,
    bytes: Option<Bytes>,
}

impl LogValues {
    /// A reader of its own for this thread, which may wait for a disk.
    pub fn new(log: log::Values) -> LogValues {
        LogValues {
            log,
            readers: None,
            cache: RefCell::new(vec![Cached::default(); SLOTS]),
            checked: RefCell::new(vec![0; CHECKED_SLOTS]),
        }
    }

    /// A reader of its own for a thread that must not wait for a disk, when it reads by [`Attempt`].
    pub fn fetched_by(readers: &Arc<Readers>, log: log::Values) -> LogValues {
        LogValues { readers: Some(Arc::clone(readers)), ..LogValues::new(log) }
    }

    /// Fetches values for the core, before what anybody else wants.
    pub fn fetch_first(&self, values: &[Value]) -> Option<Reading> {
        self.readers.as_ref().map(|readers| readers.read_first(values))
    }

    /// Fills `into` with what the log holds from a location on, and returns how much that is: nothing if a disk would have to be
    /// waited for, and this thread may not. For [`crate::read_ahead`].
    pub(crate) fn read_ahead(&self, from: Location, into: &mut [u8]) -> usize {
        self.log.read_ahead(from, into, self.readers.is_none())
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
            // An empty value lies nowhere.
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

/// The slot of a place in a table of so many.
fn slot_of(place: u64, slots: usize) -> usize {
    // Fibonacci hashing: the top bits of the product spread neighbouring places.
    (place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - slots.trailing_zeros())) as usize
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

/// The source of the values of an [`Attempt`].
pub trait Source {
    /// Appends the bytes of a value to `out`, if they are at hand. `false`, and `out` as it was, if they have to be
    /// fetched.
    ///
    /// # Errors
    ///
    /// See [`ReadError`].
    fn read_at_hand(&self, value: Value, out: &mut BytesMut) -> Result<bool, ReadError>;

    /// Checks the bytes of a value against its checksum, if they are at hand. `false` if they have to be fetched.
    ///
    /// # Errors
    ///
    /// See [`ReadError`].
    fn check_at_hand(&self, value: Value) -> Result<bool, ReadError> {
        self.read_at_hand(value, &mut BytesMut::new())
    }

    /// Takes note that a value was found whole, so that [`Source::check_at_hand`] need not read it for some time.
    fn trust(&self, _value: Value) {}

    /// Has the value checked by its bytes the next time, whatever is remembered of it.
    fn distrust(&self, _value: Value) {}

    /// Returns false if a value that was found not to be at hand never will be, even right after it was fetched.
    fn tells_at_hand(&self, _value: Value) -> bool {
        true
    }

    /// Fills `part` with the bytes of a value from its byte `from` on, unchecked, if they are at hand. `false`, and `part`
    /// holds anything, if they have to be fetched.
    ///
    /// # Errors
    ///
    /// See [`ReadError`].
    fn read_part_at_hand(&self, value: Value, from: usize, part: &mut [u8]) -> Result<bool, ReadError> {
        let mut whole = BytesMut::new();
        let is_at_hand = self.read_at_hand(value, &mut whole)?;
        if is_at_hand {
            part.copy_from_slice(&whole[from..from + part.len()]);
        }
        Ok(is_at_hand)
    }

    /// Fetches values that are not at hand; `None` if there are none such here.
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
        let (location, waits) = (value.location, self.readers.is_none());
        let is_whole =
            self.log.check(location, value.len, value.crc, buffer.bytes_mut(), waits).map_err(read_error)?;
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
        let (location, waits) = (value.location, self.readers.is_none());
        self.log.read_part(location, value.len, from, part, waits).map_err(read_error)
    }

    fn fetch(&self, values: &[Value]) -> Option<Reading> {
        self.readers.as_ref().map(|readers| readers.read(values))
    }
}

/// One attempt to make something from values without waiting for a disk.
///
/// A value that is not at hand reads as zeros of its length, and is noted. If the attempt is not complete, its caller
/// drops what it made, has the values fetched, and makes it again.
pub struct Attempt {
    source: Rc<dyn Source>,
    passes: u32,
    /// Fetched values, by ascending location.
    arrived: Vec<Arrived>,
    arrived_bytes: usize,
    charged: Charged,
    missing: RefCell<Vec<Value>>,
    /// Number of values of this pass that were not at hand.
    misses: Cell<usize>,
    reading: Option<Reading>,
}

impl Attempt {
    /// The first.
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

    /// Returns true if all was at hand, so that what was made is what it should be, errors included.
    pub fn is_complete(&self) -> bool {
        self.missing.borrow().is_empty() || planted::is(planted::Bug::AnsweredWithoutValues)
    }

    /// Returns the size of the next piece of an answer for a client that takes `wanted` bytes: a whole piece if a value
    /// of it has to be fetched, so that a client that takes a byte at a time does not cost a disk read for each. Called
    /// after each value.
    pub fn piece_bytes(&self, wanted: usize) -> usize {
        let fetches = !self.arrived.is_empty() || !self.missing.borrow().is_empty();
        if fetches { wanted.max(FETCHED_PIECE_BYTES) } else { wanted }
    }

    /// Returns true if a value is whole, or was when it was read last: that is remembered for some time, and says nothing of
    /// where its bytes are now. Returns false, and the value is noted as missing, if it has to be fetched to be checked.
    ///
    /// # Errors
    ///
    /// When it is damaged, moved or cannot be read.
    pub fn check(&self, value: Value) -> Result<bool, ReadError> {
        match self.fetched_value(value) {
            Some(arrived) => {
                self.noted(value, arrived)?;
                // Readers check what they fetch.
                self.source.trust(value);
                Ok(true)
            }
            None => self.unless_missing(value, || self.source.check_at_hand(value)),
        }
    }

    /// Returns true if a value was fetched and is held.
    pub fn has_fetched(&self, value: Value) -> bool {
        self.fetched_value(value).is_some()
    }

    /// Returns false if a value that was fetched will not be at hand once [`Attempt::forget`] drops it, however soon it is asked for.
    pub fn tells_at_hand(&self, value: Value) -> bool {
        self.source.tells_at_hand(value)
    }

    /// Has the next [`Attempt::check`] of a value look at its bytes.
    pub fn distrust(&self, value: Value) {
        self.source.distrust(value);
    }

    /// Fills `part` with the bytes of a value from its byte `from` on; false, and the value is noted as missing, if it has to
    /// be fetched. They are not checked: the checksum is that of the whole.
    ///
    /// # Errors
    ///
    /// When the value is moved or cannot be read.
    pub fn read_part(&self, value: Value, from: usize, part: &mut [u8]) -> Result<bool, ReadError> {
        match self.fetched_value(value) {
            Some(arrived) => {
                part.copy_from_slice(&self.noted(value, arrived)?[from..from + part.len()]);
                Ok(true)
            }
            None => self.unless_missing(value, || self.source.read_part_at_hand(value, from, part)),
        }
    }

    /// What was fetched of a value.
    fn fetched_value(&self, value: Value) -> Option<Result<&Bytes, ReadError>> {
        let at = self.arrived.binary_search_by_key(&place_of(value), |(place, _)| *place).ok()?;
        self.arrived.get(at).map(|(_, read)| read.as_ref().map_err(Clone::clone))
    }

    /// Takes note that a value which may be remembered as whole could not be fetched.
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

    /// Resolves when what was missing was fetched.
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
        // Also of what is not complete yet.
        self.charged.take(reading.take_charges());
        let Poll::Ready(arrived) = polled else { return Poll::Pending };
        self.reading = None;
        self.arrived_bytes += arrived.iter().flat_map(|(_, read)| read).map(Bytes::len).sum::<usize>();
        self.arrived.extend(arrived);
        // They come after others that are in order.
        self.arrived.sort_by_key(|(place, _)| *place);
        Poll::Ready(())
    }

    /// See [`Attempt::poll_fetched`].
    pub async fn fetched(&mut self) {
        poll_fn(|context| self.poll_fetched(context)).await;
    }

    /// Tries the values again that were not at hand: they may be by now.
    pub fn ask_again(&mut self) {
        self.passes = 0;
    }

    /// Bytes of the values that were fetched.
    pub fn arrived_bytes(&self) -> usize {
        self.arrived_bytes
    }

    /// Charges nothing any more for what was fetched: the holder of the attempt does.
    pub fn drop_charges(&mut self) {
        self.charged = Charged::NO_ONE;
    }

    /// Drops the fetched values.
    pub fn forget(&mut self) {
        (self.passes, self.arrived, self.arrived_bytes) = (0, Vec::new(), 0);
        self.charged = Charged::NO_ONE;
    }
}

/// The holder of the charges for the values that an [`Attempt`] has taken from the readers, which charged them to no
/// connection. Without it a client could exceed the budget with them, and others that hold more by their accounts would
/// be closed.
enum Charged {
    /// No connection, since they were taken outside of a connection's turn.
    ToNoOne(Vec<Charge>),
    /// The connection in whose turn they were taken.
    ToConnection(Held),
}

impl Charged {
    const NO_ONE: Charged = Charged::ToNoOne(Vec::new());

    /// Charges what was taken from the readers now.
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

/// Values that are at hand, for the core, which applies an entry: it can stop before anything has changed, and go on once what is
/// missing was fetched.
pub struct AtHand<'a> {
    source: &'a LogValues,
    /// Fetched values, by ascending location.
    arrived: &'a [Arrived],
    missing: RefCell<Vec<Value>>,
}

impl<'a> AtHand<'a> {
    /// Reads values of `source`, and those in `arrived`, which are in ascending order of location.
    pub fn new(source: &'a LogValues, arrived: &'a [Arrived]) -> AtHand<'a> {
        AtHand { source, arrived, missing: RefCell::default() }
    }

    /// Returns the values that were not at hand.
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

/// Returns what `make` makes from values, calling it again until all that it needs has been fetched.
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
