//! The byte stream under a connection: [`Socket`] gathers writes until the end of the connection's turn and reads in
//! large steps into buffers that the shard's connections share. Below it is a [`Wire`]: any [`Transport`], with TLS or without. It
//! scans frames for figures that the `h2` crate does not report, and decodes nothing else.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::frame_scanner::{ACK, CONTINUATION, DATA, END_HEADERS, FrameScanner, HEADERS, PING, SETTINGS};
use crate::wire::Wire;

/// Bytes of one buffer. A turn reads and writes up to this much at once.
pub(crate) const BUFFER_BYTES: usize = 64 * 1024;

/// Bytes that one round of a connection takes from the client.
const ALLOWANCE_BYTES: usize = BUFFER_BYTES;

/// Calls begun by the client after which a round takes no more: what follows in the same buffer waits in the HTTP/2
/// library until the calls before it are looked at.
const ALLOWANCE_CALLS: usize = 256;

/// Buffers that a shard keeps for its connections' next turns.
const POOLED_MAX: usize = 64;

/// The length of HTTP/2's connection preface.
pub(crate) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

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

/// Traffic that the HTTP/2 library does not report, as the scanners saw it since the last look.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// PING frames of the client that are no answers.
    pub(crate) pings: u32,
    /// SETTINGS frames of the client that are no answers.
    pub(crate) settings: u32,
    /// True if HEADERS or DATA went out.
    pub(crate) sent_calls: bool,
    /// True if anything came in.
    pub(crate) received: bool,
}

/// A byte stream whose writes are gathered until [`Socket::poll_send`] and whose reads are done in big steps.
#[derive(Debug)]
pub(crate) struct Socket<S> {
    stream: Wire<S>,
    pool: Rc<BufferPool>,
    input: Option<Filled>,
    output: Option<Filled>,
    scanners: Option<(FrameScanner, FrameScanner)>,
    traffic: Traffic,
    last_stream: u32,
    sent_bytes: u64,
    /// Bytes up to the last of a call's frames written: the frames behind it are the connection's own.
    calls_end: u64,
    /// True if nothing more can be read in this turn: the stream said so and will wake the connection.
    drained: bool,
    has_turns: bool,
    /// Bytes that may still be taken before others get their turn.
    allowance: usize,
    /// Calls begun since the allowance was renewed.
    begun: usize,
    /// True if something was held back because the turn's allowance was used up.
    paused: bool,
    /// A header block has begun and not ended.
    in_header_block: bool,
    received_bytes: u64,
}

impl<S: Transport> Socket<S> {
    pub(crate) fn new(stream: Wire<S>, pool: Rc<BufferPool>) -> Socket<S> {
        Socket {
            stream,
            pool,
            input: None,
            output: None,
            scanners: None,
            traffic: Traffic::default(),
            last_stream: 0,
            sent_bytes: 0,
            calls_end: 0,
            drained: false,
            has_turns: false,
            allowance: ALLOWANCE_BYTES,
            begun: 0,
            paused: false,
            in_header_block: false,
            received_bytes: 0,
        }
    }

    /// Follows HTTP/2 frames from here on.
    pub(crate) fn watch_frames(&mut self) {
        self.scanners = Some((FrameScanner::after(PREFACE.len()), FrameScanner::after(0)));
    }

    /// A turn begins: the stream may have more to read.
    pub(crate) fn begin_turn(&mut self) {
        self.drained = false;
        self.has_turns = true;
    }

    /// Lets a round take its share of what comes in.
    pub(crate) fn renew_allowance(&mut self) {
        (self.allowance, self.begun, self.paused) = (ALLOWANCE_BYTES, 0, false);
    }

    /// Renews the allowance if it is used up; false if it was not.
    pub(crate) fn renew_spent_allowance(&mut self) -> bool {
        let is_spent = self.allowance == 0;
        if is_spent {
            self.renew_allowance();
        }
        is_spent
    }

