//! Tests of the timeline and the report of a made-up run.

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

/// Returns the rows of the table of a chart or section, each as the texts of its cells.
fn rows(html: &str, title: &str) -> Vec<Vec<String>> {
    let table =
        html.split_once(&format!("<caption class=\"unseen\">{title}</caption>")).expect("the table").1;
    let body = table.split_once("<tbody").unwrap().1.split_once("</tbody>").unwrap().0;
    let text = |cell: &str| cell.split_once('>').unwrap().1.split_once('<').unwrap().0.replace('\u{a0}', " ");
    let cells = |row: &str| row.replace("<th", "<td").split("<td").skip(1).map(text).collect();
    body.split("<tr").skip(1).map(cells).collect()
}

#[test]
fn the_timeline_holds_everything_and_needs_nothing() {
    let html = timeline::html(&finding());
    for outside in ["http://", "https://", "src=", "@import", "url(\""] {
        let found = html.replace("http://www.w3.org/2000/svg", "");
        assert!(!found.contains(outside), "it refers to something outside: {outside}");
    }
    let spans = rows(&html, "Faults and members");
    let span = |lane: &str, what: &str| -> Vec<[&str; 3]> {
        let of = spans.iter().filter(|cells| cells[0] == lane && cells[1] == what);
        of.map(|cells| [&*cells[2], &*cells[3], &*cells[4]]).collect()
    };
    assert_eq!(span("m0", "up"), [["0 s", "2 s", ""], ["4 s", "5.02 s", ""]]);
    assert_eq!(span("m0", "down"), [["2 s", "4 s", ""]]);
    assert_eq!(span("m0", "leads"), [["0 s", "2 s", "term 2"]]);
    assert_eq!(span("m0", "does not answer"), [["2 s", "5.02 s", ""]]);
    assert_eq!(span("faults", "until all were healthy"), [["4 s", "4.5 s", ""]]);
    let detail = "m0 killed &lt;/script&gt;&lt;b&gt;; all members were healthy 500 ms after its end";
    assert_eq!(span("faults", "kill-leader"), [["2 s", "4 s", detail]]);
    assert_eq!(html.matches("</script").count(), 1, "nothing in the data ends the script");
    let column = |title: &str, nth: usize| -> Vec<String> {
        rows(&html, title).iter().map(|cells| cells[nth].clone()).collect()
    };
    assert_eq!(column("Operations", 0), ["0 s", "1 s", "2 s", "3 s", "4 s", "5 s"]);
    assert_eq!(column("Operations", 2), ["0 /s", "1.00 /s", "0 /s", "0 /s", "0 /s", "1.00 /s"]);
    assert_eq!(column("Failures", 1), ["0 /s", "0 /s", "1.00 /s", "0 /s", "0 /s", "0 /s"]);
    assert_eq!(column("Failures", 2), ["0 /s", "0 /s", "0 /s", "1.00 /s", "0 /s", "0 /s"]);
    assert_eq!(column("Latency", 4), ["–", "20.0 ms", "–", "–", "–", "20.0 ms"]);
    let violations = rows(&html, "Violations");
    assert_eq!(violations[0], ["member ended", "3 s", "m1 ended"]);
    assert_eq!(violations[1], ["LostWrite", "5.02 s", "operation 4 is not there"]);
    assert_eq!(html.matches("data-mark=").count(), 2, "both are marked in the charts");
}

#[test]
fn a_clean_run_has_no_list_of_violations() {
    let mut finding = finding();
    finding.verdict.violations.clear();
    finding.chapters.troubles.clear();
    let html = timeline::html(&finding);
    assert!(html.contains("<h1>Torture: no violation</h1>") && !html.contains("<h2>Violations"), "{html}");
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
