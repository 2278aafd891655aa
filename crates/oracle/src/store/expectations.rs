//! Tests that the model gives etcd's responses to each kind of request. The expected responses were written
//! by hand. They follow etcd's documentation or, where that is unclear, the responses of 3.5, 3.6 and 3.7
//! (`tests/it/recorded.rs`).

use super::*;
use crate::Relation;

/// Returns a store at revision 11 with these keys:
///
/// | key | create | mod | version | value | lease |
/// |-----|--------|-----|---------|-------|-------|
/// | a   | 3      | 6   | 3       | 5     |       |
/// | b   | 4      | 11  | 2       | 4     | 7     |
/// | c   | 2      | 2   | 1       | 2     |       |
/// | d   | 7      | 10  | 4       | 0     |       |
fn filled() -> Store {
    let mut store = Store::new();
    for (key, value) in [("c", "2"), ("a", "3")] {
        commit(&mut store, Request::Put(put(key, value)));
    }
    commit(&mut store, Request::Put(Put { lease: 7, ..put("b", "1") }));
    for (key, value) in [("a", "0"), ("a", "5"), ("d", "9"), ("d", "9"), ("d", "9"), ("d", "0")] {
        commit(&mut store, Request::Put(put(key, value)));
    }
    commit(&mut store, Request::Put(Put { ignore_lease: true, ..put("b", "4") }));
    assert_eq!(store.revision, 11);
    store
}

fn put(key: &str, value: &str) -> Put {
    Put { key: key.into(), value: value.into(), ..Put::default() }
}

fn delete(key: &str, range_end: &str) -> Delete {
    Delete { key: key.into(), range_end: range_end.into(), prev_kv: true }
}

fn all() -> Range {
    Range { key: vec![0], range_end: vec![0], ..Range::default() }
}

fn of(key: &str, range_end: &str) -> Range {
    Range { key: key.into(), range_end: range_end.into(), ..Range::default() }
}

fn sorted(target: SortTarget, order: Order, limit: i64) -> Range {
    Range { target, order, limit, ..all() }
}

fn evaluate(store: &Store, request: Request) -> Result<Effect, Refusal> {
    store.evaluate(&request).expect("a request of keys")
}

fn commit(store: &mut Store, request: Request) -> Response {
    let effect = evaluate(store, request).expect("it is not refused");
    if !effect.changes.is_empty() {
        store.commit(effect.changes);
    }
    effect.response
}

fn read(store: &Store, range: Range) -> RangeResult {
    match evaluate(store, Request::Range(range)).expect("it is not refused") {
        Effect { changes, response: Response::Range(result) } if changes.is_empty() => result,
        other => panic!("{other:?} is no answer to a range"),
    }
}

/// Returns the keys of a result, an ellipsis if there are more, and the count: `a b … of 4`.
fn brief(result: &RangeResult) -> String {
    let mut words: Vec<String> =
        result.kvs.iter().map(|kv| String::from_utf8_lossy(&kv.key).into_owned()).collect();
    if result.more {
        words.push("…".to_owned());
    }
    format!("{} of {}", words.join(" "), result.count)
}

#[track_caller]
fn gives(range: Range, expected: &str) {
    assert_eq!(brief(&read(&filled(), range)), expected);
}

fn kv(
    key: &str,
    value: &str,
    (create_revision, mod_revision, version): (i64, i64, i64),
    lease: i64,
) -> KeyValue {
    KeyValue { key: key.into(), value: value.into(), create_revision, mod_revision, version, lease }
}

#[test]
fn keys_come_in_the_order_asked_for() {
    use SortTarget::{Create, Key, Mod, Value, Version};
    for (target, ascending, descending) in [
        (Key, "a b c d of 4", "d c b a of 4"),
        (Version, "c b a d of 4", "d a b c of 4"),
        (Create, "c a b d of 4", "d b a c of 4"),
        (Mod, "c a d b of 4", "b d a c of 4"),
        (Value, "d c b a of 4", "a b c d of 4"),
    ] {
        gives(sorted(target, Order::Ascend, 0), ascending);
        gives(sorted(target, Order::Descend, 0), descending);
        // If no order is requested, every target is sorted ascending.
        gives(sorted(target, Order::None, 0), ascending);
    }
}

