//! Reads single blocks of a run at their places, in any order and on any thread, and verifies each.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use disk::{Disk, File};
use numbers::{BlockPlace, Index, Term};
use planted::Bug;

use super::run_reader::RunHead;
use super::{BLOCK_BYTES_MAX, BLOCK_HEAD_BYTES, FOOTER_BYTES, Run, block_crc};
use crate::OpenError;
use crate::format::{u32_at, u64_at};

/// A run whose blocks are read one by one, each at the [`BlockPlace`] that was returned when it was written.
///
/// A block is accepted only if it is the one of this place: its length and its checksum must be those of the
/// place, and the checksum starts from that of the run's header and includes the block's number. Whether the
/// places themselves belong to the run is what [`RunBlocks::check_places`] says, without reading a block.
pub struct RunBlocks {
    path: PathBuf,
    file: Arc<dyn File>,
    seed: u32,
    /// Offset of the first block.
    begin: u64,
    /// Offset of the footer.
    end: u64,
    /// Number of blocks and bytes of payload, as the footer contains them.
    blocks: u64,
    payload_bytes: u64,
    total_crc: u32,
    /// Index of the last raft entry whose effects the image contains.
    pub applied_index: Index,
    /// Raft term of the entry at the applied index.
    pub term: Term,
    /// The caller's metadata.
    pub metadata: Vec<u8>,
}

impl RunBlocks {
    pub(super) fn open(disk: &dyn Disk, dir: &Path, run: &Run) -> Result<RunBlocks, OpenError> {
        let RunHead { path, file, len, seed, applied_index, term, metadata } = RunHead::open(disk, dir, run)?;
        let Some(end) = run.file_bytes.checked_sub(FOOTER_BYTES as u64).filter(|end| *end >= len) else {
            return Err(OpenError::damaged(&path, len, "the file is truncated"));
        };
        let mut footer = [0; FOOTER_BYTES];
        file.read_exact_at(&mut footer, end).map_err(|error| OpenError::io("read", &path, error))?;
        let tail = &footer[8..];
        let crc = crc32c::crc32c_append(seed, tail);
        if u32_at(&footer, 0) != 0 || crc != u32_at(&footer, 4) {
            return Err(OpenError::damaged(&path, end, "the footer's checksum does not match"));
        }
        let total_crc = u32_at(tail, 16);
        if total_crc != run.total_crc {
            return Err(OpenError::damaged(&path, end, "the blocks are not those that the manifest names"));
        }
        let (blocks, payload_bytes) = (u64_at(tail, 0), u64_at(tail, 8));
        Ok(RunBlocks {
            path,
            file,
            seed,
            begin: len,
            end,
            blocks,
            payload_bytes,
            total_crc,
            applied_index,
            term,
            metadata,
        })
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the place of the first block as far as it is known without reading: its number and offset.
    pub fn first(&self) -> BlockPlace {
        BlockPlace { number: 0, offset: self.begin, ..BlockPlace::default() }
    }

    /// Reads the header of the block with this number at this offset, and returns its place. The header alone
    /// proves nothing: the block must be read, too.
    ///
    /// # Errors
    ///
    /// Returns an error if no block can be there, or if the file cannot be read.
    pub fn locate(&self, number: u64, offset: u64) -> Result<BlockPlace, OpenError> {
        let mut head = [0; BLOCK_HEAD_BYTES];
        if offset < self.begin || self.end.saturating_sub(offset) <= BLOCK_HEAD_BYTES as u64 {
            return Err(self.damaged(offset, "no block can begin here"));
        }
        self.read_exact(&mut head, offset)?;
        let place = BlockPlace { number, offset, len: u32_at(&head, 0), crc: u32_at(&head, 4) };
        self.check_bounds(place)?;
        Ok(place)
    }

    /// Reads the payload of the block at this place into `payload`, whose previous contents are dropped.
    ///
    /// # Errors
    ///
    /// Returns an error with the file and the offset if the block is damaged or another one, or if the file
    /// cannot be read. The contents of `payload` are then undefined.
    pub fn read(&self, place: BlockPlace, payload: &mut Vec<u8>) -> Result<(), OpenError> {
        self.check_bounds(place)?;
        let mut head = [0; BLOCK_HEAD_BYTES];
        // One read for both parts: the header is cut off afterwards.
        payload.clear();
        payload.resize(BLOCK_HEAD_BYTES + place.len as usize, 0);
        self.read_exact(payload, place.offset)?;
        head.copy_from_slice(&payload[..BLOCK_HEAD_BYTES]);
        payload.drain(..BLOCK_HEAD_BYTES);
        if (u32_at(&head, 0), u32_at(&head, 4)) != (place.len, place.crc) {
            return Err(self.damaged(place.offset, "the block is not the one that was written here"));
        }
        let is_intact = block_crc(self.seed, place.number, payload) == place.crc;
        if !is_intact && !planted::is(Bug::BlockUnverified) {
            return Err(self.damaged(place.offset, "the block's checksum does not match"));
        }
        Ok(())
    }

    /// Checks that the blocks of the run are those of the places, which must be all of them, in order. The
    /// checksum of the run, which the manifest contains, too, is made of the checksums in the places.
    ///
    /// # Errors
    ///
    /// Returns an error if the places are those of another run, or not all.
    pub fn check_places(&self, places: impl IntoIterator<Item = BlockPlace>) -> Result<(), OpenError> {
        let (mut next, mut payload_bytes, mut total_crc) = (self.first(), 0, 0);
        for place in places {
            if (place.number, place.offset) != (next.number, next.offset) {
                return Err(self.damaged(next.offset, "the run has another block here than was recorded"));
            }
            self.check_bounds(place)?;
            next = place.next();
            payload_bytes += u64::from(place.len);
            total_crc = crc32c::crc32c_append(total_crc, &place.crc.to_le_bytes());
        }
        let counted = (next.number, payload_bytes, total_crc, next.offset);
        if counted != (self.blocks, self.payload_bytes, self.total_crc, self.end) {
            return Err(self.damaged(next.offset, "the blocks of the run are not those that were recorded"));
        }
        Ok(())
    }

    /// Returns an error unless the block ends before the footer, so that no wrong length allocates more memory
    /// than the file has bytes.
    fn check_bounds(&self, place: BlockPlace) -> Result<(), OpenError> {
        let room = self.end.saturating_sub(place.offset.max(self.begin));
        let len = u64::from(place.len);
        if place.offset < self.begin
            || len == 0
            || len > BLOCK_BYTES_MAX as u64
            || len + BLOCK_HEAD_BYTES as u64 > room
        {
            return Err(self.damaged(place.offset, "the block's length is impossible"));
        }
        Ok(())
    }

    fn read_exact(&self, bytes: &mut [u8], offset: u64) -> Result<(), OpenError> {
        let read = self.file.read_at(bytes, offset);
        match read.map_err(|error| OpenError::io("read", &self.path, error))? {
            read if read == bytes.len() => Ok(()),
            read => Err(self.damaged(offset + read as u64, "the file is truncated")),
        }
    }

    /// Returns the error of damage that the caller has found in the block at this offset.
    #[must_use]
    pub fn damaged(&self, offset: u64, found: &str) -> OpenError {
        OpenError::damaged(&self.path, offset, found)
    }
}
