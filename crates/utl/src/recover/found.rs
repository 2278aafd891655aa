//! Reads the directories that have survived, without changing them: [`Found::read`].

use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::etcdserverpb::AlarmType;
use cli::Failure;
use disk::{Disk, OverlayDisk, RealDisk};
use machine::{Members, Rules};
use numbers::{EntryId, Index, Revision, Term};
use storage::DataDirError;
use storage::exported;
use storage::observer_mark;
use storage::recovered;
use storage::stopped::Stopped;
use storage::terms::Terms;

/// Origin of a directory. It decides what the state of the directory says about the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The directory of a member, as the member has left it.
    Member,
    /// An earlier copy of a member's directory. It lacks what the member has acknowledged since, so it does not
    /// count as that member.
    Copy,
    /// The directory of an observer, which has only entries that the cluster has committed.
    Observer,
    /// The copy of a shadow, which has only changes that its source has told watches. It is outside of raft, and
    /// has no users.
    Shadow,
}

impl Kind {
    /// Returns the word for this kind in tables and in JSON.
    pub(super) fn word(self) -> &'static str {
        match self {
            Kind::Member => "member",
            Kind::Copy => "copy",
            Kind::Observer => "observer",
            Kind::Shadow => "shadow",
        }
    }
}

/// State of a directory.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// The directory, as it was named on the command line.
    pub dir: PathBuf,
    /// The data directory of the member: the same, but for a shadow that of its copy.
    pub data_dir: PathBuf,
    pub kind: Kind,
    /// Id of the cluster; of a shadow, that of the cluster which it follows.
    pub cluster_id: u64,
    pub member_id: u64,
    /// Raft term that the member has reached.
    pub term: Term,
    /// Member for which it has voted in that term; 0 for none.
    pub vote: u64,
    /// Last entry of its log.
    pub last: EntryId,
    /// Last entry that it has and knows to be committed.
    pub committed: EntryId,
    /// Highest index that it has heard to be committed, which may be after the end of its log.
    pub heard: Index,
    /// Revision of the state that contains all entries up to `committed`.
    pub committed_revision: Revision,
    /// Revision of the state that contains all entries up to `last`.
    pub revision: Revision,
    /// Compact revision of that state; -1 if it was never compacted.
    pub compact_revision: Revision,
    /// Number of keys in that state.
    pub keys: u64,
    /// Terms of the entries up to `last`, as far as they are known.
    pub terms: Terms,
    /// Checksums of the last entries up to `last`, in order.
    pub checksums: Vec<u32>,
    /// Sets of voters from `committed` to `last`.
    pub voters: Vec<Vec<u64>>,
    /// Members of the cluster at `last`.
    pub members: Members,
    /// True if the cluster has raised the CORRUPT alarm for this member.
    pub is_corrupt: bool,
    /// Members for which it has raised that alarm.
    pub accused: Vec<u64>,
    /// True if its log ends with the remains of an interrupted write, which do not count.
    pub is_torn: bool,
    /// Data directory in which a cluster was formed again from this one, if that was done.
    pub formed: Option<PathBuf>,
}

/// Reason why a directory cannot be used.
pub(super) enum Unread {
    /// The directory is damaged, or of something else. The others can be used without it.
    Unusable(String),
    /// A process uses the directory.
    InUse,
}

/// A source for the new cluster: a state that was read, with the reader of its values.
pub(super) struct Source {
    pub stopped: Stopped,
    pub found: Found,
}

