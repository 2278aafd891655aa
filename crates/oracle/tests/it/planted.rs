//! Mistakes of a store, planted into correct histories, and the kinds under which the judge must report them.

use mainstay_oracle::{
    Action, ActionResult, Delete, End, Event, Header, History, Kind, Operation, Outcome, Put, Range, Refusal,
    Request, Response, Txn, Watch, WatchAnswer, WatchResponse, check,
};

use testkit::Random;

use crate::script::{SECOND, Script, Style, no_watch};

enum Plant {
    /// Planted while the history is made.
    Amid(fn(&mut Script)),
    /// Planted into the finished history; returns false if there was no opportunity.
    After(fn(&mut History, &mut Random) -> bool),
}

use Plant::{After, Amid};

type Case = (&'static str, &'static [Kind], Plant);

const SEEDS: u64 = 20;

fn script_with(seed: u64, plant: Option<fn(&mut Script)>) -> History {
    // Half of the seeds have only answered operations on keys, so that each fault is isolated.
    let unknown = if seed.is_multiple_of(2) { 8 } else { 1_000_000 };
    let mut script = Script::new(seed, Style { unknown, ..Style::default() });
    script.some(80);
    // A watch that stays open from here on.
    let watch = Watch { key: b"k".to_vec(), range_end: b"l".to_vec(), prev_kv: true, ..no_watch() };
    script.watch(watch, true);
    script.some(60);
    script.locks(2);
    if let Some(plant) = plant {
        plant(&mut script);
    }
    script.some(80);
    script.finish()
}

#[test]
fn a_lock_is_over_when_its_lease_is_revoked_by_somebody_else() {
    let mut planted = 0;
    for seed in 0..SEEDS {
        let mut history = script_with(seed, None);
        let holding = &mut history.holdings[0];
        let (lease, until) = (holding.lease, holding.until);
        holding.until += 5 * SECOND;
        let overlaps = |history: &History| {
            check(history).violations.iter().any(|violation| violation.kind == Kind::LockOverlap)
        };
        if !overlaps(&history) {
            continue;
        }
        planted += 1;
        let template = history.operations[0].clone();
        let id = history.operations.iter().map(|op| op.id).max().unwrap_or(0) + 1;
        history.operations.push(Operation {
            id,
            client: 1 << 20,
            call: until,
            returned: until + SECOND,
            request: Request::Revoke { id: lease },
            outcome: Outcome::Unknown("no answer".to_owned()),
            fence: None,
            ..template
        });
        assert!(!overlaps(&history), "seed {seed}");
    }
    assert!(planted > 0, "no seed gave occasion");
}

#[test]
fn each_planted_mistake_is_found_under_its_name() {
    let mut missed = Vec::new();
    for (name, kinds, plant) in cases() {
        let mut planted = 0;
        for seed in 0..SEEDS {
            let history = match plant {
                Amid(plant) => script_with(seed, Some(plant)),
                After(plant) => {
                    let mut history = script_with(seed, None);
                    if !plant(&mut history, &mut Random::new(seed)) {
                        continue;
                    }
                    history
                }
            };
            planted += 1;
            let verdict = check(&history);
            let mut found: Vec<Kind> = verdict.violations.iter().map(|violation| violation.kind).collect();
            if !found.iter().any(|kind| kinds.contains(kind)) {
                found.dedup();
                missed
                    .push(format!("{name}: seed {seed}: found {found:?}, undecided {:?}", verdict.undecided));
            }
        }
        if planted < SEEDS / 4 {
            missed.push(format!("{name}: planted only {planted} times"));
        }
    }
    assert!(missed.is_empty(), "{} missed:\n{}", missed.len(), missed.join("\n"));
}

#[test]
fn without_a_mistake_nothing_is_found() {
    for seed in 0..SEEDS {
        let verdict = check(&script_with(seed, None));
        assert!(verdict.is_clean(), "seed {seed}: {verdict:?}");
    }
}

/// Returns an operation of the history that satisfies `fits`, not too near to either end.
fn pick(history: &mut History, fits: impl Fn(&Operation) -> bool) -> Option<&mut Operation> {
    let len = history.operations.len();
    history.operations[len / 4..].iter_mut().find(|op| fits(op))
}

fn is_answered_put(op: &Operation) -> bool {
    match (&op.request, &op.outcome) {
        (Request::Put(put), Outcome::Done(..)) => {
            put.lease == 0 && !put.ignore_value && !put.ignore_lease && op.fence.is_none()
        }
        _ => false,
    }
}

fn is_current_list(op: &Operation) -> bool {
    match (&op.request, &op.outcome) {
        (Request::Range(range), Outcome::Done(_, Response::Range(result))) => {
            range.key == b"\0" && !range.keys_only && range.revision == 0 && result.kvs.len() > 2
        }
        _ => false,
    }
}

