//! A member's directory, as etcd leaves it.
//!
//! ```text
//! <data-dir>/member/snap/db                   the state at the entry that its `meta` names
//! <data-dir>/member/snap/<index>.snap.db      a whole state that was sent by the leader, before it becomes `db`
//! <data-dir>/member/snap/<term>-<index>.snap  the old store; not needed, since the database has the members too
//! <data-dir>/member/wal/*.wal                 entries, from before that entry on
//! ```

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::raftpb::EntryType;
use disk::{Disk, Lock};

use crate::backend::{Backend, Membership, Meta};
use crate::bolt::Bolt;
use crate::command::Command;
use crate::error::Error;
use crate::v2_store::{self, OldStore};
use crate::v2_tree::V2Tree;
use crate::wal::Wal;

type SharedFile = Arc<dyn disk::File>;

/// The data directory of a stopped member of etcd: a state, and the entries behind it. Locked against a member that
/// starts until it is dropped.
pub struct DataDir {
    /// The state at [`DataDir::base_index`].
    pub base: Backend<SharedFile>,
    /// Content of the bucket `meta` of the state.
    pub meta: Meta,
    /// The members at that state.
    pub membership: Membership,
    /// The log.
    pub wal: Wal,
    /// Ids of the voters at the last entry known to be committed.
    pub voters: BTreeSet<u64>,
    /// Content of the old store (API version 2), which is not read any more.
    pub old_store: OldStore,
    snap_dir: PathBuf,
    end: u64,
    _lock: Lock,
}

impl DataDir {
    /// Opens a member's directory; nothing in it is changed.
    ///
    /// # Errors
    ///
    /// When a member is running on it, something is missing or damaged, or state and log do not fit together.
    pub fn open(disk: &dyn Disk, dir: &Path) -> Result<DataDir, Error> {
        DataDir::open_with(disk, dir, &dir.join("member").join("wal"))
    }

    /// Opens as [`DataDir::open`] does, for a member whose log has a directory of its own (`--wal-dir`).
    ///
    /// # Errors
    ///
    /// As [`DataDir::open`].
    pub fn open_with(disk: &dyn Disk, dir: &Path, wal_dir: &Path) -> Result<DataDir, Error> {
        DataDir::open_bounded(disk, dir, wal_dir, v2_store::IMAGE_BYTES_MAX)
    }

    /// Opens as [`DataDir::open_with`] does, to glance at what is there: an image of the old store of more than a few MiB is not
    /// read, and only its size is known; see [`OldStore::large`].
    ///
    /// # Errors
    ///
    /// As [`DataDir::open`].
    pub fn glance(disk: &dyn Disk, dir: &Path, wal_dir: &Path) -> Result<DataDir, Error> {
        DataDir::open_bounded(disk, dir, wal_dir, v2_store::IMAGE_BYTES_GLANCE)
    }

    fn open_bounded(
        disk: &dyn Disk,
        dir: &Path,
        wal_dir: &Path,
        image_bytes_max: u64,
    ) -> Result<DataDir, Error> {
        let snap = dir.join("member").join("snap");
        let path = snap.join("db");
        let found = |e| Error::io(format!("looking for {}", path.display()), e);
        if !disk.exists(&path).map_err(found)? {
            return Err(found(io::ErrorKind::NotFound.into()));
        }
        let lock = disk.lock_read(&path).map_err(|e| Error::io(format!("locking {}", path.display()), e))?;
        let wal = Wal::open(disk, wal_dir)?;
        let mut base = open_database(disk, &path)?;
        let mut meta = base.meta()?;
        let newest = wal.snapshots.iter().map(|snapshot| snapshot.index).max().unwrap_or_default();
        if newest > meta.consistent_index {
            // The member stopped after it was sent a state, and before it put it into its place.
            let path = snap.join(format!("{newest:016x}.snap.db"));
            if !disk.exists(&path).map_err(|e| Error::io(format!("looking for {}", path.display()), e))? {
                let what = format!(
                    "the database holds the state at entry {}, the log has a snapshot at {newest}, and there is no {}",
                    meta.consistent_index,
                    path.display()
                );
                return Err(Error::damaged(0, what).in_file("db"));
            }
            base = open_database(disk, &path)?;
            meta = base.meta()?;
        }
        let membership = base.membership()?;
        let old_store = v2_store::newest(disk, &snap, image_bytes_max)
            .map_err(|e| Error::io(format!("reading the old store's image in {}", snap.display()), e))?;
        let voters = BTreeSet::new();
        let mut dir =
            DataDir { base, meta, membership, wal, voters, old_store, snap_dir: snap, end: 0, _lock: lock };
        dir.find_end()?;
        dir.find_old_write()?;
        Ok(dir)
    }

    /// The last entry whose effects are in the state.
    pub fn base_index(&self) -> u64 {
        self.meta.consistent_index
    }

    /// The term of that entry; `None` if nobody wrote it down.
    pub fn base_term(&self) -> Option<u64> {
        let index = self.base_index();
        // The newest: one that was taken over may stand where an older one stood.
        let snapshot = self.wal.snapshots.iter().rev().find(|snapshot| snapshot.index == index);
        self.wal.term(index).or(snapshot.map(|s| s.term)).or(self.meta.term).or((index == 0).then_some(0))
    }

