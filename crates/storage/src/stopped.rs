//! Reads the state of a stopped member without starting it.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use api::Status;
use consensus::{Entry, EntryKind};
use disk::{Disk, Lock};
use log::checkpoint::CheckpointStore;
use log::{EntryPlace, HardState, Log, Repair};
use machine::{Command, Machine, Rules};
use mvcc::HashWalk;
use numbers::{EntryId, Index, Revision};

use crate::error::{DataDirError, Inconsistency};
use crate::identity::Identity;
use crate::kv_hash::{HashedKv, KvHash};
use crate::log_dir::LogDir;
use crate::opening::{lock, replay_log, restore};
use crate::restoration::RULES;
use crate::terms::Terms;
use crate::values::LogValues;
use crate::witness_mark;

/// State of a stopped member: the state of its checkpoint, to which all later entries that are known to be
/// committed have been applied. The data directory stays locked until this value is dropped.
///
/// Opening cuts off an incomplete write at the end of the log, as a start does, and otherwise leaves the
/// member's data unchanged.
pub struct Stopped {
    /// Ids of the member and its cluster.
    pub identity: Identity,
    /// State of the member.
    pub machine: Machine,
    /// Raft's hard state: term, vote and commit index.
    pub hard_state: HardState,
    /// Entries of the log that are not applied, because they are not known to be committed; the member may
    /// have acknowledged them to the leader. Empty if the member is the only voter, because all entries in
    /// its log are then committed.
    pub uncommitted: Vec<Entry>,
    /// Index of the first applied entry that was refused only because of the number of learners, under the
    /// given rules. The member itself may have used other rules, under which the learner was added. `None` if
    /// no entry was refused for that reason.
    pub refused_learner: Option<Index>,
    /// Last entry of the log; the last applied entry if the log ends before it.
    pub last: EntryId,
    /// Terms of the entries up to [`Stopped::last`], as far as they are known.
    pub terms: Terms,
    /// CRC-32C of the data of each entry that follows the checkpoint, up to [`Stopped::last`], in order. Entries with
    /// the same index and term are the same in all members of a cluster; two histories, which a forced new cluster
    /// causes, may use the same terms for different entries.
    pub checksums: Vec<u32>,
    /// Remains of interrupted writes that were cut off at the end of the log.
    pub repairs: Vec<Repair>,
    /// Locations of the entries in [`Stopped::uncommitted`].
    uncommitted_places: VecDeque<EntryPlace>,
    log: Log,
    _lock: Lock,
}

impl Stopped {
    /// Reads a data directory, and applies its entries with the default rules, which allow one learner.
    ///
    /// # Errors
    ///
    /// Returns an error that names the file, the fault and the remedy. Also returns an error if a member is
    /// running on the directory, or if it contains no member.
    pub fn open(disk: &Arc<dyn Disk>, data_dir: &Path) -> Result<Stopped, DataDirError> {
        Stopped::open_with(disk, data_dir, None, RULES)
    }

