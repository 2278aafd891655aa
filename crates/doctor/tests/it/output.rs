//! Complete outputs. To record them again: `MAINSTAY_RECORD=1 cargo test -p mainstay-doctor --test it`.

use std::path::Path;

use doctor::{
    Alarm, AlarmKind, Certificate, Clock, Evidence, Limits, Member, Metrics, Page, RULES, Report, RoundTrips,
    Rule, Sample, Status, Unseen, Versions,
};

const MAINSTAY: &str = include_str!("golden/mainstay.metrics");
const NOW: f64 = 1_800_000_000.0;

pub fn expect(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden").join(name);
    if std::env::var_os("MAINSTAY_RECORD").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(&path).unwrap(), "{name}");
}

fn member(number: u64) -> Member {
    Member {
        endpoint: format!("10.0.0.{number}:2379"),
        name: format!("m{number}"),
        id: number,
        reached: Ok(()),
        status: Ok(Status {
            cluster_id: 9,
            version: "3.7.1".to_owned(),
            db_bytes: 1e6,
            db_bytes_in_use: 9e5,
            quota_bytes: 2e9,
            leader: 1,
            term: 2,
            index: 1000,
            applied: 1000,
            ..Status::default()
        }),
        metrics: Ok(Metrics::of(MAINSTAY, MAINSTAY, 10.0)),
        page: Ok(Page::read(br#"{"expensive_ranges":[],"large_values":[],"clients":[],"fsync_stalls":[]}"#)
            .unwrap()),
        versions: Ok(Versions { server: "3.7.1".to_owned(), cluster: "3.7.0".to_owned() }),
        clock: Ok(Clock { low: -0.001, high: 0.001 }),
        round_trips: Ok(RoundTrips { connect: vec![0.0002; 5], call: vec![0.0004; 20] }),
        certificate: Ok(Some(Certificate { not_after_unix: NOW + 300.0 * 86400.0 })),
    }
}

fn report(evidence: &Evidence) -> Report {
    let rules: Vec<&Rule> = RULES.iter().collect();
    Report::of(evidence, &Limits::default(), 10.0, &rules)
}

#[test]
fn a_sick_cluster() {
    let mut slow = member(1);
    let buckets: String = [("0.001", 0), ("0.016", 40), ("0.032", 100), ("+Inf", 100)]
        .iter()
        .map(|(bound, below)| {
            format!("etcd_disk_wal_fsync_duration_seconds_bucket{{le=\"{bound}\"}} {below}\n")
        })
        .collect();
    let text = format!(
        "{buckets}etcd_disk_wal_fsync_duration_seconds_sum 2\netcd_disk_wal_fsync_duration_seconds_count 100\n\
         grpc_server_started_total{{grpc_type=\"unary\"}} 10\n"
    );
    slow.metrics = Ok(Metrics::of("", &text, 10.0));
    slow.page = Ok(Page::read(
        format!(
            r#"{{"expensive_ranges":[{{"client":"10.1.1.1","key":"\"/registry/pods/\"","range_end":"\"/registry/pods0\"",
            "count":12,"keys_max":20000,"bytes_total":240000000,"seconds_max":0.8,"last_unix_ms":{}}}]}}"#,
            NOW * 1e3
        )
        .as_bytes(),
    )
    .unwrap());
    let mut etcd = member(2);
    etcd.page = Err(Unseen::left_out("this server does not have it"));
    etcd.metrics = Err("HTTP status 404".into());
    etcd.certificate = Ok(Some(Certificate { not_after_unix: NOW + 86400.0 * 3.0 }));
    let evidence = Evidence {
        taken_unix: NOW,
        members: vec![
            slow,
            etcd,
            Member::unseen("10.0.0.3:2379", "m3", 3, "dial tcp 10.0.0.3:2379: i/o timeout"),
        ],
        complete: Ok(()),
        alarms: Ok(vec![Alarm { member_id: 2, kind: AlarmKind::NoSpace }]),
        sample: Err(Unseen::left_out(
            "there are 2,000,000 keys, too many to read even one page of them cheaply",
        )),
    };
    let report = report(&evidence);
    expect("sick.txt", &report.text());
    expect("sick.json", &report.json());
    let parsed: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
    assert_eq!(parsed["healthy"], false);
    assert_eq!(parsed["findings"][0]["name"], "unreachable");
    let html = report.html("2027-01-15T08:00:00Z");
    for finding in &report.findings {
        for text in finding.remedies.iter().chain(finding.facts.iter().map(|fact| &fact.text)) {
            let text =
                text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;");
            assert!(html.contains(&text), "{text}");
        }
    }
    let place = |text: &str| html.find(text).unwrap_or_else(|| panic!("{text} is not in {html}"));
    assert!(place("unreachable: members") < place("alarm-nospace: the NOSPACE alarm"), "worst first");
    assert!(place("certificate-expiry: ") < place("slow-disk: syncs"), "warnings behind errors");
    assert!(html.contains(
        "3 errors, 2 warnings, by 31 rules. Examined 3 members for 10 s, until 2027-01-15T08:00:00Z."
    ));
    assert!(
        html.contains("<dt>m3 (10.0.0.3:2379)</dt><dd>not reached: dial tcp 10.0.0.3:2379: i/o timeout</dd>")
    );
    assert!(html.contains("everything at m3 (10.0.0.3:2379), because it could not be reached"));
    assert!(!html.contains("<script"), "a page without charts needs no script");
}

#[test]
fn names_and_errors_that_are_markup_are_text_on_the_page() {
    let evil = "<img src=x onerror=alert(1)>\u{202e}";
    let mut one = member(1);
    one.name = evil.to_owned();
    one.status.as_mut().unwrap().version = evil.to_owned();
    let evidence = Evidence {
        taken_unix: NOW,
        members: vec![one, Member::unseen("10.0.0.3:2379", evil, 3, evil)],
        complete: Ok(()),
        alarms: Err(evil.into()),
        sample: Err(evil.into()),
    };
    let html = report(&evidence).html("now");
    assert!(!html.contains("<img") && !html.contains('\u{202e}'), "{html}");
    assert!(html.matches("&lt;img src=x onerror=alert(1)&gt;\u{fffd}").count() > 4, "{html}");
}

#[test]
fn a_healthy_cluster() {
    let evidence = Evidence {
        taken_unix: NOW,
        members: (1..=3).map(member).collect(),
        complete: Ok(()),
        alarms: Ok(Vec::new()),
        sample: Ok(Sample::default()),
    };
    let report = report(&evidence);
    expect("healthy.txt", &report.text());
    expect("healthy.json", &report.json());
    assert!(report.html("now").contains("<p class=\"what\">Nothing was found</p>"));
}