    /// The last entry that is known to be committed.
    pub fn committed(&self) -> u64 {
        self.wal.hard_state.commit.max(self.base_index())
    }

    /// The last entry to apply. Beyond [`DataDir::committed`] only if this member alone has a vote: what is in its log
    /// is committed then, and may have been acknowledged, although the log does not say so yet.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// The entries to apply, in order: those after [`DataDir::base_index`], up to [`DataDir::end`].
    pub fn entries(&self) -> impl Iterator<Item = Result<api::raftpb::Entry, Error>> + '_ {
        (self.base_index() + 1..=self.end).map(|index| match self.wal.entry(index)? {
            Some(entry) => Ok(entry),
            None => Err(missing(index)),
        })
    }

    /// Rebuilds the old store (API version 2) as it was at [`DataDir::end`]: from its newest image, and the entries of the
    /// log behind that, as etcd 3.4 and 3.5 do at every start.
    ///
    /// # Errors
    ///
    /// When the image or an entry cannot be read, is none that etcd writes, or entries behind the image are missing.
    pub fn old_keys(&self, disk: &dyn Disk) -> Result<V2Tree, Error> {
        let (index, mut tree) = match v2_store::newest_tree(disk, &self.snap_dir)? {
            Some((index, tree)) => (index, tree),
            None => (0, V2Tree::new()),
        };
        if index > self.end {
            let what = format!(
                "the old store's image is of entry {index}, and the log ends at {}: a part of the log is missing",
                self.end
            );
            return Err(Error::damaged(0, what));
        }
        for index in index + 1..=self.end {
            let Some(entry) = self.wal.entry(index)? else {
                let what =
                    format!("entry {index}, which is younger than the old store's image, is not in the log");
                return Err(Error::damaged(0, what));
            };
            tree.apply(&entry).map_err(|malformed| {
                Error::damaged(0, format!("entry {}: {}", malformed.index, malformed.what))
            })?;
        }
        Ok(tree)
    }

    /// Looks for what was written to the old store after its newest image: etcd 3.4 and 3.5 read those entries again at
    /// every start, and nothing else does.
    fn find_old_write(&mut self) -> Result<(), Error> {
        let first = self.wal.first().max(self.old_store.index.saturating_add(1));
        for index in first..=self.end.min(self.wal.last()) {
            let Some(entry) = self.wal.entry(index)? else { continue };
            let what = match Command::of(&entry) {
                Ok(Command::OldWrite { method, path }) => format!("{method} {path}"),
                // Nobody knows what it writes to.
                Err(malformed) if entry.r#type() == EntryType::EntryNormal => {
                    format!("what cannot be read ({})", malformed.what)
                }
                _ => continue,
            };
            self.old_store.write = Some((index, what));
            return Ok(());
        }
        Ok(())
    }

    fn find_end(&mut self) -> Result<(), Error> {
        let (base, committed) = (self.base_index(), self.committed());
        if base == u64::MAX {
            return Err(Error::damaged(0, "the database names an entry that cannot be").in_file("db"));
        }
        // Entries are durable in the log before the database gets them, unless a whole state was sent.
        if self.wal.last() < base && !self.wal.snapshots.iter().any(|snapshot| snapshot.index >= base) {
            let what = format!(
                "the log ends with entry {}, and the database has entries up to {base}: a part of the log is missing",
                self.wal.last()
            );
            return Err(Error::damaged(self.wal.end.offset, what).in_file(&self.wal.end.file));
        }
        // There may be no entries at all, and none are needed if the state has all that is committed.
        if base < committed {
            if self.wal.first() > base + 1 {
                return Err(missing(base + 1));
            }
            if self.wal.last() < committed {
                return Err(missing(self.wal.last() + 1));
            }
        }
        self.voters = self.membership.conf_state().voters.into_iter().collect();
        for index in base + 1..=committed {
            self.follow(index)?;
        }
        self.end = committed;
        let me = self.wal.identity.member_id;
        while self.voters.len() == 1 && self.voters.contains(&me) && self.wal.term(self.end + 1).is_some() {
            self.end += 1;
            self.follow(self.end)?;
        }
        Ok(())
    }

    /// Applies an entry's change of the voters.
    fn follow(&mut self, index: u64) -> Result<(), Error> {
        use api::raftpb::ConfChangeType as Type;
        if !self.wal.is_conf_change(index) {
            return Ok(());
        }
        let entry = self.wal.entry(index)?.ok_or_else(|| missing(index))?;
        let command = Command::of(&entry)
            .map_err(|malformed| Error::damaged(0, format!("entry {index}: {}", malformed.what)))?;
        let Command::ConfChange(change) = command else { return Ok(()) };
        match change.r#type() {
            Type::ConfChangeAddNode => self.voters.insert(change.node_id()),
            Type::ConfChangeRemoveNode => self.voters.remove(&change.node_id()),
            Type::ConfChangeUpdateNode | Type::ConfChangeAddLearnerNode => false,
        };
        Ok(())
    }
}

fn missing(index: u64) -> Error {
    Error::damaged(0, format!("entry {index} is committed and not in the log"))
}

fn open_database(disk: &dyn Disk, path: &Path) -> Result<Backend<SharedFile>, Error> {
    let file = disk.open_read(path).map_err(|e| Error::io(format!("opening {}", path.display()), e))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Bolt::whole(file).and_then(Backend::new).map_err(|e| e.in_file(&name))
}
