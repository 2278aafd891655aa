//! Responses over HTTP/1, as complete transcripts, for members in several states.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ::http::{Method, Request, Response};
use accounting::{MethodCounters, ShardCounters};
use api::etcdserverpb::alarm_request::AlarmAction;
use api::etcdserverpb::{AlarmRequest, AlarmType, InternalRaftRequest, PutRequest, RequestHeader};
use api::{Code, Rpc, membershippb};
use bytes::Bytes;
use config::MetricsDetail;
use disk::MemDisk;
use machine::{Command, Machine, Rules};
use numbers::{ClusterId, Index, MemberId, Revision, Seconds, Term};
use prost::Message as _;
use replica::shared::{
    Clients, CoreQueues, Data, Diagnostics, Limits, LogEventQueue, Member, Published, Shared,
};
use rpc::http::{self, FrontCounters, MetricsListener};
use storage::Identity;
use storage::values::LogValues;
use telemetry::logging::{Format, Level, Logger};
use telemetry::metrics::Metrics;

use testkit::expect;

const MEMBER: u64 = 0xab;
const RPCS: &[Rpc] = &[Rpc::KvRange, Rpc::Watch];

/// The parts of a member that HTTP requests reach.
pub struct Served {
    pub shared: Arc<Shared>,
    values: LogValues,
    counters: FrontCounters,
    logger: Arc<Logger>,
    said: Said,
    _log: log::Log,
}

/// Log output that is kept in memory.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Said {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Said {
    /// Removes and returns the lines: level, message and fields, without the time and the source location.
    fn take(&self) -> Vec<String> {
        let text = String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap();
        let told = |line: &str| {
            let mut fields: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line).unwrap();
            let [level, message] = ["level", "msg"].map(|name| fields.remove(name).unwrap());
            fields.retain(|name, _| name != "ts" && name != "caller");
            let rest = serde_json::Value::from(fields);
            format!("{} {} {rest}", level.as_str().unwrap(), message.as_str().unwrap())
        };
        text.lines().map(told).collect()
    }
}

/// Entries that a member has applied, and its role.
#[derive(Default)]
pub struct Given {
    pub entries: Vec<InternalRaftRequest>,
    pub learner: bool,
}

fn alarm(member_id: u64, alarm: AlarmType) -> InternalRaftRequest {
    let alarm = AlarmRequest { action: AlarmAction::Activate as i32, member_id, alarm: alarm as i32 };
    InternalRaftRequest { alarm: Some(alarm), ..InternalRaftRequest::default() }
}

pub fn put(key: &'static str) -> InternalRaftRequest {
    let put = PutRequest { key: key.into(), ..PutRequest::default() };
    InternalRaftRequest { put: Some(put), ..InternalRaftRequest::default() }
}

fn cluster_version(version: &str) -> InternalRaftRequest {
    let set = membershippb::ClusterVersionSetRequest { ver: version.to_owned() };
    InternalRaftRequest { cluster_version_set: Some(set), ..InternalRaftRequest::default() }
}

/// Builds the shared state as `boot` does.
fn shared(state: Published, values: log::Values) -> Shared {
    let identity = Identity { member_id: MEMBER, cluster_id: 0xc1 };
    let limits = Limits {
        election_timeout: Duration::from_secs(1),
        lease_ttl_min: Seconds(2),
        request_bytes_max: 1 << 20,
        txn_ops_max: 128,
        quota_bytes: Some(2 << 30),
        request_timeout: Duration::from_secs(7),
        progress_interval: Duration::from_secs(600),
        slow_request: Duration::from_millis(300),
        slow_apply: Duration::from_millis(100),
        times_calls: false,
    };
    let metrics = Arc::new(Metrics::new(RPCS, MetricsDetail::Basic));
    let member = Member::new(identity, limits);
    let diagnostics = Diagnostics::new(metrics, member.clock.now());
    let (core, data) = (CoreQueues::new(&LogEventQueue::default(), 1), Data::new(values, true));
    Shared::new(member, Clients::default(), state, core, data, diagnostics, 1)
}

