//! The byte stream under a connection: [`Socket`] reads in large steps into buffers that the shard's connections share. It
//! writes what HTTP/2 has gathered in a turn, and gathers what HTTP/1 writes until that is flushed. Below it is a [`Wire`]: any
//! [`Transport`], with TLS or without.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use http2::{Output, PREFACE};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::wire::Wire;

/// Bytes of one buffer. A turn reads and writes up to this much at once.
pub(crate) const BUFFER_BYTES: usize = 64 * 1024;

/// Bytes that one round of a connection takes from the client.
pub(crate) const ALLOWANCE_BYTES: usize = BUFFER_BYTES;

/// Pieces written at once.
const PIECES_MAX: usize = 64;

/// Buffers that a shard keeps for its connections' next turns.
const POOLED_MAX: usize = 64;

/// Buffers of one shard: a connection borrows them while it has bytes in them, so an idle one holds none.
#[derive(Debug, Default)]
pub(crate) struct BufferPool {
    free: RefCell<Vec<Box<[u8]>>>,
}

impl BufferPool {
    pub(crate) fn take(&self) -> Box<[u8]> {
        self.free.borrow_mut().pop().unwrap_or_else(|| vec![0; BUFFER_BYTES].into_boxed_slice())
    }

    pub(crate) fn give(&self, buffer: Box<[u8]>) {
        let mut free = self.free.borrow_mut();
        if free.len() < POOLED_MAX {
            free.push(buffer);
        }
    }
}

/// A borrowed buffer whose bytes `at..end` are still to be used.
#[derive(Debug)]
pub(crate) struct Filled {
    buffer: Box<[u8]>,
    at: usize,
    end: usize,
}

impl Filled {
    /// The first `end` bytes of a buffer.
    pub(crate) fn new(buffer: Box<[u8]>, end: usize) -> Filled {
        Filled { buffer, at: 0, end }
    }

    /// What is still to be used.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[self.at..self.end]
    }

    /// So many bytes were used; returns how many are left.
    pub(crate) fn advance(&mut self, n: usize) -> usize {
        self.at += n;
        self.end - self.at
    }

    /// Bytes of the buffer, used or not.
    pub(crate) fn capacity(&self) -> usize {
        self.buffer.len()
    }

    pub(crate) fn into_buffer(self) -> Box<[u8]> {
        self.buffer
    }
}

/// Any byte stream under a connection. It must not wake within its own poll: a connection
/// that was told there is nothing to read does not ask again in the same turn (see `Socket::drained`).
pub(crate) trait Transport: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Transport for T {}

/// A byte stream whose reads, and the writes of HTTP/1, are done in big steps.
#[derive(Debug)]
pub(crate) struct Socket<S> {
    stream: Wire<S>,
    pool: Rc<BufferPool>,
    input: Option<Filled>,
    /// Of a connection that speaks HTTP/1.
    http1: Option<Box<Http1>>,
    /// True if nothing more can be read in this turn: the stream said so and will wake the connection.
    drained: bool,
    /// They wrap: what is asked of them is whether any came lately.
    received_bytes: u32,
}

/// What HTTP/1 needs of a socket besides.
#[derive(Debug)]
struct Http1 {
    /// What was written and not sent.
    output: Option<Filled>,
    /// Bytes ever handed to the kernel.
    sent_bytes: u64,
    /// Bytes that may still be taken or sent before others get their turn.
    allowance: usize,
}

impl Default for Http1 {
    fn default() -> Http1 {
        Http1 { output: None, sent_bytes: 0, allowance: ALLOWANCE_BYTES }
    }
}

impl<S: Transport> Socket<S> {
    pub(crate) fn new(stream: Wire<S>, pool: Rc<BufferPool>) -> Socket<S> {
        Socket { stream, pool, input: None, http1: None, drained: false, received_bytes: 0 }
    }

    /// A turn of HTTP/2 begins: the stream may have more to read.
    pub(crate) fn begin_turn(&mut self) {
        self.drained = false;
    }

    /// Returns true if HTTP/1 has read and written as much as it may before others get their turn.
    pub(crate) fn is_allowance_spent(&self) -> bool {
        self.http1.as_ref().is_some_and(|http1| http1.allowance == 0)
    }

