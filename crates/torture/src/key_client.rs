//! Runs a client that reads and writes a few keys. Other clients use the same keys at the same time, so
//! requests conflict.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oracle::{
    Action, ActionResult, Compare, Delete, KeyValue, Order, Outcome, Put, Range, Relation, Request, Response,
    SortTarget, Target, Txn,
};
use tokio::sync::watch;

use crate::phase::{Phase, pause_until};
use crate::rng::Rng;
use crate::session::{ClientContext, Session};

/// Number of operations, of all clients together, after which the clients change to new keys. This limits how
/// many operations on the same keys the oracle has to order.
const GROUP_OPERATIONS: u64 = 1500;
/// Number of keys that clients use at a time. There are few, so that clients often use the same one.
const GROUP_KEYS: usize = 6;
/// Delay after a failed call. A member that is down refuses connections immediately, so without a delay the
/// client would retry in a busy loop.
const REST: Duration = Duration::from_millis(60);

/// The newest revisions that the clients have seen, of the store and of each key. Requests that depend on the
/// current state use them.
#[derive(Default)]
pub struct Known {
    inner: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    group: u64,
    mod_revisions: BTreeMap<Vec<u8>, i64>,
    newest: i64,
}

impl Known {
    /// Returns the newest revision that any client has seen.
    pub fn newest(&self) -> i64 {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).newest
    }

    fn mod_revision(&self, key: &[u8]) -> i64 {
        let seen = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        seen.mod_revisions.get(key).copied().unwrap_or_default()
    }

    fn learn(&self, group: u64, request: &Request, outcome: &Outcome) {
        let Outcome::Done(header, response) = outcome else { return };
        let mut seen = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        seen.newest = seen.newest.max(header.revision);
        if group > seen.group {
            seen.group = group;
            seen.mod_revisions.clear();
        }
        let mut note = |key: &[u8], revision: i64| {
            let known = seen.mod_revisions.entry(key.to_vec()).or_default();
            *known = revision.max(*known);
        };
        let mut read = |kvs: &[KeyValue]| kvs.iter().for_each(|kv| note(&kv.key, kv.mod_revision));
        match (request, response) {
            (Request::Range(range), Response::Range(result)) if range.revision <= 0 => read(&result.kvs),
            (Request::Put(put), Response::Put(_)) => note(&put.key, header.revision),
            (Request::Txn(txn), Response::Txn(result)) => {
                let branch = if result.succeeded { &txn.success } else { &txn.failure };
                for (action, result) in branch.iter().zip(&result.results) {
                    match (action, result) {
                        (Action::Put(put), _) => note(&put.key, header.revision),
                        (_, ActionResult::Range(result)) => {
                            result.kvs.iter().for_each(|kv| note(&kv.key, kv.mod_revision));
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
}

/// Sends requests to a member until the phase ends.
pub async fn work(
    context: Arc<ClientContext>,
    known: Arc<Known>,
    number: u64,
    member: usize,
    every: Duration,
    mut rng: Rng,
    mut phase: watch::Receiver<Phase>,
) {
    let mut session = Session::new(&context, number, member);
    let mut due = tokio::time::Instant::now() + every.mul_f64(rng.below(1000) as f64 / 1000.0);
    loop {
        if !pause_until(&mut phase, due).await {
            return;
        }
        // Skip requests that became due while the member did not answer, so that they are not sent in a burst
        // now.
        due = (due + every).max(tokio::time::Instant::now());
        let id = context.record.number();
        let group = id / GROUP_OPERATIONS;
        let request = invent(&mut rng, &known, id, group);
        let outcome = session.ask_numbered(id, request.clone(), None).await;
        known.learn(group, &request, &outcome);
        if !matches!(outcome, Outcome::Done(..)) {
            due = due.max(tokio::time::Instant::now() + REST);
        }
    }
}

/// Draws the next request of a client. Every value that it puts is different, so that the oracle knows which
/// put a read has seen.
fn invent(rng: &mut Rng, known: &Known, id: u64, group: u64) -> Request {
    let mut order: Vec<usize> = (0..GROUP_KEYS).collect();
    rng.shuffle(&mut order);
    let key =
        |nth: usize| format!("g{group:06}/{}", order.get(nth).copied().unwrap_or_default()).into_bytes();
    let prefix = format!("g{group:06}/").into_bytes();
    let prefix_end = format!("g{group:06}0").into_bytes();
    let filling = if rng.percent(4) { rng.between(200, 4000) as usize } else { 0 };
    let value = |nth: usize| {
        let mut value = format!("v{id}.{nth}").into_bytes();
        value.resize(value.len() + filling, b'.');
        value
    };
    let prev_kv = rng.percent(50);
    let put = |nth: usize| Put { key: key(nth), value: value(nth), prev_kv, ..Put::default() };
    let get = |nth: usize| Range { key: key(nth), ..Range::default() };
    let delete = |nth: usize| Delete { key: key(nth), prev_kv: true, ..Delete::default() };
    let all = || Range { key: prefix.clone(), range_end: prefix_end.clone(), ..Range::default() };
    match rng.below(100) {
        0..25 => Request::Put(put(0)),
        25..43 => Request::Range(get(0)),
        43..48 => Request::Range(Range { serializable: true, ..get(0) }),
        48..64 => {
            let compare = vec![guard(rng, known, key(0))];
            let (success, failure) = (vec![Action::Put(put(0))], vec![Action::Range(get(0))]);
            Request::Txn(Txn { compare, success, failure })
        }
        64..71 => Request::Delete(delete(0)),
        71..73 => Request::Delete(Delete { key: key(0), range_end: key(1), prev_kv: true }),
        73..78 => {
            let success = vec![
                Action::Put(put(0)),
                Action::Put(put(1)),
                Action::Delete(delete(2)),
                Action::Range(get(3)),
            ];
            Request::Txn(Txn { compare: Vec::new(), success, failure: Vec::new() })
        }
        78..84 => {
            let compare = vec![guard(rng, known, key(0)), guard(rng, known, key(1))];
            let success = vec![Action::Put(put(0)), Action::Put(put(1)), Action::Put(put(2))];
            let failure = vec![Action::Range(get(0)), Action::Range(get(1))];
            Request::Txn(Txn { compare, success, failure })
        }
        84..86 => {
            let inner = Txn {
                compare: vec![guard(rng, known, key(1))],
                success: vec![Action::Delete(delete(1)), Action::Range(get(1))],
                failure: vec![Action::Put(put(1))],
            };
            let success = vec![Action::Put(put(0)), Action::Txn(inner), Action::Range(all())];
            Request::Txn(Txn { compare: Vec::new(), success, failure: Vec::new() })
        }
        86..90 => {
            let success = (0..3).map(|nth| Action::Range(get(nth))).collect();
            Request::Txn(Txn { compare: Vec::new(), success, failure: Vec::new() })
        }
        90..93 => Request::Range(all()),
        93..95 => {
            let target = [
                SortTarget::Key,
                SortTarget::Version,
                SortTarget::Create,
                SortTarget::Mod,
                SortTarget::Value,
            ];
            let target = target.get(rng.index(target.len())).copied().unwrap_or_default();
            let order = if rng.percent(50) { Order::Ascend } else { Order::Descend };
            let limit = rng.between(0, 4) as i64;
            // Use no limit if keys may have equal sort values: their order is not defined, so the result
            // would not be determined.
            let limit = if matches!(target, SortTarget::Key | SortTarget::Value) { limit } else { 0 };
            Request::Range(Range { order, target, limit, ..all() })
        }
        95..96 => Request::Range(Range { keys_only: true, limit: rng.between(0, 3) as i64, ..all() }),
        96..97 => Request::Range(Range { count_only: true, ..all() }),
        // Read an old revision, which possibly is compacted, and sometimes a future one.
        _ => {
            let newest = known.newest();
            let revision = (newest + 20 - rng.between(0, 400) as i64).max(1);
            Request::Range(Range { revision, serializable: rng.percent(30), ..all() })
        }
    }
}

/// Draws a comparison that often holds, for a transaction.
fn guard(rng: &mut Rng, known: &Known, key: Vec<u8>) -> Compare {
    let revision = if rng.percent(10) { 0 } else { known.mod_revision(&key) };
    let (relation, target) = match rng.below(10) {
        0 => (Relation::Greater, Target::Version(0)),
        1 => (Relation::Equal, Target::Create(0)),
        2 => (Relation::Less, Target::Mod(revision + 1)),
        _ => (Relation::Equal, Target::Mod(revision)),
    };
    Compare { key, range_end: Vec::new(), relation, target }
}
