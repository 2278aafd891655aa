//! Tests of the rolling hash: equal on equal states, and different from the first entry on that touches a
//! difference.

use api::etcdserverpb::{
    AlarmRequest, AuthRoleAddRequest, CompactionRequest, InternalRaftRequest, LeaseCheckpoint,
    LeaseCheckpointRequest, LeaseRevokeRequest, RangeRequest,
};
use api::{membershippb, raftpb};
use bytes::Bytes;
use mainstay_machine::{Machine, Member, Rules, STATE_POINTS_MAX, StatePoint, TrailComparison};
use numbers::{Index, Revision};
use prost::Message as _;

use crate::commands::Commands;
use crate::image::{Blocks, RULES, delete, execute, grant, put, restored, run};
use crate::journal::{Journal, Placed, apply};

/// Hash after each entry of [`the_hashes_of_fixed_entries_never_change`].
const PINNED: [&str; 19] = [
    "grant c15f67ef6a921bd8",
    "put a8757fc96a666b6e",
    "put again 4be404be9c7a2e8f",
    "delete 856823a3a6c5de54",
    "compact 0b4c49cf105b1f51",
    "put with a lease e99ccd19c2496443",
    "note e99ccd19c2496443",
    "revoke c59561f5bbb91135",
    "raise 413c56ec68249eaa",
    "clear 52f256046f6835e4",
    "add a member 938d80fda1eda200",
    "add a learner 7d65e3a2d00a0d59",
    "promote 453f5c61a59afe73",
    "update 9e6cc25465dd5820",
    "attributes 819ebbfdff14f7cd",
    "remove a2b1b466e18e5ae2",
    "version 470efd7fa5353ccc",
    "downgrade 6746856b78e459ba",
    "role ca61e575cae7e672",
];

#[test]
fn the_same_entries_make_the_same_hashes() {
    let mut remembered = (0, 0);
    for seed in 1..=6 {
        let journal = Journal::default();
        let mut commands = Commands::new(seed, [6, 40, 300][seed as usize % 3]);
        let (mut ours, mut theirs) = (Machine::new(RULES), Machine::new(RULES));
        for round in 0..800 {
            let placed = commands.next(&ours, &journal);
            let before = (ours.state_hash(), ours.store.current_revision());
            apply(&mut ours, &placed, &journal, true);
            apply(&mut theirs, &placed, &journal, false);
            // One machine runs physical compaction; the other one is sometimes restarted.
            ours.compact_step(commands.random.below(4));
            if round % 300 == 299 {
                theirs = restored(&[run(&mut theirs, Revision(0))]).unwrap();
            }
            assert_eq!(ours.state_hash(), theirs.state_hash(), "seed {seed}, round {round}");
            if ours.store.current_revision() != before.1 {
                assert_ne!(ours.state_hash(), before.0);
            }
        }
        let (trail, other) = (ours.state_trail(Index(0)), theirs.state_trail(Index(0)));
        remembered.0 += trail.points.len();
        remembered.1 += other.points.len();
        assert_eq!(other.points[0].index, Index(600), "it began anew with the restart");
        assert_eq!(trail.compare(&other), TrailComparison::Same { through: Index(800) });
        let last = trail.points[trail.points.len() - 1];
        assert_eq!((Some(last.hash), last.revision), (ours.state_hash(), ours.store.current_revision()));
    }
    assert!(remembered.0 > 1000 && remembered.1 > 200, "{remembered:?}");
}

