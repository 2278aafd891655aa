//! The stream under a connection ([`Wire`]): plain, or TLS after the handshake ([`TlsStream`]). This module
//! knows bytes and records, but not certificates; `handshakes` and `standing` check those.

use std::io::{self, IoSlice, Read as _, Write as _};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use rustls::ServerConnection;
use tls::{BarrenRecords, Records, WriteAllowance};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::socket::{BufferPool, Filled, Transport};

/// Memory of an idle TLS connection besides pooled buffers, in bytes: keys, state, and rustls's buffer for an
/// incomplete record, which is never below 4 KiB (measured: 7.9 KB of resident memory).
pub(crate) const TLS_BYTES: usize = 8 * 1024;

/// Limit on the work of one read, in bytes, once it has produced data.
const WORK_AT_ONCE: usize = 64 * 1024;

/// Record size in bytes up to which rustls's buffer for incoming records is not shrunk.
const SMALL_RECORD_BYTES: usize = 4 * 1024;

/// Byte stream of a connection.
#[derive(Debug)]
pub(crate) enum Wire<S> {
    Plain(S),
    Tls(Box<TlsStream<S>>),
}

impl<S: Transport> Wire<S> {
    /// Returns the bytes of the buffers held now.
    pub(crate) fn held_bytes(&self) -> usize {
        match self {
            Wire::Plain(_) => 0,
            Wire::Tls(stream) => stream.held_bytes(),
        }
    }

    /// Returns the cost of reading since the last call beyond the bytes read, as a number of bytes of equal
    /// cost.
    pub(crate) fn take_surplus(&mut self) -> usize {
        match self {
            Wire::Plain(_) => 0,
            Wire::Tls(stream) => std::mem::take(&mut stream.surplus),
        }
    }

    /// Returns true if a TLS record has arrived in part.
    pub(crate) fn is_amid_record(&self) -> bool {
        matches!(self, Wire::Tls(stream) if stream.records.unfinished() > 0)
    }

    /// Returns true if the client negotiated HTTP/2 by ALPN.
    pub(crate) fn has_agreed_on_h2(&self) -> bool {
        matches!(self, Wire::Tls(stream) if stream.tls.alpn_protocol() == Some(b"h2"))
    }

    /// Returns the total bytes of TLS records received.
    pub(crate) fn record_bytes(&self) -> u64 {
        match self {
            Wire::Plain(_) => 0,
            Wire::Tls(stream) => stream.arrived,
        }
    }

    /// Reads bytes that will be discarded, without decrypting them.
    pub(crate) fn poll_discard(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self {
            Wire::Plain(stream) => Pin::new(stream).poll_read(cx, into),
            Wire::Tls(stream) => Pin::new(&mut stream.stream).poll_read(cx, into),
        }
    }
}

impl<S: Transport> AsyncRead for Wire<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Plain(stream) => Pin::new(stream).poll_read(cx, into),
            Wire::Tls(stream) => stream.poll_read(cx, into),
        }
    }
}

impl<S: Transport> AsyncWrite for Wire<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Wire::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Wire::Tls(stream) => stream.poll_write(cx, &[IoSlice::new(bytes)]),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Wire::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Wire::Tls(stream) => stream.poll_write(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Wire::Tls(stream) => stream.poll_shutdown(cx),
        }
    }
}

/// TLS over a stream, after the handshake.
///
/// A read fills a pooled buffer with ciphertext, from which rustls takes what it needs, and copies the
/// plaintext straight to the reader. A write encrypts all offered bytes in few records for one system call.
/// An idle connection holds no buffer except rustls's own, of 4 KiB.
#[derive(Debug)]
pub(crate) struct TlsStream<S> {
    stream: S,
    tls: ServerConnection,
    pool: Rc<BufferPool>,
    /// Ciphertext that was read and not yet passed to rustls.
    input: Option<Filled>,
    records: Records,
    /// Bytes offered to [`TlsStream::poll_write`] that are encrypted and not yet completely sent to the
    /// kernel. The writer offers the same bytes again until they are reported as written.
    encrypted: usize,
    /// Part of `encrypted` that was reported as written.
    reported: usize,
    /// Ciphertext bytes sent to the kernel since `encrypted` was set.
    sent: usize,
    arrived: u64,
    surplus: usize,
    barren: BarrenRecords,
    allowance: WriteAllowance,
    /// True once the client has closed the stream, with or without `close_notify`.
    has_ended: bool,
    /// Error after which the client's input cannot be decrypted any more.
    failure: Option<rustls::Error>,
    has_closed: bool,
}