fn is_linearizable_get(op: &Operation) -> bool {
    match (&op.request, &op.outcome) {
        (Request::Range(range), Outcome::Done(_, Response::Range(result))) => {
            !range.serializable && range.revision == 0 && range.range_end.is_empty() && result.count == 1
        }
        _ => false,
    }
}

fn answer(op: &mut Operation) -> &mut Response {
    match &mut op.outcome {
        Outcome::Done(_, response) => response,
        other => panic!("{other:?} is no answer"),
    }
}

fn header(op: &mut Operation) -> &mut Header {
    match &mut op.outcome {
        Outcome::Done(header, _) => header,
        other => panic!("{other:?} is no answer"),
    }
}

/// Adds an operation with this outcome.
fn add(history: &mut History, call: u64, request: Request, outcome: Outcome) {
    let id = history.operations.iter().map(|op| op.id).max().unwrap_or(0) + 1;
    let returned = call + 1;
    history.operations.push(Operation {
        id,
        client: 9,
        member: 1,
        life: 0,
        call,
        returned,
        request,
        outcome,
        fence: None,
    });
}

fn end_of(history: &History) -> u64 {
    let ops = history.operations.iter().map(|op| op.returned);
    ops.chain(history.watches.iter().flat_map(|watch| &watch.responses).map(|r| r.at)).max().unwrap_or(0) + 10
}

fn last_revision(history: &History) -> i64 {
    history.finals[0].revision
}

fn edit_list(history: &mut History, edit: fn(&mut mainstay_oracle::RangeResult)) -> bool {
    let Some(op) = pick(history, is_current_list) else { return false };
    match answer(op) {
        Response::Range(result) => edit(result),
        other => panic!("{other:?} is no answer to a range"),
    }
    true
}

/// Returns the watch that was opened for the planted mistake.
fn own(history: &mut History) -> &mut Watch {
    let own = history
        .watches
        .iter_mut()
        .find(|watch| watch.key == b"k" && watch.range_end == b"l" && matches!(watch.end, End::Drained(_)));
    own.expect("it is in every script")
}

fn events(response: &mut WatchResponse) -> Option<&mut Vec<Event>> {
    match &mut response.answer {
        WatchAnswer::Events { events, .. } => Some(events),
        _ => None,
    }
}

/// Splits the responses so that each has the events of one revision, and removes progress notifications.
fn spread(watch: &mut Watch) {
    let mut spread = Vec::new();
    for response in std::mem::take(&mut watch.responses) {
        let at = response.at;
        match &response.answer {
            WatchAnswer::Events { events, .. } => {
                for group in events.chunk_by(|a, b| a.kv.mod_revision == b.kv.mod_revision) {
                    let answer = WatchAnswer::Events { events: group.to_vec(), fragment: false };
                    spread.push(WatchResponse { at, revision: group[0].kv.mod_revision, answer });
                }
            }
            WatchAnswer::Created => spread.push(response),
            _ => {}
        }
    }
    watch.responses = spread;
}

fn edit_event(history: &mut History, fits: fn(&Event) -> bool, edit: fn(&mut Event)) -> bool {
    let responses = &mut own(history).responses;
    let event = responses.iter_mut().filter_map(events).flatten().find(|event| fits(event));
    event.map(edit).is_some()
}

fn granted(script: &mut Script, ttl: i64) -> i64 {
    let id = script.sure(Request::Grant { id: 0, ttl });
    match script.history.operations[id as usize].outcome {
        Outcome::Done(_, Response::Granted { id, .. }) => id,
        ref other => panic!("{other:?} is no answer to a grant"),
    }
}

fn put_on(script: &mut Script, lease: i64, key: &str) {
    let value = script.value();
    script.sure(Request::Put(Put { key: key.as_bytes().to_vec(), value, lease, ..Put::default() }));
}

/// Records a response that the store did not give.
fn pretend(script: &mut Script, request: Request, response: Response) {
    let (now, revision) = (script.now, script.revision());
    add(&mut script.history, now, request, Outcome::Done(Header { revision, term: 0 }, response));
    script.pass(SECOND / 10);
}

fn everything(revision: i64) -> Request {
    Request::Range(Range { key: vec![0], range_end: vec![0], revision, ..Range::default() })
}

fn cases() -> Vec<Case> {
    let mut all = writes();
    all.extend(answers());
    all.extend(watches());
    all.extend(compactions());
    all.extend(leases());
    all.extend(ends());
    all
}

