//! `snapshot restore`: creates a data directory with the state of a snapshot, from which a member of a new
//! cluster starts.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cli::{Command, Failure, Flag, Progress};
use disk::RealDisk;
use interchange::backend::{Backend, Copy, Meta, Release};
use interchange::{NewDataDir, NewMember, Source as _};
use log::HardState;
use machine::auth::Auth;
use machine::snapshot::SnapshotReader;
use machine::transfer::{TransferReader, TransferWriter};
use machine::{Alarms, Machine};
use numbers::{MemberId, Revision, Term};
use storage::Identity;
use storage::etcd_database;
use storage::restoration::{Restoration, RestorationError, RestoredHead, bumped};
use storage::values::LogValues;
use telemetry::logging::Logger;

use crate::cluster::{ClusterOptions, NewCluster};
use crate::etcd_dir::WithoutLease;
use crate::export::Agreed;
use crate::notice::Notices;
use crate::restore_flags::{
    BUMP_REVISION, DATA_DIR, FORMAT, INITIAL_ADVERTISE_PEER_URLS, INITIAL_CLUSTER, INITIAL_CLUSTER_TOKEN,
    MARK_COMPACTED, NAME, RestoreFlags, WITHOUT_USERS,
};
use crate::session::Run;
use crate::snapshot_file::{SnapshotFile, stat};
use crate::target::{Target, is_taken, left_by_first_start};
use crate::wal_dir::{self, WalDir};
use crate::{Session, etcd_dir, export};

const INITIAL_MEMORY_MAP_SIZE: Flag<u64> = Flag::uint(
    "initial-memory-map-size",
    "10737418240",
    "Initial memory map size of the database in bytes (no effect: the database is not memory-mapped)",
);
const SKIP_HASH_CHECK: Flag<bool> = Flag::bool(
    "skip-hash-check",
    "Ignore snapshot integrity hash value (required if copied from data directory)",
);
const WAL_DIR: Flag<String> =
    Flag::text("wal-dir", "", "Path to the WAL directory (use --data-dir if none given)");

pub(crate) const RESTORE: Command<Run> = Command {
    name: "restore",
    usage: "restore <filename> --data-dir {output dir} [options]",
    about: "Restores an etcd member snapshot to an etcd directory",
    example: "  etcdutl snapshot restore backup.db --data-dir new.etcd && mainstay --data-dir new.etcd
  etcdutl snapshot restore backup.db --data-dir m1 --name m1 --initial-cluster \\
      m1=http://10.0.0.1:2380,m2=http://10.0.0.2:2380 --initial-advertise-peer-urls http://10.0.0.1:2380
  etcdutl snapshot restore backup.db --data-dir for.etcd --format etcd",
    flags: &[
        BUMP_REVISION.row(),
        DATA_DIR.row(),
        FORMAT.row(),
        INITIAL_ADVERTISE_PEER_URLS.row(),
        INITIAL_CLUSTER.row(),
        INITIAL_CLUSTER_TOKEN.row(),
        INITIAL_MEMORY_MAP_SIZE.row(),
        MARK_COMPACTED.row(),
        NAME.row(),
        SKIP_HASH_CHECK.row(),
        WAL_DIR.row(),
        WITHOUT_USERS.row(),
    ],
    run: Some(Run(run)),
    ..Command::EMPTY
};

/// Raft term of the entries with which the log of a restored member begins.
const TERM: Term = Term(1);
/// Number of bytes that one read takes from a snapshot in Mainstay's own format.
const CHUNK_BYTES: usize = 256 << 10;

/// The program that will serve the restored directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Mainstay,
    Etcd,
}

struct Options {
    snapshot: PathBuf,
    data_dir: PathBuf,
    /// Directory of the log that the user names; `None` for the usual directory in the data directory.
    wal_dir: Option<WalDir>,
    cluster: NewCluster,
    format: Format,
    bump: Option<u64>,
    skip_hash_check: bool,
    without_users: bool,
    without_alarms: bool,
}