#[test]
fn a_limit_cuts_after_an_order() {
    use SortTarget::{Key, Mod, Value, Version};
    gives(sorted(Value, Order::Descend, 2), "a b … of 4");
    gives(sorted(Value, Order::Ascend, 3), "d c b … of 4");
    gives(sorted(Value, Order::Ascend, 4), "d c b a of 4");
    gives(sorted(Version, Order::Ascend, 1), "c … of 4");
    gives(sorted(Mod, Order::Descend, 1), "b … of 4");
    gives(sorted(Key, Order::Descend, 3), "d c b … of 4");
    gives(sorted(Key, Order::None, 3), "a b c … of 4");
    gives(sorted(Key, Order::Ascend, 5), "a b c d of 4");
}

#[test]
fn a_limit_without_an_order_cuts_first_with_one_key_to_spare() {
    // a, b and c sorted by value; d, which has the lowest value, was cut off before sorting.
    gives(sorted(SortTarget::Value, Order::None, 2), "c b … of 4");
    gives(sorted(SortTarget::Version, Order::None, 1), "b … of 4");
    // A bound on revisions makes etcd sort before it cuts.
    gives(Range { min_mod_revision: 1, ..sorted(SortTarget::Value, Order::None, 2) }, "d c … of 4");
}

#[test]
fn bounds_on_revisions_are_inclusive_and_do_not_count() {
    gives(Range { min_mod_revision: 6, ..all() }, "a b d of 4");
    gives(Range { min_mod_revision: 7, ..all() }, "b d of 4");
    gives(Range { max_mod_revision: 6, ..all() }, "a c of 4");
    gives(Range { min_create_revision: 4, ..all() }, "b d of 4");
    gives(Range { max_create_revision: 3, ..all() }, "a c of 4");
    gives(Range { min_mod_revision: 6, max_mod_revision: 10, ..all() }, "a d of 4");
    gives(Range { min_mod_revision: 6, max_create_revision: 4, ..all() }, "a b of 4");
    gives(Range { min_mod_revision: 12, ..all() }, " of 4");
    // The limit counts only keys within the bounds.
    gives(Range { min_mod_revision: 6, limit: 1, ..all() }, "a … of 4");
    gives(Range { min_mod_revision: 6, limit: 3, ..all() }, "a b d of 4");
    gives(Range { max_mod_revision: 2, limit: 1, ..all() }, "c of 4");
}

#[test]
fn counting_gives_no_keys_and_naming_no_values() {
    gives(Range { count_only: true, ..all() }, " of 4");
    gives(Range { count_only: true, limit: 1, ..all() }, " of 4");
    gives(Range { count_only: true, min_mod_revision: 11, ..all() }, " of 4");
    let named = read(&filled(), Range { keys_only: true, limit: 2, ..of("b", "\0") });
    assert_eq!(named.kvs, [kv("b", "", (4, 11, 2), 7), kv("c", "", (2, 2, 1), 0)]);
    assert_eq!(brief(&named), "b c … of 3");
    // Keys are sorted by value before the values are removed.
    gives(Range { keys_only: true, ..sorted(SortTarget::Value, Order::Ascend, 2) }, "d c … of 4");
    // From 3.7 on the lease is left out too.
    let mut without = named.clone();
    without.kvs[0].lease = 0;
    let asked = Range { keys_only: true, limit: 2, ..of("b", "\0") };
    assert!(range_agrees(&asked, &without, &named));
    without.kvs[1].lease = 7;
    assert!(!range_agrees(&asked, &without, &named));
}

#[test]
fn ranges_are_of_one_key_up_to_a_key_or_without_end() {
    gives(of("b", ""), "b of 1");
    gives(of("e", ""), " of 0");
    gives(of("b", "d"), "b c of 2");
    gives(of("b", "\0"), "b c d of 3");
    gives(of("bb", "\0"), "c d of 2");
    gives(of("c", "b"), " of 0");
    gives(of("c", "c"), " of 0");
    gives(of("a", "b"), "a of 1");
}

