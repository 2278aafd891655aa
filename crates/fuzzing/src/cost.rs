//! Checks that the processor time and the memory for a request are limited by its size, whatever its content.
//!
//! The time budget is a multiple of the time that decoding the same bytes takes in the same run, so that it
//! does not depend on the speed of the machine, plus a generous constant. Work that is linear in the size of
//! the request stays far below the budget; quadratic work exceeds it. The memory budget is a multiple of the
//! request's size.

use std::time::Duration;

use api::etcdserverpb::compare::TargetUnion;
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{
    Compare, DeleteRangeRequest, InternalRaftRequest, PutRequest, RangeRequest, RequestHeader, RequestOp,
    TxnRequest,
};
use bytes::Bytes;
use machine::{Command, Machine, check};
use numbers::Term;
use prost::Message as _;

use crate::front_port;
use crate::journal::Journal;
use crate::meter::{Cost, measure};
use crate::script::{Scribe, Script};
use crate::state::RULES;

/// Maximum number of operations of one request. A request with so many operations can be within etcd's size
/// limit of 1.5 MiB.
const OPS_MAX: usize = 60_000;
/// Maximum number of groups of operations that one input creates.
const GROUPS_MAX: usize = 64;
/// Default of etcd's `--max-txn-ops`.
const USUAL_OPS_MAX: usize = 128;
/// Number of keys in the store to which transactions are applied.
const STORED_KEYS: usize = 2_000;
const STORED_VALUE_BYTES: usize = 500;

/// Order of the keys of a group.
#[derive(Clone, Copy)]
enum Keys {
    Same,
    Rising,
    Falling,
    Scattered,
    /// Keys with a common prefix of this many bytes.
    Prefixed(usize),
}

impl Keys {
    fn key(self, number: usize) -> Bytes {
        match self {
            Keys::Same => Bytes::from_static(b"same"),
            Keys::Rising => format!("k{number:07}").into(),
            Keys::Falling => format!("k{:07}", 9_999_999 - number).into(),
            Keys::Scattered => {
                format!("k{:016x}", (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)).into()
            }
            Keys::Prefixed(len) => format!("{}{number:07}", "p".repeat(len)).into(),
        }
    }
}

/// Numbers of operations and groups that the script may still create.
struct Allowance {
    ops: usize,
    groups: usize,
}

fn keys(script: &mut Script<'_>) -> Keys {
    match script.below(5) {
        0 => Keys::Same,
        1 => Keys::Rising,
        2 => Keys::Falling,
        3 => Keys::Scattered,
        _ => Keys::Prefixed(usize::from(script.u8())),
    }
}

fn end(script: &mut Script<'_>, key: &Bytes) -> Bytes {
    match script.below(4) {
        0 | 1 => Bytes::new(),
        2 => Bytes::from_static(b"\0"),
        _ => [key.as_ref(), b"z"].concat().into(),
    }
}

fn ops(script: &mut Script<'_>, left: &mut Allowance, depth: usize) -> Vec<RequestOp> {
    let mut all = Vec::new();
    while left.groups > 0 && left.ops > 0 && !script.is_done() {
        left.groups -= 1;
        let (kind, keys) = (script.below(6), keys(script));
        if kind == 5 {
            break;
        }
        if kind == 4 && depth > 0 {
            left.ops -= 1;
            let (success, failure) = (ops(script, left, depth - 1), ops(script, left, depth - 1));
            let txn = TxnRequest { compare: Vec::new(), success, failure };
            all.push(RequestOp { request: Some(Request::RequestTxn(txn)) });
            continue;
        }
        let count = (1usize << script.below(17)).min(left.ops);
        left.ops -= count;
        let (first, ending) = (usize::from(script.u16()), script.u8());
        for number in first..first + count {
            let key = keys.key(number);
            let range_end = end(&mut Script::new(&[ending]), &key);
            let request = match kind {
                0 | 1 => Request::RequestPut(PutRequest { key, ..PutRequest::default() }),
                2 => Request::RequestDeleteRange(DeleteRangeRequest { key, range_end, prev_kv: true }),
                _ => Request::RequestRange(RangeRequest { key, range_end, ..RangeRequest::default() }),
            };
            all.push(RequestOp { request: Some(request) });
        }
    }
    all
}

fn txn(script: &mut Script<'_>) -> TxnRequest {
    let mut left = Allowance { ops: OPS_MAX, groups: GROUPS_MAX };
    let compares = (1usize << script.below(14)) - 1;
    let keys = keys(script);
    let compare = |number| Compare {
        key: keys.key(number),
        target_union: Some(TargetUnion::ModRevision(1)),
        ..Compare::default()
    };
    TxnRequest {
        compare: (0..compares).map(compare).collect(),
        success: ops(script, &mut left, 60),
        failure: ops(script, &mut left, 60),
    }
}

/// Fails if the processor time exceeds `factor` times the decoding time plus `constant`, or if the memory
/// exceeds `bytes`.
fn hold(what: &str, cost: Cost, decoding: Duration, factor: u32, constant: Duration, bytes: usize) {
    let cpu_max = decoding * factor + constant;
    assert!(cost.cpu <= cpu_max, "{what} took {:?}, and decoding the same {decoding:?}", cost.cpu);
    assert!(cost.peak_bytes <= bytes, "{what} held {} bytes of {bytes}", cost.peak_bytes);
}