fn writes() -> Vec<Case> {
    vec![
        (
            "the last answered write is lost",
            &[Kind::LostWrite],
            After(|history, _| {
                let (call, revision) = (end_of(history), last_revision(history) + 1);
                let request =
                    Request::Put(Put { key: b"k1".to_vec(), value: b"lost".to_vec(), ..Put::default() });
                add(history, call, request, Outcome::Done(Header { revision, term: 0 }, Response::Put(None)));
                true
            }),
        ),
        (
            "a write is lost and its revision given to another",
            &[Kind::RevisionTwice],
            After(|history, _| {
                let Some(op) = pick(history, is_answered_put) else { return false };
                let mut other = op.clone();
                let Request::Put(put) = &mut other.request else { return false };
                put.value = b"lost".to_vec();
                other.id = 1_000_000;
                history.operations.push(other);
                true
            }),
        ),
        (
            "an answered write is not there, another is",
            &[Kind::LostWrite],
            After(|history, _| {
                let Some(op) = pick(history, is_answered_put) else { return false };
                let Request::Put(put) = &mut op.request else { return false };
                put.key = b"another".to_vec();
                *answer(op) = Response::Put(None);
                true
            }),
        ),
        (
            "a write stores another value",
            &[Kind::WatchWrong],
            After(|history, _| {
                let Some(op) = pick(history, is_answered_put) else { return false };
                let Request::Put(put) = &mut op.request else { return false };
                put.value = b"another".to_vec();
                true
            }),
        ),
        (
            "an answered write is made twice",
            &[Kind::WriteTwice],
            Amid(|script| {
                let request =
                    Request::Put(Put { key: b"k1".to_vec(), value: b"twice".to_vec(), ..Put::default() });
                script.sure(request.clone());
                script.some(3);
                script.perform(&request, 0).expect("a put");
            }),
        ),
        (
            "a write that was given up is made twice",
            &[Kind::WriteTwice],
            Amid(|script| {
                let request =
                    Request::Put(Put { key: b"k1".to_vec(), value: b"twice".to_vec(), ..Put::default() });
                let now = script.now;
                add(&mut script.history, now, request.clone(), Outcome::Unknown("timeout".to_owned()));
                script.perform(&request, 0).expect("a put");
                script.some(3);
                script.perform(&request, 0).expect("a put");
            }),
        ),
        (
            "a refused put happens",
            &[Kind::RefusedHappened],
            Amid(|script| {
                let request =
                    Request::Put(Put { key: b"k1".to_vec(), value: b"refused".to_vec(), ..Put::default() });
                let now = script.now;
                add(
                    &mut script.history,
                    now,
                    request.clone(),
                    Outcome::Refused(Refusal::Other("no leader".to_owned())),
                );
                script.perform(&request, 0).expect("a put");
            }),
        ),
        (
            "a refused deletion happens",
            &[Kind::RefusedHappened],
            Amid(|script| {
                put_on(script, 0, "own");
                let request = Request::Delete(Delete { key: b"own".to_vec(), ..Delete::default() });
                let now = script.now;
                add(
                    &mut script.history,
                    now,
                    request.clone(),
                    Outcome::Refused(Refusal::Other("no leader".to_owned())),
                );
                script.perform(&request, 0).expect("a deletion");
            }),
        ),
        (
            "a put comes from nowhere",
            &[Kind::Stranger],
            Amid(|script| {
                let request =
                    Request::Put(Put { key: b"k1".to_vec(), value: b"strange".to_vec(), ..Put::default() });
                script.perform(&request, 0).expect("a put");
            }),
        ),
        (
            "a deletion comes from nowhere",
            &[Kind::Stranger],
            Amid(|script| {
                put_on(script, 0, "own");
                let request = Request::Delete(Delete { key: b"own".to_vec(), ..Delete::default() });
                script.perform(&request, 0).expect("a deletion");
            }),
        ),
        (
            "a revision is empty",
            &[Kind::RevisionGap],
            Amid(|script| {
                let state = script.state().clone();
                script.states.push(state);
                script.log.push((script.now, Vec::new()));
            }),
        ),
        (
            "a transaction is spread over two revisions",
            &[Kind::NotAtomic],
            Amid(|script| {
                let put = |key: &[u8]| Put { key: key.to_vec(), value: b"half".to_vec(), ..Put::default() };
                let (one, two) = (put(b"k1"), put(b"k2"));
                script.perform(&Request::Put(one.clone()), 0).expect("a put");
                let txn = Txn { success: vec![Action::Put(one), Action::Put(two.clone())], ..Txn::default() };
                let results = vec![ActionResult::Put(None), ActionResult::Put(None)];
                let result = mainstay_oracle::TxnResult { succeeded: true, results };
                pretend(script, Request::Txn(txn), Response::Txn(result));
                script.perform(&Request::Put(two), 0).expect("a put");
            }),
        ),
        (
            "half of a transaction is lost",
            &[Kind::FinalState, Kind::WatchMissing],
            Amid(|script| {
                let put = |key: &[u8]| Put { key: key.to_vec(), value: b"half".to_vec(), ..Put::default() };
                let (one, two) = (put(b"own1"), put(b"own2"));
                script.perform(&Request::Put(one.clone()), 0).expect("a put");
                let txn = Txn { success: vec![Action::Put(one), Action::Put(two)], ..Txn::default() };
                let results = vec![ActionResult::Put(None), ActionResult::Put(None)];
                let result = mainstay_oracle::TxnResult { succeeded: true, results };
                pretend(script, Request::Txn(txn), Response::Txn(result));
            }),
        ),
        (
            "writes take effect in another order than they were made",
            &[Kind::Order],
            After(|history, _| {
                let end = end_of(history);
                let Some(op) = pick(history, is_answered_put) else { return false };
                (op.call, op.returned) = (end, end + 1);
                true
            }),
        ),
        (
            "a write is seen before it is asked for",
            &[Kind::Order],
            After(|history, _| {
                let end = end_of(history);
                let Some(op) = pick(history, is_answered_put) else { return false };
                op.outcome = Outcome::Unknown("timeout".to_owned());
                (op.call, op.returned) = (end, end + 1);
                true
            }),
        ),
    ]
}

