//! `import`: converts a data directory of etcd to one of Mainstay. [`Import`] contains the conversion, which
//! the takeover in place uses too.

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
use numbers::{EntryId, Index, LeaseId, MemberId, Revision, Term};
use prost::Message as _;
use storage::Identity;
use storage::etcd_beside;
use storage::etcd_database;
use storage::kv_hash::HashedKv;
use storage::restoration::{Restoration, RestoredEntry, RestoredHead};
use storage::stopped::Stopped;
use storage::terms::Terms;

use crate::max_learners;
use crate::notice::Notices;
use crate::old_store::{self, Migration};
use crate::places;
use crate::session::{Run, required};
use crate::snapshot_file::stat;
use crate::target::{Target, refuse_taken};
use crate::wal_dir::{self, WalDir};
use crate::{Session, etcd_dir};

const DATA_DIR: Flag<String> =
    Flag::text("data-dir", "", "Required. Path to the etcd data dir, not in use by etcd");
const TO: Flag<String> = Flag::text(
    "to",
    "",
    "Required. Path to the output data directory, which must be empty or must not exist yet",
);
const TO_WAL_DIR: Flag<String> = Flag::text(
    "to-wal-dir",
    "",
    "Path to the output directory of the log, if Mainstay will be started with --wal-dir; must not exist",
);
const WAL_DIR: Flag<String> =
    Flag::text("wal-dir", "", "Path to the WAL directory, if etcd had a separate one");
const WITHOUT_OLD_STORE: Flag<bool> = Flag::bool(
    "without-old-store",
    "Leave out keys of the old store (API version 2), which neither Mainstay nor etcd 3.6 and later supports; --migrate-v2 keeps them",
);
const WITHOUT_USERS: Flag<bool> = Flag::bool(
    "without-users",
    "Leave out users, roles and authentication: everyone can then read and write",
);

