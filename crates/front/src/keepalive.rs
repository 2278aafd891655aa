use std::time::{Duration, Instant};

use crate::Options;

/// Without open calls a client may not ping more often than this, unless permitted (grpc-go's rule).
const IDLE_PING_INTERVAL: Duration = Duration::from_secs(2 * 3600);

/// Strikes that are forgiven.
const STRIKES_MAX: u32 = 2;

/// Judges a client's pings as grpc-go's server does: too frequent ones are strikes, an answer sent in between
/// clears them, more than two end the connection.
#[derive(Debug)]
pub(crate) struct PingPolicy {
    last: Option<Instant>,
    strikes: u32,
    forgiven: bool,
}

impl PingPolicy {
    pub(crate) fn new() -> PingPolicy {
        PingPolicy { last: None, strikes: 0, forgiven: false }
    }

    /// HEADERS or DATA went out.
    pub(crate) fn forgive(&mut self) {
        self.forgiven = true;
    }

    /// A ping came; true if it was one too many.
    pub(crate) fn is_too_many(&mut self, now: Instant, has_calls: bool, options: &Options) -> bool {
        let last = self.last.replace(now);
        if std::mem::take(&mut self.forgiven) {
            self.strikes = 0;
            return false;
        }
        let least = if has_calls || options.keepalive_permit_without_stream {
            options.keepalive_min_time
        } else {
            IDLE_PING_INTERVAL
        };
        if last.is_some_and(|last| now.saturating_duration_since(last) < least) {
            self.strikes += 1;
        }
        self.strikes > STRIKES_MAX
    }
}

/// What the server's own keepalive needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pulse {
    /// Nothing before this time.
    Wait(Instant),
    /// A ping now, then the next look at this time.
    Ping(Instant),
    /// The client is dead.
    Dead,
}

/// Pings a silent client and gives it up when it stays silent.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    last_received: Instant,
    pinged: Option<Instant>,
}

impl Heartbeat {
    pub(crate) fn new(now: Instant) -> Heartbeat {
        Heartbeat { last_received: now, pinged: None }
    }

    /// Notes that bytes came from the client.
    pub(crate) fn received(&mut self, now: Instant) {
        self.last_received = now;
        self.pinged = None;
    }

    /// Returns what to do now.
    pub(crate) fn pulse(&mut self, now: Instant, options: &Options) -> Pulse {
        match self.pinged {
            Some(pinged) if now >= pinged + options.keepalive_timeout => Pulse::Dead,
            Some(pinged) => Pulse::Wait(pinged + options.keepalive_timeout),
            None if now >= self.last_received + options.keepalive_interval => {
                self.pinged = Some(now);
                Pulse::Ping(now + options.keepalive_timeout)
            }
            None => Pulse::Wait(self.last_received + options.keepalive_interval),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strikes(policy: &mut PingPolicy, from: Instant, gaps: &[u64], has_calls: bool) -> Vec<bool> {
        let (options, mut now) = (Options::default(), from);
        let mut judged = Vec::new();
        for gap in gaps {
            now += Duration::from_secs(*gap);
            judged.push(policy.is_too_many(now, has_calls, &options));
        }
        judged
    }

    #[test]
    fn the_third_strike_ends_it_and_answers_clear_them() {
        let now = Instant::now();
        assert_eq!(strikes(&mut PingPolicy::new(), now, &[0, 1, 1, 1], true), [false, false, false, true]);
        assert_eq!(strikes(&mut PingPolicy::new(), now, &[0, 5, 5, 5, 5], true), [false; 5]);
        assert_eq!(
            strikes(&mut PingPolicy::new(), now, &[0, 60, 60, 60], false),
            [false, false, false, true]
        );
        let mut policy = PingPolicy::new();
        assert_eq!(strikes(&mut policy, now, &[0, 1, 1], true), [false; 3]);
        policy.forgive();
        assert_eq!(strikes(&mut policy, now, &[3, 1, 1, 1], true), [false, false, false, true]);
    }

    #[test]
    fn a_silent_client_is_pinged_then_given_up() {
        let (options, start) = (Options::default(), Instant::now());
        let mut heartbeat = Heartbeat::new(start);
        let due = start + options.keepalive_interval;
        assert_eq!(heartbeat.pulse(start, &options), Pulse::Wait(due));
        assert_eq!(heartbeat.pulse(due, &options), Pulse::Ping(due + options.keepalive_timeout));
        assert_eq!(heartbeat.pulse(due + options.keepalive_timeout, &options), Pulse::Dead);
        heartbeat.received(due);
        assert_eq!(heartbeat.pulse(due, &options), Pulse::Wait(due + options.keepalive_interval));
    }
}
