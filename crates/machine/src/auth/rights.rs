//! Computes the rights of a user, which are the union of the permissions of all its roles, and caches them.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::authpb::{Permission, permission};

use super::key_ranges::KeyRanges;
use super::{Auth, ROOT};

/// Rights of one user at one auth revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    is_root: bool,
    read: KeyRanges,
    write: KeyRanges,
}

impl Rights {
    /// Returns true if the user has the role root and may do everything.
    pub fn is_root(&self) -> bool {
        self.is_root
    }

    /// Returns the keys that the user's roles permit it to read. Not valid for a user with the role root, who
    /// may read all keys: check [`Rights::is_root`] first.
    pub fn read(&self) -> &KeyRanges {
        &self.read
    }

    /// Returns the keys that the user's roles permit it to write and delete. Not valid for a user with the
    /// role root, who may write and delete all keys: check [`Rights::is_root`] first.
    pub fn write(&self) -> &KeyRanges {
        &self.write
    }
}

impl Auth {
    /// Returns the rights of this user; `None` if no user has this name.
    pub fn rights(&self, user: &str) -> Option<Rights> {
        let roles = &self.user(user)?.roles;
        let granted =
            || roles.iter().filter_map(|role| self.role(role)).flat_map(|role| &role.key_permission);
        let with = |kind: permission::Type| {
            let allows = move |permission: &&Permission| {
                let granted = permission.perm_type;
                granted == kind as i32 || granted == permission::Type::Readwrite as i32
            };
            KeyRanges::union(granted().filter(allows).map(|p| (&p.key, &p.range_end)))
        };
        Some(Rights {
            is_root: roles.iter().any(|role| role == ROOT),
            read: with(permission::Type::Read),
            write: with(permission::Type::Write),
        })
    }
}

/// Maximum number of users in the cache. If it is exceeded, the cache is cleared.
const USERS_MAX: usize = 4096;

/// Cache of the rights of users at one auth revision. Each thread has its own cache.
#[derive(Clone, Debug, Default)]
pub struct RightsCache {
    /// Auth revision of all cached rights.
    revision: u64,
    by_user: BTreeMap<Box<str>, Arc<Rights>>,
    /// Rights for each set of roles, because many users have the same roles.
    by_roles: BTreeMap<Box<[String]>, Arc<Rights>>,
    /// Measure of the work done; see [`RightsCache::joined`].
    joined: usize,
}

impl RightsCache {
    /// Returns the number of permissions that were merged since the cache was created, plus 1 for each set of
    /// roles. The number measures the work done.
    pub fn joined(&self) -> usize {
        self.joined
    }

    /// Returns the rights of this user; `None` if no user has this name.
    pub fn rights(&mut self, auth: &Auth, user: &str) -> Option<Arc<Rights>> {
        let stale = self.revision != auth.revision() && !planted::is(planted::Bug::RightsCacheStale);
        if stale || self.by_user.len() > USERS_MAX {
            self.by_user.clear();
            self.by_roles.clear();
            self.revision = auth.revision();
        }
        if let Some(known) = self.by_user.get(user) {
            return Some(Arc::clone(known));
        }
        let roles = &auth.user(user)?.roles;
        let rights = match self.by_roles.get(roles.as_slice()) {
            Some(known) => Arc::clone(known),
            None => {
                let granted = roles.iter().filter_map(|role| auth.role(role));
                self.joined += 1 + granted.map(|role| role.key_permission.len()).sum::<usize>();
                let rights = Arc::new(auth.rights(user)?);
                self.by_roles.insert(roles.as_slice().into(), Arc::clone(&rights));
                rights
            }
        };
        self.by_user.insert(user.into(), Arc::clone(&rights));
        Some(rights)
    }
}
