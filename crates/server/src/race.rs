//! The first of two futures.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// Resolves to the first future's output, or to `None` as soon as the second is done.
pub async fn either<T>(first: impl Future<Output = T>, second: impl Future<Output = ()>) -> Option<T> {
    let (mut first, mut second) = (pin!(first), pin!(second));
    poll_fn(|context| {
        if let Poll::Ready(output) = first.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        second.as_mut().poll(context).map(|()| None)
    })
    .await
}
