//! The timeline and the report of a made-up run.

use std::collections::BTreeMap;
use std::time::Duration;

use oracle::{
    Header, History, Kind, Operation, Outcome, Put, Refusal, Request, Response, Verdict, Violation,
};
use torture::chronicle::{Bar, Chapters, Reading, State, Trouble};
use torture::fault::Fault;
use torture::options::Options;
use torture::run::Finding;
use torture::{report, timeline};

const SECOND: u64 = 1_000_000_000;

fn operation(id: u64, call: u64, outcome: Outcome) -> Operation {
    let put = Put { key: b"k".to_vec(), value: b"v".to_vec(), ..Put::default() };
    Operation {
        id,
        client: 1,
        member: 0,
        life: 1,
        call,
        returned: call + SECOND / 50,
        request: Request::Put(put),
        outcome,
        fence: None,
    }
}

fn finding() -> Finding {
    let done = || Outcome::Done(Header { revision: 2, term: 2 }, Response::Put(None));
    let history = History {
        operations: vec![
            operation(1, SECOND, done()),
            operation(2, 2 * SECOND, Outcome::Refused(Refusal::Other("no".to_owned()))),
            operation(3, 3 * SECOND, Outcome::Unknown("lost".to_owned())),
            operation(4, 5 * SECOND, done()),
        ],
        ..History::default()
    };
    let reading = Reading { answers: true, leads: true, term: 2, sees_leader: true };
    let chapters = Chapters {
        states: vec![
            vec![(0, State::Up), (2 * SECOND, State::Down), (4 * SECOND, State::Up)],
            vec![(0, State::Up)],
        ],
        readings: vec![vec![(0, reading), (2 * SECOND, Reading::default())], vec![]],
        bars: vec![Bar {
            name: "kill-leader".to_owned(),
            detail: "m0 killed </script><b>".to_owned(),
            members: vec![0],
            from: 2 * SECOND,
            to: Some(4 * SECOND),
            recovered: Some(9 * SECOND / 2),
        }],
        troubles: vec![Trouble {
            at: 3 * SECOND,
            kind: "member ended".to_owned(),
            text: "m1 ended".to_owned(),
        }],
        notes: vec![(SECOND, "a remark".to_owned())],
    };
    let violation = Violation {
        kind: Kind::LostWrite,
        operations: vec![4],
        watches: Vec::new(),
        text: "operation 4 is not there".to_owned(),
    };
    Finding {
        options: Options { seed: Some(11), ..Options::default() },
        faults: vec![Fault::KillLeader],
        skipped: vec![(Fault::SlowDisk, "no root".to_owned())],
        chapters,
        history,
        verdict: Verdict { violations: vec![violation], ..Verdict::default() },
        judging: Duration::from_millis(5),
        failures: BTreeMap::from([("lost".to_owned(), 1)]),
        security: Vec::new(),
        worked: 5 * SECOND,
        out: std::path::PathBuf::new(),
    }
}

#[test]
fn the_timeline_holds_everything_and_needs_nothing() {
    let html = timeline::html(&finding());
    for outside in ["http://", "https://", "src=", "@import", "url(\""] {
        let found = html.replace("http://www.w3.org/2000/svg", "");
        assert!(!found.contains(outside), "it refers to something outside: {outside}");
    }
    let data = html.split("const D = ").nth(1).and_then(|rest| rest.split(";\nconst NS").next());
    let data = data.expect("the data is where the script expects it");
    assert!(!data.contains('<'), "nothing in the data ends the script");
    let data: serde_json::Value = serde_json::from_str(data).expect("the data is JSON");
    assert_eq!(
        data["members"][0]["state"],
        serde_json::json!([[0.0, 2.0, "up"], [2.0, 4.0, "down"], [4.0, 5.02, "up"]])
    );
    assert_eq!(data["members"][0]["leads"], serde_json::json!([[0.0, 2.0, 2]]));
    assert_eq!(data["members"][0]["lost"], serde_json::json!([[2.0, 5.02, "does not answer"]]));
    assert_eq!(data["bars"][0]["recovered"], 4.5);
    assert_eq!(data["rates"][1], serde_json::json!({ "name": "writes", "values": [0, 1, 0, 0, 0, 1] }));
    assert_eq!(data["refused"], serde_json::json!([0, 0, 1, 0, 0, 0]));
    assert_eq!(data["unknown"], serde_json::json!([0, 0, 0, 1, 0, 0]));
    assert_eq!(data["latencies"][3]["values"], serde_json::json!([null, 20.0, null, null, null, 20.0]));
    assert_eq!(data["violations"][0]["at"], 3.0);
    assert_eq!(
        data["violations"][1],
        serde_json::json!({ "at": 5.02, "kind": "LostWrite", "text": "operation 4 is not there" })
    );
}

#[test]
fn the_report_says_what_the_summary_says() {
    let finding = finding();
    let json = report::json(&finding);
    assert_eq!(json["verdict"], "violations");
    assert_eq!(json["operations"]["writes"]["done"], 2);
    assert_eq!(json["operations"]["writes"]["p99_ms"], 20.0);
    assert_eq!(json["skipped"][0]["why"], "no root");
    assert_eq!(json["leader_kill_to_write_ms"], serde_json::json!([3020.0]));
    assert_eq!(json["recoveries_ms"], serde_json::json!([500.0]));
    let summary = report::summary(&finding);
    assert!(summary.contains("VIOLATION   member ended at 3.00 s: m1 ended\n"), "{summary}");
    assert!(summary.ends_with("verdict     2 violations: LostWrite 1, member ended 1\n"), "{summary}");
}

#[test]
fn a_run_without_trouble_is_clean() {
    let mut finding = finding();
    assert!(!finding.is_clean());
    finding.verdict.violations.clear();
    assert!(!finding.is_clean());
    finding.chapters.troubles.clear();
    assert!(finding.is_clean());
    assert!(report::summary(&finding).ends_with("verdict     no violation\n"));
}