/// A copy of a cluster's keys, history and leases for a process that follows the cluster without being part of it.
pub struct CopyOptions<'c> {
    /// File of the snapshot, which ends with its checksum.
    pub snapshot: &'c Path,
    /// The data directory, which must be missing or empty.
    pub data_dir: &'c Path,
    /// Name of the member.
    pub name: &'c str,
    /// Cluster token, from which the cluster id of the copy is computed.
    pub token: &'c str,
    /// Receives warnings.
    pub logger: &'c Arc<Logger>,
}

/// The revisions of a restored copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoredCopy {
    /// Revision of the snapshot.
    pub revision: Revision,
    /// Compact revision of the snapshot; -1 if it was never compacted.
    pub compact_revision: Revision,
}

/// Restores a snapshot as the data directory of a member that is alone in its cluster, without the snapshot's
/// users, which may not log in to a copy, and without its alarms, which would make the copy refuse changes that
/// the cluster accepts later.
///
/// # Errors
///
/// Returns an error if the snapshot is damaged or was written by a release that is not supported, if the
/// directory is not empty, or if the disk refuses.
pub fn restore_copy(copy: &CopyOptions<'_>) -> Result<RestoredCopy, Failure> {
    crate::target::refuse_taken(copy.data_dir, "")?;
    let options = Options {
        snapshot: copy.snapshot.to_owned(),
        data_dir: copy.data_dir.to_owned(),
        wal_dir: None,
        cluster: NewCluster::of(&ClusterOptions {
            name: copy.name.to_owned(),
            initial_cluster: format!("{}={COPY_PEER_URL}", copy.name),
            token: copy.token.to_owned(),
            advertised: COPY_PEER_URL.to_owned(),
        })?,
        format: Format::Mainstay,
        bump: None,
        skip_hash_check: false,
        without_users: true,
        without_alarms: true,
    };
    let file = SnapshotFile::verify(copy.snapshot, false, &mut |_| {})?;
    let target = Target::begin(copy.data_dir)?;
    let mut progress = Progress::of_bytes("restoring", None);
    let done = match &file {
        SnapshotFile::Etcd(from) => to_mainstay(&options, from, &target, &mut progress)?,
        SnapshotFile::Own(from, bytes) => {
            let begun = begin(&options, target.making(), None)?;
            let (begun, machine) = read_own(&options, from, *bytes, begun, &mut progress)?;
            finish_mainstay(&options, begun, machine)?
        }
    };
    target.finish()?;
    progress.finish();
    done.without_lease.warn(&mut Notices::in_log(copy.logger));
    Ok(RestoredCopy { revision: done.revision, compact_revision: done.compact_revision })
}

/// Makes a data directory for a member of a new cluster, as `snapshot restore` does, from the machine that `make`
/// returns. `make` gets a working directory, which does not exist yet and is removed afterwards, and returns the
/// machine with the values of its versions.
///
/// # Errors
///
/// Returns the error of `make`, or an error if the options contradict each other, the data directory is taken, or the
/// disk refuses.
pub fn restore_moment(
    moment: RestoreFlags,
    make: impl FnOnce(&Path) -> Result<(Machine, LogValues), Failure>,
) -> Result<RestoredCopy, Failure> {
    crate::target::refuse_taken(&moment.data_dir, "")?;
    let options = Options {
        snapshot: PathBuf::new(),
        data_dir: moment.data_dir,
        wal_dir: None,
        cluster: NewCluster::of(&moment.cluster)?,
        format: if moment.for_etcd { Format::Etcd } else { Format::Mainstay },
        bump: moment.bump,
        skip_hash_check: false,
        without_users: moment.without_users,
        without_alarms: false,
    };
    let target = Target::begin(&options.data_dir)?;
    let (work, between) = (target.making().join("work"), target.making().join("between"));
    let (mut machine, mut values) = make(&work)?;
    let mut progress = Progress::of_bytes("writing the data directory", None);
    let done = match options.format {
        Format::Mainstay => {
            let begun = begin(&options, target.making(), None)?;
            let (begun, machine) = continue_as_new(&options, &mut machine, values, begun)?;
            finish_mainstay(&options, begun, machine)?
        }
        Format::Etcd => {
            if options.bump.is_some() {
                let begun = begin(&options, &between, None)?;
                let ((restoration, _), raised) = continue_as_new(&options, &mut machine, values, begun)?;
                (machine, values) = (raised, restoration.values());
            } else {
                machine.members = new_members(&options, &mut machine.members);
            }
            let (new, wal) = begin_etcd(&options, target.making(), Release::V3_6)?;
            let agreed = Agreed { version: String::new(), downgrade_target: None, form: Release::V3_6 };
            export::write(&mut machine, &values, new, agreed, &mut progress)?;
            wal.map_or(Ok(()), Target::finish)?;
            Done {
                revision: machine.store.current_revision(),
                compact_revision: machine.store.compact_revision(),
                ..Done::default()
            }
        }
    };
    for dir in [work, between] {
        match std::fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Failure::error(format!("cannot remove {}: {error}", dir.display())));
            }
            _ => {}
        }
    }
    target.finish()?;
    progress.finish();
    Ok(RestoredCopy { revision: done.revision, compact_revision: done.compact_revision })
}

