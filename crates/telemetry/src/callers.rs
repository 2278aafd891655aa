//! Counts connections, requests, watches and leases per client address, so that an operator can see which
//! clients keep a member busy.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of addresses that are counted separately. When another address arrives, addresses without
/// an open connection are forgotten. If every address has one, new addresses are counted together as 0.0.0.0.
pub const CALLERS_MAX: usize = 1024;
const OTHERS: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// Counts for one client address. All threads may update them.
#[derive(Debug, Default)]
pub struct Caller {
    /// Number of open connections.
    pub connections: AtomicI64,
    /// Number of calls of any kind that have begun.
    pub requests: AtomicU64,
    /// Number of open watches.
    pub watches: AtomicI64,
    /// Number of open watches that lag behind and read past events from the store.
    pub slow_watches: AtomicI64,
    /// Number of leases that clients at the address keep alive: those renewed on keepalive streams that are
    /// still open.
    pub leases: AtomicI64,
    /// Number of `Authenticate` calls.
    pub authentications: AtomicU64,
}

/// Counts an open connection until this value is dropped.
pub struct Connected(Arc<Caller>);

impl Connected {
    /// Counts a connection of the caller until the returned value is dropped.
    pub fn new(caller: Arc<Caller>) -> Connected {
        caller.connections.fetch_add(1, Relaxed);
        Connected(caller)
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Relaxed);
    }
}

/// Counts for all client addresses.
#[derive(Debug, Default)]
pub struct Callers {
    by_address: Mutex<HashMap<IpAddr, Arc<Caller>>>,
}

impl Callers {
    /// Returns the counts of an address, and adds the address if it is new. An IPv4 address in IPv6 notation
    /// (`::ffff:10.0.0.1`) counts as the IPv4 address.
    pub fn of(&self, address: IpAddr) -> Arc<Caller> {
        let mut known = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        let address = address.to_canonical();
        if let Some(caller) = known.get(&address) {
            return Arc::clone(caller);
        }
        if known.len() >= CALLERS_MAX {
            known.retain(|_, caller| caller.connections.load(Relaxed) > 0);
        }
        let address = if known.len() >= CALLERS_MAX { OTHERS } else { address };
        Arc::clone(known.entry(address).or_default())
    }

    /// Returns all addresses with their counts, in ascending order of the addresses.
    pub fn list(&self) -> Vec<(IpAddr, Arc<Caller>)> {
        let known = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = known.iter().map(|(address, caller)| (*address, Arc::clone(caller))).collect();
        all.sort_by_key(|(address, _)| *address);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: usize) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + u32::try_from(number).unwrap()))
    }

    #[test]
    fn addresses_without_connections_make_way_and_the_rest_is_counted_together() {
        let callers = Callers::default();
        for number in 0..CALLERS_MAX {
            let connected = i64::from(number % 2 == 0);
            callers.of(address(number)).connections.fetch_add(connected, Relaxed);
        }
        callers.of(address(5000)).connections.fetch_add(1, Relaxed);
        assert_eq!(callers.list().len(), CALLERS_MAX / 2 + 1);
        for number in 6000..6000 + 2 * CALLERS_MAX {
            callers.of(address(number)).connections.fetch_add(1, Relaxed);
        }
        let list = callers.list();
        assert_eq!(list.len(), CALLERS_MAX + 1);
        let others = CALLERS_MAX + CALLERS_MAX / 2 + 1;
        assert_eq!(
            (list[0].0, list[0].1.connections.load(Relaxed)),
            (OTHERS, i64::try_from(others).unwrap())
        );
    }

    #[test]
    fn an_address_is_the_same_in_both_families() {
        let callers = Callers::default();
        let plain = callers.of("10.1.2.3".parse().unwrap());
        assert!(Arc::ptr_eq(&plain, &callers.of("::ffff:10.1.2.3".parse().unwrap())));
    }
}
