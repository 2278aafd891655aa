use std::net::{IpAddr, Ipv6Addr};

/// Returns the address under which a client is counted in limits per address. For IPv6 it is the address of
/// the 64-bit network, because a client that can use one address of such a network can usually use all of
/// them. For IPv4 it is the address itself, even if it is given in IPv6 form.
pub fn client_network(address: IpAddr) -> IpAddr {
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

    #[test]
    fn an_ipv6_network_is_one_client_and_an_ipv4_address_is_the_same_in_both_families() {
        let network = |text: &str| client_network(text.parse().unwrap()).to_string();
        assert_eq!(network("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(network("2001:db8:1:3::"), "2001:db8:1:3::");
        assert_eq!(network("10.1.2.3"), "10.1.2.3");
        assert_eq!(network("::ffff:10.1.2.3"), "10.1.2.3");
    }
}
