//! This member's own name and client URLs, and how the cluster hears of them.

use std::time::{Duration, Instant};

use api::etcdserverpb::InternalRaftRequest;
use api::membershippb;

/// Makes this member's name and client URLs known, once after each start.
pub(super) struct Attributes {
    own: u64,
    name: String,
    client_urls: Vec<String>,
    /// Time after which a proposal of the attributes counts as lost.
    pause: Duration,
    known: bool,
    proposed: Option<Instant>,
}

impl Attributes {
    /// Returns the attributes of the member `own`. A lost proposal is repeated after `pause`.
    pub fn new(own: u64, (name, client_urls): (String, Vec<String>), pause: Duration) -> Attributes {
        Attributes { own, name, client_urls, pause, known: false, proposed: None }
    }

    /// Returns true if the cluster has heard of them since this member was started.
    pub fn are_known(&self) -> bool {
        self.known
    }

    /// Returns the proposal to make now, if any. `has_leader` says if there is a leader, and this member is in its
    /// configuration. A second proposal does no harm: it changes nothing.
    pub fn propose(
        &mut self,
        has_leader: impl FnOnce() -> bool,
        now: Instant,
    ) -> Option<InternalRaftRequest> {
        if self.known || self.proposed.is_some_and(|at| now < at + self.pause) || !has_leader() {
            return None;
        }
        self.proposed = Some(now);
        let (name, client_urls) = (self.name.clone(), self.client_urls.clone());
        let set = membershippb::ClusterMemberAttrSetRequest {
            member_id: self.own,
            member_attributes: Some(membershippb::Attributes { name, client_urls }),
        };
        Some(InternalRaftRequest { cluster_member_attr_set: Some(set), ..InternalRaftRequest::default() })
    }

    /// Notes that the proposal is applied.
    pub fn applied(&mut self) {
        self.known = true;
    }

    /// Notes that the proposal is lost.
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
        assert_eq!(attributes.propose(|| false, now), None);
        let request = attributes.propose(|| true, now).expect("there is a leader");
        assert_eq!(request.cluster_member_attr_set.map(|set| set.member_id), Some(7));
        assert_eq!(attributes.propose(|| true, now), None, "it is on its way");
        assert!(attributes.propose(|| true, now + pause).is_some());
        attributes.were_lost();
        assert!(attributes.propose(|| true, now + pause).is_some());
        attributes.applied();
        assert!(attributes.are_known() && attributes.propose(|| true, now + 9 * pause).is_none());
    }
}
