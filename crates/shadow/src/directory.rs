//! The data directory of a shadow:
//!
//! ```text
//! DIR/shadow.json     which cluster is followed, and the first revision at which a comparison was different
//! DIR/lock            held while a shadow runs
//! DIR/data            data directory of the local member, which holds the copy
//! DIR/data.different  a copy that was different, if the shadow had to begin again
//! DIR/data.removed    a copy that is being removed
//! DIR/snapshot.db     a snapshot of the source, until the copy is made from it
//! ```
//!
//! The revision that is reached needs no file: it is the revision of the copy.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use disk::{Disk as _, Lock, RealDisk};
use serde_json::{Value, json};

use crate::trouble::Trouble;

/// Version of the format of `shadow.json`.
const VERSION: u64 = 1;

/// The data directory, locked against other shadows.
pub(crate) struct Directory {
    path: PathBuf,
    record: Record,
    _lock: Lock,
}

/// Content of `shadow.json`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Record {
    /// Id of the cluster that is followed; `None` before the first snapshot.
    source: Option<u64>,
    /// The first revision at which a comparison was different; `None` if none was.
    different: Option<i64>,
}

impl Directory {
    /// Opens the directory, and creates it if it is missing.
    ///
    /// # Errors
    ///
    /// Returns an error if the directory contains anything that no shadow has made, if another shadow uses it, or
    /// if the system refuses.
    pub(crate) fn open(path: &Path) -> Result<Directory, Trouble> {
        let failed = |what: &str, error: &io::Error| {
            Trouble::Final(format!("cannot {what} {}: {error}", path.display()))
        };
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        made.map_err(|error| failed("create", &error))?;
        let record_path = path.join("shadow.json");
        let has_record = record_path.try_exists().map_err(|error| failed("look into", &error))?;
        if !has_record {
            for entry in fs::read_dir(path).map_err(|error| failed("read", &error))? {
                let name = entry.map_err(|error| failed("read", &error))?.file_name();
                if name != "lock" && name != "shadow.json.new" {
                    return Err(Trouble::Final(format!(
                        "{} contains {}, which no shadow has made: give an empty directory, or that of an earlier shadow",
                        path.display(),
                        name.display()
                    )));
                }
            }
        }
        let lock = RealDisk.lock(&path.join("lock")).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => Trouble::Final(format!("another shadow uses {}", path.display())),
            _ => failed("lock", &error),
        })?;
        let record = match has_record {
            false => Record::default(),
            true => {
                let text = fs::read_to_string(&record_path).map_err(|error| failed("read", &error))?;
                Record::read(&text).ok_or_else(|| {
                    Trouble::Final(format!("{} is not readable by this release", record_path.display()))
                })?
            }
        };
        let mut directory = Directory { path: path.to_owned(), record, _lock: lock };
        if !has_record {
            // Written at once, so that the directory is known as that of a shadow whatever is in it later.
            directory.write(record)?;
        }
        directory.check_data()?;
        // What a shadow that was killed has left.
        directory.remove_removed()?;
        directory.remove_snapshot()?;
        Ok(directory)
    }

    /// Refuses a symbolic link in place of the copy: removing it would leave the copy where it points to.
    fn check_data(&self) -> Result<(), Trouble> {
        let data = self.data();
        match fs::symlink_metadata(&data) {
            Ok(found) if found.is_dir() => Ok(()),
            Ok(_) => Err(Trouble::Final(format!(
                "{} is no directory: a shadow makes it itself, so give --data-dir where the copy is to be",
                data.display()
            ))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(Trouble::Final(format!("cannot look into {}: {error}", data.display()))),
        }
    }

    /// Returns the id of the cluster that the copy is of; `None` if there is no copy.
    pub(crate) fn source(&self) -> Option<u64> {
        self.record.source
    }

    /// Returns the first revision at which a comparison was different.
    pub(crate) fn different(&self) -> Option<i64> {
        self.record.different
    }

    /// Returns the data directory of the local member.
    pub(crate) fn data(&self) -> PathBuf {
        self.path.join("data")
    }

    /// Returns the path of a snapshot of the source.
    pub(crate) fn snapshot(&self) -> PathBuf {
        self.path.join("snapshot.db")
    }

    /// Returns true if there is a copy. A copy has its name only once it is complete.
    ///
    /// # Errors
    ///
    /// Returns an error if the system refuses.
    pub(crate) fn has_copy(&self) -> Result<bool, Trouble> {
        let data = self.data();
        data.try_exists()
            .map_err(|error| Trouble::Final(format!("cannot look into {}: {error}", data.display())))
    }

    /// Records the cluster from which a copy is about to be made.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be written.
    pub(crate) fn follows(&mut self, source: u64) -> Result<(), Trouble> {
        self.write(Record { source: Some(source), ..self.record })
    }

    /// Records that a comparison was different at this revision, unless one was before.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be written.
    pub(crate) fn note_difference(&mut self, revision: i64) -> Result<(), Trouble> {
        match self.record.different {
            Some(_) => Ok(()),
            None => self.write(Record { different: Some(revision), ..self.record }),
        }
    }

    /// Removes the copy, and a snapshot that was left. The first copy that was different is kept as
    /// `data.different` instead.
    ///
    /// # Errors
    ///
    /// Returns an error if the system refuses.
    pub(crate) fn clear(&self) -> Result<(), Trouble> {
        let (data, kept) = (self.data(), self.path.join("data.different"));
        let failed = |path: &Path, error: io::Error| {
            Trouble::Final(format!("cannot remove {}: {error}", path.display()))
        };
        self.remove_snapshot()?;
        let keeps =
            self.record.different.is_some() && !kept.try_exists().map_err(|error| failed(&kept, error))?;
        // A copy that is partly removed must not have the name of a whole one.
        let moved = if keeps { kept } else { self.removed() };
        match fs::rename(&data, moved) {
            Ok(()) => RealDisk.sync_dir(&self.path).map_err(|error| failed(&data, error))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(&data, error)),
        }
        self.remove_removed()
    }

    fn removed(&self) -> PathBuf {
        self.path.join("data.removed")
    }

    /// Removes a copy that has lost its name.
    fn remove_removed(&self) -> Result<(), Trouble> {
        let path = self.removed();
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Trouble::Final(format!("cannot remove {}: {error}", path.display())))
            }
            _ => Ok(()),
        }
    }

    /// Removes the snapshot, if there is one.
    ///
    /// # Errors
    ///
    /// Returns an error if the system refuses.
    pub(crate) fn remove_snapshot(&self) -> Result<(), Trouble> {
        let path = self.snapshot();
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Trouble::Final(format!("cannot remove {}: {error}", path.display())))
            }
            _ => Ok(()),
        }
    }

    fn write(&mut self, record: Record) -> Result<(), Trouble> {
        let (path, new) = (self.path.join("shadow.json"), self.path.join("shadow.json.new"));
        let written = fs::File::create(&new)
            .and_then(|mut file| file.write_all(record.to_json().as_bytes()).and_then(|()| file.sync_all()))
            .and_then(|()| fs::rename(&new, &path))
            .and_then(|()| RealDisk.sync_dir(&self.path));
        written.map_err(|error| Trouble::Final(format!("cannot write {}: {error}", path.display())))?;
        self.record = record;
        Ok(())
    }
}