/// Returns the members of the new cluster, with the cluster version of the old one, as etcd's restore keeps it.
fn new_members(options: &Options, old: &mut machine::Members) -> machine::Members {
    let mut members = etcd_database::members(&options.cluster.membership);
    members.cluster_version = std::mem::take(&mut old.cluster_version);
    members
}

/// Writes the state of a machine into a directory that is being created, as that of a member of the new cluster.
fn continue_as_new(
    options: &Options,
    machine: &mut Machine,
    values: LogValues,
    (mut restoration, wal): (Restoration, Option<Target>),
) -> Result<((Restoration, Option<Target>), Machine), Failure> {
    let view = machine.store.publish();
    let mut writer = TransferWriter::new(view, machine.head(), Revision(0));
    let chunks = std::iter::from_fn(|| {
        writer.next_chunk(&values).map_err(|error| RestorationError::Source(Box::new(error))).transpose()
    });
    let mut reader = TransferReader::open(chunks).map_err(Failure::error)?;
    let head = reader.head_mut();
    head.members = new_members(options, &mut head.members);
    if options.without_users {
        head.auth = Auth::default();
    }
    (head.applied_index, head.applied_term) = (options.cluster.index(), TERM);
    let machine = restoration.take_transfer(reader, options.bump).map_err(Failure::error)?;
    Ok(((restoration, wal), machine))
}

/// Peer URL of the only member of a copy. Nobody connects to it.
const COPY_PEER_URL: &str = "http://localhost:2380";

/// Facts about a restored state that the command prints.
#[derive(Default)]
struct Done {
    revision: Revision,
    compact_revision: Revision,
    without_lease: WithoutLease,
}

fn run(session: &mut Session<'_>) -> Result<(), Failure> {
    let options = options(session)?;
    let paths = [
        ("path", options.snapshot.display().to_string().into()),
        ("data-dir", options.data_dir.display().to_string().into()),
        ("format", if options.format == Format::Etcd { "etcd" } else { "mainstay" }.into()),
    ];
    session.notices.info("restoring snapshot", &paths);
    let total = std::fs::metadata(&options.snapshot).map(|found| found.len()).ok();
    let mut progress = Progress::of_bytes("verifying", total);
    let file =
        SnapshotFile::verify(&options.snapshot, options.skip_hash_check, &mut |at| progress.at(at, ""))?;
    progress.finish();
    let mut progress = Progress::of_bytes("restoring", total);
    let target = Target::begin(&options.data_dir)?;
    let done = match (&file, options.format) {
        (SnapshotFile::Etcd(from), Format::Mainstay) => to_mainstay(&options, from, &target, &mut progress)?,
        (SnapshotFile::Etcd(from), Format::Etcd) => to_etcd(&options, from, &target, &mut progress)?,
        (SnapshotFile::Own(from, bytes), Format::Mainstay) => {
            let begun = begin(&options, target.making(), options.wal_dir.as_ref())?;
            let (begun, machine) = read_own(&options, from, *bytes, begun, &mut progress)?;
            finish_mainstay(&options, begun, machine)?
        }
        (SnapshotFile::Own(from, bytes), Format::Etcd) => {
            own_to_etcd(&options, from, *bytes, &target, &mut progress)?
        }
    };
    target.finish()?;
    progress.finish();
    done.without_lease.warn(&mut session.notices);
    let mut fields = Vec::from(paths);
    let identity = &options.cluster.identity;
    for member in &options.cluster.membership.members {
        session.notices.info(
            "added member",
            &[
                ("cluster-id", format!("{:x}", identity.cluster_id).into()),
                ("local-member-id", "0".into()),
                ("added-peer-id", format!("{:x}", member.id).into()),
                ("added-peer-peer-urls", member.peer_urls.clone().into()),
                ("added-peer-is-learner", false.into()),
            ],
        );
    }
    fields.extend([
        ("member-id", format!("{:x}", identity.member_id).into()),
        ("cluster-id", format!("{:x}", identity.cluster_id).into()),
        ("revision", done.revision.0.into()),
        ("compact-revision", done.compact_revision.0.into()),
    ]);
    session.notices.info("restored snapshot", &fields);
    Ok(())
}

