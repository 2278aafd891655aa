//! Stores checkpoints: each is an image of the caller's state at one applied index, in files of checksummed
//! blocks. The module does not interpret the image.
//!
//! A checkpoint consists of one or more *runs*, which are the files of blocks, and of the `MANIFEST`, which
//! lists the runs. Runs and the manifest are written under a temporary name, synced and renamed, so each file
//! exists completely or not at all. A damaged manifest or run is refused. An older checkpoint is not used
//! instead, because the log may no longer have the entries that are missing in it.
//!
//! On a disk that may fill up, the files `reserve` and `reserve-manifest` occupy the space that the next run
//! and the next manifest will need. Their contents have no meaning.
//!
//! Format version 1, little-endian:
//!
//! ```text
//! run       <data-dir>/member/checkpoint/<name>
//!        0  magic           8   "MNSTRUN\n"
//!        8  version         4   1
//!       12  metadata length 4   m
//!       16  applied index   8
//!       24  its term        8
//!       32  metadata        m   the caller's
//!     32+m  crc32c          4   of everything before; starts the checksums of the blocks
//!           blocks
//!           footer
//!
//! block  0  length          4   n, from 1 to 256 MiB
//!        4  crc32c          4   of number (8), length (4) and payload, started from the header's
//!        8  payload         n
//!
//! footer 0  zero            4
//!        4  crc32c          4   of the next 20 bytes, started from the header's
//!        8  blocks          8
//!       16  payload bytes   8
//!       24  total           4   crc32c of all the blocks' crc32c, one after the other
//!       28  end of file
//!
//! manifest  <data-dir>/member/checkpoint/MANIFEST
//!        0  magic           8   "MNSTMAN\n"
//!        8  version         4   1
//!       12  metadata length 4   m
//!       16  applied index   8
//!       24  its term        8
//!       32  runs            4   n
//!       36  metadata        m   the caller's
//!           n times: name length 2, name, file length 8, the footer's total 4
//!           crc32c          4   of everything before
//! ```
//!
//! The checksum of each block starts from the checksum of the run's header and includes the block's number.
//! So a block that was copied from another run or another position is not accepted.

mod manifest;
mod run_blocks;
mod run_reader;
mod run_writer;
mod store;

pub use manifest::{Manifest, Run};
pub use run_blocks::RunBlocks;
pub use run_reader::RunReader;
pub use run_writer::RunWriter;
pub use store::{CheckpointStore, CommitError};

/// Maximum length of a block's payload in bytes.
pub const BLOCK_BYTES_MAX: usize = 256 << 20;
/// Maximum length of a run's or a manifest's metadata in bytes.
pub const METADATA_BYTES_MAX: usize = 1 << 20;

const RUN_MAGIC: [u8; 8] = *b"MNSTRUN\n";
const MANIFEST_MAGIC: [u8; 8] = *b"MNSTMAN\n";
const VERSION: u32 = 1;
const RUN_HEAD_BYTES: usize = 32;
const BLOCK_HEAD_BYTES: usize = numbers::BlockPlace::HEAD_BYTES as usize;
const FOOTER_BYTES: usize = 28;

fn block_crc(seed: u32, number: u64, payload: &[u8]) -> u32 {
    let crc = crc32c::crc32c_append(seed, &number.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &(payload.len() as u32).to_le_bytes());
    crc32c::crc32c_append(crc, payload)
}
