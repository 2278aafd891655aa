//! Reads the data directory of an etcd member: its state, its members, and the log entries after the state.
//!
//! ```text
//! <data-dir>/member/snap/db                   the state at the entry that its bucket `meta` names
//! <data-dir>/member/snap/<index>.snap.db      a whole state sent by the leader, before it is renamed to `db`
//! <data-dir>/member/snap/<term>-<index>.snap  image of the v2 store, which up to 3.5 contains the members
//! <data-dir>/member/wal/*.wal                 log entries, at least all after that entry
//! ```

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::raftpb::EntryType;
use disk::{Disk, Lock};

use crate::backend::{Backend, ConfState, Membership, Meta};
use crate::bolt::Bolt;
use crate::command::Command;
use crate::error::Error;
use crate::roster::{Roster, named, sorted};
use crate::v2_store::{self, Newest, OldStore};
use crate::v2_tree::V2Tree;
use crate::wal::Wal;

type SharedFile = Arc<dyn disk::File>;

/// The data directory of an etcd member: a state, and the log entries after it. Until this value is dropped,
/// the directory stays locked, so that no member can start on it (except after [`DataDir::glance_running`]).
pub struct DataDir {
    /// The state at [`DataDir::base_index`].
    pub base: Backend<SharedFile>,
    /// Contents of the bucket `meta` of the state in `base`.
    pub meta: Meta,
    /// The members at [`DataDir::base_index`]. They come from the same source as in the release of etcd that
    /// wrote the directory, and were checked against raft's configuration. Only [`DataDir::glance`] and
    /// [`DataDir::glance_running`] skip this check, if the image of the v2 store is large.
    pub membership: Membership,
    /// The write-ahead log.
    pub wal: Wal,
    /// Ids of the voters at [`DataDir::end`].
    pub voters: BTreeSet<u64>,
    /// Summary of the v2 store (the store of API version 2), whose keys current releases of etcd no longer
    /// use.
    pub old_store: OldStore,
    snap_dir: PathBuf,
    end: u64,
    _lock: Option<Lock>,
}

impl DataDir {
    /// Opens a member's directory for reading. Nothing in the directory is changed.
    ///
    /// # Errors
    ///
    /// Returns an error if a member is running on the directory, a file is missing or damaged, state and log
    /// do not fit together, or the sources contradict each other about the members.
    pub fn open(disk: &dyn Disk, dir: &Path) -> Result<DataDir, Error> {
        DataDir::open_with(disk, dir, &dir.join("member").join("wal"))
    }

    /// Opens a directory as [`DataDir::open`] does, for a member whose log is in a separate directory
    /// (`--wal-dir`).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`DataDir::open`].
    pub fn open_with(disk: &dyn Disk, dir: &Path, wal_dir: &Path) -> Result<DataDir, Error> {
        DataDir::open_bounded(disk, dir, wal_dir, v2_store::IMAGE_BYTES_MAX, |path| {
            disk.lock_read(path).map(Some)
        })
    }

    /// Opens a directory as [`DataDir::open_with`] does, but reads less. An image of the v2 store of more
    /// than a few MiB is not read, so only its size is known ([`OldStore::large`]); the members then come
    /// from the database, without the check against raft's configuration. No file is opened for writing, and
    /// other processes may read the database at the same time.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`DataDir::open`].
    pub fn glance(disk: &dyn Disk, dir: &Path, wal_dir: &Path) -> Result<DataDir, Error> {
        let lock = |path: &Path| disk.lock_shared(path).map(Some);
        DataDir::open_bounded(disk, dir, wal_dir, v2_store::IMAGE_BYTES_GLANCE, lock)
    }

    /// Reads the directory of a running member as [`DataDir::glance`] does, without a lock. The member may
    /// change its files in the meantime, which can cause errors, so a retry may succeed. Only
    /// [`Error::Members`] is not caused by such changes: Mainstay could not take over the directory of the
    /// stopped member either.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`DataDir::open`].
    pub fn glance_running(disk: &dyn Disk, dir: &Path, wal_dir: &Path) -> Result<DataDir, Error> {
        DataDir::open_bounded(disk, dir, wal_dir, v2_store::IMAGE_BYTES_GLANCE, |_| Ok(None))
    }

