//! Leases as every member knows them: who exists, for how long, with which keys.
//!
//! No clock runs here. When a lease expires is the leader's business; it proposes the revocation.

use std::collections::{BTreeSet, HashMap};

use api::Status;
use api::error;
use api::limits::LEASE_TTL_MAX;
use bytes::Bytes;
use planted::Bug;

use crate::codec::{Input, Malformed, put_i64, put_u64};

/// One lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    /// The time to live as the entry has it, in seconds. The member that was asked has raised it to the shortest that
    /// it grants; a member that runs etcd has not, and every leader of etcd's raises it by its own option.
    pub ttl: i64,
    /// The time left as of the last checkpoint entry, in seconds; 0 if there was none since the last renewal.
    pub remaining: i64,
    /// The attached keys.
    pub keys: BTreeSet<Bytes>,
}

/// All leases.
#[derive(Debug, Default)]
pub struct Leases {
    table: HashMap<i64, Lease>,
    /// Live keys by a lease that does not exist: only a state that was taken over from elsewhere has such keys. They are
    /// attached if a lease with this id is granted, as they would be by a restart after it.
    dangling: HashMap<i64, BTreeSet<Bytes>>,
}

impl Leases {
    /// The lease with this id.
    pub fn get(&self, id: i64) -> Option<&Lease> {
        self.table.get(&id)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// All of them, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (i64, &Lease)> {
        self.table.iter().map(|(id, lease)| (*id, lease))
    }

    /// Leases that were granted elsewhere: id, TTL in seconds, and the time left as of the last checkpoint, or 0. Keys
    /// are tied to them when versions are loaded.
    ///
    /// # Errors
    ///
    /// When one is there twice, or is one that nobody can be granted.
    pub fn granted(terms: impl IntoIterator<Item = (i64, i64, i64)>) -> Result<Leases, Malformed> {
        let mut leases = Leases::default();
        for (id, ttl, remaining) in terms {
            leases.take(id, Lease { ttl, remaining, keys: BTreeSet::new() })?;
        }
        Ok(leases)
    }

    fn take(&mut self, id: i64, lease: Lease) -> Result<(), Malformed> {
        if id == 0
            || !(0..=LEASE_TTL_MAX).contains(&lease.ttl)
            || !(0..=LEASE_TTL_MAX).contains(&lease.remaining)
        {
            return Err(Malformed("a lease that nobody can be granted"));
        }
        match self.table.insert(id, lease) {
            Some(_) => Err(Malformed("a lease twice")),
            None => Ok(()),
        }
    }

    /// Grants a lease; gives its TTL in seconds. No option of a member takes part: members whose options differ would
    /// come to differ.
    pub(crate) fn grant(&mut self, id: i64, ttl: i64) -> Result<i64, Status> {
        if id == 0 {
            return Err(error::LEASE_NOT_FOUND);
        }
        if ttl > LEASE_TTL_MAX {
            return Err(error::LEASE_TTL_TOO_LARGE);
        }
        if self.table.contains_key(&id) {
            return Err(error::LEASE_EXIST);
        }
        let ttl = ttl.clamp(0, LEASE_TTL_MAX);
        let keys = self.dangling.remove(&id).unwrap_or_default();
        self.table.insert(id, Lease { ttl, remaining: 0, keys });
        Ok(ttl)
    }

    /// Forgets a lease and gives it back; its keys are the caller's to delete.
    pub(crate) fn revoke(&mut self, id: i64) -> Option<Lease> {
        if planted::is(Bug::LeaseRevived) {
            let lease = self.table.get_mut(&id)?;
            return Some(Lease { keys: std::mem::take(&mut lease.keys), ..*lease });
        }
        self.table.remove(&id)
    }

    /// Notes the time left, in seconds; 0 takes the note back. Gives what is noted, if that is something else now.
    pub(crate) fn checkpoint(&mut self, id: i64, remaining: i64) -> Option<i64> {
        let lease = self.table.get_mut(&id)?;
        // Not bounded by the TTL: of an older version's checkpoint, that may depend on the member.
        let remaining = remaining.clamp(0, LEASE_TTL_MAX);
        let before = std::mem::replace(&mut lease.remaining, remaining);
        (before != remaining).then_some(remaining)
    }

    /// A key was put: moves it from one lease to another; 0 stands for none.
    pub(crate) fn attach(&mut self, key: &Bytes, from: i64, to: i64) {
        if from == to {
            return;
        }
        self.detach(key, from);
        if to != 0 {
            let lease = self.table.get_mut(&to);
            assert!(lease.is_some(), "a put was let through with lease {to:x}, which does not exist");
            if let Some(lease) = lease {
                lease.keys.insert(Bytes::copy_from_slice(key));
            }
        }
    }

