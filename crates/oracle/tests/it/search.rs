//! Compares the judge with a search that does not use revisions: all orders in which the operations of a
//! small history can have happened are tried, as Wing and Gong do ("Testing and verifying concurrent
//! objects", 1993).

use std::collections::HashSet;

use mainstay_oracle::{
    Header, History, KeyValue, Operation, Outcome, Put, Range, RangeResult, Request, Response, check,
};
use testkit::Random;

const KEY: &[u8] = b"k";

#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    revision: i64,
    value: Option<(Vec<u8>, i64)>,
}

/// Executes an operation; returns `None` if its recorded response differs.
fn step(state: &State, op: &Operation) -> Option<State> {
    let mut next = state.clone();
    if let Request::Put(put) = &op.request {
        next.revision += 1;
        next.value = Some((put.value.clone(), next.revision));
    }
    let Outcome::Done(header, response) = &op.outcome else { return Some(next) };
    if header.revision != next.revision {
        return None;
    }
    if let Response::Range(result) = response {
        let got = result.kvs.first().map(|kv| (kv.value.clone(), kv.mod_revision));
        if got != next.value {
            return None;
        }
    }
    Some(next)
}

fn is_linearizable(ops: &[Operation], done: u32, state: &State, seen: &mut HashSet<(u32, State)>) -> bool {
    if !seen.insert((done, state.clone())) {
        return false;
    }
    let left = || ops.iter().enumerate().filter(|(at, _)| done & (1 << at) == 0);
    // An operation with an unknown outcome need not happen, and has no end.
    let first_return = left().filter(|(_, op)| is_done(op)).map(|(_, op)| op.returned).min();
    let Some(first_return) = first_return else { return true };
    let mut ready = left().filter(|(_, op)| op.call <= first_return);
    ready
        .any(|(at, op)| step(state, op).is_some_and(|next| is_linearizable(ops, done | 1 << at, &next, seen)))
}

fn is_done(op: &Operation) -> bool {
    matches!(op.outcome, Outcome::Done(..))
}

/// A small history, mostly correct, with a few modifications.
fn small(dice: &mut Random) -> Vec<Operation> {
    let mut state = State { revision: 1, value: None };
    let mut version = 0;
    let mut ops = Vec::new();
    for id in 0..4 + dice.below(5) {
        let now = 100 + id * 10;
        let (call, returned) = (now - dice.below(25), now + dice.below(25));
        let is_put = dice.one_in(2);
        let value = format!("v{id}").into_bytes();
        let request = match is_put {
            true => Request::Put(Put { key: KEY.to_vec(), value, ..Put::default() }),
            false => Request::Range(Range { key: KEY.to_vec(), ..Range::default() }),
        };
        let outcome = Outcome::Unknown(String::new());
        let mut op =
            Operation { id, client: id, member: 1, life: 0, call, returned, request, outcome, fence: None };
        let happens = !is_put || !dice.one_in(8);
        if happens {
            state = step(&state, &op).expect("nothing is answered yet");
            version += i64::from(is_put);
        }
        if happens && !dice.one_in(5) {
            let kv = state.value.clone().map(|(value, mod_revision)| KeyValue {
                key: KEY.to_vec(),
                value,
                create_revision: 2,
                mod_revision,
                version,
                lease: 0,
            });
            let kvs: Vec<KeyValue> = kv.into_iter().collect();
            let range = Response::Range(RangeResult { count: kvs.len() as i64, kvs, more: false });
            let response = if is_put { Response::Put(None) } else { range };
            op.outcome = Outcome::Done(Header { revision: state.revision, term: 1 }, response);
        }
        ops.push(op);
    }
    for _ in 0..dice.below(3) {
        let at = dice.below(ops.len() as u64) as usize;
        match dice.below(3) {
            0 => ops[at].returned = ops[at].call + dice.below(10),
            1 => {
                let length = ops[at].returned - ops[at].call;
                ops[at].call = 60 + dice.below(120);
                ops[at].returned = ops[at].call + length;
            }
            _ => {
                if let Outcome::Done(header, _) = &mut ops[at].outcome {
                    header.revision = (header.revision + dice.below(3) as i64 - 1).max(1);
                }
            }
        }
    }
    ops
}

#[test]
fn the_judge_agrees_with_a_search_of_all_orders() {
    let mut dice = Random::new(4);
    let (mut right, mut wrong) = (0, 0);
    for round in 0..20_000 {
        let operations = small(&mut dice);
        let start = State { revision: 1, value: None };
        let expected = is_linearizable(&operations, 0, &start, &mut HashSet::new());
        let history = History { operations, ..History::default() };
        let verdict = check(&history);
        assert!(verdict.undecided.is_empty(), "round {round}: {:?}", verdict.undecided);
        let found = &verdict.violations;
        assert_eq!(found.is_empty(), expected, "round {round}: {found:#?}\n{}", history.to_lines());
        *(if expected { &mut right } else { &mut wrong }) += 1;
    }
    assert!(right > 4000 && wrong > 4000, "{right} right, {wrong} wrong");
}