fn options(session: &mut Session<'_>) -> Result<Options, Failure> {
    if session.matches.args.len() != 1 {
        return Err(Failure::bad_args("snapshot restore requires exactly one argument"));
    }
    let snapshot = crate::session::one_arg(session)?;
    let given = session.matches;
    let RestoreFlags { data_dir, cluster, for_etcd, bump, without_users } = RestoreFlags::read(given)?;
    let wal_dir = Some(given.get(WAL_DIR)).filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let cluster = NewCluster::of(&cluster)?;
    if is_taken(&data_dir).unwrap_or(true) {
        let name = cli::go::quote(data_dir.display().to_string());
        let left = left_by_first_start(&data_dir).map_or(String::new(), |member_dir| {
            format!(
                ": it holds no member, only the remains of a failed first start: `rm -r {}`, and try again",
                member_dir.display()
            )
        });
        return Err(Failure::error(format!("data-dir {name} not empty or could not be read{left}")));
    }
    if let Some(wal_dir) = wal_dir.as_ref().filter(|dir| stat(dir).is_ok()) {
        let name = cli::go::quote(wal_dir.display().to_string());
        return Err(Failure::error(format!("wal-dir {name} exists")));
    }
    let wal_dir =
        wal_dir.map(|wal_dir| WalDir::of(&wal_dir, &data_dir, ("wal-dir", "data-dir"))).transpose()?;
    Ok(Options {
        snapshot,
        data_dir,
        wal_dir,
        cluster,
        format: if for_etcd { Format::Etcd } else { Format::Mainstay },
        bump,
        skip_hash_check: given.get(SKIP_HASH_CHECK),
        without_users,
        without_alarms: false,
    })
}

/// Converts etcd's database to a data directory of Mainstay.
fn to_mainstay(
    options: &Options,
    from: &Backend<File>,
    target: &Target,
    progress: &mut Progress,
) -> Result<Done, Failure> {
    let meta = from.meta().map_err(Failure::error)?;
    let before = from.membership().map_err(Failure::error)?;
    etcd_dir::check_versions(meta.storage_version.as_deref(), &before)?;
    let auth = etcd_dir::users(from, options.without_users)?;
    let mut members = etcd_database::members(&options.cluster.membership);
    // Keep the snapshot's cluster version, as etcd's restore does.
    members.cluster_version = before.cluster_version;
    let (mut restoration, wal) = begin(options, target.making(), options.wal_dir.as_ref())?;
    let leases = etcd_dir::leases(from)?;
    let lease_ids = leases.iter().map(|lease| lease.id).collect();
    let mut filling = restoration
        .fill(RestoredHead {
            compact_revision: meta.compact_revision().unwrap_or(Revision::NEVER_COMPACTED),
            index: options.cluster.index(),
            term: TERM,
            leases,
            alarms: if options.without_alarms {
                Vec::new()
            } else {
                from.alarms().map_err(Failure::error)?
            },
            members,
            auth,
            is_shared: true,
        })
        .map_err(Failure::error)?;
    let without_lease = etcd_dir::take_history(from, &lease_ids, &mut filling, &mut |bytes| {
        progress.at(bytes, "");
        Ok(())
    })?;
    let machine = filling.finish(options.bump).map_err(Failure::error)?;
    Ok(Done { without_lease, ..finish_mainstay(options, (restoration, wal), machine)? })
}

