//! A message on its way out: [`Outgoing`] is prefix and body as one buffer that is never copied together, and that stays
//! charged until it has left. It knows no streams.

use std::io::IoSlice;
use std::rc::Rc;

use api::{Code, Status};
use bytes::{Buf, Bytes};

use crate::ledger::Ledger;

/// Bytes of gRPC's prefix: one flag byte and the length, big-endian.
pub(crate) const PREFIX_BYTES: usize = 5;

/// Memory of an answer besides its bytes while the transport holds it: two header blocks, three frames, its stream.
pub(crate) const ANSWER_BYTES: usize = 1024;

/// A message on its way out: prefix and body as one buffer without copying them together. While it lives it
/// is charged to its connection's ledger, and to its stream's if it has one. A message with a ledger of its stream, as
/// every long one has, is released as it leaves; a short one all at once when it has left.
#[derive(Debug)]
pub(crate) struct Outgoing {
    prefix: [u8; PREFIX_BYTES],
    /// Bytes of the prefix already gone.
    at: usize,
    body: Bytes,
    /// Bytes that stay charged to the connection until the whole is gone, besides those that remain.
    overhead: usize,
    /// True if the body is charged to the budget already, as one that others wait for too.
    shared: bool,
    connection: Rc<Ledger>,
    stream: Option<Rc<Ledger>>,
}

impl Outgoing {
    /// A whole message. The length must have been checked (see [`check_len`]).
    pub(crate) fn message(
        body: Bytes,
        compressed: bool,
        connection: &Rc<Ledger>,
        stream: Option<&Rc<Ledger>>,
    ) -> Outgoing {
        let len = body.len();
        Outgoing::first_part(len, body, compressed, connection, stream)
    }

    /// A whole message whose bytes are charged to the budget already.
    pub(crate) fn shared_message(body: Bytes, connection: &Rc<Ledger>, stream: &Rc<Ledger>) -> Outgoing {
        let prefix = prefix(body.len(), false);
        Outgoing::charged(prefix, 0, body, 0, true, connection, Some(stream))
    }

    /// The first part of a message of `len` bytes.
    pub(crate) fn first_part(
        len: usize,
        part: Bytes,
        compressed: bool,
        connection: &Rc<Ledger>,
        stream: Option<&Rc<Ledger>>,
    ) -> Outgoing {
        assert!(part.len() <= len, "a part is no longer than the whole");
        Outgoing::charged(prefix(len, compressed), 0, part, ANSWER_BYTES, false, connection, stream)
    }

    /// A further part of a message.
    pub(crate) fn part(part: Bytes, connection: &Rc<Ledger>, stream: Option<&Rc<Ledger>>) -> Outgoing {
        Outgoing::charged([0; PREFIX_BYTES], PREFIX_BYTES, part, 0, false, connection, stream)
    }

    /// The message, without its prefix.
    pub(crate) fn body(&self) -> Bytes {
        self.body.clone()
    }

    fn charged(
        prefix: [u8; PREFIX_BYTES],
        at: usize,
        body: Bytes,
        overhead: usize,
        shared: bool,
        connection: &Rc<Ledger>,
        stream: Option<&Rc<Ledger>>,
    ) -> Outgoing {
        let n = PREFIX_BYTES - at + body.len();
        connection.message_waits();
        if shared {
            connection.charge_shared(n);
        } else {
            connection.charge(n + overhead);
        }
        if let Some(stream) = stream {
            stream.charge(n);
        }
        Outgoing {
            prefix,
            at,
            body,
            overhead,
            shared,
            connection: connection.clone(),
            stream: stream.cloned(),
        }
    }

    fn release(&self, n: usize, overhead: usize) {
        if self.shared {
            self.connection.release_shared(n);
        } else {
            self.connection.release(n + overhead);
        }
        if let Some(stream) = &self.stream {
            stream.release(n);
        }
    }
}