fn answers() -> Vec<Case> {
    vec![
        (
            "a read is answered from the past",
            &[Kind::StaleRead],
            After(|history, _| {
                let end = end_of(history);
                let Some(op) = pick(history, is_linearizable_get) else { return false };
                (op.call, op.returned, op.life) = (end, end + 1, 0);
                true
            }),
        ),
        (
            "a read is answered with another value",
            &[Kind::WrongAnswer],
            After(|history, _| {
                let Some(op) = pick(history, is_linearizable_get) else { return false };
                let Response::Range(result) = answer(op) else { return false };
                let Some(kv) = result.kvs.first_mut().filter(|kv| kv.value != b"old") else { return false };
                kv.value = b"old".to_vec();
                true
            }),
        ),
        (
            "a list has a wrong count",
            &[Kind::WrongAnswer],
            After(|history, _| edit_list(history, |r| r.count += 1)),
        ),
        (
            "a list says there is more",
            &[Kind::WrongAnswer],
            After(|history, _| edit_list(history, |r| r.more = !r.more)),
        ),
        (
            "a list leaves out a key",
            &[Kind::WrongAnswer],
            After(|history, _| edit_list(history, |r| drop(r.kvs.remove(1)))),
        ),
        (
            "a list is out of order",
            &[Kind::WrongAnswer],
            After(|history, _| edit_list(history, |r| r.kvs.swap(0, 1))),
        ),
        (
            "a list has a wrong version",
            &[Kind::WrongAnswer],
            After(|history, _| edit_list(history, |r| r.kvs[0].version += 1)),
        ),
        (
            "a list has a wrong create revision",
            &[Kind::WrongAnswer],
            After(|history, _| edit_list(history, |r| r.kvs[0].create_revision -= 1)),
        ),
        (
            "a list has a wrong lease",
            &[Kind::WrongAnswer],
            After(|history, _| edit_list(history, |r| r.kvs[0].lease += 1)),
        ),
        (
            "a local read shows a state that never was",
            &[Kind::WrongAnswer],
            After(|history, _| {
                let Some(op) = pick(history, |op| is_current_list(op) && op.returned > 0) else {
                    return false;
                };
                header(op).revision -= 1;
                op.life = 0;
                let Response::Range(result) = answer(op) else { return false };
                result.kvs.iter().any(|kv| kv.key == b"k0") && {
                    result.kvs.retain(|kv| kv.key != b"k0");
                    true
                }
            }),
        ),
        (
            "a guard that fails is taken to hold",
            &[Kind::WrongAnswer],
            After(|history, _| {
                let op = pick(
                    history,
                    |op| matches!(&op.outcome, Outcome::Done(_, Response::Txn(result)) if !result.succeeded),
                );
                let Some(op) = op else { return false };
                let Response::Txn(result) = answer(op) else { return false };
                (result.succeeded, result.results) = (true, vec![ActionResult::Put(None)]);
                true
            }),
        ),
        (
            "a guard that holds is taken to fail",
            &[Kind::WrongAnswer],
            After(|history, _| {
                let op = pick(history, |op| {
                    let guarded = matches!(&op.request, Request::Txn(txn) if !txn.compare.is_empty());
                    guarded
                        && matches!(&op.outcome, Outcome::Done(_, Response::Txn(result)) if result.succeeded)
                });
                let Some(op) = op else { return false };
                let Request::Txn(txn) = &mut op.request else { return false };
                let relation = mainstay_oracle::Relation::NotEqual;
                txn.compare[0].relation = relation;
                true
            }),
        ),
        (
            "a put answers a wrong previous value",
            &[Kind::WrongAnswer],
            After(|history, _| {
                let op = pick(history, |op| matches!(&op.outcome, Outcome::Done(_, Response::Put(Some(_)))));
                let Some(op) = op else { return false };
                let Response::Put(Some(kv)) = answer(op) else { return false };
                kv.version += 1;
                true
            }),
        ),
        (
            "a deletion answers a wrong count",
            &[Kind::WrongAnswer],
            After(|history, _| {
                let op = pick(
                    history,
                    |op| matches!(&op.outcome, Outcome::Done(_, Response::Delete(result)) if result.deleted > 0),
                );
                let Some(op) = op else { return false };
                let Response::Delete(result) = answer(op) else { return false };
                result.deleted += 1;
                true
            }),
        ),
        (
            "a put that keeps the value is refused though the key is there",
            &[Kind::WrongRefusal],
            Amid(|script| {
                put_on(script, 0, "own");
                script.pass(SECOND);
                let put = Put { key: b"own".to_vec(), ignore_value: true, ..Put::default() };
                let now = script.now;
                add(&mut script.history, now, Request::Put(put), Outcome::Refused(Refusal::KeyNotFound));
            }),
        ),
        (
            "a member's revision goes back",
            &[Kind::HeaderBack],
            After(|history, _| {
                let end = end_of(history);
                let op = pick(history, |op| {
                    let local = matches!(&op.request, Request::Range(range) if range.serializable);
                    local && matches!(op.outcome, Outcome::Done(..))
                });
                let Some(op) = op else { return false };
                (op.call, op.returned) = (end, end + 1);
                true
            }),
        ),
        (
            "a member's term goes back",
            &[Kind::HeaderBack],
            After(|history, _| {
                let Some(op) = pick(history, |op| matches!(op.outcome, Outcome::Done(..)) && op.life == 1)
                else {
                    return false;
                };
                header(op).term = 1;
                true
            }),
        ),
    ]
}