#[test]
fn the_past_can_be_read_and_the_future_cannot() {
    let store = filled();
    let past = read(&store, Range { revision: 5, ..all() });
    let expected = [kv("a", "0", (3, 5, 2), 0), kv("b", "1", (4, 4, 1), 7), kv("c", "2", (2, 2, 1), 0)];
    assert_eq!(past, RangeResult { kvs: expected.to_vec(), more: false, count: 3 });
    assert_eq!(brief(&read(&store, Range { revision: 1, ..all() })), " of 0");
    assert_eq!(brief(&read(&store, Range { revision: -1, ..all() })), "a b c d of 4");
    assert_eq!(brief(&read(&store, Range { revision: 11, ..all() })), "a b c d of 4");
    let future = evaluate(&store, Request::Range(Range { revision: 12, ..all() }));
    assert_eq!(future, Err(Refusal::FutureRevision));
}

#[test]
fn comparisons_are_of_every_key_of_a_range_and_missing_keys_have_zeros() {
    use Relation::{Equal, Greater, Less, NotEqual};
    use Target::{Create, Lease, Mod, Value, Version};
    let value = |value: &str| Value(value.into());
    let store = filled();
    for (key, range_end, target, relation, expected) in [
        ("a", "", Version(3), Equal, true),
        ("a", "", Version(3), NotEqual, false),
        ("a", "", Version(2), Greater, true),
        ("a", "", Version(3), Greater, false),
        ("a", "", Version(4), Less, true),
        ("a", "", Create(3), Equal, true),
        ("a", "", Create(3), Less, false),
        ("a", "", Mod(6), Equal, true),
        ("a", "", Mod(7), Less, true),
        ("b", "", Lease(7), Equal, true),
        ("b", "", Lease(0), Equal, false),
        ("b", "", Lease(6), Greater, true),
        ("a", "", Lease(0), Equal, true),
        ("a", "", value("5"), Equal, true),
        ("a", "", value("5"), NotEqual, false),
        ("a", "", value("49"), Greater, true),
        ("a", "", value(""), Greater, true),
        // Comparisons of ranges.
        ("a", "c", Version(1), Greater, true),
        ("a", "d", Version(1), Greater, false),
        ("a", "c", Version(2), NotEqual, false),
        ("\0", "\0", Version(0), Greater, true),
        ("\0", "\0", Lease(0), Equal, false),
        ("c", "\0", Lease(0), Equal, true),
        ("b", "\0", value("5"), Less, true),
        ("b", "\0", value("4"), Less, false),
        // Comparisons of missing keys, and of ranges without keys.
        ("e", "", Version(0), Equal, true),
        ("e", "", Version(0), Greater, false),
        ("e", "", Create(0), Equal, true),
        ("e", "", Mod(1), Less, true),
        ("e", "", Lease(0), Equal, true),
        ("e", "", Lease(0), NotEqual, false),
        ("e", "", value(""), Equal, false),
        ("e", "", value("x"), NotEqual, false),
        ("e", "", value("x"), Less, false),
        ("e", "\0", Version(0), Equal, true),
        ("e", "\0", value(""), Equal, false),
        ("d", "c", Create(0), Equal, true),
    ] {
        let compare = Compare { key: key.into(), range_end: range_end.into(), relation, target };
        let txn = Txn { compare: vec![compare.clone()], ..Txn::default() };
        assert_eq!(store.succeeds(&txn), expected, "{compare:?}");
        // One comparison that does not hold is enough.
        let fails = Compare {
            key: b"a".to_vec(),
            range_end: Vec::new(),
            relation: Relation::Equal,
            target: Version(9),
        };
        assert!(!store.succeeds(&Txn { compare: vec![compare, fails], ..Txn::default() }));
    }
    assert!(store.succeeds(&Txn::default()));
}

