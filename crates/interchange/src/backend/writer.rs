//! Writes etcd's state to a database.

use std::io::Write;

use api::etcdserverpb::AlarmMember;
use numbers::Revision;
use prost::Message as _;

use crate::backend::change::{Change, ChangeHead, StoredChangeId};
use crate::backend::content::{Auth, Membership, Meta, Release};
use crate::backend::name;
use crate::bolt::{Layout, Plan, Writer};
use crate::error::WriteError;

/// Computes the size and layout of a database with etcd's state. The first of two passes; see [`Layout`].
///
/// The methods may be called in any order, but in the same order in both passes, and each at most once.
/// Exceptions are [`BackendLayout::user`], [`BackendLayout::role`], [`BackendLayout::lease`] and
/// [`BackendLayout::change`]. Each of them may be called many times, but without calls of other methods in
/// between. [`BackendLayout::auth`] replaces the calls of `auth_settings`, `user` and `role`.
pub struct BackendLayout {
    state: State<Layout>,
}

/// Writes etcd's state. The second of two passes; see [`Writer`].
///
/// The calls must be the same as those made to [`BackendLayout`] in the first pass.
pub struct BackendWriter<W> {
    state: State<Writer<W>>,
}

/// Receiver of the buckets and their pairs: the [`Layout`] in the first pass, the [`Writer`] in the second.
trait Pairs {
    fn bucket(&mut self, name: &[u8]) -> Result<(), WriteError>;
    fn pair(&mut self, key: &[u8], value: &[&[u8]]) -> Result<(), WriteError>;
}

impl Pairs for Layout {
    fn bucket(&mut self, name: &[u8]) -> Result<(), WriteError> {
        Layout::bucket(self, name)
    }

    fn pair(&mut self, key: &[u8], value: &[&[u8]]) -> Result<(), WriteError> {
        Layout::pair(self, key, value.iter().map(|piece| piece.len()).sum())
    }
}

impl<W: Write> Pairs for Writer<W> {
    fn bucket(&mut self, name: &[u8]) -> Result<(), WriteError> {
        Writer::bucket(self, name)
    }

    fn pair(&mut self, key: &[u8], value: &[&[u8]]) -> Result<(), WriteError> {
        Writer::pair(self, key, value)
    }
}

macro_rules! both_passes {
    () => {
        /// Writes the bucket `meta`, with the fields that the release knows.
        ///
        /// # Errors
        ///
        /// Returns an error if the bucket was written before, or the output fails.
        pub fn meta(&mut self, meta: &Meta) -> Result<(), WriteError> {
            self.state.meta(meta)
        }

        /// Writes the members, with the cluster's version and downgrade state.
        ///
        /// # Errors
        ///
        /// Returns an error if members were written before, a member occurs twice, or the output fails.
        pub fn membership(&mut self, membership: &Membership) -> Result<(), WriteError> {
            self.state.membership(membership)
        }

        /// Writes the alarms.
        ///
        /// # Errors
        ///
        /// Returns an error if alarms were written before, an alarm occurs twice, or the output fails.
        pub fn alarms(&mut self, alarms: &[AlarmMember]) -> Result<(), WriteError> {
            self.state.alarms(alarms)
        }

        /// Writes users and roles.
        ///
        /// # Errors
        ///
        /// Returns an error if users and roles were written before, a user or role occurs twice, or the
        /// output fails.
        pub fn auth(&mut self, auth: &Auth) -> Result<(), WriteError> {
            self.state.auth(auth)
        }

        /// Writes the bucket `auth`: the flag that authentication is enabled, and the auth revision. The
        /// caller then adds users and roles one by one.
        ///
        /// # Errors
        ///
        /// Returns an error if these settings were written before, or the output fails.
        pub fn auth_settings(&mut self, enabled: bool, revision: u64) -> Result<(), WriteError> {
            self.state.auth_settings(enabled, revision)
        }

        /// Writes the next user, in order of name; all users must be written before the first role.
        ///
        /// # Errors
        ///
        /// Returns an error if the user is not in order, or the output fails.
        pub fn user(&mut self, user: &api::authpb::User) -> Result<(), WriteError> {
            self.state.begin(name::AUTH_USERS)?;
            Pairs::pair(&mut self.state.pairs, &user.name, &[&user.encode_to_vec()])
        }

        /// Writes the next role, in order of name.
        ///
        /// # Errors
        ///
        /// Returns an error if the role is not in order, or the output fails.
        pub fn role(&mut self, role: &api::authpb::Role) -> Result<(), WriteError> {
            self.state.begin(name::AUTH_ROLES)?;
            Pairs::pair(&mut self.state.pairs, &role.name, &[&role.encode_to_vec()])
        }

        /// Writes the next lease, in ascending order of id (compared as unsigned numbers).
        ///
        /// # Errors
        ///
        /// Returns an error if the lease is not in order, or the output fails.
        pub fn lease(&mut self, lease: &api::leasepb::Lease) -> Result<(), WriteError> {
            self.state.begin(name::LEASE)?;
            Pairs::pair(&mut self.state.pairs, &lease.id.to_be_bytes(), &[&lease.encode_to_vec()])
        }
    };
}

