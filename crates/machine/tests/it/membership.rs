//! Tests of which membership changes are allowed, which are refused, and with which error.

use api::raftpb::ConfChange;
use api::{Status, error};
use bytes::Bytes;
use mainstay_machine::{ConfApplied, Machine, Member, Rules, VoterChange, promotion_json, validate};
use numbers::MemberId;
use prost::Message as _;

use crate::image::RULES;
use crate::journal::{Effect, Journal, Placed, apply};

const ADD: i32 = 0;
const REMOVE: i32 = 1;
const UPDATE: i32 = 2;
const ADD_LEARNER: i32 = 3;

struct Cluster {
    learners_max: usize,
    machine: Machine,
    journal: Journal,
}

impl Cluster {
    fn new(learners_max: usize) -> Cluster {
        let machine = Machine::new(Rules { learners_max });
        Cluster { learners_max, machine, journal: Journal::default() }
    }

    /// Validates a change, then applies it. Both must return the same error, and a refused change must leave
    /// the members unchanged.
    fn change(&mut self, kind: i32, node: u64, context: String) -> Result<VoterChange, Status> {
        let change = ConfChange {
            id: Some(9),
            r#type: Some(kind),
            node_id: Some(node),
            context: Some(context.into()),
        };
        let (before, applied) = (self.machine.members.clone(), self.machine.applied_index);
        let asked = validate(&before, &change, self.learners_max);
        let data = Bytes::from(change.encode_to_vec());
        let placed = Placed { location: self.journal.append(&data), data, conf: true };
        let effect = apply(&mut self.machine, &placed, &self.journal, true);
        let Effect::Conf(Ok(ConfApplied { request_id: 9, outcome })) = effect else { panic!("{effect:?}") };
        assert_eq!(asked.err(), outcome.clone().err());
        assert_eq!(self.machine.applied_index, applied + 1);
        if outcome.is_err() {
            assert_eq!(self.machine.members, before);
        }
        outcome
    }

    fn member(&mut self, kind: i32, node: u64, urls: &[&str]) -> Result<VoterChange, Status> {
        let peer_urls = urls.iter().map(|url| format!("http://{url}:2380")).collect();
        let is_learner = kind == ADD_LEARNER;
        self.change(kind, node, Member { id: node, peer_urls, is_learner, ..Member::default() }.to_json())
    }

    fn witness(&mut self, kind: i32, node: u64) -> Result<VoterChange, Status> {
        let peer_urls = vec![format!("http://w{node}:2380")];
        self.change(
            kind,
            node,
            Member { id: node, peer_urls, is_witness: true, ..Member::default() }.to_json(),
        )
    }

    fn promote(&mut self, node: u64) -> Result<VoterChange, Status> {
        self.change(ADD, node, promotion_json(node))
    }

    fn remove(&mut self, node: u64) -> Result<VoterChange, Status> {
        self.change(REMOVE, node, String::new())
    }

    fn ids(&self) -> (Vec<u64>, Vec<u64>) {
        (self.machine.members.voters(), self.machine.members.learners())
    }
}

#[test]
fn members_come_are_promoted_move_and_leave() {
    let mut cluster = Cluster::new(1);
    assert_eq!(cluster.member(ADD, 1, &["a"]), Ok(VoterChange::AddVoter(MemberId(1))));
    assert_eq!(cluster.member(ADD_LEARNER, 2, &["b", "c"]), Ok(VoterChange::AddLearner(MemberId(2))));
    assert_eq!(cluster.ids(), (vec![1], vec![2]));
    assert_eq!(cluster.promote(2), Ok(VoterChange::AddVoter(MemberId(2))));
    assert_eq!(cluster.ids(), (vec![1, 2], vec![]));
    assert_eq!(cluster.machine.members.by_id[&2].peer_urls, ["http://b:2380", "http://c:2380"]);
    // An update may keep the member's own addresses, and another member may use addresses that were given up.
    assert_eq!(cluster.member(UPDATE, 2, &["b", "d"]), Ok(VoterChange::Update(MemberId(2))));
    assert_eq!(cluster.machine.members.by_id[&2].peer_urls, ["http://b:2380", "http://d:2380"]);
    assert_eq!(cluster.member(ADD, 3, &["c"]), Ok(VoterChange::AddVoter(MemberId(3))));
    assert_eq!(cluster.remove(3), Ok(VoterChange::Remove(MemberId(3))));
    assert_eq!(cluster.ids(), (vec![1, 2], vec![]));
    assert!(cluster.machine.members.removed.contains(&3));
    assert_eq!(cluster.member(ADD, 4, &["c"]), Ok(VoterChange::AddVoter(MemberId(4))));
}

