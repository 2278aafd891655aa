//! Tests of the commands lock and elect.

use api::etcdserverpb::{self as pb, ResponseOp, response_op::Response};

use crate::fake_server::Script;
use crate::messages::{created, header, inner_header, pair, range};
use crate::transcript::{Case, check};

/// Returns the script of a server with no other lock holders or leaders.
fn alone(kv: &[u8]) -> Script {
    let op = |response| ResponseOp { response: Some(response) };
    let granted = pb::LeaseGrantResponse { header: header(), id: 0x7b, ttl: 60, error: String::new() };
    let renewed = pb::LeaseKeepAliveResponse { header: header(), id: 0x7b, ttl: 60 };
    let taken = pb::TxnResponse {
        header: header(),
        succeeded: true,
        responses: vec![
            op(Response::ResponsePut(pb::PutResponse { header: inner_header(), prev_kv: None })),
            op(Response::ResponseRange(pb::RangeResponse { header: inner_header(), ..range(Vec::new()) })),
        ],
    };
    Script::default()
        .says("/etcdserverpb.Lease/LeaseGrant", &granted)
        .streams("/etcdserverpb.Lease/LeaseKeepAlive", &[renewed], false)
        .says("/etcdserverpb.Lease/LeaseRevoke", &pb::LeaseRevokeResponse { header: header() })
        .says("/etcdserverpb.KV/Txn", &taken)
        .says(
            "/etcdserverpb.KV/DeleteRange",
            &pb::DeleteRangeResponse { header: header(), deleted: 1, prev_kvs: Vec::new() },
        )
        // The first range request is for older keys, and finds none; the next is for the tool's own key.
        .says("/etcdserverpb.KV/Range", &range(Vec::new()))
        .says("/etcdserverpb.KV/Range", &range(vec![pair(kv, b"p")]))
}

/// Returns the script of [`alone`], in which every range request finds the tool's own key.
fn locked() -> Script {
    Script::default().says("/etcdserverpb.KV/Range", &range(vec![pair(b"l/7b", b"")])).and(alone(b"l/7b"))
}

#[test]
fn lock() {
    let script = locked();
    let env = "env | grep ETCD_LOCK | sort; echo $0";
    let holding = Case::new("lock l", &script).without_requests().interrupted_at("l/7b\n");
    let mut cases = vec![holding];
    let json = Case::new("lock l -w json", &script).without_requests().interrupted_at("}\n");
    cases.push(json);
    for words in [
        &["lock", "l", "sh", "--", "-c", env, "zero"][..],
        &["lock", "l", "--ttl=5", "--", "true"],
        &["lock", "l", "--", "sh", "-c", "echo out; echo err >&2; exit 7"],
        &["lock", "l", "--", "sh", "-c", "kill -9 $$"],
        &["lock", "l", "no-such-program"],
        &["lock", "l", "/no/such/program"],
    ] {
        cases.push(Case::of(words.iter().copied(), &script).without_requests());
    }
    cases.push(Case::new("lock", &script));
    let lost = Script::default().says("/etcdserverpb.KV/Range", &range(Vec::new())).and(locked());
    cases.push(Case::new("lock l", &lost).without_requests());
    let denied = Script::default().fails(
        "/etcdserverpb.Lease/LeaseGrant",
        api::Code::PermissionDenied,
        "etcdserver: permission denied",
    );
    cases.push(Case::new("lock l true", &denied));
    check("lock", cases);
}

#[test]
fn elect() {
    let script = alone(b"e/7b");
    let leading = Case::new("elect e p", &script).without_requests().interrupted_at("p\n");
    let mut cases = leading.in_formats(&["simple"]);
    for line in ["elect", "elect e", "elect -l e p", "elect a b c"] {
        cases.push(Case::new(line, &script));
    }
    let watched = Script::default()
        .says("/etcdserverpb.KV/Range", &range(vec![pair(b"e/7b", b"p")]))
        .streams("/etcdserverpb.Watch/Watch", &[created()], false)
        .and(alone(b""));
    let observing = Case::new("elect -l e", &watched).without_requests().interrupted_at("p\n");
    cases.push(observing);
    check("elect", cases);
}
