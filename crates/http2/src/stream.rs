//! The streams of one connection: [`Streams`] finds them, [`Stream`] is what is known of one.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};
use std::sync::LazyLock;

use bytes::{Buf, Bytes};
use slab::Slab;

use crate::hpack::OwnedBlock;

/// Names a stream of one connection. It stays unique when the stream is over: commands with the key of such a stream fail
/// or do nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub(crate) slot: u32,
    pub(crate) id: u32,
}

impl Key {
    /// A small number that no other open stream of the connection has; numbers are used again. A caller can keep what it
    /// knows of a stream in a table with these numbers, beside [`Key::id`] to tell streams apart that used the same one.
    pub fn slot(self) -> usize {
        self.slot as usize
    }

    /// The stream's identifier on the wire.
    pub fn id(self) -> u32 {
        self.id
    }
}

/// Bytes of gRPC's prefix: one byte that says whether the message is compressed, and its length.
pub(crate) const PREFIX_BYTES: usize = 5;

/// A part of a body that is to be sent: bytes, or a gRPC message whose prefix is not in one piece with it.
#[derive(Clone, Debug)]
pub struct Payload {
    prefix: [u8; PREFIX_BYTES],
    /// Bytes of the prefix that are gone, or were never there.
    at: u8,
    is_shared: bool,
    body: Bytes,
}

impl Payload {
    /// A gRPC message: the five bytes of its prefix, then the message.
    ///
    /// # Panics
    ///
    /// If the message is 4 GiB or longer.
    pub fn message(body: Bytes, compressed: bool) -> Payload {
        Payload::message_start(body.len(), body, compressed)
    }

    /// The first bytes of a gRPC message of `len` bytes; the others follow as plain bytes.
    ///
    /// # Panics
    ///
    /// If `len` is 4 GiB or more.
    pub fn message_start(len: usize, body: Bytes, compressed: bool) -> Payload {
        Payload { prefix: prefix(len, compressed), at: 0, is_shared: false, body }
    }

    /// The same bytes, which others send too: while they wait they are counted apart
    /// ([`crate::Connection::queued_shared_bytes`]).
    #[must_use]
    pub fn shared(self) -> Payload {
        Payload { is_shared: true, ..self }
    }

    /// Returns the number of bytes if others send them too, else 0.
    pub(crate) fn shared_len(&self) -> usize {
        if self.is_shared { self.len() } else { 0 }
    }

    /// Returns the number of bytes, with the prefix.
    pub fn len(&self) -> usize {
        PREFIX_BYTES - usize::from(self.at) + self.body.len()
    }

    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is left of the prefix, and the body.
    pub(crate) fn parts(&self) -> (&[u8], &Bytes) {
        (&self.prefix[usize::from(self.at)..], &self.body)
    }

    /// Takes so many bytes off the front. Both parts share their memory with the whole.
    pub(crate) fn split_to(&mut self, bytes: usize) -> Payload {
        let of_prefix = bytes.min(PREFIX_BYTES - usize::from(self.at));
        let end = self.at + of_prefix as u8;
        // The front has its bytes of the prefix at the end of its own array.
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

/// Returns the prefix of a gRPC message of so many bytes that is not compressed.
///
/// # Panics
///
/// If these are 4 GiB or more.
pub fn message_prefix(len: usize) -> [u8; 5] {
    prefix(len, false)
}

/// Returns the prefix of a gRPC message of so many bytes.
pub(crate) fn prefix(len: usize, compressed: bool) -> [u8; PREFIX_BYTES] {
    let len = u32::try_from(len).unwrap_or_else(|_| panic!("a message of {len} bytes has no prefix"));
    let [a, b, c, d] = len.to_be_bytes();
    [u8::from(compressed), a, b, c, d]
}

impl From<Bytes> for Payload {
    /// Bytes without a prefix.
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

/// What waits to be sent on a stream.
#[derive(Debug)]
pub(crate) enum Piece {
    Data { payload: Payload, end: bool },
    Trailers(Box<OwnedBlock>),
}

/// What waits to be sent on a stream. Most streams have nothing that waits, and no memory for it.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    /// Bytes in `queue`.
    pub(crate) bytes: usize,
    /// Of these, bytes that others send too.
    pub(crate) shared_bytes: usize,
    /// It is empty only while something is put in or taken out.
    pub(crate) queue: VecDeque<Piece>,
}

/// Bytes that have to come on a stream according to `content-length`, if that is known. Open streams have it, so it is half as long
/// as an `Option`: the greatest number says that nothing is known. Where that is what was announced it is one less, which does not
/// come either, and so is missed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContentLeft(u64);

impl ContentLeft {
    const UNKNOWN: u64 = u64::MAX;

    pub(crate) fn of(length: Option<u64>) -> ContentLeft {
        ContentLeft(length.map_or(ContentLeft::UNKNOWN, |length| length.min(ContentLeft::UNKNOWN - 1)))
    }

    /// Returns true if it is known that more has to come.
    pub(crate) fn is_short(self) -> bool {
        self.0 > 0 && self.0 != ContentLeft::UNKNOWN
    }

    /// So many bytes came; false if they are more than had to come.
    pub(crate) fn came(&mut self, bytes: u64) -> bool {
        if self.0 == ContentLeft::UNKNOWN {
            return true;
        }
        let left = self.0.checked_sub(bytes);
        self.0 = left.unwrap_or(0);
        left.is_some()
    }
}

/// What is known of a stream that is not closed (RFC 9113, section 5.1).
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) id: u32,
    /// Turn in which it was opened.
    pub(crate) turn: u32,
    /// Bytes that the other end may still send. Negative after it was allowed more than the settings say.
    pub(crate) may_receive: i32,
    /// Bytes that were handed to the consumer and not released yet.
    pub(crate) unreleased: u32,
    /// What the send window differs from the initial one of the other end's settings: so a change of those settings
    /// touches no stream.
    pub(crate) window_change: i32,
    /// Bytes of bodies that were put into frames.
    pub(crate) sent: u64,
    /// What waits to be sent, if anything does.
    pub(crate) backlog: Option<Box<Backlog>>,
    pub(crate) content_left: ContentLeft,
    /// The other end sends nothing more.
    pub(crate) received_end: bool,
    /// This end sends nothing more.
    pub(crate) sent_end: bool,
    /// The message that comes has begun: its head was handed over.
    pub(crate) received_head: bool,
    /// The message that goes has begun: its head was sent.
    pub(crate) sent_head: bool,
    /// It is among those whose turn to send comes.
    pub(crate) is_ready: bool,
    /// The caller wants to know when there is room.
    pub(crate) wants_room: bool,
    /// A response without content whatever `content-length` says (RFC 9110, section 8.6).
    pub(crate) is_head: bool,
}