fn watches() -> Vec<Case> {
    vec![
        (
            "a watch leaves out an event",
            &[Kind::WatchMissing],
            After(|history, dice| {
                let watch = own(history);
                spread(watch);
                let at = 1 + dice.below(watch.responses.len() as u64 - 2) as usize;
                watch.responses.remove(at);
                true
            }),
        ),
        (
            "a watch leaves out the last event",
            &[Kind::WatchMissing],
            After(|history, _| {
                let watch = own(history);
                spread(watch);
                watch.responses.pop();
                true
            }),
        ),
        (
            "the watch of everything leaves out an event",
            &[Kind::WatchMissing],
            After(|history, dice| {
                let watch = &mut history.watches[0];
                spread(watch);
                let at = 1 + dice.below(watch.responses.len() as u64 - 2) as usize;
                watch.responses.remove(at);
                true
            }),
        ),
        (
            "a watch tells an event twice",
            &[Kind::WatchTwice],
            After(|history, dice| {
                let watch = own(history);
                spread(watch);
                let at = 1 + dice.below(watch.responses.len() as u64 - 2) as usize;
                let again = watch.responses[at].clone();
                watch.responses.insert(at + 1, again);
                true
            }),
        ),
        (
            "a watch tells an event again much later",
            &[Kind::WatchTwice],
            After(|history, _| {
                let watch = own(history);
                spread(watch);
                let again = watch.responses[1].clone();
                watch.responses.push(again);
                true
            }),
        ),
        (
            "a watch tells events out of order",
            &[Kind::WatchOrder],
            After(|history, dice| {
                let watch = own(history);
                spread(watch);
                let at = 1 + dice.below(watch.responses.len() as u64 - 2) as usize;
                watch.responses.swap(at, at + 1);
                true
            }),
        ),
        (
            "a watch tells the events of a revision out of order",
            &[Kind::WatchOrder],
            After(|history, _| {
                let watch = own(history);
                spread(watch);
                let events = watch.responses.iter_mut().filter_map(events).find(|events| events.len() > 1);
                events.map(|events| events.swap(0, 1)).is_some()
            }),
        ),
        (
            "a watch tells a revision in two responses",
            &[Kind::WatchSplit],
            After(|history, _| {
                let watch = own(history);
                spread(watch);
                let at =
                    watch.responses.iter_mut().position(|r| events(r).is_some_and(|events| events.len() > 1));
                let Some(at) = at else { return false };
                let mut second = watch.responses[at].clone();
                events(&mut watch.responses[at]).expect("events").truncate(1);
                events(&mut second).expect("events").remove(0);
                watch.responses.insert(at + 1, second);
                true
            }),
        ),
        (
            "a watch gets parts that it did not allow",
            &[Kind::WatchSplit],
            After(|history, _| {
                let responses = &mut own(history).responses;
                let at = responses.iter().rposition(|r| matches!(&r.answer, WatchAnswer::Events { .. }));
                let Some(WatchAnswer::Events { fragment, .. }) = at.map(|at| &mut responses[at].answer)
                else {
                    return false;
                };
                *fragment = true;
                true
            }),
        ),
        (
            "a watch tells a wrong value",
            &[Kind::WatchWrong],
            After(|history, _| {
                edit_event(history, |event| !event.deleted, |event| event.kv.value = b"wrong".to_vec())
            }),
        ),
        (
            "a watch tells a wrong version",
            &[Kind::WatchWrong],
            After(|history, _| edit_event(history, |event| !event.deleted, |event| event.kv.version += 1)),
        ),
        (
            "a watch tells a deletion as a put",
            &[Kind::WatchWrong],
            After(|history, _| edit_event(history, |event| event.deleted, |event| event.deleted = false)),
        ),
        (
            "a watch tells a key that was not changed",
            &[Kind::WatchWrong],
            After(|history, _| {
                edit_event(history, |event| !event.deleted, |event| event.kv.key = b"k999".to_vec())
            }),
        ),
        (
            "a watch tells a wrong previous value",
            &[Kind::WatchPrevious],
            After(|history, _| {
                edit_event(
                    history,
                    |event| event.prev_kv.is_some(),
                    |event| {
                        event.prev_kv.as_mut().expect("one").value = b"wrong".to_vec();
                    },
                )
            }),
        ),
        (
            "a watch tells a previous value where there was none",
            &[Kind::WatchPrevious],
            After(|history, _| {
                edit_event(
                    history,
                    |event| event.prev_kv.is_none(),
                    |event| event.prev_kv = Some(event.kv.clone()),
                )
            }),
        ),
        (
            "a watch does not tell the previous value",
            &[Kind::WatchPrevious],
            After(|history, _| {
                history.operations.retain(|op| !matches!(op.request, Request::Compact { .. }));
                edit_event(history, |event| event.prev_kv.is_some(), |event| event.prev_kv = None)
            }),
        ),
        (
            "a watch tells puts though they are filtered",
            &[Kind::WatchWrong],
            After(|history, _| {
                own(history).no_put = true;
                true
            }),
        ),
        (
            "a watch tells deletions though they are filtered",
            &[Kind::WatchWrong],
            After(|history, _| {
                own(history).no_delete = true;
                edit_event(history, |event| event.deleted, |_| {})
            }),
        ),
        (
            "a watch begins too early",
            &[Kind::WatchStart],
            After(|history, _| {
                let watch = own(history);
                spread(watch);
                watch.start_revision = watch.responses[2].revision;
                true
            }),
        ),
        (
            "a watch begins too late",
            &[Kind::WatchMissing],
            After(|history, _| {
                let watch = own(history);
                spread(watch);
                watch.responses.remove(1);
                true
            }),
        ),
        (
            "a progress notification runs ahead",
            &[Kind::WatchProgress],
            After(|history, dice| {
                let watch = own(history);
                spread(watch);
                let at = 1 + dice.below(watch.responses.len() as u64 - 2) as usize;
                let (time, revision) = (watch.responses[at].at, watch.responses[at].revision);
                watch
                    .responses
                    .insert(at, WatchResponse { at: time, revision, answer: WatchAnswer::Progress });
                true
            }),
        ),
        (
            "events come under an older header",
            &[Kind::WatchWrong],
            After(|history, _| {
                let responses = &mut own(history).responses;
                responses
                    .iter_mut()
                    .find(|r| matches!(r.answer, WatchAnswer::Events { .. }))
                    .map(|r| r.revision = 1)
                    .is_some()
            }),
        ),
        (
            "a watch is canceled as compacted though nothing is",
            &[Kind::WatchCompacted],
            After(|history, _| {
                let end = end_of(history);
                let watch = own(history);
                watch.end = End::Canceled;
                let answer = WatchAnswer::Canceled { compact_revision: 77_777, reason: String::new() };
                watch.responses.push(WatchResponse { at: end, revision: 0, answer });
                true
            }),
        ),
        (
            "a watch that needs nothing old is canceled as compacted",
            &[Kind::WatchCompacted],
            Amid(|script| {
                let revision = script.revision();
                script.sure(Request::Compact { revision, physical: false });
                let mut watch = Watch {
                    id: 5000,
                    key: b"k1".to_vec(),
                    start_revision: revision,
                    end: End::Canceled,
                    ..no_watch()
                };
                let at = script.now + SECOND;
                watch.opened = at - 1;
                watch.life = 0;
                watch.responses.push(WatchResponse { at, revision, answer: WatchAnswer::Created });
                let answer = WatchAnswer::Canceled { compact_revision: revision, reason: String::new() };
                watch.responses.push(WatchResponse { at, revision: 0, answer });
                script.history.watches.push(watch);
            }),
        ),
    ]
}

