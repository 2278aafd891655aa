use std::time::{Duration, Instant};

/// Calls `look` repeatedly until it returns a value, and returns that value. For tests that wait for a change
/// in another thread or process.
///
/// # Panics
///
/// Panics if `look` returns `None` until `timeout` has passed. The message contains `what`, which describes
/// the awaited condition.
#[track_caller]
pub fn wait_until<T>(what: &str, timeout: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + timeout;
    let mut pause = Duration::from_micros(50);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {timeout:?} in vain: {what}");
        // Begin with short pauses, because most conditions are met soon, and double them, so that a long wait
        // uses little processor time.
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_found_is_returned() {
        let mut looked = 0;
        let found = wait_until("the fifth look", Duration::from_secs(60), || {
            looked += 1;
            (looked == 5).then_some("found")
        });
        assert_eq!((found, looked), ("found", 5));
    }

    #[test]
    #[should_panic(expected = "in vain: what never happens")]
    fn what_never_happens_is_named() {
        wait_until("what never happens", Duration::ZERO, || None::<()>);
    }
}
