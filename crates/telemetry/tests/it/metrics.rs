//! Parses the exposition and compares it with etcd's.

use std::collections::BTreeMap;
use std::time::Duration;

use api::{Code, Rpc};
use mainstay_telemetry::metrics::{MethodTotals, Metrics, MetricsDetail, NetworkMetrics};

use testkit::expect;

const RPCS: &[Rpc] = &[Rpc::KvRange, Rpc::Watch];

/// Feature gates of etcd 3.7 with their stages and default states.
const FEATURES: &[(&str, &str, bool)] = &[
    ("AllAlpha", "ALPHA", false),
    ("AllBeta", "BETA", false),
    ("CompactHashCheck", "ALPHA", false),
    ("FastLeaseKeepAlive", "BETA", true),
    ("InitialCorruptCheck", "ALPHA", false),
    ("LeaseCheckpoint", "ALPHA", false),
    ("LeaseCheckpointPersist", "ALPHA", false),
    ("PriorityRequest", "ALPHA", false),
    ("SetMemberLocalAddr", "ALPHA", false),
    ("StopGRPCServiceOnDefrag", "ALPHA", false),
    ("TxnModeWriteWithSharedBuffer", "BETA", true),
];

/// A family of the exposition: its type, and its samples in order.
#[derive(Debug, Default)]
struct Family {
    kind: String,
    samples: Vec<(String, f64)>,
}

fn render(metrics: &Metrics) -> String {
    let mut text = String::new();
    metrics.render(&mut text);
    text
}

/// Parses a text exposition and checks its grammar.
fn read(text: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    let mut helped = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            helped = rest.split_once(' ').unwrap().0.to_string();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(name, helped, "HELP comes before TYPE");
            let family = Family { kind: kind.to_string(), samples: Vec::new() };
            assert!(families.insert(name.to_string(), family).is_none(), "{name} twice");
            current = name.to_string();
        } else {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let value = if value == "+Inf" { f64::INFINITY } else { value.parse().unwrap() };
            assert!(series.starts_with(&current), "{series} under {current}");
            families.get_mut(&current).unwrap().samples.push((series.to_string(), value));
        }
    }
    families
}

fn value(text: &str, series: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{series} is missing")).parse().unwrap()
}

/// Creates a series of every family that has labels.
fn touch_everything(metrics: &Metrics) {
    let server = &metrics.server;
    server.learner_promote_failures.with(&["r"]).inc();
    server.set_id(0xab);
    server.set_cluster_version("3.7");
    server.set_features(FEATURES.iter().copied());
    server.client_requests_of("3.7").unary.inc();
    server.apply_duration_of("Put", true).observe(0.1);
    server.range_duration_of(false).observe(0.1);
    server.request_duration_of("Put", true).observe(0.1);
    server.set_alarms([(0xab, "NOSPACE")].into_iter());
    server.stage("fsync").observe(0.1);
    for family in [&server.heavy_requests, &server.heavy_bytes, &server.heavy_time] {
        family.replace(vec![(vec!["prefix".to_owned(), "/registry/pods/".to_owned()], 7)]);
    }
    metrics.health.check("livez", "serializable_read").record(true);
    metrics.network.server_stream_failures.with(&["receive", "watch"]).inc();
    metrics.network.set_members(0xab, [0xab, 0xcd].into_iter());
    touch_peers(&metrics.network);
    metrics.tls.not_after.with(&["client", "server"]).set(1_900_000_000);
    metrics.tls.generation.with(&["client"]).set(1);
    metrics.tls.reload_failures.with(&["client"]).inc();
    metrics.tls.reload_failing.with(&["client"]).set(1);
    metrics.tls.rejected.with(&["client"]).inc();
}

