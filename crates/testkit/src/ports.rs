//! Addresses of loopback.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};

/// A listener on 127.0.0.1 and the address it got.
pub fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has free ports");
    let address = listener.local_addr().expect("it is bound");
    (listener, address)
}

/// An address of 127.0.0.1 on which nobody listens, and nobody will but who is told it.
pub fn free_address() -> SocketAddr {
    free_address_of(Ipv4Addr::LOCALHOST)
}

/// An address of `ip` on which nobody listens, and nobody will but who is told it ([`stdx::unused_port`]).
pub fn free_address_of(ip: impl Into<IpAddr>) -> SocketAddr {
    let ip = ip.into();
    SocketAddr::new(ip, stdx::unused_port(ip).expect("loopback has free ports"))
}
