//! Decodes the frames of a stream into messages: [`Decoder`], for streams of whole messages and for etcd's
//! `msgappv2`. The bytes of the stream are passed in chunks that may end anywhere. Memory is allocated as
//! bytes arrive: a large length field alone allocates at most 1 MiB. The decoder does not validate the
//! messages.

use std::fmt;

use api::raftpb::{Entry, Message, MessageType};
use bytes::{Buf, Bytes, BytesMut};
use prost::Message as _;

use crate::app_encoder::{APP, APP_ENTRIES, LINK_HEARTBEAT};
use crate::options::FRAME_BYTES_MAX;

/// Maximum number of bytes that are allocated for a frame before its bytes have arrived.
const AHEAD_BYTES_MAX: usize = 1 << 20;
/// Number of bytes that every entry counts against the size limit of a frame in addition to its content,
/// because even an empty entry takes memory.
const ENTRY_BYTES_MIN: u64 = 64;

/// Reason why a stream cannot be decoded further.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DecodeError {
    /// A length field exceeds the limit.
    TooLong,
    /// The frame has a type that this decoder does not know.
    UnknownType(u8),
    /// A message or an entry is not valid protobuf.
    Malformed(prost::DecodeError),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::TooLong => f.write_str("rafthttp: error limit exceeded"),
            DecodeError::UnknownType(byte) => write!(f, "failed to parse type {byte} in msgappv2 stream"),
            DecodeError::Malformed(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for DecodeError {}

/// Divides a stream that arrives in chunks of any length into units, whose lengths the caller knows. A unit
/// that lies within one chunk is not copied.
#[derive(Debug, Default)]
pub(crate) struct Intake {
    piece: Bytes,
    /// Beginning of a unit that continues in the next chunk.
    begun: BytesMut,
}

impl Intake {
    /// Sets the next chunk. The units in the previous chunk must have been taken.
    pub(crate) fn feed(&mut self, piece: Bytes) {
        debug_assert!(self.piece.is_empty());
        self.piece = piece;
    }

    /// Takes the next `len` bytes, if they have arrived. If not, returns `None`, and the next call must be
    /// for the same `len`.
    pub(crate) fn take(&mut self, len: usize) -> Option<Bytes> {
        if self.begun.is_empty() && self.piece.len() >= len {
            return Some(self.piece.split_to(len));
        }
        let here = self.piece.len().min(len - self.begun.len());
        if here > 0 {
            if self.begun.is_empty() {
                self.begun.reserve(len.min(AHEAD_BYTES_MAX).max(here));
            }
            self.begun.extend_from_slice(&self.piece.split_to(here));
        }
        (self.begun.len() == len).then(|| self.begun.split().freeze())
    }

    fn take_u8(&mut self) -> Option<u8> {
        self.piece.has_remaining().then(|| self.piece.get_u8())
    }

    pub(crate) fn take_u64(&mut self) -> Option<u64> {
        if self.begun.is_empty() && self.piece.len() >= 8 {
            return Some(self.piece.get_u64());
        }
        self.take(8).map(|mut bytes| bytes.get_u64())
    }

    /// Returns the bytes of the current chunk that were not taken.
    pub(crate) fn rest(self) -> Bytes {
        self.piece
    }
}

/// Tells which unit of a frame the decoder reads next.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The type of a `msgappv2` frame.
    Type,
    /// The length of a whole message.
    MessageLength,
    Message(usize),
    EntryCount,
    EntryLength,
    Entry(usize),
    Commit,
}

/// Decoder for the frames of one stream.
#[derive(Debug)]
pub(crate) struct Decoder {
    /// Step with which every frame begins.
    first: Step,
    step: Step,
    intake: Intake,
    local: u64,
    remote: u64,
    /// Raft term and log index of the last entry received. The encoder tracks the same values, so that frames
    /// can omit them.
    term: u64,
    index: u64,
    entries_left: u64,
    entries: Vec<Entry>,
    /// Number of bytes that the remaining entries of this frame may have in total.
    room: u64,
    frame_bytes_max: u64,
}

impl Decoder {
    /// Returns a decoder for a stream of whole messages.
    pub(crate) fn of_messages() -> Decoder {
        Decoder::new(Step::MessageLength, 0, 0)
    }

    /// Returns a decoder for a `msgappv2` stream from `remote` to `local`.
    pub(crate) fn of_apps(local: u64, remote: u64) -> Decoder {
        Decoder::new(Step::Type, local, remote)
    }

