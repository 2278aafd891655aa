//! Reads parts of an etcd database for the commands that convert an etcd member or snapshot to a directory of
//! Mainstay.

use std::collections::{BTreeMap, HashSet};

use cli::Failure;
use interchange::Source;
use interchange::backend::{Backend, Membership};
use machine::GrantedLease;
use machine::auth::Auth;
use numbers::LeaseId;
use storage::etcd_database;
use storage::restoration::Filling;

use crate::notice::Notices;

/// Returns the users and roles in etcd's database, or none if `without` is true.
pub fn users<S: Source>(from: &Backend<S>, without: bool) -> Result<Auth, Failure> {
    if without {
        return Ok(Auth::default());
    }
    Ok(etcd_database::users(from.auth().map_err(Failure::error)?))
}

/// Returns an error if the database was written by a release of etcd that this version of Mainstay does not
/// support.
pub fn check_versions(storage: Option<&str>, membership: &Membership) -> Result<(), Failure> {
    etcd_database::check_versions(storage, membership).map_err(Failure::error)
}

/// Returns the leases in etcd's database, in the form that the state machine accepts.
pub fn leases<S: Source>(from: &Backend<S>) -> Result<Vec<GrantedLease>, Failure> {
    etcd_database::leases(from).map_err(Failure::error)
}

/// Live keys whose lease does not exist. etcd serves such keys without a lease, and logs an error at each
/// start.
#[derive(Debug, Default)]
pub struct WithoutLease(BTreeMap<Vec<u8>, LeaseId>);

/// Maximum number of keys named in warnings about missing leases.
const NAMED_KEYS_MAX: usize = 20;

impl WithoutLease {
    /// Logs warnings that these keys are imported without a lease.
    pub fn warn(&self, notices: &mut Notices) {
        for (key, lease) in self.0.iter().take(NAMED_KEYS_MAX) {
            let key = cli::go::quote(key);
            notices.warn(
                "the lease of a key does not exist; the key is kept without a lease",
                &[("key", key.into()), ("lease", format!("{lease:x}").into())],
            );
        }
        if self.0.len() > NAMED_KEYS_MAX {
            let more = self.0.len() - NAMED_KEYS_MAX;
            notices.warn("more keys have leases that do not exist", &[("keys", more.into())]);
        }
    }
}

/// Copies all versions of keys from etcd's database to `filling`. `leases` are the ids of the existing
/// leases. Calls `passed` with the number of bytes of keys and values copied so far, and stops if `passed`
/// returns an error. Returns the live keys whose lease does not exist.
pub fn take_history<S: Source>(
    from: &Backend<S>,
    leases: &HashSet<LeaseId>,
    filling: &mut Filling<'_>,
    passed: &mut dyn FnMut(u64) -> Result<(), Failure>,
) -> Result<WithoutLease, Failure> {
    let mut history = from.history().map_err(Failure::error)?;
    let mut bytes = 0;
    let mut without = WithoutLease::default();
    while let Some(change) = history.step().map_err(Failure::error)? {
        let head = &change.head;
        let version = etcd_database::version(&change).map_err(Failure::error)?;
        filling.push(&version).map_err(Failure::error)?;
        if version.lease != LeaseId::NONE && !leases.contains(&version.lease) {
            without.0.insert(head.key.to_vec(), version.lease);
        } else if !without.0.is_empty() {
            without.0.remove(head.key);
        }
        bytes += (head.key.len() + change.value.len()) as u64;
        passed(bytes)?;
    }
    Ok(without)
}
