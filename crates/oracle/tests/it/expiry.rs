//! Hand-made histories of leases that should have ended.

use mainstay_oracle::{
    Delete, Event, Header, History, KeyValue, Kind, Operation, Outcome, Put, Range, RangeResult, Request,
    Response, Watch, WatchAnswer, WatchResponse, check,
};

use crate::script::{SECOND, no_watch};

const TTL: i64 = 5;

fn add(
    history: &mut History,
    second: u64,
    (revision, term): (i64, u64),
    request: Request,
    response: Response,
) {
    let call = second * SECOND;
    let id = history.operations.last().map_or(0, |op| op.id + 1);
    history.operations.push(Operation {
        id,
        client: 1,
        member: 1,
        life: 1,
        call,
        returned: call + 1,
        request,
        outcome: Outcome::Done(Header { revision, term }, response),
        fence: None,
    });
}

/// A lease of five seconds is granted in the first second, and gets a key in the second.
fn attached() -> History {
    let mut history = History::default();
    let grant = Request::Grant { id: 7, ttl: TTL };
    add(&mut history, 1, (1, 2), grant, Response::Granted { id: 7, ttl: TTL });
    let put = Request::Put(Put { key: b"k".to_vec(), value: b"v".to_vec(), lease: 7, ..Put::default() });
    add(&mut history, 2, (2, 2), put, Response::Put(None));
    history
}

fn get(history: &mut History, second: u64, term: u64, serializable: bool) {
    let (key, value) = (b"k".to_vec(), b"v".to_vec());
    let kv = KeyValue { key: key.clone(), value, create_revision: 2, mod_revision: 2, version: 1, lease: 7 };
    let result = RangeResult { kvs: vec![kv], more: false, count: 1 };
    let request = Request::Range(Range { key, serializable, ..Range::default() });
    add(history, second, (2, term), request, Response::Range(result));
}

fn renew(history: &mut History, second: u64) {
    add(history, second, (2, 2), Request::KeepAlive { id: 7 }, Response::Renewed { ttl: TTL });
}

/// Returns the violations found if leases must end within `expire_by` seconds after their time to live.
fn found(history: &History, expire_by: u64) -> Vec<(Kind, Vec<u64>)> {
    let mut history = history.clone();
    history.settings.expire_by = expire_by * SECOND;
    let verdict = check(&history);
    assert!(verdict.undecided.is_empty(), "{:?}", verdict.undecided);
    verdict.violations.into_iter().map(|violation| (violation.kind, violation.operations)).collect()
}

#[test]
fn a_lease_that_is_still_there_long_after_its_time_is_late() {
    let mut history = attached();
    get(&mut history, 10, 2, false);
    assert_eq!(found(&history, 0), [], "it is not asked");
    assert_eq!(found(&history, 3), [(Kind::LeaseLate, vec![2])]);
    assert_eq!(found(&history, 4), []);
    // Later operations do not matter, as long as the keys were not deleted.
    let answer = Response::Range(RangeResult::default());
    let other = Request::Range(Range { key: b"other".to_vec(), ..Range::default() });
    add(&mut history, 20, (2, 2), other, answer);
    assert_eq!(found(&history, 13), [(Kind::LeaseLate, vec![3])]);
    assert_eq!(found(&history, 14), []);
}

#[test]
fn a_lease_that_was_renewed_or_may_have_been_is_not_late() {
    let mut history = attached();
    renew(&mut history, 6);
    get(&mut history, 12, 2, false);
    assert_eq!(found(&history, 1), []);
    history.operations[2].outcome = Outcome::Unknown("timeout".to_owned());
    assert_eq!(found(&history, 1), []);
    history.operations.remove(2);
    assert_eq!(found(&history, 1), [(Kind::LeaseLate, vec![3])]);
    // A later renewal is no excuse.
    renew(&mut history, 13);
    assert_eq!(found(&history, 1), [(Kind::LeaseLate, vec![3])]);
}

#[test]
fn a_new_leader_gives_every_lease_its_time_again() {
    let mut history = attached();
    get(&mut history, 6, 3, false);
    get(&mut history, 12, 3, false);
    assert_eq!(found(&history, 1), []);
    get(&mut history, 13, 3, false);
    assert_eq!(found(&history, 1), [(Kind::LeaseLate, vec![4])]);
}

#[test]
fn a_read_of_an_old_state_proves_nothing() {
    let mut history = attached();
    get(&mut history, 10, 2, true);
    assert_eq!(found(&history, 1), []);
}

#[test]
fn a_lease_without_keys_is_not_asked_for() {
    let mut history = attached();
    let delete = Request::Delete(Delete { key: b"k".to_vec(), ..Delete::default() });
    let gone = mainstay_oracle::DeleteResult { deleted: 1, prev_kvs: Vec::new() };
    add(&mut history, 4, (3, 2), delete, Response::Delete(gone));
    let put = Request::Put(Put { key: b"k".to_vec(), value: b"w".to_vec(), ..Put::default() });
    add(&mut history, 20, (4, 2), put, Response::Put(None));
    assert_eq!(found(&history, 1), []);
    // If the deletion itself comes late, it still found the key.
    history.operations[2].call = 10 * SECOND;
    history.operations[2].returned = 11 * SECOND;
    assert_eq!(found(&history, 1), [(Kind::LeaseLate, vec![2])]);
}

#[test]
fn a_lease_is_not_gone_because_a_write_of_unknown_outcome_may_have_put_a_key_on_it() {
    let mut history = attached();
    let grant = Request::Grant { id: 8, ttl: 100 };
    add(&mut history, 2, (2, 2), grant, Response::Granted { id: 8, ttl: 100 });
    // One of these writes made the third revision, and no client saw which.
    for (key, lease) in [(b"k", 8), (b"j", 0)] {
        let put = Put { key: key.to_vec(), value: b"w".to_vec(), lease, ..Put::default() };
        add(&mut history, 3, (3, 2), Request::Put(put), Response::Put(None));
        history.operations.last_mut().expect("it was added").outcome = Outcome::Unknown("timeout".to_owned());
    }
    let other = Request::Range(Range { key: b"other".to_vec(), ..Range::default() });
    add(&mut history, 4, (3, 2), other, Response::Range(RangeResult::default()));
    // With the fourth revision the key is gone.
    let kv = KeyValue { key: b"k".to_vec(), mod_revision: 4, ..KeyValue::default() };
    let events = vec![Event { deleted: true, kv, prev_kv: None }];
    let answer = WatchAnswer::Events { events, fragment: false };
    let created = WatchResponse { at: 29 * SECOND, revision: 3, answer: WatchAnswer::Created };
    let told = WatchResponse { at: 30 * SECOND, revision: 4, answer };
    let responses = vec![created, told];
    history.watches.push(Watch { key: b"k".to_vec(), start_revision: 4, responses, ..no_watch() });
    assert_eq!(found(&history, 26), []);
    history.operations.swap(3, 4);
    assert_eq!(found(&history, 26), []);
}
