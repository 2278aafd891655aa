//! What one user may do, all roles together.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::authpb::{Permission, permission};

use super::key_ranges::KeyRanges;
use super::{Auth, ROOT};

/// What one user may do as of one auth revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    is_root: bool,
    read: KeyRanges,
    write: KeyRanges,
}

impl Rights {
    /// Whether everything is allowed.
    pub fn is_root(&self) -> bool {
        self.is_root
    }

    /// Which keys may be read.
    pub fn read(&self) -> &KeyRanges {
        &self.read
    }

    /// Which keys may be written and deleted.
    pub fn write(&self) -> &KeyRanges {
        &self.write
    }
}

impl Auth {
    /// What this user may do; `None` if there is none of this name.
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

/// Users whose rights are remembered; more are worked out again.
const USERS_MAX: usize = 4096;

/// Rights worked out before, of one auth revision. Each thread that asks has its own.
#[derive(Clone, Debug, Default)]
pub struct RightsCache {
    /// Of which auth revision all of it is.
    revision: u64,
    by_user: BTreeMap<Box<str>, Arc<Rights>>,
    /// The same by the roles that give them: users often have the same.
    by_roles: BTreeMap<Box<[String]>, Arc<Rights>>,
    /// Permissions that were joined to rights since the cache was made.
    joined: usize,
}

impl RightsCache {
    /// Returns how many permissions were joined to rights since the cache was made, and 1 more for each set of roles: the
    /// work that asking has made.
    pub fn joined(&self) -> usize {
        self.joined
    }

    /// What this user may do; `None` if there is none of this name.
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
