//! Implements the byte stream under a connection: [`Socket`] reads large blocks into buffers from a pool that
//! the shard's connections share. It writes the output that HTTP/2 has gathered in a turn, and gathers the
//! writes of HTTP/1 until they are flushed. The layer below the socket is a [`Wire`]: any [`Transport`], with
//! TLS or without.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use accounting::{ShardCounters, TrafficCounters};
use http2::{Output, PREFACE};
use stdx::zones::ZoneNetworks;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use transport::{BUFFER_BYTES, BufferPool, Buffers as _, Filled};

use crate::Options;

/// Bytes that an HTTP/2 connection may take from its client in one round, and that an HTTP/1 connection may
/// read and write before other connections run.
pub(crate) const ALLOWANCE_BYTES: usize = BUFFER_BYTES;

/// Maximum number of slices in one vectored write.
const PIECES_MAX: usize = 64;

/// Byte stream of a connection, with or without TLS, whose buffers come from the pool of its shard.
pub(crate) type Wire<S> = transport::Wire<S, Rc<BufferPool>>;

/// Any byte stream under a connection. Its poll functions must wake the task only when the stream has become
/// ready, and not merely to be polled again: after a pending read, a connection does not read again in the
/// same turn (see `Socket::drained`).
pub(crate) trait Transport: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Transport for T {}

/// Byte stream that reads, and writes for HTTP/1, in large blocks.
#[derive(Debug)]
pub(crate) struct Socket<S> {
    stream: Wire<S>,
    shared: Rc<SocketShared>,
    input: Option<Filled>,
    /// State for HTTP/1; `None` until the connection speaks HTTP/1.
    http1: Option<Box<Http1>>,
    /// True if the last read in this turn was pending. If so, the turn does not read again; the stream wakes
    /// the connection when more bytes arrive.
    drained: bool,
    /// Number of received bytes, modulo 2^32: only a change of the value matters.
    received_bytes: u32,
    /// Number, from 1, of the zone of the client in [`SocketShared::zones`]; `None` for a client in no zone.
    zone: Option<NonZeroU16>,
}

/// What the sockets of one shard share.
#[derive(Debug, Default)]
pub(crate) struct SocketShared {
    pub(crate) pool: Rc<BufferPool>,
    /// Networks of clients by zone, for the zone of a new client.
    pub(crate) networks: ZoneNetworks,
    /// Counters of the bytes of the clients of each zone, in the order of the zones in `networks`.
    pub(crate) zones: Vec<Arc<TrafficCounters>>,
}

/// Additional socket state for HTTP/1.
#[derive(Debug)]
struct Http1 {
    /// Bytes that were written by hyper and not sent yet.
    output: Option<Filled>,
    /// Total number of bytes of HTTP/1 that the kernel has accepted.
    sent_bytes: u64,
    /// Number of bytes that may still be read or sent before other connections run.
    allowance: usize,
}

impl Default for Http1 {
    fn default() -> Http1 {
        Http1 { output: None, sent_bytes: 0, allowance: ALLOWANCE_BYTES }
    }
}

impl<S: Transport> Socket<S> {
    /// Creates a socket over the stream of a client with this address.
    pub(crate) fn new(stream: Wire<S>, shared: Rc<SocketShared>, client: IpAddr) -> Socket<S> {
        let at = shared.networks.index_of(client).and_then(|at| u16::try_from(at + 1).ok());
        let zone = at.and_then(NonZeroU16::new);
        Socket { stream, shared, input: None, http1: None, drained: false, received_bytes: 0, zone }
    }

    fn count_received(&self, n: usize) {
        if let Some(counters) = self.shared.counters_of(self.zone) {
            accounting::add(&counters.received, n as u64);
        }
    }

    /// Begins a turn of an HTTP/2 connection, in which the stream may be read again.
    pub(crate) fn begin_turn(&mut self) {
        self.drained = false;
    }