fn compactions() -> Vec<Case> {
    vec![
        (
            "a read below the compact revision is answered",
            &[Kind::ReadCompacted],
            Amid(|script| {
                let revision = script.revision();
                script.sure(Request::Compact { revision, physical: false });
                script.pass(SECOND);
                let old = script.states[revision as usize - 1].values().cloned().collect::<Vec<_>>();
                let result = mainstay_oracle::RangeResult { count: old.len() as i64, kvs: old, more: false };
                pretend(script, everything(revision - 1), Response::Range(result));
            }),
        ),
        (
            "compaction removes a version that is live",
            &[Kind::WrongAnswer],
            Amid(|script| {
                put_on(script, 0, "k1");
                let revision = script.revision();
                script.sure(Request::Compact { revision, physical: false });
                script.pass(SECOND);
                let mut old: Vec<_> = script.states[revision as usize].values().cloned().collect();
                old.remove(0);
                let result = mainstay_oracle::RangeResult { count: old.len() as i64, kvs: old, more: false };
                pretend(script, everything(revision), Response::Range(result));
            }),
        ),
        (
            "a read is refused as compacted that is not",
            &[Kind::CompactionLie],
            Amid(|script| {
                let (now, revision) = (script.now, script.revision());
                add(&mut script.history, now, everything(revision), Outcome::Refused(Refusal::Compacted));
            }),
        ),
        (
            "a revision is compacted twice",
            &[Kind::CompactionLie],
            Amid(|script| {
                let revision = script.revision();
                script.sure(Request::Compact { revision, physical: false });
                script.pass(SECOND);
                pretend(script, Request::Compact { revision, physical: false }, Response::Compacted);
            }),
        ),
        (
            "a future revision is compacted",
            &[Kind::FutureRevision],
            Amid(|script| {
                let revision = script.revision() + 100_000;
                pretend(script, Request::Compact { revision, physical: false }, Response::Compacted);
            }),
        ),
        (
            "a revision that is there is refused as future",
            &[Kind::FutureRevision],
            Amid(|script| {
                script.pass(SECOND);
                let (now, revision) = (script.now, script.revision());
                let lagging = revision - 10;
                add(&mut script.history, now, everything(lagging), Outcome::Refused(Refusal::FutureRevision));
            }),
        ),
        (
            "a future revision is read",
            &[Kind::FutureRevision],
            Amid(|script| {
                let result = mainstay_oracle::RangeResult::default();
                let revision = script.revision() + 3;
                pretend(script, everything(revision), Response::Range(result));
            }),
        ),
    ]
}

