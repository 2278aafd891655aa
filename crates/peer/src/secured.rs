//! [`Secured`]: TLS over a [`Wire`], including the handshake. It does not decide whom to trust.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, BufRead, IoSlice, Read, Write};
use std::task::{Context, Poll, ready};

use rustls::{ClientConnection, Connection, ServerConnection};
use rustls_pki_types::CertificateDer;
use tls::{BarrenRecords, Records, WriteAllowance};

use crate::wire::Wire;

/// Maximum number of bytes per read.
pub(crate) const READ_BYTES: usize = 128 * 1024;
/// Limit in bytes on encrypted data that the kernel has not taken yet.
const WRITE_BYTES: usize = 128 * 1024;

thread_local! {
    /// Temporary buffer for reads.
    pub(crate) static SPACE: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into_boxed_slice());
}

/// Reason why a handshake failed.
#[derive(Debug)]
pub(crate) enum HandshakeError {
    /// The connection broke.
    Io(io::Error),
    /// One end refused the other.
    Tls(rustls::Error),
}

/// State of one TLS connection without its socket, so that it can move between threads.
pub(crate) struct Secured {
    connection: Connection,
    /// Received bytes that rustls has not taken yet, from offset `taken` on.
    ahead: Vec<u8>,
    taken: usize,
    records: Records,
    barren: BarrenRecords,
    /// Set when the handshake is complete.
    allowance: WriteAllowance,
    says_goodbye: bool,
}

impl Secured {
    pub(crate) fn server(connection: ServerConnection) -> Secured {
        Secured::new(connection.into())
    }

    pub(crate) fn client(connection: ClientConnection) -> Secured {
        Secured::new(connection.into())
    }

    fn new(mut connection: Connection) -> Secured {
        connection.set_buffer_limit(Some(WRITE_BYTES));
        Secured {
            connection,
            ahead: Vec::new(),
            taken: 0,
            records: Records::default(),
            barren: BarrenRecords::default(),
            allowance: WriteAllowance::of(None),
            says_goodbye: false,
        }
    }

    /// Returns the certificates that the other end has presented.
    pub(crate) fn peer_certificates(&self) -> Option<&[CertificateDer<'static>]> {
        self.connection.peer_certificates()
    }

    /// Returns the server name that a client asked for (SNI).
    pub(crate) fn server_name(&self) -> Option<&str> {
        match &self.connection {
            Connection::Server(connection) => connection.server_name(),
            Connection::Client(_) => None,
        }
    }

    /// Performs the handshake. If it fails, the TLS alert is sent only if the kernel takes it immediately.
    pub(crate) async fn handshake(&mut self, wire: &mut Wire) -> Result<(), HandshakeError> {
        poll_fn(|cx| self.poll_handshake(wire, cx)).await
    }

    fn poll_handshake(&mut self, wire: &mut Wire, cx: &mut Context<'_>) -> Poll<Result<(), HandshakeError>> {
        loop {
            let sent = self.poll_send(wire, cx).map_err(HandshakeError::Io)?;
            if !self.connection.is_handshaking() {
                self.allowance = WriteAllowance::of(self.connection.negotiated_cipher_suite());
                return sent.map(Ok);
            }
            let came = ready!(self.poll_receive(wire, cx));
            match came {
                Ok(0) => return Poll::Ready(Err(HandshakeError::Io(io::ErrorKind::UnexpectedEof.into()))),
                Ok(_) => {}
                Err(error) => {
                    // Sends the TLS alert with the reason; best effort.
                    let _ = self.poll_send(wire, cx);
                    return Poll::Ready(Err(tls_error(error)));
                }
            }
        }
    }

    /// Sends `close_notify` if the kernel takes it immediately.
    pub(crate) async fn close(&mut self, wire: &mut Wire) {
        self.goodbye();
        poll_fn(|cx| {
            let _ = self.poll_send(wire, cx);
            Poll::Ready(())
        })
        .await;
    }

    fn goodbye(&mut self) {
        if !std::mem::replace(&mut self.says_goodbye, true) {
            self.connection.send_close_notify();
        }
    }