    fn open_bounded(
        disk: &dyn Disk,
        dir: &Path,
        wal_dir: &Path,
        image_bytes_max: u64,
        lock: impl FnOnce(&Path) -> io::Result<Option<Lock>>,
    ) -> Result<DataDir, Error> {
        let snap = dir.join("member").join("snap");
        let path = snap.join("db");
        let found = |e| Error::io(format!("looking for {}", path.display()), e);
        if !disk.exists(&path).map_err(found)? {
            return Err(found(io::ErrorKind::NotFound.into()));
        }
        let lock = lock(&path).map_err(|e| Error::io(format!("locking {}", path.display()), e))?;
        // Read the database before the log. A running member appends an entry to the log before it applies it
        // to the database, so the log that is read later contains every entry that the database has applied.
        let mut base = open_database(disk, &path)?;
        let (mut meta, mut membership) = (base.meta()?, base.membership()?);
        // A running member does not overwrite pages of the state to which the current meta page refers. So
        // the pages read so far are consistent if the meta page is still the same. Otherwise, return an
        // error.
        if lock.is_none() && open_database(disk, &path)?.bolt().meta() != base.bolt().meta() {
            return Err(Error::damaged(0, "the database changed while it was read").in_file("db"));
        }
        let wal = Wal::open(disk, wal_dir)?;
        let newest = wal.snapshots.iter().map(|snapshot| snapshot.index).max().unwrap_or_default();
        if newest > meta.consistent_index {
            // The member has stopped after it received a newer state from the leader, and before it renamed
            // the file of that state to `db`. Read the newer state, as etcd does.
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
            (meta, membership) = (base.meta()?, base.membership()?);
        }
        let knows_members = meta.storage_version.is_some();
        // From 3.6 on, etcd neither writes nor reads the v2 store, so do not search for its image.
        let newest = match knows_members {
            true => Newest::None,
            false => v2_store::newest(disk, &snap, &wal, image_bytes_max)
                .map_err(|e| Error::io(format!("reading the old store's image in {}", snap.display()), e))?,
        };
        let old_store = OldStore::of_newest(&newest);
        let voters = BTreeSet::new();
        let mut dir =
            DataDir { base, meta, membership, wal, voters, old_store, snap_dir: snap, end: 0, _lock: lock };
        dir.check_log()?;
        let roster = if knows_members {
            Some(Roster::of(&dir.membership))
        } else if dir.old_store.large.is_some() {
            None
        } else {
            Some(dir.find_members(&newest)?)
        };
        let is_sure = roster.is_some();
        let roster = roster.unwrap_or_else(|| Roster::of(&dir.membership));
        if is_sure {
            dir.hold_against_raft(&roster, disk, &newest)?;
        }
        dir.find_end(roster, is_sure)?;
        if !knows_members {
            dir.find_old_write()?;
        }
        Ok(dir)
    }

    /// Returns the index of the last raft entry that is applied in the state.
    pub fn base_index(&self) -> u64 {
        self.meta.consistent_index
    }

    /// Returns the raft term of the entry at [`DataDir::base_index`]; `None` if the term is recorded nowhere.
    pub fn base_term(&self) -> Option<u64> {
        let index = self.base_index();
        // Search from the newest mark. A snapshot that the leader sent may have the same index as an older
        // snapshot and a different term. In that case it has replaced the older one, so its term is the right
        // one.
        let snapshot = self.wal.snapshots.iter().rev().find(|snapshot| snapshot.index == index);
        self.wal.term(index).or(snapshot.map(|s| s.term)).or(self.meta.term).or((index == 0).then_some(0))
    }

    /// Returns the index of the last entry that is known to be committed.
    pub fn committed(&self) -> u64 {
        self.wal.hard_state.commit.max(self.base_index())
    }

