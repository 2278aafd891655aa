//! Evidence collected from scripted members.

use std::time::Duration;

use api::etcdserverpb::Member;
use client::{Settings, TlsFiles, Transport};
use doctor::{Connection, Evidence, Health, Limits, Plan, RULES, Report, Rule, Severity, Unseen};

use crate::fake_member::{FakeMember, Script, no_space, ok, status, status_of};

fn plan(endpoints: Vec<String>) -> Plan {
    let mut settings = Settings::of(endpoints);
    settings.dial_timeout = Some(Duration::from_secs(2));
    let connection = Connection {
        transport: Transport { dial_timeout: settings.dial_timeout, ..Transport::default() },
        settings,
        files: TlsFiles::default(),
        within: Duration::from_secs(5),
        is_secure: false,
    };
    Plan {
        connection,
        metrics_endpoints: Vec::new(),
        whole_cluster: true,
        window: Duration::from_millis(100),
        sample_keys: 50,
    }
}

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), test).await.expect("in time") })
}

/// Returns limits with which a busy machine may respond late.
fn patient() -> Limits {
    Limits { answer: 60.0, ..Limits::default() }
}

fn names(evidence: &Evidence) -> Vec<&'static str> {
    let rules: Vec<&Rule> = RULES.iter().collect();
    let report = Report::of(evidence, &patient(), 0.1, &rules);
    report.findings.iter().map(|finding| finding.name).collect()
}

const METRICS: &str = "etcd_server_has_leader 1\ngrpc_server_started_total{grpc_type=\"unary\"} 3\n";

fn member(id: u64, name: &str, url: String) -> Member {
    Member { id, name: name.to_owned(), client_urls: vec![url], ..Member::default() }
}

