//! Forms a cluster of one member from a state: [`form`].

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cli::{Failure, Progress};
use disk::{Disk, RealDisk};
use log::HardState;
use machine::snapshot::{SnapshotReader, SnapshotWriter};
use machine::{Alarms, Member, Members, Rules};
use numbers::{EntryId, Index, MemberId, Revision, Term};
use storage::Identity;
use storage::recovered;
use storage::restoration::RestorationError;
use storage::stopped::Stopped;

use super::found::{Found, Source};
use crate::target::Target;
use crate::wal_dir::{self, WalDir};

/// Number of entries by which the new log begins after the newest entry that was found. Logs that were not found
/// may be longer, and an observer or a member takes over a state only if it is after the end of its log.
const INDEX_STEP: u64 = 1_000_000;

/// The cluster that is to be formed.
pub(super) struct Order {
    /// Data directory of its first member.
    pub data_dir: PathBuf,
    /// Directory of its log that the user names; `None` for the usual directory in the data directory.
    pub wal_dir: Option<WalDir>,
    pub name: String,
    pub peer_urls: Vec<String>,
    pub keeps_cluster_id: bool,
    /// Number by which the revision is raised; `None` if it stays.
    pub bump: Option<u64>,
    pub rules: Rules,
    /// Data directories of old members, which are marked so that no member starts on them again.
    pub marks: Vec<PathBuf>,
}

/// The cluster that was formed.
pub(super) struct Formed {
    pub identity: Identity,
    pub revision: Revision,
    pub compact_revision: Revision,
    pub keys: u64,
}

/// Returns the position at which the new log begins: after every entry, and in a later term than every member, of
/// which the directories tell.
pub(super) fn position(found: &[Found]) -> EntryId {
    let index =
        found.iter().filter(|found| found.has_log()).map(|found| found.heard.max(found.last.index)).max();
    let term = found.iter().filter(|found| found.has_log()).map(|found| found.term).max();
    EntryId {
        index: Index(index.unwrap_or_default().0.saturating_add(INDEX_STEP)),
        term: Term(term.unwrap_or_default().0.saturating_add(1)),
    }
}

/// Forms a cluster of one member with the state of `source`, in a new directory, which appears completely or not at
/// all. `position` is where its log begins ([`position`]).
///
/// The member gets an id that no member has had, so that nothing that old members send to each other reaches it.
/// If the cluster keeps its id, the old members count as removed: the new member refuses to talk to them.
///
/// # Errors
///
/// Returns an error if the source cannot be read, if the disk refuses or is full, or if the new directory does not
/// hold the state. Then nothing was formed, and nothing is marked.
pub(super) fn form(source: Source, position: EntryId, order: &Order) -> Result<Formed, Failure> {
    let Source { mut stopped, found } = source;
    let old = std::mem::take(&mut stopped.machine.members);
    let member_id = new_id(|id| id == 0 || old.by_id.contains_key(&id) || old.removed.contains(&id));
    let cluster_id = match order.keeps_cluster_id {
        true => found.cluster_id,
        false => new_id(|id| id == 0 || id == found.cluster_id),
    };
    let identity = Identity { member_id, cluster_id };
    let member = Member {
        id: member_id,
        peer_urls: order.peer_urls.clone(),
        name: order.name.clone(),
        ..Member::default()
    };
    let removed: BTreeSet<u64> = match order.keeps_cluster_id {
        true => old.removed.iter().chain(old.by_id.keys()).chain([&found.member_id]).copied().collect(),
        false => BTreeSet::new(),
    };
    let members = Members {
        by_id: BTreeMap::from([(member_id, member)]),
        removed,
        cluster_version: old.cluster_version.clone(),
        downgrade_target: None,
    };
    stopped.machine.members = old;
    let mut target = Target::begin(&order.data_dir)?;
    let (mut restoration, wal) =
        wal_dir::begin(target.making(), &order.data_dir, order.wal_dir.as_ref(), identity.clone())?;
    restoration.set_rules(order.rules);
    let failed = |error: &dyn std::fmt::Display| unformed(&order.data_dir, error);

    let values = stopped.values();
    let view = stopped.machine.store.publish();
    let keys = view.snapshot().live_keys();
    let mut writer = SnapshotWriter::new(view, stopped.machine.head());
    let mut progress = Progress::of_bytes("forming", Some(writer.remaining_bytes_max()));
    let mut done = 0;
    let chunks = std::iter::from_fn(|| {
        let chunk = writer.next_chunk(&values);
        if let Ok(Some(chunk)) = &chunk {
            done += chunk.len() as u64;
            progress.at(done, "");
        }
        chunk.map_err(|error| RestorationError::Source(error.into())).transpose()
    });
    let mut reader = SnapshotReader::open(chunks).map_err(|error| failed(&error))?;
    let head = reader.head_mut();
    head.members = members;
    // An alarm names a member that is no more; the new member raises its own.
    head.alarms = Alarms::default();
    (head.applied_index, head.applied_term) = (position.index, position.term);
    let mut machine = restoration.take_snapshot(reader, order.bump).map_err(|error| failed(&error))?;
    let hard_state = HardState { term: position.term, vote: MemberId(member_id), commit: position.index };
    let terms = restoration
        .follow(&mut machine, hard_state, None, &mut std::iter::empty())
        .map_err(|error| failed(&error))?;
    let revision = machine.store.current_revision();
    let compact_revision = machine.store.compact_revision();
    restoration.finish(machine, &terms).map_err(|error| failed(&error))?;
    progress.finish();
    drop(stopped);

    check(&target, order, wal.as_ref(), (revision, keys))?;
    place(&mut target, wal, order)?;
    target.finish()?;
    Ok(Formed { identity, revision, compact_revision, keys })
}

