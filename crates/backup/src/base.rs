//! Writes and reads bases: the whole state after one entry.

use bytes::{Bytes, BytesMut};

use crate::manifest::{Base, Chunk, StateHash};
use crate::object::Object;
use crate::part::{compress, decompress};
use crate::source::Source;
use crate::store::Store;
use crate::trouble::Trouble;

/// Bytes of a chunk before compression.
const CHUNK_BYTES: usize = 8 << 20;
/// Maximum number of bytes of a chunk before compression that is read, which bounds the memory for it.
const CHUNK_BYTES_MAX: u64 = 64 << 20;

/// Writes the whole state of a source. `mark` is part of the names of its objects: no two bases have an object in common,
/// so that whoever deletes an old one leaves the new one whole, also while it is being written.
///
/// # Errors
///
/// Returns the error of the store or the source.
pub fn write(store: &dyn Store, cluster: &str, source: &dyn Source, mark: &str) -> Result<Base, Trouble> {
    let mut chunks = Vec::new();
    let mut open = BytesMut::with_capacity(CHUNK_BYTES + (1 << 20));
    let mut put = |raw: &[u8]| {
        let object = Object::put_as(store, cluster, compress(raw).into(), mark)?;
        chunks.push(Chunk { object, raw_bytes: raw.len() as u64 });
        Ok(())
    };
    let written = source.state(&mut |bytes: Bytes| {
        open.extend_from_slice(&bytes);
        if open.len() >= CHUNK_BYTES {
            put(&open)?;
            open.clear();
        }
        Ok(())
    })?;
    if !open.is_empty() {
        put(&open)?;
    }
    let state_hash = written.state_hash.map(|hash| StateHash::new(written.at.index, hash));
    Ok(Base { at: written.at, chunks, state_hash, hash_kv: written.hash_kv })
}

/// Returns the bytes of a chunk before compression.
///
/// # Errors
///
/// Returns that the chunk is damaged.
pub fn read(chunk: &Chunk, data: &[u8]) -> Result<Vec<u8>, Trouble> {
    if chunk.raw_bytes > CHUNK_BYTES_MAX {
        return Err(Trouble::damaged(&chunk.object.name, "is said to be larger than any chunk"));
    }
    decompress(data, chunk.raw_bytes as usize).map_err(|found| Trouble::damaged(&chunk.object.name, found))
}
