//! Snapshots for other members: those that raft asks for, those in etcd's database format that are being sent
//! to members that run etcd, and the log entries that have to be kept for the receivers of these.
//!
//! A snapshot in this format always holds the whole state and may take long. If the log no longer had the entries after
//! it when it arrives, another snapshot would have to follow, and so on without end while there are writes. A
//! snapshot in Mainstay's own format does not need this: the next one holds only the data that the receiver
//! lacks.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use api::raftpb;
use numbers::{Index, MemberId};

/// Time for which the log keeps the entries after a delivered database, as in etcd.
const KEPT_AFTER: Duration = Duration::from_secs(30);

/// The snapshots that this member has to send, and the databases that it is sending or has sent recently, by
/// receiver.
///
/// The core reports the start and the end of each transfer and the time; this type says which entries the log
/// has to keep.
#[derive(Default)]
pub(super) struct Outgoing {
    databases: BTreeMap<MemberId, Database>,
    /// Raft messages that ask for a snapshot to be sent to a member, with the next published state.
    wanted: Vec<raftpb::Message>,
}

struct Database {
    /// Log index of the last entry whose changes the database holds.
    index: Index,
    /// Time until which the log keeps the entries after the database; `None` while the transfer is in flight.
    until: Option<Instant>,
}

impl Outgoing {
    /// Sets a raft message aside that asks for a snapshot.
    pub fn want(&mut self, message: raftpb::Message) {
        self.wanted.push(message);
    }

    /// Takes out the raft messages that ask for a snapshot.
    pub fn take_wanted(&mut self) -> Vec<raftpb::Message> {
        std::mem::take(&mut self.wanted)
    }

    /// Records that a database of the state at log index `index` is being sent to a member.
    pub fn begun(&mut self, to: MemberId, index: Index) {
        self.databases.insert(to, Database { index, until: None });
    }

    /// Records that the transfer to a member has ended, delivered or not.
    pub fn ended(&mut self, to: MemberId, delivered: bool, now: Instant) {
        if !delivered {
            self.databases.remove(&to);
        } else if let Some(database) = self.databases.get_mut(&to) {
            database.until = Some(now + KEPT_AFTER);
        }
    }

    /// Forgets delivered databases whose time has passed.
    pub fn look(&mut self, now: Instant) {
        if !self.databases.is_empty() {
            self.databases.retain(|_, database| database.until.is_none_or(|until| now < until));
        }
    }

    /// Returns the log index after which the log must keep all entries; `None` if there is no such
    /// requirement.
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
