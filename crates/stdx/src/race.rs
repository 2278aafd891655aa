use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

/// Which of two futures was ready first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First<A, B> {
    /// The left one, with its output.
    Left(A),
    /// The right one, with its output.
    Right(B),
}

/// Waits until one of two futures is ready and drops the other. If both are ready, the left one counts.
pub async fn race<A, B>(left: impl Future<Output = A>, right: impl Future<Output = B>) -> First<A, B> {
    let (mut left, mut right) = (pin!(left), pin!(right));
    poll_fn(|cx| {
        if let Poll::Ready(value) = left.as_mut().poll(cx) {
            return Poll::Ready(First::Left(value));
        }
        right.as_mut().poll(cx).map(First::Right)
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::task::{Context, Waker};

    use super::*;

    fn now<T>(future: impl Future<Output = T>) -> Poll<T> {
        pin!(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn the_first_that_is_ready_counts_and_the_left_one_of_two() {
        assert_eq!(now(race(ready(1), pending::<()>())), Poll::Ready(First::Left(1)));
        assert_eq!(now(race(pending::<()>(), ready(2))), Poll::Ready(First::Right(2)));
        assert_eq!(now(race(ready(1), ready(2))), Poll::Ready(First::Left(1)));
        assert!(now(race(pending::<()>(), pending::<()>())).is_pending());
    }
}