/// Builds a member that has applied these entries; `adjust` may change the state that it publishes.
pub fn served(given: Given, adjust: impl FnOnce(&mut Published)) -> Served {
    let options = log::Options {
        segment_bytes: 16 << 10,
        by_hand: true,
        ..log::Options::new("/data/member/log", ClusterId(0xc1), MemberId(MEMBER))
    };
    let disk = Arc::new(MemDisk::new(1));
    let (mut log, _) = log::Log::open(options, disk, Index(1), &mut |_| {}, Box::new(|_| {})).unwrap();
    let values = LogValues::new(log.values());

    let mut machine = Machine::new(Rules { learners_max: 1 });
    let member = machine::Member { id: MEMBER, is_learner: given.learner, ..machine::Member::default() };
    machine.members.by_id.insert(MEMBER, member);
    for (mut entry, index) in given.entries.into_iter().zip(1..) {
        entry.header = Some(RequestHeader { id: index, ..RequestHeader::default() });
        let data = Bytes::from(entry.encode_to_vec());
        let location = mvcc::Location::new(1, 4096);
        let applied = machine
            .apply(Command { index: Index(index), term: Term(2), data: &data, location }, &values, false)
            .unwrap();
        applied.outcome.unwrap();
        let entry = log::Entry { index: Index(index), term: Term(2), entry_type: 0, data };
        log.append(log::Batch { entries: vec![entry], ..log::Batch::default() }).unwrap();
        log.turn();
    }
    let mut state = Published {
        view: machine.store.publish(),
        applied_index: machine.applied_index,
        applied_term: Term(2),
        commit_index: machine.applied_index,
        leader: MEMBER,
        reads_local: true,
        alarms: Arc::new(machine.alarms.clone()),
        members: Arc::new(machine.members.clone()),
        auth: Arc::new(machine.auth.clone()),
        in_use_bytes: machine.in_use_bytes(),
        removed_through: Revision(-1),
        is_wrong: false,
    };
    adjust(&mut state);
    let shared = Arc::new(shared(state, log.values()));
    shared.data.set_disk_bytes(123_456);
    let said = Said::default();
    let logger = Logger::to(Level::Debug, Format::Json, vec![Box::new(said.clone())]);
    Served { shared, values, counters: FrontCounters::default(), logger: Arc::new(logger), said, _log: log }
}

fn healthy() -> Served {
    served(Given { entries: vec![cluster_version("3.7.0"), put("a"), put("b")], ..Given::default() }, |_| {})
}

impl Served {
    fn answer(&self, method: &Method, target: &str) -> Response<Bytes> {
        let request = Request::builder().method(method).uri(target).header("host", "x");
        let request = request.body(Bytes::new()).unwrap();
        http::answer(&self.shared, &self.values, &self.counters, &self.logger, &request)
    }

    fn body(&self, target: &str) -> String {
        String::from_utf8(self.answer(&Method::GET, target).into_body().to_vec()).unwrap()
    }

    /// Sends all of these requests, and returns the responses as text, without the headers that every
    /// response has.
    fn transcript(&self, title: &str, asked: &[&str]) -> String {
        let mut out = format!("==== {title}\n");
        for line in asked {
            let (method, target) = line.split_once(' ').unwrap();
            let response = self.answer(&method.parse().unwrap(), target);
            writeln!(out, "---- {line}\n{}", response.status().as_u16()).unwrap();
            let allowed = ["allow-headers", "allow-methods", "allow-origin"];
            // A target that is not a path is refused before anything else, as by Go's server.
            let is_path = response.status() != 400;
            for name in allowed.map(|name| format!("access-control-{name}")) {
                assert_eq!(response.headers().contains_key(&name), is_path, "{line}: {name}");
            }
            let mut headers: Vec<String> = response
                .headers()
                .iter()
                .filter(|(name, _)| !name.as_str().starts_with("access-control-"))
                .map(|(name, value)| format!("{name}: {}\n", value.to_str().unwrap()))
                .collect();
            headers.sort();
            out.push_str(&headers.concat());
            writeln!(out, "\n{}<", std::str::from_utf8(response.body()).unwrap()).unwrap();
        }
        out
    }
}

/// Requests to the health probes, plain and verbose, as a whole and each check separately.
const PROBES: &[&str] = &[
    "GET /health",
    "GET /health?serializable=true",
    "GET /livez",
    "GET /livez?verbose",
    "GET /livez/serializable_read",
    "GET /readyz",
    "GET /readyz?verbose",
    "GET /readyz/data_corruption?verbose",
    "GET /readyz/serializable_read",
    "GET /readyz/linearizable_read",
    "GET /readyz/non_learner",
];

