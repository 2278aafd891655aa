//! Inspects the data directory of a member on this machine, whether the member is running or stopped. Changes
//! nothing there.

use std::io;
use std::path::{Path, PathBuf};

use disk::{Disk, DiskSpace, RealDisk};
use interchange::wal::STALE_MARK_NAME;
use interchange::{DataDir, OldStore};

use super::survey::Product;
use crate::evidence::Unseen;

/// Contents of a data directory, and the free space on its file system.
#[derive(Clone, Debug)]
pub struct Directory {
    /// Path of the directory.
    pub path: PathBuf,
    /// Directory of the write-ahead log, if it is not inside the data directory.
    pub wal_dir: Option<PathBuf>,
    /// Product that used the directory last, and to which its data belongs.
    pub of: Product,
    /// Size of etcd's database file in bytes; 0 for a directory of Mainstay.
    pub database_bytes: u64,
    /// Keys of API version 2 that a migration would lose; `Ok(None)` if there are none.
    pub old_keys: Result<Option<OldKeys>, Unseen>,
    /// Reason why the directory cannot be used for the migration; `None` if none is known. While etcd runs on
    /// it, the only reason that can be found is that its files do not tell for sure who the cluster's members
    /// are.
    pub refusal: Option<String>,
    /// True if a member of etcd is running on the directory.
    pub is_running: bool,
    /// Space on the file system of the data directory.
    pub space: DiskSpace,
    /// Space on the file system of the write-ahead log; `None` if that is also the file system of the data
    /// directory.
    pub wal_space: Option<DiskSpace>,
}

/// Keys of API version 2 in the directory, which a migration would lose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldKeys {
    /// Description of the keys, for the report.
    pub what: String,
}

impl Directory {
    /// Inspects the directory.
    ///
    /// # Errors
    /// Returns an error if the path is not the data directory of a member, or something in it cannot be read.
    pub fn look(path: &Path, wal_dir: Option<&Path>) -> Result<Directory, Unseen> {
        let disk = RealDisk;
        let member = path.join("member");
        let there = |path: &Path| match disk.exists(path) {
            // Mainstay puts a file named `snap` where etcd expects a directory, so that etcd cannot start. So
            // this error means that there is no etcd database.
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => Ok(false),
            found => found.map_err(|error| Unseen::because(format!("{}: {error}", path.display()))),
        };
        let database = member.join("snap").join("db");
        let was_etcds = there(&member.join(STALE_MARK_NAME))?;
        let mut is_ours = was_etcds;
        for part in ["witness", "wal-dir"] {
            is_ours |= there(&member.join(part))?;
        }
        // Count these directories only if they are not empty. Empty ones may remain from a first start of
        // Mainstay that failed, after which etcd possibly used the directory again.
        for part in ["checkpoint", "log"] {
            is_ours |= disk.list(&member.join(part)).is_ok_and(|names| !names.is_empty());
        }
        let of = if is_ours {
            Product::Mainstay
        } else if there(&database)? {
            Product::Etcd
        } else {
            let why = format!("{} does not hold a member: it has no member/snap/db", path.display());
            return Err(why.into());
        };
        let space = space(path)?;
        let wal_space = match wal_dir {
            Some(wal_dir) if !is_on_one_disk(path, wal_dir)? => Some(self::space(wal_dir)?),
            _ => None,
        };
        let mut directory = Directory {
            path: path.to_owned(),
            wal_dir: wal_dir.map(Path::to_owned),
            of,
            database_bytes: 0,
            old_keys: Ok(None),
            refusal: None,
            is_running: false,
            space,
            wal_space,
        };
        if of == Product::Etcd {
            directory.look_at_etcd(&database)?;
        } else if !was_etcds && there(&database)? && !interchange::holds_nothing(&disk, &member.join("snap"))
        {
            directory.refusal = Some(
                "etcd was started on this directory of Mainstay and created its own store beside it; \
                 Mainstay reports at its start what is in it, and what to do"
                    .to_owned(),
            );
        }
        Ok(directory)
    }

