//! `import`: a data directory for Mainstay of one of etcd.

use std::collections::{BTreeSet, HashSet};
use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use api::etcdserverpb::alarm_request::AlarmAction;
use api::etcdserverpb::{AlarmType, InternalRaftRequest};
use bytes::Bytes;
use cli::{Command, Failure, Flag, Matches, Progress};
use disk::{Disk, RealDisk};
use interchange::DataDir;
use log::HardState;
use machine::Machine;
use numbers::{Index, LeaseId, MemberId, Revision, Term};
use prost::Message as _;
use storage::Identity;
use storage::etcd_database;
use storage::kv_hash::HashedKv;
use storage::restoration::{Restoration, RestoredEntry, RestoredHead};
use storage::stopped::Stopped;
use storage::terms::Terms;

use crate::commands::Run;
use crate::commands::required;
use crate::old_store::{self, Migration};
use crate::snapshot_file::stat;
use crate::target::{Target, is_taken};
use crate::wal_dir::{self, WalDir};
use crate::{Session, etcd_dir};

const DATA_DIR: Flag<String> =
    Flag::text("data-dir", "", "Required. Path to the etcd data dir, not in use by etcd");
const TO: Flag<String> =
    Flag::text("to", "", "Required. Path to the output data directory, which must not exist or be empty");
const TO_WAL_DIR: Flag<String> = Flag::text(
    "to-wal-dir",
    "",
    "Path to the output directory of the log, if mainstay will be given one (--wal-dir); must not exist",
);
const WAL_DIR: Flag<String> = Flag::text("wal-dir", "", "Path to the WAL directory, if etcd was given one");
const WITHOUT_OLD_STORE: Flag<bool> = Flag::bool(
    "without-old-store",
    "Leave out keys of the old store (API version 2), which neither Mainstay nor etcd from 3.6 on has; --migrate-v2 keeps them",
);
const WITHOUT_USERS: Flag<bool> = Flag::bool(
    "without-users",
    "Leave out users, roles and authentication: everybody may read and write then",
);

pub(crate) const IMPORT: Command<Run> = Command {
    name: "import",
    usage: "import --data-dir {etcd data dir} --to {output dir} [options]",
    about: "Makes a data directory for Mainstay of one of etcd 3.4 to 3.7, with the same member and cluster",
    long: "Makes a data directory for Mainstay of one of etcd 3.4 to 3.7: its database and the log behind it.

Member, cluster, term and index stay, so the member goes on where etcd stopped; Mainstay is started with the flags that
etcd had and the new --data-dir. Of a cluster with several members, stop all, import each, and start all: members of
both kinds in one cluster are not supported. What is read is not changed, and may be mounted read-only.

Keys of the old store (API version 2, --enable-v2 of 3.4 and 3.5) are refused unless --migrate-v2 moves them or
--without-old-store leaves them out. To be moved, the member has to be the only one of its cluster.
",
    example: "  etcdutl import --data-dir default.etcd --to default.mainstay && mainstay --data-dir default.mainstay",
    flags: &[
        DATA_DIR.row(),
        old_store::MIGRATE.row(),
        TO.row(),
        TO_WAL_DIR.row(),
        old_store::DIRS.row(),
        old_store::PREFIX.row(),
        old_store::TTL.row(),
        WAL_DIR.row(),
        WITHOUT_OLD_STORE.row(),
        WITHOUT_USERS.row(),
    ],
    run: Some(Run(run)),
    ..Command::EMPTY
};

