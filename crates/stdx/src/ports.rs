use std::io;
use std::net::{IpAddr, TcpListener};
use std::ops::Range;
use std::sync::Mutex;

use crate::Random;

/// Range of the ports that Linux uses for outgoing connections by default. Used if the real range cannot be
/// read.
const CONNECTIONS: Range<u16> = 32_768..61_000;
const LOWEST: u16 = 10_000;

/// Returns a port of `ip` on which no socket listens, for a server whose port must be known in advance. Each
/// call in this process returns a different port, until all candidates have been used once.
///
/// If possible, the port is outside of the range that the kernel uses for outgoing connections, so that no
/// outgoing connection can occupy the port before the server listens, or while it restarts. Ports that the
/// kernel chooses (port 0) are not used, because they are nearly always in that range.
///
/// # Errors
/// Returns an error if no port of `ip` can be bound, or all are in use.
pub fn unused_port(ip: IpAddr) -> io::Result<u16> {
    // Next position in the list of candidates. The first position is random, so that concurrent processes
    // probably begin with different ports.
    static NEXT: Mutex<Option<usize>> = Mutex::new(None);
    let candidates: Vec<u16> = candidates(&of_connections()).collect();
    let mut next = NEXT.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let first = *next.get_or_insert_with(|| Random::new(seed()).index(candidates.len()));
    let mut refused = io::Error::from(io::ErrorKind::AddrInUse);
    for at in first..first + candidates.len() {
        let port = candidates[at % candidates.len()];
        *next = Some(at + 1);
        match TcpListener::bind((ip, port)) {
            Ok(_) => return Ok(port),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

/// Returns the candidate ports for servers: the ports from `LOWEST` to the range for outgoing connections. If
/// these are fewer than a thousand, returns the ports above the range; if these are fewer than a thousand,
/// too, all ports from `LOWEST` on.
fn candidates(connections: &Range<u16>) -> impl Iterator<Item = u16> + use<> {
    const ENOUGH: u16 = 1000;
    if connections.start >= LOWEST + ENOUGH {
        LOWEST..=connections.start - 1
    } else if connections.end <= u16::MAX - ENOUGH {
        connections.end.max(LOWEST)..=u16::MAX
    } else {
        LOWEST..=u16::MAX
    }
}

/// Returns the range of ports that the kernel uses for outgoing connections.
fn of_connections() -> Range<u16> {
    let read = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok();
    read.and_then(|text| parse(&text)).unwrap_or(CONNECTIONS)
}

fn parse(text: &str) -> Option<Range<u16>> {
    let mut words = text.split_ascii_whitespace().map(|word| word.parse::<u16>().ok());
    let (first, last) = (words.next()??, words.next()??);
    Some(first..last.saturating_add(1))
}

/// Returns a seed that differs between concurrent processes.
fn seed() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(std::process::id())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_port_is_free_given_once_and_none_of_a_connection() {
        let ip = Ipv4Addr::LOCALHOST.into();
        let mut given: Vec<u16> = (0..100).map(|_| unused_port(ip).unwrap()).collect();
        assert!(given.iter().all(|port| !of_connections().contains(port)), "{given:?}");
        assert!(given.iter().all(|port| TcpListener::bind((ip, *port)).is_ok()));
        given.sort_unstable();
        given.dedup();
        assert_eq!(given.len(), 100);
        // An address that does not belong to this machine.
        let refused = unused_port(Ipv4Addr::new(192, 0, 2, 1).into()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AddrNotAvailable);
    }

    #[test]
    fn candidates_lie_beside_the_ports_of_connections_where_there_are_any() {
        let ends = |text: &str| {
            let all: Vec<u16> = candidates(&parse(text).unwrap()).collect();
            (all[0], all[all.len() - 1])
        };
        assert_eq!(ends("32768\t60999\n"), (10_000, 32_767));
        assert_eq!(ends("1024 60999"), (61_000, 65_535));
        assert_eq!(ends("1024 9000"), (10_000, 65_535));
        assert_eq!(ends("1024 65535"), (10_000, 65_535));
        assert_eq!(ends("10500 65000"), (10_000, 65_535));
        assert_eq!([parse(""), parse("1"), parse("1 70000"), parse("a b")], [None, None, None, None]);
    }
}
