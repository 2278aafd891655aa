//! What the commands share that make a state of Mainstay's of one of etcd's.

use std::collections::{BTreeMap, HashSet};

use cli::Failure;
use interchange::Source;
use interchange::backend::{Backend, Membership};
use machine::GrantedLease;
use machine::auth::Auth;
use machine::snapshot::SnapshotVersion;
use numbers::{LeaseId, Revision, Seconds};
use storage::etcd_database;
use storage::restoration::Filling;

use crate::notice::Notices;

/// Users and roles of a state; none if they are left out.
pub fn users<S: Source>(from: &Backend<S>, without: bool) -> Result<Auth, Failure> {
    if without {
        return Ok(Auth::default());
    }
    Ok(etcd_database::users(from.auth().map_err(Failure::error)?))
}

/// Refuses a state of a release that this version does not know.
pub fn check_versions(storage: Option<&str>, membership: &Membership) -> Result<(), Failure> {
    let known = minor(api::API_VERSION);
    for version in [storage.unwrap_or_default(), membership.cluster_version.as_str()] {
        if !version.is_empty() && minor(version).is_none_or(|version| Some(version) > known) {
            return Err(Failure::error(format!(
                "the state is of version {version}, and this program knows up to {}",
                api::CLUSTER_VERSION
            )));
        }
    }
    Ok(())
}

fn minor(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// The leases, as a machine takes them.
pub fn leases<S: Source>(from: &Backend<S>) -> Result<Vec<GrantedLease>, Failure> {
    let mut leases = Vec::new();
    let mut walk = from.leases().map_err(Failure::error)?;
    while let Some(lease) = walk.step().map_err(Failure::error)? {
        // etcd takes a rest that is longer than the lease for the lease's own time.
        let remaining = Seconds(lease.remaining_ttl.clamp(0, lease.ttl.max(0)));
        leases.push(GrantedLease { id: LeaseId(lease.id), ttl: Seconds(lease.ttl), remaining });
    }
    Ok(leases)
}

/// Live keys whose lease does not exist; etcd serves them without a lease, and logs an error at each start.
#[derive(Debug, Default)]
pub struct WithoutLease(BTreeMap<Vec<u8>, LeaseId>);

/// Keys named at most, of those whose lease does not exist.
const NAMED_KEYS_MAX: usize = 20;

impl WithoutLease {
    /// Names the keys, and says what becomes of them.
    pub fn warn(&self, notices: &mut Notices) {
        for (key, lease) in self.0.iter().take(NAMED_KEYS_MAX) {
            let key = cli::go::quote(key);
            notices.warn(
                "the lease of a key does not exist: the key stays, without a lease",
                &[("key", key.into()), ("lease", format!("{lease:x}").into())],
            );
        }
        if self.0.len() > NAMED_KEYS_MAX {
            let more = self.0.len() - NAMED_KEYS_MAX;
            notices.warn("more keys have leases that do not exist", &[("keys", more.into())]);
        }
    }
}

/// Takes the history over; `leases` are the ids of those that exist. Tells of the bytes of keys and values passed, and
/// ends with the error that it is answered.
/// Returns the live keys whose lease does not exist.
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
        let main = head.revision.main;
        if head.is_bump() {
            filling.raise(main);
            continue;
        }
        let sub = u32::try_from(head.revision.sub)
            .map_err(|_| Failure::error(format!("revision {main} has more than 2^32 changes")))?;
        let version = SnapshotVersion {
            key: head.key,
            main,
            sub,
            create_revision: if head.is_tombstone { Revision(0) } else { head.create_revision },
            version: if head.is_tombstone { 0 } else { head.version },
            lease: if head.is_tombstone { LeaseId::NONE } else { head.lease },
            value: change.value,
        };
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
