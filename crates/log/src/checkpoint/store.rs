//! The checkpoint directory.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use disk::{Disk, DiskSpace};
use numbers::{Index, Term};

use super::manifest::is_run_name;
use super::{Manifest, Run, RunReader, RunWriter};
use crate::OpenError;
use crate::segment::{is_refused_for_size, reserve};

const MANIFEST: &str = "MANIFEST";
const MANIFEST_TMP: &str = "MANIFEST.tmp";
/// Room that is kept for the next run, and for the next manifest, on a disk that may fill up: a checkpoint is what frees
/// segments.
const RESERVE: &str = "reserve";
const MANIFEST_RESERVE: &str = "reserve-manifest";
/// No smaller reserve is tried: a block of most file systems.
const RESERVE_BYTES_MIN: u64 = 4096;
/// A manifest longer than this is not one.
const MANIFEST_BYTES_MAX: u64 = 64 << 20;

/// Why a checkpoint was not committed.
#[derive(Debug)]
pub enum CommitError {
    /// This attempt has not changed the name.
    Unchanged(OpenError),
    /// The name was changed, and perhaps not durably: a restart may find either checkpoint. Until a commit succeeds, the
    /// runs of both have to stay.
    Unsettled(OpenError),
}

impl From<CommitError> for OpenError {
    fn from(error: CommitError) -> OpenError {
        match error {
            CommitError::Unchanged(error) | CommitError::Unsettled(error) => error,
        }
    }
}

/// The directory `<data-dir>/member/checkpoint`.
#[derive(Clone)]
pub struct CheckpointStore {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    /// True once zeros that were written did not fill the holes of a file.
    zeros_stay_holes: Arc<AtomicBool>,
}

impl CheckpointStore {
    /// Opens the directory, creating it if it is missing.
    pub fn open(disk: Arc<dyn Disk>, dir: impl Into<PathBuf>) -> Result<CheckpointStore, OpenError> {
        let dir = dir.into();
        disk.create_dir_all(&dir).map_err(|error| OpenError::io("create", &dir, error))?;
        Ok(CheckpointStore { disk, dir, zeros_stay_holes: Arc::default() })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Begins a run. Its name (letters, digits, `-`, `_`, `.`) must be new: runs are never overwritten.
    pub fn begin(
        &self,
        name: &str,
        applied_index: Index,
        term: Term,
        metadata: &[u8],
    ) -> Result<RunWriter, OpenError> {
        self.begin_within(name, applied_index, term, metadata, 0)
    }

    /// Begins a run as [`CheckpointStore::begin`] does. If the file system has fewer free bytes, the reserve becomes the
    /// run's file; it is restored if the run is not finished.
    pub fn begin_within(
        &self,
        name: &str,
        applied_index: Index,
        term: Term,
        metadata: &[u8],
        expected_bytes: u64,
    ) -> Result<RunWriter, OpenError> {
        assert!(is_run_name(name), "{name:?} is no name for a run");
        let path = self.dir.join(name);
        let taken = self.disk.exists(&path).map_err(|error| OpenError::io("look for", &path, error))?;
        if taken {
            let error = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
            return Err(OpenError::io("create", &path, error));
        }
        let reserve = self.dir.join(RESERVE);
        let short = self.disk.space(&self.dir).is_ok_and(|space| space.free_bytes < expected_bytes);
        let short = short && !planted::is(planted::Bug::CheckpointWithoutReserve);
        let there = self.disk.exists(&reserve).map_err(|error| OpenError::io("look for", &reserve, error))?;
        let reserve = (short && there).then_some(reserve);
        RunWriter::begin(self.disk.clone(), self.dir.clone(), name, applied_index, term, metadata, reserve)
    }

    /// Keeps this many bytes for the next run and for its manifest, or as much as there is room for: what is left would otherwise
    /// go to the log, which takes what it finds, and the next checkpoint, which is what makes room, would have none. Returns the
    /// bytes that are kept for the run.
    ///
    /// # Errors
    ///
    /// Those of the operating system, except that there is no room.
    pub fn keep_reserve(&self, run_bytes: u64, manifest_bytes: u64) -> std::io::Result<u64> {
        self.keep(MANIFEST_RESERVE, manifest_bytes)?;
        self.keep(RESERVE, run_bytes)
    }

    fn keep(&self, name: &str, bytes: u64) -> std::io::Result<u64> {
        let path = self.dir.join(name);
        let is_there = self.disk.exists(&path)?;
        let file = if is_there { self.disk.open(&path)? } else { self.disk.create(&path)? };
        let mut len = file.len()?;
        if len > bytes.saturating_mul(2) {
            file.set_len(bytes)?;
            return Ok(bytes);
        }
        // A file of an earlier release, or one that was copied, may be made of holes.
        let has_holes = file.hole_bytes()? > 0 && !self.zeros_stay_holes.load(Ordering::Relaxed);
        let begin = if has_holes { 0 } else { len };
        let mut more = bytes.saturating_sub(len).next_multiple_of(RESERVE_BYTES_MIN);
        while len < bytes || begin < len {
            match reserve(&*self.disk, &self.dir, &*file, begin, len - begin + more) {
                Ok(_) => {
                    len += more;
                    break;
                }
                Err(error) if !is_refused_for_size(&error) => return Err(error),
                Err(_) if more > RESERVE_BYTES_MIN => more = (more / 2).next_multiple_of(RESERVE_BYTES_MIN),
                Err(_) => {
                    len = begin;
                    break;
                }
            }
        }
        if len == 0 {
            self.disk.remove(&path)?;
        } else if has_holes && file.hole_bytes()? > 0 {
            // As where a server compresses: writing them once more would change nothing.
            self.zeros_stay_holes.store(true, Ordering::Relaxed);
        }
        Ok(len)
    }

    /// Gives the reserve back: the file system has room enough.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn drop_reserve(&self) -> std::io::Result<()> {
        for name in [RESERVE, MANIFEST_RESERVE] {
            let path = self.dir.join(name);
            if self.disk.exists(&path)? {
                self.disk.remove(&path)?;
            }
        }
        Ok(())
    }

