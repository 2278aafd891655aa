use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::Rejected;

/// Reports in one [`SPAN`]; what is more is counted.
const REPORTS_MAX: u64 = 10;
const SPAN: Duration = Duration::from_secs(1);

/// Tells of connections that are not let in, within bounds: clients decide how many there are.
pub(crate) struct Rejections {
    tell: Arc<dyn Fn(&Rejected) + Send + Sync>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    since: Option<Instant>,
    reported: u64,
    not_reported: u64,
}

impl fmt::Debug for Rejections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state.fmt(f)
    }
}

impl Rejections {
    pub(crate) fn new(tell: Arc<dyn Fn(&Rejected) + Send + Sync>) -> Rejections {
        Rejections { tell, state: Mutex::default() }
    }

    /// Reports this one, unless there were too many lately.
    pub(crate) fn report(&self, mut rejected: Rejected, now: Instant) {
        {
            // Nothing inside can panic half-way.
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
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
        (self.tell)(&rejected);
    }
}

impl Rejected {
    /// Of a client that is not let in.
    pub(crate) fn new(remote: SocketAddr, error: String) -> Rejected {
        Rejected {
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
        let tell = move |rejected: &Rejected| sink.lock().unwrap().push(rejected.not_reported);
        let rejections = Rejections::new(Arc::new(tell));
        let now = Instant::now();
        let report =
            |at| rejections.report(Rejected::new(SocketAddr::from(([1, 2, 3, 4], 5)), "EOF".to_owned()), at);
        for _ in 0..50 {
            report(now);
        }
        assert_eq!(*seen.lock().unwrap(), vec![0; 10]);
        report(now + SPAN);
        report(now + SPAN);
        assert_eq!(seen.lock().unwrap()[10..], [40, 0]);
    }
}
