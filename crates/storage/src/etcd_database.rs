//! Converts the state to an etcd database, for `snapshot save` of a client, for a transfer to a member that
//! runs etcd, and for an export. Also converts the parts of an etcd database to the types of the state
//! machine, for an import.
//!
//! The state is traversed twice, in the order of revisions: once to compute lengths, which needs no values,
//! and once to write it. Both passes run in steps, so that the thread of the caller can serve other clients
//! between two steps.

use std::collections::BTreeMap;
use std::io::Write;

use api::authpb::{Role, User};
use api::etcdserverpb::AlarmMember;
use bytes::{Bytes, BytesMut};
use interchange::backend::{
    Auth, Backend, BackendLayout, BackendWriter, Change, ChangeHead, ConfState, Member, Membership, Meta,
    Release,
};
use interchange::bolt::Plan;
use interchange::{Source, WriteError};
use machine::image::Head;
use machine::key_value::read_version;
use machine::snapshot::SnapshotVersion;
use machine::{AsOf, GrantedLease, Leases, Members, Overtaken, ReadError, Values};
use mvcc::{Looked, Version};
use numbers::{ChangeId, LeaseId, Revision, Seconds};

/// A state that is to be written as an etcd database, with the metadata that the database will contain.
pub struct EtcdDatabase {
    state: AsOf,
    compact_revision: Revision,
    leases: Leases,
    alarms: Vec<AlarmMember>,
    auth: machine::auth::Auth,
    /// Content of the bucket `meta`.
    pub meta: Meta,
    /// Members of the cluster, the cluster version, and the target version of a downgrade.
    pub membership: Membership,
    /// Release of etcd that will read the database.
    pub release: Release,
}

/// Progress of the first pass, which computes the lengths of the database's parts.
pub struct Measuring {
    layout: Option<BackendLayout>,
    auth: AuthWalk,
    leases: LeaseWalk,
    behind: ChangeId,
}

/// Progress of the second pass, which writes the database.
pub struct Writing<W> {
    writer: BackendWriter<W>,
    auth: AuthWalk,
    leases: LeaseWalk,
    behind: ChangeId,
}

/// Progress of a pass over users and roles.
#[derive(Clone, Default)]
enum AuthWalk {
    /// No user or role was visited.
    #[default]
    Begins,
    /// Users up to this one were visited.
    User(Bytes),
    /// All users were visited.
    Users,
    /// All users, and roles up to this one, were visited.
    Role(Bytes),
    Done,
}

/// A user or a role that is being written to a database.
enum UserOrRole<'a> {
    User(&'a User),
    Role(&'a Role),
}

/// Divisor for the size of users and roles: a user with n roles, or a role with n permissions, counts as 1 +
/// n / 16 against the limit of a step.
const PARTS_PER_USER: usize = 16;

/// Progress of a pass over the leases. Leases are visited in the order of their ids as unsigned numbers, so
/// leases with negative ids come last.
#[derive(Clone, Copy, Default)]
struct LeaseWalk {
    /// Last visited lease with an id of the current sign; `None` if none was visited.
    behind: Option<LeaseId>,
    is_negative: bool,
    is_done: bool,
}

/// Maximum number of users and roles, or of leases, that are written in one step.
const LEASES_PER_STEP: usize = 1024;

/// Values of consecutive versions, read by [`Writing::portion`] and written into a database by
/// [`Writing::write`].
pub struct Portion {
    values: BytesMut,
    /// Id of the last version that was visited.
    through: ChangeId,
    done: bool,
}

/// Bytes that each visited version counts against the budget of a step, in addition to its key and value, so
/// that a step does not visit an unlimited number of skipped or small versions.
const LOOK_BYTES: usize = 64;

/// Reason why a state could not be written as an etcd database.
#[derive(Debug)]
pub enum EtcdDatabaseError {
    /// A value cannot be read.
    Read(ReadError),
    /// The database cannot be written.
    Write(WriteError),
}

impl From<Overtaken> for EtcdDatabaseError {
    fn from(error: Overtaken) -> Self {
        EtcdDatabaseError::Read(error.into())
    }
}

impl From<WriteError> for EtcdDatabaseError {
    fn from(error: WriteError) -> Self {
        EtcdDatabaseError::Write(error)
    }
}

impl std::fmt::Display for EtcdDatabaseError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            EtcdDatabaseError::Read(error) => error.fmt(f),
            EtcdDatabaseError::Write(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for EtcdDatabaseError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            EtcdDatabaseError::Read(error) => Some(error),
            EtcdDatabaseError::Write(error) => Some(error),
        }
    }
}

