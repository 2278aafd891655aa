//! The checkpoint directory.

use std::path::PathBuf;
use std::sync::Arc;

use disk::Disk;

use super::manifest::is_run_name;
use super::{Manifest, Run, RunReader, RunWriter};
use crate::OpenError;

const MANIFEST: &str = "MANIFEST";
const MANIFEST_TMP: &str = "MANIFEST.tmp";
/// A manifest longer than this is not one.
const MANIFEST_BYTES_MAX: u64 = 64 << 20;

/// The directory `<data-dir>/member/checkpoint`.
#[derive(Clone)]
pub struct CheckpointStore {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
}

impl CheckpointStore {
    /// Opens the directory, creating it if it is missing.
    pub fn open(disk: Arc<dyn Disk>, dir: impl Into<PathBuf>) -> Result<CheckpointStore, OpenError> {
        let dir = dir.into();
        disk.create_dir_all(&dir).map_err(|error| OpenError::io("create", &dir, error))?;
        Ok(CheckpointStore { disk, dir })
    }

    /// Begins a run. Its name (letters, digits, `-`, `_`, `.`) must be new: runs are never overwritten.
    pub fn begin(
        &self,
        name: &str,
        applied_index: u64,
        term: u64,
        metadata: &[u8],
    ) -> Result<RunWriter, OpenError> {
        assert!(is_run_name(name), "{name:?} is no name for a run");
        let path = self.dir.join(name);
        let taken = self.disk.exists(&path).map_err(|error| OpenError::io("look for", &path, error))?;
        if taken {
            let error = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
            return Err(OpenError::io("create", &path, error));
        }
        RunWriter::begin(self.disk.clone(), self.dir.clone(), name, applied_index, term, metadata)
    }

    /// Makes these finished runs the checkpoint, atomically and durably.
    pub fn commit(&self, manifest: &Manifest) -> Result<(), OpenError> {
        let tmp = self.dir.join(MANIFEST_TMP);
        let path = self.dir.join(MANIFEST);
        let io = |error| OpenError::io("write", &tmp, error);
        if self.disk.exists(&tmp).map_err(io)? {
            self.disk.remove(&tmp).map_err(io)?;
        }
        let file = self.disk.create(&tmp).map_err(io)?;
        file.write_at(&manifest.encode(), 0).map_err(io)?;
        if !planted::is(planted::Bug::ManifestNotSynced) {
            file.sync_all().map_err(io)?;
        }
        self.disk.rename(&tmp, &path).map_err(|error| OpenError::io("rename to", &path, error))?;
        self.disk.sync_dir(&self.dir).map_err(|error| OpenError::io("sync", &self.dir, error))
    }

    /// The current checkpoint, if there is one. Its runs are checked when they are read.
    pub fn load(&self) -> Result<Option<Manifest>, OpenError> {
        let path = self.dir.join(MANIFEST);
        let io = |error| OpenError::io("read", &path, error);
        // A name found here may not be durable yet, after a process died between rename and sync.
        self.disk.sync_dir(&self.dir).map_err(|error| OpenError::io("sync", &self.dir, error))?;
        if !self.disk.exists(&path).map_err(io)? {
            return Ok(None);
        }
        let file = self.disk.open(&path).map_err(io)?;
        let len = file.len().map_err(io)?;
        if len > MANIFEST_BYTES_MAX {
            return Err(OpenError::damaged(&path, 0, "the file is too long for a manifest"));
        }
        let mut bytes = vec![0; len as usize];
        file.read_exact_at(&mut bytes, 0).map_err(io)?;
        Manifest::decode(&bytes).map(Some).map_err(|why| OpenError::damaged(&path, 0, why))
    }

    /// Reads a run of the checkpoint.
    pub fn read(&self, run: &Run) -> Result<RunReader, OpenError> {
        RunReader::open(&*self.disk, &self.dir, run)
    }

    /// Removes every file that the manifest, which is the current one, does not name; no run may be under way.
    /// Returns how many.
    pub fn prune(&self, manifest: &Manifest) -> Result<usize, OpenError> {
        let mut removed = 0;
        let names = self.disk.list(&self.dir).map_err(|error| OpenError::io("list", &self.dir, error))?;
        for name in names {
            if name == MANIFEST || manifest.runs.iter().any(|run| run.name == name) {
                continue;
            }
            let path = self.dir.join(&name);
            self.disk.remove(&path).map_err(|error| OpenError::io("remove", &path, error))?;
            removed += 1;
        }
        Ok(removed)
    }
}