impl Record {
    fn to_json(self) -> String {
        let source = self.source.map(|id| format!("{id:x}"));
        format!("{}\n", json!({ "version": VERSION, "source": source, "different": self.different }))
    }

    /// Returns the record that a text holds; `None` if the text is damaged or of another version.
    fn read(text: &str) -> Option<Record> {
        let value: Value = serde_json::from_str(text).ok()?;
        if value.get("version")?.as_u64()? != VERSION {
            return None;
        }
        let source = match value.get("source")? {
            Value::Null => None,
            Value::String(id) => Some(u64::from_str_radix(id, 16).ok()?),
            _ => return None,
        };
        let different = match value.get("different")? {
            Value::Null => None,
            revision => Some(revision.as_i64()?),
        };
        Some(Record { source, different })
    }
}

#[cfg(test)]
mod tests {
    use testkit::TempDir;

    use super::*;

    fn refusal(path: &Path) -> String {
        match Directory::open(path) {
            Err(trouble) => trouble.text(),
            Ok(_) => panic!("{} is taken", path.display()),
        }
    }

    #[test]
    fn what_is_recorded_is_there_after_a_restart_and_one_shadow_uses_a_directory() {
        let dir = TempDir::new("shadow-directory");
        let path = dir.path().join("a/b");
        let mut directory = Directory::open(&path).expect("is made");
        assert_eq!((directory.source(), directory.different()), (None, None));
        assert!(refusal(&path).starts_with("another shadow uses"));
        directory.follows(0xabc).expect("is written");
        directory.note_difference(7).expect("is written");
        directory.note_difference(9).expect("is written");
        drop(directory);
        let directory = Directory::open(&path).expect("opens");
        assert_eq!((directory.source(), directory.different()), (Some(0xabc), Some(7)));
    }