#[test]
fn a_put_keeps_what_it_is_told_to_keep() {
    let mut store = filled();
    let before = kv("b", "4", (4, 11, 2), 7);
    let answer = commit(&mut store, Request::Put(Put { prev_kv: true, ignore_value: true, ..put("b", "") }));
    assert_eq!(answer, Response::Put(Some(before)));
    // The value is kept; the lease is removed because the request names none.
    assert_eq!(read(&store, of("b", "")).kvs, [kv("b", "4", (4, 12, 3), 0)]);
    assert!(!store.has_keys(7));
    commit(&mut store, Request::Put(Put { lease: 8, ..put("c", "x") }));
    commit(&mut store, Request::Put(Put { ignore_lease: true, ..put("c", "y") }));
    assert_eq!(read(&store, of("c", "")).kvs, [kv("c", "y", (2, 14, 3), 8)]);
    let answer = commit(&mut store, Request::Put(Put { prev_kv: true, ..put("e", "1") }));
    assert_eq!(answer, Response::Put(None));
    for put in [Put { ignore_value: true, ..put("f", "") }, Put { ignore_lease: true, ..put("f", "1") }] {
        assert_eq!(evaluate(&store, Request::Put(put)), Err(Refusal::KeyNotFound));
    }
}

#[test]
fn a_deletion_takes_a_range_and_a_key_begins_anew() {
    let mut store = filled();
    let answer = commit(&mut store, Request::Delete(delete("b", "\0")));
    let gone = [kv("b", "4", (4, 11, 2), 7), kv("c", "2", (2, 2, 1), 0), kv("d", "0", (7, 10, 4), 0)];
    assert_eq!(answer, Response::Delete(DeleteResult { deleted: 3, prev_kvs: gone.to_vec() }));
    assert_eq!(store.revision, 12);
    let keys: Vec<&[u8]> = store.changes(12).iter().map(|change| &*change.key).collect();
    assert_eq!(keys, [b"b", b"c", b"d"]);
    assert!(!store.has_keys(7));
    // If there is nothing to delete, no revision is made.
    let answer = commit(&mut store, Request::Delete(delete("b", "\0")));
    assert_eq!(answer, Response::Delete(DeleteResult::default()));
    assert_eq!(store.revision, 12);
    commit(&mut store, Request::Put(put("c", "new")));
    assert_eq!(read(&store, all()).kvs, [kv("a", "5", (3, 6, 3), 0), kv("c", "new", (13, 13, 1), 0)]);
    assert_eq!(brief(&read(&store, Range { revision: 11, ..all() })), "a b c d of 4");
    let answer = commit(&mut store, Request::Delete(Delete { prev_kv: false, ..delete("a", "b") }));
    assert_eq!(answer, Response::Delete(DeleteResult { deleted: 1, prev_kvs: Vec::new() }));
}

#[test]
fn a_transaction_compares_before_it_writes_and_reads_what_it_wrote() {
    let mut store = filled();
    let is_new = |key: &str| Compare {
        key: key.into(),
        range_end: Vec::new(),
        relation: Relation::Equal,
        target: Target::Version(0),
    };
    let inner = Txn {
        // Comparisons use the state before the whole transaction.
        compare: vec![is_new("e")],
        success: vec![
            Action::Range(of("d", "\0")),
            Action::Delete(delete("a", "b")),
            Action::Txn(Txn {
                compare: vec![is_new("a")],
                success: vec![Action::Put(put("x", "1"))],
                failure: vec![Action::Put(put("y", "2")), Action::Range(Range { count_only: true, ..all() })],
            }),
        ],
        failure: vec![],
    };
    let success = vec![
        Action::Put(Put { prev_kv: true, ..put("d", "6") }),
        Action::Put(put("e", "7")),
        Action::Txn(inner),
        Action::Range(Range { revision: 11, ..of("a", "") }),
    ];
    let request = Request::Txn(Txn { compare: vec![], success, failure: vec![] });
    let answer = commit(&mut store, request);
    let (d, e) = (kv("d", "6", (7, 12, 5), 0), kv("e", "7", (12, 12, 1), 0));
    let a = kv("a", "5", (3, 6, 3), 0);
    let one = |kv: &KeyValue| RangeResult { kvs: vec![kv.clone()], more: false, count: 1 };
    let deepest = vec![
        ActionResult::Put(None),
        ActionResult::Range(RangeResult { kvs: Vec::new(), more: false, count: 5 }),
    ];
    let inner = vec![
        ActionResult::Range(RangeResult { kvs: vec![d, e], more: false, count: 2 }),
        ActionResult::Delete(DeleteResult { deleted: 1, prev_kvs: vec![a.clone()] }),
        ActionResult::Txn(TxnResult { succeeded: false, results: deepest }),
    ];
    let results = vec![
        ActionResult::Put(Some(kv("d", "0", (7, 10, 4), 0))),
        ActionResult::Put(None),
        ActionResult::Txn(TxnResult { succeeded: true, results: inner }),
        ActionResult::Range(one(&a)),
    ];
    assert_eq!(answer, Response::Txn(TxnResult { succeeded: true, results }));
    assert_eq!(store.revision, 12);
    let keys: Vec<&[u8]> = store.changes(12).iter().map(|change| &*change.key).collect();
    assert_eq!(keys, [b"d", b"e", b"a", b"y"]);
}

