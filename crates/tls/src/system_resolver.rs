use std::net::{IpAddr, ToSocketAddrs};

use crate::address::Resolver;
use crate::reverse::Sources;

/// Looks up names as the system does: files, then servers. It waits for them, tens of seconds if they do not answer: call it on
/// a thread for such work.
///
/// All names of an address are found, up to 64, in the file of hosts or else at the name servers (`reverse.rs`). If these know
/// none, the system is asked, which may know others (`getnameinfo`), and gives the first.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

impl Resolver for SystemResolver {
    fn names(&self, address: IpAddr) -> Result<Vec<String>, String> {
        let names = Sources::of_system().names(address);
        if !names.is_empty() {
            return Ok(names);
        }
        let name = dns_lookup::lookup_addr(&address).map_err(|error| format!("lookup {address}: {error}"))?;
        // The system answers with the address itself when it knows no name.
        if name.parse::<IpAddr>().is_ok() {
            return Err(format!("lookup {address}: no such host"));
        }
        Ok(vec![name])
    }

    fn addresses(&self, name: &str) -> Result<Vec<IpAddr>, String> {
        let addresses = (name, 0).to_socket_addrs().map_err(|error| format!("lookup {name}: {error}"))?;
        Ok(addresses.map(|address| address.ip()).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn the_names_and_addresses_of_this_machine_are_found() {
        let local = IpAddr::from(Ipv4Addr::LOCALHOST);
        assert!(!SystemResolver.names(local).unwrap().is_empty());
        assert!(SystemResolver.addresses("localhost").unwrap().contains(&local));
        let error = SystemResolver.addresses("no such name.invalid").unwrap_err();
        assert!(error.starts_with("lookup no such name.invalid: "), "{error}");
    }
}
