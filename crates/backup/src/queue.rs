//! Parts on their way from the log to the store. While the store does not answer they wait, in memory and then in
//! files of the data directory, because the log may drop their entries meanwhile.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::manifest::Position;
use crate::part::PartReader;

/// Bytes of waiting parts that are kept in memory.
const MEMORY_BYTES_MAX: u64 = 32 << 20;
/// Suffix of the names of files with parts.
const SUFFIX: &str = ".part";

/// A part that waits.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// Index of the first entry.
    pub first: u64,
    /// Position after the last entry.
    pub at: Position,
    /// Bytes of the entries before compression.
    pub raw_bytes: u64,
    data: Data,
}

#[derive(Clone, Debug)]
enum Data {
    Memory(Bytes),
    File(PathBuf, u64),
}

impl Waiting {
    fn bytes(&self) -> u64 {
        match &self.data {
            Data::Memory(data) => data.len() as u64,
            Data::File(_, len) => *len,
        }
    }

    /// Returns the bytes of the part.
    ///
    /// # Errors
    ///
    /// Returns the error of the operating system.
    pub fn read(&self) -> io::Result<Bytes> {
        match &self.data {
            Data::Memory(data) => Ok(data.clone()),
            Data::File(path, _) => fs::read(path).map(Bytes::from),
        }
    }
}

/// Instruction of the shipper to the collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Index of the last entry that needs no collection.
    pub index: u64,
    /// Time in milliseconds since 1970 below which no later entry is dated.
    pub floor_ms: u64,
}

/// Parts that wait, and what collector and shipper tell each other.
#[derive(Clone, Default)]
pub struct Queue {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Waiting>,
    memory_bytes: u64,
    file_bytes: u64,
    directory: Option<PathBuf>,
    file_bytes_max: u64,
    /// Set by the shipper, taken by the collector.
    start: Option<Start>,
    /// Reason why entries are missing before the first waiting part. Set by the collector, taken by the shipper.
    gap: Option<(String, u64)>,
    /// Time in milliseconds since 1970 below which no later entry is dated.
    floor_ms: u64,
}

impl Queue {
    /// Returns a queue that keeps parts in memory only.
    pub fn in_memory() -> Queue {
        Queue::default()
    }