/// Begins a data directory of Mainstay in `dir`, and a separate directory for the log if one is requested.
/// `wal_dir` is the final path of the log.
fn begin(
    options: &Options,
    dir: &Path,
    wal_dir: Option<&WalDir>,
) -> Result<(Restoration, Option<Target>), Failure> {
    let identity = options.cluster.identity;
    let identity = Identity { member_id: identity.member_id, cluster_id: identity.cluster_id };
    wal_dir::begin(dir, &options.data_dir, wal_dir, identity)
}

fn finish_mainstay(
    options: &Options,
    (mut restoration, wal): (Restoration, Option<Target>),
    mut machine: Machine,
) -> Result<Done, Failure> {
    let done = Done {
        revision: machine.store.current_revision(),
        compact_revision: machine.store.compact_revision(),
        ..Done::default()
    };
    let hard_state =
        HardState { term: TERM, vote: MemberId(options.cluster.vote()), commit: options.cluster.index() };
    let terms = restoration
        .follow(&mut machine, hard_state, None, &mut std::iter::empty())
        .map_err(Failure::error)?;
    restoration.finish(machine, &terms).map_err(Failure::error)?;
    // Move the log's directory to its final name first, so that a data directory with its final name always
    // has its log.
    wal.map_or(Ok(()), Target::finish)?;
    Ok(done)
}

/// Restores a snapshot in Mainstay's own format into a directory that is being created.
fn read_own(
    options: &Options,
    from: &File,
    bytes: u64,
    (mut restoration, wal): (Restoration, Option<Target>),
    progress: &mut Progress,
) -> Result<((Restoration, Option<Target>), Machine), Failure> {
    let mut at = 0;
    let chunks = std::iter::from_fn(|| {
        let len = usize::try_from(bytes - at).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
        let mut chunk = vec![0; len];
        let read = from.read_exact_at(&mut chunk, at);
        at += len as u64;
        progress.at(at, "");
        (len > 0).then(|| read.map(|()| chunk).map_err(|error| RestorationError::Source(error.into())))
    });
    let mut reader = SnapshotReader::open(chunks).map_err(Failure::error)?;
    let head = reader.head_mut();
    let cluster_version = std::mem::take(&mut head.members.cluster_version);
    head.members = etcd_database::members(&options.cluster.membership);
    head.members.cluster_version = cluster_version;
    if options.without_users {
        head.auth = Auth::default();
    }
    if options.without_alarms {
        head.alarms = Alarms::default();
    }
    (head.applied_index, head.applied_term) = (options.cluster.index(), TERM);
    let machine = restoration.take_snapshot(reader, options.bump).map_err(Failure::error)?;
    Ok(((restoration, wal), machine))
}

/// Returns the description of the member with which etcd will start.
fn new_member(options: &Options, release: Release) -> NewMember {
    NewMember {
        identity: options.cluster.identity,
        index: options.cluster.index().0,
        term: TERM.0,
        release,
        conf_state: options.cluster.membership.conf_state(),
        newest_term: TERM.0,
        vote: options.cluster.vote(),
        entries: Vec::new(),
    }
}

/// Begins a data directory of etcd, and a separate directory for the log if one is requested.
fn begin_etcd<'d>(
    options: &Options,
    dir: &Path,
    release: Release,
) -> Result<(NewDataDir<'d>, Option<Target>), Failure> {
    let member = new_member(options, release);
    let (new, wal) = match &options.wal_dir {
        None => (NewDataDir::begin(&RealDisk, dir, member), None),
        // The log's directory is created inside the data directory, so one rename moves both.
        Some(WalDir::Inside(below)) => {
            (NewDataDir::begin_with(&RealDisk, dir, &dir.join(below), member), None)
        }
        Some(WalDir::Apart(path)) => {
            let wal = Target::begin(path)?;
            (NewDataDir::begin_with(&RealDisk, dir, wal.making(), member), Some(wal))
        }
    };
    Ok((new.map_err(Failure::error)?, wal))
}

