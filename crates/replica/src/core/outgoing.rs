//! Tracks the snapshots for other members: snapshots that raft has requested, transfers in etcd's database
//! format to members that run etcd, and the log entries that must be kept for the receivers of these
//! transfers.
//!
//! A snapshot in etcd's format always holds the whole state, so its transfer may take long. The log keeps the
//! entries after the snapshot until the transfer is complete. Otherwise the receiver would need another
//! snapshot after each one, while clients write. A snapshot in Mainstay's own format does not need this,
//! because the next snapshot holds only the data that the receiver lacks.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use api::raftpb;
use numbers::{Index, MemberId};

/// Time for which the log keeps the entries after a snapshot in etcd's format that was delivered, as in etcd.
const KEPT_AFTER: Duration = Duration::from_secs(30);

/// Tracks the snapshots that this member has to send and, by receiver, the snapshots in etcd's format
/// (databases) that it is sending or has sent recently.
///
/// The core reports the start and the end of each transfer, and the time. This type says which entries the
/// log has to keep.
#[derive(Default)]
pub(super) struct Outgoing {
    databases: BTreeMap<MemberId, Database>,
    /// Raft messages that request a snapshot for a member. The snapshot is sent with the next published
    /// state.
    wanted: Vec<raftpb::Message>,
}

struct Database {
    /// Log index of the last entry whose changes the database contains.
    index: Index,
    /// Time until which the log keeps the entries after the database; `None` while the database is being
    /// sent.
    until: Option<Instant>,
}

impl Outgoing {
    /// Stores a raft message that requests a snapshot for a member, until the next state is published.
    pub fn want(&mut self, message: raftpb::Message) {
        self.wanted.push(message);
    }

    /// Removes and returns the raft messages that request snapshots.
    pub fn take_wanted(&mut self) -> Vec<raftpb::Message> {
        std::mem::take(&mut self.wanted)
    }

    /// Records that a database of the state at log index `index` is being sent to a member.
    pub fn begun(&mut self, to: MemberId, index: Index) {
        self.databases.insert(to, Database { index, until: None });
    }

    /// Records that the transfer of a database to a member has ended. `delivered` says whether it was
    /// successful.
    pub fn ended(&mut self, to: MemberId, delivered: bool, now: Instant) {
        if !delivered {
            self.databases.remove(&to);
        } else if let Some(database) = self.databases.get_mut(&to) {
            database.until = Some(now + KEPT_AFTER);
        }
    }

    /// Forgets databases that were delivered more than [`KEPT_AFTER`] ago.
    pub fn look(&mut self, now: Instant) {
        if !self.databases.is_empty() {
            self.databases.retain(|_, database| database.until.is_none_or(|until| now < until));
        }
    }

    /// Returns the log index after which the log must keep all entries; `None` if no transfer needs entries.
    pub fn kept_behind(&self) -> Option<Index> {
        self.databases.values().map(|database| database.index).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_kept_until_a_receiver_had_time_to_ask_for_them() {
        let now = Instant::now();
        let mut outgoing = Outgoing::default();
        outgoing.begun(MemberId(1), Index(50));
        outgoing.begun(MemberId(2), Index(40));
        outgoing.look(now + KEPT_AFTER * 100);
        assert_eq!(outgoing.kept_behind(), Some(Index(40)), "they are on their way");
        outgoing.ended(MemberId(2), false, now);
        outgoing.ended(MemberId(3), true, now);
        assert_eq!(outgoing.kept_behind(), Some(Index(50)));
        outgoing.ended(MemberId(1), true, now);
        outgoing.look(now + KEPT_AFTER - Duration::from_secs(1));
        assert_eq!(outgoing.kept_behind(), Some(Index(50)));
        outgoing.look(now + KEPT_AFTER);
        assert_eq!(outgoing.kept_behind(), None);
    }
}