fn run(session: &mut Session<'_>) -> Result<(), Failure> {
    required(session, &[DATA_DIR.row(), TO.row()])?;
    let options = Options::of(session.matches)?;
    if is_taken(&options.to).unwrap_or(true) {
        return Err(Failure::error(format!("{} is there already, and not empty", options.to.display())));
    }
    session.notices.info(
        "importing",
        &[
            ("data-dir", options.from.display().to_string().into()),
            ("to", options.to.display().to_string().into()),
        ],
    );
    let source = open(&options)?;
    let guarded = checked(&source, &options)?;
    let mut migration = match &options.migration {
        Some(asked) => Some(plan_migration(session, &source, asked)?),
        None => None,
    };
    let target = Target::begin(&options.to)?;
    let (left_out, wal) = fill(session, &source, &options, (guarded, migration.as_mut()), &target)?;
    // Read it back, as a start would.
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let log_dir = match (&options.to_wal_dir, &wal) {
        (Some(WalDir::Inside(below)), _) => Some(target.making().join(below)),
        (_, Some(wal)) => Some(wal.making().to_path_buf()),
        _ => None,
    };
    let mut made = Stopped::open_with(&disk, target.making(), log_dir.as_deref()).map_err(Failure::error)?;
    let HashedKv { hash, compact_revision, revision } =
        made.hash_kv(Revision(0)).map_err(|status| Failure::error(status.message))?;
    let members = made.machine.members.by_id.len();
    migration.as_ref().map_or(Ok(()), |migration| migration.check(&mut made.machine))?;
    let applied = made.machine.applied_index;
    drop(made);
    // The log's directory first: without the data directory it is refused, and says by its name why.
    wal.map_or(Ok(()), Target::finish)?;
    target.finish()?;
    if left_out > 0 {
        session.notices.warn(
            "left out entries that change users, roles or authentication",
            &[("entries", left_out.into())],
        );
    }
    if let Some(migration) = &migration {
        migration.report(&mut session.notices);
    }
    session.notices.info(
        "imported",
        &[
            ("member-id", format!("{:x}", source.wal.identity.member_id).into()),
            ("cluster-id", format!("{:x}", source.wal.identity.cluster_id).into()),
            ("members", members.into()),
            ("database-index", source.base_index().into()),
            ("index", applied.0.into()),
            ("last-index", source.wal.last().max(applied.0).into()),
            ("revision", revision.0.into()),
            ("compact-revision", compact_revision.0.into()),
            ("hash-kv", hash.into()),
        ],
    );
    Ok(())
}

/// The values of the flags.
struct Options {
    from: PathBuf,
    wal_dir: PathBuf,
    to: PathBuf,
    /// Only if the user names one.
    to_wal_dir: Option<WalDir>,
    without_users: bool,
    without_old_store: bool,
    /// Only if the old store is to be migrated.
    migration: Option<old_store::Options>,
}

impl Options {
    fn of(given: &Matches) -> Result<Options, Failure> {
        let from = PathBuf::from(given.get(DATA_DIR));
        let wal_dir = match given.get(WAL_DIR) {
            "" => from.join("member").join("wal"),
            dir => PathBuf::from(dir),
        };
        let to = PathBuf::from(given.get(TO));
        let to_wal_dir = match given.get(TO_WAL_DIR) {
            "" => None,
            dir if stat(Path::new(dir)).is_ok() => {
                return Err(Failure::error(format!("to-wal-dir {} exists", cli::go::quote(dir))));
            }
            dir => Some(WalDir::of(Path::new(dir), &to, ("to-wal-dir", "to"))?),
        };
        let migration = old_store::Options::of(given)?;
        let without_old_store = given.get(WITHOUT_OLD_STORE);
        if without_old_store && migration.is_some() {
            return Err(Failure::bad_args(
                "--migrate-v2 keeps what --without-old-store leaves out: give one of them",
            ));
        }
        let without_users = given.get(WITHOUT_USERS);
        Ok(Options { from, wal_dir, to, to_wal_dir, without_users, without_old_store, migration })
    }
}

/// Opens etcd's directory for reading.
fn open(options: &Options) -> Result<DataDir, Failure> {
    DataDir::open_with(&RealDisk, &options.from, &options.wal_dir).map_err(|e| {
        let what = format!("{}: {e}", options.from.display());
        Failure::error(if what.contains("locked by another process") {
            format!("{what}: stop etcd first")
        } else {
            what
        })
    })
}

