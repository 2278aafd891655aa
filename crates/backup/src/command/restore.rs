//! `backup restore`, also `utl snapshot restore URL`: makes a data directory with the state of a moment.

use std::path::Path;

use cli::{Command, Failure, Flag, Progress};
use disk::{Disk as _, RealDisk};
use utl::restore_flags::{
    BUMP_REVISION, DATA_DIR, FORMAT, INITIAL_ADVERTISE_PEER_URLS, INITIAL_CLUSTER, INITIAL_CLUSTER_TOKEN,
    MARK_COMPACTED, NAME, RestoreFlags, WITHOUT_USERS,
};

use super::{CLUSTER_ID, Call, Run, chain, cluster_of, moment_of, size};
use crate::fetch::{Cache, cache_of, remove_cache, with_objects};
use crate::moment::{self, Restored};
use crate::plan::{Plan, shown};
use crate::store::Store;
use crate::trouble::Trouble;

pub(super) const TO_REVISION: Flag<i64> =
    Flag::int("to-revision", "0", "revision whose state is restored; without it and --to-time the newest");
pub(super) const TO_TIME: Flag<String> =
    Flag::text("to-time", "", "time whose state is restored, such as 2026-11-21T10:50:53Z");
pub(super) const RESTORE: Command<Run> = Command {
    name: "restore",
    usage: "restore <URL> --data-dir {output dir} [options]",
    about: "Makes a data directory with the state of a moment",
    long: "\
Makes a data directory with the state of a moment, for a member of a new cluster, as `mainstay utl snapshot restore` does
from a snapshot. Run it for each member with the same moment. The directory appears whole or not at all. What is fetched
from a bucket is kept in DATA_DIR.backup-cache until the directory is complete, so a command that was interrupted goes on
from there.",
    example: "  mainstay backup restore s3://bucket/prefix --to-time 2026-11-21T10:50:53Z --data-dir restored
  mainstay backup restore file:///mnt/backup --to-revision 12345 --format etcd --data-dir for.etcd",
    flags: &[
        TO_REVISION.row(),
        TO_TIME.row(),
        CLUSTER_ID.row(),
        DATA_DIR.row(),
        FORMAT.row(),
        NAME.row(),
        INITIAL_CLUSTER.row(),
        INITIAL_CLUSTER_TOKEN.row(),
        INITIAL_ADVERTISE_PEER_URLS.row(),
        BUMP_REVISION.row(),
        MARK_COMPACTED.row(),
        WITHOUT_USERS.row(),
    ],
    run: Some(Run(run)),
    ..Command::EMPTY
};

fn run(call: &mut Call<'_>) -> Result<(), Failure> {
    let given = call.matches;
    let wanted = moment_of(given.get(TO_REVISION), given.get(TO_TIME))?;
    let flags = RestoreFlags::read(given)?;
    let data_dir = flags.data_dir.clone();
    let store = call.place()?;
    let (cluster, cluster_id) = cluster_of(&*store, given.get(CLUSTER_ID))?;
    let plan = chain(&*store, &cluster).plan(wanted)?;
    let mut cache = cache_of(&data_dir);
    if let Some(free) = free_bytes(&data_dir) {
        let room = Room::of(&plan, store.is_local(), &cache);
        cache.keeps = room.fits_with_cache(free);
        if let Some(notice) = room.notice(free, &data_dir) {
            call.io.err.notice(notice);
        }
    }
    let mut facts = (0, 0);
    let restored = utl::restore_moment(flags, |work| {
        let Restored { machine, values, time_ms, compared } =
            state_of(&*store, &cluster, cluster_id, &plan, work, &cache)?;
        facts = (time_ms, compared);
        Ok((machine, values))
    })?;
    if let Err(trouble) = remove_cache(&cache) {
        call.io.err.notice(format!("Warning: {trouble}\n"));
    }
    let (time_ms, compared) = facts;
    call.print(&format!(
        "restored revision {} of {} from {} to {} (compact revision {}, state compared with the cluster's at {compared} \
         positions)\n",
        restored.revision,
        shown(time_ms),
        size(plan.bytes()),
        data_dir.display(),
        restored.compact_revision,
    ))
}

/// Bytes of disk that a restore needs.
struct Room {
    /// The state and the entries after it, which are written as they are.
    history: u64,
    /// The state, which is then written again as that of the new member. It may have grown or shrunk since the base.
    state: u64,
    /// Objects that are fetched, if they are kept for a second attempt.
    fetched: u64,
}

impl Room {
    fn of(plan: &Plan, is_local: bool, cache: &Cache) -> Room {
        Room {
            history: plan.raw_bytes(),
            state: plan.base_raw_bytes(),
            fetched: if is_local { 0 } else { plan.bytes().saturating_sub(cache.bytes()) },
        }
    }

    fn fits_with_cache(&self, free: u64) -> bool {
        free >= self.history.saturating_add(self.state).saturating_add(self.fetched)
    }

    /// Returns what follows from the space if it is not ample.
    fn notice(&self, free: u64, data_dir: &Path) -> Option<String> {
        if self.fits_with_cache(free) {
            return None;
        }
        let mut notice = format!(
            "The disk of {} has {} free, and the restore needs about {} (without compression by the file system): if it becomes \
             full, the restore ends, and can be repeated with --data-dir on another disk",
            data_dir.display(),
            size(free),
            size(self.history.saturating_add(self.state))
        );
        if self.fetched > 0 {
            notice.push_str("; what is fetched is not kept there, so a second attempt would fetch it again");
        }
        notice.push('\n');
        Some(notice)
    }
}

/// Returns the free bytes of the file system on which a directory is or will be, if they are known.
fn free_bytes(data_dir: &Path) -> Option<u64> {
    let whole = std::path::absolute(data_dir).ok()?;
    let there = whole.ancestors().find(|path| path.exists())?;
    RealDisk.space(there).ok().map(|space| space.free_bytes)
}

/// Restores the state of a plan into a working directory.
pub(super) fn state_of(
    store: &dyn Store,
    cluster: &str,
    cluster_id: u64,
    plan: &Plan,
    work: &Path,
    cache: &Cache,
) -> Result<Restored, Trouble> {
    let mut progress = Progress::of_bytes("restoring", Some(plan.bytes()));
    let restored = with_objects(store, cluster, plan, cache, |fetch| {
        moment::restore(plan, cluster_id, work, fetch, None, &mut |done| progress.at(done, ""))
    })?;
    progress.finish();
    Ok(restored)
}