    /// Returns the index of the last entry to apply. It is above [`DataDir::committed`] only if this member
    /// is the only voter. In that case, all entries of its log are committed and may have been acknowledged,
    /// even if the log does not record the new commit index yet.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Returns the entries to apply, in order: those after [`DataDir::base_index`], up to [`DataDir::end`].
    pub fn entries(&self) -> impl Iterator<Item = Result<api::raftpb::Entry, Error>> + '_ {
        (self.base_index() + 1..=self.end).map(|index| match self.wal.entry(index)? {
            Some(entry) => Ok(entry),
            None => Err(missing(index)),
        })
    }

    /// Rebuilds etcd's v2 store as of [`DataDir::end`], from its newest image and the log entries after the
    /// image. etcd 3.4 and 3.5 do the same at every start.
    ///
    /// # Errors
    ///
    /// Returns an error if the image or an entry cannot be read, has a form that etcd does not write, or
    /// entries after the image are missing.
    pub fn old_keys(&self, disk: &dyn Disk) -> Result<V2Tree, Error> {
        let (index, mut tree) = match v2_store::newest_tree(disk, &self.snap_dir, &self.wal)? {
            Some((index, tree)) => (index, tree),
            None => (0, V2Tree::new()),
        };
        for index in index + 1..=self.end {
            let Some(entry) = self.wal.entry(index)? else {
                let what =
                    format!("entry {index}, which is newer than the old store's image, is not in the log");
                return Err(Error::damaged(0, what));
            };
            tree.apply(&entry).map_err(|malformed| {
                Error::damaged(0, format!("entry {}: {}", malformed.index, malformed.what))
            })?;
        }
        Ok(tree)
    }

    /// Searches the log for the first write to etcd's v2 store after its newest image, and records the write
    /// in [`OldStore::write`]. Such writes exist only in the log, so they are lost if only the image is kept.
    fn find_old_write(&mut self) -> Result<(), Error> {
        let first = self.wal.first().max(self.old_store.index.saturating_add(1));
        for index in first..=self.end.min(self.wal.last()) {
            let Some(entry) = self.wal.entry(index)? else { continue };
            let what = match Command::of(&entry) {
                Ok(Command::OldWrite { method, path }) => format!("{method} {path}"),
                // The request cannot be decoded. Count it as a write to the v2 store, so that it is reported
                // and not silently lost.
                Err(malformed) if entry.r#type() == EntryType::EntryNormal => {
                    format!("something that cannot be read ({})", malformed.what)
                }
                _ => continue,
            };
            self.old_store.write = Some((index, what));
            return Ok(());
        }
        Ok(())
    }

    /// Checks that the log contains the entries that the database requires.
    fn check_log(&self) -> Result<(), Error> {
        let (base, committed) = (self.base_index(), self.committed());
        if base == u64::MAX {
            return Err(Error::damaged(0, "the database names an impossible entry").in_file("db"));
        }
        // etcd writes an entry to the log before it applies the entry to the database. So the log may end
        // below the database's index only if the database was sent by the leader, which the log records with
        // a snapshot mark.
        if self.wal.last() < base && !self.wal.snapshots.iter().any(|snapshot| snapshot.index >= base) {
            let what = format!(
                "the log ends with entry {}, but the database contains entries up to {base}: a part of the log is missing",
                self.wal.last()
            );
            return Err(Error::damaged(self.wal.end.offset, what).in_file(&self.wal.end.file));
        }
        // If the state contains all committed entries, the log need not have any.
        if base < committed {
            if self.wal.first() > base + 1 {
                return Err(missing(base + 1));
            }
            if self.wal.last() < committed {
                return Err(missing(self.wal.last() + 1));
            }
        }
        Ok(())
    }

    /// Determines the members at [`DataDir::base_index`] as etcd up to 3.5 does: from an image of the v2
    /// store and the entries after the image. The bucket `members` of the database is not used.
    fn find_members(&mut self, newest: &Newest) -> Result<Roster, Error> {
        let (from, mut roster) = match newest {
            Newest::Image(image) => {
                let unreadable = |why: String| Error::damaged(0, why).in_file(&image.name);
                let members = v2_store::members_in(image.json.as_ref().unwrap_or_default());
                (image.index, Roster::of(&members.map_err(unreadable)?))
            }
            _ if self.wal.first() == 1 => (0, Roster::default()),
            _ => {
                let why = match newest {
                    Newest::Unreadable { name, why } => format!(": {name} ({why})"),
                    _ => String::new(),
                };
                return Err(Error::Members(format!(
                    "the list of members is unknown: none of the images of the old store named by the \
                     log's snapshot marks can be read{why}, and the log starts only with entry {}. Start \
                     etcd once more and stop it cleanly, or restore a snapshot",
                    self.wal.first()
                )));
            }
        };
        let raft = self
            .wal
            .snapshots
            .iter()
            .rev()
            .find(|mark| mark.index == from)
            .and_then(|mark| mark.conf_state.as_ref());
        let image = if let Newest::Image(image) = newest { image.conf_state.as_ref() } else { None };
        for (state, whose) in [(raft, "the log's snapshot mark"), (image, "the image's own head")] {
            if let Some(state) = state.filter(|_| from > 0) {
                agree((&roster.conf_state(), "the image of the old store"), (state, whose), from)?;
            }
        }
        self.follow(&mut roster, from, self.base_index(), Following::All)?;
        self.membership = roster.clone().into_membership(&self.membership);
        Ok(roster)
    }

    /// Checks the members against raft's configuration (the ids of voters and learners), which decides who
    /// has a vote. The configuration is recorded in several places, each of which the members must agree
    /// with:
    ///
    /// * in the snapshot marks of the log, in the image of the v2 store, and in the log itself if it begins
    ///   with the first entry. Each of these configurations is checked after the membership changes that
    ///   follow it in the log are applied to it. It is not checked if the log lacks entries after it.
    /// * in the database, from 3.6 on. This configuration is checked only if a membership change in this log
    ///   has written it, or if none of the others can be checked.
    fn hold_against_raft(&self, roster: &Roster, disk: &dyn Disk, newest: &Newest) -> Result<(), Error> {
        let base = self.base_index();
        let mut begins = Vec::new();
        for mark in &self.wal.snapshots {
            begins.extend(
                mark.conf_state.clone().map(|state| (mark.index, state, "a snapshot mark of the log")),
            );
        }
        let mut head = match newest {
            Newest::Image(image) => image.conf_state.clone().map(|state| (image.index, state)),
            _ => None,
        };
        // etcd 3.4 records the configuration only in the image, not in the snapshot mark. So read the image
        // also for a database of 3.6: the member may have been upgraded from 3.4 since its last snapshot.
        let last = self.wal.snapshots.last().filter(|mark| mark.conf_state.is_none() && mark.index > 0);
        if let (None, Some(_), true) = (&head, last, self.meta.storage_version.is_some()) {
            let found = v2_store::newest(disk, &self.snap_dir, &self.wal, v2_store::IMAGE_BYTES_MAX)
                .map_err(|e| Error::io(format!("reading the image in {}", self.snap_dir.display()), e))?;
            if let Newest::Image(image) = found {
                head = image.conf_state.map(|state| (image.index, state));
            }
        }
        begins.extend(head.map(|(index, state)| (index, state, "the image of the last snapshot")));
        if self.wal.first() == 1 {
            begins.push((0, ConfState::default(), "the log's entries since the first"));
        }
        begins.retain(|(index, ..)| *index == base || (*index < base && self.wal.first() <= index + 1));
        let members = &roster.conf_state();
        let whose = "the list of members";
        let mut passed = Vec::new();
        // The index of the newest configuration that the log or the image records, and true if a membership
        // change in the log after this index has changed the configuration.
        let mut newest: Option<(u64, bool)> = None;
        for (index, state, by) in &begins {
            let mut raft = Roster::of_conf_state(state, &self.membership);
            let begun = passed.len();
            passed.push(raft.conf_state());
            for next in index + 1..=base {
                if self.follow(&mut raft, next - 1, next, Following::Changes)? {
                    passed.push(raft.conf_state());
                }
            }
            agree((members, whose), (&raft.conf_state(), by), base)?;
            let has_changed = passed[begun..].windows(2).any(|states| states[0] != states[1]);
            newest = newest.filter(|(known, _)| known >= index).or(Some((*index, has_changed)));
        }
        let Some(noted) = self.meta.conf_state.as_ref().filter(|_| self.meta.storage_version.is_some())
        else {
            return match begins.is_empty() {
                true => Err(Error::Members(
                    "the voting members are unknown: neither the log's snapshot marks nor its entries go \
                     back far enough. Start etcd once more and stop it cleanly, or restore a snapshot"
                        .to_owned(),
                )),
                false => Ok(()),
            };
        };
        // Do not check the database's configuration if the log has a configuration and no later change. etcd
        // writes it to the database only when it applies a membership change, so a database restored from a
        // snapshot may still have the configuration of the cluster that saved the snapshot.
        if newest.is_some_and(|(_, has_changed)| !has_changed) {
            return Ok(());
        }
        // Accept every configuration that the log has passed (`passed`), because a starting etcd stores each
        // of them again while it applies the log. Also accept the configuration after the first membership
        // change above `base`, because etcd stores this configuration before it advances the database's index
        // to the entry of the change.
        let mut next = roster.clone();
        let behind = base + 1..=self.committed().min(self.wal.last());
        let changed = behind.into_iter().find(|index| self.wal.is_conf_change(*index));
        if let Some(index) = changed {
            self.follow(&mut next, index - 1, index, Following::Changes)?;
            passed.push(next.conf_state());
        }
        if passed.contains(&sorted(noted)) {
            return Ok(());
        }
        agree((members, whose), (noted, "the database's own note"), base)
    }

    /// Sets the last entry to apply ([`DataDir::end`]) and the voters at that entry. If `is_sure` is true,
    /// checks that this member is one of the members.
    fn find_end(&mut self, mut roster: Roster, is_sure: bool) -> Result<(), Error> {
        let (base, committed) = (self.base_index(), self.committed());
        self.follow(&mut roster, base, committed, Following::Changes)?;
        self.end = committed;
        let me = self.wal.identity.member_id;
        while roster.conf_state().voters == [me] && self.wal.term(self.end + 1).is_some() {
            self.follow(&mut roster, self.end, self.end + 1, Following::Changes)?;
            self.end += 1;
        }
        let members = roster.conf_state();
        if is_sure && !roster.knows(me) {
            return Err(Error::Members(format!(
                "this is the log of member {me:x}, which is not one of the members at entry {}: {}. If it \
                 was added recently, run etcd until it has caught up; otherwise this is the directory of \
                 another member or cluster",
                self.end,
                named(&members)
            )));
        }
        self.voters = members.voters.into_iter().collect();
        Ok(())
    }

    /// Applies the entries after `from` up to `to` to the members. `what` selects all entries or only
    /// membership changes. Returns true if one of them was a membership change.
    fn follow(&self, roster: &mut Roster, from: u64, to: u64, what: Following) -> Result<bool, Error> {
        let mut has_changed = false;
        for index in from + 1..=to {
            if self.wal.term(index).is_none() {
                return Err(missing(index));
            }
            let is_change = self.wal.is_conf_change(index);
            if what == Following::Changes && !is_change {
                continue;
            }
            let entry = self.wal.entry(index)?.ok_or_else(|| missing(index))?;
            let wrong = |what| Error::damaged(0, format!("entry {index}: {what}"));
            let command = match Command::of(&entry) {
                Ok(command) => command,
                // Skip a malformed entry that is not a membership change, because it does not affect the
                // members. [`DataDir::find_old_write`] reports malformed writes to the v2 store.
                Err(_) if !is_change => continue,
                Err(malformed) => return Err(wrong(malformed.what)),
            };
            let is_new = index > self.base_index();
            let was_taken = |id| {
                let known = &self.membership;
                is_new || known.removed.contains(&id) || known.members.iter().any(|member| member.id == id)
            };
            roster.apply(command, was_taken).map_err(wrong)?;
            has_changed |= is_change;
        }
        Ok(has_changed)
    }
}

/// Selection of the entries that are applied to the members.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Following {
    /// All entries, so that names and client URLs are known too.
    All,
    /// Only membership changes.
    Changes,
}

/// Returns an error if two lists of members differ.
fn agree(
    (members, whose): (&ConfState, &str),
    (raft, by): (&ConfState, &str),
    index: u64,
) -> Result<(), Error> {
    if sorted(members) == sorted(raft) {
        return Ok(());
    }
    Err(Error::Members(format!(
        "it is not certain who the members are: at entry {index}, {whose} has {}, and raft's configuration by {by} has {}. A \
         member that counts different votes than the rest of its cluster could become a second leader. \
         Start the newest etcd of this release once more on the directory, which repairs a lost promotion, \
         stop it cleanly, and try again; or remove this member from the cluster and add it again",
        named(members),
        named(raft)
    )))
}

fn missing(index: u64) -> Error {
    Error::damaged(0, format!("entry {index} is committed but not in the log"))
}

fn open_database(disk: &dyn Disk, path: &Path) -> Result<Backend<SharedFile>, Error> {
    let file = disk.open_read(path).map_err(|e| Error::io(format!("opening {}", path.display()), e))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Bolt::whole(file).and_then(Backend::new).map_err(|e| e.in_file(&name))
}