    /// Returns a queue with its files in this directory, which is created, and takes the parts that an earlier process
    /// has left there.
    ///
    /// # Errors
    ///
    /// Returns the error of the operating system.
    pub fn open(directory: &Path, file_bytes_max: u64, cluster_id: u64) -> io::Result<Queue> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let mut found = Vec::new();
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let part = path.file_name().and_then(|name| name.to_str()).and_then(parse_name);
            match part.filter(|_| is_whole(&path, cluster_id)) {
                Some((first, at, raw_bytes)) => {
                    let len = fs::metadata(&path)?.len();
                    found.push(Waiting { first, at, raw_bytes, data: Data::File(path, len) });
                }
                // The remains of a file that was being written when the process ended.
                None => fs::remove_file(&path)?,
            }
        }
        found.sort_by_key(|part| part.first);
        let queue = Queue::default();
        {
            let mut state = queue.lock();
            state.file_bytes = found.iter().map(Waiting::bytes).sum();
            state.waiting = found.into();
            state.directory = Some(directory.to_path_buf());
            state.file_bytes_max = file_bytes_max;
        }
        Ok(queue)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a part. Returns false if there is no space for it; the caller keeps it then.
    ///
    /// # Errors
    ///
    /// Returns the error of the operating system.
    pub fn push(&self, first: u64, at: Position, raw_bytes: u64, data: &Bytes) -> io::Result<bool> {
        let mut state = self.lock();
        if state.start.is_some() {
            // The collector begins again, before or at these entries.
            return Ok(true);
        }
        let len = data.len() as u64;
        // A single part of any size has a place, so that the queue cannot stand still.
        let in_memory = state.memory_bytes == 0 || state.memory_bytes + len <= MEMORY_BYTES_MAX;
        // A part in memory behind one in a file is fine: the order is that of the queue.
        let data = if in_memory {
            state.memory_bytes += len;
            Data::Memory(data.clone())
        } else {
            let Some(directory) = state.directory.clone() else { return Ok(false) };
            if state.memory_bytes + state.file_bytes + len > state.file_bytes_max {
                return Ok(false);
            }
            // The files must have all that waits, so that the next process finds it without a gap.
            state.spill()?;
            let path = directory.join(name(first, &at, raw_bytes));
            write_file(&path, data)?;
            state.file_bytes += len;
            Data::File(path, len)
        };
        state.waiting.push_back(Waiting { first, at, raw_bytes, data });
        Ok(true)
    }

    /// Returns the parts at the front, at most `count` of them.
    pub fn front(&self, count: usize) -> Vec<Waiting> {
        self.lock().waiting.iter().take(count).cloned().collect()
    }

    /// Returns the index of the last entry that waits, if one does.
    pub fn last_index(&self) -> Option<u64> {
        self.lock().waiting.back().map(|part| part.at.index)
    }

    /// Returns the number of bytes that wait.
    pub fn bytes(&self) -> u64 {
        let state = self.lock();
        state.memory_bytes + state.file_bytes
    }

    /// Removes the parts whose entries are all at or before this index.
    pub fn drop_through(&self, index: u64) {
        let mut state = self.lock();
        while state.waiting.front().is_some_and(|part| part.at.index <= index) {
            state.remove_front();
        }
    }

    /// Removes all parts.
    pub fn clear(&self) {
        let mut state = self.lock();
        while !state.waiting.is_empty() {
            state.remove_front();
        }
    }

    /// Tells the collector where to start.
    pub fn start(&self, start: Start) {
        self.lock().start = Some(start);
    }

    /// Lets the collector go on after the entry `start.index` and what waits after it without a gap. Other parts are
    /// removed.
    pub fn resume(&self, start: Start) {
        let mut state = self.lock();
        while state.waiting.front().is_some_and(|part| part.at.index <= start.index) {
            state.remove_front();
        }
        let mut index = start.index;
        for part in &state.waiting {
            if part.first > index + 1 {
                index = start.index;
                break;
            }
            index = part.at.index;
        }
        if index == start.index {
            while !state.waiting.is_empty() {
                state.remove_front();
            }
        }
        (state.start, state.gap) = (Some(Start { index, ..start }), None);
    }

    /// Takes the instruction to start.
    pub fn take_start(&self) -> Option<Start> {
        self.lock().start.take()
    }

    /// Records that entries up to `index` are missing before those of the next part. All waiting parts are removed:
    /// nothing follows on them.
    pub fn gap(&self, reason: String, index: u64) {
        self.clear();
        self.lock().gap = Some((reason, index));
    }

    /// Takes the record of missing entries.
    pub fn take_gap(&self) -> Option<(String, u64)> {
        self.lock().gap.take()
    }

    /// Lets no later entry be dated before this time.
    pub fn raise_floor(&self, time_ms: u64) {
        let mut state = self.lock();
        state.floor_ms = state.floor_ms.max(time_ms);
    }

    /// Returns the time before which no entry is to be dated.
    pub fn floor_ms(&self) -> u64 {
        self.lock().floor_ms
    }

    /// Writes all that waits to files, if the queue has a directory, for the next process.
    ///
    /// # Errors
    ///
    /// Returns the error of the operating system.
    pub fn spill(&self) -> io::Result<()> {
        self.lock().spill()
    }
}

impl State {
    /// Moves the parts in memory to files.
    fn spill(&mut self) -> io::Result<()> {
        let Some(directory) = self.directory.clone() else { return Ok(()) };
        for part in &mut self.waiting {
            let Data::Memory(data) = &part.data else { continue };
            let path = directory.join(name(part.first, &part.at, part.raw_bytes));
            write_file(&path, data)?;
            let len = data.len() as u64;
            self.memory_bytes -= len;
            self.file_bytes += len;
            part.data = Data::File(path, len);
        }
        Ok(())
    }

