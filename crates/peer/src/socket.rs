//! A connection with hyper's I/O traits, with or without TLS: [`Socket`].

use std::future::Future;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::rt::ReadBufCursor;

use crate::secured::{SPACE, Secured};
use crate::sessions::Watched;
use crate::wire::Wire;

/// Connection with hyper's I/O traits. Writes fail if the other end takes no bytes for too long.
pub(crate) struct Socket {
    wire: Wire,
    tls: Option<Box<Tls>>,
}

struct Tls {
    secured: Secured,
    /// Handle that shows when the other end is no longer trusted.
    watched: Rc<Watched>,
}

impl Socket {
    pub(crate) fn plain(wire: Wire) -> Socket {
        Socket { wire, tls: None }
    }

    /// Creates the socket of a TLS connection after its handshake.
    pub(crate) fn secured(wire: Wire, secured: Secured, watched: Rc<Watched>) -> Socket {
        Socket { wire, tls: Some(Box::new(Tls { secured, watched })) }
    }

    /// Returns the address of the other end; `None` for a Unix socket.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.wire.address()
    }
}

impl Tls {
    fn check(&self, cx: &Context<'_>) -> io::Result<()> {
        self.watched.check(cx)
    }
}

impl hyper::rt::Read for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let Socket { wire, tls } = self.get_mut();
        if let Some(tls) = tls {
            tls.check(cx)?;
            let room = into.remaining();
            return tls.secured.poll_read(wire, cx, room, |bytes| into.put_slice(bytes));
        }
        // Reading directly into hyper's buffer would need `unsafe`.
        SPACE.with_borrow_mut(|space| {
            let room = into.remaining().min(space.len());
            let bytes = std::task::ready!(wire.poll_read(cx, &mut space[..room]))?;
            into.put_slice(&space[..bytes]);
            Poll::Ready(Ok(()))
        })
    }
}

impl hyper::rt::Write for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Socket { wire, tls } = self.get_mut();
        match tls {
            Some(tls) => {
                tls.check(cx)?;
                tls.secured.poll_write(wire, cx, parts)
            }
            None => wire.poll_write(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Socket { wire, tls } = self.get_mut();
        match tls {
            Some(tls) => tls.secured.poll_send(wire, cx),
            None => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Socket { wire, tls } = self.get_mut();
        match tls {
            Some(tls) => tls.secured.poll_shutdown(wire, cx),
            None => wire.poll_shutdown(cx),
        }
    }
}

/// Adapts tokio's clock to hyper's timer trait.
#[derive(Clone, Copy)]
pub(crate) struct Clock;

struct Alarm(Pin<Box<tokio::time::Sleep>>);

impl Future for Alarm {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

impl hyper::rt::Sleep for Alarm {}

impl hyper::rt::Timer for Clock {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(Alarm(Box::pin(tokio::time::sleep(duration))))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(Alarm(Box::pin(tokio::time::sleep_until(deadline.into()))))
    }
}
