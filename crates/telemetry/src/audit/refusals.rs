//! How many lines about refused calls each client may have written: whoever can connect can make any number of such calls.
//!
//! An address has an allowance of [`BURST`] lines, which fills up by one in [`EACH`]; all addresses together have
//! [`BURST_OF_ALL`] and [`EACH_OF_ALL`]. What is more is counted, and told from time to time.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use stdx::client_network;

/// Lines that an address may have written at once.
pub(super) const BURST: u32 = 64;
/// Time in which an address gets one line back.
const EACH: Duration = Duration::from_millis(250);
/// Lines that all addresses may have written at once.
const BURST_OF_ALL: u32 = 1024;
/// Time in which all addresses get one line back.
const EACH_OF_ALL: Duration = Duration::from_millis(16);
/// Addresses that are told apart. Beyond these, those with a whole allowance make way; if there are none, the rest is
/// counted together.
pub(super) const ADDRESSES_MAX: usize = 1024;
/// Addresses that a report tells apart.
pub(super) const REPORTED_MAX: usize = 16;
/// Shortest time between two reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// An allowance of so many lines, which fills up as time passes.
#[derive(Debug, Default)]
struct Allowance {
    /// When it is whole again.
    whole_at: Option<Instant>,
}

impl Allowance {
    /// When it will be whole if a line is written now; nothing if it may not be.
    fn after(&self, now: Instant, burst: u32, each: Duration) -> Option<Instant> {
        let next = self.whole_at.map_or(now, |at| at.max(now)) + each;
        (next <= now + each * burst).then_some(next)
    }
}

#[derive(Debug, Default)]
struct Client {
    allowance: Allowance,
    not_shown: u64,
}

/// What all clients have had written.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    of_all: Allowance,
    clients: HashMap<IpAddr, Client>,
    /// Those that are not told apart.
    others: Client,
    reported_at: Option<Instant>,
}

/// How many refused calls of an address have no line. Without an address: those of several.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotShown {
    pub address: Option<IpAddr>,
    pub calls: u64,
}

impl Refusals {
    /// Counts a refused call; returns whether it may have a line.
    pub fn admit(&mut self, address: IpAddr, now: Instant) -> bool {
        let of_all = self.of_all.after(now, BURST_OF_ALL, EACH_OF_ALL);
        let client = self.client(client_network(address), now);
        match (client.allowance.after(now, BURST, EACH), of_all) {
            (Some(own), Some(of_all)) => {
                client.allowance.whole_at = Some(own);
                self.of_all.whole_at = Some(of_all);
                true
            }
            _ => {
                client.not_shown += 1;
                false
            }
        }
    }

    /// A call that may have had a line has none: too many of them wait.
    pub fn dropped(&mut self, address: IpAddr, now: Instant) {
        self.client(client_network(address), now).not_shown += 1;
    }

    fn client(&mut self, address: IpAddr, now: Instant) -> &mut Client {
        if self.clients.len() >= ADDRESSES_MAX && !self.clients.contains_key(&address) {
            self.clients.retain(|_, client| {
                client.not_shown > 0 || client.allowance.whole_at.is_some_and(|whole_at| whole_at > now)
            });
            if self.clients.len() >= ADDRESSES_MAX {
                return &mut self.others;
            }
        }
        self.clients.entry(address).or_default()
    }

    /// Takes the calls that have no line, at most once in a while, those of each address, most first.
    pub fn report(&mut self, now: Instant) -> Vec<NotShown> {
        if self.reported_at.is_some_and(|at| now.saturating_duration_since(at) < REPORT_INTERVAL) {
            return Vec::new();
        }
        self.take(now)
    }

    /// Takes the calls that have no line, at once.
    pub fn take(&mut self, now: Instant) -> Vec<NotShown> {
        let mut all: Vec<NotShown> = Vec::new();
        for (address, client) in &mut self.clients {
            if client.not_shown > 0 {
                let calls = std::mem::take(&mut client.not_shown);
                all.push(NotShown { address: Some(*address), calls });
            }
        }
        all.sort_by_key(|told| (std::cmp::Reverse(told.calls), told.address));
        let rest = all.split_off(all.len().min(REPORTED_MAX));
        let others =
            std::mem::take(&mut self.others.not_shown) + rest.iter().map(|told| told.calls).sum::<u64>();
        if others > 0 {
            all.push(NotShown { address: None, calls: others });
        }
        if !all.is_empty() {
            self.reported_at = Some(now);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn address(number: u32) -> IpAddr {
        Ipv4Addr::from_bits(0x0a00_0000 + number).into()
    }

    fn admitted(refusals: &mut Refusals, number: u32, calls: u32, now: Instant) -> u32 {
        (0..calls).map(|_| u32::from(refusals.admit(address(number), now))).sum()
    }

    #[test]
    fn an_address_has_few_lines_and_gets_them_back_in_time() {
        let (mut refusals, start) = (Refusals::default(), Instant::now());
        assert_eq!(admitted(&mut refusals, 1, 1000, start), BURST);
        assert_eq!(admitted(&mut refusals, 2, 10, start), 10, "another address has its own");
        assert_eq!(admitted(&mut refusals, 1, 10, start + 2 * EACH), 2);
        let told = refusals.report(start);
        assert_eq!(told, [NotShown { address: Some(address(1)), calls: 1000 - u64::from(BURST) + 8 }]);
        assert_eq!(admitted(&mut refusals, 1, 10, start + 2 * EACH), 0);
        assert!(refusals.report(start + REPORT_INTERVAL / 2).is_empty(), "not yet again");
        assert_eq!(refusals.report(start + REPORT_INTERVAL).len(), 1);
    }

    #[test]
    fn many_addresses_have_few_lines_together_and_are_bounded() {
        let (mut refusals, start) = (Refusals::default(), Instant::now());
        let many = 4 * ADDRESSES_MAX as u32;
        let lines: u32 = (0..many).map(|number| admitted(&mut refusals, number, 2, start)).sum();
        assert_eq!(lines, BURST_OF_ALL);
        assert_eq!(refusals.clients.len(), ADDRESSES_MAX);
        let told = refusals.take(start);
        assert_eq!(told.len(), REPORTED_MAX + 1);
        assert_eq!(told.iter().map(|told| told.calls).sum::<u64>(), u64::from(2 * many - BURST_OF_ALL));
        let later = start + EACH * BURST;
        assert!(refusals.admit(address(many), later) && refusals.clients.len() < ADDRESSES_MAX);
    }

    #[test]
    fn an_ipv6_network_is_one_address() {
        let (mut refusals, start) = (Refusals::default(), Instant::now());
        let six = |text: &str| text.parse::<IpAddr>().unwrap();
        assert!((0..BURST).all(|_| refusals.admit(six("2001:db8::1"), start)));
        assert!(!refusals.admit(six("2001:db8::2"), start));
        assert!(refusals.admit(six("2001:db8:0:1::2"), start));
    }
}