    /// Writes all encrypted data to the socket.
    pub(crate) fn poll_send(&mut self, wire: &mut Wire, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.connection.wants_write() {
            let mut out = Out { wire: &mut *wire, cx: &mut *cx };
            match self.connection.write_tls(&mut out) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Reads from the socket, unless received bytes are left that rustls has not taken. Returns 0 at the end
    /// of the stream.
    fn poll_receive(&mut self, wire: &mut Wire, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.taken < self.ahead.len() {
            return Poll::Ready(self.take_ahead(wire));
        }
        SPACE.with_borrow_mut(|space| {
            let bytes = ready!(wire.poll_read(cx, space))?;
            let came = &space[..bytes];
            let taken = self.feed(wire, came)?;
            if taken < bytes {
                self.ahead = came[taken..].to_vec();
                self.taken = 0;
            }
            Poll::Ready(Ok(bytes))
        })
    }

    fn take_ahead(&mut self, wire: &mut Wire) -> io::Result<usize> {
        let ahead = std::mem::take(&mut self.ahead);
        let taken = self.feed(wire, &ahead[self.taken..])?;
        self.taken += taken;
        if self.taken < ahead.len() {
            self.ahead = ahead;
        } else {
            self.taken = 0;
        }
        Ok(taken)
    }

    /// Passes received bytes to rustls until plaintext is available. Returns the number of bytes taken. Each
    /// record also counts as [`tls::RECORD_COST`] bytes read, because many small records are expensive.
    fn feed(&mut self, wire: &mut Wire, bytes: &[u8]) -> io::Result<usize> {
        let mut left = bytes;
        loop {
            let before = left;
            // A read of 0 bytes tells rustls about the end of the stream.
            let took = self.connection.read_tls(&mut left as &mut dyn Read)?;
            let records = self.records.scan(&before[..took]);
            wire.count_as_read(tls::RECORD_COST * records);
            let is_shaking = self.connection.is_handshaking();
            let state = self.connection.process_new_packets().and_then(|state| {
                if !is_shaking {
                    self.barren.count(records, &state)?;
                }
                Ok(state)
            });
            let state = state.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            if left.is_empty() || took == 0 || state.plaintext_bytes_to_read() > 0 {
                return Ok(bytes.len() - left.len());
            }
        }
    }

    /// Reads up to `room` bytes and passes them to `put` piece by piece. Nothing is passed at the end
    /// announced by the other end; a connection that ends without the announcement is an error.
    pub(crate) fn poll_read(
        &mut self,
        wire: &mut Wire,
        cx: &mut Context<'_>,
        mut room: usize,
        mut put: impl FnMut(&[u8]),
    ) -> Poll<io::Result<()>> {
        let mut got = 0;
        loop {
            let mut reader = self.connection.reader();
            match reader.fill_buf() {
                Ok([]) => return Poll::Ready(Ok(())),
                Ok(bytes) => {
                    let bytes = &bytes[..bytes.len().min(room)];
                    put(bytes);
                    let count = bytes.len();
                    reader.consume(count);
                    room -= count;
                    got += count;
                    if room == 0 || self.taken == self.ahead.len() && !self.has_plaintext() {
                        return Poll::Ready(Ok(()));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if got > 0 && self.taken == self.ahead.len() {
                        return Poll::Ready(Ok(()));
                    }
                    let before = self.connection.wants_write();
                    if let Err(error) = ready!(self.poll_receive(wire, cx)) {
                        // Sends the TLS alert with the reason; best effort.
                        let _ = self.poll_send(wire, cx);
                        return Poll::Ready(Err(error));
                    }
                    // Sends the response to received records, such as a key update.
                    if !before && self.connection.wants_write() {
                        let _ = self.poll_send(wire, cx)?;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    let text = "the peer closed the connection";
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::UnexpectedEof, text)));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn has_plaintext(&mut self) -> bool {
        self.connection.reader().fill_buf().is_ok_and(|bytes| !bytes.is_empty())
    }

    /// Encrypts as much as there is room for, and sends as much of it as the kernel takes.
    pub(crate) fn poll_write(
        &mut self,
        wire: &mut Wire,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_send(wire, cx))?;
        self.allowance.check(parts.iter().map(|part| part.len()).sum())?;
        let written = self.connection.writer().write_vectored(parts)?;
        self.allowance.count(written);
        // The rest is sent with the next write or flush.
        let _ = self.poll_send(wire, cx)?;
        Poll::Ready(Ok(written))
    }

    pub(crate) fn poll_shutdown(&mut self, wire: &mut Wire, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.goodbye();
        ready!(self.poll_send(wire, cx))?;
        wire.poll_shutdown(cx)
    }
}

/// Extracts the rustls error from an I/O error.
fn tls_error(error: io::Error) -> HandshakeError {
    match error.downcast::<rustls::Error>() {
        Ok(error) => HandshakeError::Tls(error),
        Err(error) => HandshakeError::Io(error),
    }
}

/// Adapter through which rustls writes to the socket.
struct Out<'a, 'b> {
    wire: &'a mut Wire,
    cx: &'a mut Context<'b>,
}

impl Write for Out<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.wire.poll_write(self.cx, parts) {
            Poll::Ready(result) => result,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use rustls::crypto::ring::{cipher_suite, default_provider};
    use rustls::{
        CipherSuiteCommon, ClientConfig, RootCertStore, ServerConfig, SupportedCipherSuite, Tls12CipherSuite,
    };
    use rustls_pki_types::PrivatePkcs8KeyDer;

    use super::*;
    use crate::stream::Stream;

    /// Returns both ends after a TLS 1.2 handshake, with a server whose keys may encrypt at most `records`
    /// records.
    fn pair(records: u64) -> (ServerConnection, ClientConnection) {
        let SupportedCipherSuite::Tls12(suite) = cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 else {
            panic!("it is a suite of TLS 1.2");
        };
        let Tls12CipherSuite { prf_provider, kx, sign, aead_alg, .. } = *suite;
        let common = CipherSuiteCommon { confidentiality_limit: records, ..suite.common };
        let suite = Tls12CipherSuite { common, prf_provider, kx, sign, aead_alg };
        let mut provider = default_provider();
        provider.cipher_suites = vec![SupportedCipherSuite::Tls12(Box::leak(Box::new(suite)))];
        let certified = testkit::certificates::rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap();
        let certificate = certified.cert.der().clone();
        let key = PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der());
        let server = ServerConfig::builder_with_provider(provider.into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], key.into())
            .unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate).unwrap();
        let client = ClientConfig::builder_with_provider(default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut server = ServerConnection::new(Arc::new(server)).unwrap();
        let mut client = ClientConnection::new(Arc::new(client), "a".try_into().unwrap()).unwrap();
        while server.is_handshaking() || client.is_handshaking() || server.wants_write() {
            let mut sent = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut sent).unwrap();
            }
            let mut rest = sent.as_slice();
            while !rest.is_empty() {
                server.read_tls(&mut rest).unwrap();
                server.process_new_packets().unwrap();
            }
            let mut sent = Vec::new();
            while server.wants_write() {
                server.write_tls(&mut sent).unwrap();
            }
            let mut rest = sent.as_slice();
            while !rest.is_empty() {
                client.read_tls(&mut rest).unwrap();
                client.process_new_packets().unwrap();
            }
        }
        (server, client)
    }