/// Returns a random id for which `is_taken` returns false.
fn new_id(is_taken: impl Fn(u64) -> bool) -> u64 {
    loop {
        // The keys of a `RandomState` are random numbers of the operating system.
        let id = RandomState::new().hash_one(std::process::id());
        if !is_taken(id) {
            return id;
        }
    }
}

fn unformed(data_dir: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::error(format!(
        "{error}; nothing was formed in {}, and nothing else was changed: run the same command again, or give --data-dir \
         on another disk if this one is full",
        data_dir.display()
    ))
}

/// Opens the new directory as a start would, and reads every value.
fn check(
    target: &Target,
    order: &Order,
    wal: Option<&Target>,
    (revision, keys): (Revision, u64),
) -> Result<(), Failure> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let log_dir = match (&order.wal_dir, wal) {
        (Some(WalDir::Inside(below)), _) => Some(target.making().join(below)),
        (_, Some(wal)) => Some(wal.making().to_path_buf()),
        _ => None,
    };
    let failed = |error: &dyn std::fmt::Display| unformed(&order.data_dir, error);
    let mut made = Stopped::open_with(&disk, target.making(), log_dir.as_deref(), order.rules)
        .map_err(|error| failed(&error))?;
    let hashed = made.hash_kv(Revision::CURRENT).map_err(|status| failed(&status.message))?;
    // Raising the revision leaves a pair with an empty key, which the state may have had before.
    let held = made.machine.store.stats().live_keys;
    let is_whole = held == keys || (order.bump.is_some() && held == keys + 1);
    if hashed.revision != revision || !is_whole {
        return Err(failed(&format!(
            "the new directory holds {held} keys at revision {}, not {keys} at revision {revision}, which is a bug",
            hashed.revision
        )));
    }
    Ok(())
}

/// Marks the old directories, and gives the new one its final name. A marked member does not start, so the old
/// members and the new one can never both run, even if this process is killed in between. For the same reason the
/// marks of a recovery that fails are removed only after the new directory.
fn place(target: &mut Target, wal: Option<Target>, order: &Order) -> Result<(), Failure> {
    let mut marked = Vec::new();
    let attempt = || {
        for data_dir in &order.marks {
            let member_dir = data_dir.join("member");
            let before = recovered::formed(&RealDisk, &member_dir).map_err(Failure::error)?;
            marked.push((member_dir.clone(), before));
            recovered::mark(&RealDisk, &member_dir, &order.data_dir).map_err(Failure::error)?;
        }
        // Move the log's directory to its final name first. If the process is killed before the second rename, only
        // a log directory remains, on which no member can start.
        wal.map_or(Ok(()), Target::finish)?;
        target.place()
    };
    let Err(failure) = attempt() else { return Ok(()) };
    if target.is_in_place() {
        return Err(failure);
    }
    let undone = match target.remove() {
        Err(error) => Err(format!("cannot remove {}: {error}", target.making().display())),
        Ok(()) => marked.iter().try_for_each(|(member_dir, before)| {
            // The mark of an earlier recovery stays: its cluster may run.
            let undone = match before {
                Some(to) => recovered::mark(&RealDisk, member_dir, to),
                None => recovered::unmark(&RealDisk, member_dir),
            };
            undone.map_err(|error| error.to_string())
        }),
    };
    let text = failure.text.unwrap_or_default();
    Err(match undone {
        Ok(()) => unformed(&order.data_dir, &text),
        Err(error) => Failure::error(format!(
            "{text}; and {error}: the old members can be started again once {} is gone, and then the files {:?} in \
             their directories",
            target.making().display(),
            recovered::MARK_NAME
        )),
    })
}