#[test]
fn only_what_changes_something_changes_the_hash() {
    let (mut machine, journal) = (Machine::new(RULES), Journal::default());
    let request = |change: &dyn Fn(&mut InternalRaftRequest)| {
        let mut request = InternalRaftRequest::default();
        change(&mut request);
        request
    };
    let alarm =
        |action| request(&|r| r.alarm = Some(AlarmRequest { action, member_id: 1, alarm: 2 - action % 2 }));
    let version = |ver: &str| {
        request(&|r| {
            r.cluster_version_set = Some(membershippb::ClusterVersionSetRequest { ver: ver.to_owned() })
        })
    };
    let attributes = |member_id| {
        request(&|r| {
            let attributes = membershippb::Attributes { name: "n".to_owned(), client_urls: Vec::new() };
            r.cluster_member_attr_set = Some(membershippb::ClusterMemberAttrSetRequest {
                member_id,
                member_attributes: Some(attributes),
            });
        })
    };
    let downgrade = |enabled| {
        request(&|r| {
            let ver = "3.6.0".to_owned();
            r.downgrade_info_set = Some(membershippb::DowngradeInfoSetRequest { enabled, ver });
        })
    };
    let checkpoint = |id, remaining_ttl| {
        request(&|r| {
            let checkpoints = vec![LeaseCheckpoint { id, remaining_ttl }];
            r.lease_checkpoint = Some(LeaseCheckpointRequest { checkpoints });
        })
    };
    let compaction =
        |revision| request(&|r| r.compaction = Some(CompactionRequest { revision, physical: false }));
    let revoke = |id| request(&|r| r.lease_revoke = Some(LeaseRevokeRequest { id }));
    let range = request(&|r| r.range = Some(RangeRequest { key: "k".into(), ..RangeRequest::default() }));
    machine.members.by_id.insert(1, Member { id: 1, ..Member::default() });
    // Each entry with a flag whether it changes this state.
    let steps = [
        (put("k", "v", 0), true),
        (put("k", "v", 0), true),
        (put("k", "v", 77), false),
        (range, false),
        (delete("nobody"), false),
        (delete("k"), true),
        (delete("k"), false),
        (grant(5, 60), true),
        (grant(5, 60), false),
        (checkpoint(5, 30), false),
        (checkpoint(5, 30), false),
        (checkpoint(6, 30), false),
        (put("l", "v", 5), true),
        (revoke(5), true),
        (revoke(5), false),
        (compaction(3), true),
        (compaction(3), false),
        (compaction(300), false),
        (version("3.7.0"), true),
        (version("3.7.0"), false),
        (attributes(1), true),
        (attributes(1), false),
        (attributes(2), false),
        (downgrade(true), true),
        (downgrade(true), false),
        (downgrade(false), true),
        (downgrade(false), false),
        (alarm(1), true),
        (alarm(1), false),
        (alarm(2), false),
    ];
    let mut seen = std::collections::HashSet::from([machine.state_hash()]);
    for (at, (request, changes)) in steps.iter().enumerate() {
        let points = machine.state_hashes(Index(0)).count();
        execute(&mut machine, &journal, request);
        assert_eq!(seen.insert(machine.state_hash()), *changes, "step {at}");
        assert_eq!(machine.state_hashes(Index(0)).count(), points + usize::from(*changes), "step {at}");
    }
    // Membership changes: an addition, the same addition again (refused), a removal.
    let member = Member { id: 9, peer_urls: vec!["http://a".to_owned()], ..Member::default() };
    for (kind, changes) in [(0, true), (0, false), (1, true)] {
        let change = raftpb::ConfChange {
            id: Some(1),
            r#type: Some(kind),
            node_id: Some(9),
            context: Some(member.to_json().into()),
        };
        let data = Bytes::from(change.encode_to_vec());
        let placed = Placed { location: journal.append(&data), data, conf: true };
        apply(&mut machine, &placed, &journal, true);
        assert_eq!(seen.insert(machine.state_hash()), changes);
    }
}

