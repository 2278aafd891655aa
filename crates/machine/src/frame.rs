//! Frames the blocks of a stream: a length and a checksum before each block let the reader find the block and
//! detect damage, even if the stream arrives in chunks that were cut at any byte.
//!
//! ```text
//! block   length (4 bytes) | CRC-32C of the four bytes before and of the block (4 bytes) | the block
//! ```
//!
//! All fixed-size numbers are little-endian.

use crate::codec::Malformed;
use crate::image::RestoreError;
use crate::state_hash::mix;

/// Length in bytes of the frame before each block.
pub(crate) const FRAME_BYTES: usize = 8;

/// Appends a block with its frame.
pub(crate) fn append_block(block: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; FRAME_BYTES]);
    out.extend_from_slice(block);
    let mut framed = out.split_off(start);
    seal(&mut framed);
    out.append(&mut framed);
}

/// Fills in the frame at the start of `framed`, whose remaining bytes are the block.
pub(crate) fn seal(framed: &mut [u8]) {
    let len = framed.len() - FRAME_BYTES;
    let len = u32::try_from(len).expect("blocks are a little longer than their longest entry");
    let (frame, block) = framed.split_at_mut(FRAME_BYTES);
    let (length, checksum) = frame.split_at_mut(4);
    length.copy_from_slice(&len.to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(length), block);
    checksum.copy_from_slice(&crc.to_le_bytes());
}

/// Adds the frame of a block to a checksum over the frames of all blocks in order.
pub(crate) fn chain(checksum: u64, framed: &[u8]) -> u64 {
    let frame = framed.first_chunk::<FRAME_BYTES>();
    mix(checksum, frame.map_or(0, |frame| u64::from_le_bytes(*frame)))
}

/// A reader of blocks from a stream of chunks.
pub(crate) struct BlockStream<I> {
    chunks: I,
    /// Bytes that have arrived. The bytes before `at` are consumed.
    buffer: Vec<u8>,
    at: usize,
    /// Total number of consumed bytes.
    taken: u64,
    /// `before` is the [`chain`] checksum over all blocks before the last one taken; `checksum` also includes
    /// that block.
    before: u64,
    checksum: u64,
}

impl<I, B, E> BlockStream<I>
where
    I: Iterator<Item = Result<B, E>>,
    B: AsRef<[u8]>,
{
    pub fn new(chunks: I) -> Self {
        BlockStream { chunks, buffer: Vec::new(), at: 0, taken: 0, before: 0, checksum: 0 }
    }

    /// Returns the total number of consumed bytes.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Returns the checksum over all blocks before the last one taken.
    pub fn checksum_before(&self) -> u64 {
        self.before
    }

    /// Returns the bytes at a position that [`BlockStream::take`] or [`BlockStream::take_block`] has
    /// returned. The position is valid until one of these methods is called again.
    pub fn bytes(&self, place: (usize, usize)) -> &[u8] {
        self.buffer.get(place.0..place.1).unwrap_or_default()
    }

    /// Consumes a block and verifies its checksum. Returns the position of the block in the buffer.
    pub fn take_block(&mut self) -> Result<(usize, usize), RestoreError<E>> {
        let place = self.take(FRAME_BYTES)?;
        let frame = self.bytes(place).first_chunk::<FRAME_BYTES>();
        let frame = *frame.ok_or(Malformed("bytes beyond the end"))?;
        let [l0, l1, l2, l3, c0, c1, c2, c3] = frame;
        let (len, expected) = (u32::from_le_bytes([l0, l1, l2, l3]), u32::from_le_bytes([c0, c1, c2, c3]));
        let place = self.take(len as usize)?;
        if crc32c::crc32c_append(crc32c::crc32c(&len.to_le_bytes()), self.bytes(place)) != expected {
            return Err(Malformed("a block whose checksum does not match: the snapshot is damaged").into());
        }
        self.before = self.checksum;
        self.checksum = chain(self.checksum, &frame);
        Ok(place)
    }

    /// Consumes the next `len` bytes. Returns their position in the buffer, which grows only by bytes that
    /// have arrived.
    pub fn take(&mut self, len: usize) -> Result<(usize, usize), RestoreError<E>> {
        if self.buffer.len() - self.at < len {
            self.buffer.drain(..self.at);
            self.at = 0;
            while self.buffer.len() < len {
                let chunk = self.chunks.next().ok_or(Malformed("a snapshot without its end"))?;
                self.buffer.extend_from_slice(chunk.map_err(RestoreError::Read)?.as_ref());
            }
        }
        let start = self.at;
        self.at += len;
        self.taken += len as u64;
        Ok((start, self.at))
    }

    /// Returns the bytes after the last block. Stops reading once there are more than `max` bytes.
    pub fn take_rest(&mut self, max: usize) -> Result<Vec<u8>, RestoreError<E>> {
        let mut rest = self.buffer.split_off(self.at);
        while rest.len() <= max {
            match self.chunks.next() {
                None => break,
                Some(chunk) => rest.extend_from_slice(chunk.map_err(RestoreError::Read)?.as_ref()),
            }
        }
        Ok(rest)
    }
}
