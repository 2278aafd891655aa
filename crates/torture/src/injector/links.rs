//! Injects faults of the network between the members.

use std::io;

use super::Injector;
use crate::fault::Fault;
use crate::network::Cut;
use crate::shaper::Quality;

impl Injector<'_> {
    fn kind_of_cut(&mut self) -> Cut {
        if self.rng.percent(70) { Cut::Silent } else { Cut::Unreachable }
    }

    fn cut(&mut self, from: usize, to: usize, cut: Cut) -> io::Result<()> {
        match &mut self.cluster.network {
            Some(network) if from != to => network.cut(from, to, cut),
            _ => Ok(()),
        }
    }

    /// Cuts the links between the members of `side` and all other members.
    pub(super) fn partition(&mut self, bar: usize, side: &[usize]) -> io::Result<()> {
        let cut = self.kind_of_cut();
        let names: Vec<String> = side.iter().map(|at| format!("m{at}")).collect();
        self.tell(bar, side, &format!("{} cut off ({})", names.join(" and "), words(cut)));
        for from in 0..self.cluster.size() {
            for to in 0..self.cluster.size() {
                if side.contains(&from) != side.contains(&to) {
                    self.cut(from, to, cut)?;
                }
            }
        }
        self.last();
        Ok(())
    }

    /// Cuts the links between all members.
    pub(super) fn partition_all(&mut self, bar: usize) -> io::Result<()> {
        let all = self.all();
        let cut = self.kind_of_cut();
        self.tell(bar, &all, &format!("every member cut off from all others ({})", words(cut)));
        for from in 0..self.cluster.size() {
            for to in 0..self.cluster.size() {
                self.cut(from, to, cut)?;
            }
        }
        self.last();
        Ok(())
    }

    /// Cuts links in one direction: from a member to one other or all others, or the opposite direction.
    pub(super) fn one_way(&mut self, bar: usize) -> io::Result<()> {
        let (at, outwards, all) = (self.leader_or_any(), self.rng.percent(50), self.rng.percent(50));
        let only = self.any();
        let mut others: Vec<usize> = (0..self.cluster.size()).filter(|other| *other != at).collect();
        if !all && only != at {
            others = vec![only];
        }
        let direction = if outwards { "to" } else { "from" };
        let names: Vec<String> = others.iter().map(|at| format!("m{at}")).collect();
        self.tell(
            bar,
            &[at],
            &format!("nothing gets through {direction} m{at}'s peers {}", names.join(", ")),
        );
        for other in others {
            let (from, to) = if outwards { (at, other) } else { (other, at) };
            self.cut(from, to, Cut::Silent)?;
        }
        self.last();
        Ok(())
    }

    /// Makes the links between all members slow or lossy, until the cluster is healed.
    pub(super) fn shape(&mut self, bar: usize, fault: Fault) -> io::Result<()> {
        let limited = self.any();
        let loss_percent = self.rng.between(2, 20);
        let all: Vec<usize> = (0..self.cluster.size()).collect();
        if fault == Fault::SlowNet {
            self.tell(bar, &all, &format!("links take up to 80 ms; those of m{limited} carry 100 kB/s"));
        } else {
            self.tell(
                bar,
                &all,
                &format!("links lose {loss_percent} % of all packets, some come twice or late"),
            );
        }
        for from in 0..self.cluster.size() {
            for to in (0..self.cluster.size()).filter(|to| *to != from) {
                let quality = if fault == Fault::SlowNet {
                    Quality {
                        delay_ms: self.rng.between(0, 60),
                        jitter_ms: self.rng.between(0, 20),
                        bytes_per_second: if from == limited { 100_000 } else { 0 },
                        ..Quality::default()
                    }
                } else {
                    Quality {
                        delay_ms: self.rng.between(0, 5),
                        jitter_ms: 3,
                        loss_percent,
                        twice_percent: 2,
                        reorder_percent: 5,
                        ..Quality::default()
                    }
                };
                if let Some(network) = &mut self.cluster.network {
                    network.shape(from, to, quality)?;
                }
            }
        }
        Ok(())
    }
}

fn words(cut: Cut) -> &'static str {
    match cut {
        Cut::Silent => "packets vanish",
        Cut::Unreachable => "unreachable",
    }
}
