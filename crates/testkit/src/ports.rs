//! Addresses of loopback, chosen by the kernel.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};

/// A listener on 127.0.0.1 and the address it got.
pub fn listen() -> (TcpListener, SocketAddr) {
    listen_on(Ipv4Addr::LOCALHOST.into())
}

fn listen_on(ip: IpAddr) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((ip, 0)).expect("loopback has free ports");
    let address = listener.local_addr().expect("it is bound");
    (listener, address)
}

/// An address of 127.0.0.1 on which nobody listens.
pub fn free_address() -> SocketAddr {
    let [address] = free_addresses(Ipv4Addr::LOCALHOST, |_| false);
    address
}

/// Different addresses of `ip` on which nobody listens, none of which is `taken`: a program that was given an address
/// and does not run at the moment leaves it free.
///
/// Between this call and its use another process may take an address. The kernel chooses at random among thousands, and
/// takes a port last that was just in use, so that this has to be lived with only where a program cannot listen on port 0
/// and say what it got.
pub fn free_addresses<const N: usize>(
    ip: impl Into<IpAddr>,
    taken: impl Fn(SocketAddr) -> bool,
) -> [SocketAddr; N] {
    let ip = ip.into();
    // Held until all are found, so that no address comes twice.
    let mut held = Vec::new();
    std::array::from_fn(|_| {
        loop {
            let (listener, address) = listen_on(ip);
            held.push(listener);
            if !taken(address) {
                return address;
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_differ_and_are_free() {
        let given = free_addresses::<2>(Ipv4Addr::LOCALHOST, |_| false);
        let more = free_addresses::<8>(Ipv4Addr::LOCALHOST, |address| given.contains(&address));
        let mut all = [&given[..], &more].concat();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 10);
        assert!(all.iter().all(|address| address.ip() == Ipv4Addr::LOCALHOST && address.port() != 0));
    }
}