#[test]
fn the_whole_is_never_told_to_be_less_than_its_part_in_use() {
    let served = healthy();
    // The member reports this size directly after a burst of writes, when the sizes of the files do not show
    // the writes yet.
    served.shared.data.set_disk_bytes(1);
    let page = served.body("/metrics");
    let value = |name: &str| -> f64 {
        let line = page.lines().find(|line| line.starts_with(&format!("{name} "))).expect(name);
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let in_use = value("etcd_mvcc_db_total_size_in_use_in_bytes");
    assert!(in_use > 1.0, "{in_use}");
    assert_eq!(value("etcd_mvcc_db_total_size_in_bytes"), in_use);
}

#[test]
fn probes_of_a_healthy_member() {
    let text = healthy().transcript("healthy", PROBES);
    let odd = [
        "GET /health?exclude=NOSPACE&exclude=",
        "GET /health?serializable=TRUE",
        "GET /livez?verbose=false",
        "GET /livez?verbose&exclude=serializable_read",
        "GET /livez?exclude=unknown&verbose",
        "GET /livez?verbose;exclude=serializable_read",
        "GET /livez/serializable_read?exclude=serializable_read&verbose",
        "GET /readyz?verbose&exclude=data_corruption&exclude=unknown",
        "GET /readyz?verbose&exclude=data_corruption,non_learner",
        "GET /readyz?%76erbose&exclude=data%5fcorruption&exclude=non_learner&exclude=linearizable_read",
    ];
    expect::check("http.healthy.txt", &(text + &healthy().transcript("odd queries", &odd)));
}

#[test]
fn probes_of_members_that_are_not() {
    let alarmed =
        |alarms: Vec<InternalRaftRequest>| served(Given { entries: alarms, ..Given::default() }, |_| {});
    let excluding = [
        "GET /health?exclude=NOSPACE",
        "GET /health?exclude=nospace",
        "GET /health?exclude=NOSPACE%20",
        "GET /health?exclude=CORRUPT",
        "GET /health?exclude=NOSPACE&exclude=CORRUPT",
        "GET /health?exclude=CORRUPT;exclude=NOSPACE",
        "GET /health?exclude=%zz&exclude=CORRUPT",
        "GET /readyz?exclude=data_corruption&verbose",
    ];
    let with_excluding = [PROBES, &excluding].concat();
    let mut text = String::new();
    let nospace = alarmed(vec![alarm(MEMBER, AlarmType::Nospace)]);
    text += &nospace.transcript("out of space", &with_excluding);
    // As in etcd, an alarm of any member counts.
    let corrupt = alarmed(vec![alarm(5, AlarmType::Corrupt)]);
    text += &corrupt.transcript("another member is corrupt", &with_excluding);
    let both = alarmed(vec![alarm(MEMBER, AlarmType::Corrupt), alarm(MEMBER, AlarmType::Nospace)]);
    text += &both.transcript("both", &with_excluding);
    let leaderless = served(Given::default(), |state| {
        state.leader = 0;
        state.reads_local = false;
    });
    text += &leaderless.transcript("no leader", PROBES);
    let early = served(Given::default(), |state| state.reads_local = false);
    text += &early.transcript("a leader that may not read yet", PROBES);
    let learner = served(Given { learner: true, ..Given::default() }, |state| state.reads_local = false);
    text += &learner.transcript("learner", PROBES);
    expect::check("http.unhealthy.txt", &text);
}

#[test]
fn other_paths_and_methods() {
    let mut text = healthy().transcript(
        "paths",
        &[
            "GET /version",
            "GET /version/",
            "GET /",
            "GET /foo",
            "GET /health/",
            "GET /livez/foo",
            "GET /livez%2Fserializable_read",
            "GET /livez/non_learner",
            "GET /%68ealth",
            "GET /metrics/",
            "GET /v2/keys",
            "GET /v3",
            "GET /v3alpha/kv/range",
            "GET //health?exclude=a&b='c'",
            "HEAD /a/../health",
            "POST //health",
            "GET /health%zz",
            "GET *",
        ],
    );
    let mut methods = Vec::new();
    for method in ["HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "FOO"] {
        for path in ["/health", "/livez/serializable_read", "/readyz", "/version", "/debug/vars", "/foo"] {
            methods.push(format!("{method} {path}"));
        }
    }
    methods.push("OPTIONS *".to_owned());
    methods.push("OPTIONS //a".to_owned());
    let methods: Vec<&str> = methods.iter().map(String::as_str).collect();
    text += &healthy().transcript("methods", &methods);
    text += &served(Given::default(), |_| {})
        .transcript("version before the cluster's is known", &["GET /version"]);
    expect::check("http.other.txt", &text);
}

/// First Go's server checks the host and the origin of a request, then etcd does; this member does the same.
#[test]
fn hosts_and_origins_are_looked_at_as_by_etcd() {
    let mut given = healthy();
    let shared = Arc::get_mut(&mut given.shared).expect("nobody else has it");
    shared.clients.browsers.hosts = Some(vec!["good".to_owned(), "::1".to_owned()]);
    shared.clients.browsers.origins = Some(vec!["http://page:1".to_owned()]);
    let ask = |method: &str, target: &str, headers: &[(&str, &str)]| {
        let mut request = Request::builder().method(method).uri(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Bytes::new()).unwrap();
        let answer = http::answer(&given.shared, &given.values, &given.counters, &given.logger, &request);
        let origin = answer.headers().get("access-control-allow-origin");
        let origin = origin.map(|origin| origin.to_str().unwrap().to_owned());
        (answer.status().as_u16(), origin, String::from_utf8(answer.into_body().to_vec()).unwrap())
    };
    for (hosts, why) in [
        (&[][..], "missing required Host header"),
        (&["good", "good"], "too many Host headers"),
        (&["go\"od"], "malformed Host header"),
        (&["go od"], "malformed Host header"),
    ] {
        let headers: Vec<_> = hosts.iter().map(|host| ("host", *host)).collect();
        assert_eq!(ask("GET", "/version", &headers), (400, None, format!("400 Bad Request: {why}")));
    }
    let page = Some("http://page:1".to_owned());
    for (target, host, status) in [
        ("/version", "good", 200),
        ("/version", "good:1", 200),
        ("/version", "[::1]:2379", 200),
        ("/version", "GOOD", 421),
        ("/version", "", 421),
        ("/version", "bad", 421),
        ("//version", "bad", 421),
        ("//version", "good", 307),
        ("http://bad/version", "good", 421),
        ("http://good:7/version", "bad", 200),
        ("/%zz", "bad", 400),
    ] {
        let (found, origin, _) = ask("GET", target, &[("host", host), ("origin", "http://page:1")]);
        assert_eq!(found, status, "{target} of {host}");
        assert_eq!(origin, page.clone().filter(|_| status < 400), "{target} of {host}");
    }
    for origin in ["http://page:2", "http://page", "https://page:1", "null", ""] {
        let (status, allowed, _) = ask("OPTIONS", "/v3/kv/put", &[("host", "good"), ("origin", origin)]);
        assert_eq!((status, allowed), (200, None), "{origin}");
    }
    assert_eq!(ask("GET", "/version", &[("host", "good")]).1, None, "a request of no page");
}

#[test]
fn cors_headers_are_those_of_etcd() {
    let response = healthy().answer(&Method::GET, "/foo");
    for (name, value) in [
        ("access-control-allow-headers", "accept, content-type, authorization"),
        ("access-control-allow-methods", "POST, GET, OPTIONS, PUT, DELETE"),
        ("access-control-allow-origin", "*"),
    ] {
        assert_eq!(response.headers()[name], value);
    }
}

#[test]
fn the_page_that_names_keys_is_not_for_pages_from_elsewhere() {
    let served = served(Given::default(), |state| {
        let mut members = (*state.members).clone();
        members.by_id.get_mut(&MEMBER).unwrap().client_urls =
            vec!["https://one.example.org:2379/".to_owned()];
        state.members = Arc::new(members);
    });
    let ask = |headers: &[(&str, &str)]| {
        let mut request = Request::builder().uri("/debug/mainstay");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Bytes::new()).unwrap();
        http::answer(&served.shared, &served.values, &served.counters, &served.logger, &request)
    };
    for host in [
        "10.0.0.1:2379",
        "[::1]:2379",
        "127.0.0.1",
        "localhost:2379",
        "etcd-0",
        "one.example.org",
        "ONE.example.org:99",
    ] {
        let response = ask(&[("host", host)]);
        assert_eq!(response.status(), 200, "{host}");
        assert_eq!(response.headers()["x-content-type-options"], "nosniff");
        assert!(!response.headers().keys().any(|name| name.as_str().starts_with("access-control-")));
    }
    assert_eq!(ask(&[]).status(), 400);
    assert_eq!(ask(&[("host", "10.0.0.1:2379"), ("origin", "http://10.0.0.1:2379")]).status(), 200);
    assert_eq!(ask(&[("host", "localhost"), ("sec-fetch-site", "none")]).status(), 200);
    for refused in [
        &[("host", "rebound.example.com:2379")][..],
        &[("host", "one.example.org.example.com")],
        &[("host", "1.2.3.4.example.com")],
        &[("host", "10.0.0.1:2379"), ("origin", "http://example.com")],
        &[("host", "10.0.0.1:2379"), ("origin", "null")],
        &[("host", "10.0.0.1:2379"), ("sec-fetch-site", "cross-site")],
    ] {
        let response = ask(refused);
        assert_eq!(response.status(), 403, "{refused:?}");
        assert!(!response.headers().contains_key("access-control-allow-origin"));
    }
    for path in
        ["/debug/mainstay", "/debug/requests", "/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/x"]
    {
        for method in [Method::OPTIONS, Method::GET] {
            let answer = served.answer(&method, path);
            assert!(!answer.headers().contains_key("access-control-allow-origin"), "{method} {path}");
        }
    }
}