    #[test]
    fn what_is_reported_as_written_arrives_also_when_the_keys_are_used_up() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (server, mut client) = pair(50);
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let far = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let mut wire =
                Wire::new(Stream::Tcp(listener.accept().await.unwrap().0), Duration::from_secs(30)).unwrap();
            let mut secured = Secured::server(server);
            secured.handshake(&mut wire).await.unwrap();
            let (mut written, mut ended) = (0, false);
            for _ in 0..50 {
                let parts = [IoSlice::new(&[7; 60]), IoSlice::new(&[8; 40])];
                match poll_fn(|cx| secured.poll_write(&mut wire, cx, &parts)).await {
                    Ok(bytes) => written += bytes,
                    Err(_) => ended = true,
                }
            }
            poll_fn(|cx| secured.poll_send(&mut wire, cx)).await.unwrap();
            drop(wire);
            let mut far = far.into_std().unwrap();
            far.set_nonblocking(false).unwrap();
            let mut came = Vec::new();
            far.read_to_end(&mut came).unwrap();
            let (mut rest, mut arrived) = (came.as_slice(), 0);
            while !rest.is_empty() {
                client.read_tls(&mut rest).unwrap();
                let count = client.process_new_packets().unwrap().plaintext_bytes_to_read();
                client.reader().read_exact(&mut vec![0; count]).unwrap();
                arrived += count;
            }
            assert_eq!(arrived, written);
            assert!(ended && written >= 30 * 100, "{written}");
        });
    }
}