    /// Reads a data directory, and applies its entries with the rules of the member's options. If `log_dir`
    /// is given, the log is read from that directory instead of the one that the data directory's note names,
    /// and that directory is not locked. This is for a data directory under construction, which no other
    /// process uses.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Stopped::open`].
    pub fn open_with(
        disk: &Arc<dyn Disk>,
        data_dir: &Path,
        log_dir: Option<&Path>,
        rules: Rules,
    ) -> Result<Stopped, DataDirError> {
        let member_dir = &data_dir.join("member");
        let there = |path: &Path| {
            disk.exists(path).map_err(|error| DataDirError::Lookup { path: path.to_path_buf(), error })
        };
        if !there(&member_dir.join("log"))? && !there(&member_dir.join(crate::log_dir::NOTE_NAME))? {
            let path = data_dir.to_path_buf();
            return Err(DataDirError::Empty { path, lacks: "data of a member of Mainstay" });
        }
        if witness_mark::is_marked(&**disk, member_dir)? {
            // Its log looks like that of a member, and would give an empty state.
            return Err(DataDirError::OfWitness { data_dir: data_dir.to_path_buf() });
        }
        // The warning that etcd's database cannot be opened is dropped here, because the next start of the
        // member logs it.
        let lock = lock(&**disk, member_dir, None, &|_| {})?;
        let (log_dir, log_lock) = match log_dir {
            Some(log_dir) => (log_dir.to_path_buf(), None),
            None => LogDir::noted(disk, member_dir)?,
        };
        let checkpoints = CheckpointStore::open(Arc::clone(disk), member_dir.join("checkpoint"))?;
        let (mut manifest, mut unusable) = match checkpoints.load() {
            Ok(manifest) => (manifest, None),
            Err(error) if error.is_damage() => (None, Some(DataDirError::from(error))),
            Err(error) => return Err(error.into()),
        };
        let Some(owner) = Log::identify(&**disk, &log_dir)? else {
            return Err(DataDirError::Empty { path: log_dir, lacks: "log" });
        };
        let identity = Identity::of(owner);
        let record = log::ShutdownRecord::read(&**disk, &member_dir.join(log::ShutdownRecord::FILE_NAME))?;
        // As a start does, use the log alone if the checkpoint is damaged and the log has every entry.
        let restored = restore(rules, &checkpoints, manifest.as_ref(), member_dir, &identity, false, None);
        let mut machine = match restored {
            Ok((machine, _)) => machine,
            Err(error) if error.is_damage() => {
                (manifest, unusable) = (None, Some(error));
                Machine::new(rules)
            }
            Err(error) => return Err(error),
        };
        let mut options = log::Options::new(&log_dir, owner.cluster_id, owner.member_id);
        options.by_hand = true;
        options.only_read = true;
        options.closed_at = record.and_then(|record| record.end);
        options.synced_to = record.and_then(|record| record.synced_to);
        let first = machine.applied_index.next();
        let mut replayed = replay_log(options, disk, first, Box::new(|_| {}))?;
        if manifest.is_none()
            && let Err(lacking) = replayed.is_whole()
        {
            return Err(match unusable {
                Some(checkpoint) => Inconsistency::LogNotWhole { checkpoint, lacking }.into(),
                None => Inconsistency::NoCheckpoint { member_dir: member_dir.clone(), lacking }.into(),
            });
        }
        // True if a snapshot was installed and the member stopped before it restarted its log after the
        // snapshot. The entries of the log are then older than the state, and must not be applied to it.
        let behind = replayed.recovered.last_index < machine.applied_index
            || replayed.entries.first().is_some_and(|entry| entry.term < machine.applied_term);
        if behind {
            replayed.entries.clear();
        }
        let hard_state = replayed.recovered.hard_state;
        let metadata = manifest.as_ref().map_or(&[][..], |manifest| &manifest.metadata);
        let mut terms = Terms::read(metadata, &machine);
        let last_index = replayed.recovered.last_index;
        if last_index < machine.applied_index && terms.first_index().is_some_and(|first| first <= last_index)
        {
            // As at a start: the checkpoint was made from this log, which has lost its end.
            let (last, applied) = (last_index, machine.applied_index);
            return Err(Inconsistency::LogEndsEarly { log_dir, last, applied }.into());
        }
        let mut last = EntryId { index: machine.applied_index, term: machine.applied_term };
        let checksums = replayed.entries.iter().map(|entry| crc32c::crc32c(&entry.data)).collect();
        for entry in &replayed.entries {
            last = EntryId { index: entry.index, term: entry.term };
            terms.push(last);
        }
        let values = LogValues::new(replayed.log.values());
        let mut uncommitted = Vec::new();
        let mut uncommitted_places = VecDeque::new();
        let mut refused_learner = None;
        for (entry, place) in replayed.entries.into_iter().zip(replayed.locations) {
            let alone = machine.members.voters() == [identity.member_id];
            if entry.index > hard_state.commit && !alone {
                uncommitted.push(entry);
                uncommitted_places.push_back(place);
                continue;
            }
            apply(&mut machine, &entry, place, &values, &mut refused_learner)?;
        }
        Ok(Stopped {
            identity,
            machine,
            hard_state,
            uncommitted,
            refused_learner,
            last,
            terms,
            checksums,
            repairs: replayed.recovered.repairs,
            uncommitted_places,
            log: replayed.log,
            _lock: lock.and(log_lock),
        })
    }

