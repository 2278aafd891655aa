use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;

/// Minimum average rate of a body in bytes per second. A slower sender would occupy its connection and memory
/// for too long.
const BODY_RATE_MIN: u64 = 16 << 10;

/// Time limit for a body that is being received. Waiting for the next bytes may take at most `silence_max`.
/// All waits together may take at most `silence_max` plus the time that a sender at the minimum rate needs
/// for the bytes received so far. Only waits count, not the time during which the body is not read.
pub(crate) struct Pace {
    silence_max: Duration,
    waited: Duration,
    bytes: u64,
}

impl Pace {
    pub(crate) fn new(silence_max: Duration) -> Pace {
        Pace { silence_max, waited: Duration::ZERO, bytes: 0 }
    }

    fn patience(&self) -> Duration {
        let earned = Duration::from_millis(self.bytes.saturating_mul(1000) / BODY_RATE_MIN);
        self.silence_max.saturating_add(earned).saturating_sub(self.waited).min(self.silence_max)
    }

    fn came(&mut self, waited: Duration, bytes: usize) {
        self.waited = self.waited.saturating_add(waited);
        self.bytes += bytes as u64;
    }

    /// Waits for the next bytes of a body and returns them; `None` at the end of the body. Returns an error
    /// if they do not arrive in time.
    pub(crate) async fn next(&mut self, body: &mut Incoming) -> Option<io::Result<Bytes>> {
        loop {
            let began = Instant::now();
            match tokio::time::timeout(self.patience(), body.frame()).await {
                Err(_) => {
                    let text = format!("the sender was silent or slow for {:?}", self.silence_max);
                    return Some(Err(io::Error::new(io::ErrorKind::TimedOut, text)));
                }
                Ok(None) => return None,
                Ok(Some(Err(error))) => return Some(Err(io::Error::other(error))),
                Ok(Some(Ok(frame))) => {
                    let piece = frame.into_data().unwrap_or_default();
                    self.came(began.elapsed(), piece.len());
                    if !piece.is_empty() {
                        return Some(Ok(piece));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_trickle_ends_and_a_slow_sender_goes_on() {
        let mut trickle = Pace::new(5 * SECOND);
        let mut seconds = 0;
        while !trickle.patience().is_zero() {
            assert!(trickle.patience() <= 5 * SECOND);
            trickle.came(SECOND, 100);
            seconds += 1;
        }
        assert_eq!(seconds, 6);
        let mut slow = Pace::new(5 * SECOND);
        for _ in 0..100_000 {
            slow.came(SECOND, BODY_RATE_MIN as usize);
            assert!(slow.patience() > 4 * SECOND);
        }
    }
}
