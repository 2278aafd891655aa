//! Collects short messages of a stream, so that they can be sent in one frame: [`Messages`].

use bytes::{Buf as _, Bytes};

use crate::assembler::PREFIX_BYTES;
use crate::try_send::TrySend;

/// Short messages for one stream, in the form of the payload of a DATA frame: each message follows its gRPC
/// prefix.
///
/// A service that has many short messages for a stream collects them here, and
/// [`crate::Outbound::try_send_messages`] sends all with one call, usually in one frame. The alternative, one
/// [`Bytes`] per message, costs an allocation, a frame and all checks for each message; for messages of a few
/// hundred bytes that is several times the cost of the copy.
#[derive(Debug, Default)]
pub struct Messages {
    bytes: Vec<u8>,
    /// Offset in `bytes` of the first message. The messages before it were removed.
    at: usize,
    count: usize,
    /// Length in bytes of the longest message that was ever added.
    longest: usize,
}

impl Messages {
    /// Creates an empty collection with memory for `bytes` bytes of messages, prefixes included.
    pub fn with_capacity(bytes: usize) -> Messages {
        Messages { bytes: Vec::with_capacity(bytes), ..Messages::default() }
    }

    /// Returns the size on the wire of a message of `len` bytes, prefix included.
    pub const fn wire_len(len: usize) -> usize {
        PREFIX_BYTES + len
    }

    /// Appends one message, which consists of these parts.
    ///
    /// # Panics
    ///
    /// If the message is 4 GiB or longer.
    pub fn push<const PARTS: usize>(&mut self, parts: [&[u8]; PARTS]) {
        let before = self.bytes.len();
        Messages::frame(&mut self.bytes, parts);
        self.note_pushed(self.bytes.len() - before);
    }

    /// Appends one message that [`Messages::frame`] has put after its prefix. That is cheaper than
    /// [`Messages::push`] if the same message is added to many collections.
    pub fn push_framed(&mut self, framed: &[u8]) {
        debug_assert!(
            framed.get(..PREFIX_BYTES) == Some(&http2::message_prefix(framed.len() - PREFIX_BYTES)[..]),
            "a framed message begins with its prefix"
        );
        self.bytes.extend_from_slice(framed);
        self.note_pushed(framed.len());
    }

    /// Appends to `out` a message that consists of these parts, after its prefix of
    /// [`Messages::wire_len`]`(0)` bytes.
    ///
    /// # Panics
    ///
    /// If the message is 4 GiB or longer.
    pub fn frame<const PARTS: usize>(out: &mut Vec<u8>, parts: [&[u8]; PARTS]) {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        out.reserve(PREFIX_BYTES + len);
        out.extend_from_slice(&http2::message_prefix(len));
        for part in parts {
            out.extend_from_slice(part);
        }
    }

    fn note_pushed(&mut self, wire_bytes: usize) {
        self.count += 1;
        self.longest = self.longest.max(wire_bytes - PREFIX_BYTES);
    }

    /// Removes and returns the first message.
    pub fn pop(&mut self) -> Option<Bytes> {
        let mut rest = self.as_slice().get(1..)?;
        let len = rest.get_u32() as usize;
        let message = Bytes::copy_from_slice(&rest[..len]);
        self.at += PREFIX_BYTES + len;
        self.count -= 1;
        Some(message)
    }

    /// Removes the first message and passes it to `send`. Returns the remaining messages; if `send` refuses
    /// the message, returns all messages in the error.
    ///
    /// # Errors
    ///
    /// Returns the error of `send`, in which the refused message is replaced by all messages.
    ///
    /// # Panics
    ///
    /// If `send` returns another message than the one that it was given.
    pub fn send_first(
        mut self,
        send: impl FnOnce(Bytes) -> Result<(), TrySend>,
    ) -> Result<Messages, TrySend<Messages>> {
        let Some(first) = self.pop() else { return Ok(self) };
        match send(first) {
            Ok(()) => Ok(self),
            Err(refused) => Err(refused.map(|first| {
                self.put_back(&first);
                self
            })),
        }
    }

    /// Puts the message that [`Messages::pop`] returned last back in front of the others.
    fn put_back(&mut self, message: &Bytes) {
        let end = self.at;
        self.at -= PREFIX_BYTES + message.len();
        assert_eq!(self.bytes[self.at + PREFIX_BYTES..end], **message, "what was taken out last is put back");
        self.count += 1;
    }

    /// Returns the number of messages.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns true if there is no message.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the size of all messages with their prefixes, in bytes.
    pub fn wire_bytes(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Returns the length in bytes of the longest message that was ever added.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    /// Returns all messages with their prefixes.
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    /// Returns all messages with their prefixes, without copying them.
    pub(crate) fn into_bytes(self) -> Bytes {
        Bytes::from(self.bytes).slice(self.at..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_out_as_they_went_in() {
        let all: Vec<Vec<u8>> = (0..40).map(|n| vec![n; usize::from(n) * 7 % 90]).collect();
        let mut messages = Messages::default();
        for message in &all {
            let (first, rest) = message.split_at(message.len() / 3);
            if message.len() % 2 == 0 {
                messages.push([first, rest]);
            } else {
                let mut framed = Vec::new();
                Messages::frame(&mut framed, [first, rest]);
                messages.push_framed(&framed);
            }
        }
        assert_eq!(messages.len(), all.len());
        assert_eq!(
            messages.wire_bytes(),
            all.iter().map(|message| message.len() + PREFIX_BYTES).sum::<usize>()
        );
        assert_eq!(messages.longest(), all.iter().map(Vec::len).max().unwrap_or_default());
        for message in &all {
            // A caller that fails to send a message puts it back.
            let (count, bytes) = (messages.len(), messages.wire_bytes());
            let first = messages.pop().expect("one is left");
            messages.put_back(&first);
            assert_eq!((messages.len(), messages.wire_bytes()), (count, bytes));
            assert_eq!(messages.pop().as_deref(), Some(&message[..]));
        }
        assert!(messages.is_empty() && messages.pop().is_none());
    }

    #[test]
    fn they_lie_as_grpc_sends_them() {
        let mut messages = Messages::default();
        messages.push([b"gone"]);
        messages.push([b"a", b"b"]);
        messages.push([]);
        assert_eq!(messages.pop().as_deref(), Some(&b"gone"[..]));
        assert_eq!(messages.as_slice(), b"\0\0\0\0\x02ab\0\0\0\0\0");
        assert_eq!(messages.into_bytes(), &b"\0\0\0\0\x02ab\0\0\0\0\0"[..]);
    }
}
