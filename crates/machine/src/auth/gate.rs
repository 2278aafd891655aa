//! Whether a request is allowed: asked where it arrives, and again where it is applied.

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

/// The keys that a lease is tied to.
type LeaseKeys = SharedMap<Bytes, ()>;

/// Who asks, and as of which auth revision that was established. A request without a user has the default one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caller<'a> {
    /// The name of the user; empty for none.
    pub user: &'a str,
    /// The auth revision at which the token was issued, or the certificate was looked at; 0 without a user.
    pub revision: u64,
}

/// What is known of a caller.
enum Who {
    /// Authentication is not required: everything is allowed.
    Anyone,
    /// There is no such user, or none was named.
    Nobody { is_named: bool },
    /// A user.
    Known(Arc<Rights>),
}

/// The rights of one caller, to be asked for one request. Its errors are etcd's.
pub struct Gate {
    who: Who,
    /// Why no key may be touched, whatever the rights.
    stale: Option<Status>,
    /// The caller is no longer taken for root.
    is_outdated: bool,
    /// Number of times that the keys of a lease were gone through, for tests.
    #[cfg(test)]
    pub(super) leases_asked: std::cell::Cell<usize>,
}

impl Gate {
    /// A gate for this caller.
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

    /// The gate of a caller whose token is from before the password of its user was changed: what only root may do is refused, as
    /// keys are. In etcd such a token may change the new password (COMPAT-443). It is for requests where they arrive: where they
    /// are applied all members have to say the same, etcd's too.
    pub fn outdated(mut self) -> Gate {
        self.is_outdated = !self.is_open();
        self
    }

    /// Whether everything is allowed to anyone, so that there is nothing to ask.
    pub fn is_open(&self) -> bool {
        matches!(self.who, Who::Anyone)
    }

    /// Whether the caller may do what is not about keys: users, roles, members, maintenance.
    ///
    /// # Errors
    ///
    /// When no user is named, there is none of this name, it has not the role root, or its token is outdated.
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

    /// Asks for keys. `None` is when all are allowed.
    fn limits(&self) -> Result<Option<&Rights>, Status> {
        match (&self.who, &self.stale) {
            (Who::Anyone, _) => Ok(None),
            (_, Some(stale)) => Err(stale.clone()),
            (Who::Nobody { .. }, None) => Err(error::PERMISSION_DENIED),
            (Who::Known(rights), None) => Ok((!rights.is_root()).then_some(rights)),
        }
    }

    /// Whether these keys may be read, given as a request has them: an empty range end is one key, a zero byte all behind.
    ///
    /// # Errors
    ///
    /// When no user is named, it was established at an older auth revision, or it may not.
    pub fn read(&self, key: &[u8], range_end: &[u8]) -> Result<(), Status> {
        match self.limits()? {
            Some(rights) if !rights.read().covers(key, range_end) => Err(error::PERMISSION_DENIED),
            _ => Ok(()),
        }
    }

    /// Whether these keys may be written or deleted.
    ///
    /// # Errors
    ///
    /// As [`Gate::read`].
    pub fn write(&self, key: &[u8], range_end: &[u8]) -> Result<(), Status> {
        match self.limits()? {
            Some(rights) if !rights.write().covers(key, range_end) => Err(error::PERMISSION_DENIED),
            _ => Ok(()),
        }
    }

    /// Whether a put is allowed: of its key, with its lease, and the reading of what was there before. `leases` are asked
    /// which keys a lease is tied to.
    ///
    /// # Errors
    ///
    /// As [`Gate::read`].
    pub fn put(&self, put: &PutRequest, leases: &Leases) -> Result<(), Status> {
        self.put_with(put, leases, &mut BTreeSet::new())
    }

    /// As [`Gate::put`]; `allowed` are leases whose keys were asked for before.
    fn put_with(
        &self,
        put: &PutRequest,
        leases: &Leases,
        allowed: &mut BTreeSet<LeaseId>,
    ) -> Result<(), Status> {
        self.write(&put.key, &[])?;
        // Who cannot revoke a lease must not tie keys to it.
        let id = LeaseId(put.lease);
        if id.is_some()
            && !allowed.contains(&id)
            && let Some(lease) = leases.get(id)
        {
            self.write_all(&lease.keys)?;
            allowed.insert(id);
        }
        if put.prev_kv { self.read(&put.key, &[]) } else { Ok(()) }
    }