impl<S: Transport> TlsStream<S> {
    /// Creates the stream. `records` must have scanned all bytes that `tls` was given.
    pub(crate) fn new(
        stream: S,
        tls: ServerConnection,
        records: Records,
        pool: Rc<BufferPool>,
    ) -> TlsStream<S> {
        TlsStream {
            stream,
            allowance: WriteAllowance::of(tls.negotiated_cipher_suite()),
            tls,
            pool,
            input: None,
            records,
            encrypted: 0,
            reported: 0,
            sent: 0,
            arrived: 0,
            surplus: 0,
            barren: BarrenRecords::default(),
            has_ended: false,
            failure: None,
            has_closed: false,
        }
    }

    fn held_bytes(&self) -> usize {
        let input = self.input.as_ref().map_or(0, Filled::capacity);
        input + self.records.unfinished() + self.encrypted
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let mut work = 0;
        let polled = loop {
            self.take_plaintext(into)?;
            let has_given = into.filled().len() > before;
            if into.remaining() == 0 || self.has_ended || (has_given && work >= WORK_AT_ONCE) {
                break Poll::Ready(Ok(()));
            }
            if let Some(failure) = &self.failure {
                // Data from before the failure is returned first.
                break Poll::Ready(if has_given { Ok(()) } else { Err(invalid(failure)) });
            }
            if self.input.is_some() {
                // `BarrenRecords` ends a connection whose records carry no data, so this loop ends with data,
                // a failure or the end of the input.
                work += self.decrypt_some(cx)?;
                continue;
            }
            if has_given {
                break Poll::Ready(Ok(()));
            }
            let mut buffer = self.pool.take();
            let mut space = ReadBuf::new(&mut buffer);
            let polled = Pin::new(&mut self.stream).poll_read(cx, &mut space);
            let end = space.filled().len();
            if end == 0 {
                self.pool.give(buffer);
                // End of file without `close_notify` counts as a normal end, because HTTP messages carry
                // their own length.
                self.has_ended = polled.is_ready();
                break polled;
            }
            self.arrived += end as u64;
            self.input = Some(Filled::new(buffer, end));
        };
        let given = into.filled().len() - before;
        self.surplus += work.saturating_sub(given);
        polled
    }

