//! Reads and writes snapshot files, which `etcdctl snapshot save` creates. The format:
//!
//! ```text
//! database          a multiple of 512 bytes
//! SHA-256 of it     32 bytes; missing if the file was copied from a data directory
//! ```

use std::io::{self, Write};

use sha2::{Digest as _, Sha256};

use crate::backend::Backend;
use crate::bolt::Bolt;
use crate::error::Error;
use crate::source::Source;

/// Length of the digest in bytes.
pub const DIGEST_BYTES: usize = 32;
/// The length of a database is a multiple of this many bytes. So if the length of a snapshot file leaves a
/// remainder of 32 bytes, the file ends with a digest.
pub const ALIGN_BYTES: u64 = 512;
const CHUNK_BYTES: usize = 256 << 10;

/// The parts of a snapshot file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Length of the database in bytes; the database is the first part of the file.
    pub database_bytes: u64,
    /// True if a digest follows the database.
    pub has_digest: bool,
}

impl Parts {
    /// Determines the parts of a snapshot file from its size, as etcd's tools do.
    pub fn of_size(bytes: u64) -> Parts {
        let has_digest = bytes % ALIGN_BYTES == DIGEST_BYTES as u64;
        let database_bytes = if has_digest { bytes - DIGEST_BYTES as u64 } else { bytes };
        Parts { database_bytes, has_digest }
    }
}

/// Opens the database in a snapshot file, with or without a digest. If there is a digest, the whole file is
/// read and verified against it.
///
/// # Errors
///
/// Returns an error if the file cannot be read, does not match its digest, or does not contain a database of
/// etcd.
pub fn open<S: Source>(source: S) -> Result<(Backend<S>, Parts), Error> {
    let bytes = source.len_bytes().map_err(|e| Error::io("asking for the snapshot's size", e))?;
    let parts = Parts::of_size(bytes);
    if parts.has_digest {
        verify(&source, parts.database_bytes)?;
    } else if bytes % ALIGN_BYTES != 0 {
        let what = "the snapshot is truncated: it has neither the size of a database nor that of a database with a digest";
        return Err(Error::damaged(bytes, what));
    }
    Ok((Backend::new(Bolt::open(source, parts.database_bytes)?)?, parts))
}

/// Opens the database in a snapshot file without verifying the digest. etcd's tools skip this verification
/// only with the flag `--skip-hash-check`.
///
/// # Errors
///
/// Returns an error if the file cannot be read or does not contain a database of etcd.
pub fn open_unverified<S: Source>(source: S) -> Result<(Backend<S>, Parts), Error> {
    let bytes = source.len_bytes().map_err(|e| Error::io("asking for the snapshot's size", e))?;
    let parts = Parts::of_size(bytes);
    Ok((Backend::new(Bolt::open(source, parts.database_bytes)?)?, parts))
}

fn verify(source: &impl Source, len: u64) -> Result<(), Error> {
    let digests = Digests::of(source, len, &mut |_| {})?;
    if digests.expected != digests.found {
        return Err(Error::damaged(len, "the snapshot does not match the SHA-256 at its end"));
    }
    Ok(())
}

/// The digest stored in a snapshot file, and the digest computed from its database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digests {
    /// Digest stored in the file after the database.
    pub expected: [u8; DIGEST_BYTES],
    /// SHA-256 computed from the database.
    pub found: [u8; DIGEST_BYTES],
}

impl Digests {
    /// Reads the whole file, whose database has `len` bytes, and computes both digests. Calls `passed` with
    /// the number of bytes read so far.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read.
    pub fn of(source: &impl Source, len: u64, passed: &mut dyn FnMut(u64)) -> Result<Digests, Error> {
        digests(source, len, passed)
    }
}

fn digests(source: &impl Source, len: u64, passed: &mut dyn FnMut(u64)) -> Result<Digests, Error> {
    let failed = |at: u64| move |e: io::Error| Error::io(format!("reading the snapshot at byte {at}"), e);
    let mut sum = Sha256::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut at = 0;
    while at < len {
        chunk.truncate(usize::try_from(len - at).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES));
        source.read_exact_at(&mut chunk, at).map_err(failed(at))?;
        sum.update(&chunk);
        at += chunk.len() as u64;
        passed(at);
    }
    let mut expected = [0; DIGEST_BYTES];
    source.read_exact_at(&mut expected, len).map_err(failed(len))?;
    Ok(Digests { expected, found: sum.finalize().into() })
}

/// Writes a database through to an output and appends the digest at the end.
pub struct Digesting<W> {
    out: W,
    sum: Sha256,
}

impl<W: Write> Digesting<W> {
    /// Creates a writer, which has to receive the whole database from its beginning.
    pub fn new(out: W) -> Digesting<W> {
        Digesting { out, sum: Sha256::new() }
    }

    /// Writes the digest and returns the output.
    ///
    /// # Errors
    ///
    /// Returns an error if the output fails.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.write_all(&self.sum.finalize())?;
        Ok(self.out)
    }
}

impl<W: Write> Write for Digesting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.sum.update(bytes.get(..written).unwrap_or_default());
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