/// Converts a member to the type that etcd's database uses.
fn member(member: &machine::Member) -> Member {
    Member {
        id: member.id,
        peer_urls: member.peer_urls.clone(),
        is_learner: member.is_learner,
        name: member.name.clone(),
        client_urls: member.client_urls.clone(),
    }
}

/// Converts the members to the type that etcd's database uses.
pub fn membership(members: &Members) -> Membership {
    Membership {
        members: members.by_id.values().map(member).collect(),
        removed: members.removed.clone(),
        cluster_version: members.cluster_version.clone(),
        downgrade_target: members.downgrade_target.clone(),
    }
}

/// Returns whether authentication is enabled, and the auth revision, as they are stored in etcd's database:
/// false and 0 if authentication was never configured.
fn auth_settings(auth: &machine::auth::Auth) -> (bool, u64) {
    let is_new = *auth == machine::auth::Auth::default();
    if is_new { (false, 0) } else { (auth.is_enabled(), auth.revision()) }
}

/// Converts users and roles of etcd's database to the type of Mainstay's state machine.
pub fn users(auth: Auth) -> machine::auth::Auth {
    // If no auth revision is stored, etcd uses 1.
    machine::auth::Auth::of(auth.enabled, auth.revision.max(1), auth.users, auth.roles)
}

/// Converts members of etcd's database to the type of Mainstay's state machine.
pub fn members(membership: &Membership) -> Members {
    // Snapshots in etcd's format are for clusters of other members, so they name no witness.
    let member = |m: &Member| machine::Member {
        is_witness: false,
        id: m.id,
        peer_urls: m.peer_urls.clone(),
        is_learner: m.is_learner,
        name: m.name.clone(),
        client_urls: m.client_urls.clone(),
    };
    Members {
        by_id: membership.members.iter().map(|m| (m.id, member(m))).collect::<BTreeMap<_, _>>(),
        removed: membership.removed.clone(),
        cluster_version: membership.cluster_version.clone(),
        downgrade_target: membership.downgrade_target.clone(),
    }
}

/// Reads the leases in etcd's database, and converts them to the type of Mainstay's state machine.
///
/// # Errors
///
/// Returns an error if the leases cannot be read.
pub fn leases<S: Source>(from: &Backend<S>) -> Result<Vec<GrantedLease>, interchange::Error> {
    let mut leases = Vec::new();
    let mut walk = from.leases()?;
    while let Some(lease) = walk.step()? {
        // The remaining TTL is limited to the range from 0 to the TTL of the lease, because etcd does not
        // allow a higher one.
        let remaining = Seconds(lease.remaining_ttl.clamp(0, lease.ttl.max(0)));
        leases.push(GrantedLease { id: LeaseId(lease.id), ttl: Seconds(lease.ttl), remaining });
    }
    Ok(leases)
}

/// Error for a database in which a revision has more than 2^32 changes, which is more than Mainstay's state
/// machine can number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyChanges(pub Revision);

impl std::fmt::Display for TooManyChanges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "revision {} has more than 2^32 changes", self.0)
    }
}

impl std::error::Error for TooManyChanges {}

/// Converts a change in etcd's database to a version of a key in Mainstay's state machine.
///
/// # Errors
///
/// Returns an error if the number of the change within its revision has more than 32 bits.
pub fn version<'c>(change: &Change<'c>) -> Result<SnapshotVersion<'c>, TooManyChanges> {
    let head = &change.head;
    let main = head.revision.main;
    if head.is_bump() {
        return Ok(SnapshotVersion::bump(main));
    }
    Ok(SnapshotVersion {
        key: head.key,
        main,
        sub: u32::try_from(head.revision.sub).map_err(|_| TooManyChanges(main))?,
        create_revision: if head.is_tombstone { Revision(0) } else { head.create_revision },
        version: if head.is_tombstone { 0 } else { head.version },
        lease: if head.is_tombstone { LeaseId::NONE } else { head.lease },
        value: change.value,
    })
}

