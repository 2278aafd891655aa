//! Applies entries that change users and roles. Checks, for every entry that is applied, that its user may do
//! what it requests.

use api::Status;
use api::etcdserverpb::InternalRaftRequest;
use numbers::{Index, LeaseId};
use prost::Message as _;

use super::{Auth, AuthChange, Caller, Gate};
use crate::machine::{Change, Machine, Outcome};
use crate::state_hash::{Effect, StateHash};

/// Returns true if only users with the role root may send the request.
fn is_for_root(request: &InternalRaftRequest) -> bool {
    request.auth_enable.is_some()
        || request.auth_disable.is_some()
        || request.auth_user_add.is_some()
        || request.auth_user_delete.is_some()
        || request.auth_user_change_password.is_some()
        || request.auth_user_grant_role.is_some()
        || request.auth_user_revoke_role.is_some()
        || request.auth_user_list.is_some()
        || request.auth_role_add.is_some()
        || request.auth_role_delete.is_some()
        || request.auth_role_grant_permission.is_some()
        || request.auth_role_revoke_permission.is_some()
        || request.auth_role_list.is_some()
}

/// Returns true if the request only reads users and roles. Members that run etcd also propose such reads as
/// entries.
fn is_question(request: &InternalRaftRequest) -> bool {
    request.auth_status.is_some()
        || request.auth_user_get.is_some()
        || request.auth_user_list.is_some()
        || request.auth_role_get.is_some()
        || request.auth_role_list.is_some()
}

/// Returns the names of the user and the role that a request changes.
fn subjects(request: &InternalRaftRequest) -> (Option<&str>, Option<&str>) {
    if let Some(user) = &request.auth_user_add {
        return (Some(&user.name), None);
    }
    if let Some(user) = &request.auth_user_delete {
        return (Some(&user.name), None);
    }
    if let Some(user) = &request.auth_user_change_password {
        return (Some(&user.name), None);
    }
    if let Some(grant) = &request.auth_user_grant_role {
        return (Some(&grant.user), None);
    }
    if let Some(revoke) = &request.auth_user_revoke_role {
        return (Some(&revoke.name), None);
    }
    if let Some(role) = &request.auth_role_add {
        return (None, Some(&role.name));
    }
    if let Some(role) = &request.auth_role_delete {
        return (None, Some(&role.role));
    }
    if let Some(grant) = &request.auth_role_grant_permission {
        return (None, Some(&grant.name));
    }
    match &request.auth_role_revoke_permission {
        Some(revoke) => (None, Some(&revoke.role)),
        None => (None, None),
    }
}

/// Adds to the state hash the user and the role that a request has changed.
fn mix(hash: &mut StateHash, auth: &Auth, request: &InternalRaftRequest) {
    hash.mix(Effect::AuthChanged, &[auth.revision(), u64::from(auth.is_enabled())]);
    let (user, role) = subjects(request);
    for name in user.into_iter().chain(role) {
        hash.mix_bytes(name.as_bytes());
    }
    if let Some(user) = user.and_then(|name| auth.user(name)) {
        hash.mix_bytes(&user.encode_to_vec());
    }
    if let Some(role) = role.and_then(|name| auth.role(name)) {
        hash.mix_bytes(&role.encode_to_vec());
    }
}

impl Machine {
    /// Checks that the user named in an entry may do what the entry requests, as of the current auth
    /// revision.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Gate`].
    pub(crate) fn allowed(&mut self, request: &InternalRaftRequest) -> Result<(), Status> {
        if !self.auth.is_enabled() || planted::is(planted::Bug::GateAtArrivalOnly) {
            return Ok(());
        }
        let caller = request.header.as_ref().map_or(Caller::default(), |header| Caller {
            user: &header.username,
            revision: header.auth_revision,
        });
        let gate = Gate::new(&self.auth, caller, &mut self.rights);
        if let Some(put) = &request.put {
            return gate.put(put, &self.leases);
        }
        if let Some(delete) = &request.delete_range {
            return gate.delete_range(delete);
        }
        if let Some(txn) = &request.txn {
            return gate.txn(txn, &self.leases);
        }
        if let Some(revoke) = &request.lease_revoke {
            let lease = self.leases.get(LeaseId(revoke.id));
            return lease.map_or(Ok(()), |lease| gate.write_all(lease.keys));
        }
        if is_for_root(request) { gate.admin() } else { Ok(()) }
    }

    /// Applies an entry about users and roles. Returns `None` if the entry is not about them.
    pub(crate) fn apply_auth(
        &mut self,
        index: Index,
        request: &InternalRaftRequest,
        change: &mut Option<Change>,
    ) -> Option<Result<Outcome, Status>> {
        let auth = &mut self.auth;
        let changed = if let Some(who) = &request.authenticate {
            // An authentication does not change the replicated state, so nothing is added to the state hash.
            let authenticated = auth.authenticated(&who.name, &who.simple_token, index);
            return Some(authenticated.map(|authenticated| {
                *change = Some(Change::Auth(Box::new(authenticated)));
                Outcome::Authenticated { index }
            }));
        } else if request.auth_enable.is_some() {
            auth.enable()
        } else if request.auth_disable.is_some() {
            Ok(auth.disable())
        } else if let Some(request) = &request.auth_user_add {
            auth.add_user(request).map(Some)
        } else if let Some(request) = &request.auth_user_delete {
            auth.delete_user(request).map(Some)
        } else if let Some(request) = &request.auth_user_change_password {
            auth.change_password(request).map(Some)
        } else if let Some(request) = &request.auth_user_grant_role {
            auth.grant_role(request)
        } else if let Some(request) = &request.auth_user_revoke_role {
            auth.revoke_role(request).map(Some)
        } else if let Some(request) = &request.auth_role_add {
            auth.add_role(request).map(Some)
        } else if let Some(request) = &request.auth_role_delete {
            auth.delete_role(request).map(Some)
        } else if let Some(request) = &request.auth_role_grant_permission {
            auth.grant_permission(request).map(Some)
        } else if let Some(request) = &request.auth_role_revoke_permission {
            auth.revoke_permission(request).map(Some)
        } else if is_question(request) {
            Ok(None)
        } else {
            return None;
        };
        Some(changed.map(|changed: Option<AuthChange>| {
            if let Some(changed) = changed {
                mix(&mut self.hash, &self.auth, request);
                *change = Some(Change::Auth(Box::new(changed)));
            }
            Outcome::Done
        }))
    }
}
