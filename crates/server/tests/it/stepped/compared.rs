//! Read-only transactions with many comparisons: they are compared in slices, so that other calls do not wait
//! for the whole.

use std::task::{Context, Poll, Waker};

use api::Rpc;
use api::etcdserverpb::{
    Compare, PutRequest, RangeRequest, RequestOp, TxnRequest, TxnResponse, compare, request_op,
};
use front::Unary;
use prost::Message as _;

use super::world::World;

/// Number of keys that one slice compares.
const PER_SLICE: usize = 512;
const KEYS: usize = 3000;

fn op(request: request_op::Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

fn filled() -> World {
    let mut world = World::started(1, 51, &[]);
    for first in (0..KEYS).step_by(100) {
        let put = |n: usize| PutRequest {
            key: format!("k{n:05}").into(),
            value: "value".into(),
            ..PutRequest::default()
        };
        let success = (first..first + 100).map(|n| op(request_op::Request::RequestPut(put(n)))).collect();
        let _: TxnResponse =
            world.call(0, Rpc::KvTxn, &TxnRequest { success, ..TxnRequest::default() }).expect("is taken");
    }
    world
}

fn compares(target: compare::CompareTarget, union: compare::TargetUnion) -> TxnRequest {
    let all = Compare {
        key: "k".into(),
        range_end: "l".into(),
        result: compare::CompareResult::Greater as i32,
        target: target as i32,
        target_union: Some(union),
    };
    let read = RangeRequest { key: "k00001".into(), ..RangeRequest::default() };
    TxnRequest {
        compare: vec![all],
        success: vec![op(request_op::Request::RequestRange(read))],
        failure: Vec::new(),
    }
}

#[test]
fn what_a_transaction_that_only_reads_compares_is_compared_in_slices_as_of_one_moment() {
    let mut world = filled();
    for request in [
        compares(compare::CompareTarget::Value, compare::TargetUnion::Value("val".into())),
        compares(compare::CompareTarget::Version, compare::TargetUnion::Version(0)),
    ] {
        let revision = world.member(0).probe().revision;
        let answer = world.member(0).unary(Rpc::KvTxn, request.encode_to_vec().into());
        let Unary::Later(mut answer) = answer else { panic!("all keys were compared in one go") };
        // The first was compared when the call was made.
        let mut slices = 1;
        let answer = loop {
            match answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(answer) => break answer.expect("is answered"),
                Poll::Pending => slices += 1,
            }
            // The comparison would fail in the newest state, but it uses the state in which it began.
            world.put(0, &format!("k{:05}", KEYS - slices), b"a").expect("is taken");
            let delete = api::etcdserverpb::DeleteRangeRequest {
                key: format!("k{:05}", KEYS - slices).into(),
                ..api::etcdserverpb::DeleteRangeRequest::default()
            };
            let _: api::etcdserverpb::DeleteRangeResponse =
                world.call(0, Rpc::KvDeleteRange, &delete).expect("is taken");
        };
        assert!(slices >= KEYS / PER_SLICE, "{KEYS} keys were compared in {slices} slices");
        let front::Answer::Whole(answer) = answer else { panic!("it is short") };
        let answer = TxnResponse::decode(answer).expect("decodes");
        assert!(answer.succeeded);
        assert_eq!(answer.header.map(|header| header.revision), Some(revision.0));
    }
}
