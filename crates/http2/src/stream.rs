//! Stores the streams of one connection: [`Streams`] finds a stream by its identifier or key, [`Stream`] is
//! the state of one stream.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};
use std::sync::LazyLock;

use bytes::{Buf, Bytes};
use slab::Slab;

use crate::hpack::OwnedBlock;

/// Identifies a stream of one connection. It stays unique after the stream has ended: commands with the key
/// of an ended stream fail or do nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub(crate) slot: u32,
    pub(crate) id: u32,
}

impl Key {
    /// Returns a small number that no other open stream of the connection has. A caller can use it as an
    /// index into its own table. The numbers of streams that have ended are reused, which a caller can detect
    /// by [`Key::id`].
    pub fn slot(self) -> usize {
        self.slot as usize
    }

    /// Returns the stream identifier on the wire.
    pub fn id(self) -> u32 {
        self.id
    }
}

/// Size of gRPC's message prefix in bytes: a compression flag, and the length in four bytes.
pub(crate) const PREFIX_BYTES: usize = 5;

/// Part of a body to send: plain bytes, or a gRPC message or its beginning, whose prefix is stored
/// separately, so that the message need not be copied.
#[derive(Clone, Debug)]
pub struct Payload {
    prefix: [u8; PREFIX_BYTES],
    /// Number of bytes of `prefix` that do not belong to the payload, because they are already sent or were
    /// never present.
    at: u8,
    is_shared: bool,
    body: Bytes,
}

impl Payload {
    /// Creates a gRPC message: its prefix of five bytes, then `body`.
    ///
    /// # Panics
    ///
    /// If the message is 4 GiB or longer.
    pub fn message(body: Bytes, compressed: bool) -> Payload {
        Payload::message_start(body.len(), body, compressed)
    }

    /// Creates the beginning of a gRPC message of `len` bytes; the rest follows as plain bytes.
    ///
    /// # Panics
    ///
    /// If `len` is 4 GiB or more.
    pub fn message_start(len: usize, body: Bytes, compressed: bool) -> Payload {
        Payload { prefix: prefix(len, compressed), at: 0, is_shared: false, body }
    }

    /// Marks the payload as shared with other streams: while it is queued, its bytes are also counted
    /// separately ([`crate::Connection::queued_shared_bytes`]).
    #[must_use]
    pub fn shared(self) -> Payload {
        Payload { is_shared: true, ..self }
    }

    /// Returns the length in bytes if the payload is shared; otherwise 0.
    pub(crate) fn shared_len(&self) -> usize {
        if self.is_shared { self.len() } else { 0 }
    }

    /// Returns the length in bytes, including the prefix.
    pub fn len(&self) -> usize {
        PREFIX_BYTES - usize::from(self.at) + self.body.len()
    }

    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the unsent rest of the prefix, and the body.
    pub(crate) fn parts(&self) -> (&[u8], &Bytes) {
        (&self.prefix[usize::from(self.at)..], &self.body)
    }

    /// Splits off the first `bytes` bytes. Both parts share the memory of the body.
    pub(crate) fn split_to(&mut self, bytes: usize) -> Payload {
        let of_prefix = bytes.min(PREFIX_BYTES - usize::from(self.at));
        let end = self.at + of_prefix as u8;
        // The bytes of the prefix that the first part gets are stored at the end of its array, because `at`
        // counts the unused bytes from the front.
        let mut first = Payload {
            prefix: [0; PREFIX_BYTES],
            at: (PREFIX_BYTES - of_prefix) as u8,
            is_shared: self.is_shared,
            body: Bytes::new(),
        };
        let from = usize::from(first.at);
        first.prefix[from..].copy_from_slice(&self.prefix[usize::from(self.at)..usize::from(end)]);
        self.at = end;
        first.body = self.body.split_to(bytes - of_prefix);
        first
    }
}

/// Returns the prefix of an uncompressed gRPC message of `len` bytes.
///
/// # Panics
///
/// If `len` is 4 GiB or more.
pub fn message_prefix(len: usize) -> [u8; 5] {
    prefix(len, false)
}

/// Returns the prefix of a gRPC message of `len` bytes.
pub(crate) fn prefix(len: usize, compressed: bool) -> [u8; PREFIX_BYTES] {
    let len = u32::try_from(len).unwrap_or_else(|_| panic!("a message of {len} bytes has no prefix"));
    let [a, b, c, d] = len.to_be_bytes();
    [u8::from(compressed), a, b, c, d]
}