    fn remove_front(&mut self) {
        let Some(part) = self.waiting.pop_front() else { return };
        match part.data {
            Data::Memory(data) => self.memory_bytes -= data.len() as u64,
            Data::File(path, len) => {
                self.file_bytes -= len;
                // A file that stays is found at the next start, and then its part is known already.
                let _ = fs::remove_file(path);
            }
        }
    }
}

fn name(first: u64, at: &Position, raw_bytes: u64) -> String {
    let Position { index, term, revision, compact_revision, time_ms } = at;
    format!("{first}_{index}_{term}_{revision}_{compact_revision}_{time_ms}_{raw_bytes}{SUFFIX}")
}

fn parse_name(name: &str) -> Option<(u64, Position, u64)> {
    let numbers: Vec<&str> = name.strip_suffix(SUFFIX)?.split('_').collect();
    let [first, index, term, revision, compact_revision, time_ms, raw_bytes] = numbers[..] else {
        return None;
    };
    let at = Position {
        index: index.parse().ok()?,
        term: term.parse().ok()?,
        revision: revision.parse().ok()?,
        compact_revision: compact_revision.parse().ok()?,
        time_ms: time_ms.parse().ok()?,
    };
    Some((first.parse().ok()?, at, raw_bytes.parse().ok()?))
}

fn write_file(path: &Path, data: &[u8]) -> io::Result<()> {
    // The file needs no sync: after a crash of the machine the entries are read from the log again, and a file that is
    // not whole is not used.
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(data)
}

/// Returns true if a file contains a whole part of the cluster.
fn is_whole(path: &Path, cluster_id: u64) -> bool {
    let Ok(data) = fs::read(path) else { return false };
    let Ok(mut reader) = PartReader::open(data.into(), cluster_id) else { return false };
    loop {
        match reader.next() {
            Ok(Some(_)) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use log::Entry;
    use numbers::{Index, Term};
    use testkit::TempDir;

    use super::*;
    use crate::part::PartWriter;

    fn part(index: u64, len: usize) -> Bytes {
        let mut part = PartWriter::new(7);
        // Bytes that do not become shorter when they are compressed.
        let mut seed = index.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let data: Vec<u8> = std::iter::repeat_with(|| {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (seed >> 56) as u8
        })
        .take(len)
        .collect();
        part.push(
            1,
            None,
            None,
            &[Entry { index: Index(index), term: Term(1), entry_type: 0, data: data.into() }],
        );
        part.finish()
    }

    fn push(queue: &Queue, index: u64, len: usize) -> bool {
        let at = Position { index, term: 1, revision: 4, compact_revision: -1, time_ms: 9 };
        queue.push(index, at, 5, &part(index, len)).expect("is written")
    }

    #[test]
    fn parts_wait_in_memory_then_in_files_and_then_not_at_all() {
        let dir = TempDir::new("backup-queue");
        let outbox = dir.path().join("outbox");
        let queue = Queue::open(&outbox, 50 << 20, 7).expect("is created");
        let len = 20 << 20;
        assert!(push(&queue, 1, len) && push(&queue, 2, len) && push(&queue, 3, len));
        assert!(!push(&queue, 4, len), "there is no space for a third file");
        assert_eq!(fs::read_dir(&outbox).expect("exists").count(), 2);
        drop(queue);
        // All of it is there again, but for what is cut.
        fs::write(outbox.join("3_4_1_4_-1_9_5.part"), &part(3, 100)[..50]).expect("is written");
        let queue = Queue::open(&outbox, 50 << 20, 7).expect("is read");
        let found: Vec<u64> = queue.front(9).iter().map(|part| part.first).collect();
        assert_eq!(found, [1, 2], "what is cut is not used");
        assert_eq!(queue.front(1)[0].at.compact_revision, -1);
        assert_eq!(queue.front(1)[0].read().expect("is read"), part(1, len));
        queue.drop_through(1);
        assert_eq!((queue.front(9).len(), queue.last_index()), (1, Some(2)));
        queue.gap("lost".to_owned(), 9);
        assert_eq!((queue.bytes(), queue.take_gap()), (0, Some(("lost".to_owned(), 9))));
        assert_eq!(fs::read_dir(&outbox).expect("exists").count(), 0);
    }
}