#[test]
fn variables_are_json_with_what_is_known() {
    let served = healthy();
    let response = served.answer(&Method::GET, "/debug/vars");
    assert_eq!(response.headers()["content-type"], "application/json; charset=utf-8");
    let variables: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
    let names: Vec<&String> = variables.as_object().unwrap().keys().collect();
    assert_eq!(names, ["cmdline", "file_descriptor_limit", "raft.status"]);
    let executable = std::env::args().next().unwrap();
    assert_eq!(variables["cmdline"][0], executable.as_str());
    assert!(variables["file_descriptor_limit"].as_u64().unwrap() > 0);
    let status = serde_json::json!({
        "id": "ab", "term": 2, "commit": 3, "lead": "ab", "raftState": "StateLeader", "applied": 3,
    });
    assert_eq!(variables["raft.status"], status);
    assert!(response.body().starts_with(b"{\n\"cmdline\": ["), "as expvar lays it out");
    assert!(response.body().ends_with(b"}\n}\n"));
}

fn value(text: &str, series: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{series} is missing")).parse().unwrap()
}

#[test]
fn a_scrape_shows_the_state() {
    let entries = vec![cluster_version("3.7.0"), put("a"), put("b"), put("a"), alarm(5, AlarmType::Nospace)];
    let served = served(Given { entries, ..Given::default() }, |state| state.commit_index = Index(9));
    for method in [Method::GET, Method::HEAD, Method::POST] {
        let response = served.answer(&method, "/metrics?x");
        assert_eq!(response.status(), 200);
        let content_type = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";
        assert_eq!(response.headers()["content-type"], content_type);
    }
    let request = Request::builder()
        .uri("/metrics")
        .header("host", "x")
        .header("accept", "application/openmetrics-text");
    let response = http::answer(
        &served.shared,
        &served.values,
        &served.counters,
        &served.logger,
        &request.body(Bytes::new()).unwrap(),
    );
    assert!(response.headers()["content-type"].to_str().unwrap().starts_with("text/plain; version=0.0.4"));

    let text = served.body("/metrics");
    for (series, expected) in [
        ("etcd_server_has_leader", 1.0),
        ("etcd_server_is_leader", 1.0),
        ("etcd_server_is_learner", 0.0),
        ("etcd_server_proposals_committed_total", 9.0),
        ("etcd_server_proposals_applied_total", 5.0),
        ("etcd_server_quota_backend_bytes", f64::from(1u32 << 31)),
        ("etcd_cluster_version{cluster_version=\"3.7\"}", 1.0),
        ("etcd_network_known_peers{Local=\"ab\",Remote=\"ab\"}", 1.0),
        ("etcd_debugging_server_alarms{alarm_type=\"NOSPACE\",server_id=\"5\"}", 1.0),
        ("etcd_debugging_mvcc_current_revision", 4.0),
        ("etcd_debugging_mvcc_compact_revision", -1.0),
        ("etcd_debugging_mvcc_keys_total", 2.0),
        ("etcd_mvcc_db_total_size_in_bytes", 123_456.0),
        ("etcd_disk_backend_commit_duration_seconds_count", 0.0),
    ] {
        assert_eq!(value(&text, series), expected, "{series}");
    }
    assert!(value(&text, "etcd_mvcc_db_total_size_in_use_in_bytes") >= 3.0 * 64.0);
    assert_eq!(
        value(&text, "etcd_disk_wal_fsync_duration_seconds_count"),
        5.0,
        "one for each turn of the log"
    );
    assert_eq!(value(&text, "etcd_disk_wal_write_duration_seconds_count"), 5.0);
    assert!(value(&text, "etcd_disk_wal_write_bytes_total") > 100.0);

    // The next scrape shows the new state completely: series of conditions that have ended are 0.
    let before = served.shared.state.load_full();
    served.shared.state.store(Arc::new(Published {
        view: Arc::clone(&before.view),
        applied_index: Index(10),
        applied_term: Term(3),
        commit_index: Index(10),
        leader: 0,
        reads_local: false,
        alarms: Arc::default(),
        members: Arc::clone(&before.members),
        auth: Arc::clone(&before.auth),
        in_use_bytes: 7,
        removed_through: Revision(-1),
        is_wrong: false,
    }));
    let text = served.body("/metrics");
    for (series, expected) in [
        ("etcd_server_has_leader", 0.0),
        ("etcd_server_is_leader", 0.0),
        ("etcd_server_proposals_applied_total", 10.0),
        ("etcd_debugging_server_alarms{alarm_type=\"NOSPACE\",server_id=\"5\"}", 0.0),
        ("etcd_mvcc_db_total_size_in_use_in_bytes", 7.0),
    ] {
        assert_eq!(value(&text, series), expected, "{series}");
    }
}

