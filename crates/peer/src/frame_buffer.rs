//! Encodes messages into frames without copying the data of large entries: [`FrameBuffer`] copies small parts
//! together and only references large data. The result, [`Segments`], is sent with vectored writes. This
//! module knows the framing of messages, but does not decide when they are sent.

use std::collections::VecDeque;
use std::io::IoSlice;

use api::raftpb::{Entry, Message};
use api::wire::{bytes_tag, put_varint};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message as _;

/// Minimum size in bytes of an entry's data that is referenced and not copied into the frame.
const SHARED_BYTES_MIN: usize = 4096;
/// Minimum number of bytes by which the buffer for small parts grows.
const GROWTH_BYTES: usize = 16 * 1024;

const ENTRY_DATA_TAG: u8 = bytes_tag(4);
const MESSAGE_ENTRIES_TAG: u8 = bytes_tag(7);

/// Bytes in several buffers, which are sent with vectored writes.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    pieces: VecDeque<Bytes>,
    bytes: usize,
}

impl Segments {
    fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.bytes += piece.len();
            self.pieces.push_back(piece);
        }
    }
}

impl From<Bytes> for Segments {
    fn from(piece: Bytes) -> Segments {
        let mut segments = Segments::default();
        segments.push(piece);
        segments
    }
}

impl Buf for Segments {
    fn remaining(&self) -> usize {
        self.bytes
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.front().map_or(&[], |piece| piece)
    }

    fn chunks_vectored<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        let mut n = 0;
        for (slot, piece) in into.iter_mut().zip(&self.pieces) {
            *slot = IoSlice::new(piece);
            n += 1;
        }
        n
    }

    fn advance(&mut self, mut n: usize) {
        assert!(n <= self.bytes, "advanced beyond the end");
        self.bytes -= n;
        while let Some(piece) = self.pieces.front_mut().filter(|_| n > 0) {
            let here = n.min(piece.len());
            piece.advance(here);
            n -= here;
            if piece.is_empty() {
                self.pieces.pop_front();
            }
        }
    }
}

/// Collects encoded frames. Small parts are copied together, large data is referenced.
#[derive(Debug, Default)]
pub(crate) struct FrameBuffer {
    small: BytesMut,
    segments: Segments,
}

impl FrameBuffer {
    /// Returns the number of bytes of all frames in the buffer.
    pub(crate) fn len(&self) -> usize {
        self.segments.bytes + self.small.len()
    }

    /// Returns the frames, and leaves the buffer empty.
    pub(crate) fn take(&mut self) -> Segments {
        self.close();
        std::mem::take(&mut self.segments)
    }

    fn close(&mut self) {
        if !self.small.is_empty() {
            self.segments.push(self.small.split().freeze());
        }
    }

    fn room(&mut self, bytes: usize) {
        if self.small.capacity() - self.small.len() < bytes {
            // Reserve memory in large steps, so that many frames share one allocation, which is reused once
            // all of these frames were sent.
            self.small.reserve(bytes.max(GROWTH_BYTES));
        }
    }

    pub(crate) fn put_u8(&mut self, value: u8) {
        self.room(1);
        self.small.put_u8(value);
    }

    /// Appends a number as etcd's framing encodes it: 8 bytes, big-endian.
    pub(crate) fn put_u64(&mut self, value: u64) {
        self.room(8);
        self.small.put_u64(value);
    }

    /// Appends an entry, preceded by its length.
    pub(crate) fn put_sized_entry(&mut self, entry: Entry) {
        self.put_u64(entry.encoded_len() as u64);
        self.put_entry(entry);
    }

