use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use hyper::body::{Frame, SizeHint};

use crate::frame_buffer::Segments;
use crate::stream_writer::StreamWriter;

/// Body of an answer to another member.
pub(crate) enum AnswerBody {
    /// A body that is completely known in advance; `None` once it was sent.
    Whole(Option<Segments>),
    /// Messages of a stream that the other member has dialed. The body ends when the connection ends or
    /// another stream replaces this one.
    Stream(StreamWriter),
}

impl AnswerBody {
    pub(crate) fn empty() -> AnswerBody {
        AnswerBody::Whole(None)
    }
}

impl<T: Into<Bytes>> From<T> for AnswerBody {
    fn from(bytes: T) -> AnswerBody {
        let bytes = bytes.into();
        AnswerBody::Whole((!bytes.is_empty()).then(|| bytes.into()))
    }
}

impl hyper::body::Body for AnswerBody {
    type Data = Segments;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Segments>>>> {
        let segments = match self.get_mut() {
            AnswerBody::Whole(whole) => whole.take(),
            AnswerBody::Stream(writer) => std::task::ready!(writer.poll_segments(cx)),
        };
        Poll::Ready(segments.map(|segments| Ok(Frame::data(segments))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, AnswerBody::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            AnswerBody::Whole(whole) => {
                SizeHint::with_exact(whole.as_ref().map_or(0, |w| w.remaining() as u64))
            }
            AnswerBody::Stream(_) => SizeHint::default(),
        }
    }
}
