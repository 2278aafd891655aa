use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use hyper::body::{Frame, SizeHint};
use tokio::sync::{Notify, mpsc};

use crate::account::Account;
use crate::frame_buffer::Segments;
use crate::piece::{Piece, broken_off};

/// Body of a request to another member.
pub(crate) enum RequestBody {
    /// A body that is completely known in advance; `None` once it was sent.
    Whole(Option<Segments>),
    /// A snapshot: first its message (`envelope`), then chunks from the thread that reads the snapshot.
    Snapshot {
        envelope: Option<Segments>,
        pieces: mpsc::Receiver<Piece>,
        account: Arc<Account>,
        /// Notified when the last chunk was passed to hyper.
        handed_over: Rc<Notify>,
    },
}

impl RequestBody {
    pub(crate) fn empty() -> RequestBody {
        RequestBody::Whole(None)
    }
}

impl<T: Into<Bytes>> From<T> for RequestBody {
    fn from(bytes: T) -> RequestBody {
        let bytes = bytes.into();
        RequestBody::Whole((!bytes.is_empty()).then(|| bytes.into()))
    }
}

impl hyper::body::Body for RequestBody {
    type Data = Segments;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Segments>>>> {
        let segments = match self.get_mut() {
            RequestBody::Whole(whole) => whole.take(),
            RequestBody::Snapshot { envelope, pieces, account, handed_over } => {
                let next = match envelope.take() {
                    Some(envelope) => Some(envelope),
                    None => match std::task::ready!(pieces.poll_recv(cx)) {
                        Some(Piece::Bytes(bytes)) => Some(bytes.into()),
                        Some(Piece::Failed(error)) => return Poll::Ready(Some(Err(error))),
                        None => return Poll::Ready(Some(Err(broken_off()))),
                        Some(Piece::End) => {
                            handed_over.notify_one();
                            None
                        }
                    },
                };
                if let Some(next) = &next {
                    account.counters.snapshots_sent.bytes.add(next.remaining() as u64);
                    account.counters.sent_bytes.add(next.remaining() as u64);
                }
                next
            }
        };
        Poll::Ready(segments.map(|segments| Ok(Frame::data(segments))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, RequestBody::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            RequestBody::Whole(whole) => {
                SizeHint::with_exact(whole.as_ref().map_or(0, |w| w.remaining() as u64))
            }
            RequestBody::Snapshot { .. } => SizeHint::default(),
        }
    }
}
