//! Publishes this member's name and client URLs in the cluster.

use std::time::{Duration, Instant};

use api::etcdserverpb::{InternalRaftRequest, LeaseCheckpointRequest};
use api::membershippb;

/// Decides when this member proposes its name and client URLs: once after each start, and again if the
/// proposal was lost.
pub(super) struct Attributes {
    own: u64,
    name: String,
    client_urls: Vec<String>,
    /// Time after which a proposal of the attributes that was not applied counts as lost.
    pause: Duration,
    /// True if the member has applied all entries that were committed when it was started.
    caught_up: bool,
    /// True if the replicated state contains this member's current name and client URLs, so that nothing is
    /// left to propose.
    known: bool,
    proposed: Option<Instant>,
    /// True if the last proposal was an entry that changes nothing, because members of etcd 3.4 may exist.
    says_nothing: bool,
}

impl Attributes {
    /// Returns the attributes of the member `own`. A lost proposal is repeated after `pause`.
    pub fn new(own: u64, (name, client_urls): (String, Vec<String>), pause: Duration) -> Attributes {
        Attributes {
            own,
            name,
            client_urls,
            pause,
            caught_up: false,
            known: false,
            proposed: None,
            says_nothing: false,
        }
    }

    /// Returns true if a proposal of this member has been applied since its start, which proves that the
    /// member has applied all entries committed before its start.
    pub fn have_caught_up(&self) -> bool {
        self.caught_up
    }

    /// Returns the proposal to make now, if any. `has_leader` returns true if there is a leader and this
    /// member is in the leader's configuration. Proposing the same attributes twice is harmless: the second
    /// entry changes nothing.
    ///
    /// Members that run etcd 3.4 exit when they apply an entry that sets attributes. While such members may
    /// exist (`are_old`), an entry that changes nothing is proposed instead. When it is applied, this member
    /// has caught up. If its attributes have changed since its last run, they are proposed once no such
    /// member can exist any more.
    pub fn propose(
        &mut self,
        has_leader: impl FnOnce() -> bool,
        are_old: bool,
        now: Instant,
    ) -> Option<InternalRaftRequest> {
        if self.known
            || are_old && self.caught_up
            || self.proposed.is_some_and(|at| now < at + self.pause)
            || !has_leader()
        {
            return None;
        }
        self.proposed = Some(now);
        self.says_nothing = are_old;
        if are_old {
            let nothing = LeaseCheckpointRequest { checkpoints: Vec::new() };
            return Some(InternalRaftRequest {
                lease_checkpoint: Some(nothing),
                ..InternalRaftRequest::default()
            });
        }
        let (name, client_urls) = (self.name.clone(), self.client_urls.clone());
        let set = membershippb::ClusterMemberAttrSetRequest {
            member_id: self.own,
            member_attributes: Some(membershippb::Attributes { name, client_urls }),
        };
        Some(InternalRaftRequest { cluster_member_attr_set: Some(set), ..InternalRaftRequest::default() })
    }

    /// Records that the proposal was applied. `known` holds this member's name and client URLs in the state;
    /// `None` if the state has no such member.
    pub fn applied(&mut self, known: Option<(&str, &[String])>) {
        let unchanged = known.is_none_or(|known| known == (self.name.as_str(), self.client_urls.as_slice()));
        self.caught_up = true;
        self.known |= !self.says_nothing || unchanged;
        self.proposed = None;
    }

    /// Records that the proposal was lost.
    pub fn were_lost(&mut self) {
        self.proposed = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_proposed_until_they_are_known() {
        let (now, pause) = (Instant::now(), Duration::from_secs(1));
        let mut attributes = Attributes::new(7, ("seven".to_owned(), Vec::new()), pause);
        assert_eq!(attributes.propose(|| false, false, now), None);
        let request = attributes.propose(|| true, false, now).expect("there is a leader");
        assert_eq!(request.cluster_member_attr_set.map(|set| set.member_id), Some(7));
        assert_eq!(attributes.propose(|| true, false, now), None, "it is on its way");
        assert!(attributes.propose(|| true, false, now + pause).is_some());
        attributes.were_lost();
        assert!(attributes.propose(|| true, false, now + pause).is_some());
        assert!(!attributes.have_caught_up());
        attributes.applied(Some(("seven", &[])));
        assert!(attributes.have_caught_up());
        assert_eq!(attributes.propose(|| true, false, now + 9 * pause), None);
    }

    #[test]
    fn members_of_etcd_3_4_are_not_told_what_ends_them() {
        let (now, pause) = (Instant::now(), Duration::from_secs(1));
        for unchanged in [true, false] {
            let mut attributes = Attributes::new(7, ("seven".to_owned(), Vec::new()), pause);
            let request = attributes.propose(|| true, true, now).expect("there is a leader");
            assert!(request.cluster_member_attr_set.is_none() && request.lease_checkpoint.is_some());
            attributes.applied(Some((if unchanged { "seven" } else { "six" }, &[])));
            assert!(attributes.have_caught_up(), "it may serve");
            assert_eq!(attributes.propose(|| true, true, now + 9 * pause), None);
            // The cluster no longer has members of etcd 3.4.
            let request = attributes.propose(|| true, false, now + 9 * pause);
            assert_eq!(request.is_none(), unchanged);
            attributes.applied(Some(("seven", &[])));
            assert_eq!(attributes.propose(|| true, false, now + 18 * pause), None);
        }
    }
}
