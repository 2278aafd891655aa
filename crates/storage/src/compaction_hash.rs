//! Computes and keeps the hashes of the last compactions, which the call HashKV returns.
//!
//! etcd computes a hash of the versions that a compaction traverses, together with the previous compact
//! revision, and keeps the last ten. HashKV at exactly the revision of a compaction returns that hash, even
//! if the revision has been compacted since. Members compare these hashes with each other, so all members
//! must have hashes of the same compactions. In Mainstay a dedicated thread computes them from the state that
//! was published with the compaction, and from the checksums of values in the index. So the core does not
//! wait for the thread, and the thread does not read the disk.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use machine::AsOf;
use mvcc::HashWalk;
use numbers::Revision;
use tokio::sync::watch;

use crate::kv_hash::KvHash;

/// Number of compactions whose hashes are kept. etcd keeps the same number.
const KEPT_MAX: usize = 10;
/// Maximum number of compactions that wait for their hash. Further compactions get no hash.
pub const JOBS_MAX: usize = 16;
/// Number of versions of keys that are visited between two pauses.
const VERSIONS_PER_SLICE: usize = 4096;
/// Ratio of the pause time to the duration of the step before the pause, so that hashing uses only a part of
/// a processor core.
const PAUSE_FACTOR: u32 = 1;

/// State of one compaction's hash: being computed, or known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Computing,
    Known(u32),
}

/// The hash of one compaction, which is known or still being computed.
#[derive(Clone)]
pub struct CompactionHash {
    /// Revision of the compaction.
    pub revision: Revision,
    /// Compact revision before the compaction.
    pub compact_revision: Revision,
    progress: watch::Receiver<Progress>,
}

impl CompactionHash {
    /// Waits until the hash is computed, and returns it; returns `None` if the computation ended without a
    /// hash.
    pub async fn wait(mut self) -> Option<u32> {
        match *self.progress.wait_for(|progress| *progress != Progress::Computing).await.ok()? {
            Progress::Known(hash) => Some(hash),
            Progress::Computing => None,
        }
    }
}

/// The computed hash of one compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownHash {
    /// Revision of the compaction.
    pub revision: Revision,
    /// Compact revision before the compaction.
    pub compact_revision: Revision,
    /// Hash that the call HashKV returns for the compaction.
    pub hash: u32,
}

/// The hashes of the last compactions.
#[derive(Default)]
pub struct CompactionHashes {
    /// Hashes in the order of their compactions, newest last.
    newest: Mutex<VecDeque<CompactionHash>>,
    stopped: AtomicBool,
}

/// A hash that is to be computed.
pub struct Job {
    state: AsOf,
    revision: Revision,
    compact_revision: Revision,
    answer: watch::Sender<Progress>,
}

impl CompactionHashes {
    /// Returns the hash of the compaction at exactly this revision, if it is one of the last ten.
    pub fn at(&self, revision: Revision) -> Option<CompactionHash> {
        let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        newest.iter().find(|hash| hash.revision == revision).cloned()
    }

    /// Returns the hashes that are already computed, newest first.
    pub fn known(&self) -> Vec<KnownHash> {
        let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let known = newest.iter().rev().filter_map(|hash| match *hash.progress.borrow() {
            Progress::Known(value) => Some(KnownHash {
                revision: hash.revision,
                compact_revision: hash.compact_revision,
                hash: value,
            }),
            Progress::Computing => None,
        });
        known.collect()
    }

    /// Queues the computation of a compaction's hash. `state` is the state that was published with the
    /// compaction, and still has the versions that the compaction made unreadable. Returns false, and the
    /// compaction gets no hash, if too many compactions are waiting for theirs or the thread has ended.
    pub fn order(
        &self,
        jobs: &SyncSender<Job>,
        state: impl Into<AsOf>,
        compact_revision: Revision,
        revision: Revision,
    ) -> bool {
        let (answer, progress) = watch::channel(Progress::Computing);
        match jobs.try_send(Job { state: state.into(), revision, compact_revision, answer }) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => return false,
        }
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        newest.push_back(CompactionHash { revision, compact_revision, progress });
        if newest.len() > KEPT_MAX {
            newest.pop_front();
        }
        true
    }

    /// Makes [`CompactionHashes::run`] return after its current step if it is computing a hash. If it is
    /// waiting for a job, it returns only when the queue is closed.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Computes the hashes of queued compactions until the queue is closed, or [`CompactionHashes::stop`] is
    /// called during a computation.
    pub fn run(&self, jobs: &Receiver<Job>) {
        while let Ok(job) = jobs.recv() {
            let mut computing = Computing::new(job);
            loop {
                let clock = Instant::now();
                if computing.step() {
                    break;
                }
                if self.stopped.load(Ordering::Relaxed) {
                    return;
                }
                std::thread::sleep((clock.elapsed() * PAUSE_FACTOR).min(Duration::from_millis(5)));
            }
        }
    }
}

