use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

/// Runs the future of a test to its end on this thread, in a new tokio runtime, and returns the result.
///
/// # Panics
///
/// Panics if the future has not ended after `limit`, which means that the test hangs.
#[track_caller]
pub fn block_on<T>(limit: Duration, test: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
    let ended = runtime.block_on(async { timeout(limit, test).await });
    ended.unwrap_or_else(|_| panic!("the test has not ended after {limit:?}"))
}

/// Waits like [`wait_until`](crate::wait_until), for tests that run in a tokio runtime.
///
/// # Panics
///
/// Panics if `look` returns `None` until `timeout` has passed. The message contains `what`, which describes
/// the awaited condition.
pub async fn eventually<T>(what: &str, timeout: Duration, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + timeout;
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {timeout:?} in vain: {what}");
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}
