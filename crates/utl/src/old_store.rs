//! Moves the keys of etcd's v2 store (API version 2) into the key space of version 3, as the last step of an
//! import.
//!
//! Each key becomes a log entry: a transaction that puts the key, unless version 3 already has a key with
//! this name. The entries are in the order in which the keys were last changed. Because they are ordinary log
//! entries, a member that joins later receives them too. [`Migration::check`] makes the import fail if a key
//! existed in version 3.

use std::collections::{BTreeSet, HashSet};

use api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{
    Compare, InternalRaftRequest, LeaseGrantRequest, PutRequest, RequestHeader, RequestOp, TxnRequest,
};
use cli::{Failure, Flag, Matches};
use interchange::{V2Node, V2Tree};
use machine::Machine;
use numbers::{LeaseId, Revision};
use serde_json::Value;

use crate::notice::Notices;

pub(crate) const MIGRATE: Flag<bool> = Flag::bool(
    "migrate-v2",
    "Move keys of the old store (API version 2) into the key space of version 3: those below /v2/keys, by their paths",
);
pub(crate) const PREFIX: Flag<String> =
    Flag::text("v2-prefix", "", "Prefix for the names of keys of the old store (only with --migrate-v2)");
pub(crate) const TTL: Flag<String> = Flag::text(
    "v2-ttl",
    "lease",
    "Treatment of keys that expire: attach a lease (lease), keep them for ever (drop), or leave them out (skip)",
);
pub(crate) const DIRS: Flag<bool> = Flag::bool(
    "v2-dirs",
    "Keep empty directories as keys with an empty value and a name that ends in a slash (only with --migrate-v2)",
);

/// Maximum number of keys and directories named in a warning.
const NAMED_MAX: usize = 20;
/// Maximum time to live of a lease in seconds, as granted by etcd.
const TTL_SECONDS_MAX: i64 = 9_000_000_000;
const NANOS_PER_SECOND: i64 = 1_000_000_000;
/// User in whose name the entries are applied if authentication is enabled: `root`, who has all permissions.
/// [`AUTH_REVISION`] is the auth revision in the entries. It is the maximum, so that no entry is refused
/// because its user was authenticated before the last change of users.
const USER: &str = "root";
const AUTH_REVISION: u64 = u64::MAX;

/// Treatment of keys that have an expiry time: attach a lease, drop the expiry time, or leave the key out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ttl {
    Lease,
    Drop,
    Skip,
}

/// Values of the flags that control how the keys of the v2 store are moved.
#[derive(Debug)]
pub(crate) struct Options {
    prefix: String,
    ttl: Ttl,
    dirs: bool,
}

impl Options {
    /// Returns the options of a migration; `None` if the flags do not request one.
    ///
    /// # Errors
    ///
    /// Returns an error if a value is invalid, or an option of a migration is given although no migration is
    /// requested.
    pub fn of(given: &Matches) -> Result<Option<Options>, Failure> {
        if !given.get(MIGRATE) {
            for flag in [PREFIX.row(), TTL.row(), DIRS.row()] {
                if given.is_given(flag) {
                    return Err(Failure::bad_args(format!("--{} requires --migrate-v2", flag.name)));
                }
            }
            return Ok(None);
        }
        let ttl = match given.get(TTL) {
            "lease" => Ttl::Lease,
            "drop" => Ttl::Drop,
            "skip" => Ttl::Skip,
            other => {
                let other = cli::go::quote(other);
                return Err(Failure::bad_args(format!("--v2-ttl is lease, drop or skip, not {other}")));
            }
        };
        Ok(Some(Options { prefix: given.get(PREFIX).to_owned(), ttl, dirs: given.get(DIRS) }))
    }
}

/// The keys and leases that will be moved.
pub(crate) struct Migration {
    /// Keys in the order of their last changes.
    keys: Vec<Key>,
    /// Leases in the order of their expiry.
    leases: Vec<Lease>,
    /// Keys and directories that have expired and are left out. etcd would remove them soon after its start.
    expired: Vec<String>,
    /// Number of keys that are left out because they have an expiry time.
    skipped: usize,
    /// Empty directories that are left out.
    directories: Vec<String>,
    /// Number of keys that are left out because they contain the users, roles and permissions of API version
    /// 2.
    others: usize,
    /// Revision of the v3 key space before any key is moved; set by [`Migration::begin`].
    before: Revision,
}