impl Found {
    /// Reads a directory. `is_copy` says that it is an earlier copy of a member's directory, `rules` are those of
    /// the members' options. Nothing in the directory is changed, and no member can start in it while the returned source exists.
    pub(super) fn read(dir: &Path, is_copy: bool, rules: Rules) -> Result<Source, Unread> {
        let unusable = |why: &dyn std::fmt::Display| Unread::Unusable(why.to_string());
        let shadow = dir.join("shadow.json");
        let is_shadow = shadow.try_exists().map_err(|error| unusable(&error))?;
        let data_dir = if is_shadow { dir.join("data") } else { dir.to_path_buf() };
        if !is_shadow {
            crate::places::refuse_other(dir).map_err(|failure: Failure| unusable(&failure))?;
        }
        let disk: Arc<dyn Disk> = Arc::new(OverlayDisk::new(Arc::new(RealDisk)));
        let mut stopped = Stopped::open_with(&disk, &data_dir, None, rules).map_err(|error| match error {
            DataDirError::Locked { .. } | DataDirError::EtcdRuns { .. } => Unread::InUse,
            DataDirError::WrittenByEtcd { .. } => Unread::Unusable(format!(
                "it is a data directory of etcd: convert it with `mainstay utl import --data-dir {} --to NEW`, which \
                 keeps everything that matters here, and give NEW in its place",
                dir.display()
            )),
            error => unusable(&error),
        })?;
        let member_dir = data_dir.join("member");
        let is_observer =
            disk.exists(&member_dir.join(observer_mark::MARK_NAME)).map_err(|error| unusable(&error))?;
        let formed = recovered::formed(&*disk, &member_dir).map_err(|error| unusable(&error))?;
        let cluster_id = if is_shadow {
            source_of_shadow(&shadow).map_err(|why| unusable(&why))?
        } else {
            stopped.identity.cluster_id
        };
        // A member that was exported may have gone on as one of etcd.
        let is_exported =
            disk.exists(&member_dir.join(exported::MARK_NAME)).map_err(|error| unusable(&error))?;
        let kind = match (is_shadow, is_observer, is_copy || is_exported) {
            (true, ..) => Kind::Shadow,
            (_, true, _) => Kind::Observer,
            (_, _, true) => Kind::Copy,
            _ => Kind::Member,
        };
        let machine = &stopped.machine;
        let mut committed = EntryId { index: machine.applied_index, term: machine.applied_term };
        let mut committed_revision = machine.store.current_revision();
        let voters = stopped.apply_uncommitted().map_err(|error| unusable(&error))?;
        let machine = &stopped.machine;
        let revision = machine.store.current_revision();
        if matches!(kind, Kind::Observer | Kind::Shadow) {
            // An observer receives only entries that are committed, and a shadow's copy is its own cluster.
            (committed, committed_revision) = (stopped.last, revision);
        }
        let member_id = stopped.identity.member_id;
        let found = Found {
            dir: dir.to_path_buf(),
            data_dir,
            kind,
            cluster_id,
            member_id,
            term: stopped.hard_state.term.max(stopped.last.term),
            vote: stopped.hard_state.vote.0,
            last: stopped.last,
            committed,
            heard: stopped.hard_state.commit.max(committed.index),
            committed_revision,
            revision,
            compact_revision: machine.store.compact_revision(),
            keys: machine.store.stats().live_keys,
            terms: stopped.terms.clone(),
            checksums: stopped.checksums.clone(),
            voters,
            members: machine.members.clone(),
            is_corrupt: machine.alarms.is_raised(AlarmType::Corrupt.into(), member_id),
            accused: machine
                .alarms
                .list(AlarmType::Corrupt.into(), 0)
                .iter()
                .map(|alarm| alarm.member_id)
                .collect(),
            is_torn: !stopped.repairs.is_empty(),
            formed,
        };
        Ok(Source { stopped, found })
    }

    /// Returns the name of the member, or its id if it has none.
    pub(super) fn name(&self) -> String {
        member_name(&self.members, self.member_id)
    }

    /// Returns the checksum of the entry with this index, if it is known.
    pub(super) fn checksum(&self, index: Index) -> Option<u32> {
        let before_end = usize::try_from(self.last.index.0.checked_sub(index.0)?).ok()?;
        self.checksums.iter().rev().nth(before_end).copied()
    }

    /// Returns the first index whose checksum is known.
    pub(super) fn first_checksum(&self) -> Index {
        Index(self.last.index.0 + 1 - self.checksums.len() as u64)
    }

    /// Returns true if the directory has entries of the cluster's log; a shadow has none.
    pub(super) fn has_log(&self) -> bool {
        self.kind != Kind::Shadow
    }
}

/// Returns the name of a member, or its id if the list has no name for it.
pub(super) fn member_name(members: &Members, id: u64) -> String {
    let named = members.by_id.get(&id).map(|member| member.name.as_str()).filter(|name| !name.is_empty());
    named.map_or_else(|| format!("{id:x}"), str::to_owned)
}

/// Returns the id of the cluster that a shadow follows.
fn source_of_shadow(record: &Path) -> Result<u64, String> {
    let text = std::fs::read_to_string(record).map_err(|error| format!("{}: {error}", record.display()))?;
    let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    value["source"]
        .as_str()
        .and_then(|id| u64::from_str_radix(id, 16).ok())
        .ok_or_else(|| format!("{} names no cluster: the shadow has no whole copy yet", record.display()))
}