/// Error for a state whose storage or cluster version is malformed, or newer than this release of Mainstay
/// supports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownVersion(pub String);

impl std::fmt::Display for UnknownVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "the state has version {}, but this program supports versions up to {}",
            self.0,
            api::CLUSTER_VERSION
        )
    }
}

impl std::error::Error for UnknownVersion {}

/// Checks that Mainstay supports the release that wrote a state, judged by the state's storage version and
/// cluster version. A missing version is accepted.
///
/// # Errors
///
/// Returns an error if a version is newer than supported, or is malformed.
pub fn check_versions(storage: Option<&str>, membership: &Membership) -> Result<(), UnknownVersion> {
    let minor = |version: &str| -> Option<(u32, u32)> {
        let mut parts = version.split('.');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    };
    let known = minor(api::API_VERSION);
    for version in [storage.unwrap_or_default(), membership.cluster_version.as_str()] {
        if !version.is_empty() && minor(version).is_none_or(|version| Some(version) > known) {
            return Err(UnknownVersion(version.to_owned()));
        }
    }
    Ok(())
}

impl EtcdDatabase {
    /// Returns the reader of the state that the database will contain.
    pub fn state(&self) -> &AsOf {
        &self.state
    }

    /// Prepares the database of a state as `snapshot save` sends it. `head` and `state` must describe the
    /// same revision.
    ///
    /// The database contains no cluster version: it could be too new for the etcd that reads the database,
    /// and a restored cluster agrees on its own version.
    pub fn new(state: impl Into<AsOf>, head: &Head, release: Release) -> EtcdDatabase {
        let mut database = EtcdDatabase::of_cluster(state, head, release);
        database.membership.cluster_version.clear();
        database.membership.downgrade_target = None;
        database
    }

    /// Prepares the database of a state, including the cluster version, as a leader sends it to another
    /// member of its cluster. `head` and `state` must describe the same revision.
    pub fn of_cluster(state: impl Into<AsOf>, head: &Head, release: Release) -> EtcdDatabase {
        let compacted = (head.compact_revision >= Revision(0)).then_some(head.compact_revision);
        let conf_state = ConfState { voters: head.members.voters(), learners: head.members.learners() };
        let meta = Meta {
            consistent_index: head.applied_index.0,
            term: Some(head.applied_term.0),
            conf_state: Some(conf_state),
            storage_version: release.storage_version().map(str::to_owned),
            scheduled_compact_revision: compacted,
            finished_compact_revision: compacted,
        };
        EtcdDatabase {
            state: state.into(),
            compact_revision: head.compact_revision,
            leases: head.leases.clone(),
            alarms: head.alarms.list(0, 0),
            auth: head.auth.clone(),
            meta,
            membership: membership(&head.members),
            release,
        }
    }

    /// Starts the first pass.
    pub fn measure(&self) -> Measuring {
        let (auth, leases) = (AuthWalk::default(), LeaseWalk::default());
        Measuring { layout: None, auth, leases, behind: ChangeId::end_of(Revision(0)) }
    }

    /// Starts the second pass. The writer must have been created with the plan that the first pass has
    /// returned.
    ///
    /// # Errors
    ///
    /// Returns an error if the output fails.
    pub fn write<W: Write>(&self, mut writer: BackendWriter<W>) -> Result<Writing<W>, EtcdDatabaseError> {
        writer.meta(&self.meta)?;
        writer.membership(&self.membership)?;
        writer.alarms(&self.alarms)?;
        let (enabled, revision) = auth_settings(&self.auth);
        writer.auth_settings(enabled, revision)?;
        let (auth, leases) = (AuthWalk::default(), LeaseWalk::default());
        Ok(Writing { writer, auth, leases, behind: ChangeId::end_of(Revision(0)) })
    }

