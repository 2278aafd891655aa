//! Limits the rate of expensive calls of each client.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use api::{Code, Status};
use stdx::client_network;

/// Maximum number of remembered users, and of remembered addresses. At this number, clients that have their
/// whole allowance again are forgotten, which changes nothing for them. If there are none, new clients are
/// refused.
const CLIENTS_MAX: usize = 4096;

/// Error for a client that exceeds its rate, with the text that etcd uses for other limits. In etcd,
/// responses with this text have the code Unknown.
const TOO_MANY_CALLS: Status = Status::new(Code::ResourceExhausted, "etcdserver: too many requests");

/// For each client, the time at which its allowance will be whole again.
type Allowances<Client> = Mutex<HashMap<Client, Instant>>;

/// Limits the number of expensive calls that each client may make per second. Expensive calls are those that
/// may process many keys, changes, leases or users. A client is a user, or an address for calls without a
/// user. The allowance of each client is the number of calls that it may make in one second. Each call
/// reduces the allowance, which is refilled as time passes.
///
/// ```text
/// 10 calls a second    10 calls together are allowed; the 11th is refused; 100 ms later one more is allowed
/// ```
#[derive(Debug, Default)]
pub struct ExpensiveCalls {
    /// Calls per second that each client may make; 0 for no limit.
    per_second: u64,
    refused: AtomicU64,
    /// Allowances of users. They are stored apart from those of addresses, so that a client with many
    /// addresses cannot displace users.
    users: Allowances<Box<str>>,
    /// Allowances of addresses. All addresses of an IPv6 network of 64 bits share one.
    addresses: Allowances<IpAddr>,
}

impl ExpensiveCalls {
    /// Allows each client this many calls per second; 0 for no limit.
    pub fn new(per_second: u64) -> ExpensiveCalls {
        ExpensiveCalls { per_second, ..ExpensiveCalls::default() }
    }

    /// Returns true if the number of calls is limited.
    pub fn is_bounded(&self) -> bool {
        self.per_second > 0
    }

    /// Returns the number of calls refused so far.
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Reduces the allowance of this user, or of this address if the user is empty, by `calls` calls. More
    /// calls than are allowed in one second count as that number.
    ///
    /// # Errors
    ///
    /// etcd's `too many requests` if the allowance is too small, or if the client is new and too many clients
    /// are remembered.
    pub fn admit(&self, user: &str, address: IpAddr, calls: u64, now: Instant) -> Result<(), Status> {
        if !self.is_bounded() || calls == 0 {
            return Ok(());
        }
        let cost = Duration::from_nanos((1_000_000_000 / self.per_second).max(1))
            .saturating_mul(u32::try_from(calls.min(self.per_second)).unwrap_or(u32::MAX));
        let is_admitted = match user {
            "" => admit(&self.addresses, client_network(address), cost, now),
            user => admit(&self.users, user.into(), cost, now),
        };
        if !is_admitted {
            self.refused.fetch_add(1, Relaxed);
            return Err(TOO_MANY_CALLS);
        }
        Ok(())
    }
}

fn admit<Client: Eq + Hash>(
    allowances: &Allowances<Client>,
    client: Client,
    cost: Duration,
    now: Instant,
) -> bool {
    // No code panics while it holds this lock with half-changed data, so a poisoned lock still guards a
    // consistent map.
    let mut allowances = allowances.lock().unwrap_or_else(PoisonError::into_inner);
    if allowances.len() >= CLIENTS_MAX && !allowances.contains_key(&client) {
        allowances.retain(|_, whole_at| *whole_at > now);
    }
    let is_full = allowances.len() >= CLIENTS_MAX;
    let next = allowances.get(&client).map_or(now, |at| (*at).max(now)) + cost;
    // If the table is still full, all remembered clients have made calls recently. A new client is then
    // refused until one of them has its whole allowance again and can be forgotten.
    if next > now + Duration::from_secs(1).max(cost) || (is_full && !allowances.contains_key(&client)) {
        return false;
    }
    allowances.insert(client, next);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(0x0a00_0000 + number).into()
    }

    #[test]
    fn a_client_has_the_calls_of_a_second_and_gets_them_back_in_time() {
        let (calls, start) = (ExpensiveCalls::new(10), Instant::now());
        let admitted = |user: &str, number: u32, at: Duration| {
            (0..100).filter(|_| calls.admit(user, address(number), 1, start + at).is_ok()).count()
        };
        assert_eq!(admitted("", 1, Duration::ZERO), 10);
        assert_eq!(admitted("", 1, Duration::from_millis(250)), 2);
        assert_eq!(admitted("", 2, Duration::from_millis(250)), 10, "another address has its own");
        assert_eq!(admitted("alice", 1, Duration::from_millis(250)), 10, "a user is no address");
        assert_eq!(admitted("alice", 2, Duration::from_millis(250)), 0, "wherever the user calls from");
        assert_eq!(admitted("", 1, Duration::from_secs(100)), 10, "no more is saved up");
        assert_eq!(calls.refused(), 600 - 42);
        assert_eq!(calls.admit("", address(1), 1, start + Duration::from_secs(100)), Err(TOO_MANY_CALLS));
    }

    #[test]
    fn clients_that_are_remembered_are_bounded_and_idle_ones_make_way() {
        let (calls, start) = (ExpensiveCalls::new(1), Instant::now());
        let clients = u32::try_from(CLIENTS_MAX).unwrap();
        assert!((0..clients).all(|number| calls.admit("", address(number), 1, start).is_ok()));
        assert!(calls.admit("", address(clients), 1, start).is_err(), "all are at it");
        assert!(calls.admit("alice", address(clients), 1, start).is_ok(), "addresses displace no user");
        assert!(calls.admit("", address(clients), 1, start + Duration::from_secs(1)).is_ok());
        assert!(calls.addresses.lock().unwrap().len() <= CLIENTS_MAX);
        assert!(
            (1..clients).all(|number| calls.admit(&format!("user{number}"), address(0), 1, start).is_ok())
        );
        assert!(calls.admit("bob", address(0), 1, start).is_err(), "users are bounded, too");
    }

    #[test]
    fn a_large_call_counts_as_many() {
        let (calls, start) = (ExpensiveCalls::new(10), Instant::now());
        let admit = |number, at| calls.admit("bob", address(1), number, start + Duration::from_millis(at));
        assert!(admit(0, 0).is_ok() && admit(8, 0).is_ok());
        assert!(admit(3, 0).is_err() && admit(2, 0).is_ok() && admit(1, 0).is_err());
        assert!(admit(1000, 900).is_err());
        assert!(admit(1000, 1000).is_ok() && admit(1, 1000).is_err(), "no more than all of a second's");
    }

    #[test]
    fn an_ipv6_network_is_one_client_and_none_counts_without_a_bound() {
        let (calls, start) = (ExpensiveCalls::new(1), Instant::now());
        let six = |text: &str| text.parse::<IpAddr>().unwrap();
        assert!(calls.admit("", six("2001:db8::1"), 1, start).is_ok());
        assert!(calls.admit("", six("2001:db8::2"), 1, start).is_err());
        assert!(calls.admit("", six("2001:db8:0:1::2"), 1, start).is_ok());
        assert!(calls.admit("", six("::ffff:10.0.0.1"), 1, start).is_ok());
        assert!(calls.admit("", six("10.0.0.1"), 1, start).is_err());
        let any = ExpensiveCalls::new(0);
        assert!((0..10_000).all(|_| any.admit("", address(1), 1, start).is_ok()));
    }
}