    /// Returns true if HTTP/1 has used up its allowance, so that it must not read or write until other
    /// connections have run.
    pub(crate) fn is_allowance_spent(&self) -> bool {
        self.http1.as_ref().is_some_and(|http1| http1.allowance == 0)
    }

    /// Renews the allowance of HTTP/1 after other connections have run.
    pub(crate) fn renew_allowance(&mut self) {
        self.http1.get_or_insert_default().allowance = ALLOWANCE_BYTES;
    }

    /// Returns true if there is incomplete input: bytes that were read but not used yet, or a part of a TLS
    /// record.
    pub(crate) fn is_amid(&self) -> bool {
        self.input.is_some() || self.stream.is_amid_record()
    }

    /// Returns true if the client negotiated HTTP/2 by ALPN.
    pub(crate) fn has_agreed_on_h2(&self) -> bool {
        self.stream.has_agreed_on_h2()
    }

    /// Returns a number that changes whenever bytes arrive from the client, including a part of a TLS record.
    pub(crate) fn received_bytes(&self) -> u64 {
        u64::from(self.received_bytes) + self.stream.record_bytes()
    }

    /// Returns the size in bytes of the buffers that the socket holds now.
    pub(crate) fn buffer_bytes(&self) -> usize {
        BUFFER_BYTES * (usize::from(self.input.is_some()) + usize::from(self.has_unsent()))
            + self.stream.held_bytes()
    }

    /// Returns the bytes that were read and not used.
    pub(crate) fn unread(&self) -> &[u8] {
        self.input.as_ref().map_or(&[], Filled::bytes)
    }

    /// Marks `n` bytes of [`Socket::unread`] as used.
    pub(crate) fn consume(&mut self, n: usize) {
        if let Some(input) = &mut self.input
            && input.advance(n) == 0
            && let Some(input) = self.input.take()
        {
            self.shared.pool.give(input.buffer);
        }
    }