/// Returns a state machine with keys in it.
fn stored(journal: &Journal) -> Machine {
    let mut machine = Machine::new(RULES);
    for number in 0..STORED_KEYS {
        let put = PutRequest {
            key: Keys::Rising.key(number),
            value: vec![7; STORED_VALUE_BYTES].into(),
            ..PutRequest::default()
        };
        let request = InternalRaftRequest {
            header: Some(RequestHeader { id: 1, ..RequestHeader::default() }),
            put: Some(put),
            ..InternalRaftRequest::default()
        };
        let data = Bytes::from(request.encode_to_vec());
        let location = journal.append(&data);
        let index = machine.applied_index + 1;
        machine
            .apply(Command { index, term: Term(1), data: &data, location }, journal, false)
            .expect("a put can be applied");
    }
    machine
}

/// Fuzz target for transactions: checks a transaction as a member does before a proposal, and then applies it
/// without making a response. Both steps must stay within their budgets of time and memory.
pub fn run_transactions(data: &[u8]) {
    let txn = txn(&mut Script::new(data));
    let request = InternalRaftRequest {
        header: Some(RequestHeader { id: 1, ..RequestHeader::default() }),
        txn: Some(txn.clone()),
        ..InternalRaftRequest::default()
    };
    let encoded = Bytes::from(request.encode_to_vec());
    let bytes = encoded.len();
    let (decoded, decoding) = measure(|| InternalRaftRequest::decode(encoded.clone()));
    let constant = Duration::from_millis(60);
    let held = 64 * bytes + (1 << 20);
    for ops_max in [USUAL_OPS_MAX, usize::MAX] {
        let (_, cost) = measure(|| check::txn(&txn, ops_max).is_ok());
        hold("checking", cost, decoding.cpu, 60, constant, held);
    }
    let (_, cost) =
        measure(|| (check::txn_cost(&txn), check::txn_is_read_only(&txn), check::txn_is_serializable(&txn)));
    hold("looking through", cost, decoding.cpu, 60, constant, held);
    if check::txn(&txn, USUAL_OPS_MAX).is_err() || decoded.is_err() {
        return;
    }
    let journal = Journal::default();
    let mut machine = stored(&journal);
    let location = journal.append(&encoded);
    let command = Command { index: machine.applied_index + 1, term: Term(1), data: &encoded, location };
    let (applied, cost) = measure(|| machine.apply(command, &journal, false).map(drop));
    assert!(applied.is_ok(), "what passed the check can be applied: {applied:?}");
    // Allow 1000 bytes per stored key, because deleting all keys writes a new version of each key. The values
    // that ranges read take no memory, because no response is made.
    let held = held + STORED_KEYS * 1000;
    hold("applying", cost, decoding.cpu, 60, Duration::from_millis(500), held);
}

/// Returns seeds with puts and deletes in both branches, deep nesting, and ranges of all keys.
pub fn seeds_transactions() -> Vec<Vec<u8>> {
    let group = |scribe: Scribe, kind: u8, keys: u8, count: u8, ending: u8| {
        scribe.u8(kind).u8(keys).u8(count).raw(&[0, 0]).u8(ending)
    };
    let begin = || Scribe::default().u8(0).u8(1);
    // Numbers in a script. Kinds: 0 put, 2 delete, 3 range, 4 nested transaction, 5 end of a branch. Keys: 1
    // rising, 3 scattered.
    let puts_and_deletes = |keys: u8| {
        let then = group(group(begin(), 0, 1, 14, 0), 2, keys, 14, 3).u8(5).u8(0);
        group(group(then, 0, 3, 14, 0), 2, keys, 14, 3).done()
    };
    let mut chain = begin();
    for _ in 0..40 {
        chain = chain.u8(4).u8(0);
    }
    let branches = (0..12)
        .fold(begin(), |scribe, _| group(group(scribe.u8(4).u8(0), 0, 3, 6, 0), 2, 1, 6, 0).u8(5).u8(0));
    vec![
        puts_and_deletes(1),
        puts_and_deletes(3),
        group(chain, 0, 1, 16, 0).done(),
        branches.done(),
        group(begin(), 3, 1, 6, 2).done(),
        Scribe::default().u8(13).u8(3).done(),
    ]
}

/// Fuzz target for connections: a few KiB from a client must not cost seconds or many megabytes.
pub fn run_connections(data: &[u8]) {
    let ((), cost) = measure(|| front_port::run_http2(data));
    let bytes = 200 * data.len() + (8 << 20);
    hold("a connection", cost, Duration::ZERO, 1, Duration::from_millis(800), bytes);
}

/// Returns the seeds of the HTTP/2 target, and seeds with long sequences of frames.
pub fn seeds_connections() -> Vec<Vec<u8>> {
    let mut seeds = front_port::seeds_http2();
    let frames = |kind: u8, flags: u8, payload: &[u8], count: usize| {
        let begin = Scribe::default().u8(1).u8(0).u8(4).u8(0).u8(0).run(&[]);
        (0..count)
            .fold(begin, |scribe, n| scribe.u8(kind).u8(flags).u8((2 * n + 1) as u8).run(payload))
            .done()
    };
    seeds.push(frames(4, 0, &[], 1000));
    seeds.push(frames(6, 0, &[0; 8], 500));
    seeds.push(frames(8, 0, &[0, 0, 0, 1], 500));
    seeds.push(frames(1, 4, &[0x82, 0x86, 0x84], 120));
    seeds
}
