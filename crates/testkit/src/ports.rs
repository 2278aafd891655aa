//! Provides listeners on loopback addresses, and addresses on which no process listens.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};

/// Returns a listener on 127.0.0.1 and its address.
pub fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has free ports");
    let address = listener.local_addr().expect("it is bound");
    (listener, address)
}

/// Returns an address of 127.0.0.1 on which no process listens. No other caller gets the same address
/// ([`stdx::unused_port`]).
pub fn free_address() -> SocketAddr {
    free_address_of(Ipv4Addr::LOCALHOST)
}

/// Returns an address of `ip` on which no process listens. No other caller gets the same address
/// ([`stdx::unused_port`]).
pub fn free_address_of(ip: impl Into<IpAddr>) -> SocketAddr {
    let ip = ip.into();
    SocketAddr::new(ip, stdx::unused_port(ip).expect("loopback has free ports"))
}
