//! Manages the checkpoint directory: begins runs, commits checkpoints, removes old files, and keeps space in
//! reserve.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use disk::{Disk, DiskSpace};
use numbers::{Index, Term};

use super::manifest::is_run_name;
use super::{Manifest, Run, RunBlocks, RunReader, RunWriter};
use crate::OpenError;
use crate::segment::{is_refused_for_size, reserve};

const MANIFEST: &str = "MANIFEST";
const MANIFEST_TMP: &str = "MANIFEST.tmp";
/// Names of the files that reserve space for the next run and the next manifest on a disk that may fill up.
/// The reserve is needed because only a new checkpoint allows the log to release segments, which frees space.
const RESERVE: &str = "reserve";
const MANIFEST_RESERVE: &str = "reserve-manifest";
/// Beginning of the names that a file server (NFS) gives to files that were removed while they are open.
const REMOVED_WHILE_OPEN: &str = ".nfs";
/// Smallest number of bytes by which a reserve file is enlarged: one block of most file systems.
const RESERVE_BYTES_MIN: u64 = 4096;
/// Maximum length of a manifest in bytes; a longer file is refused as damaged.
const MANIFEST_BYTES_MAX: u64 = 64 << 20;

/// Error returned when a checkpoint was not committed.
#[derive(Debug)]
pub enum CommitError {
    /// The commit failed before the manifest was replaced. The previous checkpoint is still the current one.
    Unchanged(OpenError),
    /// The rename of the new manifest, or the sync after it, failed. After a restart either the old or the
    /// new checkpoint may be the current one. Until a commit succeeds, the runs of both checkpoints must be
    /// kept.
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
    /// True once a reserve file still had holes after zeros had been written into it. From then on holes are
    /// not filled with zeros, because that reserves no space on this file system.
    zeros_stay_holes: Arc<AtomicBool>,
}

impl CheckpointStore {
    /// Opens the checkpoint directory, creating it if it is missing.
    pub fn open(disk: Arc<dyn Disk>, dir: impl Into<PathBuf>) -> Result<CheckpointStore, OpenError> {
        let dir = dir.into();
        disk.create_dir_all(&dir).map_err(|error| OpenError::io("create", &dir, error))?;
        Ok(CheckpointStore { disk, dir, zeros_stay_holes: Arc::default() })
    }

    /// Path of the checkpoint directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Begins a run. Its name (letters, digits, `-`, `_`, `.`) must not be used by an existing run, because
    /// runs are never overwritten.
    pub fn begin(
        &self,
        name: &str,
        applied_index: Index,
        term: Term,
        metadata: &[u8],
    ) -> Result<RunWriter, OpenError> {
        self.begin_within(name, applied_index, term, metadata, 0)
    }

    /// Begins a run like [`CheckpointStore::begin`]. If the file system has fewer free bytes than
    /// `expected_bytes`, the run is written into the reserve file, if that exists. If such a run is not
    /// finished, its file becomes the reserve again.
    pub fn begin_within(
        &self,
        name: &str,
        applied_index: Index,
        term: Term,
        metadata: &[u8],
        expected_bytes: u64,
    ) -> Result<RunWriter, OpenError> {
        assert!(is_run_name(name), "{name:?} is not a valid name for a run");
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

    /// Reserves `run_bytes` for the next run and `manifest_bytes` for the next manifest, or as many as the
    /// file system can give. The reserve prevents a deadlock: the log could use up all free space, and would
    /// then need a new checkpoint to release segments, but no checkpoint could be written. Returns the number
    /// of bytes reserved for the run.
    ///
    /// # Errors
    ///
    /// Returns the error of the operating system. A reservation that fails because the file system is full,
    /// or because the file would be too large, is no error.
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
        // The reserve file may have holes if an earlier release made it, or if the directory was copied.
        // Holes reserve no space, so they are filled with zeros.
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
            // The zeros were stored as holes, for example by a file server that compresses. Remember this, so
            // that later calls do not write them again in vain.
            self.zeros_stay_holes.store(true, Ordering::Relaxed);
        }
        Ok(len)
    }

    /// Removes the reserve files. The caller should do this while the file system has plenty of free space.
    ///
    /// # Errors
    ///
    /// Returns errors of the operating system.
    pub fn drop_reserve(&self) -> std::io::Result<()> {
        for name in [RESERVE, MANIFEST_RESERVE] {
            let path = self.dir.join(name);
            if self.disk.exists(&path)? {
                self.disk.remove(&path)?;
            }
        }
        Ok(())
    }

    /// Size and free space of the file system; `None` if the operating system does not report them.
    pub fn space(&self) -> Option<DiskSpace> {
        self.disk.space(&self.dir).ok()
    }

    /// Makes `manifest` the manifest of the current checkpoint, atomically and durably. The runs that it
    /// lists must be finished.
    ///
    /// # Errors
    ///
    /// Returns the error of the operating system. The variant says whether the current checkpoint may have
    /// changed.
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

    /// Returns the manifest of the current checkpoint, if one exists. The runs are not verified here, but
    /// when they are read.
    pub fn load(&self) -> Result<Option<Manifest>, OpenError> {
        let path = self.dir.join(MANIFEST);
        let io = |error| OpenError::io("read", &path, error);
        // If an earlier process died between the rename of the manifest and the sync of the directory, the
        // rename is possibly not durable yet. Sync the directory, so that a crash of the machine does not
        // bring back the old manifest.
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

    /// Opens a run of the checkpoint for reading.
    pub fn read(&self, run: &Run) -> Result<RunReader, OpenError> {
        RunReader::open(&*self.disk, &self.dir, run)
    }

    /// Opens a run of the checkpoint for reading single blocks.
    pub fn read_blocks(&self, run: &Run) -> Result<RunBlocks, OpenError> {
        RunBlocks::open(&*self.disk, &self.dir, run)
    }

    /// Removes every file that does not belong to the current checkpoint, except the reserve files, and files that a
    /// file server removes once nobody has them open.
    /// `manifest` must be the current one, and no run may be in progress. If a crash has left an unfinished
    /// run that was written into the reserve file, that file becomes the reserve again. Returns the number of
    /// files that were removed or renamed.
    pub fn prune(&self, manifest: &Manifest) -> Result<usize, OpenError> {
        let mut removed = 0;
        let names = self.disk.list(&self.dir).map_err(|error| OpenError::io("list", &self.dir, error))?;
        for name in names {
            if [MANIFEST, RESERVE, MANIFEST_RESERVE].contains(&name.as_str())
                || name.starts_with(REMOVED_WHILE_OPEN)
            {
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
