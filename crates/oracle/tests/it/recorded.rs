//! Histories recorded from etcd itself: one client that makes a mixture of all requests, in all sort orders,
//! with limits and bounds, comparisons of every target, and nested transactions.

use mainstay_oracle::{History, Kind, Outcome, Response, check};

fn recorded() -> History {
    History::from_lines(include_str!("recorded/etcd-3.7.jsonl")).expect("it was recorded so")
}

#[test]
fn etcd_is_not_blamed() {
    let verdict = check(&recorded());
    assert!(verdict.is_clean(), "{verdict:#?}");
    assert!(verdict.figures.answered > 300, "{:?}", verdict.figures);
}

#[test]
fn another_count_another_end_or_one_key_less_is_no_answer_of_etcd() {
    let history = recorded();
    let ranges = history.operations.iter().enumerate().filter_map(|(at, op)| match &op.outcome {
        Outcome::Done(_, Response::Range(result)) if result.kvs.len() > 1 => Some(at),
        _ => None,
    });
    let mut wronged = 0;
    for at in ranges.step_by(5) {
        for edit in 0..3 {
            let mut wrong = history.clone();
            let Outcome::Done(_, Response::Range(result)) = &mut wrong.operations[at].outcome else {
                panic!("it was a range");
            };
            match edit {
                0 => result.count += 1,
                1 => result.more = !result.more,
                _ => drop(result.kvs.remove(0)),
            }
            let found = check(&wrong).violations;
            let is_found = found.iter().any(|violation| {
                violation.kind == Kind::WrongAnswer && violation.operations == [wrong.operations[at].id]
            });
            assert!(is_found, "operation {at}, edit {edit}: {found:?}");
            wronged += 1;
        }
    }
    assert!(wronged >= 15, "{wronged}");
}