    /// HTTP/1 may go on.
    pub(crate) fn renew_allowance(&mut self) {
        self.http1.get_or_insert_default().allowance = ALLOWANCE_BYTES;
    }

    /// Returns true if the client has begun something that is read and not used, or a record of TLS, and not ended it.
    pub(crate) fn is_amid(&self) -> bool {
        self.input.is_some() || self.stream.is_amid_record()
    }

    /// Returns true if the client has agreed to speak HTTP/2.
    pub(crate) fn has_agreed_on_h2(&self) -> bool {
        self.stream.has_agreed_on_h2()
    }

    /// A number that changes when bytes come from the client, with TLS when some of a record do.
    pub(crate) fn received_bytes(&self) -> u64 {
        u64::from(self.received_bytes) + self.stream.record_bytes()
    }

    /// Bytes of the buffers held now.
    pub(crate) fn buffer_bytes(&self) -> usize {
        BUFFER_BYTES * (usize::from(self.input.is_some()) + usize::from(self.has_unsent()))
            + self.stream.held_bytes()
    }

    /// What was read and is not used.
    pub(crate) fn unread(&self) -> &[u8] {
        self.input.as_ref().map_or(&[], Filled::bytes)
    }

    /// So many bytes of [`Socket::unread`] were used.
    pub(crate) fn consume(&mut self, n: usize) {
        if let Some(input) = &mut self.input
            && input.advance(n) == 0
            && let Some(input) = self.input.take()
        {
            self.pool.give(input.buffer);
        }
    }

