//! Simulates the network between members, and between clients and members: decides if and when a message
//! arrives.

use std::collections::{BTreeMap, BTreeSet};

use crate::rng::Rng;
use crate::schedule::{MILLI, Nanos, SECOND};

/// Number of a participant on the network. A member has the number of its place; all clients share one
/// number.
pub type Host = usize;

/// Host number of all clients.
pub const CLIENTS: Host = usize::MAX;

/// Time without data after which a connection counts as dead.
pub const SILENCE_MAX: Nanos = 5 * SECOND;

/// Network-wide faults, each as a rate per thousand messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    /// Messages lost.
    pub loss: u64,
    /// Messages delivered twice.
    pub duplication: u64,
    /// Messages delivered out of order.
    pub reordering: u64,
    /// Messages after which the connection breaks.
    pub breaking: u64,
}

/// The network: its delays, cuts, slow links and other faults.
pub struct Network {
    delay: Nanos,
    /// Mean delay of each slow link, by sender and receiver.
    slow: BTreeMap<(Host, Host), Nanos>,
    /// Time of the cut, for each pair of sender and receiver whose direction is cut.
    cut: BTreeMap<(Host, Host), Nanos>,
    /// Arrival time of the last message on each link and lane. A later message arrives after this time,
    /// unless the network reorders it.
    arrivals: BTreeMap<(Host, Host, u8), Nanos>,
    /// Number of times that the connection in each direction broke; messages in flight at a break never
    /// arrive.
    breaks: BTreeMap<(Host, Host), u64>,
    /// Network-wide faults that are active.
    pub weather: Weather,
}

/// What happens to a message that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Passage {
    /// The message never arrives.
    Lost,
    /// The message arrives at this time.
    At(Nanos),
    /// The message arrives twice, at these times.
    Twice(Nanos, Nanos),
}

impl Network {
    /// Creates a network without faults that has this mean delay.
    pub fn new(delay: Nanos) -> Network {
        Network {
            delay,
            slow: BTreeMap::new(),
            cut: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            breaks: BTreeMap::new(),
            weather: Weather::default(),
        }
    }

    fn delay_of(&self, from: Host, to: Host, rng: &mut Rng) -> Nanos {
        let mean = self.slow.get(&(from, to)).copied().unwrap_or(self.delay);
        mean / 2 + rng.around(mean / 2).min(20 * mean)
    }

    /// Sends a message over a lane, which is one of the parallel connections between two hosts. Messages of
    /// one lane stay in order. Returns if and when the message arrives.
    pub fn pass(&mut self, from: Host, to: Host, lane: u8, now: Nanos, rng: &mut Rng) -> Passage {
        if self.is_cut(from, to) || rng.per_mille(self.weather.loss) {
            return Passage::Lost;
        }
        let at = now + self.delay_of(from, to, rng);
        if rng.per_mille(self.weather.reordering) {
            return Passage::At(at + rng.below(20 * self.delay + MILLI));
        }
        let last = self.arrivals.entry((from, to, lane)).or_default();
        let at = at.max(*last + 1);
        *last = at;
        if rng.per_mille(self.weather.duplication) {
            return Passage::Twice(at, at + self.delay_of(from, to, rng) * 4);
        }
        Passage::At(at)
    }

    /// Returns true if the network is cut in the direction from `from` to `to`.
    pub fn is_cut(&self, from: Host, to: Host) -> bool {
        !self.cut.is_empty() && self.cut.contains_key(&(from, to))
    }

    /// Returns the time of the earlier cut of the two directions between two hosts; `None` if neither is cut.
    pub fn cut_since(&self, a: Host, b: Host) -> Option<Nanos> {
        let there = self.cut.get(&(a, b));
        let back = self.cut.get(&(b, a));
        there.into_iter().chain(back).min().copied()
    }

    /// Returns true if two hosts can open a connection.
    pub fn connects(&self, a: Host, b: Host) -> bool {
        self.cut_since(a, b).is_none()
    }

    /// Returns the serial number of the current connection in the direction from `from` to `to`. The number
    /// is 0 for the first connection.
    pub fn connection(&self, from: Host, to: Host) -> u64 {
        self.breaks.get(&(from, to)).copied().unwrap_or(0)
    }

    /// Breaks the connection in this direction; all its in-flight messages are lost. The next message opens a
    /// new connection.
    pub fn break_off(&mut self, from: Host, to: Host) {
        *self.breaks.entry((from, to)).or_default() += 1;
        self.arrivals.retain(|(a, b, _), _| (*a, *b) != (from, to));
    }

    /// Cuts the network in the direction from `from` to `to`.
    pub fn cut(&mut self, from: Host, to: Host, now: Nanos) {
        self.cut.entry((from, to)).or_insert(now);
    }

    /// Cuts the network in the direction from each host of one group to each host of another.
    pub fn cut_groups(&mut self, from: &BTreeSet<Host>, to: &BTreeSet<Host>, now: Nanos) {
        for a in from {
            for b in to.iter().filter(|b| *b != a) {
                self.cut(*a, *b, now);
            }
        }
    }

    /// Makes one direction of a link slow.
    pub fn slow(&mut self, from: Host, to: Host, delay: Nanos) {
        self.slow.insert((from, to), delay);
    }

    /// Removes all cuts and slow links.
    pub fn join(&mut self) {
        self.cut.clear();
        self.slow.clear();
    }

    /// Ends all network faults.
    pub fn heal(&mut self) {
        self.join();
        self.weather = Weather::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_good_network_keeps_the_order_and_a_cut_one_passes_nothing() {
        let mut rng = Rng::stream(1, "network");
        let mut network = Network::new(MILLI);
        let mut last = 0;
        for now in 0..1000 {
            let Passage::At(at) = network.pass(0, 1, 0, now, &mut rng) else {
                panic!("lost on a good network")
            };
            assert!(at > last && at > now);
            last = at;
        }
        network.cut(0, 1, 7);
        assert_eq!(network.pass(0, 1, 0, 9, &mut rng), Passage::Lost);
        assert!(matches!(network.pass(1, 0, 0, 9, &mut rng), Passage::At(_)));
        assert!(!network.connects(1, 0));
        assert_eq!(network.cut_since(1, 0), Some(7));
        network.heal();
        network.weather = Weather { loss: 300, duplication: 300, reordering: 300, breaking: 0 };
        let passages: Vec<Passage> = (0..1000).map(|now| network.pass(0, 1, 0, now, &mut rng)).collect();
        let count = |wanted: fn(&Passage) -> bool| passages.iter().filter(|p| wanted(p)).count();
        assert!(count(|p| *p == Passage::Lost) > 200 && count(|p| matches!(p, Passage::Twice(..))) > 80);
    }
}
