//! Performs TLS handshakes: [`Handshake`] is a handshake in progress, which the caller polls; [`connect`] and
//! [`accept`] perform a whole one. Apart from the verifiers of rustls, this module does not check the other
//! end.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};

use rustls::{ClientConnection, Connection, ServerConnection};
use tokio::io::ReadBuf;

use crate::buffers::{BUFFER_BYTES, Buffers, ThreadBuffers};
use crate::records::Records;
use crate::scratch;
use crate::tls_stream::{Ending, Kernel, TlsStream};
use crate::wire::ByteStream;

/// Maximum number of bytes in [`Received::first`]: the length of the header of a TLS record.
const FIRST_BYTES: usize = 5;

/// Reason why a handshake failed.
#[derive(Debug)]
pub enum HandshakeError {
    /// The other end closed the connection between two TLS records.
    EndOfFile,
    /// The other end has sent further bytes after `close_notify`, with which it had ended TLS.
    Closed,
    /// The connection broke, or the other end closed it inside a TLS record (`UnexpectedEof`).
    Io(io::Error),
    /// One end refused the other, or violated the protocol.
    Tls(rustls::Error),
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> HandshakeError {
        HandshakeError::Io(error)
    }
}

impl From<HandshakeError> for io::Error {
    fn from(error: HandshakeError) -> io::Error {
        match error {
            HandshakeError::EndOfFile | HandshakeError::Closed => {
                io::Error::new(io::ErrorKind::UnexpectedEof, "tls handshake eof")
            }
            HandshakeError::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                io::Error::new(io::ErrorKind::UnexpectedEof, "tls handshake eof")
            }
            HandshakeError::Io(error) => error,
            HandshakeError::Tls(error) => io::Error::new(io::ErrorKind::InvalidData, error),
        }
    }
}

/// Facts about the bytes that a handshake has received, so that callers can limit them.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// First bytes of the connection, at most 5.
    pub first: &'a [u8],
    /// Number of bytes received so far.
    pub bytes: usize,
    /// Number of TLS records that were processed since the previous call with this struct. Those in the bytes
    /// that were just read are not included.
    pub records: usize,
}

/// Handshake in progress.
#[derive(Debug)]
pub struct Handshake<S> {
    /// Byte stream below TLS.
    pub stream: S,
    /// State of TLS.
    pub tls: Connection,
    /// State of the received TLS records, which [`TlsStream`] needs after the handshake.
    pub records: Records,
    received: usize,
    first: [u8; FIRST_BYTES],
    /// Number of TLS records that are complete since the last call of `admit`.
    ended: usize,
}

impl<S: ByteStream> Handshake<S> {
    /// Creates the handshake. rustls buffers at most `write_bytes_max` bytes of output.
    pub fn new(stream: S, tls: impl Into<Connection>, write_bytes_max: usize) -> Handshake<S> {
        let mut tls = tls.into();
        tls.set_buffer_limit(Some(write_bytes_max));
        Handshake { stream, tls, records: Records::default(), received: 0, first: [0; FIRST_BYTES], ended: 0 }
    }

    /// Returns the server name for which the client asks (SNI); `None` at a client, or if there is none.
    pub fn server_name(&self) -> Option<&str> {
        match &self.tls {
            Connection::Server(tls) => tls.server_name(),
            Connection::Client(_) => None,
        }
    }

