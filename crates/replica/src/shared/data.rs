//! Gives threads other than the core access to the stored data: values in the log, hashes of compactions, the
//! registration of long-running readers, and the size of the data on disk. [`Data`] is the entry point.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use storage::compaction_hash::CompactionHashes;
use storage::readers::Readers;

use crate::long_reads::LongReads;
use crate::long_work::LongWork;

/// Access to the values in the log, and counts and sizes of the stored data.
pub struct Data {
    /// Reads values from the log.
    pub values: log::Values,
    /// Reads values on separate threads. For callers that must not wait for a disk.
    pub readers: Arc<Readers>,
    /// Registers readers that read a state slice by slice, and keeps the versions that they need from being
    /// removed.
    pub long_reads: Arc<LongReads>,
    /// Runs hashes and snapshots of the whole state for clients.
    pub long_work: LongWork,
    /// Hashes of the states at the last compactions. The HashKV call returns them.
    pub compaction_hashes: CompactionHashes,
    /// Cache of the blocks of the index, if it has a memory budget. Boot sets it once, before the member runs.
    index_cache: OnceLock<Arc<mvcc::Cache>>,
    /// Bytes of the data directory on disk: log and checkpoints.
    disk_bytes: AtomicU64,
    /// True if the files may contain compressed values.
    compressed_values: AtomicBool,
}

impl Data {
    /// Returns access to the values in the log. If `threads` is true, [`Data::readers`] read on separate
    /// threads. If it is false, they read when the caller runs [`Readers::step`], and there is no thread for
    /// long work.
    pub fn new(values: log::Values, threads: bool) -> Data {
        let readers = if threads { Readers::new(values.clone()) } else { Readers::by_hand(values.clone()) };
        let sources = threads.then(|| (Arc::clone(&readers), values.clone()));
        Data {
            readers,
            values,
            long_reads: Arc::default(),
            long_work: LongWork::new(sources),
            compaction_hashes: CompactionHashes::default(),
            index_cache: OnceLock::new(),
            disk_bytes: AtomicU64::new(0),
            compressed_values: AtomicBool::new(false),
        }
    }

    /// Sets the cache of the blocks of the index, of a member whose index has a memory budget.
    pub fn set_index_cache(&self, cache: Arc<mvcc::Cache>) {
        // The error is ignored: boot calls this once.
        let _ = self.index_cache.set(cache);
    }

    /// Returns the cache of the blocks of the index, if the index has a memory budget.
    pub fn index_cache(&self) -> Option<&Arc<mvcc::Cache>> {
        self.index_cache.get()
    }

    /// Returns the message of a block of the index that could not be read. What was read since may be wrong
    /// and must not be sent to a client.
    pub fn index_fault(&self) -> Option<&str> {
        self.index_cache.get().and_then(|cache| cache.fault())
    }

    /// Returns true if the member's files may contain compressed values, or will: their format is then a later one.
    pub fn has_compressed_values(&self) -> bool {
        self.compressed_values.load(Ordering::Relaxed)
    }

    /// Notes that the member's files may contain compressed values from now on.
    pub fn note_compressed_values(&self) {
        self.compressed_values.store(true, Ordering::Relaxed);
    }

    /// Returns the bytes on disk of the data directory: log and checkpoints.
    pub fn disk_bytes(&self) -> u64 {
        self.disk_bytes.load(Ordering::Relaxed)
    }

    /// Returns the database size that clients see: the bytes on disk, but at least `in_use_bytes`. The two
    /// numbers are counted separately, and newly written data is possibly not in the files yet. Without this
    /// minimum, a client could see more bytes in use than the whole database has.
    pub fn db_size(&self, in_use_bytes: u64) -> u64 {
        self.disk_bytes().max(in_use_bytes)
    }

    /// Sets the result of [`Data::disk_bytes`].
    pub fn set_disk_bytes(&self, bytes: u64) {
        self.disk_bytes.store(bytes, Ordering::Relaxed);
    }
}
