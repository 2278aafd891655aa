use consensus::{Config, HardState, RestoredState};
use machine::Member;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(1);
const REQUEST: RequestId = RequestId { shard: 0, slot: 1, generation: 0 };

fn members(ids: &[u64]) -> Members {
    let member = |id: &u64| Member { id: *id, name: format!("m{id}"), ..Member::default() };
    Members { by_id: ids.iter().map(|id| (*id, member(id))).collect(), ..Members::default() }
}

fn node(voters: &[u64]) -> Node {
    let restored =
        RestoredState { voters: voters.iter().copied().map(MemberId).collect(), ..RestoredState::default() };
    Node::new(Config { id: MemberId(1), ..Config::default() }, restored).expect("they go together")
}

fn membership(members: &Members) -> Membership {
    let rules = MemberRules {
        own: 1,
        strict: true,
        learners_max: 1,
        election_timeout: TIMEOUT,
        request_timeout: 7 * TIMEOUT,
    };
    Membership::new(rules, members, vec![(9, vec!["http://nine".to_owned()])])
}

#[test]
fn what_would_cost_the_quorum_is_refused() {
    let (all, node, now) = (members(&[1, 2, 3]), node(&[1, 2, 3]), Instant::now());
    let mut membership = membership(&all);
    let here = |id| (id != 3).then_some(now);
    let absent = |_| None;
    let present = |active_since| ChangeContext {
        members: &all,
        node: &node,
        leads: true,
        applied_term: Term(0),
        active_since,
        knows_witnesses: &|_| true,
        successor: &|| None,
    };
    let later = now + HEALTHY_FOR;
    let mut want = |change, active| membership.want(REQUEST, change, present(active), later);
    assert_eq!(want(MemberChange::Remove(2), &here), Err(error::UNHEALTHY));
    assert_eq!(want(MemberChange::Remove(3), &here), Ok(()), "it is down");
    let added = Member { id: 4, ..Member::default() };
    assert_eq!(want(MemberChange::Add(added), &absent), Err(error::UNHEALTHY));
    assert_eq!(want(MemberChange::Promote(2), &here), Err(error::MEMBER_NOT_LEARNER));
    for _ in 1..CHANGES_MAX {
        assert_eq!(want(MemberChange::Remove(3), &here), Ok(()));
    }
    assert_eq!(want(MemberChange::Remove(3), &here), Err(error::TOO_MANY_REQUESTS));
}

#[test]
fn a_member_is_added_where_those_that_are_there_are_a_quorum_without_it() {
    // The rule is that of the newest releases of etcd. Older releases require all members to be connected.
    for (voters, away, taken) in [
        (1, 0, true),
        (2, 0, true),
        (2, 1, false),
        (3, 0, true),
        (3, 1, false),
        (4, 1, true),
        (5, 1, true),
        (5, 2, false),
    ] {
        for is_learner in [false, true] {
            let ids: Vec<u64> = (1..=voters).collect();
            let (all, node, now) = (members(&ids), node(&ids), Instant::now());
            let active_since = |id| (id <= voters - away).then_some(now);
            let present = ChangeContext {
                members: &all,
                node: &node,
                leads: true,
                applied_term: Term(0),
                active_since: &active_since,
                knows_witnesses: &|_| true,
                successor: &|| None,
            };
            let added = MemberChange::Add(Member { id: 9, is_learner, ..Member::default() });
            let expected = if taken { Ok(()) } else { Err(error::UNHEALTHY) };
            let told = membership(&all).want(REQUEST, added, present, now + HEALTHY_FOR);
            assert_eq!(told, expected, "{away} of {voters} are away");
        }
    }
}

#[test]
fn a_leader_of_two_hands_over_before_it_is_removed_and_pauses_in_between() {
    let (all, node, start) = (members(&[1, 2]), node(&[1, 2]), Instant::now());
    let mut membership = membership(&all);
    let seen = start.checked_sub(HEALTHY_FOR).unwrap_or(start);
    let active_since = move |_| Some(seen);
    let present = |leads| ChangeContext {
        members: &all,
        node: &node,
        leads,
        applied_term: node.status().term,
        active_since: &active_since,
        knows_witnesses: &|_| true,
        successor: &|| Some(MemberId(2)),
    };
    membership.rules.strict = false;
    assert_eq!(membership.want(REQUEST, MemberChange::Remove(1), present(true), start), Ok(()));
    assert!(matches!(membership.next_change(present(true), start), Step::HandOver(MemberId(2))));
    assert!(matches!(membership.next_change(present(true), start + TIMEOUT), Step::Nothing));
    assert!(matches!(
        membership.next_change(present(true), start + 2 * TIMEOUT),
        Step::HandOver(MemberId(2))
    ));
    // Another member leads now.
    assert!(matches!(membership.next_change(present(false), start + 3 * TIMEOUT), Step::ProposeNext));
    let (change, _) = membership.encode_next(5, &node).expect("one waits");
    assert_eq!(change, ConfChange { kind: ConfChangeKind::Remove, node: MemberId(1) });
    let wanted = membership.take_next(Some(5)).expect("one waits");
    assert!(!membership.has_next());
    membership.was_lost(wanted);
    assert!(membership.has_next());
    assert!(membership.was_removed(start) && !membership.was_removed(start));
    assert_eq!(membership.tell_of_removal(Term(3)), None);
    assert_eq!(
        membership.take_told(),
        [ChangeAnswer { request_id: REQUEST, outcome: Ok(()), raft_term: Term(3) }]
    );
    assert!(!membership.has_left(false, start) && membership.has_left(false, start + REMOVED_PAUSE));
    assert!(!membership.has_left(true, start + REMOVED_PAUSE));
}

