use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::Rejection;

/// Maximum number of reports in one [`SPAN`]; further rejections are only counted.
const REPORTS_MAX: u64 = 10;
const SPAN: Duration = Duration::from_secs(1);

/// Reports rejected connections, at a limited rate. The limit is needed because clients decide how many
/// connections are rejected.
pub(crate) struct Rejections {
    callback: Arc<dyn Fn(&Rejection) + Send + Sync>,
    /// Rate-limit states: one for refusals, and one for clients that closed the connection themselves. They
    /// are separate because port probes cause many connections of the second kind, which matter less and must
    /// not keep refusals from being reported.
    states: Mutex<[State; 2]>,
}

#[derive(Debug, Default)]
struct State {
    since: Option<Instant>,
    reported: u64,
    not_reported: u64,
}

impl fmt::Debug for Rejections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.states.fmt(f)
    }
}

impl Rejections {
    pub(crate) fn new(callback: Arc<dyn Fn(&Rejection) + Send + Sync>) -> Rejections {
        Rejections { callback, states: Mutex::default() }
    }

    /// Reports a rejection, unless the rate limit is reached.
    pub(crate) fn report(&self, mut rejected: Rejection, now: Instant) {
        {
            // No code under this lock can panic halfway, so the state is consistent even if the lock is
            // poisoned.
            let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
            let [refusals, ends] = &mut *states;
            let state = if rejected.is_end_of_file { ends } else { refusals };
            if state.since.is_none_or(|since| now.saturating_duration_since(since) >= SPAN) {
                (state.since, state.reported) = (Some(now), 0);
            }
            if state.reported == REPORTS_MAX {
                state.not_reported += 1;
                return;
            }
            state.reported += 1;
            rejected.not_reported = std::mem::take(&mut state.not_reported);
        }
        (self.callback)(&rejected);
    }
}

impl Rejection {
    /// Creates the report for a client that is not admitted.
    pub(crate) fn new(remote: SocketAddr, error: String) -> Rejection {
        Rejection {
            remote,
            server_name: String::new(),
            error,
            names: None,
            is_end_of_file: false,
            was_admitted: false,
            not_reported: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_are_counted() {
        let seen: Arc<Mutex<Vec<u64>>> = Arc::default();
        let sink = seen.clone();
        let tell = move |rejected: &Rejection| sink.lock().unwrap().push(rejected.not_reported);
        let rejections = Rejections::new(Arc::new(tell));
        let now = Instant::now();
        let report =
            |at| rejections.report(Rejection::new(SocketAddr::from(([1, 2, 3, 4], 5)), "EOF".to_owned()), at);
        for _ in 0..50 {
            report(now);
        }
        assert_eq!(*seen.lock().unwrap(), vec![0; 10]);
        report(now + SPAN);
        report(now + SPAN);
        assert_eq!(seen.lock().unwrap()[10..], [40, 0]);
    }

    #[test]
    fn ends_take_no_place_and_no_count_of_others() {
        let seen: Arc<Mutex<Vec<(bool, u64)>>> = Arc::default();
        let sink = seen.clone();
        let tell = move |rejected: &Rejection| {
            sink.lock().unwrap().push((rejected.is_end_of_file, rejected.not_reported));
        };
        let rejections = Rejections::new(Arc::new(tell));
        let now = Instant::now();
        let report = |is_end_of_file, at| {
            let remote = SocketAddr::from(([1, 2, 3, 4], 5));
            rejections
                .report(Rejection { is_end_of_file, ..Rejection::new(remote, "because".to_owned()) }, at);
        };
        for _ in 0..50 {
            report(true, now);
        }
        for _ in 0..30 {
            report(false, now);
        }
        let told = |end| seen.lock().unwrap().iter().filter(|(is_end, _)| *is_end == end).count();
        assert_eq!((told(true), told(false)), (10, 10));
        report(true, now + SPAN);
        report(false, now + SPAN);
        assert_eq!(seen.lock().unwrap()[20..], [(true, 40), (false, 20)]);
    }
}