    fn new(first: Step, local: u64, remote: u64) -> Decoder {
        Decoder {
            first,
            step: first,
            intake: Intake::default(),
            local,
            remote,
            term: 0,
            index: 0,
            entries_left: 0,
            entries: Vec::new(),
            room: 0,
            frame_bytes_max: FRAME_BYTES_MAX,
        }
    }

    /// Decodes the next chunk of the stream, and appends the messages that are complete now to `into`. Link
    /// heartbeats are left out.
    pub(crate) fn decode(&mut self, piece: Bytes, into: &mut Vec<Message>) -> Result<(), DecodeError> {
        self.intake.feed(piece);
        while let Some(next) = self.advance(into)? {
            self.step = next;
        }
        Ok(())
    }

    /// Decodes one unit of a frame and returns the next step; `None` if more bytes are needed for this unit.
    fn advance(&mut self, into: &mut Vec<Message>) -> Result<Option<Step>, DecodeError> {
        let next = match self.step {
            Step::Type => match self.intake.take_u8() {
                None => return Ok(None),
                Some(LINK_HEARTBEAT) => Step::Type,
                Some(APP_ENTRIES) => Step::EntryCount,
                Some(APP) => Step::MessageLength,
                Some(other) => return Err(DecodeError::UnknownType(other)),
            },
            Step::MessageLength => {
                let Some(len) = self.intake.take_u64() else { return Ok(None) };
                Step::Message(length_within(len, self.frame_bytes_max)?)
            }
            Step::Message(len) => {
                let Some(bytes) = self.intake.take(len) else { return Ok(None) };
                self.message(bytes, into)?;
                self.first
            }
            Step::EntryCount => {
                let Some(count) = self.intake.take_u64() else { return Ok(None) };
                self.entries_left = count;
                self.room = self.frame_bytes_max;
                if count == 0 { Step::Commit } else { Step::EntryLength }
            }
            Step::EntryLength => {
                let Some(len) = self.intake.take_u64() else { return Ok(None) };
                let len = length_within(len, self.room)?;
                self.room =
                    self.room.checked_sub(len as u64 + ENTRY_BYTES_MIN).ok_or(DecodeError::TooLong)?;
                Step::Entry(len)
            }
            Step::Entry(len) => {
                let Some(bytes) = self.intake.take(len) else { return Ok(None) };
                self.entries.push(Entry::decode(bytes).map_err(DecodeError::Malformed)?);
                self.entries_left -= 1;
                if self.entries_left == 0 { Step::Commit } else { Step::EntryLength }
            }
            Step::Commit => {
                let Some(commit) = self.intake.take_u64() else { return Ok(None) };
                let entries = std::mem::take(&mut self.entries);
                let index = self.index;
                self.index = index.wrapping_add(entries.len() as u64);
                into.push(Message {
                    r#type: Some(MessageType::MsgApp as i32),
                    to: Some(self.local),
                    from: Some(self.remote),
                    term: Some(self.term),
                    log_term: Some(self.term),
                    index: Some(index),
                    entries,
                    commit: Some(commit),
                    ..Message::default()
                });
                Step::Type
            }
        };
        Ok(Some(next))
    }

    fn message(&mut self, bytes: Bytes, into: &mut Vec<Message>) -> Result<(), DecodeError> {
        let message = Message::decode(bytes).map_err(DecodeError::Malformed)?;
        if matches!(self.first, Step::Type) {
            self.term = message.term.unwrap_or(0);
            let last = message.entries.last().map(|last| last.index.unwrap_or(0));
            self.index = last.unwrap_or(message.index.unwrap_or(0));
        }
        if !is_link_heartbeat(&message) {
            into.push(message);
        }
        Ok(())
    }
}

pub(crate) fn length_within(len: u64, max: u64) -> Result<usize, DecodeError> {
    usize::try_from(len).ok().filter(|_| len <= max).ok_or(DecodeError::TooLong)
}

/// Returns true if a message is a link heartbeat: a heartbeat without sender and recipient, which only keeps
/// a stream of whole messages alive.
fn is_link_heartbeat(message: &Message) -> bool {
    message.r#type == Some(MessageType::MsgHeartbeat as i32)
        && message.from.unwrap_or(0) == 0
        && message.to.unwrap_or(0) == 0
}

