//! The cluster as this member sees it: the connections with the other members, and which member leads.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use arc_swap::ArcSwap;
use machine::Members;
use numbers::MemberId;

use crate::autopilot::AutopilotState;
use crate::observing::{ObserverCard, ObserverStanding};
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
    /// For an observer: id of its feeder, through which it reaches the leader; 0 for none.
    feeder: AtomicU64,
    /// For an observer: true while its feeder sends.
    is_fed: AtomicBool,
    /// For an observer: number of feeders between it and a member, its own included; 0 if it is not known.
    feed_depth: AtomicU8,
    /// For an observer: true while it receives or installs a whole state.
    is_installing: AtomicBool,
    /// For an observer: id of a feeder whose state differs from its own; 0 for none.
    avoided: AtomicU64,
    /// For an observer: what it says about itself.
    own_card: OnceLock<ObserverCard>,
    /// True if this member leads and counts the witness.
    counts_witness: AtomicBool,
    /// The observers that this node feeds.
    observers: ArcSwap<Vec<ObserverStanding>>,
    /// State of the autopilot.
    autopilot: ArcSwap<AutopilotState>,
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

    /// Records the feeder of this observer, and whether it sends.
    pub(crate) fn fed_by(&self, feeder: MemberId, is_fed: bool) {
        self.feeder.store(feeder.0, Ordering::Relaxed);
        self.is_fed.store(is_fed, Ordering::Relaxed);
    }

    /// Records what the core knows about the observers that this node feeds, and, for an observer, the number
    /// of feeders between it and a member, and whether it receives or installs a whole state.
    pub(crate) fn observers_are(
        &self,
        standings: Vec<ObserverStanding>,
        feed_depth: u8,
        is_installing: bool,
    ) {
        self.feed_depth.store(feed_depth, Ordering::Relaxed);
        self.is_installing.store(is_installing, Ordering::Relaxed);
        if !(standings.is_empty() && self.observers.load().is_empty()) {
            self.observers.store(Arc::new(standings));
        }
    }

    /// Publishes the state of the autopilot.
    pub(crate) fn autopilot_is(&self, state: AutopilotState) {
        self.autopilot.store(Arc::new(state));
    }

    /// Returns the state of this member's autopilot.
    pub fn autopilot(&self) -> Arc<AutopilotState> {
        self.autopilot.load_full()
    }

    /// Records whether this member leads and counts the witness.
    pub(crate) fn witness_counts(&self, counts: bool) {
        self.counts_witness.store(counts, Ordering::Relaxed);
    }

    /// Returns true if this member leads and counts the witness, as of the last tick: too few members with data
    /// are in step, and no further machine may be lost.
    pub fn counts_witness(&self) -> bool {
        self.counts_witness.load(Ordering::Relaxed)
    }

    /// Returns the observers that this node feeds, as of the last tick.
    pub fn observers(&self) -> Arc<Vec<ObserverStanding>> {
        self.observers.load_full()
    }

    /// Records that this observer takes nothing more from this feeder.
    pub(crate) fn avoid(&self, feeder: u64) {
        self.avoided.store(feeder, Ordering::Relaxed);
    }

    /// Returns true if this observer takes nothing from this feeder.
    pub fn avoids(&self, feeder: u64) -> bool {
        feeder != 0 && self.avoided.load(Ordering::Relaxed) == feeder
    }

    /// Sets what this observer says about itself. Called once.
    pub fn set_own_card(&self, card: ObserverCard) {
        // An error would mean that it is set already, which does not happen.
        let _ = self.own_card.set(card);
    }

    /// Returns what this observer says about itself; `None` for a member.
    pub fn own_card(&self) -> Option<&ObserverCard> {
        self.own_card.get()
    }

    /// Returns true while this observer receives or installs a whole state.
    pub fn is_installing(&self) -> bool {
        self.is_installing.load(Ordering::Relaxed)
    }

    /// Returns the number of feeders between this observer and a member, its own included; 0 if it is not
    /// known, or if this node is a member.
    pub fn feed_depth(&self) -> u8 {
        self.feed_depth.load(Ordering::Relaxed)
    }

    /// Returns the feeder of this observer; `None` if there is none, or if this node is a member.
    pub fn feeder(&self) -> Option<u64> {
        Some(self.feeder.load(Ordering::Relaxed)).filter(|feeder| *feeder != 0)
    }

    /// Returns true while the feeder of this observer sends.
    pub fn is_fed(&self) -> bool {
        self.is_fed.load(Ordering::Relaxed)
    }

    /// Returns the node to which a request for `leader` is sent: the leader itself, or the feeder of an
    /// observer, which passes the request on.
    pub fn way_to(&self, leader: u64) -> u64 {
        self.feeder().unwrap_or(leader)
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
