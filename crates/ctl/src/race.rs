use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

/// Which of two was ready first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum First<A, B> {
    One(A),
    Other(B),
}

/// Waits for whichever is ready first and drops the other; when both are, the one counts.
pub(crate) async fn first<A, B>(one: impl Future<Output = A>, other: impl Future<Output = B>) -> First<A, B> {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|context| {
        if let Poll::Ready(done) = one.as_mut().poll(context) {
            return Poll::Ready(First::One(done));
        }
        other.as_mut().poll(context).map(First::Other)
    })
    .await
}
