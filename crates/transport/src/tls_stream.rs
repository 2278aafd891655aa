//! Encrypts and decrypts the data of a connection after its TLS handshake ([`TlsStream`]). This module knows
//! bytes and TLS records, but not certificates.

use std::io::{self, BufRead as _, IoSlice, Write as _};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustls::Connection;
use tokio::io::ReadBuf;

use crate::buffers::{Buffers, Filled};
use crate::records::{BarrenRecords, RECORD_COST, Records, WriteAllowance};
use crate::wire::ByteStream;

/// Memory in bytes that an idle TLS connection takes: keys, state, and the buffer of rustls for incomplete
/// records, which has at least 4 KiB (measured: 7.9 KB of resident memory).
pub const TLS_BYTES: usize = 8 * 1024;

/// Amount of work after which a read returns, if it has produced data: bytes, plus [`RECORD_COST`] per
/// record.
const WORK_AT_ONCE: usize = 64 * 1024;

/// Record size in bytes up to which the buffer of rustls for received records is not shrunk.
const SMALL_RECORD_BYTES: usize = 4 * 1024;

/// Tells how the end of a stream is treated if the other end has not sent `close_notify`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// A missing `close_notify` is accepted as a normal end. For protocols that notice a truncated message by
    /// its length, as HTTP does.
    Any,
    /// A missing `close_notify` is an error (`UnexpectedEof`).
    Announced,
}

/// TLS over a byte stream, after the handshake, for clients and servers.
///
/// A read fills a borrowed buffer with ciphertext, passes it to rustls, and copies the plaintext directly to
/// the reader. A write encrypts all offered bytes in as few records as possible, sends them with one system
/// call if possible, and reports them as written when the kernel has accepted them. An idle connection holds
/// no buffer except the 4 KiB of rustls.
///
/// `tokio-rustls` reports bytes as written once they are encrypted. This design was rejected: if the other
/// end reads nothing, the connection would hold encrypted bytes that its writer does not count any more.
#[derive(Debug)]
pub struct TlsStream<S, P: Buffers> {
    stream: S,
    tls: Connection,
    buffers: P,
    /// Received ciphertext that was not passed to rustls yet.
    input: Option<Filled>,
    records: Records,
    /// Number of bytes offered to [`TlsStream::poll_write`] that were encrypted, until the kernel has
    /// accepted all of them. The writer offers the same bytes again until they are reported as written.
    encrypted: usize,
    /// Number of the `encrypted` bytes that were already reported as written.
    reported: usize,
    /// Number of bytes of ciphertext that the kernel has accepted since [`TlsStream::poll_write`] last
    /// encrypted bytes.
    sent: usize,
    arrived: u64,
    surplus: usize,
    barren: BarrenRecords,
    allowance: WriteAllowance,
    ending: Ending,
    /// True once the other end has closed the stream, with or without `close_notify`.
    has_ended: bool,
    /// Error after which no further input can be decrypted. It is returned once the data before it was read.
    failure: Option<rustls::Error>,
    has_closed: bool,
}

impl<S: ByteStream, P: Buffers> TlsStream<S, P> {
    /// Creates the stream. `records` must have processed all bytes that were passed to `tls`.
    pub fn new(
        stream: S,
        tls: impl Into<Connection>,
        records: Records,
        buffers: P,
        ending: Ending,
    ) -> TlsStream<S, P> {
        let tls = tls.into();
        TlsStream {
            stream,
            allowance: WriteAllowance::of(tls.negotiated_cipher_suite()),
            tls,
            buffers,
            input: None,
            records,
            encrypted: 0,
            reported: 0,
            sent: 0,
            arrived: 0,
            surplus: 0,
            barren: BarrenRecords::default(),
            ending,
            has_ended: false,
            failure: None,
            has_closed: false,
        }
    }

    /// Returns the stream below TLS.
    pub fn below(&self) -> &S {
        &self.stream
    }

    /// Returns the stream below TLS. The caller must not read or write it.
    pub fn below_mut(&mut self) -> &mut S {
        &mut self.stream
    }

    /// Returns the state of TLS.
    pub fn connection(&self) -> &Connection {
        &self.tls
    }

    /// Returns the protocol that both ends agreed on by ALPN.
    pub fn alpn_protocol(&self) -> Option<&[u8]> {
        self.tls.alpn_protocol()
    }