fn leases() -> Vec<Case> {
    vec![
        (
            "a lease ends before its time",
            &[Kind::LeaseEarly],
            Amid(|script| {
                let lease = granted(script, 10);
                put_on(script, lease, "own");
                script.pass(5 * SECOND);
                script.perform(&Request::Revoke { id: lease }, 0).expect("a lease");
            }),
        ),
        (
            "a lease that was renewed ends before its time",
            &[Kind::LeaseEarly],
            Amid(|script| {
                let lease = granted(script, 10);
                put_on(script, lease, "own");
                script.pass(9 * SECOND);
                script.sure(Request::KeepAlive { id: lease });
                script.pass(3 * SECOND);
                script.perform(&Request::Revoke { id: lease }, 0).expect("a lease");
            }),
        ),
        (
            "a renewal says that a living lease is gone",
            &[Kind::LeaseEarly],
            Amid(|script| {
                let lease = granted(script, 100);
                script.pass(SECOND);
                pretend(script, Request::KeepAlive { id: lease }, Response::Renewed { ttl: 0 });
            }),
        ),
        (
            "a lease granted anew under the id of a revoked one ends before its time",
            &[Kind::LeaseEarly],
            Amid(|script| {
                let lease = granted(script, 10);
                script.pass(3 * SECOND);
                script.sure(Request::Revoke { id: lease });
                script.sure(Request::Grant { id: lease, ttl: 10 });
                script.pass(5 * SECOND);
                pretend(script, Request::KeepAlive { id: lease }, Response::Renewed { ttl: 0 });
            }),
        ),
        (
            "a put is refused for want of a living lease",
            &[Kind::LeaseEarly],
            Amid(|script| {
                let lease = granted(script, 100);
                script.pass(SECOND);
                let request = Request::Put(Put { key: b"k1".to_vec(), lease, ..Put::default() });
                let now = script.now;
                add(&mut script.history, now, request, Outcome::Refused(Refusal::LeaseNotFound));
            }),
        ),
        (
            "a revoked lease is renewed",
            &[Kind::LeaseRevived],
            Amid(|script| {
                let lease = granted(script, 10);
                script.sure(Request::Revoke { id: lease });
                script.pass(SECOND);
                pretend(script, Request::KeepAlive { id: lease }, Response::Renewed { ttl: 10 });
            }),
        ),
        (
            "an expired lease is renewed",
            &[Kind::LeaseRevived],
            Amid(|script| {
                let lease = granted(script, 5);
                put_on(script, lease, "own");
                script.pass(20 * SECOND);
                let value = script.value();
                script.sure(Request::Put(Put { key: b"own".to_vec(), value, ..Put::default() }));
                script.pass(SECOND);
                pretend(script, Request::KeepAlive { id: lease }, Response::Renewed { ttl: 5 });
            }),
        ),
        (
            "a key is attached to a revoked lease",
            &[Kind::LeaseRevived],
            Amid(|script| {
                let lease = granted(script, 10);
                put_on(script, lease, "own");
                script.sure(Request::Revoke { id: lease });
                script.pass(SECOND);
                let revived = Request::Grant { id: lease, ttl: 1000 };
                script.perform(&revived, 0).expect("it is free");
                put_on(script, lease, "own");
            }),
        ),
        (
            "a revoked lease leaves its key",
            &[Kind::LeaseKeys],
            Amid(|script| {
                let lease = granted(script, 100);
                put_on(script, lease, "own");
                pretend(script, Request::Revoke { id: lease }, Response::Revoked);
            }),
        ),
        (
            "an ended lease leaves its key",
            &[Kind::LeaseKeys],
            Amid(|script| {
                let lease = granted(script, 1000);
                put_on(script, lease, "own");
                script.pass(5 * SECOND);
                pretend(script, Request::KeepAlive { id: lease }, Response::Renewed { ttl: 0 });
                script.pass(SECOND);
                script.sure(Request::Range(Range { key: b"own".to_vec(), ..Range::default() }));
            }),
        ),
        (
            "the keys of a lease go one after the other",
            &[Kind::LeaseKeys],
            Amid(|script| {
                let lease = granted(script, 1000);
                put_on(script, lease, "own1");
                put_on(script, lease, "own2");
                for key in [b"own1", b"own2"] {
                    script
                        .perform(&Request::Delete(Delete { key: key.to_vec(), ..Delete::default() }), 0)
                        .expect("a key");
                }
            }),
        ),
        (
            "an id is granted twice",
            &[Kind::LeaseGrant],
            Amid(|script| {
                let lease = granted(script, 1000);
                pretend(
                    script,
                    Request::Grant { id: lease, ttl: 5 },
                    Response::Granted { id: lease, ttl: 5 },
                );
            }),
        ),
        (
            "a lease is shorter than asked for",
            &[Kind::LeaseGrant],
            Amid(|script| {
                pretend(script, Request::Grant { id: 0, ttl: 60 }, Response::Granted { id: 99_999, ttl: 5 });
            }),
        ),
        (
            "a lease gets another id than asked for",
            &[Kind::LeaseGrant],
            Amid(|script| {
                pretend(
                    script,
                    Request::Grant { id: 77, ttl: 60 },
                    Response::Granted { id: 99_999, ttl: 60 },
                );
            }),
        ),
        (
            "a renewal gives another time",
            &[Kind::LeaseGrant],
            Amid(|script| {
                let lease = granted(script, 100);
                pretend(script, Request::KeepAlive { id: lease }, Response::Renewed { ttl: 7 });
            }),
        ),
    ]
}

