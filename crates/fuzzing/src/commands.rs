//! Applies valid requests to two state machines. The requests use few keys, leases and members, so that many
//! of them depend on the effects of earlier ones.

use api::etcdserverpb::alarm_request::AlarmAction;
use api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{
    AlarmRequest, CompactionRequest, Compare, DeleteRangeRequest, InternalRaftRequest, LeaseCheckpoint,
    LeaseCheckpointRequest, LeaseGrantRequest, LeaseRevokeRequest, PutRequest, RangeRequest, RequestHeader,
    RequestOp, TxnRequest,
};
use api::membershippb::{
    Attributes, ClusterMemberAttrSetRequest, ClusterVersionSetRequest, DowngradeInfoSetRequest,
};
use api::raftpb::{ConfChange, ConfChangeType};
use bytes::Bytes;
use machine::{Member, check, promotion_json};
use prost::Message as _;

use crate::apply::Twins;
use crate::script::Script;

/// Maximum number of requests that one input makes; the rest of the input is ignored.
const REQUESTS_MAX: usize = 100;
const OPS_MAX: usize = 128;
/// Maximum nesting depth of transactions.
const DEPTH_MAX: u8 = 3;

const KEYS: [&[u8]; 8] = [b"a", b"aa", b"b", b"b\0", b"c", b"\0", b"\xff", b"zz"];
const ENDS: [&[u8]; 8] = [b"", b"", b"", b"\0", b"b", b"c", b"\xff\xff", b"a"];

fn key(script: &mut Script<'_>) -> Bytes {
    Bytes::from_static(script.pick(&KEYS))
}

fn end(script: &mut Script<'_>) -> Bytes {
    Bytes::from_static(script.pick(&ENDS))
}

fn value(script: &mut Script<'_>) -> Bytes {
    let len = script.pick(&[0, 1, 3, 40]);
    Bytes::from(vec![script.u8(); len])
}

fn small(script: &mut Script<'_>) -> i64 {
    script.pick(&[0, 0, 0, 1, 2, 3, 5, 8, 13, -1, i64::MAX, i64::MIN])
}

fn put(script: &mut Script<'_>) -> PutRequest {
    let flags = script.u8();
    let (ignore_value, ignore_lease) = (flags & 14 == 2, flags & 112 == 16);
    PutRequest {
        key: key(script),
        value: if ignore_value { Bytes::new() } else { value(script) },
        lease: if ignore_lease { 0 } else { i64::from(script.below(4)) },
        prev_kv: flags & 1 == 1,
        ignore_value,
        ignore_lease,
    }
}

fn delete(script: &mut Script<'_>) -> DeleteRangeRequest {
    DeleteRangeRequest { key: key(script), range_end: end(script), prev_kv: script.flip() }
}

fn range(script: &mut Script<'_>) -> RangeRequest {
    let flags = script.u8();
    RangeRequest {
        key: key(script),
        range_end: end(script),
        limit: i64::from(script.below(4)),
        revision: small(script),
        sort_order: i32::from(flags & 3),
        sort_target: i32::from((flags >> 2) & 7),
        serializable: false,
        keys_only: flags & 32 != 0,
        count_only: flags & 64 != 0,
        min_mod_revision: small(script),
        max_mod_revision: small(script),
        min_create_revision: small(script),
        max_create_revision: small(script),
    }
}

fn compare(script: &mut Script<'_>) -> Compare {
    let target = script.below(5);
    let number = small(script);
    Compare {
        result: i32::from(script.below(5)),
        target: i32::from(script.below(6)),
        key: key(script),
        range_end: end(script),
        target_union: match target {
            0 => Some(TargetUnion::Version(number)),
            1 => Some(TargetUnion::CreateRevision(number)),
            2 => Some(TargetUnion::ModRevision(number)),
            3 => Some(TargetUnion::Value(value(script))),
            _ => Some(TargetUnion::Lease(number)),
        }
        .filter(|_| script.below(16) > 0),
    }
}

fn ops(script: &mut Script<'_>, depth: u8) -> Vec<RequestOp> {
    let count = script.below(4);
    let op = |script: &mut Script<'_>| match script.below(8) {
        0..=2 => Request::RequestPut(put(script)),
        3 | 4 => Request::RequestDeleteRange(delete(script)),
        5 | 6 => Request::RequestRange(range(script)),
        _ if depth == 0 => Request::RequestPut(put(script)),
        _ => Request::RequestTxn(txn(script, depth - 1)),
    };
    (0..count).map(|_| RequestOp { request: Some(op(script)) }).collect()
}

fn txn(script: &mut Script<'_>, depth: u8) -> TxnRequest {
    let compares = script.below(3);
    TxnRequest {
        compare: (0..compares).map(|_| compare(script)).collect(),
        success: ops(script, depth),
        failure: ops(script, depth),
    }
}

