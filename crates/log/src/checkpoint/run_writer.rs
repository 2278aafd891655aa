//! Writes a run, which is a file of a checkpoint, block by block.

use std::path::PathBuf;
use std::sync::Arc;

use disk::{Disk, File};
use numbers::{BlockPlace, Index, Term};

use super::{
    BLOCK_BYTES_MAX, BLOCK_HEAD_BYTES, FOOTER_BYTES, METADATA_BYTES_MAX, RUN_HEAD_BYTES, RUN_MAGIC, Run,
    VERSION, block_crc,
};
use crate::OpenError;

/// A run that is being written, one block per call. If it is dropped before [`RunWriter::finish`], its file
/// is removed or, if the run was written into the reserve file, becomes the reserve file again.
pub struct RunWriter {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) dir: PathBuf,
    pub(super) name: String,
    pub(super) path_tmp: PathBuf,
    /// Path of the reserve file, if this run is written into it; `None` if the run has a new file.
    pub(super) reserve: Option<PathBuf>,
    pub(super) file: Option<Arc<dyn File>>,
    offset: u64,
    seed: u32,
    blocks: u64,
    payload_bytes: u64,
    total_crc: u32,
    buffer: Vec<u8>,
}

impl RunWriter {
    pub(super) fn begin(
        disk: Arc<dyn Disk>,
        dir: PathBuf,
        name: &str,
        applied_index: Index,
        term: Term,
        metadata: &[u8],
        reserve: Option<PathBuf>,
    ) -> Result<RunWriter, OpenError> {
        assert!(metadata.len() <= METADATA_BYTES_MAX, "the metadata is within its limit");
        let path_tmp = dir.join(format!("{name}.tmp"));
        let io = |error| OpenError::io("create", &path_tmp, error);
        if disk.exists(&path_tmp).map_err(io)? {
            disk.remove(&path_tmp).map_err(io)?;
        }
        let file = match &reserve {
            Some(reserve) => {
                disk.rename(reserve, &path_tmp).map_err(io)?;
                disk.open(&path_tmp).map_err(io)?
            }
            None => disk.create(&path_tmp).map_err(io)?,
        };
        let mut head = Vec::with_capacity(RUN_HEAD_BYTES + metadata.len() + 4);
        head.extend_from_slice(&RUN_MAGIC);
        head.extend_from_slice(&VERSION.to_le_bytes());
        head.extend_from_slice(&(metadata.len() as u32).to_le_bytes());
        head.extend_from_slice(&applied_index.0.to_le_bytes());
        head.extend_from_slice(&term.0.to_le_bytes());
        head.extend_from_slice(metadata);
        let seed = crc32c::crc32c(&head);
        head.extend_from_slice(&seed.to_le_bytes());
        let mut writer = RunWriter {
            disk,
            dir,
            name: name.to_owned(),
            path_tmp,
            reserve,
            file: Some(file),
            offset: 0,
            seed,
            blocks: 0,
            payload_bytes: 0,
            total_crc: 0,
            buffer: head,
        };
        writer.write_buffer()?;
        Ok(writer)
    }

    /// Writes one block of 1 byte to 256 MiB. Blocks should have about 128 KiB. Returns the place where
    /// [`RunBlocks`](super::RunBlocks) finds the block once the run is finished.
    pub fn write_block(&mut self, payload: &[u8]) -> Result<BlockPlace, OpenError> {
        assert!(
            !payload.is_empty() && payload.len() <= BLOCK_BYTES_MAX,
            "a block's length is within its limits"
        );
        let crc = block_crc(self.seed, self.blocks, payload);
        let place = BlockPlace { number: self.blocks, offset: self.offset, len: payload.len() as u32, crc };
        self.buffer.clear();
        self.buffer.extend_from_slice(&place.len.to_le_bytes());
        self.buffer.extend_from_slice(&crc.to_le_bytes());
        assert_eq!(self.buffer.len(), BLOCK_HEAD_BYTES);
        self.buffer.extend_from_slice(payload);
        self.blocks += 1;
        self.payload_bytes += payload.len() as u64;
        self.total_crc = crc32c::crc32c_append(self.total_crc, &crc.to_le_bytes());
        self.write_buffer()?;
        Ok(place)
    }

    /// Makes the bytes written so far durable. The caller should call this from time to time, so that each
    /// sync is small: a sync of the log on the same disk would have to wait for a large one.
    pub fn sync(&mut self) -> Result<(), OpenError> {
        match &self.file {
            Some(file) => file.sync_data().map_err(|error| OpenError::io("sync", &self.path_tmp, error)),
            None => Ok(()),
        }
    }

    /// Number of bytes written to the file so far, including the header of the run and those of its blocks.
    pub fn file_bytes(&self) -> u64 {
        self.offset
    }

    /// Returns true if the run is written into the reserve file.
    pub fn is_in_reserve(&self) -> bool {
        self.reserve.is_some()
    }

    /// Number of bytes of the reserve file that the run has not used yet; 0 if the run has a new file.
    pub fn spare_bytes(&self) -> u64 {
        let len = self.file.as_ref().and_then(|file| file.len().ok()).unwrap_or(0);
        len.saturating_sub(self.offset)
    }

    /// Writes the footer, makes the run durable and renames the file to its final name.
    pub fn finish(mut self) -> Result<Run, OpenError> {
        let mut tail = Vec::with_capacity(FOOTER_BYTES);
        tail.extend_from_slice(&self.blocks.to_le_bytes());
        tail.extend_from_slice(&self.payload_bytes.to_le_bytes());
        tail.extend_from_slice(&self.total_crc.to_le_bytes());
        self.buffer.clear();
        self.buffer.extend_from_slice(&[0; 4]);
        self.buffer.extend_from_slice(&crc32c::crc32c_append(self.seed, &tail).to_le_bytes());
        self.buffer.extend_from_slice(&tail);
        self.write_buffer()?;
        let path = self.dir.join(&self.name);
        if let Some(file) = &self.file
            && self.reserve.is_some()
        {
            file.set_len(self.offset).map_err(|error| OpenError::io("cut", &self.path_tmp, error))?;
        }
        if let Some(file) = &self.file
            && !planted::is(planted::Bug::CheckpointTorn)
        {
            file.sync_all().map_err(|error| OpenError::io("sync", &self.path_tmp, error))?;
        }
        self.disk.rename(&self.path_tmp, &path).map_err(|error| OpenError::io("rename to", &path, error))?;
        self.file = None;
        self.disk.sync_dir(&self.dir).map_err(|error| OpenError::io("sync", &self.dir, error))?;
        Ok(Run { name: self.name.clone(), file_bytes: self.offset, total_crc: self.total_crc })
    }

    fn write_buffer(&mut self) -> Result<(), OpenError> {
        if let Some(file) = &self.file {
            file.write_at(&self.buffer, self.offset)
                .map_err(|error| OpenError::io("write to", &self.path_tmp, error))?;
        }
        self.offset += self.buffer.len() as u64;
        Ok(())
    }
}

impl Drop for RunWriter {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            // An error is ignored: if the file stays, the next
            // [`CheckpointStore::prune`](super::CheckpointStore::prune) removes it or makes it the reserve
            // file again.
            let _ = match &self.reserve {
                Some(reserve) => self.disk.rename(&self.path_tmp, reserve),
                None => self.disk.remove(&self.path_tmp),
            };
        }
    }
}