    #[test]
    fn a_directory_with_anything_else_or_a_damaged_record_is_refused() {
        let dir = TempDir::new("shadow-directory-taken");
        fs::create_dir(dir.path().join("member")).expect("a directory");
        assert!(refusal(dir.path()).contains("contains member, which no shadow has made"));
        fs::write(dir.path().join("shadow.json"), "{\"version\":2}").expect("a file");
        assert!(refusal(dir.path()).contains("not readable by this release"));
    }

    #[test]
    fn what_a_killed_shadow_has_left_is_removed_and_a_link_is_no_copy() {
        let dir = TempDir::new("shadow-directory-left");
        drop(Directory::open(dir.path()).expect("is made"));
        fs::create_dir_all(dir.path().join("data.removed/member")).expect("a directory");
        fs::write(dir.path().join("snapshot.db"), "s").expect("a file");
        let record = dir.path().join("shadow.json");
        let written = fs::metadata(&record).expect("a file").modified().expect("a time");
        let directory = Directory::open(dir.path()).expect("opens");
        assert!(!dir.path().join("data.removed").exists() && !directory.snapshot().exists());
        assert_eq!(fs::metadata(&record).expect("a file").modified().expect("a time"), written);
        drop(directory);
        fs::create_dir(dir.path().join("elsewhere")).expect("a directory");
        std::os::unix::fs::symlink("elsewhere", dir.path().join("data")).expect("a link");
        assert!(refusal(dir.path()).contains("data is no directory"));
    }

    #[test]
    fn only_the_first_copy_that_was_different_is_kept() {
        let dir = TempDir::new("shadow-directory-clear");
        let mut directory = Directory::open(dir.path()).expect("opens");
        let make = |text: &str| {
            fs::create_dir(directory.data()).expect("a directory");
            fs::write(directory.data().join("what"), text).expect("a file");
        };
        let kept = || fs::read_to_string(dir.path().join("data.different/what")).ok();
        directory.clear().expect("nothing is there");
        make("equal");
        directory.clear().expect("is removed");
        assert!(!directory.has_copy().expect("looks") && kept().is_none());
        make("first");
        fs::write(directory.snapshot(), "s").expect("a file");
        let make = |directory: &Directory, text: &str| {
            fs::create_dir(directory.data()).expect("a directory");
            fs::write(directory.data().join("what"), text).expect("a file");
        };
        directory.note_difference(3).expect("is written");
        directory.clear().expect("is moved");
        assert_eq!(kept().as_deref(), Some("first"));
        assert!(!directory.snapshot().exists());
        make(&directory, "second");
        directory.clear().expect("is removed");
        assert_eq!((kept().as_deref(), directory.has_copy()), (Some("first"), Ok(false)));
    }
}
