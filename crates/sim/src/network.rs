//! The network between members, and between clients and members: when something that is sent arrives, and whether.

use std::collections::{BTreeMap, BTreeSet};

use crate::rng::Rng;
use crate::schedule::{MILLI, Nanos, SECOND};

/// A participant on the network. Members have the numbers of their places; clients are one place together.
pub type Host = usize;

/// All clients.
pub const CLIENTS: Host = usize::MAX;

/// How long a connection over which nothing comes is taken for alive.
pub const SILENCE_MAX: Nanos = 5 * SECOND;

/// What is wrong with the network at large, each in a thousand messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    /// Lost.
    pub loss: u64,
    /// Delivered twice.
    pub duplication: u64,
    /// Delivered out of turn.
    pub reordering: u64,
    /// The connection breaks right behind it.
    pub breaking: u64,
}

/// The state of the network.
pub struct Network {
    delay: Nanos,
    /// Mean delay of links that are slower than others.
    slow: BTreeMap<(Host, Host), Nanos>,
    /// Nothing passes in this direction, since when.
    cut: BTreeMap<(Host, Host), Nanos>,
    /// When the last thing sent over a link arrives: nothing overtakes it, but for weather.
    arrivals: BTreeMap<(Host, Host, u8), Nanos>,
    /// How often the connection in a direction broke: what was on its way then never arrives.
    breaks: BTreeMap<(Host, Host), u64>,
    /// What is wrong at large.
    pub weather: Weather,
}

/// When what is sent arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Passage {
    /// It does not.
    Lost,
    /// Then.
    At(Nanos),
    /// Then, and then once more.
    Twice(Nanos, Nanos),
}

impl Network {
    /// A good network with this mean delay.
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

    /// Sends something from one host to another over one of the connections between them, in its order.
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

    /// Whether nothing passes in this direction.
    pub fn is_cut(&self, from: Host, to: Host) -> bool {
        !self.cut.is_empty() && self.cut.contains_key(&(from, to))
    }

    /// Since when one of the directions between two hosts has been cut.
    pub fn cut_since(&self, a: Host, b: Host) -> Option<Nanos> {
        let there = self.cut.get(&(a, b));
        let back = self.cut.get(&(b, a));
        there.into_iter().chain(back).min().copied()
    }

    /// Whether two hosts can open a connection.
    pub fn connects(&self, a: Host, b: Host) -> bool {
        self.cut_since(a, b).is_none()
    }

    /// The number of the connection in this direction.
    pub fn connection(&self, from: Host, to: Host) -> u64 {
        self.breaks.get(&(from, to)).copied().unwrap_or(0)
    }

    /// The connection in this direction breaks, with what is on its way; the next message opens another.
    pub fn break_off(&mut self, from: Host, to: Host) {
        *self.breaks.entry((from, to)).or_default() += 1;
        self.arrivals.retain(|(a, b, _), _| (*a, *b) != (from, to));
    }

    /// Cuts one direction.
    pub fn cut(&mut self, from: Host, to: Host, now: Nanos) {
        self.cut.entry((from, to)).or_insert(now);
    }

    /// Cuts all that leads from one group to another.
    pub fn cut_groups(&mut self, from: &BTreeSet<Host>, to: &BTreeSet<Host>, now: Nanos) {
        for a in from {
            for b in to.iter().filter(|b| *b != a) {
                self.cut(*a, *b, now);
            }
        }
    }

    /// Makes a link slow, in one direction.
    pub fn slow(&mut self, from: Host, to: Host, delay: Nanos) {
        self.slow.insert((from, to), delay);
    }

    /// All cuts and slow links are gone.
    pub fn join(&mut self) {
        self.cut.clear();
        self.slow.clear();
    }

    /// Everything is as it should be.
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
