use std::io::IoSlice;
use std::rc::Rc;

use bytes::{Buf, Bytes};

use crate::ledger::Ledger;

/// Bytes of gRPC's prefix: one flag byte and the length, big-endian.
pub(crate) const PREFIX_BYTES: usize = 5;

/// A message on its way out: prefix and body as one buffer without copying them together. While it lives it
/// is charged to its connection's ledger, and to its stream's if it has one.
#[derive(Debug)]
pub(crate) struct Outgoing {
    prefix: [u8; PREFIX_BYTES],
    /// Bytes of the prefix already gone.
    at: usize,
    body: Bytes,
    connection: Rc<Ledger>,
    stream: Option<Rc<Ledger>>,
}

impl Outgoing {
    /// A whole message.
    pub(crate) fn message(
        body: Bytes,
        compressed: bool,
        connection: &Rc<Ledger>,
        stream: Option<&Rc<Ledger>>,
    ) -> Outgoing {
        let len = body.len();
        Outgoing::first_part(len, body, compressed, connection, stream)
    }

    /// The first part of a message of `len` bytes.
    pub(crate) fn first_part(
        len: usize,
        part: Bytes,
        compressed: bool,
        connection: &Rc<Ledger>,
        stream: Option<&Rc<Ledger>>,
    ) -> Outgoing {
        assert!(len <= u32::MAX as usize && part.len() <= len, "a gRPC message has a length of 32 bits");
        let [a, b, c, d] = (len as u32).to_be_bytes();
        Outgoing::charged([u8::from(compressed), a, b, c, d], 0, part, connection, stream)
    }

    /// A further part of a message.
    pub(crate) fn part(part: Bytes, connection: &Rc<Ledger>, stream: Option<&Rc<Ledger>>) -> Outgoing {
        Outgoing::charged([0; PREFIX_BYTES], PREFIX_BYTES, part, connection, stream)
    }

    fn charged(
        prefix: [u8; PREFIX_BYTES],
        at: usize,
        body: Bytes,
        connection: &Rc<Ledger>,
        stream: Option<&Rc<Ledger>>,
    ) -> Outgoing {
        let n = PREFIX_BYTES - at + body.len();
        connection.charge(n);
        if let Some(stream) = stream {
            stream.charge(n);
        }
        Outgoing { prefix, at, body, connection: connection.clone(), stream: stream.cloned() }
    }

    fn release(&self, n: usize) {
        self.connection.release(n);
        if let Some(stream) = &self.stream {
            stream.release(n);
        }
    }
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
        self.release(n);
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        let left = self.remaining();
        if left > 0 {
            self.release(left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_as_prefix_and_body_and_settles_its_account() {
        let (connection, stream) = (Rc::new(Ledger::default()), Rc::new(Ledger::default()));
        let mut out = Outgoing::message(Bytes::from_static(b"abcdef"), true, &connection, Some(&stream));
        assert_eq!((connection.queued(), stream.queued(), out.remaining()), (11, 11, 11));
        let mut slices = [IoSlice::new(&[]); 4];
        assert_eq!(out.chunks_vectored(&mut slices), 2);
        out.advance(3);
        assert_eq!(out.chunk(), &[0, 6]);
        out.advance(4);
        assert_eq!(out.chunk(), b"cdef");
        assert_eq!((connection.queued(), stream.queued()), (4, 4));
        drop(out);
        assert_eq!((connection.queued(), stream.queued(), stream.moved()), (0, 0, 11));
    }
}