impl From<Bytes> for Payload {
    /// Creates a payload of plain bytes without a prefix.
    fn from(body: Bytes) -> Payload {
        Payload { prefix: [0; PREFIX_BYTES], at: PREFIX_BYTES as u8, is_shared: false, body }
    }
}

impl Buf for Payload {
    fn remaining(&self) -> usize {
        self.len()
    }

    fn chunk(&self) -> &[u8] {
        if usize::from(self.at) < PREFIX_BYTES { &self.prefix[usize::from(self.at)..] } else { &self.body }
    }

    fn advance(&mut self, bytes: usize) {
        let _gone = self.split_to(bytes);
    }
}

/// Entry of a stream's queue.
#[derive(Debug)]
pub(crate) enum Piece {
    Data { payload: Payload, end: bool },
    Trailers(Box<OwnedBlock>),
}

/// Data that is queued on a stream. Most streams have nothing queued, and so no value of this type.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    /// Number of body bytes in `queue`.
    pub(crate) bytes: usize,
    /// Number of those bytes whose payloads are shared with other streams.
    pub(crate) shared_bytes: usize,
    /// Queued payloads and trailers, first in, first out; empty only during an operation on the queue.
    pub(crate) queue: VecDeque<Piece>,
}

/// Number of bytes that a stream must still receive according to `content-length`; `u64::MAX` if the length
/// is unknown. This type takes half the memory of an `Option<u64>`, which matters because each open stream
/// has such a field. An announced length of `u64::MAX` is stored as `u64::MAX - 1`, which makes no
/// difference, because no body reaches such a length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContentLeft(u64);

impl ContentLeft {
    const UNKNOWN: u64 = u64::MAX;

    pub(crate) fn of(length: Option<u64>) -> ContentLeft {
        ContentLeft(length.map_or(ContentLeft::UNKNOWN, |length| length.min(ContentLeft::UNKNOWN - 1)))
    }

    /// Returns true if the length is known and bytes are still missing.
    pub(crate) fn is_short(self) -> bool {
        self.0 > 0 && self.0 != ContentLeft::UNKNOWN
    }

    /// Subtracts received bytes. Returns false if more bytes have arrived than were announced.
    pub(crate) fn came(&mut self, bytes: u64) -> bool {
        if self.0 == ContentLeft::UNKNOWN {
            return true;
        }
        let left = self.0.checked_sub(bytes);
        self.0 = left.unwrap_or(0);
        left.is_some()
    }
}

/// State of a stream that is not closed (RFC 9113, section 5.1).
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) id: u32,
    /// Number of the connection's turn in which the stream was opened.
    pub(crate) turn: u32,
    /// Receive window in bytes. Negative if this end's settings have reduced the window after the peer had
    /// already sent more.
    pub(crate) may_receive: i32,
    /// Number of data bytes that were passed to the consumer and not released yet.
    pub(crate) unreleased: u32,
    /// Difference between the send window and the initial window in the peer's settings. The difference is
    /// stored instead of the window, so that no stream has to be updated when the peer changes its settings.
    pub(crate) window_change: i32,
    /// Total number of body bytes that were moved to the output.
    pub(crate) sent: u64,
    /// Data that is queued on the stream; `None` if there is none.
    pub(crate) backlog: Option<Box<Backlog>>,
    pub(crate) content_left: ContentLeft,
    /// True once the peer has finished the stream.
    pub(crate) received_end: bool,
    /// True once this end has finished the stream.
    pub(crate) sent_end: bool,
    /// True once the head of the peer's message, not counting informational responses, was passed to the
    /// caller.
    pub(crate) received_head: bool,
    /// True once this end has sent the head of its message.
    pub(crate) sent_head: bool,
    /// True if the stream is in the connection's list of streams that are ready to send.
    pub(crate) is_ready: bool,
    /// True if the caller has asked to be notified when the stream can send again
    /// ([`crate::Connection::want_room`]).
    pub(crate) wants_room: bool,
    /// True for a HEAD request, whose response has no content, whatever `content-length` says (RFC 9110,
    /// section 8.6).
    pub(crate) is_head: bool,
}

impl Stream {
    /// Creates the state of a stream that was opened in the given turn and has neither sent nor received
    /// anything.
    pub(crate) fn new(id: u32, turn: u32, may_receive: i32) -> Stream {
        Stream {
            id,
            turn,
            may_receive,
            unreleased: 0,
            window_change: 0,
            sent: 0,
            backlog: None,
            content_left: ContentLeft::of(None),
            received_end: false,
            sent_end: false,
            received_head: false,
            sent_head: false,
            is_ready: false,
            wants_room: false,
            is_head: false,
        }
    }

