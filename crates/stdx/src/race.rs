use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

/// Result of [`race`]: the future that was ready first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First<A, B> {
    /// The left future was ready first. Contains its output.
    Left(A),
    /// The right future was ready first. Contains its output.
    Right(B),
}

/// Waits until one of two futures is ready, and drops the other one. If both are ready, returns the output of
/// the left one.
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

/// Waits for a future, but returns `None` if `end` is ready first or `is_over` returns true. Both are checked
/// before each poll of the future. If `end` is a timer, `is_over` should compare the time with its deadline:
/// the timer may be noticed late, because polls of the future may take long.
pub async fn before<T>(
    mut is_over: impl FnMut() -> bool,
    end: impl Future,
    future: impl Future<Output = T>,
) -> Option<T> {
    let (mut end, mut future) = (pin!(end), pin!(future));
    poll_fn(|cx| {
        if is_over() || end.as_mut().poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        future.as_mut().poll(cx).map(Some)
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
    fn nothing_is_polled_behind_the_end() {
        let mut polls = 0;
        let mut counted = |is_over: bool, end: Poll<()>| {
            let future = poll_fn(|_| {
                polls += 1;
                Poll::Ready(1)
            });
            (now(before(|| is_over, poll_fn(|_| end), future)), polls)
        };
        assert_eq!(counted(true, Poll::Pending), (Poll::Ready(None), 0));
        assert_eq!(counted(false, Poll::Ready(())), (Poll::Ready(None), 0));
        assert_eq!(counted(false, Poll::Pending), (Poll::Ready(Some(1)), 1));
    }

    #[test]
    fn the_first_that_is_ready_counts_and_the_left_one_of_two() {
        assert_eq!(now(race(ready(1), pending::<()>())), Poll::Ready(First::Left(1)));
        assert_eq!(now(race(pending::<()>(), ready(2))), Poll::Ready(First::Right(2)));
        assert_eq!(now(race(ready(1), ready(2))), Poll::Ready(First::Left(1)));
        assert!(now(race(pending::<()>(), pending::<()>())).is_pending());
    }
}
