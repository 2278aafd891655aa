//! Builds large responses that are made piece by piece, as the client reads them.

use std::cell::Cell;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use api::{Code, Status};
use bytes::Bytes;
use front::Answer;

use crate::audit::ANSWER_BYTES;

/// Maximum length of a gRPC message in bytes.
const MESSAGE_BYTES_MAX: usize = i32::MAX as usize;

/// Refuses a response that is longer than a gRPC message can be.
pub(super) fn check_len(len: usize) -> Result<(), Status> {
    if len > MESSAGE_BYTES_MAX {
        let text = format!("grpc: trying to send message larger than max ({len} vs. {MESSAGE_BYTES_MAX})");
        return Err(Status::with(Code::ResourceExhausted, text));
    }
    Ok(())
}

/// Returns a response of `len` bytes. `next` makes pieces of about the requested size. It returns `None`
/// after the last piece, and an empty piece if none of the keys that it visited exist at the revision. With
/// each piece, `next` returns the number of bytes that it keeps in memory for later pieces; before the first
/// piece this number is `kept`. `beginning` contains the first bytes of the response, as far as they are
/// known.
///
/// # Errors
///
/// Returns an error if the response is too long for a message.
pub(super) fn answer(
    len: usize,
    kept: usize,
    beginning: &[u8],
    mut next: impl FnMut(usize, &mut Context<'_>) -> Poll<Result<Option<(Bytes, usize)>, Status>> + 'static,
) -> Result<Answer, Status> {
    check_len(len)?;
    // The front limits how many bytes it takes at a time. The bytes of a piece beyond that limit are kept in
    // `rest`.
    let (mut rest, mut kept) = (Bytes::new(), kept);
    let held = Rc::new(Cell::new(kept));
    let noted = Rc::clone(&held);
    let source = move |bytes_max: usize, context: &mut Context<'_>| {
        if rest.is_empty() {
            (rest, kept) = match ready!(next(bytes_max, context))? {
                Some(made) => made,
                None => return Poll::Ready(Ok(None)),
            };
        }
        if rest.is_empty() {
            // Other calls run before the next keys are visited.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let piece = rest.split_to(rest.len().min(bytes_max));
        // While a part of the piece is left, the whole piece stays in memory, so all its bytes are counted as
        // held.
        noted.set(kept + if rest.is_empty() { 0 } else { rest.len() + piece.len() });
        Poll::Ready(Ok(Some(piece)))
    };
    let beginning = beginning[..beginning.len().min(ANSWER_BYTES)].into();
    Ok(Answer::Pieces { len, beginning, source: Box::new(source), held })
}