/// Creates a series of every family about another member.
fn touch_peers(network: &NetworkMetrics) {
    let both = &["ab", "cd"];
    network.active_peers.with(both).set(1);
    network.disconnected_peers.with(both).raise_to(2);
    for (family, count) in [
        (&network.peer_sent_bytes, 100),
        (&network.peer_received_bytes, 200),
        (&network.peer_sent_failures, 5),
        (&network.peer_received_failures, 6),
        (&network.snapshot_send_success, 7),
        (&network.snapshot_send_failures, 4),
        (&network.snapshot_receive_success, 8),
        (&network.snapshot_receive_failures, 4),
    ] {
        family.with(&["cd"]).raise_to(count);
    }
    network.snapshot_receive_failures.with(&["UNKNOWN_SNAPSHOT_SENDER"]).raise_to(9);
    for family in [&network.snapshot_send_inflights, &network.snapshot_receive_inflights] {
        family.with(&["cd"]).set(1);
    }
    for (family, bounds) in [
        (&network.peer_round_trip_time, 16),
        (&network.snapshot_send_duration, 10),
        (&network.snapshot_receive_duration, 10),
    ] {
        // One sample in the second bucket, and two above all bounds.
        let counts: Vec<u64> =
            (0..=bounds).map(|at| if at == bounds { 2 } else { u64::from(at == 1) }).collect();
        family.with(&["cd"]).raise_to(&counts, 2.5);
    }
}

#[test]
fn names_types_labels_and_bounds_are_those_of_etcd() {
    let metrics = Metrics::new(RPCS, MetricsDetail::Basic);
    touch_everything(&metrics);
    let families = read(&render(&metrics));
    let reference = expect::read("etcd_metrics.txt");
    let reference: BTreeMap<&str, Vec<&str>> = reference
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split('|').map(str::trim).collect::<Vec<_>>())
        .map(|columns| (columns[0], columns))
        .collect();
    let mut compared = 0;
    for (name, family) in
        families.iter().filter(|(name, _)| name.starts_with("etcd_") || name.starts_with("os_"))
    {
        let columns = reference.get(name.as_str()).unwrap_or_else(|| panic!("{name} is no metric of etcd's"));
        assert_eq!(family.kind, columns[1], "type of {name}");
        let mut labels: Vec<&str> = columns[2].split(',').map(str::trim).filter(|l| !l.is_empty()).collect();
        labels.sort_unstable();
        let histogram = family.kind == "histogram";
        for (series, _) in &family.samples {
            let inner = series.split_once('{').map_or("", |(_, inner)| inner.trim_end_matches('}'));
            let found: Vec<&str> = inner
                .split(',')
                .filter_map(|pair| Some(pair.split_once('=')?.0))
                .filter(|l| *l != "le")
                .collect();
            assert_eq!(found, labels, "labels of {series}");
        }
        if histogram {
            let buckets: Vec<f64> =
                columns[3].split(',').map(|number| number.trim().parse().unwrap()).collect();
            let [start, factor, count] = buckets[..] else { panic!("buckets of {name}: {buckets:?}") };
            let mut bounds: Vec<f64> = (0..count as i32).map(|i| start * factor.powi(i)).collect();
            bounds.push(f64::INFINITY);
            let found: Vec<f64> = family
                .samples
                .iter()
                .filter_map(|(series, _)| series.split_once("le=\"")?.1.split('"').next())
                .map(|bound| bound.parse().unwrap())
                .collect();
            assert_eq!(found.len(), bounds.len(), "number of buckets of {name}");
            for (found, expected) in found.iter().zip(&bounds) {
                let near = found == expected || (found - expected).abs() / expected < 1e-12;
                assert!(near, "bound of {name}: {found}, not {expected}");
            }
        }
        compared += 1;
    }
    let ours = |name: &str| ["grpc_", "mainstay_", "promhttp_"].iter().any(|part| name.starts_with(part));
    let registered = metrics.descriptors().filter(|row| !ours(row.name)).count();
    assert_eq!(compared, registered + 2, "all rows of the table, and os_fd_used and os_fd_limit");
}

