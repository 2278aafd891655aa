//! Makes calls within this process on behalf of clients that do not speak gRPC: the code that the JSON
//! gateway and gRPC-Web share.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use accounting::ShardCounters;
use api::{Code, Status};
use bytes::Bytes;
use clock::Sleep;
use front::{Answer, First, LocalBoxFuture, LocalStream, Unary};

/// Error of a call that exceeded its deadline.
pub(crate) const LATE: Status = Status::new(Code::DeadlineExceeded, "context deadline exceeded");

/// Waits for the response of a unary call. Gives up when `late` resolves.
///
/// # Errors
///
/// Returns [`LATE`] if `late` resolves first, else the errors of the call.
pub(crate) async fn answered_in_time(answer: Unary, late: Option<Sleep>) -> Result<Answer, Status> {
    match (answer, late) {
        (Unary::Done(answer), _) => answer,
        (Unary::Later(answer), None) => answer.await,
        (Unary::Later(answer), Some(late)) => match front::race(answer, late).await {
            First::Left(answer) => answer,
            First::Right(()) => Err(LATE),
        },
    }
}

/// A streaming call in progress.
pub(crate) struct Running {
    /// Future that runs the call.
    pub(crate) future: LocalBoxFuture<Result<(), Status>>,
    /// Messages that the call sends.
    pub(crate) local: LocalStream,
    /// Resolves at the deadline of the call.
    pub(crate) late: Option<Sleep>,
    /// Result of the call, once it has ended.
    pub(crate) over: Option<Result<(), Status>>,
    /// Counts the call and its result; `None` once the call has ended.
    pub(crate) counted: Option<Counted>,
}

/// Output of a streaming call.
pub(crate) enum Said {
    Message(Bytes),
    Over(Result<(), Status>),
}

impl Running {
    /// Returns the next message, or the result of the call after the last message.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Said> {
        loop {
            if let Poll::Ready(message) = self.local.poll_message(cx) {
                return Poll::Ready(Said::Message(message));
            }
            if let Some(result) = &self.over {
                return Poll::Ready(Said::Over(result.clone()));
            }
            let late = self.late.as_mut().is_some_and(|late| Pin::new(late).poll(cx).is_ready());
            let result = if late {
                Err(LATE)
            } else if let Poll::Ready(result) = self.future.as_mut().poll(cx) {
                result
            } else {
                // The call may have sent a message before it began to wait, so the messages are polled again.
                return self.local.poll_message(cx).map(Said::Message);
            };
            let code = result.as_ref().err().map_or(Code::Ok, |status| status.code);
            self.counted.take().into_iter().for_each(|counted| counted.end(code));
            self.over = Some(result);
        }
    }
}

/// Counts a call when it starts, and counts its result once. A call that is dropped before it ends counts as
/// cancelled.
pub(crate) struct Counted {
    pub(crate) counters: Arc<ShardCounters>,
    pub(crate) method: u16,
    is_over: bool,
}

impl Counted {
    pub(crate) fn begin(counters: Arc<ShardCounters>, method: u16) -> Counted {
        counters.started(method);
        Counted { counters, method, is_over: false }
    }

    pub(crate) fn end(mut self, code: Code) {
        self.counters.handled(self.method, code);
        self.is_over = true;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if !self.is_over {
            self.counters.handled(self.method, Code::Canceled);
        }
    }
}

/// Parses a timeout as grpc-gateway does: a number, which may be negative, and a unit. The number is
/// multiplied by the unit in 64 bits, and may overflow. Returns `None` if the string is invalid, and
/// `Some(None)` if it means no timeout.
pub(crate) fn read_timeout(text: &str) -> Option<Option<Duration>> {
    let (unit_at, unit) = text.char_indices().next_back()?;
    let nanoseconds: i64 = match unit {
        'H' => 3_600_000_000_000,
        'M' => 60_000_000_000,
        'S' => 1_000_000_000,
        'm' => 1_000_000,
        'u' => 1_000,
        'n' => 1,
        _ => return None,
    };
    let amount: i64 = text[..unit_at].parse().ok()?;
    let time = amount.wrapping_mul(nanoseconds);
    Some((time != 0).then(|| Duration::from_nanos(u64::try_from(time).unwrap_or(0))))
}

/// Refuses a client's message that is too large.
///
/// # Errors
///
/// Returns grpc-go's error if `len` exceeds `bytes_max`.
pub(crate) fn check_len(len: usize, bytes_max: usize) -> Result<(), Status> {
    if len <= bytes_max {
        return Ok(());
    }
    let text = format!("grpc: received message larger than max ({len} vs. {bytes_max})");
    Err(Status::with(Code::ResourceExhausted, text))
}

/// Refuses a response that is too large.
///
/// # Errors
///
/// Returns grpc-go's error if `len` exceeds `bytes_max`.
pub(crate) fn check_sent_len(len: usize, bytes_max: usize) -> Result<(), Status> {
    if len <= bytes_max {
        return Ok(());
    }
    let text = format!("grpc: trying to send message larger than max ({len} vs. {bytes_max})");
    Err(Status::with(Code::ResourceExhausted, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_the_gateway_reads_them() {
        assert_eq!(read_timeout("5S"), Some(Some(Duration::from_secs(5))));
        assert_eq!(read_timeout("-5S"), Some(Some(Duration::ZERO)));
        assert_eq!(read_timeout("+2m"), Some(Some(Duration::from_millis(2))));
        assert_eq!(read_timeout("0S"), Some(None));
        assert_eq!(
            read_timeout("99999999999H"),
            Some(Some(Duration::ZERO)),
            "as Go, whose product is negative"
        );
        for bad in ["", "S", "5", "5x", "x5S", "5 S", "99999999999999999999S", "5é"] {
            assert_eq!(read_timeout(bad), None, "{bad}");
        }
    }
}
