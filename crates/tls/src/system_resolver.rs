use std::net::{IpAddr, ToSocketAddrs};

use crate::address::Resolver;
use crate::reverse::Sources;

/// Looks up names as the operating system does: in files, then at name servers. The methods block, for tens
/// of seconds if the servers do not answer. So they must be called on a thread that may block.
///
/// The names of an address, at most 64, come from the hosts file, or else from the name servers
/// (`reverse.rs`). If these have no name, the system function `getnameinfo` is called. It returns only one
/// name, but may have other sources.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

impl Resolver for SystemResolver {
    fn names(&self, address: IpAddr) -> Result<Vec<String>, String> {
        let names = Sources::of_system().names(address);
        if !names.is_empty() {
            return Ok(names);
        }
        let name = dns_lookup::lookup_addr(&address).map_err(|error| format!("lookup {address}: {error}"))?;
        // If `getnameinfo` finds no name, it returns the address in text form, which is not a name.
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
