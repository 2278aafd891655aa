use std::net::IpAddr;

/// Origin of a handshake. The handshake thread serves the origins in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Origin {
    /// The handshake of a connection that this member has opened.
    Own,
    /// The handshake of a client at this address. All addresses of one IPv6 network count as one.
    Address(IpAddr),
}

impl Origin {
    pub(crate) fn of(address: IpAddr) -> Origin {
        Origin::Address(stdx::client_network(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_addresses_of_one_network_share_a_turn() {
        let of = |text: &str| Origin::of(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1:2:3"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.2"), of("10.0.0.2"));
        assert_ne!(of("10.0.0.2"), of("10.0.0.3"));
    }
}
