//! Finds leases that unapplied entries of a leader's log first revoke and then grant again, so that the
//! leader does not revoke the new lease by the deadline of the old one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use machine::request::{LeaseChange, lease_change};
use numbers::{Index, LeaseId};

/// Tracks which leases are revoked and then granted again by entries of this leader's log that are not
/// applied yet (COMPAT-460).
///
/// The core reports each unapplied entry once, in log order. It also reports which entries were applied, and
/// those are forgotten. So the cost is one step per entry that changes a lease, however often [`Self::has`]
/// is called. A grant counts only after a revocation of the same lease: a grant of an existing lease fails,
/// and if it counted, a client that requests the same lease id again and again would keep the lease alive.
///
/// # Example: lease 7 is granted again twice while the disk stalls
///
/// ```text
/// entry  5 revokes 7    6 grants 7    7 revokes 7    8 grants 7
/// applied 4: the lease in the state must not be revoked, because entry 6 follows entry 5
/// applied 6: the lease that entry 6 has granted must not be revoked, because entry 8 follows entry 7
/// applied 7: the lease does not exist, and no revocation is ahead
/// ```
///
/// For each lease, two entries are remembered: the last revocation, and the last revocation that is followed
/// by a grant. Earlier revocations of the lease are not needed: as long as one of them is unapplied, these
/// two are unapplied as well, and give the same result.
#[derive(Default)]
pub(super) struct GrantedAhead {
    /// Entries that revoke leases and are not applied, in log order.
    revocations: VecDeque<(Index, LeaseId)>,
    /// For each lease, the log index of the last entry that revokes it.
    revoked: BTreeMap<LeaseId, Index>,
    /// For each lease, the log index of the last revocation that is followed by a grant of the lease.
    granted: BTreeMap<LeaseId, Index>,
    /// Log index of the last entry that was reported.
    looked_through: Index,
}

impl GrantedAhead {
    /// Forgets the entries up to `applied`. Returns the log index up to which entries were reported or are
    /// applied: the caller has to report the entries after it.
    pub fn applied(&mut self, applied: Index) -> Index {
        while let Some((index, id)) = self.revocations.front().copied().filter(|(index, _)| *index <= applied)
        {
            self.revocations.pop_front();
            for last in [&mut self.revoked, &mut self.granted] {
                if last.get(&id) == Some(&index) {
                    last.remove(&id);
                }
            }
        }
        self.looked_through.max(applied)
    }

    /// Records the lease change of the next entry, if it has one.
    pub fn look(&mut self, index: Index, change: Option<LeaseChange>) {
        debug_assert!(index > self.looked_through, "entry {index} is looked at again");
        self.looked_through = index;
        match change {
            Some(LeaseChange::Revoked(id)) => {
                self.revocations.push_back((index, id));
                self.revoked.insert(id, index);
            }
            Some(LeaseChange::Granted(id)) => {
                self.granted.extend(self.revoked.get(&id).map(|revoked| (id, *revoked)));
            }
            None => {}
        }
    }

    /// Returns true if, among the entries passed to [`Self::look`], an unapplied one revokes this lease and a
    /// later unapplied one grants it again.
    pub fn has(&self, id: LeaseId) -> bool {
        self.granted.contains_key(&id)
    }
}

/// Computes the result of [`GrantedAhead::has`] for all leases directly from the unapplied entries. Builds
/// that take measurements compare the two results.
pub(super) fn looked_up<'a>(entries: impl Iterator<Item = &'a [u8]>) -> BTreeSet<LeaseId> {
    let (mut revoked, mut again) = (BTreeSet::new(), BTreeSet::new());
    for change in entries.filter_map(lease_change) {
        match change {
            LeaseChange::Revoked(id) => drop(revoked.insert(id)),
            LeaseChange::Granted(id) => again.extend(revoked.get(&id)),
        }
    }
    again
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: LeaseId = LeaseId(7);

    fn looked_at(changes: &[LeaseChange]) -> GrantedAhead {
        let mut ahead = GrantedAhead::default();
        for (change, index) in changes.iter().zip(5..) {
            ahead.look(Index(index), Some(*change));
        }
        ahead
    }

    #[test]
    fn a_lease_that_is_granted_again_twice_is_granted_again_until_both_are_applied() {
        let (revoked, granted) = (LeaseChange::Revoked(ID), LeaseChange::Granted(ID));
        let mut ahead = looked_at(&[revoked, granted, revoked]);
        assert!(ahead.has(ID));
        // Only the first grant is applied so far; the second one comes later.
        assert_eq!(ahead.applied(Index(6)), Index(7));
        assert!(!ahead.has(ID), "the last thing in the log is that it is revoked");
        ahead.look(Index(8), Some(granted));
        assert!(ahead.has(ID), "entry 7 revokes it, and 8 grants it again");
        // Once the revocation is applied, no old lease is left to expire.
        assert_eq!(ahead.applied(Index(7)), Index(8));
        assert!(!ahead.has(ID) && ahead.revocations.is_empty() && ahead.revoked.is_empty());
    }

    #[test]
    fn a_grant_without_a_revocation_before_it_spares_no_lease() {
        let (revoked, granted) = (LeaseChange::Revoked(ID), LeaseChange::Granted(ID));
        let mut ahead = looked_at(&[granted, granted]);
        assert!(!ahead.has(ID) && ahead.granted.is_empty());
        ahead.look(Index(7), Some(LeaseChange::Revoked(LeaseId(8))));
        ahead.look(Index(8), Some(granted));
        assert!(!ahead.has(ID), "another lease is revoked");
        ahead.look(Index(9), Some(revoked));
        // Entries without a lease change, and entries that were applied before they were reported.
        ahead.look(Index(10), None);
        assert_eq!(ahead.applied(Index(20)), Index(20));
        ahead.look(Index(21), Some(granted));
        assert!(!ahead.has(ID), "the revocation is applied");
    }

    #[test]
    fn it_agrees_with_a_look_at_all_entries_that_are_not_applied() {
        let mut random = stdx::Random::new(1);
        for _ in 0..200 {
            let (mut ahead, mut log, mut applied) = (GrantedAhead::default(), Vec::new(), 0);
            for _ in 0..60 {
                let id = LeaseId(1 + (random.number() % 3) as i64);
                let change = match random.number() % 5 {
                    0 | 1 => Some(LeaseChange::Revoked(id)),
                    2 | 3 => Some(LeaseChange::Granted(id)),
                    _ => None,
                };
                log.push(change);
                if random.number().is_multiple_of(3) {
                    applied += random.number() as usize % (log.len() + 1 - applied);
                    let behind = ahead.applied(Index(applied as u64)).0 as usize;
                    for (at, change) in log.iter().enumerate().skip(behind) {
                        ahead.look(Index(at as u64 + 1), *change);
                    }
                    for id in 1..=3 {
                        let mut left = log[applied..].iter().flatten();
                        let expected = left.any(|change| *change == LeaseChange::Revoked(LeaseId(id)))
                            && left.any(|change| *change == LeaseChange::Granted(LeaseId(id)));
                        assert_eq!(ahead.has(LeaseId(id)), expected, "{applied} of {log:?}");
                    }
                }
            }
        }
    }
}