/// Copies etcd's database, but replaces its records about members and about the position in the raft log.
fn to_etcd(
    options: &Options,
    from: &Backend<File>,
    target: &Target,
    progress: &mut Progress,
) -> Result<Done, Failure> {
    let before = from.meta().map_err(Failure::error)?;
    let release = release_of(&before)?;
    let (new, wal) = begin_etcd(options, target.making(), release)?;
    let mut copy = Copy::of(from, release).map_err(Failure::error)?;
    let mut membership = options.cluster.membership.clone();
    membership.cluster_version = std::mem::take(&mut copy.membership.cluster_version);
    copy.membership = membership;
    copy.meta = Meta {
        scheduled_compact_revision: before.scheduled_compact_revision,
        finished_compact_revision: before.finished_compact_revision,
        ..new.meta(None)
    };
    // As in `etcdutl`, the bump is added to the revision of the last change, even if that change was
    // compacted.
    let mut last = Revision(0);
    // The first plan has no bump. It visits all revisions, so it determines the last one, to which the bump
    // is added.
    let mut plan = copy.plan_with(&mut |at| last = last.max(at)).map_err(Failure::error)?;
    if let Some(by) = options.bump {
        last = bumped(last, by).map_err(Failure::error)?;
        copy.bump = Some(last);
        copy.meta.scheduled_compact_revision = Some(last);
        plan = copy.plan().map_err(Failure::error)?;
    }
    let compacted = copy.meta.compact_revision();
    let revision = last.max(compacted.unwrap_or(Revision::FIRST)).max(Revision::FIRST);
    let mut database = new.database(plan).map_err(|e| unwritten(options, &e))?;
    let share = plan.size_bytes() as f64 / revision.max(Revision(1)).0 as f64;
    copy.write_with(&mut database, &mut |at| progress.at((at.0 as f64 * share) as u64, ""))
        .map_err(|e| unwritten(options, &e))?;
    new.finish(database, &copy.membership).map_err(|e| unwritten(options, &e))?;
    // Move the log's directory to its final name first. If the process is killed before the data directory is
    // renamed too, only a log directory remains, on which etcd does not start.
    wal.map_or(Ok(()), Target::finish)?;
    Ok(Done { revision, compact_revision: compacted.unwrap_or(Revision::NEVER_COMPACTED), ..Done::default() })
}

fn unwritten(options: &Options, error: &dyn std::fmt::Display) -> Failure {
    Failure::error(format!("cannot write {}: {error}", options.data_dir.display()))
}

/// Returns the release whose format the restored database gets: the release of the snapshot. A snapshot of
/// 3.4 is restored in the format of 3.5, which 3.4 can read too, and which later releases require.
fn release_of(meta: &Meta) -> Result<Release, Failure> {
    match meta.storage_version.as_deref() {
        None => Ok(Release::V3_5),
        Some(version) => Release::of_cluster_version(version).ok_or_else(|| {
            Failure::error(format!(
                "the snapshot has version {version}, but this program supports versions up to {}",
                api::CLUSTER_VERSION
            ))
        }),
    }
}

/// Converts a snapshot in Mainstay's own format to a data directory of etcd. The snapshot is ordered by key,
/// but etcd's database must be written in the order of revisions, so the snapshot is first restored to a
/// temporary directory of Mainstay.
fn own_to_etcd(
    options: &Options,
    from: &File,
    bytes: u64,
    target: &Target,
    progress: &mut Progress,
) -> Result<Done, Failure> {
    let between = target.making().join("between");
    let begun = begin(options, &between, None)?;
    let ((restoration, _), mut machine) = read_own(options, from, bytes, begun, progress)?;
    let (new, wal) = begin_etcd(options, target.making(), Release::V3_6)?;
    // No cluster version is written, because the new cluster will agree on one itself.
    let agreed = Agreed { version: String::new(), downgrade_target: None, form: Release::V3_6 };
    export::write(&mut machine, &restoration.values(), new, agreed, progress)?;
    let done = Done {
        revision: machine.store.current_revision(),
        compact_revision: machine.store.compact_revision(),
        ..Done::default()
    };
    drop(restoration);
    std::fs::remove_dir_all(&between)
        .map_err(|e| Failure::error(format!("cannot remove {}: {e}", between.display())))?;
    wal.map_or(Ok(()), Target::finish)?;
    Ok(done)
}