impl BackendLayout {
    /// Begins the first pass, for the format of this release.
    pub fn new(release: Release) -> BackendLayout {
        BackendLayout { state: State::new(Layout::default(), release) }
    }

    both_passes!();

    /// Adds the size of the next change, in order of revision. `value_len` is the length of its value in
    /// bytes.
    ///
    /// # Errors
    ///
    /// Returns an error if the change is invalid or is not in order.
    pub fn change(&mut self, change: &ChangeHead<'_>, value_len: usize) -> Result<(), WriteError> {
        let value_len = if change.is_tombstone { 0 } else { value_len };
        self.state.change(change, value_len)?;
        let len = self.state.before.len() + value_len + self.state.after.len();
        self.state.pairs.pair(&self.state.key, len)
    }

    /// Adds those of etcd's buckets that are missing, as empty ones, and returns the size of the database.
    ///
    /// # Errors
    ///
    /// Never returns an error; the return type matches [`BackendWriter::finish`].
    pub fn finish(mut self) -> Result<Plan, WriteError> {
        self.state.complete()?;
        self.state.pairs.finish()
    }
}

impl<W: Write> BackendWriter<W> {
    /// Begins the second pass. `plan` is the result of the first one.
    ///
    /// # Errors
    ///
    /// Returns an error if the output fails.
    pub fn new(out: W, plan: Plan, release: Release) -> Result<BackendWriter<W>, WriteError> {
        Ok(BackendWriter { state: State::new(Writer::new(out, plan)?, release) })
    }

    both_passes!();

    /// Writes the next change, in order of revision.
    ///
    /// # Errors
    ///
    /// Returns an error if the change is invalid or is not in order, more is written than in the first pass,
    /// or the output fails.
    pub fn change(&mut self, change: &Change<'_>) -> Result<(), WriteError> {
        let value = if change.head.is_tombstone { &[] } else { change.value };
        self.state.change(&change.head, value.len())?;
        self.state.pairs.pair(&self.state.key, &[&self.state.before, value, &self.state.after])
    }

    /// Returns the output, from which the caller can take the data written so far, for example to send it.
    /// The caller must not write to it.
    pub fn output(&mut self) -> &mut W {
        self.state.pairs.output()
    }

    /// Writes everything that is still buffered and returns the output.
    ///
    /// # Errors
    ///
    /// Returns an error if the written data differs from that of the first pass, or the output fails.
    pub fn finish(mut self) -> Result<W, WriteError> {
        self.state.complete()?;
        self.state.pairs.finish()
    }
}

struct State<P> {
    pairs: P,
    release: Release,
    /// Name of the bucket that calls of `user`, `role`, `lease` or `change` are filling; `None` if the last
    /// call was of another method.
    open: Option<&'static [u8]>,
    begun: Vec<&'static [u8]>,
    /// Buffer for the encoded key of a change.
    key: Vec<u8>,
    /// Buffer for the encoded bytes of a change before its value.
    before: Vec<u8>,
    /// Buffer for the encoded bytes of a change after its value.
    after: Vec<u8>,
}

impl<P> State<P> {
    fn new(pairs: P, release: Release) -> State<P> {
        let (key, before, after) = (Vec::new(), Vec::new(), Vec::new());
        State { pairs, release, open: None, begun: Vec::new(), key, before, after }
    }
}

impl<P: Pairs> State<P> {
    fn bucket(&mut self, name: &'static [u8]) -> Result<(), WriteError> {
        self.open = None;
        self.begun.push(name);
        self.pairs.bucket(name)
    }

    fn begin(&mut self, name: &'static [u8]) -> Result<(), WriteError> {
        if self.open != Some(name) {
            self.bucket(name)?;
            self.open = Some(name);
        }
        Ok(())
    }

    fn complete(&mut self) -> Result<(), WriteError> {
        for name in name::ALL {
            if !self.begun.contains(&name) {
                self.bucket(name)?;
            }
        }
        Ok(())
    }