    /// Returns the number of bytes of memory that the stream holds for data at the moment.
    pub fn held_bytes(&self) -> usize {
        let input = self.input.as_ref().map_or(0, Filled::capacity);
        input + self.records.unfinished() + self.encrypted
    }

    /// Returns the additional processor time that reading took since the last call, for small TLS records. It
    /// is expressed as the number of bytes of data that take the same time.
    pub fn take_surplus(&mut self) -> usize {
        std::mem::take(&mut self.surplus)
    }

    /// Returns true if a part of a record has arrived, and the rest has not.
    pub fn is_amid_record(&self) -> bool {
        self.records.unfinished() > 0
    }

    /// Returns the total number of bytes received, including the overhead of TLS.
    pub fn record_bytes(&self) -> u64 {
        self.arrived
    }

    /// Reads bytes that will be discarded, without decrypting them.
    pub fn poll_discard(&mut self, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_read_unpin(cx, into)
    }

    /// Reads up to `room` bytes of plaintext and passes them to `put`, in one or more calls. At the end of
    /// the stream, becomes ready without a call.
    pub fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        room: usize,
        mut put: impl FnMut(&[u8]),
    ) -> Poll<io::Result<()>> {
        let (mut given, mut work) = (0, 0);
        let polled = loop {
            given += self.take_plaintext(room - given, &mut put)?;
            if given == room || self.has_ended || (given > 0 && work >= WORK_AT_ONCE) {
                break Poll::Ready(Ok(()));
            }
            if let Some(failure) = &self.failure {
                // First return the data that was received before the failure; a later read returns the error.
                break Poll::Ready(if given > 0 { Ok(()) } else { Err(invalid(failure)) });
            }
            if self.input.is_some() {
                // Decrypt more and try again. The loop ends even if records contain no data, because
                // `BarrenRecords` then ends the connection with an error.
                work += self.decrypt_some(cx)?;
                continue;
            }
            if given > 0 {
                break Poll::Ready(Ok(()));
            }
            let mut buffer = self.buffers.take();
            let mut space = ReadBuf::new(&mut buffer);
            let polled = self.stream.poll_read_unpin(cx, &mut space);
            let end = space.filled().len();
            if end == 0 {
                self.buffers.give(buffer);
                if matches!(polled, Poll::Ready(Ok(()))) && self.ending == Ending::Announced {
                    // Tell rustls that the stream has ended. If `close_notify` is missing, `take_plaintext`
                    // returns the error in the next iteration.
                    self.tls.read_tls(&mut io::empty())?;
                    continue;
                }
                self.has_ended = matches!(polled, Poll::Ready(Ok(())));
                break polled;
            }
            self.arrived += end as u64;
            self.input = Some(Filled::new(buffer, end));
        };
        self.surplus += work.saturating_sub(given);
        polled
    }

    /// Passes up to `room` decrypted bytes to `put`. Returns their number.
    fn take_plaintext(&mut self, room: usize, put: &mut impl FnMut(&[u8])) -> io::Result<usize> {
        let (mut given, mut reader) = (0, self.tls.reader());
        while given < room {
            match reader.fill_buf() {
                Ok([]) => {
                    self.has_ended = true;
                    break;
                }
                Ok(bytes) => {
                    let bytes = &bytes[..bytes.len().min(room - given)];
                    put(bytes);
                    let n = bytes.len();
                    reader.consume(n);
                    given += n;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(given)
    }

    /// Passes ciphertext to rustls, as much as rustls accepts in one call. Returns the amount of work: the
    /// number of bytes, plus [`RECORD_COST`] per record.
    fn decrypt_some(&mut self, cx: &mut Context<'_>) -> io::Result<usize> {
        let Some(mut input) = self.input.take() else { return Ok(0) };
        let bytes = input.bytes();
        let taken = self.tls.read_tls(&mut &*bytes)?;
        let records = self.records.scan(&bytes[..taken]);
        let cost = taken + RECORD_COST * records;
        if taken == 0 {
            self.buffers.give(input.buffer);
            return Err(io::ErrorKind::InvalidData.into());
        }
        let processed = self.tls.process_new_packets();
        if let Err(error) = processed.and_then(|state| self.barren.count(records, &state)) {
            // Try to send the TLS alert. An error is ignored, because the connection has failed anyway.
            let _ = self.poll_flush_records(cx);
            self.failure = Some(error);
        }
        if self.failure.is_some() || input.advance(taken) == 0 {
            self.buffers.give(input.buffer);
            self.shrink();
        } else {
            self.input = Some(input);
        }
        Ok(cost)
    }

    /// Lets rustls free the large buffer of a long record, so that an idle connection does not hold it.
    /// rustls does this at the beginning of a read.
    fn shrink(&mut self) {
        if self.records.unfinished() == 0 && self.records.longest() > SMALL_RECORD_BYTES {
            self.records.forget_longest();
            // The read fails, because `Nothing` has no bytes. The result is ignored, because the call is made
            // only to shrink the buffer.
            let _ = self.tls.read_tls(&mut Nothing);
        }
    }

    /// Encrypts and writes `parts` in order. Returns the number of bytes written.
    ///
    /// Bytes count as written when the kernel has accepted them. Bytes that were offered and not reported as
    /// written must be offered again, possibly with more bytes after them.
    pub fn poll_write(&mut self, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        while self.encrypted == 0 {
            if bytes == 0 {
                return Poll::Ready(Ok(0));
            }
            self.allowance.check(bytes)?;
            self.sent = 0;
            self.encrypted = self.tls.writer().write_vectored(parts)?;
            self.allowance.count(self.encrypted);
            if self.encrypted == 0 {
                // The buffer of rustls is full of other records, such as alerts. Send them first, then
                // encrypt again.
                ready!(self.poll_flush_records(cx))?;
            }
        }
        debug_assert!(bytes >= self.encrypted - self.reported, "offered again");
        let written = match self.poll_flush_records(cx)? {
            Poll::Ready(()) => {
                let rest = self.encrypted - self.reported;
                (self.encrypted, self.reported, self.sent) = (0, 0, 0);
                return Poll::Ready(Ok(rest));
            }
            // The number of plaintext bytes is not known exactly: `sent` includes the headers of records, so
            // slightly more bytes are reported than the kernel has accepted. The last byte is reported only
            // when all of them were accepted.
            Poll::Pending => self.sent.min(self.encrypted - 1),
        };
        let more = written - self.reported;
        self.reported = written;
        if more == 0 { Poll::Pending } else { Poll::Ready(Ok(more)) }
    }

    /// Sends the encrypted records. Becomes ready when the kernel has accepted all of them.
    fn poll_flush_records(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut Kernel { stream: &mut self.stream, cx }) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(n) => self.sent += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Sends everything that is encrypted, including answers to received records, such as a key update.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush_records(cx)
    }

    /// Sends the answer to received records, such as a key update. Does nothing while a write is pending,
    /// because that write sends the answer, too.
    pub fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.encrypted > 0 { Poll::Ready(Ok(())) } else { self.poll_flush_records(cx) }
    }

    /// Sends `close_notify`, and closes the writing half.
    pub fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.has_closed {
            self.has_closed = true;
            self.tls.send_close_notify();
        }
        ready!(self.poll_flush_records(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl<S, P: Buffers> Drop for TlsStream<S, P> {
    fn drop(&mut self) {
        if let Some(input) = self.input.take() {
            self.buffers.give(input.buffer);
        }
    }
}

fn invalid(error: &rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.clone())
}

/// Adapter through which rustls writes to the stream. If the stream is pending, the write fails with
/// `WouldBlock`.
pub(crate) struct Kernel<'a, 'b, S> {
    pub(crate) stream: &'a mut S,
    pub(crate) cx: &'a mut Context<'b>,
}

impl<S: ByteStream> io::Write for Kernel<'_, '_, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        at_once(Pin::new(&mut *self.stream).poll_write(self.cx, bytes))
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        at_once(Pin::new(&mut *self.stream).poll_write_vectored(self.cx, parts))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn at_once(polled: Poll<io::Result<usize>>) -> io::Result<usize> {
    match polled {
        Poll::Ready(result) => result,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

/// Reader without data: every read returns `WouldBlock`.
struct Nothing;

impl io::Read for Nothing {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use rustls::crypto::CryptoProvider;
    use rustls::crypto::cipher::{
        AeadKey, Iv, MessageDecrypter, MessageEncrypter, OutboundChunks, OutboundOpaqueMessage,
        OutboundPlainMessage, Tls13AeadAlgorithm, UnsupportedOperationError,
    };
    use rustls::{
        CipherSuiteCommon, ConnectionTrafficSecrets, ServerConnection, SupportedCipherSuite, Tls13CipherSuite,
    };
    use testkit::Tape;
    use testkit::tls_ends::{flood, pair, pair_by, receive, sent_by, short_lived};

    use super::*;
    use crate::buffers::{BUFFER_BYTES, BufferPool};
    use crate::wire::Wire;
    use tokio::io::{AsyncRead, AsyncWrite};

    fn tls<S: ByteStream>(stream: S, mut server: ServerConnection) -> Wire<S, Rc<BufferPool>> {
        server.set_buffer_limit(Some(BUFFER_BYTES));
        let stream = TlsStream::new(stream, server, Records::default(), Rc::default(), Ending::Any);
        Wire::Tls(Box::new(stream))
    }

    /// Reads until the stream gives no more. Returns the data and the final result.
    fn read_all<S: ByteStream>(wire: &mut Wire<S, Rc<BufferPool>>) -> (Vec<u8>, Poll<io::Result<()>>) {
        let cx = &mut Context::from_waker(std::task::Waker::noop());
        let (mut all, mut buffer) = (Vec::new(), vec![0; BUFFER_BYTES]);
        loop {
            let mut into = ReadBuf::new(&mut buffer);
            match Pin::new(&mut *wire).poll_read(cx, &mut into) {
                Poll::Ready(Ok(())) if !into.filled().is_empty() => all.extend_from_slice(into.filled()),
                end => return (all, end),
            }
        }
    }

    #[test]
    fn an_idle_connection_holds_no_buffer() {
        let (server, mut client) = pair();
        let text: Vec<u8> = (0..40_000_u32).map(|n| n as u8).collect();
        client.writer().write_all(&text).unwrap();
        let bytes = sent_by(&mut client);
        let (some, rest) = bytes.split_at(20_000);
        let mut wire = tls(Tape { bytes: some.to_vec(), at: 0 }, server);
        let (first, end) = read_all(&mut wire);
        assert!(end.is_pending() && first == text[..first.len()]);
        // A part of the second record has arrived.
        assert!(wire.is_amid_record());
        assert!(wire.held_bytes() > 3000 && wire.held_bytes() < 4000, "{}", wire.held_bytes());
        let Wire::Tls(stream) = &mut wire else { unreachable!() };
        stream.stream.bytes.extend_from_slice(rest);
        let (second, end) = read_all(&mut wire);
        assert!(end.is_pending() && second == text[first.len()..]);
        assert!(!wire.is_amid_record() && wire.held_bytes() == 0);
        assert_eq!(wire.record_bytes(), bytes.len() as u64);
    }

    #[test]
    fn what_the_kernel_does_not_take_is_offered_again() {
        let (server, mut client) = pair();
        let (stream, mut far) = tokio::io::duplex(5000);
        let mut wire = tls(stream, server);
        let cx = &mut Context::from_waker(std::task::Waker::noop());
        let text: Vec<u8> = (0..100_000_u32).map(|n| (n / 7) as u8).collect();
        let (mut written, mut seen) = (0, Vec::new());
        while seen.len() < text.len() {
            let offered = &text[written..text.len().min(written + BUFFER_BYTES)];
            match Pin::new(&mut wire).poll_write(cx, offered) {
                Poll::Ready(n) => written += n.unwrap(),
                Poll::Pending => {
                    assert!(wire.held_bytes() > 0 && wire.held_bytes() <= BUFFER_BYTES);
                }
            }
            // Only bytes that were sent may be reported as written, up to the size of record headers.
            let mut buffer = [0; 4096];
            let mut into = ReadBuf::new(&mut buffer);
            if Pin::new(&mut far).poll_read(cx, &mut into).is_ready() {
                seen.extend(receive(&mut client, into.filled()));
            }
        }
        assert_eq!((written, wire.held_bytes()), (text.len(), 0));
        assert!(seen == text);
    }

    /// Stream whose reads fail.
    #[derive(Debug)]
    struct Reset;

    impl AsyncRead for Reset {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
        }
    }

    impl AsyncWrite for Reset {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn a_read_that_failed_is_not_followed_by_an_end() {
        let (server, _) = pair();
        let mut wire = tls(Reset, server);
        for _ in 0..3 {
            let (_, end) = read_all(&mut wire);
            assert!(matches!(end, Poll::Ready(Err(_))), "{end:?}");
        }
    }

    #[test]
    fn a_farewell_and_a_disappearance_are_ends() {
        let (server, mut client) = pair();
        client.writer().write_all(b"last").unwrap();
        client.send_close_notify();
        let bytes = sent_by(&mut client);
        let (text, end) = read_all(&mut tls(Tape { bytes, at: 0 }, server));
        assert!(text == b"last" && matches!(end, Poll::Ready(Ok(()))));

        let (server, mut client) = pair();
        client.writer().write_all(b"last").unwrap();
        let (stream, mut far) = tokio::io::duplex(5000);
        let cx = &mut Context::from_waker(std::task::Waker::noop());
        assert!(Pin::new(&mut far).poll_write(cx, &sent_by(&mut client)).is_ready());
        drop(far);
        let mut wire = tls(stream, server);
        let mut buffer = [0; 100];
        let mut into = ReadBuf::new(&mut buffer);
        assert!(matches!(Pin::new(&mut wire).poll_read(cx, &mut into), Poll::Ready(Ok(()))));
        assert_eq!(into.filled(), b"last");
        into.clear();
        assert!(matches!(Pin::new(&mut wire).poll_read(cx, &mut into), Poll::Ready(Ok(()))));
        assert!(into.filled().is_empty());
    }

    #[test]
    fn an_end_that_must_be_announced_and_is_not_is_an_error() {
        for announces in [true, false] {
            let (server, mut client) = pair();
            client.writer().write_all(b"last").unwrap();
            if announces {
                client.send_close_notify();
            }
            let (stream, mut far) = tokio::io::duplex(5000);
            let cx = &mut Context::from_waker(std::task::Waker::noop());
            assert!(Pin::new(&mut far).poll_write(cx, &sent_by(&mut client)).is_ready());
            drop(far);
            let mut stream = TlsStream::new(
                stream,
                server,
                Records::default(),
                crate::buffers::ThreadBuffers(5000),
                Ending::Announced,
            );
            let mut text = Vec::new();
            let first = stream.poll_read(cx, 100, |bytes| text.extend_from_slice(bytes));
            assert!(matches!(first, Poll::Ready(Ok(()))) && text == b"last");
            for _ in 0..2 {
                let end = stream.poll_read(cx, 100, |_| panic!("there is nothing more"));
                assert!(match end {
                    Poll::Ready(Ok(())) => announces,
                    Poll::Ready(Err(error)) => !announces && error.kind() == io::ErrorKind::UnexpectedEof,
                    Poll::Pending => false,
                });
            }
        }
    }

    #[test]
    fn what_comes_before_a_broken_record_is_given_first() {
        let (server, mut client) = pair();
        client.writer().write_all(b"good").unwrap();
        let mut bytes = sent_by(&mut client);
        client.writer().write_all(b"bad").unwrap();
        bytes.extend(sent_by(&mut client));
        *bytes.last_mut().unwrap() ^= 1;
        let (text, end) = read_all(&mut tls(Tape { bytes, at: 0 }, server));
        assert!(text == b"good" && matches!(end, Poll::Ready(Err(_))));
    }

    #[test]
    fn garbage_ends_a_connection_and_nothing_else() {
        let mut random = stdx::Random::new(7);
        for _ in 0..200 {
            let (server, mut client) = pair();
            client.writer().write_all(&[1; 3000]).unwrap();
            let mut bytes = sent_by(&mut client);
            for _ in 0..=random.below(4) {
                let at = random.below(bytes.len() as u64) as usize;
                match random.below(3) {
                    0 => bytes[at] = random.below(256) as u8,
                    1 => bytes.truncate(at),
                    _ => bytes.insert(at, random.below(256) as u8),
                }
                if bytes.is_empty() {
                    break;
                }
            }
            let (text, end) = read_all(&mut tls(Tape { bytes, at: 0 }, server));
            assert!([0, 3000].contains(&text.len()), "{}", text.len());
            assert!(!matches!(end, Poll::Ready(Ok(()))));
        }
    }

    /// Cipher that empties records of one byte, because rustls cannot be made to send empty records.
    struct Emptying(&'static dyn Tls13AeadAlgorithm);

    struct EmptyingEncrypter(Box<dyn MessageEncrypter>);

    impl MessageEncrypter for EmptyingEncrypter {
        fn encrypt(
            &mut self,
            mut message: OutboundPlainMessage<'_>,
            sequence: u64,
        ) -> Result<OutboundOpaqueMessage, rustls::Error> {
            if message.payload.len() == 1 && message.typ == rustls::ContentType::ApplicationData {
                message.payload = OutboundChunks::new_empty();
            }
            self.0.encrypt(message, sequence)
        }

        fn encrypted_payload_len(&self, len: usize) -> usize {
            self.0.encrypted_payload_len(len)
        }
    }

    impl Tls13AeadAlgorithm for Emptying {
        fn encrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageEncrypter> {
            Box::new(EmptyingEncrypter(self.0.encrypter(key, iv)))
        }

        fn decrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageDecrypter> {
            self.0.decrypter(key, iv)
        }

        fn key_len(&self) -> usize {
            self.0.key_len()
        }

        fn extract_keys(
            &self,
            key: AeadKey,
            iv: Iv,
        ) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
            self.0.extract_keys(key, iv)
        }
    }

    /// Returns a provider with one cipher suite, which empties records of one byte.
    fn emptying() -> CryptoProvider {
        let SupportedCipherSuite::Tls13(suite) = rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256
        else {
            panic!("it is a suite of TLS 1.3");
        };
        let aead_alg: &'static Emptying = Box::leak(Box::new(Emptying(suite.aead_alg)));
        let common = CipherSuiteCommon { ..suite.common };
        let suite = Tls13CipherSuite { common, hkdf_provider: suite.hkdf_provider, aead_alg, quic: None };
        let cipher_suites = vec![SupportedCipherSuite::Tls13(Box::leak(Box::new(suite)))];
        CryptoProvider { cipher_suites, ..rustls::crypto::ring::default_provider() }
    }

    #[test]
    fn empty_records_and_key_updates_by_turns_end_a_connection() {
        let (server, mut client) = pair_by(rustls::crypto::ring::default_provider(), emptying());
        let mut bytes = Vec::new();
        for _ in 0..1000 {
            client.refresh_traffic_keys().unwrap();
            client.writer().write_all(b"E").unwrap();
            bytes.extend(sent_by(&mut client));
        }
        let mut wire = tls(Tape { bytes, at: 0 }, server);
        let (text, end) = read_all(&mut wire);
        assert!(text.is_empty());
        assert!(
            matches!(end, Poll::Ready(Err(error)) if error.to_string().contains("too many ignored records"))
        );
    }

    #[test]
    fn key_updates_without_anything_else_end_a_connection() {
        let (server, mut client) = pair();
        let bytes = flood(&mut client, 17);
        let (text, end) = read_all(&mut tls(Tape { bytes, at: 0 }, server));
        assert!(text.is_empty() && matches!(end, Poll::Ready(Err(_))));
    }

    #[test]
    fn what_is_reported_as_written_arrives_also_when_the_keys_are_used_up() {
        let (server, mut client) = pair_by(short_lived(50), rustls::crypto::ring::default_provider());
        let (stream, mut far) = tokio::io::duplex(BUFFER_BYTES);
        let mut wire = tls(stream, server);
        let cx = &mut Context::from_waker(std::task::Waker::noop());
        let mut written = 0;
        let ended = (0..50).any(|_| match Pin::new(&mut wire).poll_write(cx, &[7; 100]) {
            Poll::Ready(Ok(n)) => {
                written += n;
                false
            }
            Poll::Ready(Err(_)) => true,
            Poll::Pending => panic!("there is room for all"),
        });
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut into = ReadBuf::new(&mut buffer);
        assert!(Pin::new(&mut far).poll_read(cx, &mut into).is_ready());
        assert_eq!(receive(&mut client, into.filled()).len(), written);
        assert!(ended && written >= 30 * 100, "{written}");
    }
}
