//! Checks whether the user of a request may make it. The check is made when the request arrives, and again
//! when its entry is applied.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::Status;
use api::error;
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{DeleteRangeRequest, PutRequest, RequestOp, TxnRequest};
use bytes::Bytes;
use numbers::LeaseId;

use super::{Auth, KeyRanges, Rights, RightsCache};
use crate::lease::Leases;
use crate::shared_map::SharedMap;

/// The keys that are attached to a lease.
type LeaseKeys = SharedMap<Bytes, ()>;

/// The user who sends a request, and the auth revision at which the user was authenticated. The default value
/// stands for a request without a user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caller<'a> {
    /// Name of the user; empty for none.
    pub user: &'a str,
    /// Auth revision at which the token was issued or the certificate was checked; 0 without a user.
    pub revision: u64,
}

/// Result of looking up the user of a request.
enum Who {
    /// Authentication is not enabled: everything is allowed.
    Anyone,
    /// No user was named, or (if `is_named`) no user of that name exists.
    Nobody { is_named: bool },
    /// An existing user with these rights.
    Known(Arc<Rights>),
}

/// Permission check for one caller and one request. Its errors are etcd's.
pub struct Gate {
    who: Who,
    /// Error for every access to keys, if the caller's auth revision is missing or too old; otherwise `None`.
    stale: Option<Status>,
    /// True if the caller's token is older than the last change of the user's password. Such a token does not
    /// give the rights of root.
    is_outdated: bool,
    /// Number of times that the keys of a lease were checked. For tests.
    #[cfg(test)]
    pub(super) leases_asked: std::cell::Cell<usize>,
}

impl Gate {
    /// Returns the permission check for this caller.
    pub fn new(auth: &Auth, caller: Caller<'_>, cache: &mut RightsCache) -> Gate {
        if !auth.is_enabled() {
            return Gate::of(Who::Anyone, None);
        }
        let stale = match caller.revision {
            0 => Some(error::USER_EMPTY),
            old if old < auth.revision() && !planted::is(planted::Bug::TokenRevisionIgnored) => {
                Some(error::AUTH_OLD_REVISION)
            }
            _ => None,
        };
        let is_named = !caller.user.is_empty();
        let who = match is_named.then(|| cache.rights(auth, caller.user)).flatten() {
            Some(rights) => Who::Known(rights),
            None => Who::Nobody { is_named },
        };
        Gate::of(who, stale)
    }

    fn of(who: Who, stale: Option<Status>) -> Gate {
        Gate {
            who,
            stale,
            is_outdated: false,
            #[cfg(test)]
            leases_asked: std::cell::Cell::default(),
        }
    }

    /// Marks the caller's token as older than the last change of the user's password. Requests that only root
    /// may make are then refused. (Access to keys is refused without the mark, because the change of the
    /// password has raised the auth revision.) In etcd such a token can still be used to change the new
    /// password (COMPAT-443). The mark is used only when a request arrives, because at apply all members,
    /// including those that run etcd, must come to the same result.
    pub fn outdated(mut self) -> Gate {
        self.is_outdated = !self.is_open();
        self
    }

    /// Returns true if authentication is not enabled, so that everything is allowed.
    pub fn is_open(&self) -> bool {
        matches!(self.who, Who::Anyone)
    }

    /// Checks that the caller may do what only root may do: manage users, roles and members, and do
    /// maintenance.
    ///
    /// # Errors
    ///
    /// Returns an error if no user is named, no user of that name exists, the user does not have the role
    /// root, or the caller's token is outdated.
    pub fn admin(&self) -> Result<(), Status> {
        match &self.who {
            Who::Anyone => Ok(()),
            Who::Nobody { is_named: false } => Err(error::USER_EMPTY),
            Who::Nobody { is_named: true } => Err(error::USER_NOT_FOUND),
            Who::Known(rights) if rights.is_root() && self.is_outdated => Err(error::AUTH_OLD_REVISION),
            Who::Known(rights) if rights.is_root() => Ok(()),
            Who::Known(_) => Err(error::PERMISSION_DENIED),
        }
    }

    /// Returns the rights that limit access to keys, or `None` if all keys are allowed.
    fn limits(&self) -> Result<Option<&Rights>, Status> {
        match (&self.who, &self.stale) {
            (Who::Anyone, _) => Ok(None),
            (_, Some(stale)) => Err(stale.clone()),
            (Who::Nobody { .. }, None) => Err(error::PERMISSION_DENIED),
            (Who::Known(rights), None) => Ok((!rights.is_root()).then_some(rights)),
        }
    }