#[test]
fn the_exposition_is_as_expected() {
    let metrics = Metrics::new(RPCS, MetricsDetail::Extensive);
    touch_everything(&metrics);
    metrics.disk.wal_write_bytes.set_u64(1 << 21);
    let mut writes = [0; 15];
    writes[2] = 1;
    metrics.disk.wal_write_duration.raise_to(&writes, 0.003);
    metrics.lease.ttl.observe(60.0);
    let mut totals = MethodTotals { started: 2, ..MethodTotals::default() };
    totals.handled[Code::NotFound as usize] = 1;
    metrics.grpc.methods()[0].raise_to(&totals);
    metrics.grpc.methods()[0].took(Duration::from_millis(7));
    let without_process = |text: String| {
        let is_of_the_process = |line: &str| {
            ["process_", "os_fd_", "go_threads", "go_sched_", "mainstay_processors"]
                .iter()
                .any(|part| line.contains(part))
        };
        let kept = |line: &&str| !is_of_the_process(line);
        text.lines().filter(kept).map(|line| format!("{line}\n")).collect::<String>()
    };
    expect::check("metrics.prometheus.txt", &without_process(render(&metrics)));
}

#[test]
fn every_method_and_code_is_there_from_the_start() {
    let metrics = Metrics::new(RPCS, MetricsDetail::Basic);
    let families = read(&render(&metrics));
    for (name, series) in [
        ("grpc_server_started_total", 2),
        ("grpc_server_msg_received_total", 2),
        ("grpc_server_msg_sent_total", 2),
        ("grpc_server_handled_total", 2 * 17),
    ] {
        assert_eq!(families[name].samples.len(), series, "{name}");
        assert!(families[name].samples.iter().all(|(_, value)| *value == 0.0));
    }
    assert!(!families.contains_key("grpc_server_handling_seconds"), "only when extensive");
    // The series as etcd 3.4.23 writes it.
    let series = "grpc_server_handled_total{grpc_code=\"Aborted\",grpc_method=\"Range\",\
                  grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"}";
    assert_eq!(value(&render(&metrics), series), 0.0);
}

#[test]
fn what_many_threads_count_is_all_there() {
    let metrics = Metrics::new(RPCS, MetricsDetail::Extensive);
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                let apply = metrics.server.apply_duration_of("Put", true);
                let watch = &metrics.grpc.methods()[1];
                for i in 0..1_000u32 {
                    metrics.mvcc.puts.inc();
                    metrics.server.proposals_pending.add(if i % 2 == 0 { 1 } else { -1 });
                    apply.observe(0.5);
                    watch.took(Duration::from_millis(1));
                }
            });
        }
    });
    let text = render(&metrics);
    assert_eq!(metrics.mvcc.puts.value(), 10_000);
    assert_eq!(metrics.server.proposals_pending.value(), 0);
    let labels = "{op=\"Put\",success=\"true\",version=\"v3\"}";
    assert_eq!(value(&text, &format!("etcd_server_apply_duration_seconds_count{labels}")), 10_000.0);
    assert_eq!(value(&text, &format!("etcd_server_apply_duration_seconds_sum{labels}")), 5_000.0);
    let labels = "{grpc_method=\"Watch\",grpc_service=\"etcdserverpb.Watch\",grpc_type=\"bidi_stream\"}";
    assert_eq!(value(&text, &format!("grpc_server_handling_seconds_count{labels}")), 10_000.0);
}

#[test]
fn a_bound_belongs_to_its_bucket() {
    let metrics = Metrics::new(&[], MetricsDetail::Basic);
    for seconds in [0.0, 0.001, 0.0011, 8.192, 8.193, 1e9] {
        metrics.disk.backend_commit_duration.observe(seconds);
    }
    let text = render(&metrics);
    let bucket = |bound: &str| {
        value(&text, &format!("etcd_disk_backend_commit_duration_seconds_bucket{{le=\"{bound}\"}}"))
    };
    assert_eq!([bucket("0.001"), bucket("0.002"), bucket("8.192"), bucket("+Inf")], [2.0, 3.0, 4.0, 6.0]);
}

