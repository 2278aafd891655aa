//! A directory as a store, for `file:///dir`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::store::{Creation, Listing, Store};
use crate::trouble::{Fault, Trouble};

/// Prefix of the names of files that are being written. Such files are not listed.
const UNFINISHED: &str = ".unfinished-";

/// A directory that keeps objects as files.
///
/// A file is written under another name, synced, and gets its own name by a hard link, which fails if the name is
/// taken. A rename would replace an existing file instead.
pub struct DirectoryStore {
    root: PathBuf,
    url: String,
    next: AtomicU64,
    /// Random number of this process, so that no other one uses the same names for unfinished files.
    own: u64,
}

impl DirectoryStore {
    /// Returns the store in an existing directory.
    ///
    /// # Errors
    ///
    /// Returns an error if the directory does not exist. It is not created: it is probably a mount point whose disk is
    /// missing.
    pub fn open(root: &Path) -> Result<DirectoryStore, Trouble> {
        if !root.is_dir() {
            return Err(Trouble::new(
                Fault::NoPlace,
                format!(
                    "{} is not an existing directory: create it, or mount the disk that should be there",
                    root.display()
                ),
            ));
        }
        let url = format!("file://{}", root.display());
        let mut random = [0; 8];
        File::open("/dev/urandom")
            .and_then(|mut file| file.read_exact(&mut random))
            .map_err(|error| Trouble::new(Fault::Refused, format!("cannot read random numbers: {error}")))?;
        let own = u64::from_ne_bytes(random);
        Ok(DirectoryStore { root: root.to_path_buf(), url, next: AtomicU64::new(0), own })
    }

    fn failed(&self, doing: &str, path: &Path, error: &io::Error) -> Trouble {
        let fault = match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Fault::Full,
            ErrorKind::PermissionDenied => Fault::Denied,
            _ if !self.root.is_dir() => Fault::NoPlace,
            _ => Fault::Passing,
        };
        let advice = match fault {
            Fault::Full => "; free space there",
            Fault::Denied => "; give this user the right to it",
            Fault::NoPlace => "; the directory of the backup is gone: mount or create it again",
            _ => "",
        };
        Trouble::new(fault, format!("cannot {doing} {}: {error}{advice}", path.display()))
    }
}

impl Store for DirectoryStore {
    fn create(&self, name: &str, data: Bytes) -> Result<Creation, Trouble> {
        let path = self.root.join(name);
        let directory = path.parent().unwrap_or(&self.root).to_path_buf();
        if path.try_exists().map_err(|error| self.failed("look for", &path, &error))? {
            // A process that was killed after the link may not have made it durable.
            sync(&directory).map_err(|error| self.failed("sync", &directory, &error))?;
            return Ok(Creation::Existed);
        }
        if !self.root.is_dir() {
            return Err(self.failed("write", &path, &ErrorKind::NotFound.into()));
        }
        create_directories(&self.root, &directory)
            .map_err(|error| self.failed("create", &directory, &error))?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let making = directory.join(format!("{UNFINISHED}{:016x}-{number}", self.own));
        let write = || -> io::Result<Creation> {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&making)?;
            file.write_all(&data)?;
            file.sync_all()?;
            match fs::hard_link(&making, &path) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    sync(&directory)?;
                    return Ok(Creation::Existed);
                }
                Err(error) => return Err(error),
            }
            sync(&directory)?;
            Ok(Creation::Created)
        };
        let written = write();
        // An error leaves a file that no listing shows.
        let _ = fs::remove_file(&making);
        written.map_err(|error| self.failed("write", &path, &error))
    }

    fn read(&self, name: &str) -> Result<Option<Bytes>, Trouble> {
        let path = self.root.join(name);
        match fs::read(&path) {
            Ok(data) => Ok(Some(data.into())),
            Err(error) if error.kind() == ErrorKind::NotFound && self.root.is_dir() => Ok(None),
            Err(error) => Err(self.failed("read", &path, &error)),
        }
    }

    fn size(&self, name: &str) -> Result<Option<u64>, Trouble> {
        let path = self.root.join(name);
        match fs::metadata(&path) {
            Ok(found) => Ok(Some(found.len())),
            Err(error) if error.kind() == ErrorKind::NotFound && self.root.is_dir() => Ok(None),
            Err(error) => Err(self.failed("read", &path, &error)),
        }
    }

    fn list(&self, directory: &str) -> Result<Listing, Trouble> {
        let path = self.root.join(directory);
        let failed = |error: io::Error| self.failed("list", &path, &error);
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound && self.root.is_dir() => {
                return Ok(Listing::default());
            }
            Err(error) => return Err(failed(error)),
        };
        let mut listing = Listing::default();
        for entry in entries {
            let entry = entry.map_err(failed)?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            if name.starts_with(UNFINISHED) {
                continue;
            }
            match entry.file_type().map_err(failed)?.is_dir() {
                true => listing.directories.push(name),
                false => listing.objects.push(name),
            }
        }
        listing.directories.sort_unstable();
        listing.objects.sort_unstable();
        Ok(listing)
    }

    fn remove(&self, name: &str) -> Result<(), Trouble> {
        let path = self.root.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(self.failed("delete", &path, &error)),
            _ => Ok(()),
        }
    }

    fn url(&self) -> &str {
        &self.url
    }

    fn is_local(&self) -> bool {
        true
    }
}

/// Creates the missing directories from `root` to `directory`, and syncs the parents of the new ones.
fn create_directories(root: &Path, directory: &Path) -> io::Result<()> {
    if directory.is_dir() || directory == root {
        return Ok(());
    }
    let parent = directory.parent().unwrap_or(root);
    create_directories(root, parent)?;
    match fs::create_dir(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => sync(parent),
    }
}

fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use testkit::TempDir;

    use super::*;

    #[test]
    fn an_object_is_created_once_and_never_replaced() {
        let dir = TempDir::new("backup-directory");
        let store = DirectoryStore::open(dir.path()).expect("exists");
        assert_eq!(store.read("a/b/c").expect("answers"), None);
        assert_eq!(store.create("a/b/c", Bytes::from_static(b"one")), Ok(Creation::Created));
        assert_eq!(store.create("a/b/c", Bytes::from_static(b"two")), Ok(Creation::Existed));
        assert_eq!(store.read("a/b/c").expect("answers").as_deref(), Some(&b"one"[..]));
        assert_eq!(store.size("a/b/c"), Ok(Some(3)));
        let expected = Listing { directories: vec!["b".to_owned()], objects: Vec::new() };
        assert_eq!(store.list("a"), Ok(expected));
        assert_eq!(store.list("a/b").expect("answers").objects, ["c"], "no unfinished file is left");
        store.remove("a/b/c").expect("is removed");
        store.remove("a/b/c").expect("is gone already");
        assert_eq!(store.size("a/b/c"), Ok(None));
    }

    #[test]
    fn a_directory_that_is_gone_is_named_and_not_created() {
        let dir = TempDir::new("backup-directory-gone");
        let root = dir.path().join("mount");
        assert_eq!(DirectoryStore::open(&root).err().map(|trouble| trouble.fault), Some(Fault::NoPlace));
        fs::create_dir(&root).expect("is created");
        let store = DirectoryStore::open(&root).expect("exists");
        fs::remove_dir(&root).expect("is removed");
        for fault in [store.create("a/b", Bytes::new()).err(), store.read("a/b").err(), store.list("a").err()]
        {
            assert_eq!(fault.map(|trouble| trouble.fault), Some(Fault::NoPlace));
        }
        assert!(!root.exists());
    }
}