    fn look_at_etcd(&mut self, database: &Path) -> Result<(), Unseen> {
        let disk = RealDisk;
        let failed = |error: io::Error| Unseen::because(format!("{}: {error}", database.display()));
        self.database_bytes = disk.open_read(database).and_then(|file| file.len()).map_err(failed)?;
        self.is_running = match disk.lock_shared(database) {
            Ok(_) => false,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => true,
            Err(error) => return Err(failed(error)),
        };
        let kept = |store: &OldStore| store.loss().map(|what| OldKeys { what });
        let snap = self.path.join("member").join("snap");
        let wal_dir = self.wal_dir.clone().unwrap_or_else(|| self.path.join("member").join("wal"));
        if self.is_running {
            self.refusal = refusal_to_come(&self.path, &wal_dir);
            // Read only the snapshot files, which do not change: the running member is writing its log.
            self.old_keys = OldStore::glance(&disk, &snap)
                .map(|store| kept(&store))
                .map_err(|error| Unseen::because(format!("{}: {error}", snap.display())));
            return Ok(());
        }
        match DataDir::glance(&disk, &self.path, &wal_dir) {
            Ok(stopped) => self.old_keys = Ok(kept(&stopped.old_store)),
            Err(error) => {
                self.old_keys = Err(Unseen::because(&error));
                self.refusal = Some(error.to_string());
            }
        }
        Ok(())
    }
}

/// Returns the reason why Mainstay would refuse to take over the directory of a running member of etcd, if
/// the reason is that its files do not tell for sure who the cluster's members are. The files may change
/// while they are read, so reading is repeated if it fails. Other reasons can be found only after the member
/// has stopped.
fn refusal_to_come(path: &Path, wal_dir: &Path) -> Option<String> {
    for _ in 0..ATTEMPTS {
        match DataDir::glance_running(&RealDisk, path, wal_dir) {
            Ok(_) => return None,
            Err(uncertain @ interchange::Error::Members(_)) => return Some(uncertain.to_string()),
            Err(_) => {}
        }
    }
    None
}

/// Maximum number of times that the files of a running member are read.
const ATTEMPTS: usize = 10;

fn space(path: &Path) -> Result<DiskSpace, Unseen> {
    RealDisk.space(path).map_err(|error| Unseen::because(format!("{}: {error}", path.display())))
}

fn is_on_one_disk(one: &Path, other: &Path) -> Result<bool, Unseen> {
    use std::os::unix::fs::MetadataExt as _;
    let device = |path: &Path| {
        let found = std::fs::metadata(path).map(|found| found.dev());
        found.map_err(|error| Unseen::because(format!("{}: {error}", path.display())))
    };
    Ok(device(one)? == device(other)?)
}

#[cfg(test)]
mod tests {
    use interchange::backend::{BackendLayout, Member, Membership, Release};
    use interchange::wal::Identity;
    use interchange::{NewDataDir, NewMember};
    use testkit::TempDir;

    use super::*;

    /// Creates a data directory of etcd 3.6 for a cluster with these members. It belongs to the first of
    /// them.
    fn etcds(path: &Path, ids: &[u64]) {
        let members = ids.iter().map(|id| Member { id: *id, ..Member::default() }).collect();
        let membership = Membership { members, ..Membership::default() };
        let member = NewMember {
            identity: Identity { member_id: ids[0], cluster_id: 9 },
            index: 5,
            term: 2,
            release: Release::V3_6,
            conf_state: membership.conf_state(),
            newest_term: 2,
            vote: ids[0],
            entries: Vec::new(),
        };
        let new = NewDataDir::begin(&RealDisk, path, member).unwrap();
        let meta = new.meta(None);
        let mut layout = BackendLayout::new(Release::V3_6);
        layout.meta(&meta).unwrap();
        layout.membership(&membership).unwrap();
        let mut database = new.database(layout.finish().unwrap()).unwrap();
        database.meta(&meta).unwrap();
        database.membership(&membership).unwrap();
        new.finish(database, &membership).unwrap();
    }

    #[test]
    fn what_a_takeover_will_refuse_is_told_while_the_member_runs() {
        let dir = TempDir::new("migrate-directory");
        let (data, other) = (dir.path().join("one"), dir.path().join("three"));
        etcds(&data, &[1]);
        etcds(&other, &[1, 2, 3]);
        let db = data.join("member/snap/db");
        for (is_running, differs) in [(false, false), (true, false), (false, true), (true, true)] {
            if differs {
                std::fs::copy(other.join("member/snap/db"), &db).unwrap();
            }
            let held = is_running.then(|| RealDisk.lock_read(&db).unwrap());
            let seen = Directory::look(&data, None).unwrap();
            assert_eq!(seen.is_running, is_running);
            let told = seen.refusal.is_some_and(|why| why.contains("it is not certain who the members are"));
            assert_eq!(told, differs, "runs: {is_running}");
            drop(held);
        }
    }

