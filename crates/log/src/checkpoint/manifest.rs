//! Encodes and decodes the manifest, which lists the files that make up a checkpoint.

use numbers::{Index, Term};

use super::{MANIFEST_MAGIC, METADATA_BYTES_MAX, VERSION};
use crate::format::{u32_at, u64_at};

const HEAD_BYTES: usize = 36;
const NAME_BYTES_MAX: usize = 200;

/// The list of files of a checkpoint, with the raft entry at which the checkpoint was taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// Index of the last raft entry whose effects the checkpoint contains.
    pub applied_index: Index,
    /// Raft term of the entry at the applied index.
    pub term: Term,
    /// Metadata of the caller, up to 1 MiB.
    pub metadata: Vec<u8>,
    /// Files of the checkpoint, in the order that the caller chose.
    pub runs: Vec<Run>,
}

/// A finished run, as recorded in the manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// File name, without directory.
    pub name: String,
    /// Length of the file in bytes.
    pub file_bytes: u64,
    /// CRC-32C over the checksums of all blocks of the run, which the run's footer contains, too.
    pub total_crc: u32,
}

/// Returns true if a run may have this name. Allowed are 1 to 200 letters, digits, `-`, `_` and `.`, but no
/// `.` at the beginning, no `.tmp` at the end, and not `MANIFEST`.
pub(super) fn is_run_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && name.bytes().all(plain)
        && !name.starts_with('.')
        && !name.ends_with(".tmp")
        && name != "MANIFEST"
}

impl Manifest {
    pub(super) fn encode(&self) -> Vec<u8> {
        assert!(self.metadata.len() <= METADATA_BYTES_MAX, "the metadata is within its limit");
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&MANIFEST_MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(self.metadata.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&self.applied_index.0.to_le_bytes());
        bytes.extend_from_slice(&self.term.0.to_le_bytes());
        bytes.extend_from_slice(&(self.runs.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&self.metadata);
        for run in &self.runs {
            assert!(is_run_name(&run.name), "{:?} is not a valid name for a run", run.name);
            bytes.extend_from_slice(&(run.name.len() as u16).to_le_bytes());
            bytes.extend_from_slice(run.name.as_bytes());
            bytes.extend_from_slice(&run.file_bytes.to_le_bytes());
            bytes.extend_from_slice(&run.total_crc.to_le_bytes());
        }
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Manifest, &'static str> {
        if bytes.len() < HEAD_BYTES + 4 {
            return Err("the file is shorter than a manifest");
        }
        if bytes[..8] != MANIFEST_MAGIC {
            return Err("the file does not start with a manifest header");
        }
        let (body, crc) = bytes.split_at(bytes.len() - 4);
        if crc32c::crc32c(body) != u32_at(crc, 0) {
            return Err("the manifest's checksum does not match");
        }
        if u32_at(body, 8) != VERSION {
            return Err("the manifest has a format version that this release does not know");
        }
        let metadata_len = u32_at(body, 12) as usize;
        let count = u32_at(body, 32);
        let mut rest = &body[HEAD_BYTES..];
        let malformed = "the lengths of the manifest's parts do not match its size";
        let metadata = rest.split_off(..metadata_len).ok_or(malformed)?.to_vec();
        let mut runs = Vec::new();
        for _ in 0..count {
            let len = rest.split_off(..2).ok_or(malformed)?;
            let len = usize::from(u16::from_le_bytes([len[0], len[1]]));
            let name = rest.split_off(..len).ok_or(malformed)?;
            let name = std::str::from_utf8(name).map_err(|_| malformed)?;
            if !is_run_name(name) {
                return Err("the manifest contains a file name that no run can have");
            }
            let tail = rest.split_off(..12).ok_or(malformed)?;
            runs.push(Run { name: name.to_owned(), file_bytes: u64_at(tail, 0), total_crc: u32_at(tail, 8) });
        }
        if !rest.is_empty() {
            return Err(malformed);
        }
        let (applied_index, term) = (Index(u64_at(body, 16)), Term(u64_at(body, 24)));
        Ok(Manifest { applied_index, term, metadata, runs })
    }
}