    /// Returns the number of queued body bytes.
    pub(crate) fn queued(&self) -> usize {
        self.backlog.as_ref().map_or(0, |backlog| backlog.bytes)
    }

    /// Returns the queue entry that is sent next.
    pub(crate) fn first(&self) -> Option<&Piece> {
        self.backlog.as_ref()?.queue.front()
    }

    /// Returns the last queue entry.
    pub(crate) fn last(&self) -> Option<&Piece> {
        self.backlog.as_ref()?.queue.back()
    }

    /// Returns true if nothing is queued.
    pub(crate) fn is_empty(&self) -> bool {
        self.backlog.is_none()
    }
}

/// Hasher for stream identifiers. The identifiers are increasing odd numbers, but the peer chooses which
/// numbers it skips. They are multiplied by a secret number, so that the peer cannot choose identifiers whose
/// hashes collide.
#[derive(Default)]
pub(crate) struct Mixer(u64);

/// Secret multiplier for the hashes of stream identifiers, the same in all connections of the process; odd.
static SECRET: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one("stream identifiers") | 1);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }
    fn write_u32(&mut self, number: u32) {
        // Only the upper bits of the product depend on all bits of the number. The rotation moves some of
        // them to the lowest bits, because the map uses the lowest and the highest bits.
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(*SECRET).rotate_left(20);
    }
}

/// Key that belongs to no stream, because identifiers begin at 1.
const NO_KEY: Key = Key { slot: 0, id: 0 };

/// Open streams of a connection.
pub(crate) struct Streams {
    /// `None` until a stream is opened, and again when the connection is idle without streams, to save
    /// memory.
    tables: Option<Box<Tables>>,
    /// Key of the stream that was found last, which is compared first, because frames of one stream often
    /// follow each other; [`NO_KEY`] if there is none.
    last: Key,
    /// Number of slots that iterations over all streams have visited, for tests of their cost.
    #[cfg(test)]
    looks: std::cell::Cell<usize>,
}

impl Default for Streams {
    fn default() -> Streams {
        Streams {
            tables: None,
            last: NO_KEY,
            #[cfg(test)]
            looks: std::cell::Cell::default(),
        }
    }
}

/// Maximum number of slots that are searched linearly. For so few slots that is faster than a map, and needs
/// no additional memory.
const FEW: usize = 16;

struct Tables {
    slots: Slab<Stream>,
    /// Slots by stream identifier; `None` if the slab has at most [`FEW`] slots, used or not.
    #[expect(clippy::box_collection, reason = "most connections have few places, and three words less")]
    by_id: Option<Box<HashMap<u32, u32, BuildHasherDefault<Mixer>>>>,
}

impl Default for Tables {
    fn default() -> Tables {
        // Many connections have one stream and then go idle. With a capacity of one, such a connection
        // allocates little memory for a short time, which leaves only small gaps between long-lived
        // allocations.
        Tables { slots: Slab::with_capacity(1), by_id: None }
    }
}

impl Tables {
    fn insert(&mut self, stream: Stream) -> u32 {
        let id = stream.id;
        let slot = self.slots.insert(stream) as u32;
        if let Some(by_id) = &mut self.by_id {
            by_id.insert(id, slot);
        } else if self.slots.capacity() > FEW {
            let all = self.slots.iter().map(|(slot, stream)| (stream.id, slot as u32));
            self.by_id = Some(Box::new(all.collect()));
        }
        slot
    }

    fn find(&self, id: u32) -> Option<u32> {
        match &self.by_id {
            Some(by_id) => by_id.get(&id).copied(),
            None => self.slots.iter().find(|(_, stream)| stream.id == id).map(|(slot, _)| slot as u32),
        }
    }

    fn remove(&mut self, key: Key) -> Stream {
        if let Some(by_id) = &mut self.by_id {
            by_id.remove(&key.id);
        }
        self.slots.remove(key.slot as usize)
    }

    fn rest(&mut self) {
        self.slots.shrink_to_fit();
        if self.slots.capacity() <= FEW {
            self.by_id = None;
        } else if let Some(by_id) = &mut self.by_id {
            by_id.shrink_to_fit();
        }
    }
}

impl Streams {
    pub(crate) fn len(&self) -> usize {
        self.tables.as_ref().map_or(0, |tables| tables.slots.len())
    }

    pub(crate) fn insert(&mut self, stream: Stream) -> Key {
        let id = stream.id;
        let slot = self.tables.get_or_insert_default().insert(stream);
        let key = Key { slot, id };
        self.last = key;
        key
    }