    /// Reads what is there, behind what is not used yet, which is less than a frame. Returns what that takes of a round's share,
    /// in bytes; 0 at the end of the stream.
    pub(crate) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.drained {
            return Poll::Pending;
        }
        let mut input = self.input.take().unwrap_or_else(|| Filled::new(self.pool.take(), 0));
        if input.at > 0 {
            input.buffer.copy_within(input.at..input.end, 0);
            (input.at, input.end) = (0, input.end - input.at);
        }
        assert!(input.end < input.buffer.len(), "what is not used is less than a frame");
        let mut space = ReadBuf::new(&mut input.buffer[input.end..]);
        let polled = Pin::new(&mut self.stream).poll_read(cx, &mut space);
        let n = space.filled().len();
        input.end += n;
        if input.end > 0 {
            self.input = Some(input);
        } else {
            self.pool.give(input.buffer);
        }
        self.drained = polled.is_pending();
        ready!(polled)?;
        self.received_bytes = self.received_bytes.wrapping_add(n as u32);
        // Decrypting takes time that the bytes do not show.
        Poll::Ready(Ok(if n == 0 { 0 } else { n + self.stream.take_surplus() }))
    }

    /// Writes what HTTP/2 has gathered; ready when all of it went to the kernel.
    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, output: &mut Output) -> Poll<io::Result<()>> {
        while !output.is_empty() {
            let stream = Pin::new(&mut self.stream);
            // The kernel does less for one piece, and most writes are one.
            let n = if let Some(only) = output.only() {
                ready!(stream.poll_write(cx, only))?
            } else {
                let mut slices = [IoSlice::new(&[]); PIECES_MAX];
                let count = output.slices(&mut slices);
                ready!(stream.poll_write_vectored(cx, &slices[..count]))?
            };
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            output.advance(n);
        }
        Poll::Ready(Ok(()))
    }

    /// Waits until the first bytes decide what the client speaks: true for HTTP/2. The bytes stay unread.
    pub(crate) fn poll_speaks_h2(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        loop {
            if let Some(input) = &self.input {
                let seen = &input.buffer[input.at..input.end];
                let n = seen.len().min(PREFACE.len());
                if seen[..n] != PREFACE[..n] {
                    return Poll::Ready(Ok(false));
                }
                if n == PREFACE.len() {
                    return Poll::Ready(Ok(true));
                }
            }
            let mut input =
                self.input.take().unwrap_or_else(|| Filled { buffer: self.pool.take(), at: 0, end: 0 });
            let mut space = ReadBuf::new(&mut input.buffer[input.end..]);
            let polled = Pin::new(&mut self.stream).poll_read(cx, &mut space);
            let n = space.filled().len();
            input.end += n;
            if input.end > 0 {
                self.input = Some(input);
            } else {
                self.pool.give(input.buffer);
            }
            ready!(polled)?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    /// Returns true if bytes of HTTP/1 wait for the client to take some.
    pub(crate) fn has_unsent(&self) -> bool {
        self.output().is_some()
    }

    fn output(&self) -> Option<&Filled> {
        self.http1.as_ref()?.output.as_ref()
    }

    fn is_full(&self) -> bool {
        self.output().is_some_and(|output| output.end == output.buffer.len())
    }

    /// Bytes of HTTP/1 ever handed to the kernel.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.http1.as_ref().map_or(0, |http1| http1.sent_bytes)
    }

    /// Writes what HTTP/1 has written; ready when all of it went to the kernel.
    pub(crate) fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(http1) = &mut self.http1
            && let Some(output) = &mut http1.output
        {
            let waiting = &output.buffer[output.at..output.end];
            let n = ready!(Pin::new(&mut self.stream).poll_write(cx, waiting))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            output.at += n;
            http1.sent_bytes += n as u64;
            http1.allowance = http1.allowance.saturating_sub(n);
            if output.at == output.end
                && let Some(output) = http1.output.take()
            {
                self.pool.give(output.buffer);
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_gather(&mut self, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if self.is_full() {
            ready!(self.poll_send(cx))?;
        }
        let http1 = self.http1.get_or_insert_default();
        let output = http1.output.get_or_insert_with(|| Filled::new(self.pool.take(), 0));
        let mut gathered = 0;
        for part in parts {
            let n = part.len().min(output.buffer.len() - output.end);
            let part = &part[..n];
            output.buffer[output.end..output.end + n].copy_from_slice(part);
            output.end += n;
            gathered += n;
        }
        if output.end == 0
            && let Some(output) = http1.output.take()
        {
            self.pool.give(output.buffer);
        }
        Poll::Ready(Ok(gathered))
    }

    /// Takes bytes for HTTP/1.
    fn poll_take(&mut self, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.input.is_none() {
            let mut buffer = self.pool.take();
            let mut space = ReadBuf::new(&mut buffer);
            let polled = Pin::new(&mut self.stream).poll_read(cx, &mut space);
            let end = space.filled().len();
            if end == 0 {
                self.pool.give(buffer);
                return polled;
            }
            // Decrypting takes time that the bytes do not show.
            let http1 = self.http1.get_or_insert_default();
            http1.allowance = http1.allowance.saturating_sub(self.stream.take_surplus());
            self.input = Some(Filled::new(buffer, end));
        }
        let unread = self.unread();
        let n = into.remaining().min(unread.len());
        into.put_slice(&unread[..n]);
        let http1 = self.http1.get_or_insert_default();
        http1.allowance = http1.allowance.saturating_sub(n);
        self.consume(n);
        Poll::Ready(Ok(()))
    }

    /// Reads and forgets; ready at the end of the stream. After a last frame was sent this keeps the kernel from
    /// answering late bytes with a reset, which could destroy that frame on its way.
    pub(crate) fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut buffer = self.pool.take();
        let result = loop {
            let mut space = ReadBuf::new(&mut buffer);
            match self.stream.poll_discard(cx, &mut space) {
                Poll::Ready(Ok(())) if !space.filled().is_empty() => {}
                other => break other,
            }
        };
        self.pool.give(buffer);
        result
    }

    /// Sends what waits and closes the writing half.
    pub(crate) fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl<S> Drop for Socket<S> {
    fn drop(&mut self) {
        let output = self.http1.take().and_then(|http1| http1.output);
        for filled in [self.input.take(), output].into_iter().flatten() {
            self.pool.give(filled.buffer);
        }
    }
}

/// The socket as hyper holds it; the connection keeps another handle.
pub(crate) struct SharedSocket<S>(pub(crate) Rc<RefCell<Socket<S>>>);

impl<S> Clone for SharedSocket<S> {
    fn clone(&self) -> SharedSocket<S> {
        SharedSocket(self.0.clone())
    }
}

impl<S: Transport> AsyncRead for SharedSocket<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.0.borrow_mut().poll_take(cx, into)
    }
}

impl<S: Transport> AsyncWrite for SharedSocket<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().poll_gather(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().poll_gather(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.borrow_mut().poll_close(cx)
    }
}
