//! Reads etcd's state from a database.

use api::etcdserverpb::AlarmMember;
use numbers::Revision;
use prost::Message;

use crate::backend::change::StoredChangeId;
use crate::backend::content::{Auth, ConfState, ContentError, Member, Membership, Meta};
use crate::backend::history::{History, Leases};
use crate::backend::name;
use crate::bolt::{Bolt, Cursor};
use crate::error::Error;
use crate::source::Source;

/// etcd's state in a bbolt database, which is read on demand.
pub struct Backend<S> {
    bolt: Bolt<S>,
}

impl<S: Source> Backend<S> {
    /// Opens etcd's state in a database.
    ///
    /// # Errors
    ///
    /// Returns an error if the database cannot be read, or is not etcd's because it has no bucket `key`.
    pub fn new(bolt: Bolt<S>) -> Result<Backend<S>, Error> {
        if bolt.bucket(name::KEY)?.is_none() {
            return Err(Error::damaged(0, "the database is not etcd's: it has no bucket `key`"));
        }
        Ok(Backend { bolt })
    }

    /// Returns the database that is read.
    pub fn bolt(&self) -> &Bolt<S> {
        &self.bolt
    }

    /// Returns an iterator over all changes.
    ///
    /// # Errors
    ///
    /// Returns an error if the pages that lead to the changes are damaged.
    pub fn history(&self) -> Result<History<'_, S>, Error> {
        Ok(History { cursor: self.walk(name::KEY)? })
    }

    /// Returns an iterator over all leases.
    ///
    /// # Errors
    ///
    /// Returns an error if the pages that lead to the leases are damaged.
    pub fn leases(&self) -> Result<Leases<'_, S>, Error> {
        Ok(Leases { cursor: self.walk(name::LEASE)? })
    }

    /// Returns the content of the bucket `meta`.
    ///
    /// # Errors
    ///
    /// Returns an error if the bucket is damaged.
    pub fn meta(&self) -> Result<Meta, Error> {
        let mut meta = Meta::default();
        self.each(name::META, |key, value| {
            match key {
                b"consistent_index" => meta.consistent_index = number(value)?,
                b"term" => meta.term = Some(number(value)?),
                b"confState" => meta.conf_state = Some(ConfState::from_json(value)?),
                b"storageVersion" => meta.storage_version = Some(text(value)?),
                b"scheduledCompactRev" => meta.scheduled_compact_revision = Some(revision(value)?),
                b"finishedCompactRev" => meta.finished_compact_revision = Some(revision(value)?),
                _ => {}
            }
            Ok(())
        })?;
        Ok(meta)
    }

    /// Returns the active alarms.
    ///
    /// # Errors
    ///
    /// Returns an error if the alarms cannot be read.
    pub fn alarms(&self) -> Result<Vec<AlarmMember>, Error> {
        let mut alarms = Vec::new();
        self.each(name::ALARM, |key, _| {
            alarms.push(AlarmMember::decode(key).map_err(|_| "an invalid alarm")?);
            Ok(())
        })?;
        Ok(alarms)
    }

    /// Returns the users and roles.
    ///
    /// # Errors
    ///
    /// Returns an error if users or roles cannot be read.
    pub fn auth(&self) -> Result<Auth, Error> {
        let mut auth = Auth::default();
        self.each(name::AUTH, |key, value| {
            match key {
                b"authEnabled" => auth.enabled = value == [1],
                b"authRevision" => auth.revision = auth_revision(number(value)?)?,
                _ => {}
            }
            Ok(())
        })?;
        self.each(name::AUTH_USERS, |key, value| {
            let user = api::authpb::User::decode(value).map_err(|_| "an invalid user")?;
            if user.name != key {
                return Err("a user under another name".into());
            }
            auth.users.push(user);
            Ok(())
        })?;
        self.each(name::AUTH_ROLES, |key, value| {
            let role = api::authpb::Role::decode(value).map_err(|_| "an invalid role")?;
            if role.name != key {
                return Err("a role under another name".into());
            }
            auth.roles.push(role);
            Ok(())
        })?;
        Ok(auth)
    }

    /// Returns the members, with the cluster's version and downgrade state.
    ///
    /// # Errors
    ///
    /// Returns an error if the membership cannot be read.
    pub fn membership(&self) -> Result<Membership, Error> {
        let mut membership = Membership::default();
        self.each(name::MEMBERS, |key, value| {
            let member = Member::from_json(value)?;
            if member.id != hex_id(key)? {
                return Err("a member under another id".into());
            }
            membership.members.push(member);
            Ok(())
        })?;
        self.each(name::MEMBERS_REMOVED, |key, _| {
            membership.removed.insert(hex_id(key)?);
            Ok(())
        })?;
        self.each(name::CLUSTER, |key, value| {
            match key {
                b"clusterVersion" => membership.cluster_version = text(value)?,
                b"downgrade" => membership.downgrade_target = downgrade_target(value)?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(membership)
    }

    fn walk(&self, name: &[u8]) -> Result<Option<Cursor<'_, S>>, Error> {
        Ok(self.bolt.bucket(name)?.map(|bucket| self.bolt.walk(&bucket)))
    }

    /// Calls `take` for each pair of a bucket. Does nothing if the bucket does not exist. An error of `take`
    /// is returned with the page and offset of the pair.
    fn each(
        &self,
        name: &[u8],
        mut take: impl FnMut(&[u8], &[u8]) -> Result<(), ContentError>,
    ) -> Result<(), Error> {
        let Some(mut cursor) = self.walk(name)? else { return Ok(()) };
        while let Some(item) = cursor.step()? {
            let taken = match item.bucket {
                None => take(item.key, item.value),
                Some(_) => Err("a bucket where there should be none".into()),
            };
            taken.map_err(|what| {
                let what = format!("in the bucket `{}`: {what}", String::from_utf8_lossy(name));
                Error::page(item.page, item.offset, what)
            })?;
        }
        Ok(())
    }
}

/// Refuses an auth revision above the largest `i64`. Such a counter could reach its maximum and wrap around,
/// and etcd would then accept old tokens again.
fn auth_revision(number: u64) -> Result<u64, ContentError> {
    i64::try_from(number).map_err(|_| "an auth revision out of range")?;
    Ok(number)
}

fn number(value: &[u8]) -> Result<u64, ContentError> {
    let bytes = value.try_into().map_err(|_| "a number that does not have 8 bytes")?;
    Ok(u64::from_be_bytes(bytes))
}

fn text(value: &[u8]) -> Result<String, ContentError> {
    String::from_utf8(value.to_vec()).map_err(|_| "an invalid text".into())
}

fn revision(value: &[u8]) -> Result<Revision, ContentError> {
    let revision = StoredChangeId::decode(value).ok_or("an invalid revision")?;
    Ok(revision.main)
}

fn hex_id(key: &[u8]) -> Result<u64, ContentError> {
    let text = std::str::from_utf8(key).map_err(|_| "an invalid id")?;
    u64::from_str_radix(text, 16).map_err(|_| "an invalid id".into())
}

fn downgrade_target(value: &[u8]) -> Result<Option<String>, ContentError> {
    let value: serde_json::Value = serde_json::from_slice(value).map_err(ContentError::Json)?;
    let enabled = value.get("enabled").and_then(serde_json::Value::as_bool).unwrap_or(false);
    let target = value.get("target-version").and_then(serde_json::Value::as_str).unwrap_or_default();
    Ok(enabled.then(|| target.to_owned()))
}