    /// Calls `put` with the next users, and after all users with the next roles, until `max` were visited. A
    /// user with many roles, or a role with many permissions, counts as several (see [`PARTS_PER_USER`]).
    fn each_user_and_role<E>(
        &self,
        walk: &mut AuthWalk,
        max: usize,
        mut put: impl FnMut(UserOrRole<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut left = max;
        let mut spend = |parts: usize| {
            left = left.saturating_sub(1 + parts / PARTS_PER_USER);
            left > 0
        };
        if matches!(walk, AuthWalk::Begins | AuthWalk::User(_)) {
            let behind = match walk {
                AuthWalk::User(name) => Some(name.clone()),
                _ => None,
            };
            for user in self.auth.users_after(behind.as_deref()) {
                put(UserOrRole::User(user))?;
                *walk = AuthWalk::User(user.name.clone());
                if !spend(user.roles.len()) {
                    return Ok(());
                }
            }
            *walk = AuthWalk::Users;
        }
        let behind = match walk {
            AuthWalk::Role(name) => Some(name.clone()),
            _ => None,
        };
        for role in self.auth.roles_after(behind.as_deref()) {
            put(UserOrRole::Role(role))?;
            *walk = AuthWalk::Role(role.name.clone());
            if !spend(role.key_permission.len()) {
                return Ok(());
            }
        }
        *walk = AuthWalk::Done;
        Ok(())
    }

    /// Calls `put` with the next leases, at most `max` of them.
    fn each_lease<E>(
        &self,
        walk: &mut LeaseWalk,
        max: usize,
        mut put: impl FnMut(&api::leasepb::Lease) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut left = max;
        while left > 0 && !walk.is_done {
            let (before, is_negative) = (left, walk.is_negative);
            let behind = walk.behind.or((!is_negative).then_some(LeaseId(-1)));
            let of_sign = self.leases.after(behind).take_while(|(id, _)| (id.0 < 0) == is_negative);
            for (id, lease) in of_sign.take(left) {
                // COMPAT-175: the remaining TTL is written as 0 (none), because a renewal at a member that
                // runs etcd would not reset it.
                put(&api::leasepb::Lease { id: id.0, ttl: lease.ttl.0, remaining_ttl: 0 })?;
                walk.behind = Some(id);
                left -= 1;
            }
            if left == before {
                // No leases whose ids have this sign are left. The negative ids follow the positive ones;
                // after the negative ids the walk is done.
                (walk.behind, walk.is_negative, walk.is_done) = (None, true, is_negative);
            }
        }
        Ok(())
    }

    /// Returns the visited version if it must be in the database. A tombstone that a compaction made
    /// unreadable may still exist in the index, but must not be in the database.
    fn wants<'a>(&self, looked: Looked<'a>) -> Option<Version<'a>> {
        looked.version.filter(|version| !version.is_tombstone() || version.main() >= self.compact_revision)
    }
}

