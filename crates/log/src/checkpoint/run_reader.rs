//! Reads the blocks of a run, which is a file of a checkpoint, and verifies them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use disk::{Disk, File};
use numbers::{Index, Term};

use super::{
    BLOCK_BYTES_MAX, BLOCK_HEAD_BYTES, FOOTER_BYTES, METADATA_BYTES_MAX, RUN_HEAD_BYTES, RUN_MAGIC, Run,
    VERSION, block_crc,
};
use crate::OpenError;
use crate::format::{u32_at, u64_at};

/// Number of bytes to which a read of the file fills the buffer, unless a longer block needs more.
const READ_BYTES: usize = 512 << 10;

/// A run that is being read. The blocks are known to be complete only after [`RunReader::next_block`] has
/// returned `None`, because only then has the footer been verified.
pub struct RunReader {
    path: PathBuf,
    file: Arc<dyn File>,
    offset: u64,
    seed: u32,
    blocks: u64,
    payload_bytes: u64,
    total_crc: u32,
    expected: Run,
    done: bool,
    chunk: BytesMut,
    /// Index of the last raft entry whose effects the image contains.
    pub applied_index: Index,
    /// Raft term of the entry at the applied index.
    pub term: Term,
    /// The caller's metadata.
    pub metadata: Vec<u8>,
}

/// The verified header of a run.
pub(super) struct RunHead {
    pub path: PathBuf,
    pub file: Arc<dyn File>,
    /// Offset of the first block.
    pub len: u64,
    /// Checksum of the header, from which the checksums of the blocks start.
    pub seed: u32,
    pub applied_index: Index,
    pub term: Term,
    pub metadata: Vec<u8>,
}

impl RunHead {
    /// Opens the file of a run. Checks its length and its header.
    pub fn open(disk: &dyn Disk, dir: &Path, run: &Run) -> Result<RunHead, OpenError> {
        let path = dir.join(&run.name);
        let io = |error| OpenError::io("read", &path, error);
        if !disk.exists(&path).map_err(io)? {
            return Err(OpenError::Missing { path });
        }
        let file = disk.open(&path).map_err(io)?;
        let len = file.len().map_err(io)?;
        if len != run.file_bytes {
            let found = format!("the file has {len} bytes, but had {} when it was finished", run.file_bytes);
            return Err(OpenError::damaged(&path, len, found));
        }
        let mut head = vec![0; RUN_HEAD_BYTES];
        file.read_exact_at(&mut head, 0).map_err(io)?;
        if head[..8] != RUN_MAGIC {
            return Err(OpenError::damaged(&path, 0, "the file does not start with a checkpoint header"));
        }
        let metadata_len = u32_at(&head, 12) as usize;
        if metadata_len > METADATA_BYTES_MAX {
            return Err(OpenError::damaged(&path, 12, "the metadata's length is impossible"));
        }
        head.resize(RUN_HEAD_BYTES + metadata_len + 4, 0);
        let read = file.read_at(&mut head, 0).map_err(io)?;
        let (body, crc) = head.split_at(RUN_HEAD_BYTES + metadata_len);
        let seed = u32_at(crc, 0);
        if read < head.len() || crc32c::crc32c(body) != seed {
            return Err(OpenError::damaged(&path, 0, "the checksum of the header does not match"));
        }
        if u32_at(body, 8) != VERSION {
            let found = "the checkpoint has a format version that this release does not know";
            return Err(OpenError::damaged(&path, 8, found));
        }
        Ok(RunHead {
            file,
            len: head.len() as u64,
            seed,
            applied_index: Index(u64_at(body, 16)),
            term: Term(u64_at(body, 24)),
            metadata: body[RUN_HEAD_BYTES..].to_vec(),
            path,
        })
    }
}

impl RunReader {
    pub(super) fn open(disk: &dyn Disk, dir: &Path, run: &Run) -> Result<RunReader, OpenError> {
        let RunHead { path, file, len, seed, applied_index, term, metadata } = RunHead::open(disk, dir, run)?;
        Ok(RunReader {
            file,
            offset: len,
            seed,
            blocks: 0,
            payload_bytes: 0,
            total_crc: 0,
            expected: run.clone(),
            done: false,
            chunk: BytesMut::new(),
            applied_index,
            term,
            metadata,
            path,
        })
    }

    /// Returns the payload of the next block; `None` after the last block, once the footer has been verified.
    pub fn next_block(&mut self) -> Result<Option<Bytes>, OpenError> {
        if self.done {
            return Ok(None);
        }
        self.fill(BLOCK_HEAD_BYTES)?;
        let len = u32_at(&self.chunk, 0) as usize;
        if len == 0 {
            self.finish()?;
            return Ok(None);
        }
        // Check the length before memory is allocated: a damaged length must not cause an allocation larger
        // than the file.
        if len > BLOCK_BYTES_MAX || len as u64 > self.expected.file_bytes.saturating_sub(self.offset) {
            return Err(self.damaged("the block's length is impossible"));
        }
        self.fill(BLOCK_HEAD_BYTES + len)?;
        let crc = u32_at(&self.chunk, 4);
        if block_crc(self.seed, self.blocks, &self.chunk[BLOCK_HEAD_BYTES..BLOCK_HEAD_BYTES + len]) != crc {
            return Err(self.damaged("the block's checksum does not match"));
        }
        self.blocks += 1;
        self.payload_bytes += len as u64;
        self.total_crc = crc32c::crc32c_append(self.total_crc, &crc.to_le_bytes());
        self.offset += (BLOCK_HEAD_BYTES + len) as u64;
        let mut block = self.chunk.split_to(BLOCK_HEAD_BYTES + len);
        Ok(Some(block.split_off(BLOCK_HEAD_BYTES).freeze()))
    }

    fn finish(&mut self) -> Result<(), OpenError> {
        self.fill(FOOTER_BYTES)?;
        let tail = &self.chunk[8..FOOTER_BYTES];
        if crc32c::crc32c_append(self.seed, tail) != u32_at(&self.chunk, 4) {
            return Err(self.damaged("the footer's checksum does not match"));
        }
        let counted = (self.blocks, self.payload_bytes, self.total_crc);
        if counted != (u64_at(tail, 0), u64_at(tail, 8), u32_at(tail, 16)) {
            return Err(self.damaged("the footer does not match the blocks"));
        }
        if self.total_crc != self.expected.total_crc {
            return Err(self.damaged("the blocks are not those that the manifest names"));
        }
        if self.offset + FOOTER_BYTES as u64 != self.expected.file_bytes {
            return Err(self.damaged("the file continues after its end"));
        }
        self.done = true;
        Ok(())
    }

    /// Ensures that `chunk` contains at least the next `needed` bytes of the file, counted from `offset`.
    /// Fails if the file ends before them.
    fn fill(&mut self, needed: usize) -> Result<(), OpenError> {
        let have = self.chunk.len();
        if have >= needed {
            return Ok(());
        }
        let want = needed.max(READ_BYTES);
        self.chunk.reserve(want - have);
        self.chunk.resize(want, 0);
        let read = self
            .file
            .read_at(&mut self.chunk[have..], self.offset + have as u64)
            .map_err(|error| OpenError::io("read", &self.path, error))?;
        self.chunk.truncate(have + read);
        if self.chunk.len() < needed {
            return Err(self.damaged("the file is truncated"));
        }
        Ok(())
    }

    fn damaged(&self, found: &str) -> OpenError {
        OpenError::damaged(&self.path, self.offset, found)
    }
}