    /// Copies decrypted bytes to the reader, as far as it has room.
    fn take_plaintext(&mut self, into: &mut ReadBuf<'_>) -> io::Result<()> {
        while into.remaining() > 0 {
            match self.tls.reader().read(into.initialize_unfilled()) {
                Ok(0) => {
                    self.has_ended = true;
                    return Ok(());
                }
                Ok(n) => into.advance(n),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Passes ciphertext to rustls, as much as it takes at once. Returns the cost in bytes.
    fn decrypt_some(&mut self, cx: &mut Context<'_>) -> io::Result<usize> {
        let Some(mut input) = self.input.take() else { return Ok(0) };
        let bytes = input.bytes();
        let taken = self.tls.read_tls(&mut &*bytes)?;
        let records = self.records.scan(&bytes[..taken]);
        let cost = taken + tls::RECORD_COST * records;
        if taken == 0 {
            self.pool.give(input.into_buffer());
            return Err(io::ErrorKind::InvalidData.into());
        }
        let processed = self.tls.process_new_packets();
        if let Err(error) = processed.and_then(|state| self.barren.count(records, &state)) {
            // Sends the TLS alert if the kernel takes it immediately; best effort.
            let _ = self.poll_flush_records(cx);
            self.failure = Some(error);
        }
        if self.failure.is_some() || input.advance(taken) == 0 {
            self.pool.give(input.into_buffer());
            self.shrink();
        } else {
            self.input = Some(input);
        }
        Ok(cost)
    }

    /// Lets rustls free the buffer of a long record, which rustls does at the beginning of a read.
    fn shrink(&mut self) {
        if self.records.unfinished() == 0 && self.records.longest() > SMALL_RECORD_BYTES {
            self.records.forget_longest();
            // The read always fails, because `Nothing` has no bytes; only the shrinking matters.
            let _ = self.tls.read_tls(&mut Nothing);
        }
    }

    /// Encrypts and writes the parts in order.
    fn poll_write(&mut self, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        while self.encrypted == 0 {
            if bytes == 0 {
                return Poll::Ready(Ok(0));
            }
            self.allowance.check(bytes)?;
            self.encrypted = self.tls.writer().write_vectored(parts)?;
            self.allowance.count(self.encrypted);
            if self.encrypted == 0 {
                // rustls's own records, such as alerts, may be in its buffer and must be sent first.
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
            // Record headers count in `sent`, so this reports slightly more than was really sent; the last
            // byte is reported last.
            Poll::Pending => self.sent.min(self.encrypted - 1),
        };
        let more = written - self.reported;
        self.reported = written;
        if more == 0 { Poll::Pending } else { Poll::Ready(Ok(more)) }
    }

    /// Sends encrypted records; becomes ready when the kernel has taken all of them.
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

    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.has_closed {
            self.has_closed = true;
            self.tls.send_close_notify();
        }
        ready!(self.poll_flush_records(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl<S> Drop for TlsStream<S> {
    fn drop(&mut self) {
        if let Some(input) = self.input.take() {
            self.pool.give(input.into_buffer());
        }
    }
}

fn invalid(error: &rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.clone())
}

/// Adapter through which rustls writes to the stream; a pending write becomes `WouldBlock`.
pub(crate) struct Kernel<'a, 'b, S> {
    pub(crate) stream: &'a mut S,
    pub(crate) cx: &'a mut Context<'b>,
}

impl<S: Transport> io::Write for Kernel<'_, '_, S> {
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
    use std::sync::Arc;

    use rustls::crypto::CryptoProvider;
    use rustls::crypto::cipher::{
        AeadKey, Iv, MessageDecrypter, MessageEncrypter, OutboundChunks, OutboundOpaqueMessage,
        OutboundPlainMessage, Tls13AeadAlgorithm, UnsupportedOperationError,
    };
    use rustls::{
        CipherSuiteCommon, ClientConfig, ClientConnection, ConnectionTrafficSecrets, RootCertStore,
        ServerConfig, SupportedCipherSuite, Tls12CipherSuite, Tls13CipherSuite,
    };
    use rustls_pki_types::{PrivatePkcs8KeyDer, ServerName};

    use super::*;
    use crate::socket::{ALLOWANCE_BYTES, BUFFER_BYTES, Socket};

    /// Stream with fixed input; writes are discarded.
    #[derive(Debug)]
    struct Tape {
        bytes: Vec<u8>,
        at: usize,
    }

    impl AsyncRead for Tape {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            into: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let n = into.remaining().min(self.bytes.len() - self.at);
            if n == 0 {
                return Poll::Pending;
            }
            into.put_slice(&self.bytes[self.at..self.at + n]);
            self.at += n;
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Tape {
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

    /// Returns both ends of a connection after the handshake.
    fn pair() -> (ServerConnection, ClientConnection) {
        pair_by(rustls::crypto::ring::default_provider(), rustls::crypto::ring::default_provider())
    }

    /// Returns both ends of a connection after the handshake, with the given crypto providers.
    fn pair_by(at_server: CryptoProvider, at_client: CryptoProvider) -> (ServerConnection, ClientConnection) {
        let certified = testkit::certificates::rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap();
        let certificate = certified.cert.der().clone();
        let key = PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der());
        let server = ServerConfig::builder_with_provider(at_server.into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], key.into())
            .unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate).unwrap();
        let client = ClientConfig::builder_with_provider(at_client.into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut server = ServerConnection::new(Arc::new(server)).unwrap();
        let name = ServerName::try_from("a").unwrap();
        let mut client = ClientConnection::new(Arc::new(client), name).unwrap();
        while server.is_handshaking() || client.is_handshaking() || server.wants_write() {
            let sent = sent_by(&mut client);
            let mut rest = sent.as_slice();
            while !rest.is_empty() {
                server.read_tls(&mut rest).unwrap();
                server.process_new_packets().unwrap();
            }
            let mut sent = Vec::new();
            while server.wants_write() {
                server.write_tls(&mut sent).unwrap();
            }
            receive(&mut client, &sent);
        }
        (server, client)
    }

    fn sent_by(client: &mut ClientConnection) -> Vec<u8> {
        let mut sent = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut sent).unwrap();
        }
        sent
    }

    /// Decrypts bytes from the server.
    fn receive(client: &mut ClientConnection, bytes: &[u8]) -> Vec<u8> {
        let (mut rest, mut plain) = (bytes, Vec::new());
        while !rest.is_empty() {
            client.read_tls(&mut rest).unwrap();
            let state = client.process_new_packets().unwrap();
            let start = plain.len();
            plain.resize(start + state.plaintext_bytes_to_read(), 0);
            client.reader().read_exact(&mut plain[start..]).unwrap();
        }
        plain
    }

    fn tls<S: Transport>(stream: S, server: ServerConnection) -> Wire<S> {
        Wire::Tls(Box::new(TlsStream::new(stream, server, Records::default(), Rc::default())))
    }

    /// Reads until the stream gives no more. Returns the data and the final result.
    fn read_all(wire: &mut Wire<Tape>) -> (Vec<u8>, Poll<io::Result<()>>) {
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

    /// Returns a number of key updates, which are cheap to send and expensive to process. 16 in a row are
    /// tolerated.
    fn flood(client: &mut ClientConnection, updates: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..updates {
            client.refresh_traffic_keys().unwrap();
            bytes.extend(sent_by(client));
        }
        bytes
    }

    #[test]
    fn key_updates_without_anything_else_end_a_connection() {
        let (server, mut client) = pair();
        let bytes = flood(&mut client, 17);
        let (text, end) = read_all(&mut tls(Tape { bytes, at: 0 }, server));
        assert!(text.is_empty() && matches!(end, Poll::Ready(Err(_))));
    }

    #[test]
    fn a_flood_of_key_updates_gets_no_more_than_its_turn() {
        const ROUNDS: usize = 100;
        let (server, mut client) = pair();
        let mut bytes = Vec::new();
        for _ in 0..ROUNDS {
            bytes.extend(flood(&mut client, 15));
            client.writer().write_all(b"x").unwrap();
            bytes.extend(sent_by(&mut client));
        }
        let mut socket = Socket::new(tls(Tape { bytes, at: 0 }, server), Rc::default());
        let cx = &mut Context::from_waker(std::task::Waker::noop());
        let (mut taken, mut rounds) = (0, 0);
        while taken < ROUNDS {
            socket.begin_turn();
            let (mut of_round, mut spent, mut is_dry) = (0, 0, false);
            while spent < ALLOWANCE_BYTES && !is_dry {
                match socket.poll_fill(cx) {
                    Poll::Ready(cost) => spent += cost.unwrap(),
                    Poll::Pending => is_dry = true,
                }
                let n = socket.unread().len();
                socket.consume(n);
                of_round += n;
            }
            assert!(of_round > 0 && of_round <= 30, "{of_round}");
            assert!(!is_dry || taken + of_round == ROUNDS);
            (taken, rounds) = (taken + of_round, rounds + 1);
        }
        assert!(rounds >= 4, "{rounds}");
    }

    /// Returns a provider of TLS 1.2 only, whose keys may encrypt at most `records` records.
    fn short_lived(records: u64) -> CryptoProvider {
        let suite = rustls::crypto::ring::cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256;
        let SupportedCipherSuite::Tls12(suite) = suite else { panic!("it is a suite of TLS 1.2") };
        let Tls12CipherSuite { prf_provider, kx, sign, aead_alg, .. } = *suite;
        let common = CipherSuiteCommon { confidentiality_limit: records, ..suite.common };
        let suite = Tls12CipherSuite { common, prf_provider, kx, sign, aead_alg };
        let cipher_suites = vec![SupportedCipherSuite::Tls12(Box::leak(Box::new(suite)))];
        CryptoProvider { cipher_suites, ..rustls::crypto::ring::default_provider() }
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