    pub(crate) fn find(&mut self, id: u32) -> Option<Key> {
        if self.last.id == id && id != NO_KEY.id {
            return Some(self.last);
        }
        let key = Key { slot: self.tables.as_ref()?.find(id)?, id };
        self.last = key;
        Some(key)
    }

    pub(crate) fn get(&self, key: Key) -> Option<&Stream> {
        self.tables.as_ref()?.slots.get(key.slot as usize).filter(|stream| stream.id == key.id)
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut Stream> {
        self.tables.as_mut()?.slots.get_mut(key.slot as usize).filter(|stream| stream.id == key.id)
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<Stream> {
        self.get(key)?;
        if self.last == key {
            self.last = NO_KEY;
        }
        Some(self.tables.as_mut()?.remove(key))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Key, &mut Stream)> {
        let slots = self.tables.iter_mut().flat_map(|tables| tables.slots.iter_mut());
        slots.map(|(slot, stream)| (Key { slot: slot as u32, id: stream.id }, stream))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &Stream)> {
        // The capacity is counted, because the iteration also visits free slots.
        #[cfg(test)]
        self.looks.set(self.looks.get() + self.tables.as_ref().map_or(0, |tables| tables.slots.capacity()));
        let slots = self.tables.iter().flat_map(|tables| tables.slots.iter());
        slots.map(|(slot, stream)| (Key { slot: slot as u32, id: stream.id }, stream))
    }

    #[cfg(test)]
    pub(crate) fn looks(&self) -> usize {
        self.looks.get()
    }

    /// Frees memory of streams that have ended.
    pub(crate) fn rest(&mut self) {
        if self.len() == 0 {
            self.tables = None;
        } else if let Some(tables) = &mut self.tables {
            tables.rest();
        }
    }

    /// Returns the heap memory in bytes, without the queued parts of streams.
    pub(crate) fn heap_bytes(&self) -> usize {
        let Some(tables) = &self.tables else { return 0 };
        // A slot of the slab has one word in addition to the stream, and a slot of the map one byte in
        // addition to its entry.
        size_of::<Tables>()
            + tables.slots.capacity() * (size_of::<Stream>() + size_of::<usize>())
            + tables.by_id.as_ref().map_or(0, |by_id| by_id.capacity() * (size_of::<(u32, u32)>() + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(id: u32) -> Stream {
        Stream::new(id, 0, 0)
    }

    #[test]
    fn streams_are_found_whether_they_are_few_or_many() {
        let mut streams = Streams::default();
        let mut keys: Vec<Key> = Vec::new();
        let has_map =
            |streams: &Streams| streams.tables.as_ref().is_some_and(|tables| tables.by_id.is_some());
        for round in 0..3 {
            for id in 0..100 {
                keys.push(streams.insert(stream(1000 * round + id)));
                assert!(keys.iter().all(|key| streams.find(key.id) == Some(*key)), "{id}");
                assert_eq!(streams.find(999), None);
                assert!(has_map(&streams) || streams.len() <= FEW);
            }
            while let Some(key) = keys.pop() {
                assert_eq!(streams.remove(key).map(|stream| stream.id), Some(key.id));
                assert_eq!((streams.find(key.id), streams.remove(key).is_none()), (None, true));
                assert!(keys.iter().all(|key| streams.find(key.id) == Some(*key)));
                // The map stays while there are many slots, however few streams are left.
                assert!(has_map(&streams));
                if round > 0 && keys.len() == 5 {
                    break;
                }
            }
            streams.rest();
            assert!(!has_map(&streams) && keys.iter().all(|key| streams.find(key.id) == Some(*key)));
        }
    }

    #[test]
    fn an_open_stream_is_small() {
        assert!(size_of::<Stream>() <= 56, "{} bytes", size_of::<Stream>());
    }

    #[test]
    fn a_payload_splits_anywhere() {
        let whole = Payload::message(Bytes::from_static(b"abcdef"), true);
        let mut bytes = whole.clone();
        let bytes = bytes.copy_to_bytes(bytes.remaining());
        assert_eq!(&bytes[..], b"\x01\0\0\0\x06abcdef");
        for first in 0..=bytes.len() {
            for second in 0..=bytes.len() - first {
                let mut rest = whole.clone();
                let (one, two) = (rest.split_to(first), rest.split_to(second));
                assert_eq!((one.len(), two.len()), (first, second));
                let mut all = Vec::new();
                for part in [&one, &two, &rest] {
                    let (prefix, body) = part.parts();
                    all.extend_from_slice(prefix);
                    all.extend_from_slice(body);
                }
                assert_eq!(all, bytes);
            }
        }
    }
}