/// Returns a link heartbeat, which keeps a stream of whole messages alive.
pub(crate) fn link_heartbeat() -> Message {
    Message {
        r#type: Some(MessageType::MsgHeartbeat as i32),
        to: Some(0),
        from: Some(0),
        ..Message::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app_encoder::AppEncoder;
    use crate::frame_buffer::FrameBuffer;

    const LOCAL: u64 = 0x11;
    const REMOTE: u64 = 0x22;

    fn entry(term: u64, index: u64, data: &'static str) -> Entry {
        Entry { r#type: Some(0), term: Some(term), index: Some(index), data: Some(data.into()) }
    }

    fn app(term: u64, log_term: u64, index: u64, entries: Vec<Entry>, commit: u64) -> Message {
        Message {
            r#type: Some(MessageType::MsgApp as i32),
            to: Some(LOCAL),
            from: Some(REMOTE),
            term: Some(term),
            log_term: Some(log_term),
            index: Some(index),
            entries,
            commit: Some(commit),
            ..Message::default()
        }
    }

    fn be(n: u64) -> Vec<u8> {
        n.to_be_bytes().to_vec()
    }

    fn frames(messages: &[Message]) -> Vec<Vec<u8>> {
        let (mut encoder, mut buffer) = (AppEncoder::default(), FrameBuffer::default());
        let mut frame = |message: &Message| {
            encoder.encode(message.clone(), &mut buffer);
            let mut segments = buffer.take();
            segments.copy_to_bytes(segments.remaining()).to_vec()
        };
        messages.iter().map(&mut frame).collect()
    }

    /// Feeds the bytes in pieces of `piece` bytes; returns the decoded messages.
    fn decoded(mut decoder: Decoder, bytes: &[u8], piece: usize) -> Result<Vec<Message>, DecodeError> {
        let mut messages = Vec::new();
        for piece in bytes.chunks(piece) {
            decoder.decode(Bytes::copy_from_slice(piece), &mut messages)?;
        }
        Ok(messages)
    }

    #[test]
    fn the_compact_form_is_used_exactly_while_the_state_fits() {
        let script = [
            app(5, 4, 7, vec![entry(5, 8, "a"), entry(5, 9, "bc")], 6),
            // The state is now term 5, index 9.
            app(5, 5, 9, vec![entry(5, 10, "d")], 8),
            app(5, 5, 10, vec![], 10),
            // A repeated index does not continue the state: the message is sent whole, and the state returns
            // to index 10.
            app(5, 5, 9, vec![entry(5, 10, "d")], 10),
            app(5, 5, 10, vec![entry(5, 11, "")], 10),
            // Another term: the message is sent whole, and the state is term 6, index 11 from then on.
            app(6, 5, 11, vec![], 11),
            // The log term 5 differs from the state's term 6.
            app(6, 5, 11, vec![entry(6, 12, "e")], 11),
            app(6, 6, 12, vec![], 12),
            // The short form has no space for the hint of a leader that probes.
            Message { reject_hint: Some(7), ..app(6, 6, 12, vec![], 12) },
        ];
        let frames = frames(&script);
        let kinds: Vec<u8> = frames.iter().map(|frame| frame[0]).collect();
        assert_eq!(kinds, [2, 1, 1, 2, 1, 2, 2, 1, 2]);

        // Encoded by hand: type, number of entries, each entry preceded by its length, commit index.
        let entry_d = b"\x08\x00\x10\x05\x18\x0a\x22\x01d";
        let mut expected = vec![1];
        expected.extend([be(1), be(9), entry_d.to_vec(), be(8)].concat());
        assert_eq!(frames[1], expected);
        assert_eq!(frames[2], [vec![1], be(0), be(10)].concat());
        let whole = b"\x08\x03\x10\x11\x18\x22\x20\x05\x28\x04\x30\x07\
            \x3a\x09\x08\x00\x10\x05\x18\x08\x22\x01a\x3a\x0a\x08\x00\x10\x05\x18\x09\x22\x02bc\x40\x06";
        assert_eq!(frames[0], [vec![2], be(37), whole.to_vec()].concat());

        let mut stream = frames.concat();
        stream.push(0);
        for piece in [1, 2, 3, 7, 8, 9, 64, stream.len()] {
            let read = decoded(Decoder::of_apps(LOCAL, REMOTE), &stream, piece).unwrap();
            assert_eq!(read, script, "pieces of {piece}");
        }
    }

    #[test]
    fn messages_stand_behind_their_length_and_heartbeats_of_the_link_are_dropped() {
        let vote = Message {
            r#type: Some(MessageType::MsgVote as i32),
            to: Some(1),
            from: Some(2),
            term: Some(300),
            ..Message::default()
        };
        let mut buffer = FrameBuffer::default();
        buffer.put_sized_message(link_heartbeat());
        buffer.put_sized_message(vote.clone());
        let mut segments = buffer.take();
        let bytes = segments.copy_to_bytes(segments.remaining());
        let heartbeat = [be(6), b"\x08\x08\x10\x00\x18\x00".to_vec()].concat();
        let expected = [heartbeat, be(9), b"\x08\x05\x10\x01\x18\x02\x20\xac\x02".to_vec()].concat();
        assert_eq!(bytes, expected);
        for piece in [1, 5, 8, 100] {
            assert_eq!(decoded(Decoder::of_messages(), &bytes, piece).unwrap(), std::slice::from_ref(&vote));
        }
        // Encoding of a heartbeat that omits zero fields.
        assert_eq!(decoded(Decoder::of_messages(), &[be(2), b"\x08\x08".to_vec()].concat(), 3), Ok(vec![]));
    }

    #[test]
    fn lengths_above_the_bound_and_unknown_frames_are_refused() {
        let apps = |bytes: &[u8]| decoded(Decoder::of_apps(LOCAL, REMOTE), bytes, 5);
        assert_eq!(apps(&[3]), Err(DecodeError::UnknownType(3)));
        assert_eq!(apps(&[vec![2], be(u64::MAX)].concat()), Err(DecodeError::TooLong));
        assert_eq!(apps(&[vec![1], be(1), be(FRAME_BYTES_MAX + 1)].concat()), Err(DecodeError::TooLong));
        assert_eq!(decoded(Decoder::of_messages(), &be(FRAME_BYTES_MAX + 1), 8), Err(DecodeError::TooLong));
        assert!(matches!(apps(&[vec![2], be(1), vec![0xff]].concat()), Err(DecodeError::Malformed(_))));
        assert!(matches!(
            apps(&[vec![1], be(1), be(1), vec![0xff]].concat()),
            Err(DecodeError::Malformed(_))
        ));
    }

    #[test]
    fn a_claimed_length_or_number_takes_no_memory() {
        let mut decoder = Decoder::of_messages();
        let claim = [be(FRAME_BYTES_MAX), vec![1]].concat();
        decoder.decode(claim.into(), &mut Vec::new()).unwrap();
        assert!(decoder.intake.begun.capacity() <= 2 * AHEAD_BYTES_MAX);

        let mut decoder = Decoder { frame_bytes_max: 1 << 20, ..Decoder::of_apps(LOCAL, REMOTE) };
        decoder.decode([vec![1], be(u64::MAX)].concat().into(), &mut Vec::new()).unwrap();
        let empty = Bytes::from(vec![0; 8 * 1024]);
        let fed = (0..).find(|_| decoder.decode(empty.clone(), &mut Vec::new()).is_err()).unwrap();
        assert!(fed as u64 * 1024 <= (1 << 20) / ENTRY_BYTES_MIN, "{fed}");
    }

    #[test]
    fn any_bytes_are_read_or_refused() {
        let mut random = testkit::Random::new(1);
        let mut next = || random.number();
        for _ in 0..2000 {
            let mut bytes: Vec<u8> = (0..next() % 200).map(|_| (next() >> 33) as u8).collect();
            // Plausible lengths and types, so that the decoder gets further.
            for at in (1..bytes.len().saturating_sub(8)).step_by(9) {
                bytes[at..at + 8].copy_from_slice(&(next() % 40).to_be_bytes());
                bytes[at - 1] %= 3;
            }
            let _ = decoded(Decoder::of_apps(LOCAL, REMOTE), &bytes, 1 + (next() % 64) as usize);
            let _ = decoded(Decoder::of_messages(), &bytes, 1 + (next() % 64) as usize);
        }
    }

    #[test]
    fn data_within_one_piece_is_not_copied() {
        let bytes = Bytes::from(frames(&[app(5, 4, 7, vec![entry(5, 8, "abcdefgh")], 6)]).concat());
        let mut messages = Vec::new();
        Decoder::of_apps(LOCAL, REMOTE).decode(bytes.clone(), &mut messages).unwrap();
        let data = messages[0].entries[0].data.as_ref().unwrap();
        assert!(bytes.as_ptr_range().contains(&data.as_ptr()));
    }
}