    #[test]
    fn a_directory_that_holds_no_member_is_told() {
        let dir = TempDir::new("migrate-directory");
        let told = |path: &Path| Directory::look(path, None).unwrap_err().to_string();
        assert!(told(dir.path()).ends_with("does not hold a member: it has no member/snap/db"));
        assert!(told(&dir.path().join("none")).contains("does not hold a member"));
    }

    #[test]
    fn a_member_of_mainstay_and_garbage_in_the_place_of_etcds() {
        let dir = TempDir::new("migrate-directory");
        let snap = dir.path().join("member").join("snap");
        std::fs::create_dir_all(&snap).unwrap();
        std::fs::write(snap.join("db"), vec![7; 5000]).unwrap();
        // Create what a failed first start of Mainstay leaves behind.
        for part in ["checkpoint", "log"] {
            std::fs::create_dir(dir.path().join("member").join(part)).unwrap();
        }
        let seen = Directory::look(dir.path(), None).unwrap();
        assert_eq!((seen.of, seen.database_bytes, seen.is_running), (Product::Etcd, 5000, false));
        assert!(seen.refusal.is_some() && seen.old_keys.is_err());
        assert!(seen.space.total_bytes > 0 && seen.wal_space.is_none());
        std::fs::write(dir.path().join("member").join(STALE_MARK_NAME), "").unwrap();
        let seen = Directory::look(dir.path(), Some(&snap)).unwrap();
        assert_eq!((seen.of, seen.refusal, seen.wal_space), (Product::Mainstay, None, None));
        let gone = Directory::look(dir.path(), Some(&dir.path().join("gone"))).unwrap_err();
        assert!(gone.to_string().contains("gone: No such file"), "{gone}");
    }

    #[test]
    fn a_store_that_etcd_began_beside_a_member_of_mainstay_is_told() {
        let dir = TempDir::new("migrate-directory");
        let member = dir.path().join("member");
        std::fs::create_dir_all(member.join("log")).unwrap();
        std::fs::write(member.join("log/0000000000000000.seg"), "").unwrap();
        // A file in place of the directory keeps etcd from starting.
        std::fs::write(member.join("snap"), "text").unwrap();
        let seen = Directory::look(dir.path(), None).unwrap();
        assert_eq!((seen.of, seen.refusal), (Product::Mainstay, None));
        std::fs::remove_file(member.join("snap")).unwrap();
        std::fs::create_dir_all(member.join("snap")).unwrap();
        std::fs::write(member.join("snap/db"), "").unwrap();
        assert_eq!(Directory::look(dir.path(), None).unwrap().refusal, None);
        std::fs::write(member.join("snap/db"), "something").unwrap();
        let seen = Directory::look(dir.path(), None).unwrap();
        assert!(seen.of == Product::Mainstay && seen.refusal.unwrap().contains("created its own store"));
    }

    #[test]
    fn a_running_member_is_told_from_a_stopped_one() {
        let dir = TempDir::new("migrate-directory");
        let snap = dir.path().join("member").join("snap");
        std::fs::create_dir_all(&snap).unwrap();
        std::fs::write(snap.join("db"), b"x").unwrap();
        let held = RealDisk.lock_read(&snap.join("db")).unwrap();
        let seen = Directory::look(dir.path(), None).unwrap();
        assert!(seen.is_running && seen.refusal.is_none());
        assert_eq!(seen.old_keys, Ok(None));
        // Add a snapshot file that cannot be decoded.
        std::fs::write(snap.join("0000000000000002-0000000000000007.snap"), b"\xff").unwrap();
        let seen = Directory::look(dir.path(), None).unwrap();
        let what = seen.old_keys.unwrap().unwrap().what;
        assert!(what.contains("0000000000000002-0000000000000007.snap"), "{what}");
        drop(held);
        // A process that only reads the database, such as the doctor itself, does not count as a running
        // member.
        let _read = RealDisk.lock_shared(&snap.join("db")).unwrap();
        let seen = Directory::look(dir.path(), None).unwrap();
        let refusal = seen.refusal.unwrap();
        assert!(!seen.is_running && !refusal.contains("lock"), "{refusal}");
    }
}