#[test]
fn one_witness_beside_two_members_with_data() {
    let mut cluster = Cluster::new(1);
    cluster.member(ADD, 1, &["a"]).unwrap();
    assert_eq!(cluster.witness(ADD, 9), Err(error::TOO_FEW_MEMBERS_FOR_WITNESS));
    cluster.member(ADD_LEARNER, 2, &["b"]).unwrap();
    assert_eq!(cluster.witness(ADD, 9), Err(error::TOO_FEW_MEMBERS_FOR_WITNESS), "a learner has no vote");
    cluster.promote(2).unwrap();
    assert_eq!(cluster.witness(ADD_LEARNER, 9), Err(error::WITNESS_IS_NO_LEARNER));
    assert_eq!(cluster.witness(ADD, 9), Ok(VoterChange::AddVoter(MemberId(9))));
    assert_eq!(cluster.witness(ADD, 8), Err(error::TOO_MANY_WITNESSES));
    assert_eq!(
        (cluster.machine.members.witness(), cluster.machine.members.data_voters()),
        (Some(9), vec![1, 2])
    );
    // It keeps its kind when its address changes, and a lost member can be replaced beside it.
    cluster.member(UPDATE, 9, &["w"]).unwrap();
    assert!(cluster.machine.members.is_witness(9));
    assert_eq!(cluster.remove(1), Ok(VoterChange::Remove(MemberId(1))));
    assert_eq!(cluster.remove(2), Err(error::MEMBER_NOT_ENOUGH_STARTED), "the witness has no keys");
    cluster.member(ADD, 3, &["c"]).unwrap();
    assert_eq!(cluster.remove(9), Ok(VoterChange::Remove(MemberId(9))));
    assert_eq!(cluster.machine.members.witness(), None);
}

#[test]
fn an_update_changes_addresses_and_nothing_else() {
    let mut cluster = Cluster::new(1);
    cluster.member(ADD_LEARNER, 1, &["a"]).unwrap();
    let member = cluster.machine.members.by_id.get_mut(&1).unwrap();
    member.name = "one".to_owned();
    member.client_urls = vec!["http://a:2379".to_owned()];
    let context = r#"{"id":1,"peerURLs":["http://z:1"],"name":"two","isLearner":false}"#;
    assert_eq!(cluster.change(UPDATE, 1, context.to_owned()), Ok(VoterChange::Update(MemberId(1))));
    let expected = Member {
        id: 1,
        peer_urls: vec!["http://z:1".to_owned()],
        is_learner: true,
        is_witness: false,
        name: "one".to_owned(),
        client_urls: vec!["http://a:2379".to_owned()],
    };
    assert_eq!(cluster.machine.members.by_id[&1], expected);
}