/// A hash that is being computed.
pub struct Computing {
    job: Job,
    /// The walk over the versions; `None` until the first step.
    walk: Option<HashWalk>,
    hash: KvHash,
}

impl Computing {
    /// Starts the computation of a hash.
    pub fn new(job: Job) -> Computing {
        Computing { job, walk: None, hash: KvHash::default() }
    }

    /// Performs one step of the computation. Returns true if the computation has ended: either the hash was
    /// sent to the waiting calls, or the versions were removed before the hash was complete, and these calls
    /// get no hash.
    pub fn step(&mut self) -> bool {
        let Computing { job, walk, hash } = self;
        let Ok(slice) = job.state.slice() else { return true };
        let snapshot = slice.snapshot();
        let walk = walk
            .get_or_insert_with(|| HashWalk::of_compaction(&snapshot, job.compact_revision, job.revision));
        let done = walk.step(&snapshot, VERSIONS_PER_SLICE, |version| hash.feed_checksum(version));
        if job.state.intact().is_err() {
            return true;
        }
        if done {
            // The error is ignored: it means that the hash is no longer among those that are kept, and that
            // no call is waiting for it.
            let _ = job.answer.send(Progress::Known(hash.finish()));
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use numbers::LeaseId;

    use super::*;
    use mvcc::{KeyRange, Store, Value};
    use std::sync::Arc;
    use std::sync::mpsc::sync_channel;

    #[test]
    fn the_last_ten_are_kept_and_waited_for() {
        let (jobs, queue) = sync_channel(JOBS_MAX);
        let hashes = CompactionHashes::default();
        let mut store = Store::new();
        for n in 0..12 {
            let mut writer = store.begin();
            writer.put(&[n], Value::default(), LeaseId::NONE);
            writer.finish();
        }
        let mut previous = Revision::NEVER_COMPACTED;
        for revision in (2..14).map(Revision) {
            store.compact(revision).expect("compacts");
            assert!(hashes.order(&jobs, store.publish(), previous, revision));
            previous = revision;
        }
        assert!(
            hashes.at(Revision(3)).is_none()
                && hashes.at(Revision(14)).is_none()
                && hashes.at(Revision(0)).is_none()
        );
        let early = hashes.at(Revision(4)).expect("is kept");
        assert_eq!((early.revision, early.compact_revision), (Revision(4), Revision(3)));
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("builds");
        std::thread::scope(|scope| {
            let hashes = &hashes;
            scope.spawn(move || hashes.run(&queue));
            let (first, last) =
                (hashes.at(Revision(4)).expect("is kept"), hashes.at(Revision(13)).expect("is kept"));
            assert!(runtime.block_on(first.wait()).is_some());
            assert!(runtime.block_on(last.wait()).is_some());
            drop(jobs);
        });
        assert!(runtime.block_on(early.wait()).is_some(), "and it stays known");
        let known: Vec<_> =
            hashes.known().iter().map(|known| (known.revision.0, known.compact_revision.0)).collect();
        assert_eq!(known, (4..14).rev().map(|at| (at, at - 1)).collect::<Vec<_>>());
    }

    #[test]
    fn who_waits_hears_of_the_end() {
        let (jobs, queue) = sync_channel(1);
        let hashes = CompactionHashes::default();
        let mut store = Store::new();
        let mut writer = store.begin();
        writer.put(b"a", Value::default(), LeaseId::NONE);
        writer.finish();
        store.compact(Revision(2)).expect("compacts");
        let view = store.publish();
        assert!(hashes.order(&jobs, Arc::clone(&view), Revision::NEVER_COMPACTED, Revision(2)));
        assert!(!hashes.order(&jobs, view, Revision(2), Revision(2)), "one too many goes without");
        let waiting = hashes.at(Revision(2)).expect("is kept");
        drop(queue);
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("builds");
        assert_eq!(runtime.block_on(waiting.wait()), None);
    }

    #[test]
    fn a_compaction_keeps_a_tombstone_at_its_revision() {
        let mut store = Store::new();
        let mut writer = store.begin();
        writer.put(b"a", Value::default(), LeaseId::NONE);
        writer.finish();
        let before = store.publish();
        store.compact(Revision(2)).expect("compacts");
        let mut writer = store.begin();
        writer.delete_range(KeyRange::ALL, |_| {});
        writer.finish();
        store.publish();
        store.compact(Revision(3)).expect("compacts");
        let (jobs, queue) = sync_channel(1);
        let hashes = CompactionHashes::default();
        assert!(hashes.order(&jobs, store.publish(), Revision(2), Revision(3)));
        drop(jobs);
        hashes.run(&queue);
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("builds");
        let found = runtime.block_on(hashes.at(Revision(3)).expect("is kept").wait());
        // The hash covers only the tombstone, because this compaction does not keep the put at the previous
        // compact revision.
        let mut expected = KvHash::default();
        store
            .snapshot()
            .written(Revision(3), Revision(3))
            .for_each(|version| expected.feed_checksum(version));
        assert_eq!(found, Some(expected.finish()));
        drop(before);
    }
}