#[test]
fn label_values_from_clients_are_bounded_and_escaped() {
    let metrics = Metrics::new(&[], MetricsDetail::Basic);
    for i in 0..1_000 {
        metrics.server.client_requests_of(&format!("{i}")).unary.inc();
    }
    assert!(metrics.server.client_requests.len() <= 258, "{}", metrics.server.client_requests.len());
    let text = render(&metrics);
    let families = read(&text);
    let total: f64 =
        families["etcd_server_client_requests_total"].samples.iter().map(|(_, value)| value).sum();
    assert_eq!(total, 1_000.0, "what has no series of its own is counted in the shared one");

    let metrics = Metrics::new(&[], MetricsDetail::Basic);
    metrics.server.client_requests_of("a\"b\\c\nd").unary.inc();
    let text = render(&metrics);
    let series = "etcd_server_client_requests_total{client_api_version=\"a\\\"b\\\\c\\nd\",type=\"unary\"}";
    assert_eq!(value(&text, series), 1.0);
}

#[test]
fn the_process_is_described() {
    let text = render(&Metrics::new(&[], MetricsDetail::Basic));
    assert!(value(&text, "process_resident_memory_bytes") > 100_000.0);
    assert!(value(&text, "process_virtual_memory_bytes") >= value(&text, "process_resident_memory_bytes"));
    assert!(value(&text, "process_cpu_seconds_total") >= 0.0);
    assert!(value(&text, "mainstay_processors") >= 1.0);
    assert!(value(&text, "process_open_fds") >= 3.0);
    assert!(value(&text, "go_threads") >= 1.0 && value(&text, "go_sched_gomaxprocs_threads") >= 1.0);
    assert!(value(&text, "process_network_receive_bytes_total") >= 0.0);
    assert!(value(&text, "process_network_transmit_bytes_total") >= 0.0);
    assert!(value(&text, "os_fd_used") <= value(&text, "os_fd_limit"));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    let age = now - value(&text, "process_start_time_seconds");
    assert!((-2.0..3_600.0).contains(&age), "started {age} s ago");
}

#[test]
fn a_version_or_an_alarm_of_before_becomes_zero() {
    let metrics = Metrics::new(&[], MetricsDetail::Basic);
    metrics.server.set_cluster_version("3.6");
    metrics.server.set_cluster_version("3.7");
    metrics.server.set_alarms([(1, "NOSPACE"), (2, "CORRUPT")].into_iter());
    metrics.server.set_alarms([(2, "CORRUPT")].into_iter());
    let text = render(&metrics);
    assert_eq!(value(&text, "etcd_cluster_version{cluster_version=\"3.6\"}"), 0.0);
    assert_eq!(value(&text, "etcd_cluster_version{cluster_version=\"3.7\"}"), 1.0);
    let alarm = |alarm: &str, member: &str| {
        value(
            &text,
            &format!("etcd_debugging_server_alarms{{alarm_type=\"{alarm}\",server_id=\"{member}\"}}"),
        )
    };
    assert_eq!([alarm("NOSPACE", "1"), alarm("CORRUPT", "2")], [0.0, 1.0]);
}

#[test]
fn the_bounds_of_the_log_are_those_of_the_metrics() {
    let metrics = Metrics::new(&[], MetricsDetail::Basic);
    let sizes = log::SIZE_BOUNDS.map(|bound| bound as f64);
    for (name, of_log) in [
        ("etcd_disk_wal_fsync_duration_seconds", &log::DURATION_BOUNDS_S[..]),
        ("etcd_disk_wal_write_duration_seconds", &log::DURATION_BOUNDS_S),
        ("mainstay_log_shared_sync_duration_seconds", &log::DURATION_BOUNDS_S),
        ("mainstay_log_sync_entries", &sizes),
    ] {
        let row = metrics.descriptors().find(|row| row.name == name).unwrap();
        let bounds = row.buckets.unwrap().bounds();
        assert_eq!(bounds.len(), of_log.len(), "{name}");
        for (a, b) in bounds.iter().zip(of_log) {
            assert!((a - b).abs() < 1e-9, "{name}: {a} is not {b}");
        }
    }
}