#[test]
fn what_the_members_do_not_allow_is_refused_as_in_etcd() {
    let mut cluster = Cluster::new(1);
    cluster.member(ADD, 1, &["a"]).unwrap();
    cluster.member(ADD, 2, &["b"]).unwrap();
    cluster.member(ADD_LEARNER, 3, &["c"]).unwrap();
    cluster.member(ADD, 4, &["d"]).unwrap();
    cluster.remove(4).unwrap();
    let unknown = Err(error::MEMBER_NOT_FOUND);
    // The id of a removed member.
    assert_eq!(cluster.member(ADD, 4, &["x"]), unknown);
    assert_eq!(cluster.member(ADD_LEARNER, 4, &["x"]), unknown);
    assert_eq!(cluster.member(UPDATE, 4, &["x"]), unknown);
    assert_eq!(cluster.promote(4), unknown);
    assert_eq!(cluster.remove(4), unknown);
    // An id that was never used.
    assert_eq!(cluster.member(UPDATE, 5, &["x"]), unknown);
    assert_eq!(cluster.promote(5), unknown);
    assert_eq!(cluster.remove(5), unknown);
    assert_eq!(cluster.remove(0), unknown);
    assert_eq!(cluster.member(ADD, 0, &["x"]), unknown);
    // The id of an existing member; this check comes before that of the addresses.
    assert_eq!(cluster.member(ADD, 1, &["x"]), Err(error::MEMBER_EXIST));
    assert_eq!(cluster.member(ADD, 3, &["b"]), Err(error::MEMBER_EXIST));
    assert_eq!(cluster.member(ADD_LEARNER, 1, &["x"]), Err(error::MEMBER_EXIST));
    // An address that is in use; this check comes before that of the number of learners.
    assert_eq!(cluster.member(ADD, 5, &["x", "b"]), Err(error::PEER_URL_EXIST));
    assert_eq!(cluster.member(ADD_LEARNER, 5, &["c"]), Err(error::PEER_URL_EXIST));
    assert_eq!(cluster.member(UPDATE, 2, &["b", "a"]), Err(error::PEER_URL_EXIST));
    assert_eq!(cluster.member(ADD_LEARNER, 5, &["x"]), Err(error::TOO_MANY_LEARNERS));
    assert_eq!(cluster.promote(1), Err(error::MEMBER_NOT_LEARNER));
    assert_eq!(cluster.ids(), (vec![1, 2], vec![3]));
    // Another learner is allowed after the first was promoted.
    cluster.promote(3).unwrap();
    cluster.member(ADD_LEARNER, 5, &["x"]).unwrap();
    assert_eq!(cluster.ids(), (vec![1, 2, 3], vec![5]));
}

#[test]
fn as_many_learners_as_the_rules_allow() {
    let mut cluster = Cluster::new(2);
    cluster.member(ADD_LEARNER, 1, &["a"]).unwrap();
    cluster.member(ADD_LEARNER, 2, &["b"]).unwrap();
    assert_eq!(cluster.member(ADD_LEARNER, 3, &["c"]), Err(error::TOO_MANY_LEARNERS));
}

#[test]
fn a_promotion_is_the_json_that_etcd_writes() {
    let id = u64::MAX;
    assert_eq!(promotion_json(id), format!(r#"{{"id":{id},"peerURLs":null,"isPromote":true}}"#));
}

#[test]
fn a_change_that_describes_another_member_changes_nothing() {
    let change = ConfChange {
        id: Some(1),
        r#type: Some(ADD),
        node_id: Some(1),
        context: Some(Member { id: 2, ..Member::default() }.to_json().into()),
    };
    let mut machine = Machine::new(RULES);
    assert!(validate(&machine.members, &change, 1).is_err());
    let journal = Journal::default();
    let data = Bytes::from(change.encode_to_vec());
    let placed = Placed { location: journal.append(&data), data, conf: true };
    let effect = apply(&mut machine, &placed, &journal, true);
    // A malformed proposal of a peer must not stop every member that applies it.
    let Effect::Conf(Ok(applied)) = effect else { panic!("{effect:?}") };
    assert_eq!(applied.outcome.map_err(|status| status.code), Err(api::Code::Internal));
    assert!(machine.members.by_id.is_empty());
}