    /// A key was deleted.
    pub(crate) fn detach(&mut self, key: &[u8], from: i64) {
        if from == 0 {
            return;
        }
        if let Some(lease) = self.table.get_mut(&from) {
            lease.keys.remove(key);
        } else if let Some(keys) = self.dangling.get_mut(&from) {
            keys.remove(key);
            if keys.is_empty() {
                self.dangling.remove(&from);
            }
        }
    }

    /// When a state is loaded: ties a live key to its lease again. A key whose lease does not exist stays, without a
    /// lease, as etcd has it.
    pub(crate) fn reattach(&mut self, key: &[u8], id: i64) {
        let keys = match self.table.get_mut(&id) {
            Some(lease) => &mut lease.keys,
            None => self.dangling.entry(id).or_default(),
        };
        keys.insert(Bytes::copy_from_slice(key));
    }

    /// Id, TTL and time left of each, without the keys: those know their leases. In no order.
    pub(crate) fn terms(&self) -> Vec<(i64, i64, i64)> {
        self.table.iter().map(|(id, lease)| (*id, lease.ttl, lease.remaining)).collect()
    }

    pub(crate) fn decode(input: &mut Input<'_>) -> Result<Leases, Malformed> {
        let mut leases = Leases::default();
        for _ in 0..input.u64()? {
            let id = input.i64()?;
            let lease = Lease { ttl: input.i64()?, remaining: input.i64()?, keys: BTreeSet::new() };
            leases.take(id, lease)?;
        }
        Ok(leases)
    }
}

/// Writes what [`Leases::terms`] gave and [`Leases::decode`] reads, by ascending id.
pub(crate) fn encode_terms(mut terms: Vec<(i64, i64, i64)>, out: &mut Vec<u8>) {
    terms.sort_unstable();
    put_u64(out, terms.len() as u64);
    for (id, ttl, remaining) in terms {
        put_i64(out, id);
        put_i64(out, ttl);
        put_i64(out, remaining);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_ttl_is_kept_and_a_long_one_refused() {
        let mut leases = Leases::default();
        assert_eq!(leases.grant(1, 1), Ok(1));
        assert_eq!(leases.grant(3, -1), Ok(0));
        assert_eq!(leases.grant(1, 5), Err(error::LEASE_EXIST));
        assert_eq!(leases.grant(2, LEASE_TTL_MAX + 1), Err(error::LEASE_TTL_TOO_LARGE));
        assert_eq!(leases.grant(0, 5), Err(error::LEASE_NOT_FOUND));
    }

    #[test]
    fn a_lease_that_nobody_can_be_granted_is_refused() {
        let read = |id, ttl, remaining| {
            let mut out = Vec::new();
            encode_terms(vec![(id, ttl, remaining)], &mut out);
            Leases::decode(&mut Input(&out)).is_ok()
        };
        assert!(read(1, 60, 60) && read(-1, 60, 0));
        assert!(!read(0, 60, 0) && !read(1, -1, 0) && !read(1, 60, LEASE_TTL_MAX + 1) && !read(1, 60, -1));
        assert!(!read(1, LEASE_TTL_MAX + 1, 0));
    }

    #[test]
    fn a_key_belongs_to_one_lease() {
        let mut leases = Leases::default();
        leases.grant(1, 5).expect("granted");
        leases.grant(2, 5).expect("granted");
        let key = Bytes::from_static(b"k");
        leases.attach(&key, 0, 1);
        leases.attach(&key, 1, 2);
        assert!(leases.get(1).is_some_and(|l| l.keys.is_empty()));
        assert!(leases.get(2).is_some_and(|l| l.keys.contains(b"k".as_slice())));
        leases.detach(b"k", 2);
        assert!(leases.get(2).is_some_and(|l| l.keys.is_empty()));
    }

    #[test]
    fn leases_come_back() {
        let mut leases = Leases::default();
        leases.grant(7, 60).expect("granted");
        leases.grant(-3, 90).expect("granted");
        leases.checkpoint(7, 12);
        let mut out = Vec::new();
        encode_terms(leases.terms(), &mut out);
        let mut input = Input(&out);
        let back = Leases::decode(&mut input).expect("decodes");
        assert_eq!(back.table, leases.table);
        for len in 0..out.len() {
            assert!(Leases::decode(&mut Input(&out[..len])).is_err(), "{len}");
        }
    }

    #[test]
    fn keys_of_a_lease_that_does_not_exist_are_attached_once_it_is_granted() {
        let mut leases = Leases::default();
        leases.reattach(b"a", 7);
        leases.reattach(b"b", 7);
        leases.detach(b"b", 7);
        assert!(leases.is_empty() && leases.get(7).is_none());
        leases.grant(7, 10).expect("it can be granted");
        let keys: Vec<_> = leases.get(7).expect("it exists").keys.iter().cloned().collect();
        assert_eq!(keys, ["a"]);
        leases.reattach(b"c", 8);
        leases.detach(b"c", 8);
        assert!(leases.dangling.is_empty());
    }
}
