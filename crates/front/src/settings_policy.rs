use std::time::{Duration, Instant};

/// SETTINGS frames that a client may send at once. Clients send one, and those that measure the network some ten more.
const AT_ONCE: u32 = 100;
/// Time after which one more is allowed.
const EACH: Duration = Duration::from_secs(1);

/// Judges how often a client changes its settings. A frame of 15 bytes that changes the initial window makes the HTTP/2 library
/// look at every open stream, so the client decides how much work a byte is: with 60,000 calls open, 64 KiB of such frames
/// are 260 million looks.
#[derive(Debug)]
pub(crate) struct SettingsPolicy {
    left: u32,
    /// Time up to which the allowance was filled up.
    filled: Instant,
}

impl SettingsPolicy {
    pub(crate) fn new(now: Instant) -> SettingsPolicy {
        SettingsPolicy { left: AT_ONCE, filled: now }
    }

    /// So many frames came; true if there are too many.
    pub(crate) fn is_too_many(&mut self, frames: u32, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.filled).as_secs();
        if passed > 0 {
            self.left = self.left.saturating_add(u32::try_from(passed).unwrap_or(u32::MAX)).min(AT_ONCE);
            self.filled += u32::try_from(passed).map_or(Duration::ZERO, |passed| passed * EACH);
        }
        let is_too_many = frames > self.left;
        self.left = self.left.saturating_sub(frames);
        is_too_many
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_allowed_in_bursts_and_at_a_rate() {
        let start = Instant::now();
        let mut policy = SettingsPolicy::new(start);
        assert!((0..AT_ONCE).all(|_| !policy.is_too_many(1, start)));
        assert!(policy.is_too_many(1, start));
        let later = start + Duration::from_millis(2500);
        assert!(!policy.is_too_many(2, later));
        assert!(policy.is_too_many(1, later));
        assert!(!policy.is_too_many(1, start + Duration::from_secs(3)));
        assert!(!policy.is_too_many(AT_ONCE, start + Duration::from_secs(1_000_000)));
        assert!(policy.is_too_many(1, start + Duration::from_secs(1_000_000)));
    }
}
