//! The networks of the clients of each zone, and what their clients get from MemberList.

use std::fmt;
use std::net::IpAddr;

/// Members and observers that MemberList returns to a client in a zone, and their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZoneMemberList {
    /// All members, in the usual order.
    #[default]
    Off,
    /// The members and observers of its zone before all others.
    First,
    /// The members and observers of its zone alone, while one of them is connected.
    Only,
}

/// A network of clients: an address and the number of its leading bits that all addresses of the network share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    /// Parses `ADDRESS/BITS`; without `/BITS` the network is that address alone. An IPv4 address in the form of IPv6
    /// is refused, because addresses count as IPv4 in that form, so that no address would be in the network.
    fn parse(text: &str) -> Option<Network> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        if address.to_canonical() != address {
            return None;
        }
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            Some(bits) => bits.parse().ok().filter(|bits| *bits <= most)?,
            None => most,
        };
        Some(Network { address, bits })
    }

    /// Returns true if the address is in this network. An IPv4 address in the form of IPv6 counts as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        let (own, other) = match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (u128::from(own.to_bits()) << 96, u128::from(other.to_bits()) << 96)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => (own.to_bits(), other.to_bits()),
            _ => return false,
        };
        self.bits == 0 || (own ^ other) >> (128 - u32::from(self.bits)) == 0
    }

    /// Returns true if both are the same network, also if they name other addresses of it.
    fn is_same(&self, other: &Network) -> bool {
        self.bits == other.bits && self.contains(other.address)
    }
}

/// The networks of clients by zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZoneNetworks {
    /// Names of the zones, each once, in the order in which the list names them first.
    names: Vec<String>,
    /// The networks, those with the most bits first, each with the index of its zone in `names`.
    networks: Vec<(usize, Network)>,
}

/// Error of a zone or of a network in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneError {
    item: String,
    why: &'static str,
}

impl fmt::Display for ZoneError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.item, self.why)
    }
}

impl std::error::Error for ZoneError {}

/// Maximum length of the name of a zone in bytes.
const NAME_BYTES_MAX: usize = 64;

/// Checks the name of a zone.
///
/// # Errors
///
/// Returns an error if the name is too long or has other characters than letters, digits, dots, dashes and
/// underscores of ASCII.
pub fn check_name(name: &str) -> Result<(), ZoneError> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    if name.len() <= NAME_BYTES_MAX && name.bytes().all(is_allowed) {
        return Ok(());
    }
    let why = "is no name of a zone: at most 64 letters, digits, dots, dashes and underscores";
    Err(ZoneError { item: name.to_owned(), why })
}

impl ZoneNetworks {
    /// Parses a list of `ZONE=ADDRESS/BITS`.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first item that is not valid.
    pub fn parse(items: &[String]) -> Result<ZoneNetworks, ZoneError> {
        let mut names = Vec::<String>::new();
        let mut networks = Vec::<(usize, Network)>::with_capacity(items.len());
        for item in items.iter().filter(|item| !item.is_empty()) {
            let refused = |why| ZoneError { item: item.clone(), why };
            let (zone, network) = item.split_once('=').ok_or_else(|| refused("is not ZONE=ADDRESS/BITS"))?;
            check_name(zone)?;
            let network = Network::parse(network.trim()).ok_or_else(|| refused("names no network"))?;
            if zone.is_empty() {
                return Err(refused("names no zone"));
            }
            let at = names.iter().position(|name| name == zone).unwrap_or_else(|| {
                names.push(zone.to_owned());
                names.len() - 1
            });
            if networks.iter().any(|(other, known)| *other != at && known.is_same(&network)) {
                return Err(refused("names the network of another zone"));
            }
            networks.push((at, network));
        }
        // The network with the most bits decides.
        networks.sort_by_key(|(_, network)| std::cmp::Reverse(network.bits));
        Ok(ZoneNetworks { names, networks })
    }

    /// Returns the zone of a client; `None` if its address is in none of the networks.
    pub fn zone_of(&self, address: IpAddr) -> Option<&str> {
        self.index_of(address).map(|at| self.names[at].as_str())
    }

    /// Returns the index in [`ZoneNetworks::names`] of the zone of a client; `None` if its address is in none
    /// of the networks, or is no address: that of a client of a Unix socket.
    pub fn index_of(&self, address: IpAddr) -> Option<usize> {
        if address.is_unspecified() {
            return None;
        }
        self.networks.iter().find(|(_, network)| network.contains(address)).map(|(at, _)| *at)
    }

    /// Returns the names of the zones that have networks, each once.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns true if there are no networks.
    pub fn is_empty(&self) -> bool {
        self.networks.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> Result<ZoneNetworks, ZoneError> {
        ZoneNetworks::parse(&list.split(',').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn the_narrowest_network_decides() {
        let networks = parse("a=10.0.0.0/8,b=10.1.0.0/16,c=fd00::/16,d=10.1.2.3").expect("sound");
        let zone = |address: &str| networks.zone_of(address.parse().expect("an address"));
        assert_eq!(zone("10.2.0.1"), Some("a"));
        assert_eq!(zone("10.1.0.1"), Some("b"));
        assert_eq!(zone("10.1.2.3"), Some("d"));
        assert_eq!(zone("::ffff:10.1.2.3"), Some("d"));
        assert_eq!(zone("fd00::1"), Some("c"));
        assert_eq!(zone("192.168.0.1"), None);
        assert_eq!(parse("a=0.0.0.0/0").expect("sound").zone_of([1, 2, 3, 4].into()), Some("a"));
        assert!(parse("").expect("sound").is_empty());
        let everywhere = parse("a=0.0.0.0/0,a=::/0").expect("sound");
        assert_eq!(everywhere.zone_of([0, 0, 0, 0].into()), None, "a client of a Unix socket");
        assert_eq!(everywhere.zone_of([0; 16].into()), None);
        assert_eq!(everywhere.zone_of([1; 16].into()), Some("a"));
    }

    #[test]
    fn zones_are_numbered_once_however_many_networks_they_have() {
        let networks = parse("b=10.0.0.0/8,a=10.1.0.0/16,b=10.2.0.0/16").expect("sound");
        assert_eq!(networks.names(), ["b", "a"]);
        let index = |address: [u8; 4]| networks.index_of(address.into());
        assert_eq!(
            [index([10, 9, 0, 1]), index([10, 1, 0, 1]), index([10, 2, 0, 1])],
            [Some(0), Some(1), Some(0)]
        );
        assert_eq!(index([11, 0, 0, 1]), None);
    }

    #[test]
    fn what_is_not_valid_is_named() {
        for bad in [
            "a",
            "a=",
            "a=10.0.0.0/33",
            "a=fd00::/129",
            "a=x/8",
            "=10.0.0.0/8",
            "a b=10.0.0.0/8",
            "a=1.2.3.4/-1",
            "a=::ffff:10.0.0.0/104",
        ] {
            let refused = parse(bad).expect_err(bad);
            assert!(refused.to_string().contains(bad.split('=').next().expect("a part")), "{refused}");
        }
        for twice in ["a=10.0.0.0/8,b=10.1.2.3/8", "a=fd00::/16,b=fd00::/16", "a=0.0.0.0/0,b=1.0.0.0/0"] {
            let refused = parse(twice).expect_err(twice).to_string();
            assert!(refused.contains("\"b=") && refused.contains("another zone"), "{refused}");
        }
        parse("a=10.0.0.0/8,a=10.0.0.0/8,b=10.0.0.0/9,c=::/0,d=0.0.0.0/0").expect("one zone each");
    }
}