    /// Reads available bytes and appends them to the unused ones, which must be less than a complete frame.
    /// Returns the cost of the read, in bytes of the round's allowance; 0 at the end of the stream.
    pub(crate) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.drained {
            return Poll::Pending;
        }
        let mut input = self.input.take().unwrap_or_else(|| Filled::new(self.shared.pool.take(), 0));
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
            self.shared.pool.give(input.buffer);
        }
        self.drained = polled.is_pending();
        ready!(polled)?;
        self.received_bytes = self.received_bytes.wrapping_add(n as u32);
        self.count_received(n);
        // The cost includes a surplus for decryption, which can take longer than the number of bytes
        // suggests.
        Poll::Ready(Ok(if n == 0 { 0 } else { n + self.stream.take_surplus() }))
    }

    /// Writes the gathered output of HTTP/2; becomes ready when the kernel has taken all of it.
    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, output: &mut Output) -> Poll<io::Result<()>> {
        while !output.is_empty() {
            let stream = Pin::new(&mut self.stream);
            // Most outputs consist of one slice. It is written with a plain write, which is cheaper in the
            // kernel than a vectored one.
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
            self.shared.count_sent(self.zone, n);
        }
        Poll::Ready(Ok(()))
    }

    /// Waits until the first bytes show whether the client speaks HTTP/2. The bytes stay unread.
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
            let mut input = self.input.take().unwrap_or_else(|| Filled {
                buffer: self.shared.pool.take(),
                at: 0,
                end: 0,
            });
            let mut space = ReadBuf::new(&mut input.buffer[input.end..]);
            let polled = Pin::new(&mut self.stream).poll_read(cx, &mut space);
            let n = space.filled().len();
            self.count_received(n);
            input.end += n;
            if input.end > 0 {
                self.input = Some(input);
            } else {
                self.shared.pool.give(input.buffer);
            }
            ready!(polled)?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    /// Returns true if gathered bytes of HTTP/1 are waiting to be sent.
    pub(crate) fn has_unsent(&self) -> bool {
        self.output().is_some()
    }

    fn output(&self) -> Option<&Filled> {
        self.http1.as_ref()?.output.as_ref()
    }

    fn is_full(&self) -> bool {
        self.output().is_some_and(|output| output.end == output.buffer.len())
    }

    /// Returns the total number of bytes of HTTP/1 that the kernel has accepted.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.http1.as_ref().map_or(0, |http1| http1.sent_bytes)
    }

    /// Sends the gathered bytes of HTTP/1; becomes ready when the kernel has taken all of them.
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
            self.shared.count_sent(self.zone, n);
            http1.allowance = http1.allowance.saturating_sub(n);
            if output.at == output.end
                && let Some(output) = http1.output.take()
            {
                self.shared.pool.give(output.buffer);
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_gather(&mut self, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if self.is_full() {
            ready!(self.poll_send(cx))?;
        }
        let http1 = self.http1.get_or_insert_default();
        let output = http1.output.get_or_insert_with(|| Filled::new(self.shared.pool.take(), 0));
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
            self.shared.pool.give(output.buffer);
        }
        Poll::Ready(Ok(gathered))
    }

    /// Reads bytes for HTTP/1.
    fn poll_take(&mut self, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.input.is_none() {
            let mut buffer = self.shared.pool.take();
            let mut space = ReadBuf::new(&mut buffer);
            let polled = Pin::new(&mut self.stream).poll_read(cx, &mut space);
            let end = space.filled().len();
            if end == 0 {
                self.shared.pool.give(buffer);
                return polled;
            }
            self.count_received(end);
            // The cost includes a surplus for decryption, which can take longer than the number of bytes
            // suggests.
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

    /// Reads and discards; becomes ready at the end of the stream. Used after the last frame was sent: if the
    /// socket were closed with unread bytes, the kernel would send a reset, and the client could lose that
    /// frame.
    pub(crate) fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut buffer = self.shared.pool.take();
        let result = loop {
            let mut space = ReadBuf::new(&mut buffer);
            match self.stream.poll_discard(cx, &mut space) {
                Poll::Ready(Ok(())) if !space.filled().is_empty() => {}
                other => break other,
            }
        };
        self.shared.pool.give(buffer);
        result
    }

    /// Sends the gathered bytes of HTTP/1 and closes the writing half of the stream.
    pub(crate) fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl SocketShared {
    /// Returns what the sockets of a shard with these options and counters share.
    pub(crate) fn new(options: &Options, counters: &ShardCounters) -> Rc<SocketShared> {
        let (networks, zones) = (options.zones.clone(), counters.zones.clone());
        Rc::new(SocketShared { pool: Rc::default(), networks, zones })
    }

    fn counters_of(&self, zone: Option<NonZeroU16>) -> Option<&TrafficCounters> {
        self.zones.get(usize::from(zone?.get()) - 1).map(Arc::as_ref)
    }

    fn count_sent(&self, zone: Option<NonZeroU16>, n: usize) {
        if let Some(counters) = self.counters_of(zone) {
            accounting::add(&counters.sent, n as u64);
        }
    }
}

impl<S> Drop for Socket<S> {
    fn drop(&mut self) {
        let output = self.http1.take().and_then(|http1| http1.output);
        for filled in [self.input.take(), output].into_iter().flatten() {
            self.shared.pool.give(filled.buffer);
        }
    }
}

/// Handle to the socket for hyper; the connection keeps another handle.
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
    use std::io::Write as _;
    use testkit::Tape;
    use testkit::tls_ends::{flood, pair, sent_by};
    use transport::{Ending, Records, TlsStream};

    use super::*;

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
        let stream = Tape { bytes, at: 0 };
        let stream = TlsStream::new(stream, server, Records::default(), Rc::default(), Ending::Any);
        let mut socket = Socket::new(Wire::Tls(Box::new(stream)), Rc::default(), [127, 0, 0, 1].into());
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
}