    /// Applies the entries of [`Stopped::uncommitted`] too, as if they were committed. Returns the sets of voters
    /// that the cluster has on the way: first that of the committed state, then one for each change of it, each
    /// sorted by id.
    ///
    /// # Errors
    ///
    /// Returns an error if an entry cannot be applied.
    pub fn apply_uncommitted(&mut self) -> Result<Vec<Vec<u64>>, machine::Fatal> {
        let values = self.values();
        let mut voters = vec![self.machine.members.voters()];
        let places = std::mem::take(&mut self.uncommitted_places);
        for (entry, place) in std::mem::take(&mut self.uncommitted).into_iter().zip(places) {
            apply(&mut self.machine, &entry, place, &values, &mut self.refused_learner)?;
            if entry.kind == EntryKind::ConfChange {
                let now = self.machine.members.voters();
                if voters.last() != Some(&now) {
                    voters.push(now);
                }
            }
        }
        Ok(voters)
    }

    /// Returns a reader of the member's values.
    pub fn values(&self) -> LogValues {
        LogValues::new(self.log.values())
    }

    /// Returns three numbers of bytes: those of the live values, of the records in the log, and of the log's
    /// files.
    pub fn log_use(&self) -> (u64, u64, u64) {
        let segments = self.log.segments();
        (
            self.machine.usage().values().map(|usage| usage.bytes).sum(),
            segments.iter().map(|segment| segment.used_bytes).sum(),
            segments.iter().map(|segment| segment.file_bytes).sum(),
        )
    }

    /// Computes the result of the call HashKV for a revision; 0 means the current revision.
    ///
    /// # Errors
    ///
    /// Returns the errors that HashKV returns.
    pub fn hash_kv(&mut self, revision: Revision) -> Result<HashedKv, Status> {
        let values = self.values();
        let view = self.machine.store.publish();
        let mut walk = HashWalk::new(&view.snapshot(), revision).map_err(machine::range::refused)?;
        let (compact_revision, revision) = (walk.compact_revision(), walk.revision());
        let mut hash = KvHash::default();
        let mut failed = None;
        while !walk.step(&view.snapshot(), 4096, |version| {
            if failed.is_none() {
                failed = hash.feed(version, &values).err();
            }
        }) {}
        match failed {
            Some(status) => Err(status),
            None => Ok(HashedKv { hash: hash.finish(), compact_revision, revision }),
        }
    }
}

/// Applies an entry. If it is refused only because of the number of learners, and is the first such entry, notes
/// its index in `refused_learner`.
fn apply(
    machine: &mut Machine,
    entry: &Entry,
    place: EntryPlace,
    values: &LogValues,
    refused_learner: &mut Option<Index>,
) -> Result<(), machine::Fatal> {
    let todays = match entry.kind {
        EntryKind::Normal => interchange::in_todays_words(&entry.data),
        EntryKind::ConfChange => None,
    };
    let data = todays.as_ref().unwrap_or(&entry.data);
    let command = Command { index: entry.index, term: entry.term, data, location: place.location };
    match entry.kind {
        EntryKind::Normal => machine.apply(command, values, false).map(drop),
        EntryKind::ConfChange => {
            if refused_learner.is_none() && machine.is_refused_by_learners_max(data) {
                *refused_learner = Some(entry.index);
            }
            machine.apply_conf_change(command).map(drop)
        }
    }
}