    /// Returns true if something was held back since [`Socket::renew_allowance`], and may be there to read.
    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }

    /// Returns true if the client has begun a frame or a header block and not ended it.
    pub(crate) fn is_amid_frame(&self) -> bool {
        self.in_header_block
            || self.stream.is_amid_record()
            || self.scanners.as_ref().is_some_and(|(read, _)| !read.at_boundary())
    }

    /// Bytes ever taken from the client. With TLS those of records count besides: it tells only whether any came.
    pub(crate) fn received_bytes(&self) -> u64 {
        self.received_bytes + self.stream.record_bytes()
    }

    /// Bytes of the buffers held now.
    pub(crate) fn buffer_bytes(&self) -> usize {
        BUFFER_BYTES * (usize::from(self.input.is_some()) + usize::from(self.output.is_some()))
            + self.stream.held_bytes()
    }

    /// Returns the traffic since the last call.
    pub(crate) fn take_traffic(&mut self) -> Traffic {
        std::mem::take(&mut self.traffic)
    }

    /// The highest stream id the client used.
    pub(crate) fn last_stream(&self) -> u32 {
        self.last_stream
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

    /// Puts bytes behind those that wait, if the last frame written is whole; false if it is not.
    pub(crate) fn inject(&mut self, frame: &[u8]) -> bool {
        let whole = self.scanners.as_ref().is_some_and(|(_, written)| written.at_boundary());
        let output = self.output.get_or_insert_with(|| Filled { buffer: self.pool.take(), at: 0, end: 0 });
        if !whole || output.buffer.len() - output.end < frame.len() {
            return false;
        }
        output.buffer[output.end..output.end + frame.len()].copy_from_slice(frame);
        output.end += frame.len();
        true
    }

    /// Returns true if written bytes wait for the client to take some.
    pub(crate) fn has_unsent(&self) -> bool {
        self.output.is_some()
    }

    /// Returns true if so much waits for the client to take it that nothing is read from the client.
    pub(crate) fn is_full(&self) -> bool {
        self.output.as_ref().is_some_and(|output| output.end == output.buffer.len())
    }

    /// Bytes ever handed to the kernel.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    /// Bytes ever handed to the kernel, up to the last frame of a call: it moves only while the client takes answers.
    /// Acknowledgements and window updates behind it do not count.
    pub(crate) fn sent_call_bytes(&self) -> u64 {
        self.sent_bytes.min(self.calls_end)
    }

    /// Writes what was gathered; ready when all of it went to the kernel.
    pub(crate) fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(output) = &mut self.output {
            let waiting = &output.buffer[output.at..output.end];
            let n = ready!(Pin::new(&mut self.stream).poll_write(cx, waiting))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            output.at += n;
            self.sent_bytes += n as u64;
            if output.at == output.end
                && let Some(output) = self.output.take()
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
        let output = self.output.get_or_insert_with(|| Filled { buffer: self.pool.take(), at: 0, end: 0 });
        let mut gathered = 0;
        for part in parts {
            let n = part.len().min(output.buffer.len() - output.end);
            let part = &part[..n];
            output.buffer[output.end..output.end + n].copy_from_slice(part);
            output.end += n;
            gathered += n;
            if let Some((_, written)) = &mut self.scanners {
                let calls = &mut self.traffic.sent_calls;
                let mut of_calls = written.amid().is_some_and(is_of_call);
                written.scan(part, |frame| {
                    *calls |= matches!(frame.kind, DATA | HEADERS);
                    of_calls |= is_of_call(frame.kind);
                });
                if of_calls {
                    self.calls_end = self.sent_bytes + (output.end - output.at) as u64;
                }
            }
        }
        if output.end == 0
            && let Some(output) = self.output.take()
        {
            self.pool.give(output.buffer);
        }
        Poll::Ready(Ok(gathered))
    }

    pub(crate) fn poll_take(&mut self, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.has_turns {
            if self.allowance == 0 {
                self.paused = true;
                return Poll::Pending;
            }
            // A client that takes no answers is not asked for more requests. The wake comes when it takes some.
            if self.is_full() {
                ready!(self.poll_send(cx))?;
            }
        }
        let mut input = match self.input.take() {
            Some(input) => input,
            None if self.drained => return Poll::Pending,
            None => {
                let mut buffer = self.pool.take();
                let mut space = ReadBuf::new(&mut buffer);
                let polled = Pin::new(&mut self.stream).poll_read(cx, &mut space);
                let end = space.filled().len();
                if end == 0 {
                    self.pool.give(buffer);
                    // Only who begins turns may rely on this: the wake must clear it.
                    self.drained = polled.is_pending() && self.has_turns;
                    return polled;
                }
                self.traffic.received = true;
                // Decrypting takes time that the bytes do not show.
                self.allowance = self.allowance.saturating_sub(self.stream.take_surplus());
                Filled { buffer, at: 0, end }
            }
        };
        let mut n = into.remaining().min(input.end - input.at);
        let part = &input.buffer[input.at..input.at + n];
        let mut changes_settings = false;
        if let Some((read, _)) = &mut self.scanners {
            let (pings, settings) = (&mut self.traffic.pings, &mut self.traffic.settings);
            let (begun, in_header_block) = (&mut self.begun, &mut self.in_header_block);
            let (last_stream, changes_settings) = (&mut self.last_stream, &mut changes_settings);
            n = read.scan_until(part, |frame| {
                match frame.kind {
                    PING if frame.flags & ACK == 0 => *pings = pings.saturating_add(1),
                    // It may cost a look at each stream, so the next one comes with the next round.
                    SETTINGS if frame.flags & ACK == 0 => {
                        *settings = settings.saturating_add(1);
                        *changes_settings = true;
                    }
                    HEADERS => {
                        *last_stream = (*last_stream).max(frame.stream);
                        *begun += 1;
                        *in_header_block = frame.flags & END_HEADERS == 0;
                    }
                    CONTINUATION => *in_header_block = frame.flags & END_HEADERS == 0,
                    _ => {}
                }
                *changes_settings
            });
        }
        let part = &input.buffer[input.at..input.at + n];
        self.received_bytes += n as u64;
        let goes_on = self.begun < ALLOWANCE_CALLS && !changes_settings;
        self.allowance = if goes_on { self.allowance.saturating_sub(n) } else { 0 };
        into.put_slice(part);
        input.at += n;
        if input.at == input.end {
            self.pool.give(input.buffer);
        } else {
            self.input = Some(input);
        }
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

/// Returns true if a frame of this kind carries a part of an answer.
fn is_of_call(kind: u8) -> bool {
    matches!(kind, DATA | HEADERS | CONTINUATION)
}

impl<S> Drop for Socket<S> {
    fn drop(&mut self) {
        for filled in [self.input.take(), self.output.take()].into_iter().flatten() {
            self.pool.give(filled.buffer);
        }
    }
}

/// The socket as the HTTP libraries hold it; the connection keeps another handle and does the sending.
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

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: [u8; 20] = [0, 0, 11, DATA, 0, 0, 0, 0, 1, 0, 0, 0, 0, 6, 1, 2, 3, 4, 5, 6];
    const PONG: [u8; 17] = [0, 0, 8, PING, ACK, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];

    #[test]
    fn only_frames_of_calls_count_as_taken() {
        // The client has room for 5 bytes at a time.
        let (stream, mut client) = tokio::io::duplex(5);
        let mut socket = Socket::new(Wire::Plain(stream), Rc::default());
        socket.watch_frames();
        let cx = &mut Context::from_waker(std::task::Waker::noop());
        // A frame may come in parts, and others between two of a call.
        for part in [&CALL[..9], &CALL[9..], &PONG, &CALL[..12], &CALL[12..], &PONG, &PONG] {
            assert!(
                matches!(socket.poll_gather(cx, &[IoSlice::new(part)]), Poll::Ready(Ok(n)) if n == part.len())
            );
        }
        let (mut taken, all, calls) = (0, 2 * CALL.len() + 3 * PONG.len(), 2 * CALL.len() + PONG.len());
        while taken < all {
            assert_eq!(socket.poll_send(cx).is_ready(), taken + 5 >= all);
            taken = (taken + 5).min(all);
            assert_eq!(socket.sent_call_bytes(), taken.min(calls) as u64);
            let mut buffer = [0; 5];
            let mut into = ReadBuf::new(&mut buffer);
            assert!(Pin::new(&mut client).poll_read(cx, &mut into).is_ready());
        }
    }
}
