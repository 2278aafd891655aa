//! Loses a machine of a cluster with a witness, for good and with its disk.

use consensus::Role;

use crate::network::Host;
use crate::world::World;

impl World {
    /// Loses the machine of a founding member for good, once in a run, if the leader of the newest term says that any
    /// machine may be lost now. What is on its way stays there, and other faults go on.
    pub(super) fn lose_machine(&mut self, at: Host) {
        if self.machine_lost || self.places[at].observes || at >= self.profile.members {
            return;
        }
        let probes: Vec<_> = self
            .places_of_members()
            .filter_map(|place| Some(place.process.as_ref()?.stepped.probe()))
            .collect();
        let newest = probes.iter().map(|probe| probe.term).max();
        let in_step = |probe: &server::stepped::Probe| {
            probe.role == Role::Leader && Some(probe.term) == newest && !probe.counts_witness
        };
        if !probes.iter().any(in_step) {
            return;
        }
        self.machine_lost = true;
        self.end(at, true);
        let place = &mut self.places[at];
        (place.retired, place.starts_at) = (true, None);
        self.counts.machines_lost += 1;
        let now = self.now();
        self.trace.note(now, format_args!("the machine of m{at} is lost for good"));
    }
}
