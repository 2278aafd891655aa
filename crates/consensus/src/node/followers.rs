//! Manages a leader's followers: limits the bytes in flight to them, and reads old entries back from the log
//! for them.

use std::collections::BTreeMap;

use numbers::{Index, MemberId};
use raft::StateRole;

use super::{APPEND_BYTES_MAX, Node};
use crate::entry::Entry;
use crate::event::Fetch;

impl Node {
    pub(super) fn fetched(&mut self, fetch: Fetch, entries: &[Entry]) {
        if !self.followers.fetched(fetch) {
            return;
        }
        let sound = self.has_these(fetch, entries);
        // A failed read needs no handling: the entries are requested again when the follower responds to the
        // next heartbeat.
        if entries.is_empty() || !sound {
            return;
        }
        let entries = entries.iter().map(Entry::to_raft).collect();
        self.raw.mut_store().fetched.insert(fetch.to.0, entries);
        // The first pass sends the entries that were read. The second pass requests the entries after them,
        // so that the disk reads while the network sends.
        for turn in 0..2 {
            let before_index = self.raw.store().before_index;
            let ready = self.raw.raft.prs().get(fetch.to.0).is_some_and(|progress| {
                !progress.is_paused() && (turn == 0 || progress.next_idx <= before_index)
            });
            if ready {
                self.raw.raft.send_append(fetch.to.0);
            }
        }
    }

    /// Returns true if these entries are what the fetch asked for: those of this node's log, without a gap.
    pub(super) fn has_these(&self, fetch: Fetch, entries: &[Entry]) -> bool {
        let tail = self.raw.store();
        entries.iter().enumerate().all(|(at, entry)| {
            entry.index == fetch.first + at as u64
                && entry.index < fetch.last
                && tail.term_of(entry.index.0) == Some(entry.term.0)
        })
    }

    /// Adapts the windows and fetches to what raft currently knows about the followers.
    pub(super) fn settle_followers(&mut self) {
        let raft = &self.raw.raft;
        let leads = raft.state == StateRole::Leader;
        if self.followers.begin_term(raft.term, leads) {
            let tail = self.raw.mut_store();
            tail.fetched.clear();
            if !leads {
                tail.wanted.get_mut().clear();
                return;
            }
        }
        let persisted = self.raw.raft.raft_log.persisted;
        let progress = self.raw.raft.prs();
        self.followers.retain(|id| progress.get(id).is_some());
        for (id, window) in self.followers.windows() {
            let Some(progress) = progress.get(id) else { continue };
            if progress.state != raft::ProgressState::Replicate {
                window.clear();
            }
            for append in window.acknowledge(progress.matched, self.config.bytes_in_flight_max) {
                self.outbox.post(append, persisted);
            }
        }
        self.settle_fetches();
    }

    /// Decides which entries to read back from the log, and drops fetched entries that were sent.
    fn settle_fetches(&mut self) {
        let tail = self.raw.mut_store();
        if tail.wanted.get_mut().is_empty() && tail.fetched.is_empty() {
            return;
        }
        let mut wanted = std::mem::take(self.raw.mut_store().wanted.get_mut());
        wanted.sort_unstable();
        wanted.dedup();
        let last = Index(self.raw.store().before_index + 1);
        let mut behind: Vec<(u64, u64)> = self
            .raw
            .raft
            .prs()
            .iter()
            .filter(|(id, progress)| **id != self.config.id.0 && wanted.contains(&progress.next_idx))
            .map(|(id, progress)| (*id, progress.next_idx))
            .collect();
        behind.sort_unstable();
        for (to, first) in behind {
            let fetch = Fetch { to: MemberId(to), first: Index(first), last, bytes_max: APPEND_BYTES_MAX };
            self.followers.fetch(fetch);
        }
        let next: BTreeMap<u64, u64> =
            self.raw.raft.prs().iter().map(|(id, progress)| (*id, progress.next_idx)).collect();
        self.raw.mut_store().fetched.retain(|id, entries| {
            match (next.get(id), entries.first(), entries.last()) {
                (Some(next), Some(first), Some(last)) => (first.index..=last.index).contains(next),
                _ => false,
            }
        });
    }
}