/// A key as it will be stored in version 3.
struct Key {
    name: Vec<u8>,
    value: Vec<u8>,
    expires_unix_nanos: Option<i64>,
}

/// A lease for all moved keys that expire at the same time.
struct Lease {
    expires_unix_nanos: i64,
    ttl_seconds: i64,
    /// Id of the lease; set by [`Migration::begin`].
    id: LeaseId,
}

impl Migration {
    /// Plans the migration of a v2 store. `now` is the current time in nanoseconds since 1970, from which the
    /// remaining times of keys are computed.
    pub fn plan(tree: &V2Tree, options: &Options, now: i64) -> Migration {
        let mut plan = Migration {
            keys: Vec::new(),
            leases: Vec::new(),
            expired: Vec::new(),
            skipped: 0,
            directories: Vec::new(),
            others: tree.other_keys(),
            before: Revision(0),
        };
        let mut ends = BTreeSet::new();
        for V2Node { path, value, expires_unix_nanos, .. } in tree.user_nodes() {
            if expires_unix_nanos.is_some_and(|at| at <= now) {
                plan.expired.push(path);
                continue;
            }
            let name = match &value {
                Some(_) => format!("{}{path}", options.prefix),
                None if options.dirs => format!("{}{path}/", options.prefix),
                None => {
                    plan.directories.push(path);
                    continue;
                }
            };
            let expires_unix_nanos = match (expires_unix_nanos, options.ttl) {
                (Some(_), Ttl::Skip) => {
                    plan.skipped += 1;
                    continue;
                }
                (_, Ttl::Drop) => None,
                (at, _) => at,
            };
            ends.extend(expires_unix_nanos);
            let value = value.unwrap_or_default().into_bytes();
            plan.keys.push(Key { name: name.into_bytes(), value, expires_unix_nanos });
        }
        plan.leases = Vec::from_iter(ends.into_iter().map(|expires_unix_nanos| {
            let nanos = expires_unix_nanos.saturating_sub(now);
            // The seconds are rounded up, so that no key expires too early.
            let seconds = nanos / NANOS_PER_SECOND + i64::from(nanos % NANOS_PER_SECOND > 0);
            let ttl_seconds = seconds.min(TTL_SECONDS_MAX);
            Lease { expires_unix_nanos, ttl_seconds, id: LeaseId::NONE }
        }));
        plan
    }

    /// Returns the number of requests that the migration needs.
    pub fn requests(&self) -> u64 {
        (self.leases.len() + self.keys.len()) as u64
    }

    /// Prepares the migration: records `before`, the revision of the v3 key space before any key is moved,
    /// and gives each lease an id that is not in `taken`.
    pub fn begin(&mut self, before: Revision, taken: &HashSet<LeaseId>) {
        self.before = before;
        let mut used = HashSet::new();
        for lease in &mut self.leases {
            let mut id = LeaseId(lease.expires_unix_nanos.max(1));
            while taken.contains(&id) || !used.insert(id) {
                id = LeaseId(id.0.checked_add(1).unwrap_or(1));
            }
            lease.id = id;
        }
    }

