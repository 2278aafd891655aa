//! Stores the replicated state of the leases: id, TTL, remaining TTL of the last lease checkpoint, and
//! attached keys. [`Leases`] is the set of all leases.
//!
//! The module has no clock. The leader decides when a lease expires, and proposes its revocation.

use std::sync::Arc;

use api::Status;
use api::error;
use api::limits::LEASE_TTL_MAX;
use bytes::Bytes;
use planted::Bug;

use numbers::{LeaseId, Seconds};

use crate::check;
use crate::codec::{Input, Malformed, put_i64, put_u64};
use crate::shared_map::SharedMap;

/// Maximum TTL of a lease, in seconds.
const TTL_MAX: Seconds = Seconds(LEASE_TTL_MAX);

/// One lease, as [`Leases`] returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease<'a> {
    /// TTL in seconds, as in the entry that granted the lease. A Mainstay member raises the TTL to its own
    /// minimum before it proposes the entry; an etcd member does not. Every leader additionally applies its
    /// own minimum when it computes when the lease expires.
    pub ttl: Seconds,
    /// Remaining TTL in seconds of the last lease checkpoint; 0 if no checkpoint was taken since the last
    /// renewal.
    pub remaining: Seconds,
    /// Keys that are attached to the lease.
    pub keys: &'a SharedMap<Bytes, ()>,
}

/// Keys of a lease that has none.
static NO_KEYS: SharedMap<Bytes, ()> = SharedMap::new();

/// The times of one lease in seconds, in the form in which they take the least memory. There may be millions
/// of leases, and nearly all of them have a TTL below [`WIDE`] seconds, which are 136 years.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Times {
    /// TTL; [`WIDE`] if the times are in [`Leases::wide`].
    ttl: u32,
    remaining: u32,
}

/// Value of [`Times::ttl`] for a lease with a time that does not fit.
const WIDE: u32 = u32::MAX;

impl Times {
    /// Returns `None` if one of the times does not fit.
    fn of(ttl: Seconds, remaining: Seconds) -> Option<Times> {
        let narrow = |time: Seconds| u32::try_from(time.0).ok().filter(|time| *time < WIDE);
        Some(Times { ttl: narrow(ttl)?, remaining: narrow(remaining)? })
    }
}

/// A lease from another state, such as an imported database, without its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantedLease {
    /// Id of the lease.
    pub id: LeaseId,
    /// TTL in seconds.
    pub ttl: Seconds,
    /// Remaining TTL in seconds of the last lease checkpoint; 0 if no checkpoint was taken since the last
    /// renewal.
    pub remaining: Seconds,
}

/// All leases by id. Copying costs one pointer per about 230 leases, and a copy does not change when the
/// original does.
///
/// A lease without keys takes 16 bytes. What few leases have is in maps of its own, so that the others need no
/// memory for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leases {
    table: SharedMap<LeaseId, Times>,
    /// TTL and remaining TTL of the leases with a time that does not fit into [`Times`].
    wide: SharedMap<LeaseId, (Seconds, Seconds)>,
    /// Attached keys by lease; a lease without keys has no entry. Live keys whose lease does not exist have an
    /// entry, too; only an imported state has such keys. They are attached if a lease with this id is granted
    /// later, because a member that loads its state after the grant attaches them, too. Otherwise the states
    /// of the two members would differ.
    keys: SharedMap<LeaseId, Arc<SharedMap<Bytes, ()>>>,
    /// Number of bytes that all leases and attached keys count against the quota.
    bytes: u64,
}

/// Returns the number of bytes that attaching this key to a lease counts against the quota, in addition to
/// the key's versions.
fn attached_bytes(key: &[u8]) -> u64 {
    check::ATTACHED_COST + key.len() as u64
}

