//! Writes with unknown outcomes that no client saw: what cannot be decided because of them, and what can.

use mainstay_oracle::{
    Compare, Header, History, KeyValue, Kind, Operation, Outcome, Put, Range, RangeResult, Relation, Request,
    Response, Target, Txn, TxnResult, check,
};

fn add(history: &mut History, request: Request, outcome: Outcome) -> u64 {
    let id = history.operations.len() as u64;
    let call = 100 + id * 10;
    history.operations.push(Operation {
        id,
        client: id,
        member: 1,
        life: 0,
        call,
        returned: call + 5,
        request,
        outcome,
        fence: None,
    });
    id
}

fn done(revision: i64, response: Response) -> Outcome {
    Outcome::Done(Header { revision, term: 1 }, response)
}

fn put(key: &str, value: &str) -> Request {
    Request::Put(Put { key: key.into(), value: value.into(), ..Put::default() })
}

/// A history with this many puts of one key without a response, half of which happened, and then an answered
/// put of another key.
fn blind(writes: i64) -> History {
    let mut history = History::default();
    for n in 0..writes {
        add(&mut history, put("blind", &format!("v{n}")), Outcome::Unknown("timeout".to_owned()));
    }
    add(&mut history, put("x", "1"), done(writes / 2 + 2, Response::Put(None)));
    history
}

/// Adds a transaction that writes nothing and whose response says whether a key has a value.
fn ask(history: &mut History, value: &str, succeeded: bool) -> u64 {
    let revision = last(history);
    let (key, relation, target) = (b"blind".to_vec(), Relation::Equal, Target::Value(value.into()));
    let compare = vec![Compare { key, range_end: Vec::new(), relation, target }];
    let txn = Txn { compare, ..Txn::default() };
    add(history, Request::Txn(txn), done(revision, Response::Txn(TxnResult { succeeded, results: vec![] })))
}

fn last(history: &History) -> i64 {
    let revisions = history.operations.iter().map(|op| match &op.outcome {
        Outcome::Done(header, _) => header.revision,
        _ => 0,
    });
    revisions.max().unwrap_or(0)
}

fn x(version: i64, revision: i64) -> KeyValue {
    KeyValue {
        key: b"x".to_vec(),
        value: b"1".to_vec(),
        create_revision: revision,
        mod_revision: revision,
        version,
        lease: 0,
    }
}

fn read(history: &mut History, range: Range, kvs: Vec<KeyValue>) -> u64 {
    let revision = last(history);
    let result = RangeResult { count: kvs.len() as i64, kvs, more: false };
    add(history, Request::Range(range), done(revision, Response::Range(result)))
}

#[test]
fn a_search_that_was_given_up_leaves_the_question_open() {
    let mut history = blind(12);
    ask(&mut history, "v7", true);
    let verdict = check(&history);
    assert!(verdict.is_clean(), "{verdict:?}");
    assert!(verdict.figures.search_steps > 1, "{:?}", verdict.figures);
    history.settings.search_steps_max = 1;
    let verdict = check(&history);
    assert_eq!(verdict.violations, []);
    assert!(verdict.undecided.iter().any(|open| open.operations == [13]), "{:?}", verdict.undecided);
    assert!(verdict.undecided[0].text.contains("given up"), "{:?}", verdict.undecided);
}

#[test]
fn what_no_order_explains_is_a_fault_if_all_were_tried() {
    let mut history = blind(4);
    let asked = ask(&mut history, "never written", true);
    let verdict = check(&history);
    let found: Vec<_> = verdict.violations.iter().map(|v| (v.kind, v.operations.as_slice())).collect();
    assert_eq!(found, [(Kind::WrongAnswer, &[asked][..])]);
}

