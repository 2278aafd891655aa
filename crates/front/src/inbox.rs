//! The receiving half of a request's stream: the connection puts what comes into an [`Inbox`], and whoever has the
//! [`RequestStream`] takes it out. The client's window opens again for what was taken out.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use api::Status;
use bytes::{Buf as _, Bytes, BytesMut};
use http2::Key;

use crate::assembler::{Assembled, Assembler};
use crate::context::ConnectionContext;

/// How a request's body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The client has sent all.
    Whole,
    /// The stream is over before that.
    Gone,
}

/// What has come of a body and was not taken out. The windows bound it, since they stay shut for what is in it.
#[derive(Default)]
pub(crate) struct Inbox(RefCell<Contents>);

#[derive(Default)]
struct Contents {
    bytes: BytesMut,
    end: Option<End>,
    waker: Option<Waker>,
    /// Nobody takes out anything any more.
    is_closed: bool,
}

impl Contents {
    /// Returns how the body ended, for a reader to whom nothing is left of it, or has that reader woken.
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
    /// Puts in what came; false if nobody takes it.
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

    /// The client has sent all.
    pub(crate) fn end(&self) {
        self.ends(End::Whole);
    }

    /// The stream is over before its time, unless the client has sent all before.
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

/// The client has reset the stream, or has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CutOff;

/// The receiving half of a request's stream.
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

    /// Takes out what has come, and opens the client's window for it; `None` at the end.
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

    /// Cuts the next message off what has come, and opens the client's window for the bytes that it took. Unpacking it counts as
    /// work of the connection's turn.
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
                // Its memory is not kept until the next message comes.
                *bytes = BytesMut::new();
            }
            (assembled, cut)
        };
        if cut > 0 {
            self.around.http2.borrow_mut().release(self.key, cut);
        }
        Ok(assembled)
    }

    /// Ready unless there is something to cut and the turn has done as much work as it may: then the connection's next turn goes on
    /// with it.
    pub(crate) fn poll_turn(&self, cx: &Context<'_>) -> Poll<()> {
        if !self.around.made.is_enough() || self.inbox.0.borrow().bytes.is_empty() {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Waits until something has come that was not taken out; `None` at the end.
    pub(crate) fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<(), CutOff>>> {
        let mut contents = self.inbox.0.borrow_mut();
        if contents.bytes.is_empty() { contents.poll_end(cx) } else { Poll::Ready(Some(Ok(()))) }
    }

    /// The connection that it belongs to.
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
