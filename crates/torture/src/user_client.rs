//! Runs clients whose permissions change during the run. They send requests that their permissions allow, and
//! requests that the server must refuse.

use std::sync::Arc;
use std::time::Duration;

use oracle::{Action, Compare, Delete, Outcome, Put, Range, Relation, Request, Target, Txn};
use tokio::sync::watch;

use crate::phase::{Phase, pause};
use crate::rng::Rng;
use crate::security::Identity;
use crate::session::{ClientContext, Session};

/// Number of equal parts into which the keys under changing permissions are divided.
const PARTS: u64 = 6;
/// Number of operations, of all clients together, after which the clients change to new keys. This limits how
/// many operations on the same keys the oracle has to order.
const GROUP_OPERATIONS: u64 = 1500;
/// Delay after a request with an unknown outcome.
const REST: Duration = Duration::from_millis(100);

/// Returns the first key of a part of the keys, which is also the end of the part before it.
fn part(number: u64) -> Vec<u8> {
    format!("u/{number}/").into_bytes()
}

/// Draws a range of keys for a permission or a request: one part, several parts, or all keys under changing
/// permissions.
pub fn some_range(rng: &mut Rng) -> (Vec<u8>, Vec<u8>) {
    let from = rng.below(PARTS);
    let to = rng.between(from + 1, PARTS);
    if rng.percent(15) { (b"u/".to_vec(), b"u0".to_vec()) } else { (part(from), part(to)) }
}

/// Sends requests until the phase ends, while there is a user for the identity.
pub async fn work(
    context: Arc<ClientContext>,
    identity: Identity,
    (number, member): (u64, usize),
    mut rng: Rng,
    mut phase: watch::Receiver<Phase>,
) {
    let mut session = Session::of(&context, identity, number, member);
    while pause(&mut phase, Duration::from_millis(rng.between(20, 180))).await {
        if !context.security.is_there(identity) {
            continue;
        }
        if rng.percent(3) {
            // Sometimes change to another member, because a token must be valid at every member.
            session.move_to(rng.index(context.addresses.len()));
        }
        let id = context.record.number();
        let request = invent(&mut rng, id);
        let outcome = session.ask_numbered(id, request, None).await;
        if matches!(outcome, Outcome::Unknown(_)) && !pause(&mut phase, REST).await {
            return;
        }
    }
}

fn invent(rng: &mut Rng, id: u64) -> Request {
    let group = id / GROUP_OPERATIONS;
    let key = |part: u64| format!("u/{part}/{group:06}").into_bytes();
    let (one, other) = (rng.below(PARTS), rng.below(PARTS));
    let value = |nth: usize| format!("v{id}.{nth}").into_bytes();
    let prev_kv = rng.percent(20);
    let put = |part: u64, nth: usize| Put { key: key(part), value: value(nth), prev_kv, ..Put::default() };
    let get = |part: u64| Range { key: key(part), ..Range::default() };
    match rng.below(20) {
        0..8 => Request::Put(put(one, 0)),
        8..12 => Request::Range(get(one)),
        12 => Request::Range(Range { serializable: true, ..get(one) }),
        13 | 14 => {
            let (key, range_end) = some_range(rng);
            Request::Range(Range { key, range_end, ..Range::default() })
        }
        15 | 16 => Request::Delete(Delete { key: key(one), prev_kv, ..Delete::default() }),
        _ => {
            let target = if rng.percent(50) { Target::Version(0) } else { Target::Create(1) };
            let compare =
                vec![Compare { key: key(one), range_end: Vec::new(), relation: Relation::Greater, target }];
            let success = vec![Action::Put(put(one, 0))];
            let failure =
                vec![if rng.percent(50) { Action::Put(put(other, 1)) } else { Action::Range(get(other)) }];
            Request::Txn(Txn { compare, success, failure })
        }
    }
}
