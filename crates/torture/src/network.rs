use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

use crate::isolation::system;
use crate::shaper::{Quality, Shaper};

/// Determines what happens to packets on a link that is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Packets are dropped without notice, so senders notice only by timeouts.
    Silent,
    /// The sender gets an ICMP error, so connecting fails immediately.
    Unreachable,
}

/// A network in which members can be cut off from each other without closing a connection. Every member is in
/// a network namespace of its own, and a router connects these. This program runs at the router, so it can
/// always reach all members.
///
/// [`crate::isolation::enter`] must be called first. The network disappears together with the namespace that
/// `enter` creates.
pub struct Network {
    places: Vec<OwnedFd>,
    /// Routing rules that were added, and that healing removes.
    rules: BTreeSet<Vec<String>>,
    shaper: Option<Shaper>,
}

/// Number of the routing table that sends packets to the shaper.
const SHAPED_TABLE: &str = "99";

fn ip(words: &[&str]) -> io::Result<()> {
    system("ip", words)
}

impl Network {
    /// Creates a network with a namespace for each of `size` members. If the machine has no TUN devices, so
    /// that links cannot be made slow or lossy, stores the reason in `no_shaper`.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn make(size: usize, seed: u64, no_shaper: &mut Option<String>) -> io::Result<Network> {
        let mut places = Vec::new();
        for at in 0..size {
            let name = format!("m{at}");
            ip(&["netns", "add", &name])?;
            let (link, own) = (format!("v{at}"), format!("10.77.{at}.254/24"));
            ip(&["link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns", &name])?;
            ip(&["address", "add", &own, "dev", &link])?;
            ip(&["link", "set", &link, "up"])?;
            let (address, router) = (format!("10.77.{at}.1/24"), format!("10.77.{at}.254"));
            ip(&["-n", &name, "address", "add", &address, "dev", "eth0"])?;
            ip(&["-n", &name, "link", "set", "eth0", "up"])?;
            ip(&["-n", &name, "link", "set", "lo", "up"])?;
            ip(&["-n", &name, "route", "add", "default", "via", &router])?;
            places.push(File::open(format!("/run/netns/{name}"))?.into());
        }
        // This changes the setting only in the network namespace of this thread.
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
        let mut network = Network { places, rules: BTreeSet::new(), shaper: None };
        match Network::shaper(seed) {
            Ok(shaper) => network.shaper = Some(shaper),
            Err(error) => *no_shaper = Some(error.to_string()),
        }
        Ok(network)
    }

    fn shaper(seed: u64) -> io::Result<Shaper> {
        let shaper = Shaper::open("slow0", seed)?;
        ip(&["link", "set", "slow0", "up"])?;
        // Disable reverse path filtering: a packet that comes back from the device has its original source
        // address, so the filter would drop it.
        for device in ["all", "slow0"] {
            std::fs::write(format!("/proc/sys/net/ipv4/conf/{device}/rp_filter"), "0")?;
        }
        ip(&["route", "add", "default", "dev", "slow0", "table", SHAPED_TABLE])?;
        Ok(shaper)
    }

    /// Returns the address of a member.
    pub fn address(at: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, u8::try_from(at).unwrap_or(u8::MAX), 1)
    }

    /// Returns the network namespace of a member.
    pub fn place(&self, at: usize) -> Option<&OwnedFd> {
        self.places.get(at)
    }

    fn add_rule(&mut self, preference: &str, from: usize, to: usize, action: &[&str]) -> io::Result<()> {
        let (link, net) = (format!("v{from}"), format!("10.77.{to}.0/24"));
        let mut rule = ["pref", preference, "iif", &link, "to", &net].map(str::to_owned).to_vec();
        rule.extend(action.iter().map(|word| (*word).to_owned()));
        if self.rules.contains(&rule) {
            return Ok(());
        }
        let words: Vec<&str> = ["rule", "add"].into_iter().chain(rule.iter().map(String::as_str)).collect();
        ip(&words)?;
        self.rules.insert(rule);
        Ok(())
    }

    /// Makes the network drop all packets from `from` to `to`, until it is healed.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn cut(&mut self, from: usize, to: usize, cut: Cut) -> io::Result<()> {
        let action = match cut {
            Cut::Silent => "blackhole",
            Cut::Unreachable => "unreachable",
        };
        self.add_rule("100", from, to, &[action])
    }

    /// Makes the network send packets from `from` to `to` through the shaper, until it is healed.
    ///
    /// # Errors
    /// Returns the error of the operating system, or `Unsupported` if there is no shaper.
    pub fn shape(&mut self, from: usize, to: usize, quality: Quality) -> io::Result<()> {
        let Some(shaper) = &self.shaper else { return Err(io::ErrorKind::Unsupported.into()) };
        shaper.set(Network::address(from), Network::address(to), quality);
        self.add_rule("200", from, to, &["lookup", SHAPED_TABLE])
    }

    /// Removes all cuts, and all delays, losses and limits of links.
    ///
    /// # Errors
    /// Returns the error of the operating system. Rules that could not be removed are kept in the list, so
    /// that the next call tries again.
    pub fn heal(&mut self) -> io::Result<()> {
        let mut result = Ok(());
        self.rules.retain(|rule| {
            let words: Vec<&str> =
                ["rule", "del"].into_iter().chain(rule.iter().map(String::as_str)).collect();
            match ip(&words) {
                Ok(()) => false,
                Err(error) => {
                    result = Err(error);
                    true
                }
            }
        });
        if let Some(shaper) = &self.shaper {
            shaper.clear();
        }
        result
    }
}