/// Refuses a directory of which something would be lost without a flag that says so. Returns true if authentication is on and left out.
fn checked(source: &DataDir, options: &Options) -> Result<bool, Failure> {
    etcd_dir::check_versions(source.meta.storage_version.as_deref(), &source.membership)?;
    // With users this is held against them as etcd does.
    let guarded = options.without_users && source.base.auth().map_err(Failure::error)?.enabled;
    if let Some(loss) = source.old_store.loss()
        && !options.without_old_store
        && options.migration.is_none()
    {
        return Err(Failure::error(format!(
            "the old store (API version 2) would be lost, and {loss}: Mainstay has no such store, nor has etcd from 3.6 \
             on. Move it into the key space of version 3 with --migrate-v2, or leave it out with --without-old-store"
        )));
    }
    Ok(guarded)
}

/// Rebuilds the old store and plans what becomes of it.
///
/// # Errors
///
/// When it cannot be rebuilt, an alarm is raised by which no key is written, or other members would not agree: each stopped at
/// an entry of its own, so that what is added behind it would differ.
fn plan_migration(
    session: &Session<'_>,
    source: &DataDir,
    asked: &old_store::Options,
) -> Result<Migration, Failure> {
    let me = source.wal.identity.member_id;
    if !source.voters.iter().eq([&me]) {
        return Err(Failure::error(format!(
            "--migrate-v2 is for the only voting member of a cluster, and this one has {}: start etcd once on a copy of one \
             member's directory with --force-new-cluster, stop it, import that, and add the other members again or restore \
             a snapshot for each",
            source.voters.len()
        )));
    }
    let tree = source.old_keys(&RealDisk).map_err(Failure::error)?;
    let since = (session.clock)().duration_since(UNIX_EPOCH).unwrap_or_default();
    let migration = Migration::plan(&tree, asked, i64::try_from(since.as_nanos()).unwrap_or(i64::MAX));
    let alarms = if migration.requests() > 0 { raised(source)? } else { BTreeSet::new() };
    let stops = [(AlarmType::Nospace, "NOSPACE"), (AlarmType::Corrupt, "CORRUPT")];
    let found = stops.iter().find(|(kind, _)| alarms.iter().any(|(alarm, _)| *alarm == *kind as i32));
    if let Some((_, name)) = found {
        return Err(Failure::error(format!(
            "the alarm {name} is raised, so that no key can be written: start etcd once more, mend the cause, disarm the alarm \
             (etcdctl alarm disarm), stop etcd, and import again"
        )));
    }
    Ok(migration)
}

/// The alarms that are raised at the end of the log: their types and the members that raised them.
fn raised(source: &DataDir) -> Result<BTreeSet<(i32, u64)>, Failure> {
    let alarms = source.base.alarms().map_err(Failure::error)?;
    let mut raised: BTreeSet<_> = alarms.iter().map(|alarm| (alarm.alarm, alarm.member_id)).collect();
    for entry in source.entries() {
        // What is wrong with an entry is said when it is converted.
        let Ok(interchange::Command::Request(data)) =
            interchange::Command::of(&entry.map_err(Failure::error)?)
        else {
            continue;
        };
        let Some(request) = InternalRaftRequest::decode(data).ok().and_then(|request| request.alarm) else {
            continue;
        };
        let alarm = (request.alarm, request.member_id);
        match AlarmAction::try_from(request.action) {
            Ok(AlarmAction::Activate) => _ = raised.insert(alarm),
            Ok(AlarmAction::Deactivate) => _ = raised.remove(&alarm),
            _ => {}
        }
    }
    Ok(raised)
}

