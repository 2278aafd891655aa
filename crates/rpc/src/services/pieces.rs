//! Large answers that are made piece by piece, as their client takes them.

use std::cell::Cell;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use api::{Code, Status};
use bytes::Bytes;
use front::Answer;

use crate::audit::ANSWER_BYTES;

/// The longest message gRPC carries.
const MESSAGE_BYTES_MAX: usize = i32::MAX as usize;

/// Refuses an answer that no message can be.
pub(super) fn check_len(len: usize) -> Result<(), Status> {
    if len > MESSAGE_BYTES_MAX {
        let text = format!("grpc: trying to send message larger than max ({len} vs. {MESSAGE_BYTES_MAX})");
        return Err(Status::with(Code::ResourceExhausted, text));
    }
    Ok(())
}

/// An answer of `len` bytes. `next` makes a piece of it, given about how many bytes are wanted: `None` behind the last,
/// and an empty one if none of the keys that it looked at was there. With a piece it says how many bytes it holds for
/// those to come; before the first these are `kept`. `beginning` is what the answer is known to begin with.
///
/// # Errors
///
/// When the answer is too long for a message.
pub(super) fn answer(
    len: usize,
    kept: usize,
    beginning: &[u8],
    mut next: impl FnMut(usize, &mut Context<'_>) -> Poll<Result<Option<(Bytes, usize)>, Status>> + 'static,
) -> Result<Answer, Status> {
    check_len(len)?;
    // The front asks for at most so many bytes at a time: what a piece has beyond that waits here.
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
            // Other calls run before the next keys are looked at.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let piece = rest.split_to(rest.len().min(bytes_max));
        // A piece of which only the beginning was taken is here whole.
        noted.set(kept + if rest.is_empty() { 0 } else { rest.len() + piece.len() });
        Poll::Ready(Ok(Some(piece)))
    };
    let beginning = beginning[..beginning.len().min(ANSWER_BYTES)].into();
    Ok(Answer::Pieces { len, beginning, source: Box::new(source), held })
}
