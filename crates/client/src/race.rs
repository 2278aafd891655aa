use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

/// Which of two futures was first.
pub(crate) enum Either<A, B> {
    First(A),
    Second(B),
}

/// Waits for the first of two and drops the other; the first wins a tie.
pub(crate) async fn race<A, B>(
    first: impl Future<Output = A>,
    second: impl Future<Output = B>,
) -> Either<A, B> {
    let mut first = pin!(first);
    let mut second = pin!(second);
    poll_fn(|cx| {
        if let Poll::Ready(value) = first.as_mut().poll(cx) {
            return Poll::Ready(Either::First(value));
        }
        second.as_mut().poll(cx).map(Either::Second)
    })
    .await
}