    /// Checks that these keys may be read. As in requests, an empty range end means one key, and a zero byte
    /// means all keys from `key` on.
    ///
    /// # Errors
    ///
    /// Returns an error if no user is named, the caller was authenticated at an older auth revision, or the
    /// permission is missing.
    pub fn read(&self, key: &[u8], range_end: &[u8]) -> Result<(), Status> {
        match self.limits()? {
            Some(rights) if !rights.read().covers(key, range_end) => Err(error::PERMISSION_DENIED),
            _ => Ok(()),
        }
    }

    /// Checks that these keys may be written or deleted.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Gate::read`].
    pub fn write(&self, key: &[u8], range_end: &[u8]) -> Result<(), Status> {
        match self.limits()? {
            Some(rights) if !rights.write().covers(key, range_end) => Err(error::PERMISSION_DENIED),
            _ => Ok(()),
        }
    }

    /// Checks that the caller may write the key of a put, attach the key to the lease of the put, and read
    /// the previous pair if the put asks for it. `leases` has the keys of the lease.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Gate::read`].
    pub fn put(&self, put: &PutRequest, leases: &Leases) -> Result<(), Status> {
        self.put_with(put, leases, &mut BTreeSet::new())
    }

    /// Checks a put like [`Gate::put`]. `allowed` contains the leases that were already checked for this
    /// request.
    fn put_with(
        &self,
        put: &PutRequest,
        leases: &Leases,
        allowed: &mut BTreeSet<LeaseId>,
    ) -> Result<(), Status> {
        self.write(&put.key, &[])?;
        // To attach a key to a lease, a user needs the same rights as to revoke the lease: write access to
        // all its keys.
        let id = LeaseId(put.lease);
        if id.is_some()
            && !allowed.contains(&id)
            && let Some(lease) = leases.get(id)
        {
            self.write_all(lease.keys)?;
            allowed.insert(id);
        }
        if put.prev_kv { self.read(&put.key, &[]) } else { Ok(()) }
    }

    /// Checks that the caller may delete these keys, and may read them if the request asks for the previous
    /// pairs.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Gate::read`].
    pub fn delete_range(&self, delete: &DeleteRangeRequest) -> Result<(), Status> {
        self.write(&delete.key, &delete.range_end)?;
        if delete.prev_kv { self.read(&delete.key, &delete.range_end) } else { Ok(()) }
    }

    /// Checks that a transaction is allowed: all comparisons, and all operations of both branches, including
    /// nested transactions. The keys of a lease are checked only once, even if many puts use the lease.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Gate::read`].
    pub fn txn(&self, txn: &TxnRequest, leases: &Leases) -> Result<(), Status> {
        if self.is_open() {
            return Ok(());
        }
        // Nested transactions are put on a list and not checked by recursion, because the client chooses
        // their depth and could overflow the stack.
        let mut open = vec![txn];
        let mut allowed = BTreeSet::new();
        while let Some(txn) = open.pop() {
            for compare in &txn.compare {
                self.read(&compare.key, &compare.range_end)?;
            }
            let ungated = planted::is(planted::Bug::SecondBranchUngated);
            let failure = if ungated { &[][..] } else { &txn.failure };
            for op in txn.success.iter().chain(failure) {
                self.operation(op, leases, &mut allowed, &mut open)?;
            }
        }
        Ok(())
    }

