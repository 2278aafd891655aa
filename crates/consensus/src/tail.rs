//! The newest entries of the log, kept in memory for raft to look at.

use std::collections::VecDeque;

use raft::eraftpb;
use raft::{GetEntriesContext, RaftState, Storage, StorageError};

/// Entries after `before_index`, without a gap. Implements the raft crate's view of a log.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    /// The entry before the first one kept: its index and term are needed for matching.
    pub before_index: u64,
    pub before_term: u64,
    pub entries: VecDeque<eraftpb::Entry>,
    pub hard_state: eraftpb::HardState,
    pub conf_state: eraftpb::ConfState,
    /// Bytes of the payloads kept.
    pub bytes: usize,
}

fn payload_bytes(entry: &eraftpb::Entry) -> usize {
    entry.data.len() + entry.context.len()
}

impl Tail {
    pub fn last(&self) -> u64 {
        self.before_index + self.entries.len() as u64
    }

    /// Takes entries over, replacing what they contradict.
    pub fn append(&mut self, entries: &[eraftpb::Entry]) {
        let Some(first) = entries.first() else { return };
        assert!(first.index > self.before_index, "raft rewrites an entry that was applied and forgotten");
        assert!(first.index <= self.last() + 1, "raft leaves a gap in the log");
        while self.last() >= first.index {
            if let Some(gone) = self.entries.pop_back() {
                self.bytes -= payload_bytes(&gone);
            }
        }
        self.bytes += entries.iter().map(payload_bytes).sum::<usize>();
        self.entries.extend(entries.iter().cloned());
    }

    /// Drops entries up to and including `index`.
    pub fn forget(&mut self, index: u64) {
        while self.before_index < index {
            let Some(gone) = self.entries.pop_front() else { break };
            self.before_index = gone.index;
            self.before_term = gone.term;
            self.bytes -= payload_bytes(&gone);
        }
    }

    fn term_of(&self, index: u64) -> raft::Result<u64> {
        if index == self.before_index {
            return Ok(self.before_term);
        }
        if index < self.before_index {
            return Err(StorageError::Compacted.into());
        }
        let at = usize::try_from(index - self.before_index - 1).unwrap_or(usize::MAX);
        self.entries.get(at).map(|e| e.term).ok_or_else(|| StorageError::Unavailable.into())
    }
}

impl Storage for Tail {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState { hard_state: self.hard_state.clone(), conf_state: self.conf_state.clone() })
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<eraftpb::Entry>> {
        if low <= self.before_index {
            return Err(StorageError::Compacted.into());
        }
        let max = max_size.into().unwrap_or(u64::MAX);
        let skip = usize::try_from(low - self.before_index - 1).unwrap_or(usize::MAX);
        let take = usize::try_from(high.saturating_sub(low)).unwrap_or(usize::MAX);
        let mut bytes = 0u64;
        let mut out = Vec::with_capacity(take.min(self.entries.len()));
        for entry in self.entries.iter().skip(skip).take(take) {
            bytes += payload_bytes(entry) as u64 + 16;
            if bytes > max && !out.is_empty() {
                break;
            }
            out.push(entry.clone());
        }
        Ok(out)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        self.term_of(index)
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.before_index + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    fn snapshot(&self, _request_index: u64, _to: u64) -> raft::Result<eraftpb::Snapshot> {
        // Whoever needs a snapshot is another member; the sender makes one when there is somebody to send it to.
        Err(StorageError::SnapshotTemporarilyUnavailable.into())
    }
}
