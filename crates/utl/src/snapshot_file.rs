//! Reads snapshot files in etcd's format and in Mainstay's own format.

use std::fs::File;
use std::path::Path;

use cli::Failure;
use interchange::Source as _;
use interchange::backend::Backend;
use interchange::bolt::Bolt;
use interchange::snapshot::{DIGEST_BYTES, Digests, Parts};

use crate::places;

/// First bytes of a snapshot in Mainstay's own format.
const OWN_MAGIC: &[u8; 8] = b"MAINSNAP";

/// A snapshot file, by its format.
pub enum SnapshotFile {
    /// A database of etcd, which is the format in which etcd and Mainstay send snapshots.
    Etcd(Backend<File>),
    /// A snapshot in Mainstay's own format, which early versions of Mainstay sent: the file, and its length
    /// in bytes.
    Own(File, u64),
}

/// Returns the metadata of a file. The error has the message of etcdutl.
///
/// # Errors
///
/// Returns an error if the metadata cannot be read.
pub fn stat(path: &Path) -> Result<std::fs::Metadata, Failure> {
    std::fs::metadata(path).map_err(|error| {
        let hint = places::in_place_of_snap(path).unwrap_or_default();
        Failure::error(format!("stat {}: {}{hint}", path.display(), spelled(&error)))
    })
}

/// Returns the message of an error of the operating system as Go prints it: without the error number, and
/// with a small first letter.
pub fn spelled(error: &std::io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| first.to_lowercase().chain(chars).collect())
}

/// Opens a file for reading. Errors have the messages of etcdutl.
///
/// # Errors
///
/// Returns an error if the file cannot be opened.
pub fn open_file(path: &Path) -> Result<File, Failure> {
    let refused = |why: String| {
        let hint = places::in_place_of_snap(path).unwrap_or_default();
        Failure::error(format!("open {}: {why}{hint}", path.display()))
    };
    let file = File::open(path).map_err(|error| refused(spelled(&error)))?;
    if file.metadata().is_ok_and(|found| found.is_dir()) {
        return Err(Failure::error(format!(
            "read {}: is a directory: name a file that `snapshot save` wrote, or a database",
            path.display()
        )));
    }
    match places::in_place_of_snap(path) {
        Some(_) => Err(refused("not a database".to_owned())),
        None => Ok(file),
    }
}

impl SnapshotFile {
    /// Opens a snapshot to print its status or hash. The digest is not verified, because both commands are
    /// also used on copies of a member's database, which have no digest.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read or is no snapshot.
    pub fn look(path: &Path) -> Result<SnapshotFile, Failure> {
        let file = open_file(path)?;
        let parts = parts(&file, path)?;
        SnapshotFile::take(file, path, parts)
    }

    /// Opens a snapshot to restore it. Its digest must exist and match, unless `skip` is true. Calls `passed`
    /// with the number of bytes verified so far.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, is no snapshot, or does not match its digest.
    pub fn verify(path: &Path, skip: bool, passed: &mut dyn FnMut(u64)) -> Result<SnapshotFile, Failure> {
        let file = open_file(path)?;
        let parts = parts(&file, path)?;
        if !parts.has_digest && !skip {
            return Err(Failure::error("snapshot missing hash but --skip-hash-check=false"));
        }
        if parts.has_digest && !skip {
            let digests = Digests::of(&file, parts.database_bytes, passed).map_err(Failure::error)?;
            if digests.expected != digests.found {
                return Err(Failure::error(format!(
                    "expected sha256 {}, got {}",
                    go_bytes(&digests.expected),
                    go_bytes(&digests.found)
                )));
            }
        }
        SnapshotFile::take(file, path, parts)
    }

    fn take(file: File, path: &Path, parts: Parts) -> Result<SnapshotFile, Failure> {
        let mut magic = [0; OWN_MAGIC.len()];
        let began = file.read_exact_at(&mut magic, 0);
        if began.is_ok() && magic == *OWN_MAGIC {
            return Ok(SnapshotFile::Own(file, parts.database_bytes));
        }
        let name = path.display();
        let refused = |e: interchange::Error| Failure::error(format!("{name}: {e}"));
        let bolt = Bolt::open(file, parts.database_bytes).map_err(refused)?;
        Ok(SnapshotFile::Etcd(Backend::new(bolt).map_err(refused)?))
    }
}

fn parts(file: &File, path: &Path) -> Result<Parts, Failure> {
    let bytes = file
        .len_bytes()
        .map_err(|error| Failure::error(format!("stat {}: {}", path.display(), spelled(&error))))?;
    if bytes < DIGEST_BYTES as u64 {
        return Err(Failure::error(format!("{} has {bytes} bytes, too few for a snapshot", path.display())));
    }
    Ok(Parts::of_size(bytes))
}

/// Formats bytes as Go prints a slice of them.
fn go_bytes(bytes: &[u8]) -> String {
    let numbers: Vec<String> = bytes.iter().map(u8::to_string).collect();
    format!("[{}]", numbers.join(" "))
}