fn prefix(len: usize, compressed: bool) -> [u8; PREFIX_BYTES] {
    assert!(len <= u32::MAX as usize, "the length of a message was checked");
    let [a, b, c, d] = (len as u32).to_be_bytes();
    [u8::from(compressed), a, b, c, d]
}

/// Refuses a message that is too long to be sent, in grpc-go's words.
pub(crate) fn check_len(len: usize, bytes_max: usize) -> Result<(), Status> {
    if len > bytes_max {
        let text = format!("grpc: trying to send message larger than max ({len} vs. {bytes_max})");
        return Err(Status::with(Code::ResourceExhausted, text));
    }
    Ok(())
}

impl Buf for Outgoing {
    fn remaining(&self) -> usize {
        PREFIX_BYTES - self.at + self.body.len()
    }

    fn chunk(&self) -> &[u8] {
        if self.at < PREFIX_BYTES { &self.prefix[self.at..] } else { &self.body }
    }

    fn chunks_vectored<'a>(&'a self, to: &mut [IoSlice<'a>]) -> usize {
        let parts = [&self.prefix[self.at..], &self.body[..]];
        let mut used = 0;
        for (slot, part) in to.iter_mut().zip(parts.iter().filter(|part| !part.is_empty())) {
            *slot = IoSlice::new(part);
            used += 1;
        }
        used
    }

    fn advance(&mut self, n: usize) {
        assert!(n <= self.remaining(), "advanced past the end of a message");
        let of_prefix = n.min(PREFIX_BYTES - self.at);
        self.at += of_prefix;
        self.body.advance(n - of_prefix);
        if self.stream.is_some() {
            self.release(n, 0);
        } else {
            // The transport takes prefix and body apart: settled at once, they cost one walk through the accounts.
            self.overhead += n;
        }
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.connection.message_went();
        let left = self.remaining();
        if left + self.overhead > 0 {
            self.release(left, self.overhead);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Budget;

    #[test]
    fn it_reads_as_prefix_and_body_and_settles_its_account() {
        let (connection, stream) = (Rc::new(Ledger::default()), Rc::new(Ledger::default()));
        let mut out = Outgoing::message(Bytes::from_static(b"abcdef"), true, &connection, Some(&stream));
        assert_eq!((connection.queued(), stream.queued(), out.remaining()), (11 + ANSWER_BYTES, 11, 11));
        let mut slices = [IoSlice::new(&[]); 4];
        assert_eq!(out.chunks_vectored(&mut slices), 2);
        out.advance(3);
        assert_eq!(out.chunk(), &[0, 6]);
        out.advance(4);
        assert_eq!(out.chunk(), b"cdef");
        assert_eq!((connection.queued(), stream.queued()), (4 + ANSWER_BYTES, 4));
        drop(out);
        assert_eq!((connection.queued(), stream.queued(), stream.moved()), (0, 0, 11));
    }

    #[test]
    fn places_of_messages_are_charged_and_stay() {
        let budget = Budget::new(1 << 30);
        let account = budget.open([127, 0, 0, 1].into());
        let (connection, stream) = (Rc::new(Ledger::of(&account)), Rc::new(Ledger::default()));
        let shared = account.share(Bytes::from_static(b"an event"));
        let waiting: Vec<_> =
            (0..10_000).map(|_| Outgoing::shared_message(shared.clone(), &connection, &stream)).collect();
        assert!(budget.held_bytes() > 10_000 * 256, "{budget:?}");
        drop(waiting);
        // The library does not give back the places in its queue.
        assert!(budget.held_bytes() > 10_000 * 256, "{budget:?}");
        drop((connection, account, shared));
        assert_eq!(budget.held_bytes(), 0);
    }

    #[test]
    fn a_message_too_long_is_refused_with_the_words_of_grpc() {
        assert_eq!(check_len(10, 10), Ok(()));
        let text = "grpc: trying to send message larger than max (11 vs. 10)";
        assert_eq!(check_len(11, 10), Err(Status::new(Code::ResourceExhausted, text)));
    }
}