/// Members of two builds apply the same entries, and a member continues the hash that an older build wrote.
/// So the values here must never change. A change of the hash function would also need a new algorithm number
/// in `consistency` and a new `FORMAT_HASHED`, and only then new values here. The entries cover one effect of
/// each kind, so that a changed effect is detected.
#[test]
fn the_hashes_of_fixed_entries_never_change() {
    let (mut machine, journal) = (Machine::new(RULES), Journal::default());
    let request = |change: &dyn Fn(&mut InternalRaftRequest)| {
        let mut request = InternalRaftRequest::default();
        change(&mut request);
        request
    };
    let alarm = |action| request(&|r| r.alarm = Some(AlarmRequest { action, member_id: 9, alarm: 1 }));
    let normal = |request: InternalRaftRequest| (request.encode_to_vec(), false);
    let member = |id: u64, url: &str, is_learner| {
        Member { id, peer_urls: vec![url.to_owned()], is_learner, ..Member::default() }.to_json()
    };
    let conf = |kind, node_id, context: Option<String>| {
        let change = raftpb::ConfChange {
            id: Some(1),
            r#type: Some(kind),
            node_id: Some(node_id),
            context: context.map(Bytes::from),
        };
        (change.encode_to_vec(), true)
    };
    let promotion = member(9, "http://a", false);
    let promotion = promotion.replacen('{', "{\"isPromote\":true,", 1);
    let entries = [
        ("grant", normal(grant(5, 60))),
        ("put", normal(put("k", "v", 5))),
        ("put again", normal(put("k", "w", 0))),
        ("delete", normal(delete("k"))),
        (
            "compact",
            normal(request(&|r| r.compaction = Some(CompactionRequest { revision: 3, physical: false }))),
        ),
        ("put with a lease", normal(put("l", "v", 5))),
        (
            "note",
            normal(request(&|r| {
                let checkpoints = vec![LeaseCheckpoint { id: 5, remaining_ttl: 30 }];
                r.lease_checkpoint = Some(LeaseCheckpointRequest { checkpoints });
            })),
        ),
        ("revoke", normal(request(&|r| r.lease_revoke = Some(LeaseRevokeRequest { id: 5 })))),
        ("raise", normal(alarm(1))),
        ("clear", normal(alarm(2))),
        ("add a member", conf(0, 8, Some(member(8, "http://b", false)))),
        ("add a learner", conf(3, 9, Some(member(9, "http://a", true)))),
        ("promote", conf(0, 9, Some(promotion))),
        ("update", conf(2, 9, Some(member(9, "http://c", false)))),
        (
            "attributes",
            normal(request(&|r| {
                let attributes = membershippb::Attributes {
                    name: "n".to_owned(),
                    client_urls: vec!["http://d".to_owned()],
                };
                r.cluster_member_attr_set = Some(membershippb::ClusterMemberAttrSetRequest {
                    member_id: 9,
                    member_attributes: Some(attributes),
                });
            })),
        ),
        ("remove", conf(1, 9, None)),
        (
            "version",
            normal(request(&|r| {
                let ver = "3.7.0".to_owned();
                r.cluster_version_set = Some(membershippb::ClusterVersionSetRequest { ver });
            })),
        ),
        (
            "downgrade",
            normal(request(&|r| {
                let ver = "3.6.0".to_owned();
                r.downgrade_info_set = Some(membershippb::DowngradeInfoSetRequest { enabled: true, ver });
            })),
        ),
        ("role", normal(request(&|r| r.auth_role_add = Some(AuthRoleAddRequest { name: "r".to_owned() })))),
    ];
    let mut hashes = Vec::new();
    for (name, (data, conf)) in entries {
        let before = machine.state_hash();
        let data = Bytes::from(data);
        apply(&mut machine, &Placed { location: journal.append(&data), data, conf }, &journal, true);
        let hash = machine.state_hash().expect("is known");
        assert_eq!(before != Some(hash), name != "note", "{name}");
        hashes.push(format!("{name} {hash:016x}"));
    }
    assert_eq!(hashes, PINNED);
}

/// Returns a machine with the keys of one machine, and with the head, including the hash, of another.
fn mongrel(head: &mut Machine, keys: &mut Machine) -> Machine {
    let mut blocks: Blocks = run(keys, Revision(0));
    blocks[0] = run(head, Revision(0)).swap_remove(0);
    restored(&[blocks]).unwrap()
}

