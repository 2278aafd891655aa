//! The cluster as this member sees it: the connections with the other members, and which member leads.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use machine::Members;

use crate::peer_links::PeerLinks;

/// Id of the leader (0 if none is known), and the times at which a leader was last lost and last elected.
#[derive(Clone, Copy, Default)]
pub(super) struct Leadership {
    pub leader: u64,
    pub elected: Option<Instant>,
    pub lost: Option<Instant>,
}

/// Connections with the other members, and the id of the current leader.
#[derive(Default)]
pub struct Cluster {
    /// Connections with the other members. They are set after the construction of the shared state, because
    /// they pass arriving messages to a receiver that needs the shared state.
    peers: OnceLock<Arc<dyn PeerLinks>>,
    leadership: Mutex<Leadership>,
}

impl Cluster {
    /// Returns the connections with the other members; `None` before they exist.
    pub fn peers(&self) -> Option<&Arc<dyn PeerLinks>> {
        self.peers.get()
    }

    /// Sets the connections with the other members. Boot calls it once.
    pub fn set_peers(&self, peers: Arc<dyn PeerLinks>) {
        // An error would mean that the connections were set before. That cannot happen, because boot calls
        // this method only once.
        let _ = self.peers.set(peers);
    }

    /// Records which member leads (0 if none is known), and that this changed at `now`. The core calls this
    /// method when the leader changes.
    pub fn leader_is(&self, leader: u64, now: Instant) {
        let mut leadership = self.leadership.lock().unwrap_or_else(PoisonError::into_inner);
        leadership.leader = leader;
        if leader == 0 {
            leadership.lost = Some(now);
        } else {
            leadership.elected = Some(now);
        }
    }

    pub(super) fn leadership(&self) -> Leadership {
        *self.leadership.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if some members may run etcd 3.4 or older, see [`Members::are_before_3_5`]. The cluster
    /// version decides. While it is not set, the answer is true if a member has announced a release before
    /// 3.5.
    pub fn may_be_before_3_5(&self, members: &Members) -> bool {
        match members.storage_version() {
            Some(_) => members.are_before_3_5(),
            None => self.has_told_before_3_5(members),
        }
    }

    /// Returns true if a member has announced a release before 3.5.
    pub fn has_told_before_3_5(&self, members: &Members) -> bool {
        let release = |id: &u64| self.peers().and_then(|peers| peers.release(*id));
        members.by_id.keys().any(|id| release(id).is_some_and(|release| release < (3, 5)))
    }
}
