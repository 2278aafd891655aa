//! Defines the bodies of responses to browsers: [`MemberBody`] forwards what a member sends.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body as _, Incoming, SizeHint};

use crate::body::{BodyError, BodyStream, MessageBody};
use crate::limits::Limits;
use crate::permits::Permit;
use crate::request_body::BodyProgress;
use crate::upstream::{Link, Target};

/// The body of a response to a browser: forwarded from a member, or from the console itself.
pub(crate) type AnswerBody = MessageBody<MemberBody>;

/// The body of a member's response. It owns the connection to the member. If the response was read to its
/// end, the connection is kept for another request; otherwise it is closed with the body.
pub(crate) struct MemberBody {
    pub(crate) incoming: Incoming,
    /// Connection to the member; `None` after it was given back to the target.
    pub(crate) link: Option<Link>,
    pub(crate) target: Rc<Target>,
    /// Progress of the request's body. The connection is kept only if that body was sent completely.
    pub(crate) sent: Rc<BodyProgress>,
    pub(crate) limits: Limits,
    pub(crate) _permit: Permit,
}

impl MemberBody {
    fn give_back(&mut self) {
        if let Some(link) = self.link.take()
            && self.sent.is_whole.get()
        {
            self.target.keep(link, &self.limits);
        }
    }
}

impl BodyStream for MemberBody {
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        loop {
            let Some(frame) = ready!(Pin::new(&mut self.incoming).poll_frame(cx)).transpose()? else {
                self.give_back();
                return Poll::Ready(None);
            };
            let Ok(data) = frame.into_data() else { continue };
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

impl Drop for MemberBody {
    fn drop(&mut self) {
        // Detect the end of the body here too, so that the connection is kept: hyper does not poll a body of
        // known length again after its last byte.
        if self.incoming.is_end_stream() {
            self.give_back();
        }
    }
}
