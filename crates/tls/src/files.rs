//! Reads the files that the TLS settings name, and detects whether they have changed.

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use crate::error::LoadError;
use crate::settings::Settings;
use crate::trust::Fingerprint;

/// Size limit in bytes for files with certificates or keys. For comparison, the files with all authorities of
/// a system have about 250 KiB.
const MAX_PEM_BYTES: u64 = 4 * 1024 * 1024;
/// Size limit in bytes for the file with revocation lists, which is sufficient for about a million entries.
const MAX_REVOCATIONS_BYTES: u64 = 64 * 1024 * 1024;

/// Tells for which of the settings a file is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Certificate,
    Key,
    ClientCertificate,
    ClientKey,
    Authorities,
    Revocations,
}

/// Returns the files that the settings name.
pub(crate) fn named(settings: &Settings) -> Vec<(Part, PathBuf)> {
    let all = [
        (Part::Certificate, &settings.cert_file),
        (Part::Key, &settings.key_file),
        (Part::ClientCertificate, &settings.client_cert_file),
        (Part::ClientKey, &settings.client_key_file),
        (Part::Authorities, &settings.trusted_ca_file),
        (Part::Revocations, &settings.crl_file),
    ];
    all.into_iter().filter_map(|(part, path)| Some((part, path.clone()?))).collect()
}

/// Metadata of a file, by which a change of the file is detected without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// Returns the stamp of a file; `None` if the file does not exist.
pub(crate) fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = fs::metadata(path).ok()?;
    Some(Stamp {
        device: metadata.dev(),
        inode: metadata.ino(),
        bytes: metadata.len(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    })
}

impl Stamp {
    /// Returns the times of the last change in seconds since 1970: `ctime`, and `mtime`, which programs can
    /// set to any time.
    pub(crate) fn changed_seconds(&self) -> [i64; 2] {
        [self.changed.0, self.modified.0]
    }
}

/// Contents of the files, all read at about the same time.
pub(crate) struct Contents {
    read: Vec<(Part, PathBuf, Result<Vec<u8>, LoadError>)>,
}

impl Contents {
    /// Creates contents from data that was already read; for a file that cannot be read, from the error.
    pub(crate) fn of(read: Vec<(Part, PathBuf, Result<Vec<u8>, LoadError>)>) -> Contents {
        Contents { read }
    }

    pub(crate) fn read(files: &[(Part, PathBuf)]) -> Contents {
        let read = files.iter().map(|(part, path)| (*part, path.clone(), read(*part, path))).collect();
        Contents { read }
    }

    /// Returns the path and the bytes of this file; `None` if the settings do not name it.
    pub(crate) fn get(&self, part: Part) -> Result<Option<(&Path, &[u8])>, LoadError> {
        match self.read.iter().find(|(candidate, ..)| *candidate == part) {
            None => Ok(None),
            Some((_, path, Ok(bytes))) => Ok(Some((path, bytes))),
            Some((.., Err(error))) => Err(error.clone()),
        }
    }

    /// Returns one hash per file: that of its contents or, if it cannot be read, of the error message.
    pub(crate) fn hashes(&self) -> Vec<Fingerprint> {
        let hash = |result: &Result<Vec<u8>, LoadError>| match result {
            Ok(bytes) => Sha256::new_with_prefix([1]).chain_update(bytes).finalize().into(),
            Err(error) => Sha256::new_with_prefix([0]).chain_update(error.to_string()).finalize().into(),
        };
        self.read.iter().map(|(.., result)| hash(result)).collect()
    }
}

fn read(part: Part, path: &Path) -> Result<Vec<u8>, LoadError> {
    let failed = |operation: &str, error: &io::Error| {
        let why = match error.kind() {
            io::ErrorKind::NotFound => "no such file or directory".to_owned(),
            io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
            _ => error.to_string(),
        };
        LoadError::of_file(path, format!("{operation} {}: {why}", path.display()))
    };
    // With `O_NONBLOCK`, opening a named pipe does not wait for a writer.
    let mut file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .map_err(|error| failed("open", &error))?;
    let metadata = file.metadata().map_err(|error| failed("read", &error))?;
    if metadata.is_dir() {
        return Err(LoadError::of_file(path, format!("read {}: is a directory", path.display())));
    }
    if !metadata.is_file() {
        return Err(LoadError::of_file(path, format!("read {}: not a regular file", path.display())));
    }
    let max = if part == Part::Revocations { MAX_REVOCATIONS_BYTES } else { MAX_PEM_BYTES };
    let mut bytes = Vec::new();
    (&mut file).take(max + 1).read_to_end(&mut bytes).map_err(|error| failed("read", &error))?;
    if bytes.len() as u64 > max {
        return Err(LoadError::of_file(path, format!("read {}: larger than {max} bytes", path.display())));
    }
    Ok(bytes)
}