    /// Bytes of the file system; `None` if it does not say.
    pub fn space(&self) -> Option<DiskSpace> {
        self.disk.space(&self.dir).ok()
    }

    /// Makes these finished runs the checkpoint, atomically and durably.
    ///
    /// # Errors
    ///
    /// What the operating system says, and whether it may have happened all the same.
    pub fn commit(&self, manifest: &Manifest) -> Result<(), CommitError> {
        let tmp = self.dir.join(MANIFEST_TMP);
        let path = self.dir.join(MANIFEST);
        let io = |error| CommitError::Unchanged(OpenError::io("write", &tmp, error));
        match self.write_manifest(&tmp, manifest, false) {
            Err(error) if disk::is_full(&error) => {
                self.write_manifest(&tmp, manifest, true).map_err(io)?;
            }
            outcome => outcome.map_err(io)?,
        }
        let unsettled = |doing, path, error| CommitError::Unsettled(OpenError::io(doing, path, error));
        self.disk.rename(&tmp, &path).map_err(|error| unsettled("rename to", &path, error))?;
        self.disk.sync_dir(&self.dir).map_err(|error| unsettled("sync", &self.dir, error))
    }

    fn write_manifest(&self, tmp: &Path, manifest: &Manifest, in_reserve: bool) -> std::io::Result<()> {
        if self.disk.exists(tmp)? {
            self.disk.remove(tmp)?;
        }
        let bytes = manifest.encode();
        let file = if in_reserve {
            self.disk.rename(&self.dir.join(MANIFEST_RESERVE), tmp)?;
            self.disk.open(tmp)?
        } else {
            self.disk.create(tmp)?
        };
        file.write_at(&bytes, 0)?;
        if in_reserve {
            file.set_len(bytes.len() as u64)?;
        }
        if planted::is(planted::Bug::ManifestNotSynced) { Ok(()) } else { file.sync_all() }
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

    /// Removes every file that the manifest, which is the current one, does not name, but for the reserve; no run may be
    /// under way. What a crash has left of a run that was written into the reserve becomes the reserve again.
    /// Returns how many.
    pub fn prune(&self, manifest: &Manifest) -> Result<usize, OpenError> {
        let mut removed = 0;
        let names = self.disk.list(&self.dir).map_err(|error| OpenError::io("list", &self.dir, error))?;
        for name in names {
            if [MANIFEST, RESERVE, MANIFEST_RESERVE].contains(&name.as_str()) {
                continue;
            }
            if manifest.runs.iter().any(|run| run.name == name) {
                continue;
            }
            let path = self.dir.join(&name);
            let reserve = self.dir.join(RESERVE);
            let lacks = self.disk.exists(&self.dir.join(MANIFEST_RESERVE)).unwrap_or(false)
                && !self.disk.exists(&reserve).unwrap_or(true);
            if lacks && name.ends_with(".run.tmp") {
                self.disk.rename(&path, &reserve).map_err(|error| OpenError::io("rename", &path, error))?;
            } else {
                self.disk.remove(&path).map_err(|error| OpenError::io("remove", &path, error))?;
            }
            removed += 1;
        }
        Ok(removed)
    }
}
