use std::net::IpAddr;

/// Origin of a handshake, for taking turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Origin {
    /// This member.
    Own,
    /// Client address; an IPv6 network counts as one address.
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