#[test]
fn a_difference_shows_from_the_first_entry_that_touches_it() {
    let journal = Journal::default();
    let made = |requests: &[InternalRaftRequest]| {
        let mut machine = Machine::new(RULES);
        for request in requests {
            execute(&mut machine, &journal, request);
        }
        machine
    };
    let sound = || vec![grant(5, 60), put("other", "v", 0), put("k", "v", 0)];
    let twice =
        |first: &str| vec![put(first, "v", 0), put(["k", "other"][usize::from(first == "k")], "v", 0)];
    let cases = [
        ("version", sound(), vec![grant(5, 60), put("k", "v", 0), put("k", "v", 0)]),
        ("value", sound(), vec![grant(5, 60), put("other", "v", 0), put("k", "w", 0)]),
        ("lease", sound(), vec![grant(5, 60), put("other", "v", 0), put("k", "v", 5)]),
        ("revision", sound(), vec![grant(5, 60), put("k", "v", 0), put("other", "v", 0)]),
        ("key", sound(), vec![grant(5, 60), put("other", "v", 0), put("l", "v", 0)]),
        (
            "create revision alone",
            [twice("k"), vec![put("k", "v", 0)]].concat(),
            [twice("other"), vec![put("k", "v", 0)]].concat(),
        ),
    ];
    for touching in [put("k", "new", 0), delete("k")] {
        for (what, ours, theirs) in &cases {
            let (mut ours, mut theirs) = (made(ours), mongrel(&mut made(ours), &mut made(theirs)));
            let begun = ours.applied_index;
            for key in ["x", "y", "x"] {
                execute(&mut ours, &journal, &put(key, "v", 0));
                execute(&mut theirs, &journal, &put(key, "v", 0));
                assert_eq!(ours.state_hash(), theirs.state_hash(), "nothing touched the {what} yet");
            }
            let revision = ours.store.current_revision() + 1;
            for request in [&touching, &put("x", "v", 0), &put("k", "v", 0), &delete("k")] {
                execute(&mut ours, &journal, request);
                execute(&mut theirs, &journal, request);
                assert_ne!(ours.state_hash(), theirs.state_hash(), "the {what} differs");
            }
            let (trail, other) = (ours.state_trail(Index(0)), theirs.state_trail(Index(0)));
            let expected = TrailComparison::Different { index: begun + 4, revision, at_first: false };
            assert_eq!(trail.compare(&other), expected, "{what}");
            assert_eq!(other.compare(&trail), expected, "{what}");
        }
    }
}

#[test]
fn members_with_other_options_do_not_look_different() {
    let journal = Journal::default();
    let mut ours = Machine::new(RULES);
    let mut theirs = Machine::new(Rules { learners_max: RULES.learners_max + 7 });
    let note = |remaining_ttl| {
        let checkpoints = vec![LeaseCheckpoint { id: 5, remaining_ttl }];
        let lease_checkpoint = Some(LeaseCheckpointRequest { checkpoints });
        InternalRaftRequest { lease_checkpoint, ..InternalRaftRequest::default() }
    };
    for request in [grant(5, 1), put("k", "v", 5), note(9), note(0), delete("k")] {
        execute(&mut ours, &journal, &request);
        execute(&mut theirs, &journal, &request);
        assert_eq!(ours.state_hash(), theirs.state_hash());
    }
}

#[test]
fn the_last_points_are_remembered_over_many_entries() {
    let (mut machine, journal) = (Machine::new(RULES), Journal::default());
    for n in 0..STATE_POINTS_MAX + 100 {
        execute(&mut machine, &journal, &put(&format!("{}", n % 50), "v", 0));
    }
    let points: Vec<StatePoint> = machine.state_hashes(Index(0)).collect();
    assert_eq!(points.len(), STATE_POINTS_MAX);
    assert!(points.windows(2).all(|pair| pair[0].index + 1 == pair[1].index));
    assert!(points.iter().all(|point| point.revision == Revision(point.index.0 as i64 + 1)));
    let last = machine.applied_index;
    assert_eq!(
        machine.state_hashes(last - 2).map(|p| p.index).collect::<Vec<_>>(),
        [last - 2, last - 1, last]
    );
}