impl Leases {
    /// Returns the lease with this id.
    pub fn get(&self, id: LeaseId) -> Option<Lease<'_>> {
        self.table.get(&id).map(|times| self.lease(id, *times))
    }

    fn lease(&self, id: LeaseId, times: Times) -> Lease<'_> {
        let narrow = || (Seconds(times.ttl.into()), Seconds(times.remaining.into()));
        let wide = (times.ttl == WIDE).then(|| self.wide.get(&id)).flatten();
        assert!(times.ttl != WIDE || wide.is_some(), "lease {id:x} has times");
        let (ttl, remaining) = wide.copied().unwrap_or_else(narrow);
        Lease { ttl, remaining, keys: self.keys.get(&id).map_or(&NO_KEYS, |keys| &**keys) }
    }

    /// Sets the times of a lease. Returns true if the lease existed.
    fn set(&mut self, id: LeaseId, ttl: Seconds, remaining: Seconds) -> bool {
        let narrow = Times::of(ttl, remaining);
        let times = narrow.unwrap_or(Times { ttl: WIDE, remaining: 0 });
        if narrow.is_none() {
            self.wide.insert(id, (ttl, remaining));
        }
        let before = self.table.insert(id, times);
        if narrow.is_some() && before.is_some_and(|before| before.ttl == WIDE) {
            self.wide.remove(&id);
        }
        before.is_some()
    }

    /// Returns the number of bytes that all leases and their attached keys count against the quota. The
    /// result depends only on the current leases, not on their history.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the leases whose ids are above this id, or all leases if `None`, in ascending order of id.
    pub fn after(&self, id: Option<LeaseId>) -> impl Iterator<Item = (LeaseId, Lease<'_>)> + use<'_> {
        self.table.after(id.as_ref()).map(|(id, times)| (*id, self.lease(*id, *times)))
    }

    /// Returns the number of keys of a lease; 0 if it does not exist.
    pub fn key_count(&self, id: LeaseId) -> usize {
        self.keys.get(&id).map_or(0, |keys| keys.len())
    }

    /// Returns the number of leases.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns true if no leases exist.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Returns all leases in ascending order of id.
    pub fn iter(&self) -> impl Iterator<Item = (LeaseId, Lease<'_>)> {
        self.table.iter().map(|(id, times)| (*id, self.lease(*id, *times)))
    }

    /// Creates the set from leases of another state. Keys are attached to the leases when versions are
    /// loaded.
    ///
    /// # Errors
    ///
    /// Returns an error if a lease occurs twice, or has an id or a TTL that is not allowed.
    pub fn granted(granted: impl IntoIterator<Item = GrantedLease>) -> Result<Leases, Malformed> {
        let mut leases = Leases::default();
        for GrantedLease { id, ttl, remaining } in granted {
            leases.take(id, ttl, remaining)?;
        }
        Ok(leases)
    }

    fn take(&mut self, id: LeaseId, ttl: Seconds, remaining: Seconds) -> Result<(), Malformed> {
        if !id.is_some()
            || !(Seconds::ZERO..=TTL_MAX).contains(&ttl)
            || !(Seconds::ZERO..=TTL_MAX).contains(&remaining)
        {
            return Err(Malformed("a lease that could not have been granted"));
        }
        self.bytes += check::LEASE_COST;
        if self.set(id, ttl, remaining) { Err(Malformed("a lease twice")) } else { Ok(()) }
    }

    /// Grants a lease and returns its TTL in seconds. The result must not depend on the options of a member,
    /// because members with different options would then get different states.
    pub(crate) fn grant(&mut self, id: LeaseId, ttl: Seconds) -> Result<Seconds, Status> {
        if !id.is_some() {
            return Err(error::LEASE_NOT_FOUND);
        }
        if ttl > TTL_MAX {
            return Err(error::LEASE_TTL_TOO_LARGE);
        }
        if self.table.get(&id).is_some() {
            return Err(error::LEASE_EXIST);
        }
        let ttl = ttl.clamp(Seconds::ZERO, TTL_MAX);
        self.set(id, ttl, Seconds::ZERO);
        self.bytes += check::LEASE_COST;
        Ok(ttl)
    }

    /// Removes a lease and returns its keys, which the caller has to delete. Returns `None` if the lease does
    /// not exist.
    pub(crate) fn revoke(&mut self, id: LeaseId) -> Option<SharedMap<Bytes, ()>> {
        if planted::is(Bug::LeaseRevived) {
            return self.take_keys(id);
        }
        let times = self.table.remove(&id)?;
        if times.ttl == WIDE {
            self.wide.remove(&id);
        }
        self.bytes = self.bytes.saturating_sub(check::LEASE_COST);
        Some(self.keys.remove(&id).map(Arc::unwrap_or_clone).unwrap_or_default())
    }

    /// Removes and returns all keys of a lease that is being revoked. The lease itself stays until the caller
    /// has deleted the keys.
    pub(crate) fn take_keys(&mut self, id: LeaseId) -> Option<SharedMap<Bytes, ()>> {
        self.table.get(&id)?;
        Some(self.keys.remove(&id).map(Arc::unwrap_or_clone).unwrap_or_default())
    }

    /// Subtracts from the quota counter the bytes of a key that was attached to a revoked lease.
    pub(crate) fn detached(&mut self, key: &[u8]) {
        self.bytes = self.bytes.saturating_sub(attached_bytes(key));
    }

    /// Stores the remaining TTL of a lease in seconds, if the lease exists; 0 clears the stored value.
    pub(crate) fn checkpoint(&mut self, id: LeaseId, remaining: Seconds) {
        // The value is limited only by `TTL_MAX`, not by the TTL of the lease: in checkpoints of an older
        // release of Mainstay, that TTL may depend on the member, but the stored value must not.
        let remaining = remaining.clamp(Seconds::ZERO, TTL_MAX);
        if let Some(lease) = self.get(id).filter(|lease| lease.remaining != remaining) {
            let ttl = lease.ttl;
            self.set(id, ttl, remaining);
        }
    }

    /// Moves a key that a put has written from the lease `from` of its previous version to the lease `to` of
    /// the put; 0 means no lease.
    pub(crate) fn attach(&mut self, key: &Bytes, from: LeaseId, to: LeaseId) {
        if from == to {
            return;
        }
        self.detach(key, from);
        if to.is_some() {
            let exists = self.table.get(&to).is_some();
            assert!(exists, "a put was let through with lease {to:x}, which does not exist");
            self.add_key(to, key);
        }
    }

    fn add_key(&mut self, id: LeaseId, key: &[u8]) {
        // A copy, because the key may be a part of a large request, whose memory it would keep.
        let copy = Bytes::copy_from_slice(key);
        let is_new = match self.keys.get_mut(&id) {
            Some(keys) => Arc::make_mut(keys).insert(copy, ()).is_none(),
            None => {
                let mut keys = SharedMap::new();
                keys.insert(copy, ());
                self.keys.insert(id, Arc::new(keys));
                true
            }
        };
        if is_new {
            self.bytes += attached_bytes(key);
        }
    }

    /// Detaches a deleted key from the lease to which it was attached.
    pub(crate) fn detach(&mut self, key: &[u8], from: LeaseId) {
        if !from.is_some() {
            return;
        }
        let Some(keys) = self.keys.get_mut(&from) else { return };
        let keys = Arc::make_mut(keys);
        let was_there = keys.remove(key).is_some();
        if keys.is_empty() {
            self.keys.remove(&from);
        }
        if was_there {
            self.bytes = self.bytes.saturating_sub(attached_bytes(key));
        }
    }

    /// Attaches a live key to its lease when a state is loaded. If the lease does not exist, the key stays
    /// unattached, as in etcd, until a lease with this id is granted.
    pub(crate) fn reattach(&mut self, key: &[u8], id: LeaseId) {
        self.add_key(id, key);
    }

    /// Encodes the leases in ascending order of id. Their keys are not encoded, because the version of each
    /// key contains its lease. [`Leases::decode`] is the inverse.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_u64(out, self.len() as u64);
        for (id, lease) in self.iter() {
            put_i64(out, id.0);
            put_i64(out, lease.ttl.0);
            put_i64(out, lease.remaining.0);
        }
    }

    pub(crate) fn decode(input: &mut Input<'_>) -> Result<Leases, Malformed> {
        let mut leases = Leases::default();
        for _ in 0..input.u64()? {
            let id = LeaseId(input.i64()?);
            let (ttl, remaining) = (Seconds(input.i64()?), Seconds(input.i64()?));
            leases.take(id, ttl, remaining)?;
        }
        Ok(leases)
    }

    /// Removes from the input what [`Leases::encode`] has encoded, without keeping it.
    pub(crate) fn skip(input: &mut Input<'_>) -> Result<(), Malformed> {
        for _ in 0..input.u64()? {
            let _ = (input.i64()?, input.i64()?, input.i64()?);
        }
        Ok(())
    }

    /// Encodes some of the leases after the lease `behind`, or the first ones if it is `None`: their number, then
    /// for each its id, TTL and remaining TTL in seconds. Each id after the first is the difference to the one
    /// before. Uses about `bytes_max` bytes. Returns the id of the last one; `None` if none are left.
    pub(crate) fn encode_some(
        &self,
        behind: Option<LeaseId>,
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> Option<LeaseId> {
        let mut leases = Vec::with_capacity(bytes_max);
        let (mut count, mut last) = (0, None);
        for (id, lease) in self.after(behind) {
            match last {
                None => put_i64(&mut leases, id.0),
                Some(LeaseId(last)) => put_u64(&mut leases, id.0.wrapping_sub(last) as u64),
            }
            put_i64(&mut leases, lease.ttl.0);
            put_i64(&mut leases, lease.remaining.0);
            (count, last) = (count + 1, Some(id));
            if leases.len() >= bytes_max {
                break;
            }
        }
        put_u64(out, count);
        out.extend_from_slice(&leases);
        last
    }

    /// Adds the leases that [`Leases::encode_some`] has encoded. Returns their number.
    pub(crate) fn decode_some(&mut self, input: &mut Input<'_>) -> Result<u64, Malformed> {
        let count = input.u64()?;
        let mut last: Option<LeaseId> = None;
        for _ in 0..count {
            let id = match last {
                None => LeaseId(input.i64()?),
                Some(last) => {
                    let id = LeaseId(last.0.wrapping_add(input.u64()? as i64));
                    if id <= last {
                        return Err(Malformed("leases out of order"));
                    }
                    id
                }
            };
            let (ttl, remaining) = (Seconds(input.i64()?), Seconds(input.i64()?));
            self.take(id, ttl, remaining)?;
            last = Some(id);
        }
        if input.is_empty() { Ok(count) } else { Err(Malformed("more than leases in their block")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_ttl_is_kept_and_a_long_one_refused() {
        let mut leases = Leases::default();
        assert_eq!(leases.grant(LeaseId(1), Seconds(1)), Ok(Seconds(1)));
        assert_eq!(leases.grant(LeaseId(3), Seconds(-1)), Ok(Seconds(0)));
        assert_eq!(leases.grant(LeaseId(1), Seconds(5)), Err(error::LEASE_EXIST));
        assert_eq!(leases.grant(LeaseId(2), Seconds(LEASE_TTL_MAX + 1)), Err(error::LEASE_TTL_TOO_LARGE));
        assert_eq!(leases.grant(LeaseId::NONE, Seconds(5)), Err(error::LEASE_NOT_FOUND));
    }

    #[test]
    fn a_lease_that_nobody_can_be_granted_is_refused() {
        let read = |id, ttl, remaining| {
            let mut out = Vec::new();
            put_u64(&mut out, 1);
            [id, ttl, remaining].into_iter().for_each(|number| put_i64(&mut out, number));
            Leases::decode(&mut Input(&out)).is_ok()
        };
        assert!(read(1, 60, 60) && read(-1, 60, 0));
        assert!(!read(0, 60, 0) && !read(1, -1, 0) && !read(1, 60, LEASE_TTL_MAX + 1) && !read(1, 60, -1));
        assert!(!read(1, LEASE_TTL_MAX + 1, 0));
    }

    #[test]
    fn a_lease_without_keys_is_small() {
        assert_eq!(size_of::<(LeaseId, Times)>(), 16);
    }

    #[test]
    fn a_time_that_does_not_fit_is_kept() {
        let mut leases = Leases::default();
        let ttls = [0, 1, i64::from(WIDE) - 1, i64::from(WIDE), i64::from(WIDE) + 1, LEASE_TTL_MAX];
        for (id, ttl) in (1..).zip(ttls) {
            leases.grant(LeaseId(id), Seconds(ttl)).expect("granted");
            for remaining in [0, 7, LEASE_TTL_MAX, i64::from(WIDE), 5] {
                leases.checkpoint(LeaseId(id), Seconds(remaining));
                let lease = leases.get(LeaseId(id)).expect("it exists");
                assert_eq!((lease.ttl, lease.remaining), (Seconds(ttl), Seconds(remaining)));
            }
        }
        assert_eq!(leases.wide.len(), 3, "the times of the others fit again");
        for (id, _) in (1..).zip(ttls) {
            leases.revoke(LeaseId(id)).expect("it exists");
        }
        assert_eq!(leases, Leases::default());
    }

    #[test]
    fn a_key_belongs_to_one_lease() {
        let mut leases = Leases::default();
        leases.grant(LeaseId(1), Seconds(5)).expect("granted");
        leases.grant(LeaseId(2), Seconds(5)).expect("granted");
        let key = Bytes::from_static(b"k");
        leases.attach(&key, LeaseId::NONE, LeaseId(1));
        leases.attach(&key, LeaseId(1), LeaseId(2));
        assert!(leases.get(LeaseId(1)).is_some_and(|l| l.keys.is_empty()));
        assert!(leases.get(LeaseId(2)).is_some_and(|l| l.keys.get(b"k".as_slice()).is_some()));
        assert_eq!([1, 2, 3].map(|id| leases.key_count(LeaseId(id))), [0, 1, 0]);
        leases.detach(b"k", LeaseId(2));
        assert!(leases.get(LeaseId(2)).is_some_and(|l| l.keys.is_empty()));
    }

    #[test]
    fn leases_come_back() {
        let mut leases = Leases::default();
        leases.grant(LeaseId(7), Seconds(60)).expect("granted");
        leases.grant(LeaseId(-3), Seconds(90)).expect("granted");
        leases.checkpoint(LeaseId(7), Seconds(12));
        let mut out = Vec::new();
        leases.encode(&mut out);
        let mut input = Input(&out);
        let back = Leases::decode(&mut input).expect("decodes");
        assert_eq!(back, leases);
        for len in 0..out.len() {
            assert!(Leases::decode(&mut Input(&out[..len])).is_err(), "{len}");
        }
    }

    #[test]
    fn what_leases_count_for_follows_from_what_they_are() {
        let mut leases = Leases::default();
        let keys: Vec<Bytes> = (0..100).map(|n| Bytes::from(format!("key {n}"))).collect();
        for id in 1..=10 {
            leases.grant(LeaseId(id), Seconds(60)).expect("granted");
        }
        for (n, key) in keys.iter().enumerate() {
            leases.attach(key, LeaseId::NONE, LeaseId(1 + n as i64 % 10));
            leases.attach(key, LeaseId(1 + n as i64 % 10), LeaseId(1 + n as i64 % 7));
        }
        leases.detach(&keys[0], LeaseId(1));
        leases.detach(&keys[0], LeaseId(1));
        let mut out = Vec::new();
        leases.encode(&mut out);
        let mut back = Leases::decode(&mut Input(&out)).expect("decodes");
        for (n, key) in keys.iter().enumerate().skip(1) {
            back.reattach(key, LeaseId(1 + n as i64 % 7));
        }
        assert_eq!(back, leases);
        assert!(leases.bytes() > 10 * check::LEASE_COST + 99 * check::ATTACHED_COST);
        for id in 1..=10 {
            for key in leases.revoke(LeaseId(id)).expect("is there").keys() {
                leases.detached(key);
            }
        }
        assert_eq!(leases.bytes(), 0);
    }

    #[test]
    fn keys_of_a_lease_that_does_not_exist_are_attached_once_it_is_granted() {
        let mut leases = Leases::default();
        leases.reattach(b"a", LeaseId(7));
        leases.reattach(b"b", LeaseId(7));
        leases.detach(b"b", LeaseId(7));
        assert!(leases.is_empty() && leases.get(LeaseId(7)).is_none());
        leases.grant(LeaseId(7), Seconds(10)).expect("it can be granted");
        let keys: Vec<_> = leases.get(LeaseId(7)).expect("it exists").keys.keys().cloned().collect();
        assert_eq!(keys, ["a"]);
        leases.reattach(b"c", LeaseId(8));
        leases.detach(b"c", LeaseId(8));
        assert!(leases.keys.get(&LeaseId(8)).is_none());
    }
}
