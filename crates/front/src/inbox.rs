//! Implements the receiving half of a request's HTTP/2 stream: the connection puts received bytes into an
//! [`Inbox`], and the owner of the [`RequestStream`] takes them out. The client's flow-control window reopens
//! by the number of bytes taken out.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use api::Status;
use bytes::{Buf as _, Bytes, BytesMut};
use http2::Key;

use crate::assembler::{Assembled, Assembler};
use crate::context::ConnectionContext;

/// Way in which a request's body has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The client has sent the whole body.
    Whole,
    /// The stream ended before the body was complete.
    Gone,
}

/// Received bytes of a request's body that were not taken out yet. The flow-control windows bound their
/// number, because the windows reopen only for bytes taken out.
#[derive(Default)]
pub(crate) struct Inbox(RefCell<Contents>);

#[derive(Default)]
struct Contents {
    bytes: BytesMut,
    end: Option<End>,
    waker: Option<Waker>,
    /// True once the reader is dropped.
    is_closed: bool,
}

impl Contents {
    /// Returns the end of the body to a reader that has taken all bytes; if there may be more bytes,
    /// registers the reader's waker.
    fn poll_end<T>(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<T, CutOff>>> {
        match self.end {
            Some(End::Whole) => Poll::Ready(None),
            Some(End::Gone) => Poll::Ready(Some(Err(CutOff))),
            None => {
                if !self.waker.as_ref().is_some_and(|old| old.will_wake(cx.waker())) {
                    self.waker = Some(cx.waker().clone());
                }
                Poll::Pending
            }
        }
    }
}

impl Inbox {
    /// Adds received bytes. Returns false if the reader is dropped.
    pub(crate) fn push(&self, bytes: &[u8]) -> bool {
        let waker = {
            let mut contents = self.0.borrow_mut();
            if contents.is_closed {
                return false;
            }
            contents.bytes.extend_from_slice(bytes);
            contents.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
        true
    }

    /// Marks the body as complete.
    pub(crate) fn end(&self) {
        self.ends(End::Whole);
    }

    /// Marks the body as cut off, unless it is already complete.
    pub(crate) fn cut_off(&self) {
        self.ends(End::Gone);
    }

    fn ends(&self, end: End) {
        let waker = {
            let mut contents = self.0.borrow_mut();
            contents.end.get_or_insert(end);
            contents.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }
}

/// Error: the client has reset the stream or has disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CutOff;

/// Reader of a request's stream.
pub(crate) struct RequestStream {
    inbox: Rc<Inbox>,
    around: Rc<ConnectionContext>,
    key: Key,
}

impl RequestStream {
    pub(crate) fn new(around: &Rc<ConnectionContext>, key: Key) -> (RequestStream, Rc<Inbox>) {
        let inbox = Rc::new(Inbox::default());
        (RequestStream { inbox: inbox.clone(), around: around.clone(), key }, inbox)
    }

    /// Takes all received bytes and reopens the client's window for them; `None` at the end of the body.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, CutOff>>> {
        let taken = {
            let mut contents = self.inbox.0.borrow_mut();
            if contents.bytes.is_empty() {
                return contents.poll_end(cx);
            }
            std::mem::take(&mut contents.bytes).freeze()
        };
        self.around.http2.borrow_mut().release(self.key, taken.len());
        Poll::Ready(Some(Ok(taken)))
    }

    /// Cuts the next message off the received bytes and reopens the client's window for the bytes consumed.
    /// Decompression counts as work of the connection's turn.
    pub(crate) fn cut(&mut self, assembler: &mut Assembler) -> Result<Option<Assembled>, Status> {
        let (assembled, cut) = {
            let bytes = &mut self.inbox.0.borrow_mut().bytes;
            let (mut rest, mut work) = (&bytes[..], 0);
            let assembled = assembler.cut(&mut rest, &mut work);
            self.around.add_work(work);
            let assembled = assembled?;
            let cut = bytes.len() - rest.len();
            bytes.advance(cut);
            if bytes.is_empty() {
                // Frees the buffer instead of keeping it until the next message arrives.
                *bytes = BytesMut::new();
            }
            (assembled, cut)
        };
        if cut > 0 {
            self.around.http2.borrow_mut().release(self.key, cut);
        }
        Ok(assembled)
    }

    /// Returns `Pending` if received bytes are left and the turn's work limit is reached. The caller is then
    /// polled again in the connection's next turn.
    pub(crate) fn poll_turn(&self, cx: &Context<'_>) -> Poll<()> {
        if !self.around.turn_work.is_enough() || self.inbox.0.borrow().bytes.is_empty() {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Returns true if nothing has arrived since [`RequestStream::poll_more`] was pending for this task.
    pub(crate) fn is_waiting(&self, cx: &Context<'_>) -> bool {
        // Whatever arrives takes the waker out.
        self.inbox.0.borrow().waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()))
    }

    /// Waits until there are received bytes to take; `None` at the end of the body.
    pub(crate) fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<(), CutOff>>> {
        let mut contents = self.inbox.0.borrow_mut();
        if contents.bytes.is_empty() { contents.poll_end(cx) } else { Poll::Ready(Some(Ok(()))) }
    }

    /// Returns the context of the connection that the stream belongs to.
    pub(crate) fn around(&self) -> &Rc<ConnectionContext> {
        &self.around
    }
}

impl Drop for RequestStream {
    fn drop(&mut self) {
        let left = {
            let mut contents = self.inbox.0.borrow_mut();
            contents.is_closed = true;
            std::mem::take(&mut contents.bytes)
        };
        self.around.http2.borrow_mut().release(self.key, left.len());
    }
}