    fn operation<'t>(
        &self,
        op: &'t RequestOp,
        leases: &Leases,
        allowed: &mut BTreeSet<LeaseId>,
        nested: &mut Vec<&'t TxnRequest>,
    ) -> Result<(), Status> {
        match &op.request {
            Some(Request::RequestRange(range)) => self.read(&range.key, &range.range_end),
            Some(Request::RequestPut(put)) => self.put_with(put, leases, allowed),
            Some(Request::RequestDeleteRange(delete)) => self.delete_range(delete),
            Some(Request::RequestTxn(txn)) => {
                nested.push(txn);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Checks that the caller may write all of these keys, which are attached to one lease. If so, the caller
    /// may also revoke the lease, renew it, and attach more keys to it. As in etcd, the check succeeds for
    /// root at any auth revision, and for every caller if the lease has no keys.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Gate::read`].
    pub fn write_all(&self, keys: &LeaseKeys) -> Result<(), Status> {
        self.all(keys, Rights::write)
    }

    /// Checks that the caller may read all of these keys, which are attached to one lease. If so, the caller
    /// may also see the lease.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Gate::read`].
    pub fn read_all(&self, keys: &LeaseKeys) -> Result<(), Status> {
        self.all(keys, Rights::read)
    }

    /// Checks that the caller has `right` on the keys of a lease after the key `behind`, until all keys are
    /// checked or `left` is used up. Each search subtracts 1 from `left`, except the first one, which the
    /// calling function has already counted. Returns the key after which to continue, or `None` if all keys
    /// are checked.
    fn some(
        &self,
        keys: &LeaseKeys,
        behind: Option<&Bytes>,
        left: &mut usize,
        right: Right,
    ) -> Result<Option<Bytes>, Status> {
        if keys.is_empty() || self.admin().is_ok() {
            return Ok(None);
        }
        let Some(rights) = self.limits()? else { return Ok(None) };
        let allowed = match right {
            Right::Read => rights.read(),
            Right::Write => rights.write(),
        };
        match some_within(keys, behind, left, allowed) {
            Within::All => Ok(None),
            Within::Through(key) => Ok(Some(key)),
            Within::No => Err(error::PERMISSION_DENIED),
        }
    }

    fn all(&self, keys: &LeaseKeys, which: impl Fn(&Rights) -> &KeyRanges) -> Result<(), Status> {
        if keys.is_empty() || self.admin().is_ok() {
            return Ok(());
        }
        #[cfg(test)]
        self.leases_asked.set(self.leases_asked.get() + 1);
        let mut searches = usize::MAX;
        match self.limits()? {
            Some(rights) => match some_within(keys, None, &mut searches, which(rights)) {
                Within::No => Err(error::PERMISSION_DENIED),
                Within::All | Within::Through(_) => Ok(()),
            },
            None => Ok(()),
        }
    }
}

/// A right on keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// The right to read keys.
    Read,
    /// The right to write and delete keys.
    Write,
}

/// Checks a right on all keys of some leases. The check runs in slices, because a lease may have millions of
/// keys, and a user thousands of ranges.
///
/// The check uses the leases and keys as they were when it started. Each slice may use a new gate, so that a
/// user who loses the right during the check is refused.
pub struct LeaseRights<'k, L> {
    right: Right,
    leases: L,
    /// Keys of the lease that is checked next; `None` once all leases are checked.
    keys: Option<&'k LeaseKeys>,
    /// Last key of that lease that was checked; `None` if none was checked yet.
    behind: Option<Bytes>,
}

impl<'k, L: Iterator<Item = &'k LeaseKeys>> LeaseRights<'k, L> {
    /// Creates a check. No key is checked yet.
    pub fn new(right: Right, leases: impl IntoIterator<IntoIter = L>) -> LeaseRights<'k, L> {
        let mut leases = leases.into_iter();
        let keys = leases.next();
        LeaseRights { right, leases, keys, behind: None }
    }

    /// Checks the next keys with this gate, using at most `work_max` units of work: one for each lease, and
    /// one for each search among the ranges of the user. Once all keys of all leases are checked, returns the
    /// number of unused units; before that, `None`.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Gate::read`]. As in etcd, there is no error for root at any auth
    /// revision, nor for any caller if the leases have no keys.
    pub fn step(&mut self, gate: &Gate, work_max: usize) -> Result<Option<usize>, Status> {
        let mut left = work_max;
        while let Some(keys) = self.keys {
            if left == 0 {
                return Ok(None);
            }
            left -= 1;
            self.behind = gate.some(keys, self.behind.as_ref(), &mut left, self.right)?;
            if self.behind.is_none() {
                self.keys = self.leases.next();
            }
        }
        Ok(Some(left))
    }
}

/// Result of searching the keys of a lease in a set.
enum Within {
    /// All remaining keys of the lease are in the set.
    All,
    /// The search stopped early, at this key. The keys of the lease before it are in the set.
    Through(Bytes),
    /// At least one key is not in the set.
    No,
}

/// Checks whether the keys of a lease that are after the key `behind` are in the set `allowed`. Makes one
/// search per span of the set, not one per key, but at most `left` + 1 searches. Subtracts the searches after
/// the first one from `left`.
fn some_within(keys: &LeaseKeys, behind: Option<&Bytes>, left: &mut usize, allowed: &KeyRanges) -> Within {
    let mut through = behind;
    loop {
        let Some((key, ())) = keys.after(through).next() else { return Within::All };
        match allowed.end_at(key) {
            None => return Within::No,
            Some(None) => return Within::All,
            // Spans do not touch, so the key at the end of a span is not in the set. If it is attached to the
            // lease, the right on it is missing.
            Some(Some(end)) if keys.get(end).is_some() => return Within::No,
            Some(Some(end)) if *left == 0 => return Within::Through(end.clone()),
            Some(Some(end)) => {
                *left -= 1;
                through = Some(end);
            }
        }
    }
}