/// Writes Mainstay's directory: first etcd's database, then the entries of its log behind that, then the keys of the old
/// store. Returns how many entries were left out since they change users, roles or authentication, and the log's directory
/// if it lies apart.
fn fill(
    session: &mut Session<'_>,
    source: &DataDir,
    options: &Options,
    (guarded, migration): (bool, Option<&mut Migration>),
    target: &Target,
) -> Result<(u64, Option<Target>), Failure> {
    let identity = source.wal.identity;
    let identity = Identity { member_id: identity.member_id, cluster_id: identity.cluster_id };
    let (mut restoration, wal) =
        wal_dir::begin(target.making(), &options.to, options.to_wal_dir.as_ref(), identity)?;
    let index = source.base_index();
    let term = source
        .base_term()
        .ok_or_else(|| Failure::error(format!("nothing says in which term entry {index} was written")))?;
    let (mut machine, lease_ids) =
        fill_database(session, source, &mut restoration, term, options.without_users)?;
    let mut tail = Tail {
        source,
        next: index + 1,
        term,
        guarded,
        without_users: options.without_users,
        without_old_store: options.without_old_store || options.migration.is_some(),
        left_out: 0,
        lease_ids,
        progress: Progress::of_things("entries", Some(source.wal.last().saturating_sub(index))),
    };
    let promised = source.wal.hard_state;
    // A term that the log has entries of was promised, whatever came of the last record.
    let newest = source.wal.term(source.wal.last()).unwrap_or(0).max(term);
    let hard_state = HardState {
        term: Term(promised.term.max(newest)),
        vote: if promised.term < newest { MemberId::NONE } else { MemberId(promised.vote) },
        commit: Index(source.end()),
    };
    let mut terms = restoration.follow(&mut machine, hard_state, &mut tail).map_err(Failure::error)?;
    let Tail { left_out, lease_ids, .. } = tail;
    if let Some(migration) = migration {
        migration.begin(machine.store.current_revision(), &lease_ids);
        let last = source.wal.last().max(index);
        move_old_store(&mut restoration, &mut machine, (hard_state, last), migration, &mut terms)?;
    }
    restoration.finish(machine, &terms).map_err(Failure::error)?;
    Ok((left_out, wal))
}

/// Appends a migration's entries behind the last entry of the log.
///
/// Their term is one that etcd's entries cannot have, learners' included. etcd's leader sends entries while it writes them, so
/// a learner may have some that are not in this log, of the term that was noted last or, if etcd was killed in the middle of its
/// election, of the one behind that. With the same index and the same term they would count as these.
fn move_old_store(
    restoration: &mut Restoration,
    machine: &mut Machine,
    (before, last): (HardState, u64),
    migration: &Migration,
    terms: &mut Terms,
) -> Result<(), Failure> {
    let added = migration.requests();
    if added == 0 {
        return Ok(());
    }
    let high =
        || Failure::error(format!("the log ends at entry {last} of term {}: none can follow", before.term));
    let term = Term(before.term.0.checked_add(2).ok_or_else(high)?);
    let commit = Index(last.checked_add(added).ok_or_else(high)?);
    let mut progress = Progress::of_things("keys of the old store", Some(added));
    let mut entries = (0..added).filter_map(|number| {
        progress.at(number, "");
        let data = migration.request(number)?.encode_to_vec().into();
        let entry = log::Entry { term, index: Index(last + 1 + number), entry_type: 0, data };
        Some(Ok(RestoredEntry { applies: true, entry }))
    });
    let hard_state = HardState { term, vote: MemberId::NONE, commit };
    restoration.follow_on(machine, hard_state, &mut entries, terms).map_err(Failure::error)
}

/// Takes the state that etcd's database holds, of the entry `source.base_index()` in this raft term. Returns the ids of its
/// leases, too.
fn fill_database(
    session: &mut Session<'_>,
    source: &DataDir,
    restoration: &mut Restoration,
    term: u64,
    without_users: bool,
) -> Result<(Machine, HashSet<LeaseId>), Failure> {
    let total = source.base.bolt().size_bytes();
    let leases = etcd_dir::leases(&source.base)?;
    let lease_ids = leases.iter().map(|lease| lease.id).collect();
    let mut progress = Progress::of_bytes("importing", Some(total));
    let mut filling = restoration
        .fill(RestoredHead {
            compact_revision: source.meta.compact_revision().unwrap_or(Revision::NEVER_COMPACTED),
            index: Index(source.base_index()),
            term: Term(term),
            leases,
            alarms: source.base.alarms().map_err(Failure::error)?,
            members: etcd_database::members(&source.membership),
            auth: etcd_dir::users(&source.base, without_users)?,
            // Members stopped at different entries.
            is_shared: false,
        })
        .map_err(Failure::error)?;
    let without_lease =
        etcd_dir::take_history(&source.base, &lease_ids, &mut filling, &mut |bytes| progress.at(bytes, ""))?;
    let machine = filling.finish(None).map_err(Failure::error)?;
    progress.finish();
    without_lease.warn(&mut session.notices);
    Ok((machine, lease_ids))
}