    /// Continues the handshake until it is complete and all output is sent. Calls `admit` after each read,
    /// before the bytes are processed. If `admit` returns an error, the handshake ends with it. `admit` must
    /// not use the scratch buffer of the thread, which is in use.
    pub fn poll_done<E: From<HandshakeError>>(
        &mut self,
        cx: &mut Context<'_>,
        admit: impl FnMut(&mut S, Received<'_>) -> Result<(), E>,
    ) -> Poll<Result<(), E>> {
        scratch::with(|scratch| self.poll_done_by(cx, &mut scratch[..READ_BYTES], admit))
    }

    fn poll_done_by<E: From<HandshakeError>>(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &mut [u8],
        mut admit: impl FnMut(&mut S, Received<'_>) -> Result<(), E>,
    ) -> Poll<Result<(), E>> {
        loop {
            ready!(self.poll_flush(cx)).map_err(HandshakeError::Io)?;
            if !self.tls.is_handshaking() {
                return Poll::Ready(Ok(()));
            }
            let mut space = ReadBuf::new(scratch);
            ready!(self.stream.poll_read_unpin(cx, &mut space)).map_err(HandshakeError::Io)?;
            let bytes = space.filled();
            if bytes.is_empty() {
                let is_clean = self.records.unfinished() == 0;
                let amid = || HandshakeError::Io(io::ErrorKind::UnexpectedEof.into());
                return Poll::Ready(Err(if is_clean { HandshakeError::EndOfFile } else { amid() }.into()));
            }
            let known = self.received.min(FIRST_BYTES);
            let n = bytes.len().min(FIRST_BYTES - known);
            self.first[known..known + n].copy_from_slice(&bytes[..n]);
            self.received += bytes.len();
            let first = &self.first[..self.received.min(FIRST_BYTES)];
            let records = std::mem::take(&mut self.ended);
            admit(&mut self.stream, Received { first, bytes: self.received, records })?;
            self.take(bytes)?;
        }
    }

    /// Sends the output that rustls has buffered.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut Kernel { stream: &mut self.stream, cx }) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Passes received bytes to rustls.
    fn take(&mut self, mut bytes: &[u8]) -> Result<(), HandshakeError> {
        while !bytes.is_empty() {
            let before = bytes;
            let taken = self.tls.read_tls(&mut bytes)?;
            if taken == 0 {
                return Err(HandshakeError::Closed);
            }
            self.ended += self.records.scan(&before[..taken]);
            self.tls.process_new_packets().map_err(HandshakeError::Tls)?;
        }
        Ok(())
    }

    /// Performs the handshake, without limits on its time and bytes. Calls `admit` after each read. If the
    /// handshake fails, the TLS alert is sent only if the kernel accepts it immediately.
    ///
    /// # Errors
    ///
    /// Returns the reason why the handshake failed.
    pub async fn run(&mut self, mut admit: impl FnMut(&mut S, Received<'_>)) -> Result<(), HandshakeError> {
        poll_fn(|cx| {
            let done = self.poll_done(cx, |stream, received| {
                admit(stream, received);
                Ok::<_, HandshakeError>(())
            });
            if matches!(done, Poll::Ready(Err(HandshakeError::Tls(_)))) {
                // Try to send the TLS alert with the reason. An error is ignored, because the handshake has
                // failed anyway.
                let _ = self.poll_flush(cx);
            }
            done
        })
        .await
    }

    /// Sends `close_notify` if the kernel accepts it immediately; otherwise sends nothing.
    pub async fn close(&mut self) {
        self.tls.send_close_notify();
        poll_fn(|cx| {
            let _ = self.poll_flush(cx);
            Poll::Ready(())
        })
        .await;
    }

    /// Converts a complete handshake into the TLS stream.
    pub fn into_stream<P: Buffers>(self, buffers: P, ending: Ending) -> TlsStream<S, P> {
        TlsStream::new(self.stream, self.tls, self.records, buffers, ending)
    }
}

/// Maximum number of bytes that a handshake reads with one call. Application data may follow the handshake in
/// the same read. The limit keeps such data below 16 KiB, for which rustls has a buffer.
const READ_BYTES: usize = 16 * 1024;

/// Performs the handshake with a server, and returns the TLS stream.
///
/// # Errors
///
/// Returns the error of rustls (`InvalidData`), the error of the stream, or `UnexpectedEof` if the server
/// closes the stream.
pub async fn connect<S: ByteStream>(
    stream: S,
    tls: ClientConnection,
    buffers: ThreadBuffers,
    ending: Ending,
) -> io::Result<TlsStream<S, ThreadBuffers>> {
    complete(stream, tls.into(), buffers, ending).await
}

/// Performs the handshake with a client, and returns the TLS stream.
///
/// # Errors
///
/// Returns the error of rustls (`InvalidData`), the error of the stream, or `UnexpectedEof` if the client
/// closes the stream.
pub async fn accept<S: ByteStream>(
    stream: S,
    tls: ServerConnection,
    buffers: ThreadBuffers,
    ending: Ending,
) -> io::Result<TlsStream<S, ThreadBuffers>> {
    complete(stream, tls.into(), buffers, ending).await
}

async fn complete<S: ByteStream>(
    stream: S,
    tls: Connection,
    buffers: ThreadBuffers,
    ending: Ending,
) -> io::Result<TlsStream<S, ThreadBuffers>> {
    let mut handshake = Handshake::new(stream, tls, BUFFER_BYTES);
    handshake.run(|_, _| ()).await?;
    Ok(handshake.into_stream(buffers, ending))
}

#[cfg(test)]
mod tests {
    use testkit::tls_ends::configurations;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::wire::Wire;

    fn ends() -> (ServerConnection, ClientConnection) {
        let (server, client) = configurations();
        let name = "a".try_into().unwrap();
        (ServerConnection::new(server).unwrap(), ClientConnection::new(client, name).unwrap())
    }

    #[test]
    fn both_ends_meet_and_talk() {
        testkit::block_on(testkit::TIMEOUT, async {
            let (near, far) = tokio::io::duplex(700);
            let (server, client) = ends();
            let serving = tokio::spawn(async move {
                let mut server = Wire::Tls(Box::new(
                    accept(near, server, ThreadBuffers(5000), Ending::Any).await.unwrap(),
                ));
                let mut request = Vec::new();
                server.read_to_end(&mut request).await.unwrap();
                server.write_all(&vec![2; 100_000]).await.unwrap();
                server.shutdown().await.unwrap();
                request
            });
            let mut client = Wire::Tls(Box::new(
                connect(far, client, ThreadBuffers(5000), Ending::Announced).await.unwrap(),
            ));
            client.write_all(&vec![1; 100_000]).await.unwrap();
            client.shutdown().await.unwrap();
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await.unwrap();
            assert!(serving.await.unwrap() == vec![1; 100_000] && answer == vec![2; 100_000]);
        });
    }

    #[test]
    fn an_end_in_the_middle_and_garbage_are_errors() {
        testkit::block_on(testkit::TIMEOUT, async {
            for (sent, kind, text) in [
                (&b""[..], io::ErrorKind::UnexpectedEof, "tls handshake eof"),
                (b"\x16\x03\x03", io::ErrorKind::UnexpectedEof, "tls handshake eof"),
                (b"HTTP/1.1 400 Bad Request\r\n", io::ErrorKind::InvalidData, "received corrupt message"),
            ] {
                let (near, mut far) = tokio::io::duplex(5000);
                far.write_all(sent).await.unwrap();
                far.shutdown().await.unwrap();
                let error = connect(near, ends().1, ThreadBuffers(5000), Ending::Any).await.unwrap_err();
                assert_eq!(error.kind(), kind);
                assert!(error.to_string().contains(text), "{error}");
            }
        });
    }
}
