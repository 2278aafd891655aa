use std::net::{IpAddr, ToSocketAddrs};

use crate::address::Resolver;
use crate::reverse::Sources;

/// Resolver that looks up names like the operating system: in files, then at name servers. It blocks, for
/// tens of seconds if the servers do not answer, so it must be called on a thread that may block.
///
/// The names of an address, up to 64, come from the hosts file, or else from the name servers (`reverse.rs`).
/// If these know none, the system function `getnameinfo` is called, which may have other sources and returns
/// one name.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

impl Resolver for SystemResolver {
    fn names(&self, address: IpAddr) -> Result<Vec<String>, String> {
        let names = Sources::of_system().names(address);
        if !names.is_empty() {
            return Ok(names);
        }
        let name = dns_lookup::lookup_addr(&address).map_err(|error| format!("lookup {address}: {error}"))?;
        // `getnameinfo` returns the address itself if it knows no name.
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