fn ends() -> Vec<Case> {
    vec![
        (
            "two clients believe to hold a lock",
            &[Kind::LockOverlap],
            After(|history, _| {
                let holding = &mut history.holdings[0];
                holding.until += 5 * SECOND;
                // A client whose lease was revoked by another client does not hold the lock.
                let is_revoked = |op: &Operation| {
                    op.client != holding.client && op.request == Request::Revoke { id: holding.lease }
                };
                !history.operations.iter().any(is_revoked)
            }),
        ),
        (
            "a client writes under a lock that another holds",
            &[Kind::LockOverlap],
            After(|history, _| {
                let later = history.holdings[1].fence.clone();
                let op = history
                    .operations
                    .iter_mut()
                    .find(|op| op.fence.is_some() && matches!(op.outcome, Outcome::Done(..)));
                op.map(|op| op.fence = Some(later)).is_some()
            }),
        ),
        (
            "a member lost a key",
            &[Kind::FinalState],
            After(|history, _| history.finals[1].dump.as_mut().is_some_and(|dump| dump.pop().is_some())),
        ),
        (
            "a member kept a deleted key",
            &[Kind::FinalState],
            After(|history, _| {
                let kv = mainstay_oracle::KeyValue {
                    key: b"kept".to_vec(),
                    mod_revision: 2,
                    ..Default::default()
                };
                history.finals[2].dump.as_mut().map(|dump| dump.push(kv)).is_some()
            }),
        ),
        (
            "a member has another hash",
            &[Kind::Divergence],
            After(|history, _| history.finals[2].hash.as_mut().map(|hash| hash.0 += 1).is_some()),
        ),
        (
            "a member forgot a compaction",
            &[Kind::FinalState],
            After(|history, _| {
                let answered = history.operations.iter().any(|op| {
                    matches!(op.request, Request::Compact { .. }) && matches!(op.outcome, Outcome::Done(..))
                });
                history.finals[0].hash.as_mut().map(|hash| hash.2 = -1).is_some() && answered
            }),
        ),
        (
            "a member stays behind",
            &[Kind::LostWrite],
            Amid(|script| {
                put_on(script, 0, "own");
                let last = mainstay_oracle::Final {
                    member: 4,
                    revision: script.revision() - 1,
                    dump: None,
                    hash: None,
                };
                script.history.finals.push(last);
            }),
        ),
    ]
}