#[test]
fn a_learner_whose_url_changes_stays_one_for_members_of_old_etcd() {
    for is_learner in [false, true] {
        let mut all = members(&[1, 2, 3]);
        all.by_id.insert(3, Member { id: 3, is_learner, ..Member::default() });
        let (mut membership, node, now) = (membership(&all), node(&[1, 2]), Instant::now());
        let present = ChangeContext {
            members: &all,
            node: &node,
            leads: true,
            applied_term: Term(0),
            active_since: &|_| None,
            knows_witnesses: &|_| true,
            successor: &|| None,
        };
        let update = Member { id: 3, peer_urls: vec!["http://three:2380".to_owned()], ..Member::default() };
        assert_eq!(membership.want(REQUEST, MemberChange::Update(update), present, now), Ok(()));
        let (_, entry) = membership.encode_next(5, &node).expect("one waits");
        let change = raftpb::ConfChange::decode(entry).expect("was encoded here");
        let told = Member::from_json(&change.context.unwrap_or_default()).expect("was encoded here");
        assert_eq!((told.is_learner, told.peer_urls.len()), (is_learner, 1));
    }
}

#[test]
fn a_change_is_judged_again_when_it_is_proposed() {
    let node = node(&[1]);
    let start = Instant::now();
    let later = start + HEALTHY_FOR;
    // Four voters of which one is down can take one more voter or one learner, but not two learners.
    for (voters, is_learner, refused) in [(4, false, error::UNHEALTHY), (1, true, error::TOO_MANY_LEARNERS)] {
        let mut all = members(&(1..=voters).collect::<Vec<u64>>());
        let mut membership = membership(&all);
        let active_since = |id| (id < 4).then_some(start);
        let ask = |membership: &mut Membership, all: &Members, change| {
            let present = ChangeContext {
                members: all,
                node: &node,
                leads: true,
                applied_term: Term(0),
                active_since: &active_since,
                knows_witnesses: &|_| true,
                successor: &|| None,
            };
            match change {
                Some(change) => {
                    assert_eq!(membership.want(REQUEST, change, present, later), Ok(()));
                    Step::Nothing
                }
                None => membership.next_change(present, later),
            }
        };
        let added =
            |id| Member { id, is_learner, peer_urls: vec![format!("http://{id}:2380")], ..Member::default() };
        for id in [7, 8] {
            ask(&mut membership, &all, Some(MemberChange::Add(added(id))));
        }
        assert!(matches!(ask(&mut membership, &all, None), Step::ProposeNext));
        membership.take_next(Some(5)).expect("one waits");
        all.by_id.insert(7, Member { name: "m7".to_owned(), ..added(7) });
        membership.changed(&all);
        membership.applied(5);
        assert!(membership.has_next());
        let step = ask(&mut membership, &all, None);
        assert!(matches!(&step, Step::Refuse(REQUEST, status) if *status == refused), "{step:?}");
        assert!(!membership.has_next());
    }
}

#[test]
fn the_entry_carries_the_limit_that_members_of_etcd_have() {
    // A follower in term 0 has no leader that could run etcd; in term 3 it has heard nothing of its leader.
    for (term, limit) in [(0, 5), (3, 1)] {
        let all = members(&[1, 2]);
        let restored = RestoredState {
            voters: vec![MemberId(1), MemberId(2)],
            hard_state: HardState { term: Term(term), ..HardState::default() },
            ..RestoredState::default()
        };
        let config = Config { id: MemberId(1), ..Config::default() };
        let node = Node::new(config, restored).expect("they go together");
        let mut membership = membership(&all);
        (membership.rules.learners_max, membership.rules.strict) = (5, false);
        assert_eq!(membership.is_held_back(&node), limit == 1);
        let present = ChangeContext {
            members: &all,
            node: &node,
            leads: false,
            applied_term: Term(0),
            active_since: &|_| None,
            knows_witnesses: &|_| true,
            successor: &|| None,
        };
        let learner = Member { id: 7, is_learner: true, ..Member::default() };
        let add = MemberChange::Add(learner.clone());
        assert_eq!(membership.want(REQUEST, add, present, Instant::now()), Ok(()));
        let (_, entry) = membership.encode_next(5, &node).expect("one waits");
        let change = raftpb::ConfChange::decode(entry).expect("was encoded here");
        assert_eq!(change.context, Some(machine::learner_json(&learner, limit).into()));
    }
}

#[test]
fn a_member_that_does_not_find_itself_goes_by_what_it_was_told() {
    let mut membership = membership(&Members::default());
    let others = |others: Vec<(u64, Vec<String>)>| others.into_iter().map(|(id, _)| id).collect::<Vec<_>>();
    assert_eq!(others(membership.changed(&members(&[2]))), [2, 9]);
    assert_eq!(others(membership.changed(&members(&[1, 2]))), [2]);
    assert_eq!(membership.members().by_id.len(), 2);
}