/// The entries behind the database, in today's words.
struct Tail<'s> {
    source: &'s DataDir,
    next: u64,
    term: u64,
    /// Authentication is on: etcd holds some requests against it only when it applies them.
    guarded: bool,
    without_users: bool,
    without_old_store: bool,
    /// Entries that change users, roles or authentication.
    left_out: u64,
    /// Leases that exist or existed.
    lease_ids: HashSet<LeaseId>,
    progress: Progress,
}

/// Why an entry behind etcd's database cannot be imported.
#[derive(Debug)]
enum TailError {
    /// etcd's log cannot be read.
    Read(interchange::Error),
    /// The log does not have the entry.
    Missing { index: u64 },
    /// The entry is none that etcd writes.
    Damaged { index: u64, error: interchange::Malformed },
    /// The term of the entry is lower than that of the entry before it.
    Term { index: u64, term: u64, before: u64 },
    /// The entry is a request that this version cannot decode.
    Unknown { index: u64, error: prost::DecodeError },
    /// The entry changes the old store, which would be lost.
    OldStore { index: u64, method: String, path: String },
    /// The entry has a password that etcd hashes only when it applies the entry.
    Password { index: u64, change: &'static str },
    /// Only etcd can say whether the user of the request was permitted to make it.
    Guarded { index: u64 },
}

impl fmt::Display for TailError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TailError::Read(error) => error.fmt(f),
            TailError::Missing { index } => write!(f, "entry {index} is missing in the log"),
            TailError::Damaged { index, error } => write!(f, "entry {index}: {}", error.what),
            TailError::Term { index, term, before } => {
                write!(f, "entry {index} is of term {term}, the one before it of {before}")
            }
            TailError::Unknown { index, error } => {
                write!(f, "entry {index} is no request that this version knows: {error}")
            }
            TailError::OldStore { index, method, path } => write!(
                f,
                "entry {index} asks the old store (API version 2) for {method} {path}, which Mainstay does not have, \
                 nor has etcd from 3.6 on: move its keys with --migrate-v2, or leave that out with --without-old-store"
            ),
            TailError::Password { index, change } => write!(
                f,
                "entry {index} asks for {change} with a password that is not hashed, as etcd before 3.5 wrote it, and is \
                 not in etcd's database yet: start etcd on the directory once more and stop it in order (SIGTERM), which \
                 writes the database, then import again"
            ),
            TailError::Guarded { index } => write!(
                f,
                "entry {index} is not in etcd's database yet, and whether its user was permitted to ask for it only etcd \
                 can say: start etcd on the directory once more and stop it in order (SIGTERM), which writes the \
                 database, then import again"
            ),
        }
    }
}

impl Error for TailError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            TailError::Read(error) => error.source(),
            TailError::Unknown { error, .. } => Some(error),
            _ => None,
        }
    }
}

impl Iterator for Tail<'_> {
    type Item = Result<RestoredEntry, Box<dyn Error + Send + Sync>>;

    fn next(&mut self) -> Option<Self::Item> {
        let index = self.next;
        self.next += 1;
        self.progress.at(index.saturating_sub(self.source.base_index()), "");
        let last = self.source.wal.last().max(self.source.base_index());
        (index <= last).then(|| self.entry(index).map_err(Into::into))
    }
}