    /// Appends a message, preceded by its length.
    pub(crate) fn put_sized_message(&mut self, mut message: Message) {
        let len = message.encoded_len();
        self.put_u64(len as u64);
        if !message.entries.iter().any(has_shared_data) {
            self.room(len);
            message.encode_raw(&mut self.small);
            return;
        }
        // Encode the message in three parts, in the order of the field numbers, as every encoder does: the
        // fields before the entries, the entries, whose data may only be referenced, and the fields after
        // them.
        let entries = std::mem::take(&mut message.entries);
        let before = Message {
            r#type: message.r#type.take(),
            to: message.to.take(),
            from: message.from.take(),
            term: message.term.take(),
            log_term: message.log_term.take(),
            index: message.index.take(),
            ..Message::default()
        };
        self.room(before.encoded_len());
        before.encode_raw(&mut self.small);
        for entry in entries {
            self.put_u8(MESSAGE_ENTRIES_TAG);
            self.put_varint(entry.encoded_len());
            self.put_entry(entry);
        }
        self.room(message.encoded_len());
        message.encode_raw(&mut self.small);
    }

    fn put_varint(&mut self, value: usize) {
        self.room(10);
        put_varint(&mut self.small, value as u64);
    }

    fn put_entry(&mut self, mut entry: Entry) {
        let shared = if has_shared_data(&entry) { entry.data.take() } else { None };
        self.room(entry.encoded_len());
        entry.encode_raw(&mut self.small);
        if let Some(data) = shared {
            self.put_u8(ENTRY_DATA_TAG);
            self.put_varint(data.len());
            self.close();
            self.segments.push(data);
        }
    }
}

fn has_shared_data(entry: &Entry) -> bool {
    entry.data.as_ref().is_some_and(|data| data.len() >= SHARED_BYTES_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u64, bytes: usize) -> Entry {
        Entry {
            r#type: Some(0),
            term: Some(3),
            index: Some(index),
            data: Some(vec![index as u8; bytes].into()),
        }
    }

    #[test]
    fn a_message_has_prost_s_bytes_whether_its_data_is_copied_or_shared() {
        for sizes in [&[][..], &[1], &[5000], &[4096, 1, 9000, 4095], &[300_000]] {
            let message = Message {
                r#type: Some(3),
                to: Some(1),
                from: Some(2),
                term: Some(3),
                log_term: Some(3),
                index: Some(9),
                entries: sizes.iter().enumerate().map(|(i, n)| entry(i as u64, *n)).collect(),
                commit: Some(7),
                reject: Some(false),
                context: Some("c".into()),
                ..Message::default()
            };
            let mut expected = (message.encoded_len() as u64).to_be_bytes().to_vec();
            expected.extend(message.encode_to_vec());
            let mut buffer = FrameBuffer::default();
            buffer.put_sized_message(message.clone());
            assert_eq!(buffer.len(), expected.len());
            let mut segments = buffer.take();
            let mut seen = [IoSlice::new(&[]); 64];
            let n = segments.chunks_vectored(&mut seen);
            assert_eq!(seen[..n].iter().flat_map(|slice| slice.to_vec()).collect::<Vec<u8>>(), expected);
            assert_eq!(segments.copy_to_bytes(segments.remaining()), expected);
            assert_eq!(buffer.len(), 0);
        }
    }

    #[test]
    fn large_data_is_not_copied() {
        let data = Bytes::from(vec![7; SHARED_BYTES_MIN]);
        let at = data.as_ptr();
        let mut buffer = FrameBuffer::default();
        buffer.put_sized_entry(Entry { data: Some(data), ..Entry::default() });
        assert!(buffer.take().pieces.iter().any(|piece| piece.as_ptr() == at));
    }

    #[test]
    fn advancing_stops_anywhere() {
        let mut segments = Segments::default();
        for piece in ["ab", "", "cde", "f"] {
            segments.push(Bytes::from_static(piece.as_bytes()));
        }
        segments.advance(3);
        assert_eq!((segments.chunk(), segments.remaining()), (&b"de"[..], 3));
        segments.advance(3);
        assert!(!segments.has_remaining() && segments.chunk().is_empty());
    }
}