#[test]
fn a_fault_in_other_keys_is_found_amid_them_without_a_search() {
    let revision = 42;
    let get = Range { key: b"x".to_vec(), ..Range::default() };
    let list = Range { key: b"w".to_vec(), range_end: vec![0], ..Range::default() };
    let all = Range { key: vec![0], range_end: vec![0], ..Range::default() };
    for (range, kvs) in [
        (get.clone(), vec![x(2, revision)]),
        (get, vec![]),
        (list.clone(), vec![]),
        (list, vec![x(1, revision), x(1, revision)]),
        (all, vec![]),
    ] {
        let mut history = blind(80);
        let wrong = read(&mut history, range, kvs);
        let verdict = check(&history);
        let is_found = |kind| verdict.violations.iter().any(|v| v.kind == kind && v.operations == [wrong]);
        assert!(is_found(Kind::WrongAnswer), "{verdict:?}");
        assert!(verdict.figures.search_steps < 1000, "{:?}", verdict.figures);
    }
}

#[test]
fn a_fault_in_other_keys_is_found_though_the_search_was_given_up() {
    let mut history = blind(12);
    ask(&mut history, "v7", true);
    let wrong = read(&mut history, Range { key: b"x".to_vec(), ..Range::default() }, vec![]);
    history.settings.search_steps_max = 1;
    let verdict = check(&history);
    let found: Vec<_> = verdict.violations.iter().map(|v| (v.kind, v.operations.as_slice())).collect();
    assert_eq!(found, [(Kind::WrongAnswer, &[wrong][..])]);
    assert!(!verdict.undecided.is_empty());
}

#[test]
fn keys_that_hang_on_such_a_write_are_not_blamed_when_the_search_is_given_up() {
    // The put of y depends on which of the unseen writes was the last.
    let mut history = blind(12);
    let revision = last(&history);
    let (key, relation, target) = (b"blind".to_vec(), Relation::Equal, Target::Value(b"v7".to_vec()));
    let compare = vec![Compare { key, range_end: Vec::new(), relation, target }];
    let action = |value: &str| {
        vec![mainstay_oracle::Action::Put(Put { key: b"y".to_vec(), value: value.into(), ..Put::default() })]
    };
    let txn = Txn { compare, success: action("yes"), failure: action("no") };
    let results = vec![mainstay_oracle::ActionResult::Put(None)];
    let answer = Response::Txn(TxnResult { succeeded: true, results });
    add(&mut history, Request::Txn(txn), done(revision + 1, answer));
    let y = KeyValue {
        key: b"y".to_vec(),
        value: b"yes".to_vec(),
        create_revision: revision + 1,
        mod_revision: revision + 1,
        version: 1,
        lease: 0,
    };
    read(&mut history, Range { key: b"y".to_vec(), ..Range::default() }, vec![y]);
    assert!(check(&history).is_clean());
    history.settings.search_steps_max = 1;
    let verdict = check(&history);
    assert_eq!(verdict.violations, []);
    assert!(!verdict.undecided.is_empty());
}

#[test]
fn a_write_whose_value_was_seen_made_no_other_revision() {
    // This write can only be the last one; the judge must not place it at an unseen revision and then report
    // the reader.
    let mut history = History::default();
    add(&mut history, put("x", "1"), Outcome::Unknown("timeout".to_owned()));
    for n in 0..6 {
        add(&mut history, put("blind", &format!("v{n}")), Outcome::Unknown("timeout".to_owned()));
    }
    add(&mut history, put("other", "1"), done(8, Response::Put(None)));
    let get = Range { key: b"x".to_vec(), ..Range::default() };
    read(&mut history, get.clone(), vec![]);
    add(&mut history, put("x", "2"), done(10, Response::Put(None)));
    let second = KeyValue { value: b"2".to_vec(), mod_revision: 10, ..x(2, 9) };
    read(&mut history, get, vec![second]);
    read(&mut history, Range { key: b"x".to_vec(), revision: 9, ..Range::default() }, vec![x(1, 9)]);
    let verdict = check(&history);
    assert!(verdict.is_clean(), "{verdict:?}");
    assert_eq!(verdict.figures.search_steps, 0);
}