impl Tail<'_> {
    fn entry(&mut self, index: u64) -> Result<RestoredEntry, TailError> {
        let found = self.source.wal.entry(index).map_err(TailError::Read)?;
        let entry = found.ok_or(TailError::Missing { index })?;
        let command =
            interchange::Command::of(&entry).map_err(|error| TailError::Damaged { index, error })?;
        let term = entry.term();
        if term < self.term {
            return Err(TailError::Term { index, term, before: self.term });
        }
        self.term = term;
        let (entry_type, data) = match command {
            interchange::Command::Nothing => (0, Bytes::new()),
            interchange::Command::ConfChange(_) => (1, entry.data.unwrap_or_default()),
            interchange::Command::Request(data) => (0, self.request(index, data)?),
            interchange::Command::OldWrite { .. } if self.without_old_store => (0, Bytes::new()),
            interchange::Command::OldWrite { method, path } => {
                return Err(TailError::OldStore { index, method, path });
            }
        };
        let entry = log::Entry { term: Term(term), index: Index(index), entry_type, data };
        Ok(RestoredEntry { applies: index <= self.source.end(), entry })
    }

    fn request(&mut self, index: u64, data: Bytes) -> Result<Bytes, TailError> {
        let request =
            InternalRaftRequest::decode(data.clone()).map_err(|error| TailError::Unknown { index, error })?;
        self.lease_ids.extend(request.lease_grant.as_ref().map(|grant| LeaseId(grant.id)));
        if let Some(change) = change_of_users(&request) {
            if !self.without_users {
                return if has_plain_password(&request) {
                    Err(TailError::Password { index, change })
                } else {
                    Ok(data)
                };
            }
            self.guarded |= request.auth_enable.is_some();
            self.guarded &= request.auth_disable.is_none();
            self.left_out += 1;
            return Ok(Bytes::new());
        }
        if self.guarded && may_be_refused(&request) {
            return Err(TailError::Guarded { index });
        }
        Ok(data)
    }
}

/// Returns the change that a request makes to users, roles or authentication. One that only reads, or was a log-in,
/// changes nothing here either.
fn change_of_users(request: &InternalRaftRequest) -> Option<&'static str> {
    let all = [
        (request.auth_enable.is_some(), "authentication to be on"),
        (request.auth_disable.is_some(), "authentication to be off"),
        (request.authenticate.is_some(), "a log-in"),
        (request.auth_status.is_some(), "the state of authentication"),
        (request.auth_user_add.is_some(), "a user"),
        (request.auth_user_delete.is_some(), "a user to be deleted"),
        (request.auth_user_get.is_some(), "what a user may do"),
        (request.auth_user_change_password.is_some(), "another password"),
        (request.auth_user_grant_role.is_some(), "a role for a user"),
        (request.auth_user_revoke_role.is_some(), "a role to be taken from a user"),
        (request.auth_user_list.is_some(), "the users"),
        (request.auth_role_list.is_some(), "the roles"),
        (request.auth_role_add.is_some(), "a role"),
        (request.auth_role_delete.is_some(), "a role to be deleted"),
        (request.auth_role_get.is_some(), "what a role may do"),
        (request.auth_role_grant_permission.is_some(), "a permission for a role"),
        (request.auth_role_revoke_permission.is_some(), "a permission to be taken from a role"),
    ];
    all.into_iter().find_map(|(is, what)| is.then_some(what))
}

/// Returns true if a password stands in the entry as it was typed.
fn has_plain_password(request: &InternalRaftRequest) -> bool {
    let is_plain = |password: &str, hashed: &str| !password.is_empty() && hashed.is_empty();
    request.auth_user_add.as_ref().is_some_and(|user| is_plain(&user.password, &user.hashed_password))
        || request
            .auth_user_change_password
            .as_ref()
            .is_some_and(|change| is_plain(&change.password, &change.hashed_password))
}

/// Returns true if etcd asks, when it applies this, what its user may do.
fn may_be_refused(request: &InternalRaftRequest) -> bool {
    request.put.is_some()
        || request.delete_range.is_some()
        || request.txn.is_some()
        || request.lease_revoke.is_some()
        || request.compaction.is_some()
        || request.lease_grant.is_some()
        || request.alarm.is_some()
}
