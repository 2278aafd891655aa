//! Limits how many lines about refused calls are written to the audit log, because any client that can
//! connect can make any number of such calls.
//!
//! Up to [`BURST`] lines are written for an address in a burst, and the address regains one line every
//! [`EACH`]. All addresses together have [`BURST_OF_ALL`] lines, and regain one every [`EACH_OF_ALL`].
//! Further calls are only counted, and the audit log reports the counts at most every [`REPORT_INTERVAL`].
//! All addresses of an IPv6 network with 64 bits count as one address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use stdx::client_network;

/// Maximum number of lines that are written for one address in a burst.
pub(super) const BURST: u32 = 64;
/// Time after which an address regains one line.
const EACH: Duration = Duration::from_millis(250);
/// Maximum number of lines that are written for all addresses together in a burst.
const BURST_OF_ALL: u32 = 1024;
/// Time after which all addresses together regain one line.
const EACH_OF_ALL: Duration = Duration::from_millis(16);
/// Maximum number of addresses that are tracked separately. When another address arrives, addresses with a
/// full allowance and no unreported calls are forgotten. If there are none, new addresses share one count and
/// allowance.
pub(super) const ADDRESSES_MAX: usize = 1024;
/// Maximum number of addresses that a report lists; the others are reported as one number.
pub(super) const REPORTED_MAX: usize = 16;
/// Minimum time between two reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Number of lines that may still be written. It increases over time up to a limit, as in a token bucket.
#[derive(Debug, Default)]
struct Allowance {
    /// Time at which the allowance will be full again; `None` if no line was written yet.
    whole_at: Option<Instant>,
}

impl Allowance {
    /// Returns the new value of `whole_at` if a line is written now; `None` if the allowance is used up.
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

/// The allowances of all clients, and the number of their calls that have not been reported yet.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    of_all: Allowance,
    clients: HashMap<IpAddr, Client>,
    /// Allowance and count that are shared by all addresses that are not tracked separately.
    others: Client,
    reported_at: Option<Instant>,
}

/// Number of refused calls from an address for which no line was written. `address` is `None` if the number
/// is for several addresses together.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotShown {
    pub address: Option<IpAddr>,
    pub calls: u64,
}

impl Refusals {
    /// Decides whether a line may be written for a refused call. If so, takes the line from the allowance of
    /// the address and from that of all addresses, and returns true. Otherwise counts the call as one without
    /// a line.
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

    /// Counts a call for which a line was allowed but not written, because too many entries are queued.
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

    /// Returns the numbers of refused calls without a line, by address, the largest first, and sets them to
    /// 0. Addresses beyond [`REPORTED_MAX`] are summed in a last element. Returns an empty list if the last
    /// report was less than [`REPORT_INTERVAL`] ago.
    /// 0. Returns an empty list if the last report was less than [`REPORT_INTERVAL`] ago.
    pub fn report(&mut self, now: Instant) -> Vec<NotShown> {
        if self.reported_at.is_some_and(|at| now.saturating_duration_since(at) < REPORT_INTERVAL) {
            return Vec::new();
        }
        self.take(now)
    }

    /// Returns the same as [`Refusals::report`], even if the last report was recent.
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
