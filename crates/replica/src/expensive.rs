//! Bounds the number of expensive calls of each client.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use api::{Code, Status};

/// Clients that are remembered. Beyond these, those that have their whole allowance make way; it is theirs anyway.
const CLIENTS_MAX: usize = 4096;

/// etcd's text for what it has no limit for. etcd's own such answers come with the code Unknown.
const TOO_MANY_CALLS: Status = Status::new(Code::ResourceExhausted, "etcdserver: too many requests");

/// Whose calls are counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Client {
    User(Box<str>),
    /// A client without a user. An IPv6 network of 64 bits is one client.
    Address(IpAddr),
}

/// How many expensive calls each client may make in a second: ranges of many keys, snapshots and hashes. A client is a user, or
/// an address if authentication is not enabled. Each has an allowance of one second's calls, which fills up as time passes.
///
/// ```text
/// 10 calls a second    10 calls at once are allowed; the 11th is refused; 100 ms later another one is allowed
/// ```
#[derive(Debug, Default)]
pub struct ExpensiveCalls {
    /// Calls of a client in a second; 0: any number.
    per_second: u64,
    refused: AtomicU64,
    /// When the allowance of a client is whole again.
    whole_at: Mutex<HashMap<Client, Instant>>,
}

impl ExpensiveCalls {
    /// Allows each client this many calls in a second; 0: any number.
    pub fn new(per_second: u64) -> ExpensiveCalls {
        ExpensiveCalls { per_second, ..ExpensiveCalls::default() }
    }

    /// Returns true if calls are counted.
    pub fn is_bounded(&self) -> bool {
        self.per_second > 0
    }

    /// Calls that were refused.
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Counts a call of this user, or of this address if the user is empty.
    ///
    /// # Errors
    ///
    /// etcd's `too many requests`: the client has made as many calls as it may.
    pub fn admit(&self, user: &str, address: IpAddr, now: Instant) -> Result<(), Status> {
        if !self.is_bounded() {
            return Ok(());
        }
        let client = match user {
            "" => Client::Address(network(address)),
            user => Client::User(user.into()),
        };
        let second = Duration::from_secs(1);
        let each = Duration::from_nanos((1_000_000_000 / self.per_second).max(1));
        let mut whole_at = self.whole_at.lock().unwrap_or_else(PoisonError::into_inner);
        if whole_at.len() >= CLIENTS_MAX && !whole_at.contains_key(&client) {
            whole_at.retain(|_, whole_at| *whole_at > now);
        }
        let is_full = whole_at.len() >= CLIENTS_MAX;
        let next = whole_at.get(&client).map_or(now, |at| (*at).max(now)) + each;
        // More clients than are remembered are all at it: a newcomer waits until one of them is not.
        if next > now + second.max(each) || (is_full && !whole_at.contains_key(&client)) {
            self.refused.fetch_add(1, Relaxed);
            return Err(TOO_MANY_CALLS);
        }
        whole_at.insert(client, next);
        Ok(())
    }
}

fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address => address,
    }
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
            (0..100).filter(|_| calls.admit(user, address(number), start + at).is_ok()).count()
        };
        assert_eq!(admitted("", 1, Duration::ZERO), 10);
        assert_eq!(admitted("", 1, Duration::from_millis(250)), 2);
        assert_eq!(admitted("", 2, Duration::from_millis(250)), 10, "another address has its own");
        assert_eq!(admitted("alice", 1, Duration::from_millis(250)), 10, "a user is no address");
        assert_eq!(admitted("alice", 2, Duration::from_millis(250)), 0, "wherever the user calls from");
        assert_eq!(admitted("", 1, Duration::from_secs(100)), 10, "no more is saved up");
        assert_eq!(calls.refused(), 600 - 42);
        assert_eq!(calls.admit("", address(1), start + Duration::from_secs(100)), Err(TOO_MANY_CALLS));
    }

    #[test]
    fn clients_that_are_remembered_are_bounded_and_idle_ones_make_way() {
        let (calls, start) = (ExpensiveCalls::new(1), Instant::now());
        let clients = u32::try_from(CLIENTS_MAX).unwrap();
        assert!((0..clients).all(|number| calls.admit("", address(number), start).is_ok()));
        assert!(calls.admit("", address(clients), start).is_err(), "all are at it");
        assert!(calls.admit("", address(clients), start + Duration::from_secs(1)).is_ok());
        assert!(calls.whole_at.lock().unwrap().len() <= CLIENTS_MAX);
    }

    #[test]
    fn an_ipv6_network_is_one_client_and_none_counts_without_a_bound() {
        let (calls, start) = (ExpensiveCalls::new(1), Instant::now());
        let six = |text: &str| text.parse::<IpAddr>().unwrap();
        assert!(calls.admit("", six("2001:db8::1"), start).is_ok());
        assert!(calls.admit("", six("2001:db8::2"), start).is_err());
        assert!(calls.admit("", six("2001:db8:0:1::2"), start).is_ok());
        assert!(calls.admit("", six("::ffff:10.0.0.1"), start).is_ok());
        assert!(calls.admit("", six("10.0.0.1"), start).is_err());
        let any = ExpensiveCalls::new(0);
        assert!((0..10_000).all(|_| any.admit("", address(1), start).is_ok()));
    }
}