impl Stream {
    /// Returns a stream that was opened in this turn, of which nothing has come or gone.
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

    /// Bytes of bodies that wait.
    pub(crate) fn queued(&self) -> usize {
        self.backlog.as_ref().map_or(0, |backlog| backlog.bytes)
    }

    /// Returns the piece of the backlog that is sent next.
    pub(crate) fn first(&self) -> Option<&Piece> {
        self.backlog.as_ref()?.queue.front()
    }

    /// Returns the last piece of the backlog.
    pub(crate) fn last(&self) -> Option<&Piece> {
        self.backlog.as_ref()?.queue.back()
    }

    /// Returns true if nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.backlog.is_none()
    }
}

/// Stream identifiers are odd numbers that rise, but the other end chooses which it leaves out. So they are multiplied with a
/// number that it does not know: of identifiers that were chosen without it, few meet in one place.
#[derive(Default)]
pub(crate) struct Mixer(u64);

/// What identifiers are multiplied with, in all connections of the process.
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
        // The upper bits of the product depend on all bits of the number; the map looks at the lowest and at the highest.
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(*SECRET).rotate_left(20);
    }
}

/// No stream's: identifiers begin at 1.
const NO_KEY: Key = Key { slot: 0, id: 0 };

/// The open streams of a connection.
pub(crate) struct Streams {
    /// A connection has them once a stream was opened, until it rests without one.
    tables: Option<Box<Tables>>,
    /// The stream that was found last: frames of one stream follow each other. [`NO_KEY`] if there is none.
    last: Key,
    /// Places that were looked at by those who look at all streams.
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

/// Places for streams up to which they are looked through for an identifier: that costs less than a map, and no memory.
const FEW: usize = 16;

struct Tables {
    slots: Slab<Stream>,
    /// Places by identifier, if there are more than [`FEW`] places, used or not.
    #[expect(clippy::box_collection, reason = "most connections have few places, and three words less")]
    by_id: Option<Box<HashMap<u32, u32, BuildHasherDefault<Mixer>>>>,
}

impl Default for Tables {
    fn default() -> Tables {
        // Many connections have one stream and then rest: what they need meanwhile is not left among what stays.
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
        // It passes over places that are free, too.
        #[cfg(test)]
        self.looks.set(self.looks.get() + self.tables.as_ref().map_or(0, |tables| tables.slots.capacity()));
        let slots = self.tables.iter().flat_map(|tables| tables.slots.iter());
        slots.map(|(slot, stream)| (Key { slot: slot as u32, id: stream.id }, stream))
    }

    #[cfg(test)]
    pub(crate) fn looks(&self) -> usize {
        self.looks.get()
    }

    /// Gives back memory that streams had which are gone.
    pub(crate) fn rest(&mut self) {
        if self.len() == 0 {
            self.tables = None;
        } else if let Some(tables) = &mut self.tables {
            tables.rest();
        }
    }

    /// Bytes held on the heap, without what streams have to send.
    pub(crate) fn heap_bytes(&self) -> usize {
        let Some(tables) = &self.tables else { return 0 };
        // A slot of the slab has a word beside the stream, one of the map a byte.
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
                // However few are left, so long as their places are many.
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