#[test]
fn a_scrape_sums_what_the_shards_counted() {
    let served = healthy();
    let method = |started, code: Code| {
        let counters = MethodCounters { started: AtomicU64::new(started), ..MethodCounters::default() };
        counters.handled[code as usize].store(started - 1, std::sync::atomic::Ordering::Relaxed);
        counters.messages_received.store(started * 10, std::sync::atomic::Ordering::Relaxed);
        counters.messages_sent.store(started * 100, std::sync::atomic::Ordering::Relaxed);
        counters
    };
    let shard = |methods| {
        Arc::new(ShardCounters {
            methods,
            bytes_received: AtomicU64::new(1_000),
            bytes_sent: AtomicU64::new(2_000),
            connections: AtomicUsize::new(1),
            ..ShardCounters::new(0)
        })
    };
    assert_eq!(value(&served.body("/metrics"), "etcd_network_client_grpc_sent_bytes_total"), 0.0);
    // One of the shards knows fewer methods than the metrics; the sum must still be right.
    let shards = vec![
        shard(vec![method(5, Code::Ok), method(2, Code::Canceled)]),
        shard(vec![method(7, Code::NotFound)]),
    ];
    served.counters.set(shards);
    let range = "grpc_method=\"Range\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"}";
    let watch = "grpc_method=\"Watch\",grpc_service=\"etcdserverpb.Watch\",grpc_type=\"bidi_stream\"}";
    for _ in 0..2 {
        // A second scrape shows the same values: nothing is counted twice.
        let text = served.body("/metrics");
        for (series, expected) in [
            (format!("grpc_server_started_total{{{range}"), 12.0),
            (format!("grpc_server_started_total{{{watch}"), 2.0),
            (format!("grpc_server_handled_total{{grpc_code=\"OK\",{range}"), 4.0),
            (format!("grpc_server_handled_total{{grpc_code=\"NotFound\",{range}"), 6.0),
            (format!("grpc_server_handled_total{{grpc_code=\"Canceled\",{watch}"), 1.0),
            (format!("grpc_server_msg_received_total{{{range}"), 120.0),
            (format!("grpc_server_msg_sent_total{{{range}"), 1_200.0),
            ("etcd_network_client_grpc_received_bytes_total".to_owned(), 2_000.0),
            ("etcd_network_client_grpc_sent_bytes_total".to_owned(), 4_000.0),
        ] {
            assert_eq!(value(&text, &series), expected, "{series}");
        }
    }
}