pub(crate) const IMPORT: Command<Run> = Command {
    name: "import",
    usage: "import --data-dir {etcd data dir} --to {output dir} [options]",
    about: "Converts a data directory of etcd 3.4 to 3.7 into one for Mainstay, with the same member and cluster",
    long: "Converts a data directory of etcd 3.4 to 3.7, with its database and its log, into one for Mainstay.

Member, cluster, term and index stay the same, so the member continues where etcd stopped; start Mainstay with etcd's
flags and the new --data-dir. (Started on etcd's own directory, Mainstay does the same by itself and takes the member over
in place.) The source is not changed, and may be mounted read-only.

Keys of the old store (API version 2, --enable-v2 of 3.4 and 3.5) are refused unless --migrate-v2 moves them or
--without-old-store leaves them out. Moving them requires that the member is the only one of its cluster.
",
    example: "  etcdutl import --data-dir default.etcd --to default.mainstay && mainstay --data-dir default.mainstay",
    flags: &[
        DATA_DIR.row(),
        max_learners::FLAG.row(),
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
    let Options { from, wal_dir, to, to_wal_dir, leave_out, migration } = Options::of(session.matches)?;
    refuse_taken(&to, "")?;
    places::refuse_other(&from)?;
    session.notices.info(
        "importing",
        &[("data-dir", from.display().to_string().into()), ("to", to.display().to_string().into())],
    );
    let import = Import::open(&from, wal_dir.as_deref(), leave_out)?;
    let source = &import.source;
    let mut migration = match &migration {
        Some(asked) => Some(plan_migration(session, source, asked)?),
        None => None,
    };
    let target = Target::begin(&to)?;
    let rules = max_learners::rules(session.matches);
    let (mut restoration, wal) =
        wal_dir::begin(target.making(), &to, to_wal_dir.as_ref(), import.identity())?;
    restoration.set_rules(rules);
    let Filled { left_out, refused_learner } = {
        let mut bytes = Progress::of_bytes("importing", Some(source.base.bolt().size_bytes()));
        let mut entries = Progress::of_things("entries", None);
        let mut keys = Progress::of_things("keys of the old store", None);
        import.fill(restoration, &mut session.notices, migration.as_mut(), &mut |passed| {
            match passed {
                Passed::Bytes(done) => bytes.at(done, ""),
                Passed::Database => bytes.finish(),
                Passed::Entries(done) => entries.at(done, ""),
                Passed::OldKeys(done) => {
                    entries.finish();
                    keys.at(done, "");
                }
            }
            Ok(())
        })?
    };
    max_learners::check(session.matches, refused_learner)?;
    // Check the result by opening it as a start of the member would.
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let log_dir = match (&to_wal_dir, &wal) {
        (Some(WalDir::Inside(below)), _) => Some(target.making().join(below)),
        (_, Some(wal)) => Some(wal.making().to_path_buf()),
        _ => None,
    };
    let mut made =
        Stopped::open_with(&disk, target.making(), log_dir.as_deref(), rules).map_err(Failure::error)?;
    let HashedKv { hash, compact_revision, revision } =
        made.hash_kv(Revision(0)).map_err(|status| Failure::error(status.message))?;
    let members = made.machine.members.by_id.len();
    migration.as_ref().map_or(Ok(()), |migration| migration.check(&mut made.machine))?;
    let applied = made.machine.applied_index;
    drop(made);
    // Move the log's directory to its final name first. If the process is killed before the second rename,
    // only a log directory remains, on which no member can start.
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

/// Values of the flags of `import`.
struct Options {
    from: PathBuf,
    /// Directory of etcd's log that the user names; `None` for the directory `member/wal` in `from`.
    wal_dir: Option<PathBuf>,
    to: PathBuf,
    /// Directory of the new log that the user names; `None` for the usual directory in `to`.
    to_wal_dir: Option<WalDir>,
    leave_out: LeaveOut,
    /// Options for moving keys of etcd's v2 store to the v3 key space; `None` if the keys are not moved.
    migration: Option<old_store::Options>,
}

impl Options {
    fn of(given: &Matches) -> Result<Options, Failure> {
        let from = PathBuf::from(given.get(DATA_DIR));
        let wal_dir = Some(given.get(WAL_DIR)).filter(|dir| !dir.is_empty()).map(PathBuf::from);
        let to = PathBuf::from(given.get(TO));
        let to_wal_dir = match given.get(TO_WAL_DIR) {
            "" => None,
            dir if stat(Path::new(dir)).is_ok() => {
                return Err(Failure::error(format!("to-wal-dir {} exists", cli::go::quote(dir))));
            }
            dir => Some(WalDir::of(Path::new(dir), &to, ("to-wal-dir", "to"))?),
        };
        let migration = old_store::Options::of(given)?;
        let old_store = given.get(WITHOUT_OLD_STORE);
        if old_store && migration.is_some() {
            return Err(Failure::bad_args(
                "--migrate-v2 and --without-old-store exclude each other: give one of them",
            ));
        }
        // If the keys of etcd's v2 store are moved to the v3 key space, leave out the log's requests to the
        // v2 store: their effect is in the moved keys, so nothing is lost.
        let old_store = old_store || migration.is_some();
        let leave_out = LeaveOut { users: given.get(WITHOUT_USERS), old_store };
        Ok(Options { from, wal_dir, to, to_wal_dir, leave_out, migration })
    }
}

/// Data that an import leaves out because the user asked for it.
#[derive(Clone, Copy, Default)]
pub(crate) struct LeaveOut {
    /// Users, roles and authentication.
    pub users: bool,
    /// Keys of etcd's v2 store (API version 2), and requests that change them.
    pub old_store: bool,
}

/// Log entries that an import has left out or refused.
pub(crate) struct Filled {
    /// Number of entries left out because they concern users, roles or authentication.
    pub left_out: u64,
    /// First entry that was refused only because it would exceed the maximum number of learners; `None` if
    /// there is none.
    pub refused_learner: Option<Index>,
}

/// Progress of an import.
#[derive(Clone, Copy)]
pub(crate) enum Passed {
    /// Number of bytes of keys and values taken from the database.
    Bytes(u64),
    /// The database was copied completely.
    Database,
    /// Number of entries taken from the log.
    Entries(u64),
    /// Number of keys and leases moved from etcd's v2 store.
    OldKeys(u64),
}

/// Callback for the progress of an import; an error ends the import.
pub(crate) type Watching<'w> = dyn FnMut(Passed) -> Result<(), Failure> + 'w;

/// A data directory of etcd that can be imported. It is locked against etcd and not changed.
pub(crate) struct Import {
    /// The data directory of etcd.
    pub source: DataDir,
    leave_out: LeaveOut,
    /// True if users are left out although authentication is enabled. In this case, an import refuses log
    /// entries with requests whose permissions etcd checks only when it applies them, because the import
    /// cannot tell whether etcd would have refused the request.
    guarded: bool,
}

impl Import {
    /// Opens etcd's directory for reading. Refuses it if data would be lost that the user has not chosen to
    /// leave out.
    pub fn open(from: &Path, wal_dir: Option<&Path>, leave_out: LeaveOut) -> Result<Import, Failure> {
        let member = from.join("member");
        let own = member.join("wal");
        // If etcd was started by mistake in the directory of a Mainstay member, its store there is empty and
        // must not be imported.
        etcd_beside::refuse(&RealDisk, &member, wal_dir).map_err(Failure::error)?;
        places::refuse_without_database(from)?;
        let source = DataDir::open_with(&RealDisk, from, wal_dir.unwrap_or(&own)).map_err(|e| {
            let what = format!("{}: {e}", from.display());
            Failure::error(if what.contains("locked by another process") {
                format!("{what}: stop etcd first")
            } else {
                what
            })
        })?;
        etcd_dir::check_versions(source.meta.storage_version.as_deref(), &source.membership)?;
        // False if users are imported, because in that case the state machine checks permissions itself, as
        // etcd does.
        let guarded = leave_out.users && source.base.auth().map_err(Failure::error)?.enabled;
        if let Some(loss) = source.old_store.loss()
            && !leave_out.old_store
        {
            return Err(Failure::error(format!(
                "the old store (API version 2) would be lost, and {loss}: neither Mainstay nor etcd 3.6 \
                 and later has such a store. Move it into the key space of version 3 with --migrate-v2, or \
                 leave it out with --without-old-store"
            )));
        }
        Ok(Import { source, leave_out, guarded })
    }

    /// Returns the ids of the member and its cluster.
    pub fn identity(&self) -> Identity {
        let identity = self.source.wal.identity;
        Identity { member_id: identity.member_id, cluster_id: identity.cluster_id }
    }

    /// Writes Mainstay's directory: first the contents of etcd's database, then the entries of its log and
    /// the hard state, then the keys of etcd's v2 store.
    pub fn fill(
        &self,
        mut restoration: Restoration,
        notices: &mut Notices,
        migration: Option<&mut Migration>,
        watching: &mut Watching<'_>,
    ) -> Result<Filled, Failure> {
        let source = &self.source;
        let index = source.base_index();
        let term = source
            .base_term()
            .ok_or_else(|| Failure::error(format!("the term of entry {index} is unknown")))?;
        let (mut machine, lease_ids) = self.fill_database(notices, &mut restoration, term, watching)?;
        let before = self.kept_before(index)?;
        let mut tail = Tail {
            import: self,
            first: before.map_or(index, |entry| entry.index.0) + 1,
            next: before.map_or(index, |entry| entry.index.0) + 1,
            term: before.map_or(term, |entry| entry.term.0),
            guarded: self.guarded,
            left_out: 0,
            lease_ids,
            watching: &mut *watching,
        };
        let promised = source.wal.hard_state;
        // Raise the term of the hard state to that of the log's last entry, in which the member has certainly
        // taken part: the last record of the hard state may have been lost.
        let newest = source.wal.term(source.wal.last()).unwrap_or(0).max(term);
        let hard_state = HardState {
            term: Term(promised.term.max(newest)),
            vote: if promised.term < newest { MemberId::NONE } else { MemberId(promised.vote) },
            commit: Index(source.end()),
        };
        let mut terms =
            restoration.follow(&mut machine, hard_state, before, &mut tail).map_err(Failure::error)?;
        let Tail { left_out, lease_ids, .. } = tail;
        if let Some(migration) = migration {
            migration.begin(machine.store.current_revision(), &lease_ids);
            let last = (hard_state, source.wal.last().max(index));
            move_old_store(&mut restoration, &mut machine, last, (migration, &mut terms), watching)?;
        }
        let refused_learner = restoration.refused_learner();
        restoration.finish(machine, &terms).map_err(Failure::error)?;
        Ok(Filled { left_out, refused_learner })
    }

    /// Copies the state in etcd's database to a state machine. The database is at entry `base_index`, whose
    /// raft term is `term`. Returns the machine and the ids of its leases.
    fn fill_database(
        &self,
        notices: &mut Notices,
        restoration: &mut Restoration,
        term: u64,
        watching: &mut Watching<'_>,
    ) -> Result<(Machine, HashSet<LeaseId>), Failure> {
        let source = &self.source;
        let leases = etcd_dir::leases(&source.base)?;
        let lease_ids = leases.iter().map(|lease| lease.id).collect();
        let mut filling = restoration
            .fill(RestoredHead {
                compact_revision: source.meta.compact_revision().unwrap_or(Revision::NEVER_COMPACTED),
                index: Index(source.base_index()),
                term: Term(term),
                leases,
                alarms: source.base.alarms().map_err(Failure::error)?,
                members: etcd_database::members(&source.membership),
                auth: etcd_dir::users(&source.base, self.leave_out.users)?,
                // The members of the cluster may have stopped at different entries, so this state must not be
                // compared with the imported states of other members.
                is_shared: false,
            })
            .map_err(Failure::error)?;
        let without_lease = etcd_dir::take_history(&source.base, &lease_ids, &mut filling, &mut |bytes| {
            watching(Passed::Bytes(bytes))
        })?;
        let machine = filling.finish(None).map_err(Failure::error)?;
        watching(Passed::Database)?;
        without_lease.warn(notices);
        Ok((machine, lease_ids))
    }

    /// Returns the entry after which the new log begins; `None` if the log begins after entry `base`, at
    /// which the database is. The new log keeps some earlier entries, although the database already contains
    /// their effects, so that this member, as leader, can send them to slow followers, which may run etcd.
    fn kept_before(&self, base: u64) -> Result<Option<EntryId>, Failure> {
        let wal = &self.source.wal;
        let (mut first, mut bytes) = (base + 1, 0);
        while first > wal.first() && base + 1 - first < KEPT_ENTRIES_MAX {
            let Some(entry) = wal.entry(first - 1).map_err(Failure::error)? else { break };
            let data = entry.data.clone().unwrap_or_default();
            bytes += data.len();
            let is_same = match interchange::Command::of(&entry) {
                Ok(interchange::Command::Request(today)) => today == data,
                Ok(interchange::Command::Nothing) => data.is_empty(),
                Ok(interchange::Command::ConfChange(_)) => true,
                // Mainstay never sends requests to etcd's v2 store to other members, so the kept entries
                // begin after the last such request.
                Ok(interchange::Command::OldWrite { .. }) | Err(_) => false,
            };
            if !is_same || bytes > KEPT_BYTES_MAX {
                break;
            }
            first -= 1;
        }
        let before = (first <= base).then(|| wal.term(first).map(|term| (first, term))).flatten();
        Ok(before.map(|(index, term)| EntryId { index: Index(index), term: Term(term) }))
    }
}

/// Rebuilds the contents of etcd's v2 store and plans how its keys are moved to the v3 key space.
///
/// # Errors
///
/// Returns an error if the v2 store cannot be rebuilt, if an alarm prevents writing keys, or if the cluster
/// has other members. Members may have stopped at different entries, so each would add the migration's
/// entries at a different index of its log.
fn plan_migration(
    session: &Session<'_>,
    source: &DataDir,
    asked: &old_store::Options,
) -> Result<Migration, Failure> {
    let me = source.wal.identity.member_id;
    if !source.voters.iter().eq([&me]) {
        return Err(Failure::error(format!(
            "--migrate-v2 requires a cluster with one voting member, but this one has {}: start etcd once \
             on a copy of one member's directory with --force-new-cluster, stop it, import that directory, \
             and add the other members again or restore a snapshot for each",
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
            "the alarm {name} is raised, so no key can be written: start etcd once more, fix the cause, \
             disarm the alarm (etcdctl alarm disarm), stop etcd, and import again"
        )));
    }
    Ok(migration)
}

/// Returns the alarms that are active at the end of the log: their types and the members that raised them.
fn raised(source: &DataDir) -> Result<BTreeSet<(i32, u64)>, Failure> {
    let alarms = source.base.alarms().map_err(Failure::error)?;
    let mut raised: BTreeSet<_> = alarms.iter().map(|alarm| (alarm.alarm, alarm.member_id)).collect();
    for entry in source.entries() {
        // Skip an entry that cannot be decoded, because it is reported later, when it is converted.
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

/// Appends the entries that put the keys of etcd's v2 store into the v3 key space after the last entry of the
/// log.
///
/// The appended entries need a term that no entry of etcd has, not even an entry that only a learner has
/// received. etcd's leader sends entries while it is still writing them, so a learner may have entries that
/// this log lacks. Their term is the last recorded term or, if etcd was killed during an election, the term
/// after it. If such an entry had the same index and term as an appended entry, raft would take the two for
/// the same entry. Therefore the term of the appended entries is the last recorded term plus 2.
fn move_old_store(
    restoration: &mut Restoration,
    machine: &mut Machine,
    (before, last): (HardState, u64),
    (migration, terms): (&Migration, &mut Terms),
    watching: &mut Watching<'_>,
) -> Result<(), Failure> {
    let added = migration.requests();
    if added == 0 {
        return Ok(());
    }
    let high = || {
        Failure::error(format!("the log ends at entry {last} of term {}: no entry can follow", before.term))
    };
    let term = Term(before.term.0.checked_add(2).ok_or_else(high)?);
    let commit = Index(last.checked_add(added).ok_or_else(high)?);
    let mut entries = (0..added).filter_map(|number| {
        let data = migration.request(number)?.encode_to_vec().into();
        let entry = log::Entry { term, index: Index(last + 1 + number), entry_type: 0, data };
        let watched = watching(Passed::OldKeys(number)).map_err(TailError::Ended);
        Some(watched.map(|()| RestoredEntry { applies: true, entry }).map_err(Into::into))
    });
    let hard_state = HardState { term, vote: MemberId::NONE, commit };
    restoration.follow_on(machine, hard_state, &mut entries, terms).map_err(Failure::error)
}

/// Maximum number of entries that the new log keeps although the database already contains their effects.
/// etcd keeps the same number.
const KEPT_ENTRIES_MAX: u64 = 5000;
/// Maximum size in bytes of the entries that the new log keeps although the database already contains their
/// effects.
const KEPT_BYTES_MAX: usize = 64 << 20;

/// Iterator over the entries of etcd's log that the new log gets, converted to current requests: the kept
/// entries whose effects the database already contains, and then all later entries.
struct Tail<'s, 'w> {
    import: &'s Import,
    first: u64,
    next: u64,
    term: u64,
    /// True if users are left out although authentication is enabled, at this point of the log. In this case,
    /// requests whose permissions etcd checks only when it applies them are refused.
    guarded: bool,
    /// Number of entries left out because they concern users, roles or authentication.
    left_out: u64,
    /// Ids of the leases in etcd's database, and of those that the later entries of the log grant.
    lease_ids: HashSet<LeaseId>,
    watching: &'s mut Watching<'w>,
}

/// Reason why an entry after the database's state cannot be imported.
#[derive(Debug)]
enum TailError {
    /// etcd's log cannot be read.
    Read(interchange::Error),
    /// The log does not have the entry.
    Missing { index: u64 },
    /// The entry has a structure that etcd does not write.
    Damaged { index: u64, error: interchange::Malformed },
    /// The term of the entry is lower than that of the entry before it.
    Term { index: u64, term: u64, before: u64 },
    /// The entry is a request that this release of Mainstay cannot decode.
    Unknown { index: u64, error: prost::DecodeError },
    /// The entry changes etcd's v2 store, and the change would be lost.
    OldStore { index: u64, method: String, path: String },
    /// The entry contains a password in plain text, which etcd hashes only when it applies the entry.
    Password { index: u64, change: &'static str },
    /// Only etcd could decide whether the user was permitted to make this request, because users are left
    /// out.
    Guarded { index: u64 },
    /// The caller's callback has ended the import.
    Ended(Failure),
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
                write!(f, "entry {index} is not a request that this version knows: {error}")
            }
            TailError::OldStore { index, method, path } => write!(
                f,
                "entry {index} is a request to the old store (API version 2), {method} {path}; neither \
                 Mainstay nor etcd 3.6 and later has this store: move its keys with --migrate-v2, or leave \
                 them out with --without-old-store"
            ),
            TailError::Password { index, change } => write!(
                f,
                "entry {index} requests {change} with an unhashed password, as written by etcd before 3.5, \
                 and is not in etcd's database yet: start etcd on the directory once more and stop it \
                 cleanly (SIGTERM), which writes the database, then try again"
            ),
            TailError::Guarded { index } => write!(
                f,
                "entry {index} is not in etcd's database yet, and only etcd can decide whether its user \
                 was permitted to make this request: start etcd on the directory once more and stop it \
                 cleanly (SIGTERM), which writes the database, then try again"
            ),
            TailError::Ended(failure) => failure.fmt(f),
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

impl Iterator for Tail<'_, '_> {
    type Item = Result<RestoredEntry, Box<dyn Error + Send + Sync>>;

    fn next(&mut self) -> Option<Self::Item> {
        let index = self.next;
        if index > self.import.source.wal.last() {
            return None;
        }
        self.next += 1;
        let watched = (self.watching)(Passed::Entries(index - self.first)).map_err(TailError::Ended);
        Some(watched.and_then(|()| self.entry(index)).map_err(Into::into))
    }
}

impl Tail<'_, '_> {
    fn entry(&mut self, index: u64) -> Result<RestoredEntry, TailError> {
        let found = self.import.source.wal.entry(index).map_err(TailError::Read)?;
        let entry = found.ok_or(TailError::Missing { index })?;
        let command =
            interchange::Command::of(&entry).map_err(|error| TailError::Damaged { index, error })?;
        let term = entry.term();
        if term < self.term {
            return Err(TailError::Term { index, term, before: self.term });
        }
        self.term = term;
        let is_old = index <= self.import.source.base_index();
        let (entry_type, data) = match command {
            interchange::Command::Nothing => (0, Bytes::new()),
            interchange::Command::ConfChange(_) => (1, entry.data.unwrap_or_default()),
            // Keep the entry even if it changes users: it is not applied again, because the database already
            // contains its effect.
            interchange::Command::Request(data) if is_old => (0, data),
            interchange::Command::Request(data) => (0, self.request(index, data)?),
            interchange::Command::OldWrite { .. } if self.import.leave_out.old_store => (0, Bytes::new()),
            interchange::Command::OldWrite { method, path } => {
                return Err(TailError::OldStore { index, method, path });
            }
        };
        let entry = log::Entry { term: Term(term), index: Index(index), entry_type, data };
        Ok(RestoredEntry { applies: !is_old && index <= self.import.source.end(), entry })
    }

    fn request(&mut self, index: u64, data: Bytes) -> Result<Bytes, TailError> {
        let request =
            InternalRaftRequest::decode(data.clone()).map_err(|error| TailError::Unknown { index, error })?;
        self.lease_ids.extend(request.lease_grant.as_ref().map(|grant| LeaseId(grant.id)));
        if let Some(change) = change_of_users(&request) {
            if !self.import.leave_out.users {
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

/// Returns a description of the request if it belongs to etcd's Auth service, including logins and reads;
/// `None` for all other requests.
fn change_of_users(request: &InternalRaftRequest) -> Option<&'static str> {
    let all = [
        (request.auth_enable.is_some(), "authentication to be on"),
        (request.auth_disable.is_some(), "authentication to be off"),
        (request.authenticate.is_some(), "a log-in"),
        (request.auth_status.is_some(), "the state of authentication"),
        (request.auth_user_add.is_some(), "a user"),
        (request.auth_user_delete.is_some(), "a user to be deleted"),
        (request.auth_user_get.is_some(), "the permissions of a user"),
        (request.auth_user_change_password.is_some(), "another password"),
        (request.auth_user_grant_role.is_some(), "a role for a user"),
        (request.auth_user_revoke_role.is_some(), "a role to be taken from a user"),
        (request.auth_user_list.is_some(), "the users"),
        (request.auth_role_list.is_some(), "the roles"),
        (request.auth_role_add.is_some(), "a role"),
        (request.auth_role_delete.is_some(), "a role to be deleted"),
        (request.auth_role_get.is_some(), "the permissions of a role"),
        (request.auth_role_grant_permission.is_some(), "a permission for a role"),
        (request.auth_role_revoke_permission.is_some(), "a permission to be taken from a role"),
    ];
    all.into_iter().find_map(|(is, what)| is.then_some(what))
}

/// Returns true if the entry contains a password in plain text.
fn has_plain_password(request: &InternalRaftRequest) -> bool {
    let is_plain = |password: &str, hashed: &str| !password.is_empty() && hashed.is_empty();
    request.auth_user_add.as_ref().is_some_and(|user| is_plain(&user.password, &user.hashed_password))
        || request
            .auth_user_change_password
            .as_ref()
            .is_some_and(|change| is_plain(&change.password, &change.hashed_password))
}

/// Returns true if etcd checks the user's permissions only when it applies this request.
fn may_be_refused(request: &InternalRaftRequest) -> bool {
    request.put.is_some()
        || request.delete_range.is_some()
        || request.txn.is_some()
        || request.lease_revoke.is_some()
        || request.compaction.is_some()
        || request.lease_grant.is_some()
        || request.alarm.is_some()
}
