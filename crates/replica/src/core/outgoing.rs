//! Databases on their way to members that run etcd, and how far the log has to reach back for their receivers.
//!
//! Such a snapshot is always whole and may take long. If the entries behind it were gone when it has arrived, another would have
//! to follow, and so on without an end while there are writes. A snapshot of this program's own form needs nothing of it: the
//! next one holds only what the receiver lacks.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use numbers::{Index, MemberId};

/// Time for which the entries behind a database are kept after it was delivered, as by etcd.
const KEPT_AFTER: Duration = Duration::from_secs(30);

/// The databases that this member sends or has sent just now, by receiver.
///
/// It is told when one begins and ends and what time it is, and says which entries are kept.
#[derive(Default)]
pub(super) struct Outgoing {
    databases: BTreeMap<MemberId, Database>,
}

struct Database {
    /// The entry whose state it holds.
    index: Index,
    /// Time when the receiver should have the entries behind it; `None` while it is on its way.
    until: Option<Instant>,
}

impl Outgoing {
    /// A database of the state at this entry begins to go to a member.
    pub fn begun(&mut self, to: MemberId, index: Index) {
        self.databases.insert(to, Database { index, until: None });
    }

    /// A snapshot has arrived at a member, or will not.
    pub fn ended(&mut self, to: MemberId, delivered: bool, now: Instant) {
        if !delivered {
            self.databases.remove(&to);
        } else if let Some(database) = self.databases.get_mut(&to) {
            database.until = Some(now + KEPT_AFTER);
        }
    }

    /// Forgets those whose receivers had their time.
    pub fn look(&mut self, now: Instant) {
        if !self.databases.is_empty() {
            self.databases.retain(|_, database| database.until.is_none_or(|until| now < until));
        }
    }

    /// The entry behind which all are kept; `None` if none has to be.
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