    /// Whether a deletion is allowed, and the reading of what was there before.
    ///
    /// # Errors
    ///
    /// As [`Gate::read`].
    pub fn delete_range(&self, delete: &DeleteRangeRequest) -> Result<(), Status> {
        self.write(&delete.key, &delete.range_end)?;
        if delete.prev_kv { self.read(&delete.key, &delete.range_end) } else { Ok(()) }
    }

    /// Whether a transaction is allowed: all it compares, and all operations of both branches, nested ones too. The keys of
    /// a lease are asked for once, however many of its puts name it.
    ///
    /// # Errors
    ///
    /// As [`Gate::read`].
    pub fn txn(&self, txn: &TxnRequest, leases: &Leases) -> Result<(), Status> {
        if self.is_open() {
            return Ok(());
        }
        // Nested transactions are kept for later instead of being called: how deep they go is the client's to say.
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

    /// Whether all of these keys may be written: a lease that is tied to them may then be revoked, renewed and tied to more.
    /// Root may whatever the revision, and anyone may if there are no keys, as in etcd.
    ///
    /// # Errors
    ///
    /// As [`Gate::read`].
    pub fn write_all(&self, keys: &LeaseKeys) -> Result<(), Status> {
        self.all(keys, Rights::write)
    }

    /// Whether all of these keys may be read: a lease may then be told that is tied to them.
    ///
    /// # Errors
    ///
    /// As [`Gate::read`].
    pub fn read_all(&self, keys: &LeaseKeys) -> Result<(), Status> {
        self.all(keys, Rights::read)
    }

    /// Asks for a right on the keys of a lease behind `behind`; takes a unit of `left` for each search but the first, which the
    /// caller has taken. Returns where it goes on; `None` if that was all.
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
    /// To read them.
    Read,
    /// To write and delete them.
    Write,
}

/// Asks for a right on all keys of some leases, slice by slice: a lease may have millions of keys, and a user thousands of ranges.
///
/// The keys and leases stay as they were given. The gate may be another one for each slice, so that a user who loses the right
/// meanwhile is refused.
pub struct LeaseRights<'k, L> {
    right: Right,
    leases: L,
    /// The lease that is asked for next.
    keys: Option<&'k LeaseKeys>,
    /// The last key of this lease that was asked for.
    behind: Option<Bytes>,
}

impl<'k, L: Iterator<Item = &'k LeaseKeys>> LeaseRights<'k, L> {
    /// Nothing is asked for yet.
    pub fn new(right: Right, leases: impl IntoIterator<IntoIter = L>) -> LeaseRights<'k, L> {
        let mut leases = leases.into_iter();
        let keys = leases.next();
        LeaseRights { right, leases, keys, behind: None }
    }

    /// Asks this gate for the next keys, with at most `work_max` units of work: one for each lease, and one for each search among
    /// the ranges of the user. Returns the units that were not needed, once all keys of all leases were asked for, and `None` before.
    ///
    /// # Errors
    ///
    /// As [`Gate::read`]. Root may whatever the revision, and anyone may if there are no keys, as in etcd.
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

/// Result of looking for keys of a lease in a set.
enum Within {
    /// All that were looked for are in it.
    All,
    /// So are those up to this key, behind which the others were not looked for.
    Through(Bytes),
    /// One is not.
    No,
}

/// Looks for the keys of a lease behind `behind` in this set. Takes a search for each span of the set at most, not one for each key,
/// and no more than one and `left`, from which it takes what it needs.
fn some_within(keys: &LeaseKeys, behind: Option<&Bytes>, left: &mut usize, allowed: &KeyRanges) -> Within {
    let mut through = behind;
    loop {
        let Some((key, ())) = keys.after(through).next() else { return Within::All };
        match allowed.end_at(key) {
            None => return Within::No,
            Some(None) => return Within::All,
            // Spans do not touch, so the end of one is in none.
            Some(Some(end)) if keys.get(end).is_some() => return Within::No,
            Some(Some(end)) if *left == 0 => return Within::Through(end.clone()),
            Some(Some(end)) => {
                *left -= 1;
                through = Some(end);
            }
        }
    }
}