/// Generates a request from the script. Returns the request, and true if a correct member would propose it.
fn request(script: &mut Script<'_>) -> (InternalRaftRequest, bool) {
    let mut request = InternalRaftRequest {
        header: Some(RequestHeader { id: script.u8().into(), ..RequestHeader::default() }),
        ..InternalRaftRequest::default()
    };
    let mut sound = true;
    match script.below(16) {
        0..=3 => {
            let put = put(script);
            sound = check::put(&put).is_ok();
            request.put = Some(put);
        }
        4 | 5 => request.delete_range = Some(delete(script)),
        6..=8 => {
            let txn = txn(script, DEPTH_MAX);
            sound = check::txn(&txn, OPS_MAX).is_ok();
            let costs = (check::txn_cost(&txn), check::txn_is_read_only(&txn));
            assert!(costs.0 == 0 || !costs.1, "what only reads costs nothing");
            request.txn = Some(txn);
        }
        9 | 10 => {
            let revision = small(script);
            request.compaction = Some(CompactionRequest { revision, physical: script.flip() });
        }
        11 => {
            let (id, ttl) = (i64::from(script.below(4)), small(script));
            request.lease_grant = Some(LeaseGrantRequest { id, ttl });
        }
        12 => request.lease_revoke = Some(LeaseRevokeRequest { id: i64::from(script.below(4)) }),
        13 => {
            let checkpoints = (0..script.below(3))
                .map(|_| LeaseCheckpoint { id: script.below(4).into(), remaining_ttl: small(script) })
                .collect();
            request.lease_checkpoint = Some(LeaseCheckpointRequest { checkpoints });
        }
        14 => {
            request.alarm = Some(AlarmRequest {
                action: script.below(4).into(),
                member_id: script.below(3).into(),
                alarm: script.below(4).into(),
            });
        }
        _ => {
            let ver = script.pick(&["", "3.6.0", "3.7.0"]).to_owned();
            match script.below(3) {
                0 => request.cluster_version_set = Some(ClusterVersionSetRequest { ver }),
                1 => {
                    let attributes = Attributes { name: ver, client_urls: vec!["http://c:1".to_owned()] };
                    request.cluster_member_attr_set = Some(ClusterMemberAttrSetRequest {
                        member_id: script.below(4).into(),
                        member_attributes: Some(attributes),
                    });
                }
                _ => {
                    let enabled = script.flip();
                    request.downgrade_info_set = Some(DowngradeInfoSetRequest { enabled, ver });
                }
            }
        }
    }
    (request, sound)
}

fn conf_change(script: &mut Script<'_>) -> ConfChange {
    let id = u64::from(script.below(5));
    let flags = script.u8();
    let member = Member {
        id,
        peer_urls: vec![script.pick(&["http://a:1", "http://b:1", "http://c:1"]).to_owned()],
        is_learner: flags & 1 == 1,
        is_witness: flags & 8 == 8,
        ..Member::default()
    };
    let context = if flags & 6 == 2 { promotion_json(id) } else { member.to_json() };
    ConfChange {
        r#type: Some(i32::from(script.below(4))),
        node_id: Some(id),
        context: Some(context.into()),
        id: Some(u64::from(flags)),
    }
}

/// Fuzz target: applies the requests of a script to both machines, which must not fail for a request that a
/// correct member would propose.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let mut twins = Twins::default();
    for _ in 0..REQUESTS_MAX {
        if script.is_done() {
            break;
        }
        match script.below(20) {
            0..=14 => {
                let (request, sound) = request(&mut script);
                if sound {
                    assert!(
                        twins.entry(&Bytes::from(request.encode_to_vec())),
                        "{request:?} cannot be applied"
                    );
                }
            }
            15 => {
                let change = conf_change(&mut script);
                assert!(twins.conf_change(&Bytes::from(change.encode_to_vec())), "{change:?}");
            }
            16 => twins.compact_step(script.u8()),
            17 => twins.restart(),
            18 => twins.restore_snapshot(),
            _ => twins.transfer(),
        }
    }
    twins.finish();
}

