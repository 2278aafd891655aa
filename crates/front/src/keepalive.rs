use std::time::{Duration, Instant};

use crate::Options;

/// Minimum interval between the pings of a client without open calls, as in grpc-go, unless
/// [`Options::keepalive_permit_without_stream`] allows more.
const IDLE_PING_INTERVAL: Duration = Duration::from_secs(2 * 3600);

/// Number of pings sent too soon (strikes) that are tolerated before the connection is closed.
const STRIKES_MAX: u32 = 2;

/// Decides like grpc-go's server whether a client sends too many pings: a ping that follows the previous one
/// too soon is a strike, an answer sent between two pings clears the strikes, and more than two strikes end
/// the connection.
#[derive(Debug, Default)]
pub(crate) struct PingPolicy {
    last: Option<Instant>,
    strikes: u32,
    forgiven: bool,
    /// Total bytes of HEADERS and DATA that had been sent when the last ping arrived.
    sent_before: u64,
}

impl PingPolicy {
    /// Takes the total bytes of HEADERS and DATA sent so far. An increase since the last ping means that an
    /// answer was sent in between, which clears the strikes.
    pub(crate) fn note_sent(&mut self, sent: u64) {
        self.forgiven |= std::mem::replace(&mut self.sent_before, sent) != sent;
    }

    /// Counts a received ping. Returns true if the client has sent too many pings.
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

/// Next action of the server's keepalive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pulse {
    /// Nothing to do before this time.
    Wait(Instant),
    /// Send a ping now, and check again at this time.
    Ping(Instant),
    /// The client did not answer; close the connection.
    Dead,
}

/// Pings a silent client, and closes the connection if the client stays silent.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    /// Time of the last received bytes, or of the ping sent after them.
    since: Instant,
    is_pinged: bool,
}

impl Heartbeat {
    pub(crate) fn new(now: Instant) -> Heartbeat {
        Heartbeat { since: now, is_pinged: false }
    }

    /// Notes that bytes arrived from the client.
    pub(crate) fn received(&mut self, now: Instant) {
        (self.since, self.is_pinged) = (now, false);
    }

    /// Returns the action that is due now.
    pub(crate) fn pulse(&mut self, now: Instant, options: &Options) -> Pulse {
        let wait = if self.is_pinged { options.keepalive_timeout } else { options.keepalive_interval };
        if now < self.since + wait {
            return Pulse::Wait(self.since + wait);
        }
        if self.is_pinged {
            return Pulse::Dead;
        }
        (self.since, self.is_pinged) = (now, true);
        Pulse::Ping(now + options.keepalive_timeout)
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
        assert_eq!(
            strikes(&mut PingPolicy::default(), now, &[0, 1, 1, 1], true),
            [false, false, false, true]
        );
        assert_eq!(strikes(&mut PingPolicy::default(), now, &[0, 5, 5, 5, 5], true), [false; 5]);
        assert_eq!(
            strikes(&mut PingPolicy::default(), now, &[0, 60, 60, 60], false),
            [false, false, false, true]
        );
        let mut policy = PingPolicy::default();
        assert_eq!(strikes(&mut policy, now, &[0, 1, 1], true), [false; 3]);
        policy.note_sent(1);
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
