//! Defines the bodies of requests to members: [`RequestBody`] forwards what a browser sends.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body as _, Incoming, SizeHint};

use crate::body::{BodyError, BodyStream, MessageBody};
use crate::connection_state::ConnectionState;
use crate::limits::Limits;

/// The body of a request to a member.
pub(crate) type UpstreamBody = MessageBody<RequestBody>;

/// Progress of forwarding a request's body to the member.
#[derive(Debug, Default)]
pub(crate) struct BodyProgress {
    pub(crate) is_whole: Cell<bool>,
    pub(crate) is_too_large: Cell<bool>,
}

/// The body of a browser's request, limited in size.
pub(crate) struct RequestBody {
    incoming: Incoming,
    bytes_left: u64,
    state: Rc<ConnectionState>,
    sent: Rc<BodyProgress>,
}

impl RequestBody {
    pub(crate) fn new(
        incoming: Incoming,
        limits: &Limits,
        state: Rc<ConnectionState>,
        sent: Rc<BodyProgress>,
    ) -> RequestBody {
        let mut body = RequestBody { incoming, bytes_left: limits.body_bytes_max, state, sent };
        body.note_end();
        body
    }

    fn note_end(&mut self) {
        if self.incoming.is_end_stream() {
            self.sent.is_whole.set(true);
            self.state.body_arrived();
        }
    }
}

impl BodyStream for RequestBody {
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        loop {
            let frame = ready!(Pin::new(&mut self.incoming).poll_frame(cx)).transpose()?;
            self.note_end();
            let Some(frame) = frame else {
                self.sent.is_whole.set(true);
                self.state.body_arrived();
                return Poll::Ready(None);
            };
            // Drop trailers, which have no meaning for a member.
            let Ok(data) = frame.into_data() else { continue };
            let Some(left) = self.bytes_left.checked_sub(data.len() as u64) else {
                self.sent.is_too_large.set(true);
                return Poll::Ready(Some(Err("the request is too large".into())));
            };
            self.bytes_left = left;
            return Poll::Ready(Some(Ok(data)));
        }
    }

    fn is_ended(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