#[test]
fn everything_that_is_there_is_seen() {
    run(async {
        let fake = FakeMember::start(|address| Script {
            status: status_of(0xa, "3.7.1", 0xa),
            members: vec![member(0xa, "m1", format!("http://{address}"))],
            alarms: vec![no_space(0xa)],
            keys: vec![("/a/1", 10), ("/a/2", 10), ("/b/1", 200_000), ("z", 5)],
            metrics: [
                ok("Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n", METRICS),
                ok(
                    "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n",
                    &format!("{METRICS}etcd_server_read_indexes_failed_total 1\n"),
                ),
            ],
            page: ok(
                "",
                r#"{"version":"0.1.0","clients":[{"address":"10.1.1.1","connections":1,"watches":9000}]}"#,
            ),
            version: ok("", r#"{"etcdserver":"3.7.1","etcdcluster":"3.6.0"}"#),
            ..Script::default()
        })
        .await;
        let evidence = plan(vec![fake.address.to_string()]).collect().await.unwrap();
        assert_eq!(evidence.members.len(), 1);
        let seen = &evidence.members[0];
        assert_eq!((&*seen.name, seen.id, &seen.reached), ("m1", 0xa, &Ok(())));
        assert!(seen.is_mainstay());
        let metrics = seen.metrics.as_ref().unwrap();
        assert_eq!(metrics.grown("etcd_server_read_indexes_failed_total", &[]), Some(1.0));
        // The first response may have arrived late.
        assert!(metrics.seconds > 0.0);
        let round_trips = seen.round_trips.as_ref().unwrap();
        assert_eq!((round_trips.call.len(), round_trips.connect.len()), (10, 10));
        assert_eq!(seen.certificate, Ok(None));
        let sample = evidence.sample.as_ref().unwrap();
        assert_eq!((sample.keys, &*sample.largest[0].0, sample.largest[0].1), (4, "\"/b/1\"", 200_000.0));
        assert_eq!(
            names(&evidence),
            [
                "alarm-nospace",
                "slow-reads",
                "large-values",
                "crowded-connections",
                "clock-drift",
                "version-skew"
            ]
        );
    });
}

#[test]
fn members_that_no_endpoint_names_are_found_and_lost_ones_told() {
    run(async {
        let other = FakeMember::start(|_| Script {
            status: status_of(0xb, "3.7.1", 0xa),
            metrics: [status(500), status(500)],
            page: status(404),
            version: ok("", "<html>"),
            ..Script::default()
        })
        .await;
        let gone = testkit::ports::free_address();
        let fake = FakeMember::start(|address| Script {
            status: status_of(0xa, "3.7.1", 0xa),
            members: vec![
                member(0xa, "m1", format!("http://{address}")),
                member(0xb, "m2", format!("http://{}", other.address)),
                member(0xc, "m3", format!("http://{gone}")),
                Member { id: 0xd, ..Member::default() },
            ],
            metrics: [ok("", METRICS), ok("", METRICS)],
            page: status(404),
            version: status(404),
            ..Script::default()
        })
        .await;
        // Two endpoints of one member count as one member.
        let endpoints = vec![fake.address.to_string(), format!("http://{}", fake.address)];
        let evidence = plan(endpoints.clone()).collect().await.unwrap();
        let labels: Vec<&str> = evidence.members.iter().map(|member| &*member.name).collect();
        assert_eq!(labels, ["m1", "m2", "m3", ""]);
        assert_eq!(evidence.members[1].metrics, Err("HTTP status 500".into()));
        assert!(evidence.members[1].versions.as_ref().unwrap_err().to_string().starts_with("not JSON"));
        assert_eq!(evidence.members[1].page, Err(Unseen::left_out("this server does not have it")));
        assert!(evidence.members[2].reached.as_ref().unwrap_err().to_string().contains("connection refused"));
        assert!(
            evidence.members[3].reached.as_ref().unwrap_err().to_string().contains("has not started yet")
        );
        assert_eq!(names(&evidence), ["unreachable"]);

        assert_eq!(evidence.complete, Ok(()));

        let mut alone = plan(endpoints);
        alone.whole_cluster = false;
        alone.sample_keys = 0;
        let evidence = alone.collect().await.unwrap();
        assert_eq!((evidence.members.len(), evidence.complete), (1, Ok(())));
        assert_eq!(evidence.sample, Err(Unseen::left_out("switched off by --sample=0")));
    });
}

#[test]
fn a_list_of_members_that_is_not_given_is_told() {
    run(async {
        let fake = FakeMember::start(|address| Script {
            status: status_of(0xa, "3.7.1", 0xa),
            members: vec![
                member(0xa, "m1", format!("http://{address}")),
                member(0xb, "m2", "http://x".to_owned()),
            ],
            lists_refused: usize::MAX,
            metrics: [ok("", METRICS), ok("", METRICS)],
            page: status(404),
            version: status(404),
            ..Script::default()
        })
        .await;
        let mut plan = plan(vec![fake.address.to_string()]);
        let evidence = plan.collect().await.unwrap();
        assert_eq!(evidence.members.len(), 1);
        let report = Report::of(&evidence, &patient(), 0.1, &[]);
        let told = "everything at other members, because the member list could not be read: etcdserver: too many requests";
        assert!(report.text().replace("\n    ", " ").contains(told), "{}", report.text());
        // No other members are to be examined.
        plan.whole_cluster = false;
        assert_eq!(plan.collect().await.unwrap().complete, Ok(()));
    });
}

#[test]
fn more_members_than_are_looked_at_are_told() {
    run(async {
        let gone = testkit::ports::free_address();
        let fake = FakeMember::start(|address| Script {
            status: status_of(1, "3.7.1", 1),
            members: (1..=101)
                .map(|id| member(id, "m", format!("http://{}", if id == 1 { address } else { gone })))
                .collect(),
            metrics: [ok("", METRICS), ok("", METRICS)],
            page: status(404),
            version: status(404),
            ..Script::default()
        })
        .await;
        let evidence = plan(vec![fake.address.to_string()]).collect().await.unwrap();
        let why = "there are 101 members, of which 100 are examined";
        assert_eq!((evidence.members.len(), evidence.complete), (100, Err(why.into())));
    });
}

#[test]
fn hostile_pages_are_no_more_than_reasons() {
    run(async {
        let endless = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nx".to_vec();
        let fake = FakeMember::start(|address| Script {
            status: status_of(0xa, "3.7.1", 0xa),
            members: vec![member(0xa, "m1", format!("http://{address}"))],
            metrics: [ok("", METRICS), b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nshort".to_vec()],
            page: endless,
            version: [&b"HTTP/1.1 200 OK\r\n"[..], &vec![b'x'; 200_000]].concat(),
            ..Script::default()
        })
        .await;
        let evidence = plan(vec![fake.address.to_string()]).collect().await.unwrap();
        let seen = &evidence.members[0];
        assert_eq!(seen.metrics, Err("the answer breaks off".into()));
        assert_eq!(seen.page, Err("the answer breaks off".into()));
        assert_eq!(seen.versions, Err("its head is too long".into()));
        assert_eq!(seen.reached, Ok(()));
        // What could not be examined is reported.
        let rules: Vec<&Rule> = RULES.iter().collect();
        let report = Report::of(&evidence, &patient(), 0.1, &rules);
        assert_eq!((report.severity(), report.health()), (None::<Severity>, Health::Unknown));
        assert!(report.blind.iter().any(|blind| blind.name == "slow-disk"));
        assert!(report.text().contains("no metrics: the answer breaks off"));
    });
}