/// Returns one request of each kind, in an order in which all of them succeed.
pub fn examples() -> Vec<InternalRaftRequest> {
    let header = || Some(RequestHeader { id: 7, username: "u".to_owned(), auth_revision: 1 });
    let empty = || InternalRaftRequest { header: header(), ..InternalRaftRequest::default() };
    let put = |key: &'static str, value: &'static str, lease| PutRequest {
        key: key.into(),
        value: value.into(),
        lease,
        prev_kv: true,
        ..PutRequest::default()
    };
    let op = |request| RequestOp { request: Some(request) };
    let range = RangeRequest {
        key: "a".into(),
        range_end: "z".into(),
        limit: 3,
        revision: 2,
        sort_order: 2,
        sort_target: 4,
        min_mod_revision: 1,
        max_create_revision: 9,
        ..RangeRequest::default()
    };
    let delete = DeleteRangeRequest { key: "b".into(), range_end: "c".into(), prev_kv: true };
    let inner =
        TxnRequest { success: vec![op(Request::RequestPut(put("n", "nested", 0)))], ..TxnRequest::default() };
    let compare = |target, union| Compare {
        result: CompareResult::Equal as i32,
        target: target as i32,
        key: "a".into(),
        range_end: Bytes::new(),
        target_union: Some(union),
    };
    let txn = TxnRequest {
        compare: vec![
            compare(CompareTarget::Version, TargetUnion::Version(1)),
            compare(CompareTarget::Create, TargetUnion::CreateRevision(2)),
            compare(CompareTarget::Mod, TargetUnion::ModRevision(2)),
            compare(CompareTarget::Value, TargetUnion::Value("one".into())),
            compare(CompareTarget::Lease, TargetUnion::Lease(5)),
        ],
        success: vec![
            op(Request::RequestRange(range.clone())),
            op(Request::RequestPut(put("t", "then", 0))),
            op(Request::RequestDeleteRange(delete.clone())),
            op(Request::RequestTxn(inner)),
        ],
        failure: vec![op(Request::RequestPut(put("e", "else", 0)))],
    };
    let attributes = Attributes { name: "m".to_owned(), client_urls: vec!["http://c:1".to_owned()] };
    vec![
        InternalRaftRequest { lease_grant: Some(LeaseGrantRequest { id: 5, ttl: 60 }), ..empty() },
        InternalRaftRequest { put: Some(put("a", "one", 5)), ..empty() },
        InternalRaftRequest { put: Some(put("b", "two", 0)), ..empty() },
        InternalRaftRequest { put: Some(PutRequest { ignore_value: true, ..put("a", "", 5) }), ..empty() },
        InternalRaftRequest {
            put: Some(PutRequest { ignore_lease: true, ..put("a", "three", 0) }),
            ..empty()
        },
        InternalRaftRequest { range: Some(range), ..empty() },
        InternalRaftRequest { txn: Some(txn), ..empty() },
        InternalRaftRequest { delete_range: Some(delete), ..empty() },
        InternalRaftRequest {
            compaction: Some(CompactionRequest { revision: 4, physical: true }),
            ..empty()
        },
        InternalRaftRequest {
            lease_checkpoint: Some(LeaseCheckpointRequest {
                checkpoints: vec![LeaseCheckpoint { id: 5, remaining_ttl: 30 }],
            }),
            ..empty()
        },
        InternalRaftRequest { lease_revoke: Some(LeaseRevokeRequest { id: 5 }), ..empty() },
        InternalRaftRequest {
            alarm: Some(AlarmRequest { action: AlarmAction::Activate as i32, member_id: 1, alarm: 1 }),
            ..empty()
        },
        InternalRaftRequest {
            alarm: Some(AlarmRequest { action: AlarmAction::Deactivate as i32, member_id: 1, alarm: 1 }),
            ..empty()
        },
        InternalRaftRequest {
            cluster_version_set: Some(ClusterVersionSetRequest { ver: "3.7.0".to_owned() }),
            ..empty()
        },
        InternalRaftRequest {
            cluster_member_attr_set: Some(ClusterMemberAttrSetRequest {
                member_id: 1,
                member_attributes: Some(attributes),
            }),
            ..empty()
        },
        InternalRaftRequest {
            downgrade_info_set: Some(DowngradeInfoSetRequest { enabled: true, ver: "3.6.0".to_owned() }),
            ..empty()
        },
    ]
}

/// Returns membership changes of each kind.
pub fn conf_changes() -> Vec<ConfChange> {
    let member = |id: u64, is_learner| Member {
        id,
        peer_urls: vec![format!("http://m{id}:2380")],
        is_learner,
        is_witness: false,
        name: format!("m{id}"),
        client_urls: vec![format!("http://m{id}:2379")],
    };
    let change = |kind: ConfChangeType, id: u64, context: String| ConfChange {
        r#type: Some(kind as i32),
        node_id: Some(id),
        context: Some(context.into()),
        id: Some(9),
    };
    use ConfChangeType as T;
    vec![
        change(T::ConfChangeAddNode, 1, member(1, false).to_json()),
        change(T::ConfChangeAddLearnerNode, 2, member(2, true).to_json()),
        change(T::ConfChangeAddNode, 2, promotion_json(2)),
        change(T::ConfChangeUpdateNode, 1, member(1, false).to_json()),
        change(T::ConfChangeRemoveNode, 2, String::new()),
    ]
}

/// Returns scripts of arbitrary bytes, because any bytes are a valid script.
pub fn seeds() -> Vec<Vec<u8>> {
    (0..12u32)
        .map(|seed| {
            let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
            (0..300)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 24) as u8
                })
                .collect()
        })
        .collect()
}
