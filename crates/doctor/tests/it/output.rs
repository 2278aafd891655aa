//! Whole outputs. To record them anew: `MAINSTAY_RECORD=1 cargo test -p mainstay-doctor --test it`.

use std::path::Path;

use doctor::{
    Alarm, AlarmKind, Certificate, Clock, Evidence, Limits, Member, Metrics, Page, RULES, Report, RoundTrips,
    Rule, Sample, Status, Versions,
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
    etcd.page = Err("this server has none".into());
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
        sample: Err("there are 2,000,000 keys, and with so many even a page of them is dear".into()),
    };
    let report = report(&evidence);
    expect("sick.txt", &report.text());
    expect("sick.json", &report.json());
    let parsed: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
    assert_eq!(parsed["healthy"], false);
    assert_eq!(parsed["findings"][0]["name"], "unreachable");
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
}