#[test]
fn a_transaction_is_refused_for_what_its_branch_asks_and_not_for_the_other() {
    let store = filled();
    let future = Action::Range(Range { revision: 12, ..all() });
    let missing = Action::Put(Put { ignore_value: true, ..put("f", "") });
    let nested = Action::Txn(Txn { success: vec![missing.clone()], ..Txn::default() });
    for (action, refusal) in
        [(future, Refusal::FutureRevision), (missing, Refusal::KeyNotFound), (nested, Refusal::KeyNotFound)]
    {
        let write = Action::Put(put("a", "1"));
        let taken = Txn { success: vec![write.clone(), action.clone()], ..Txn::default() };
        assert_eq!(evaluate(&store, Request::Txn(taken)), Err(refusal));
        let passed_by = Txn { failure: vec![write, action], ..Txn::default() };
        let effect = evaluate(&store, Request::Txn(passed_by)).expect("it takes the other branch");
        assert!(effect.changes.is_empty());
    }
}

#[test]
fn a_lease_takes_its_keys_in_order_and_all_can_be_taken_back() {
    let mut store = filled();
    commit(&mut store, Request::Put(Put { lease: 7, ..put("a", "8") }));
    let end = store.lease_end(7);
    let changes: Vec<(&[u8], bool)> = end.iter().map(|change| (&*change.key, change.put.is_some())).collect();
    assert_eq!(changes, [(&b"a"[..], false), (&b"b"[..], false)]);
    store.commit(end);
    assert!(!store.has_keys(7));
    assert_eq!(brief(&read(&store, all())), "c d of 2");
    store.undo();
    assert!(store.has_keys(7));
    assert_eq!(brief(&read(&store, all())), "a b c d of 4");
    store.undo();
    assert_eq!(read(&store, all()), read(&filled(), all()));
    while store.revision > 1 {
        store.undo();
    }
    assert_eq!(brief(&read(&store, all())), " of 0");
    assert!(!store.has_keys(7));
}

#[test]
fn equals_may_come_in_any_order_and_any_of_them_may_be_cut_off() {
    let mut store = Store::new();
    for (key, value) in [("a", "1"), ("b", "0"), ("c", "1"), ("d", "1")] {
        commit(&mut store, Request::Put(put(key, value)));
    }
    let asked = sorted(SortTarget::Value, Order::Ascend, 3);
    let expected = read(&store, asked.clone());
    assert_eq!(brief(&expected), "b a c … of 4");
    let whole = read(&store, all()).kvs;
    let answer = |order: [usize; 3]| RangeResult {
        kvs: order.iter().map(|at| whole[*at].clone()).collect(),
        ..expected.clone()
    };
    for order in [[1, 0, 2], [1, 2, 0], [1, 3, 0], [1, 2, 3]] {
        assert!(range_agrees(&asked, &answer(order), &expected), "{order:?}");
    }
    for order in [[0, 1, 2], [1, 0, 0], [0, 2, 3]] {
        assert!(!range_agrees(&asked, &answer(order), &expected), "{order:?}");
    }
    let mut less = answer([1, 0, 2]);
    less.more = false;
    assert!(!range_agrees(&asked, &less, &expected));
}