    fn change(&mut self, change: &ChangeHead<'_>, value_len: usize) -> Result<(), WriteError> {
        self.begin(name::KEY)?;
        let is_bump = *change == ChangeHead::bump(change.revision.main) && value_len == 0;
        if change.key.is_empty() && !is_bump || change.revision.main < Revision(0) || change.revision.sub < 0
        {
            return Err(WriteError::Refused(format!("a change that is not one: {change:?}")));
        }
        self.key.clear();
        self.before.clear();
        self.after.clear();
        change.encode_key(&mut self.key);
        change.encode_around(value_len, &mut self.before, &mut self.after);
        Ok(())
    }

    fn meta(&mut self, meta: &Meta) -> Result<(), WriteError> {
        let is_new = self.release >= Release::V3_5;
        let conf_state = meta.conf_state.as_ref().filter(|_| is_new);
        let revision =
            |rev: Option<Revision>| rev.map(|main| StoredChangeId { main, sub: 0 }.encode().to_vec());
        let storage_version = self.release.storage_version().and(meta.storage_version.as_ref());
        self.bucket(name::META)?;
        for (key, value) in [
            ("confState", conf_state.map(|c| c.to_json().into_bytes())),
            ("consistent_index", Some(meta.consistent_index.to_be_bytes().to_vec())),
            ("finishedCompactRev", revision(meta.finished_compact_revision)),
            ("scheduledCompactRev", revision(meta.scheduled_compact_revision)),
            ("storageVersion", storage_version.map(|v| v.as_bytes().to_vec())),
            ("term", meta.term.filter(|_| is_new).map(|t| t.to_be_bytes().to_vec())),
        ] {
            if let Some(value) = value {
                self.pairs.pair(key.as_bytes(), &[&value])?;
            }
        }
        Ok(())
    }

    fn membership(&mut self, membership: &Membership) -> Result<(), WriteError> {
        self.bucket(name::CLUSTER)?;
        if !membership.cluster_version.is_empty() {
            self.pairs.pair(b"clusterVersion", &[membership.cluster_version.as_bytes()])?;
        }
        if let Some(target) = &membership.downgrade_target {
            let value = serde_json::json!({ "target-version": target, "enabled": true }).to_string();
            self.pairs.pair(b"downgrade", &[value.as_bytes()])?;
        }
        // Sort by the encoded keys, since the pairs of a bucket must be in this order: the keys are member
        // ids in hex without leading zeros, whose order differs from that of the numbers.
        let members = membership.members.iter().map(|m| (hex_key(m.id), m.to_json()));
        self.sorted(name::MEMBERS, members.collect())?;
        let removed = membership.removed.iter().map(|id| (hex_key(*id), "removed".to_owned()));
        self.sorted(name::MEMBERS_REMOVED, removed.collect())
    }

    fn sorted(
        &mut self,
        name: &'static [u8],
        mut pairs: Vec<(Vec<u8>, impl AsRef<[u8]>)>,
    ) -> Result<(), WriteError> {
        self.bucket(name)?;
        pairs.sort_by(|a, b| a.0.cmp(&b.0));
        pairs.iter().try_for_each(|(key, value)| self.pairs.pair(key, &[value.as_ref()]))
    }

    fn alarms(&mut self, alarms: &[AlarmMember]) -> Result<(), WriteError> {
        self.sorted(name::ALARM, alarms.iter().map(|alarm| (alarm.encode_to_vec(), [])).collect())
    }

    fn auth_settings(&mut self, enabled: bool, revision: u64) -> Result<(), WriteError> {
        self.bucket(name::AUTH)?;
        if enabled {
            self.pairs.pair(b"authEnabled", &[&[1]])?;
        }
        if revision > 0 {
            self.pairs.pair(b"authRevision", &[&revision.to_be_bytes()])?;
        }
        Ok(())
    }

    fn auth(&mut self, auth: &Auth) -> Result<(), WriteError> {
        self.auth_settings(auth.enabled, auth.revision)?;
        self.sorted(
            name::AUTH_USERS,
            auth.users.iter().map(|user| (user.name.to_vec(), user.encode_to_vec())).collect(),
        )?;
        self.sorted(
            name::AUTH_ROLES,
            auth.roles.iter().map(|role| (role.name.to_vec(), role.encode_to_vec())).collect(),
        )
    }
}

fn hex_key(id: u64) -> Vec<u8> {
    format!("{id:x}").into_bytes()
}
