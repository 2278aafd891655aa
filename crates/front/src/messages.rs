//! Short messages that go out together: [`Messages`].

use bytes::{Buf as _, Bytes};

use crate::assembler::PREFIX_BYTES;
use crate::outbound::TrySend;

/// Short messages for one stream, each behind its prefix, as they lie in the payload of a DATA frame.
///
/// A service that has many short messages for a stream at once puts them in here, and [`crate::Outbound::try_send_messages`]
/// sends them in one step and, as a rule, in one frame. The alternative, one [`Bytes`] for each message, costs an allocation, a
/// frame and all checks for each; for messages of some hundred bytes that is several times as much as the copy.
#[derive(Debug, Default)]
pub struct Messages {
    bytes: Vec<u8>,
    /// Where the first message begins; those before it were taken out.
    at: usize,
    count: usize,
    /// Bytes of the longest message that was ever put in.
    longest: usize,
}

impl Messages {
    /// No messages, with memory for so many bytes of them, prefixes included.
    pub fn with_capacity(bytes: usize) -> Messages {
        Messages { bytes: Vec::with_capacity(bytes), ..Messages::default() }
    }

    /// Bytes that a message of `len` bytes takes.
    pub const fn wire_len(len: usize) -> usize {
        PREFIX_BYTES + len
    }

    /// Appends a message, which comes in parts.
    ///
    /// # Panics
    ///
    /// If the message is 4 GiB or longer.
    pub fn push<const PARTS: usize>(&mut self, parts: [&[u8]; PARTS]) {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        self.bytes.reserve(PREFIX_BYTES + len);
        self.bytes.extend_from_slice(&http2::message_prefix(len));
        for part in parts {
            self.bytes.extend_from_slice(part);
        }
        self.count += 1;
        self.longest = self.longest.max(len);
    }

    /// Takes the first message out.
    pub fn pop(&mut self) -> Option<Bytes> {
        let mut rest = self.as_slice().get(1..)?;
        let len = rest.get_u32() as usize;
        let message = Bytes::copy_from_slice(&rest[..len]);
        self.at += PREFIX_BYTES + len;
        self.count -= 1;
        Some(message)
    }

    /// Hands the first message to `send`. Returns the messages behind it, or gives all of them back if it was refused.
    ///
    /// # Errors
    ///
    /// Those of `send`.
    ///
    /// # Panics
    ///
    /// If `send` gives another message back.
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

    /// Puts back, before the others, the message that [`Messages::pop`] took out last.
    fn put_back(&mut self, message: &Bytes) {
        let end = self.at;
        self.at -= PREFIX_BYTES + message.len();
        assert_eq!(self.bytes[self.at + PREFIX_BYTES..end], **message, "what was taken out last is put back");
        self.count += 1;
    }

    /// Number of messages.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns true if there is no message.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes of all messages, with their prefixes.
    pub fn wire_bytes(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Bytes of the longest message that was ever put in.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    /// All messages with their prefixes.
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    /// All messages with their prefixes.
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
            messages.push([first, rest]);
        }
        assert_eq!(messages.len(), all.len());
        assert_eq!(
            messages.wire_bytes(),
            all.iter().map(|message| message.len() + PREFIX_BYTES).sum::<usize>()
        );
        assert_eq!(messages.longest(), all.iter().map(Vec::len).max().unwrap_or_default());
        for message in &all {
            // Whoever could not send it puts it back.
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