    /// Returns the request with this number, counted from 0; `None` after the last one. The requests grant
    /// the leases first and put the keys after that.
    pub fn request(&self, number: u64) -> Option<InternalRaftRequest> {
        let number = usize::try_from(number).ok()?;
        let header = RequestHeader {
            username: USER.to_owned(),
            auth_revision: AUTH_REVISION,
            ..RequestHeader::default()
        };
        let request = InternalRaftRequest { header: Some(header), ..InternalRaftRequest::default() };
        if let Some(lease) = self.leases.get(number) {
            let grant = LeaseGrantRequest { id: lease.id.0, ttl: lease.ttl_seconds };
            return Some(InternalRaftRequest { lease_grant: Some(grant), ..request });
        }
        let key = self.keys.get(number - self.leases.len())?;
        let is_new = Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Create.into(),
            key: key.name.clone().into(),
            target_union: Some(TargetUnion::CreateRevision(0)),
            ..Compare::default()
        };
        let put = PutRequest {
            key: key.name.clone().into(),
            value: key.value.clone().into(),
            lease: self.lease_of(key).0,
            ..PutRequest::default()
        };
        let txn = TxnRequest {
            compare: vec![is_new],
            success: vec![RequestOp { request: Some(Request::RequestPut(put)) }],
            ..TxnRequest::default()
        };
        Some(InternalRaftRequest { txn: Some(txn), ..request })
    }

    fn lease_of(&self, key: &Key) -> LeaseId {
        let found = key.expires_unix_nanos.and_then(|at| {
            let place = self.leases.binary_search_by_key(&at, |lease| lease.expires_unix_nanos).ok()?;
            self.leases.get(place)
        });
        found.map_or(LeaseId::NONE, |lease| lease.id)
    }

    /// Checks that the state after the migration contains all moved keys with their values and leases.
    ///
    /// # Errors
    ///
    /// Returns an error that names the keys that are missing, or that existed before the migration.
    pub fn check(&self, machine: &mut Machine) -> Result<(), Failure> {
        let view = machine.store.publish();
        let snapshot = view.snapshot();
        let (mut taken, mut refused) = (Vec::new(), Vec::new());
        for key in &self.keys {
            let found = snapshot
                .get(&key.name, Revision::CURRENT)
                .map_err(|error| Failure::error(format!("{error:?}")))?;
            let Some(version) = found else {
                refused.push(key);
                continue;
            };
            // A key that existed before the migration does not count as moved, even if the values are equal.
            let is_it = version.main() > self.before
                && version.value_len() as usize == key.value.len()
                && version.value_crc() == crc32c::crc32c(&key.value)
                && version.lease() == self.lease_of(key);
            if !is_it {
                taken.push(key);
            }
        }
        for lease in &self.leases {
            if machine.leases.get(lease.id).is_none() {
                return Err(Failure::error(format!("lease {:x} was not granted", lease.id.0)));
            }
        }
        if !refused.is_empty() {
            return Err(Failure::error(format!(
                "{} keys of the old store (API version 2) were refused when they were written, and are missing: {}",
                refused.len(),
                named(&refused)
            )));
        }
        if !taken.is_empty() {
            return Err(Failure::error(format!(
                "{} keys of the old store (API version 2) have the same names as keys of version 3: {}; \
                 choose other names for them with --v2-prefix",
                taken.len(),
                named(&taken)
            )));
        }
        Ok(())
    }

    /// Reports what was moved and what was left out.
    pub fn report(&self, notices: &mut Notices) {
        let named = |notices: &mut Notices, what: &str, paths: &[String]| {
            if !paths.is_empty() {
                let shown = paths.iter().take(NAMED_MAX).map(|path| Value::from(path.as_str()));
                notices
                    .warn(what, &[("count", paths.len().into()), ("paths", Value::Array(shown.collect()))]);
            }
        };
        named(notices, "left out expired keys of the old store", &self.expired);
        named(
            notices,
            "left out empty directories of the old store; --v2-dirs keeps them",
            &self.directories,
        );
        if self.skipped > 0 {
            notices.warn("left out keys of the old store that expire", &[("keys", self.skipped.into())]);
        }
        if self.others > 0 {
            notices.warn(
                "left out users, roles and permissions of API version 2; create those of version 3 with \
                 etcdctl user, role and auth enable",
                &[("keys", self.others.into())],
            );
        }
        notices.info(
            "moved keys of the old store",
            &[("keys", self.keys.len().into()), ("leases", self.leases.len().into())],
        );
    }
}

/// Returns the names of the first [`NAMED_MAX`] keys, separated by commas, for an error message.
fn named(keys: &[&Key]) -> String {
    let names: Vec<String> = keys.iter().take(NAMED_MAX).map(|key| cli::go::quote(&key.name)).collect();
    let more = if keys.len() > NAMED_MAX { ", …" } else { "" };
    format!("{}{more}", names.join(", "))
}