#[test]
fn the_version_page_is_that_of_the_release_presented() {
    for (api_version, expected) in [
        ("3.7.3", r#"{"etcdserver":"3.7.3","etcdcluster":"3.7.0","storage":"3.7.0"}"#),
        ("3.6.9", r#"{"etcdserver":"3.6.9","etcdcluster":"3.7.0","storage":"3.7.0"}"#),
        ("3.5.24", r#"{"etcdserver":"3.5.24","etcdcluster":"3.7.0"}"#),
    ] {
        let mut served = healthy();
        Arc::get_mut(&mut served.shared).unwrap().member.api_version = api_version;
        assert_eq!(served.body("/version"), expected);
    }
}

#[test]
fn health_is_counted() {
    let served = served(Given::default(), |state| {
        state.leader = 0;
        state.reads_local = false;
    });
    for target in
        ["/health", "/health", "/health?serializable=true", "/readyz", "/readyz?exclude=linearizable_read"]
    {
        served.body(target);
    }
    served.answer(&Method::POST, "/health");
    served.answer(&Method::POST, "/readyz");
    let text = served.body("/metrics");
    let check = |name: &str| format!("etcd_server_healthcheck{{name=\"{name}\",type=\"readyz\"}}");
    let checks = |name: &str, status: &str| {
        format!("etcd_server_healthchecks_total{{name=\"{name}\",status=\"{status}\",type=\"readyz\"}}")
    };
    for (series, expected) in [
        ("etcd_server_health_success".to_owned(), 1.0),
        ("etcd_server_health_failures".to_owned(), 2.0),
        (check("linearizable_read"), 0.0),
        (check("serializable_read"), 1.0),
        (checks("linearizable_read", "error"), 1.0),
        (checks("linearizable_read", "success"), 0.0),
        (checks("serializable_read", "success"), 2.0),
        (checks("non_learner", "success"), 2.0),
    ] {
        assert_eq!(value(&text, &series), expected, "{series}");
    }
}

#[test]
fn health_is_logged_in_etcds_words() {
    let well = healthy();
    let leaderless = served(Given::default(), |state| {
        state.leader = 0;
        state.reads_local = false;
    });
    let early = served(Given::default(), |state| state.reads_local = false);
    let alarmed = served(Given { entries: vec![alarm(5, AlarmType::Corrupt)], ..Given::default() }, |_| {});
    let said = |served: &Served, asked: &str| {
        served.said.take();
        let (method, target) = asked.split_once(' ').unwrap();
        served.answer(&method.parse().unwrap(), target);
        served.said.take()
    };
    let well_lines = [r#"debug serving /health true {}"#, r#"debug /health OK {"status-code":200}"#];
    assert_eq!(said(&well, "GET /health"), well_lines);
    assert_eq!(
        said(&leaderless, "GET /health"),
        [
            "warn serving /health false; no leader {}",
            r#"warn /health error {"output":"{\"health\":\"false\",\"reason\":\"RAFT NO LEADER\"}","status-code":503}"#,
        ]
    );
    assert_eq!(
        said(&early, "GET /health")[0],
        r#"warn serving /health false; Range fails {"error":"etcdserver: no leader"}"#
    );
    assert_eq!(
        said(&alarmed, "GET /health")[0],
        r#"warn serving /health false due to an alarm {"alarm":"memberID:5 alarm:CORRUPT"}"#
    );
    assert_eq!(
        said(&alarmed, "GET /health?exclude=CORRUPT")[0],
        r#"debug /health excluded alarm {"alarm":"memberID:5 alarm:CORRUPT"}"#
    );
    assert_eq!(said(&well, "POST /health"), [r#"warn /health error {"status-code":405}"#]);
    assert_eq!(
        said(&well, "GET /livez"),
        [r#"debug Health check OK {"path":"/livez","reason":"[+]serializable_read ok\n","status-code":200}"#]
    );
    assert_eq!(
        said(&leaderless, "GET /readyz/linearizable_read"),
        [
            r#"error Health check error {"path":"/readyz/linearizable_read","reason":"[-]linearizable_read failed: etcdserver: no leader\n","status-code":503}"#
        ]
    );
    assert_eq!(
        said(&well, "POST /readyz"),
        [r#"warn Health request error {"path":"/readyz","status-code":405}"#]
    );
    assert_eq!(
        said(&well, "GET /livez?exclude=ping&exclude=&exclude=serializable_read")[0],
        r#"warn some health checks cannot be excluded {"missing-health-checks":"\"ping\""}"#
    );
}

#[test]
fn garbage_is_answered_like_anything_else() {
    const PIECES: &[&str] = &[
        "/",
        "//",
        ".",
        "..",
        "%",
        "%2",
        "%2f",
        "%2F",
        "%zz",
        "%00",
        "%ff",
        "%C3%A9",
        "+",
        "?",
        "&",
        "=",
        ";",
        "health",
        "livez",
        "readyz",
        "serializable_read",
        "exclude",
        "verbose",
        "NOSPACE",
        "serializable=true",
        "v3",
        "version",
        "metrics",
        "debug/vars",
        "*",
        "\u{e9}",
        "~",
        "'",
        "\"",
        "{",
        "|",
        ":",
        "@",
        ",",
        "0",
    ];
    const METHODS: [&str; 6] = ["GET", "HEAD", "POST", "OPTIONS", "CONNECT", "X"];
    let served = healthy();
    let mut statuses = BTreeSet::new();
    let (mut random, mut asked) = (testkit::Random::new(1), 0);
    let mut draw = |below: usize| random.index(below);
    for _ in 0..20_000 {
        let mut target = "/".to_owned();
        for _ in 0..draw(10) {
            target += PIECES[draw(PIECES.len())];
        }
        let method: Method = METHODS[draw(METHODS.len())].parse().unwrap();
        // An invalid target never reaches the handler.
        let request = Request::builder().method(method).uri(&target).header("host", "x");
        let Ok(request) = request.body(Bytes::new()) else { continue };
        asked += 1;
        let response =
            http::answer(&served.shared, &served.values, &served.counters, &served.logger, &request);
        statuses.insert(response.status().as_u16());
    }
    assert!(asked > 10_000, "{asked}");
    assert_eq!(statuses.into_iter().collect::<Vec<_>>(), [200, 307, 400, 404, 405]);
}

fn fetch(address: std::net::SocketAddr, request: &str) -> String {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket
        .write_all(format!("{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes())
        .unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_metrics_listener_serves_metrics_and_health_alone() {
    let served = healthy();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let options = front::Options::default();
    let front = MetricsListener::start(
        &served.shared,
        &served.counters,
        &served.logger,
        options,
        vec![listener.into()],
    )
    .unwrap();
    for (request, status, end) in [
        ("GET /health", 200, "\r\n\r\n{\"health\":\"true\",\"reason\":\"\"}"),
        ("GET /livez", 200, "\r\n\r\nok\n"),
        ("GET /readyz/non_learner?verbose", 200, "\r\n\r\n[+]non_learner ok\nok\n"),
        ("GET /metrics", 200, "\n"),
        ("HEAD /health", 405, "\r\n\r\n"),
        ("OPTIONS /health", 405, "\r\n\r\nMethod Not Allowed\n"),
        ("GET /version", 404, "\r\n\r\n404 page not found\n"),
        ("GET /debug/vars", 404, "\r\n\r\n404 page not found\n"),
        ("GET /v3/kv/range", 404, "\r\n\r\n404 page not found\n"),
        ("GET //health", 307, "\r\n\r\n<a href=\"/health\">Temporary Redirect</a>.\n\n"),
        ("GET /%zz", 400, "\r\n\r\n400 Bad Request"),
    ] {
        let answer = fetch(address, request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
        assert!(answer.ends_with(end), "{request}: {answer}");
        assert!(!answer.to_ascii_lowercase().contains("access-control"), "{request}: {answer}");
    }
    assert!(fetch(address, "GET /metrics").contains("\netcd_server_has_leader 1\n"));
    front.shutdown_blocking(Duration::from_secs(20));
    assert!(TcpStream::connect(address).is_err(), "nobody listens any more");
}
