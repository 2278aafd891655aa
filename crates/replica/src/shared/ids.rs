//! Generates the ids of new commands and leases.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use numbers::LeaseId;

/// Counters that generate the ids of commands and leases.
pub struct Ids {
    next_command: AtomicU64,
    next_lease: AtomicI64,
}

impl Ids {
    /// Returns the generator of a member's ids. The caller passes a different `seed` in each run of the
    /// member, so that ids of an earlier run are not repeated.
    pub fn new(member_id: u64, seed: u64) -> Ids {
        // The layout is that of etcd's request ids: 16 bits of the member id, 40 bits of the seed (in etcd,
        // of the time), 8 bits of a counter. A counter that overflows its 8 bits continues into the seed's
        // bits, as in etcd.
        let command = ((member_id & 0xffff) << 48) | ((seed & 0xff_ffff_ffff) << 8);
        let lease = i64::try_from(command & (i64::MAX as u64)).unwrap_or(1).max(1);
        Ids { next_command: AtomicU64::new(command), next_lease: AtomicI64::new(lease) }
    }

    /// Returns a new id, never 0, for a command or for a ReadIndex round. The member that proposed a command
    /// recognizes the command's log entry by this id when it applies the entry.
    pub fn command_id(&self) -> u64 {
        self.next_command.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns a new lease id, which is positive.
    pub fn lease_id(&self) -> LeaseId {
        LeaseId((self.next_lease.fetch_add(1, Ordering::Relaxed) & i64::MAX).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ_between_members_and_between_runs_and_no_lease_id_is_negative() {
        let first = |member_id, seed| {
            let ids = Ids::new(member_id, seed);
            (ids.command_id(), ids.lease_id())
        };
        assert_eq!(first(0x00ab, 1), (0x00ab_0000_0000_0101, LeaseId(0x00ab_0000_0000_0100)));
        assert_eq!(first(0xffff, 1), (0xffff_0000_0000_0101, LeaseId(0x7fff_0000_0000_0100)));
        assert_ne!(first(0x00ab, 1), first(0x00ab, 2));
        assert_eq!(first(0, 0), (1, LeaseId(1)));
    }
}