fn head_of(version: Version<'_>) -> ChangeHead<'_> {
    if version.key().is_empty() {
        return ChangeHead::bump(version.main());
    }
    let is_tombstone = version.is_tombstone();
    ChangeHead {
        revision: version.id().into(),
        is_tombstone,
        key: version.key(),
        create_revision: if is_tombstone { Revision(0) } else { version.create_revision() },
        mod_revision: if is_tombstone { Revision(0) } else { version.main() },
        version: if is_tombstone { 0 } else { version.version() },
        lease: if is_tombstone { LeaseId::NONE } else { version.lease() },
    }
}

impl Measuring {
    /// Visits up to `budget` users, roles, leases or versions, and adds up their lengths. Returns `None`
    /// until all were visited, and then the plan for the second pass.
    ///
    /// # Errors
    ///
    /// Returns an error if the state contains something that an etcd database cannot contain, or if the state
    /// was compacted during the pass.
    pub fn step(&mut self, of: &EtcdDatabase, budget: usize) -> Result<Option<Plan>, EtcdDatabaseError> {
        let layout = match &mut self.layout {
            Some(layout) => layout,
            none => {
                let layout = none.insert(BackendLayout::new(of.release));
                layout.meta(&of.meta)?;
                layout.membership(&of.membership)?;
                layout.alarms(&of.alarms)?;
                let (enabled, revision) = auth_settings(&of.auth);
                layout.auth_settings(enabled, revision)?;
                layout
            }
        };
        if !matches!(self.auth, AuthWalk::Done) {
            of.each_user_and_role(&mut self.auth, budget, |each| match each {
                UserOrRole::User(user) => layout.user(user),
                UserOrRole::Role(role) => layout.role(role),
            })?;
            return Ok(None);
        }
        if !self.leases.is_done {
            of.each_lease(&mut self.leases, budget, |lease| layout.lease(lease))?;
            if !self.leases.is_done {
                return Ok(None);
            }
        }
        let slice = of.state.slice()?;
        let mut versions = slice.snapshot().written_after(self.behind);
        for _ in 0..budget {
            let Some(looked) = versions.look() else {
                of.state.intact()?;
                let layout = self.layout.take().unwrap_or_else(|| BackendLayout::new(of.release));
                return Ok(Some(layout.finish()?));
            };
            self.behind = looked.id;
            if let Some(version) = of.wants(looked) {
                layout.change(&head_of(version), version.value_len() as usize)?;
            }
        }
        Ok(None)
    }
}

impl<W: Write> Writing<W> {
    /// Performs one step of the second pass: writes some users, roles or leases, or, when all of them are
    /// written, versions until their keys and values amount to `budget_bytes` bytes. Each visited version
    /// counts as some additional bytes. Returns true when everything is written.
    ///
    /// # Errors
    ///
    /// Returns an error if a value cannot be read, the state was compacted during the pass, or the output
    /// fails.
    pub fn step(
        &mut self,
        of: &EtcdDatabase,
        values: &dyn Values,
        budget_bytes: usize,
    ) -> Result<bool, EtcdDatabaseError> {
        let portion = self.portion(of, values, budget_bytes)?;
        self.write(of, portion)
    }

    /// Reads the values of the next versions until keys and values amount to `budget_bytes` bytes. Each
    /// visited version counts as some additional bytes, even if the version is skipped.
    ///
    /// # Errors
    ///
    /// Returns an error if a value cannot be read, or the state was compacted during the pass.
    pub fn portion(
        &self,
        of: &EtcdDatabase,
        values: &dyn Values,
        budget_bytes: usize,
    ) -> Result<Portion, EtcdDatabaseError> {
        let mut portion = Portion { values: BytesMut::new(), through: self.behind, done: false };
        if !matches!(self.auth, AuthWalk::Done) || !self.leases.is_done {
            // Users, roles and leases are written before the versions, and have no values to read.
            return Ok(portion);
        }
        let slice = of.state.slice()?;
        let mut versions = slice.snapshot().written_after(self.behind);
        let mut bytes = 0;
        while bytes < budget_bytes {
            let Some(looked) = versions.look() else {
                portion.done = true;
                break;
            };
            portion.through = looked.id;
            bytes += LOOK_BYTES;
            let Some(version) = of.wants(looked) else { continue };
            if version.value_len() > 0 {
                read_version(version, values, &mut portion.values).map_err(EtcdDatabaseError::Read)?;
            }
            bytes += version.key().len() + version.value_len() as usize;
        }
        of.state.intact()?;
        Ok(portion)
    }

    /// Writes the versions of a portion or, before the first version, some users, roles or leases. Returns
    /// true when everything is written.
    ///
    /// # Errors
    ///
    /// Returns an error if the state was compacted during the pass, or the output fails.
    pub fn write(&mut self, of: &EtcdDatabase, portion: Portion) -> Result<bool, EtcdDatabaseError> {
        if !matches!(self.auth, AuthWalk::Done) {
            let writer = &mut self.writer;
            of.each_user_and_role(&mut self.auth, LEASES_PER_STEP, |each| match each {
                UserOrRole::User(user) => writer.user(user),
                UserOrRole::Role(role) => writer.role(role),
            })?;
            return Ok(false);
        }
        if !self.leases.is_done {
            of.each_lease(&mut self.leases, LEASES_PER_STEP, |lease| self.writer.lease(lease))?;
            return Ok(false);
        }
        let slice = of.state.slice()?;
        let mut values = portion.values.as_ref();
        let mut versions = slice.snapshot().written_after(self.behind);
        // The versions that are written here are exactly those whose values the portion contains, although
        // the view is newer: only versions that the portion skipped may have been removed since it was read.
        while let Some(looked) = versions.look().filter(|looked| looked.id <= portion.through) {
            let Some(version) = of.wants(looked) else { continue };
            let (value, rest) = values.split_at(version.value_len() as usize);
            values = rest;
            self.writer.change(&Change { head: head_of(version), value })?;
        }
        of.state.intact()?;
        self.behind = portion.through;
        Ok(portion.done)
    }

    /// Returns the output of the writer, for a caller that drains it after each step.
    pub fn output(&mut self) -> &mut W {
        self.writer.output()
    }

    /// Returns the writer of the database, on which the caller calls `finish` after the last step.
    pub fn into_writer(self) -> BackendWriter<W> {
        self.writer
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use api::etcdserverpb::{CompactionRequest, DeleteRangeRequest, InternalRaftRequest, PutRequest};
    use machine::{Command, Machine, Newest, Rules, Values};
    use mvcc::{Moment, Value, View};
    use numbers::{Index, Location, Term};
    use prost::Message as _;

    use super::*;

    /// Source of the view that the test has published last.
    struct Published(Mutex<Arc<View>>);

    impl Newest for Published {
        fn view(&self) -> Option<Arc<View>> {
            Some(Arc::clone(&self.0.lock().expect("nobody panics with it")))
        }

        fn needs(&self, _moment: &Moment) {}
    }

    /// Source of values that returns the same byte for each byte of a value.
    struct Same;

    impl Values for Same {
        fn read_into(&self, value: Value, out: &mut BytesMut) -> Result<(), ReadError> {
            out.resize(out.len() + value.len as usize, b'v');
            Ok(())
        }
    }

    struct Fixture {
        machine: Machine,
        applied: u64,
    }

    impl Fixture {
        fn new() -> Fixture {
            Fixture { machine: Machine::new(Rules { learners_max: 1 }), applied: 0 }
        }

        fn apply(&mut self, request: InternalRaftRequest) {
            self.applied += 1;
            let data = Bytes::from(request.encode_to_vec());
            let location = Location::new(1, 4096);
            let command = Command { index: Index(self.applied), term: Term(1), data: &data, location };
            self.machine.apply(command, &Same, false).expect("it can be applied");
        }

        fn put(&mut self, key: impl Into<Bytes>) {
            let put = Some(PutRequest { key: key.into(), value: "vvvv".into(), ..PutRequest::default() });
            self.apply(InternalRaftRequest { put, ..InternalRaftRequest::default() });
        }

        fn delete(&mut self, key: impl Into<Bytes>) {
            let delete_range = Some(DeleteRangeRequest { key: key.into(), ..DeleteRangeRequest::default() });
            self.apply(InternalRaftRequest { delete_range, ..InternalRaftRequest::default() });
        }

        /// Compacts the state without physically removing versions.
        fn compact(&mut self) {
            let compaction = CompactionRequest {
                revision: self.machine.store.publish().snapshot().current_revision().0,
                physical: false,
            };
            let compaction = Some(compaction);
            self.apply(InternalRaftRequest { compaction, ..InternalRaftRequest::default() });
        }
    }

    /// Returns the number of steps of each pass. Unreadable versions are physically removed between reading
    /// and writing portion number `removed_at`.
    fn steps(fixture: &mut Fixture, removed_at: usize) -> (usize, usize) {
        let published = Arc::new(Published(Mutex::new(fixture.machine.store.publish())));
        let moment = published.view().expect("a view").moment();
        let state = AsOf::new(moment, published.clone());
        let database = EtcdDatabase::new(state, &fixture.machine.head(), Release::V3_6);
        let (mut measuring, mut measured) = (database.measure(), 1);
        let plan = loop {
            if let Some(plan) = measuring.step(&database, 512).expect("nothing is overtaken") {
                break plan;
            }
            measured += 1;
        };
        let writer = BackendWriter::new(Vec::new(), plan, Release::V3_6).expect("it fits");
        let (mut writing, mut written) = (database.write(writer).expect("it is in memory"), 1);
        loop {
            let portion = writing.portion(&database, &Same, 32 << 10).expect("nothing is overtaken");
            if written == removed_at {
                while !fixture.machine.compact_step(1000) {}
                *published.0.lock().expect("nobody panics with it") = fixture.machine.store.publish();
            }
            if writing.write(&database, portion).expect("it is in memory") {
                break;
            }
            written += 1;
        }
        // `finish` checks that everything measured was written.
        writing.into_writer().finish().expect("it is whole");
        (measured, written)
    }

    #[test]
    fn a_step_is_short_where_a_compaction_left_much_to_be_removed() {
        let mut fixture = Fixture::new();
        (0..5000).for_each(|_| fixture.put("often"));
        (0..1000).for_each(|n| fixture.put(format!("gone{n}")));
        (0..1000).for_each(|n| fixture.delete(format!("gone{n}")));
        fixture.put("last");
        fixture.compact();
        let (measured, written) = steps(&mut fixture, usize::MAX);
        assert!(measured >= 7000 / 512, "{measured}");
        assert!(written >= 7000 * LOOK_BYTES / (32 << 10), "{written}");
    }

    #[test]
    fn what_is_removed_between_a_portion_and_its_writing_does_not_matter() {
        for removed_at in 1..10 {
            let mut fixture = Fixture::new();
            (0..1000).for_each(|n| fixture.put(format!("gone{n}")));
            (0..400).for_each(|n| fixture.delete(format!("gone{n}")));
            (0..1000).for_each(|n| fixture.put(format!("here{n}")));
            fixture.compact();
            (0..1000).for_each(|n| fixture.put(format!("new{n}")));
            steps(&mut fixture, removed_at);
        }
    }

    #[test]
    fn users_and_roles_are_given_by_name_some_at_a_time() {
        let mut machine = Machine::new(Rules { learners_max: 1 });
        let view = machine.store.publish();
        let user = |name: &str| User { name: name.to_owned().into(), ..User::default() };
        let role = |name: &str, permissions| Role {
            name: name.to_owned().into(),
            key_permission: vec![api::authpb::Permission::default(); permissions],
        };
        let users = ["root", "bob", "alice"].map(user);
        let roles = [role("root", 0), role("large", 3 * PARTS_PER_USER)];
        let mut head = machine.head();
        head.auth = machine::auth::Auth::of(false, 5, users, roles);
        let database = EtcdDatabase::new(view, &head, Release::V3_6);
        for (max, steps) in [(1, 6), (2, 3), (3, 3), (8, 2), (100, 1)] {
            let (mut walk, mut names, mut taken) = (AuthWalk::default(), Vec::new(), 0);
            while !matches!(walk, AuthWalk::Done) {
                let given = database.each_user_and_role(&mut walk, max, |each| {
                    let name = match each {
                        UserOrRole::User(user) => &user.name,
                        UserOrRole::Role(role) => &role.name,
                    };
                    names.push(String::from_utf8_lossy(name).into_owned());
                    Ok::<_, EtcdDatabaseError>(())
                });
                given.expect("all are taken");
                taken += 1;
                assert!(taken < 10, "it does not end");
            }
            assert_eq!(names, ["alice", "bob", "root", "large", "root"]);
            assert_eq!(taken, steps, "{max} at a time");
        }
    }

    #[test]
    fn leases_are_given_in_the_order_of_etcds_keys_some_at_a_time() {
        let mut machine = Machine::new(Rules { learners_max: 1 });
        let view = machine.store.publish();
        let granted = |id| GrantedLease { id: LeaseId(id), ttl: Seconds(60), remaining: Seconds(0) };
        let leases = Leases::granted([-2, -1, 1, 2, 3].map(granted)).expect("they can be granted");
        let mut head = machine.head();
        head.leases = leases;
        let database = EtcdDatabase::new(view, &head, Release::V3_6);
        for max in [1, 2, 3, 100] {
            let (mut walk, mut ids, mut steps) = (LeaseWalk::default(), Vec::new(), 0);
            while !walk.is_done {
                let before = ids.len();
                let given = database.each_lease(&mut walk, max, |lease| {
                    ids.push(lease.id);
                    Ok::<_, EtcdDatabaseError>(())
                });
                given.expect("all are taken");
                assert!(ids.len() - before <= max);
                steps += 1;
                assert!(steps < 10, "it does not end");
            }
            assert_eq!(ids, [1, 2, 3, -2, -1]);
        }
    }
}
