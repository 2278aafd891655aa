//! Implements the command `kubernetes`: the load of a Kubernetes cluster, and the search for the largest
//! cluster that a server carries.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use cli::{Command, Failure, Flag, Matches};

use super::Run;
use crate::given::{self, CACERT, CERT, INSECURE_SKIP_TLS_VERIFY, KEY, PID};
use crate::loadgen::ask::Asker;
use crate::loadgen::calls::Target;
use crate::loadgen::drive::{self, Observer};
use crate::loadgen::histogram::Histogram;
use crate::loads::kubernetes::fleet::Fleet;
use crate::loads::kubernetes::measured::{Measured, Window};
use crate::loads::kubernetes::objects::{Contents, Sizes};
use crate::loads::kubernetes::search::{self, Found};
use crate::loads::kubernetes::{Cluster, KINDS};
use crate::machine;
use crate::outcome::{Document, Row};
use crate::render::short;
use crate::servers::{Contestant, Server, programs};
use crate::session::Session;
use crate::tls;
use crate::usage::{Meter, ThreadTime, Usage, threads_since};

const NODES: Flag<u64> =
    Flag::uint("nodes", "1000", "Nodes of the cluster; with --find, the number to start with");
const API_SERVERS: Flag<u64> = Flag::uint(
    "api-servers",
    "3",
    "API servers: each has one connection, to one of the endpoints in turn, and one watch stream",
);
const PODS_PER_NODE: Flag<f64> = Flag::float("pods-per-node", "30", "Pods on each node");
const LEASE_INTERVAL: Flag<Duration> =
    Flag::duration("lease-interval", "10s", "Interval at which each node renews its lease");
const STATUS_INTERVAL: Flag<Duration> =
    Flag::duration("status-interval", "5m0s", "Interval at which each node reports its status");
const POD_LIFETIME: Flag<Duration> = Flag::duration(
    "pod-lifetime",
    "2h0m0s",
    "Mean time after which a pod is replaced: seven writes of pods and six events (0s: no pod changes)",
);
const EVENT_TTL: Flag<Duration> =
    Flag::duration("event-ttl", "1h0m0s", "Time for which events are kept, by leases");
const COMPACTION_INTERVAL: Flag<Duration> =
    Flag::duration("compaction-interval", "5m0s", "Interval at which the API servers compact (0s: never)");
const PROGRESS_INTERVAL: Flag<Duration> = Flag::duration(
    "progress-interval",
    "100ms",
    "Interval at which each API server reads the revision and asks its watches for progress (0s: never)",
);
const LIST_PAGE: Flag<u64> =
    Flag::uint("list-page", "500", "Keys in a page of the first lists, if the server has no RangeStream");
const WATCH_EVENTS: Flag<bool> = Flag::on("watch-events", "API servers watch events, too");
const CONTENTS: Flag<String> =
    Flag::text("contents", "realistic", "What values are: realistic (texts of a cluster) or incompressible");
const NODE_BYTES_MIN: Flag<i64> = Flag::int("node-bytes-min", "10240", "Smallest size of a node");
const NODE_BYTES_MAX: Flag<i64> = Flag::int("node-bytes-max", "20480", "Largest size of a node");
const POD_BYTES_MIN: Flag<i64> = Flag::int("pod-bytes-min", "10240", "Smallest size of a pod");
const POD_BYTES_MAX: Flag<i64> = Flag::int("pod-bytes-max", "71680", "Largest size of a pod");
const SEED: Flag<u64> = Flag::uint("seed", "1", "Seed of the objects");
const DURATION: Flag<Duration> = Flag::duration("duration", "1m0s", "Time for which the load is measured");
const WARMUP: Flag<Duration> =
    Flag::duration("warmup", "10s", "Warm-up time of the load before it is measured");
const P99: Flag<Duration> = Flag::duration(
    "p99",
    "50ms",
    "Longest p99 of each kind of operation with which the cluster counts as carried",
);
const FIND: Flag<bool> = Flag::bool(
    "find",
    "Find the largest cluster that the server carries: double the nodes, then bisect to a tenth",
);
const FIND_MAX: Flag<u64> = Flag::uint("find-max", "1000000", "Largest number of nodes that --find tries");
const SERVER: Flag<Vec<String>> = Flag::list(
    "server",
    "",
    "`NAME=PATH`: a server to start and measure instead of the endpoints; its flags follow, each after a comma; may \
     be given several times",
);
const TLS: Flag<bool> = Flag::bool(
    "tls",
    "With --server: the servers that are started and the API servers use TLS, with generated certificates",
);
const DATA_DIR: Flag<String> = Flag::text(
    "data-dir",
    "",
    "Directory for the data of servers that are started (default: a temporary one)",
);

pub(super) const KUBERNETES: Command<Run> = Command {
    name: "kubernetes",
    usage: "kubernetes",
    about: "Benchmark the load of a Kubernetes cluster",
    long: "Generates what the API servers of a Kubernetes cluster ask of etcd: renewals of leases, node status, pods \
           that come\nand go, events, watches, lists and compactions. Operations begin when they are due, whatever \
           the server does. Each\nAPI server checks that its watches receive every write.",
    flags: &[
        NODES.row(),
        API_SERVERS.row(),
        PODS_PER_NODE.row(),
        LEASE_INTERVAL.row(),
        STATUS_INTERVAL.row(),
        POD_LIFETIME.row(),
        EVENT_TTL.row(),
        COMPACTION_INTERVAL.row(),
        PROGRESS_INTERVAL.row(),
        LIST_PAGE.row(),
        WATCH_EVENTS.row(),
        CONTENTS.row(),
        NODE_BYTES_MIN.row(),
        NODE_BYTES_MAX.row(),
        POD_BYTES_MIN.row(),
        POD_BYTES_MAX.row(),
        SEED.row(),
        DURATION.row(),
        WARMUP.row(),
        P99.row(),
        FIND.row(),
        FIND_MAX.row(),
        SERVER.row(),
        TLS.row(),
        DATA_DIR.row(),
    ],
    example: "  bench kubernetes --nodes 5000 --duration 5m --json cluster.json\n  \
              bench kubernetes --find --pods-per-node 1 --compaction-interval 20s\n  \
              bench kubernetes --nodes 1000 --server etcd=/usr/bin/etcd --server mainstay=/usr/bin/mainstay",
    run: Some(Run::of(kubernetes).without(&[
        given::CLIENTS.row(),
        given::CONNS.row(),
        given::PRECISE.row(),
        given::REPORT_PERFDASH.row(),
        given::SAMPLE.row(),
    ])),
    ..Command::EMPTY
};

/// Longest wait for answers and events after the window. A server that takes longer does not keep up.
const CATCH_UP_MAX: Duration = Duration::from_secs(30);

/// What to measure, from the flags.
struct Plan {
    cluster: Cluster,
    nodes: u64,
    warm_up: Duration,
    duration: Duration,
    p99_max: Duration,
    /// Largest number of nodes to try; `None` to measure one number only.
    find_max: Option<u64>,
}

fn kubernetes(session: &Session) -> Result<(), Failure> {
    let matches = &session.matches;
    let plan = plan(matches)?;
    let tls = matches.get(TLS);
    let contestants = programs(matches.get(SERVER))?.into_iter().map(|one| Contestant { tls, ..one });
    let contestants: Vec<Contestant> = contestants.collect();
    if tls && contestants.is_empty() {
        return Err(Failure::usage(
            "--tls has a meaning only with --server; other endpoints are https://HOST:PORT",
        ));
    }
    let mut text = String::new();
    let mut document;
    if contestants.is_empty() {
        let target = session.target()?;
        let pid = u32::try_from(matches.get(PID)).ok().filter(|pid| *pid > 0);
        let meters = target.endpoints.iter().enumerate();
        // --pid names one process. Those of the other endpoints are found by their ports.
        let meters = meters.map(|(at, endpoint)| Meter::new(endpoint, pid.filter(|_| at == 0))).collect();
        document = session.document(&target, machine::checks());
        one_server("", target, meters, &plan, &mut document, &mut text)?;
    } else {
        for flag in [given::ENDPOINTS.row(), given::USER.row(), PID.row()] {
            if matches.is_given(flag) {
                let name = flag.name;
                return Err(Failure::usage(format!("--server and --{name} are mutually exclusive")));
            }
        }
        let place = match matches.get(DATA_DIR) {
            "" => std::env::temp_dir(),
            directory => PathBuf::from(directory),
        };
        let files = tls::Files {
            cacert: matches.get(CACERT).to_owned(),
            cert: matches.get(CERT).to_owned(),
            key: matches.get(KEY).to_owned(),
            skip_verify: matches.get(INSECURE_SKIP_TLS_VERIFY),
        };
        document = Document {
            command: session.command.clone(),
            time: crate::session::now(),
            facts: machine::facts(),
            warnings: machine::checks(),
            ..Document::default()
        };
        for contestant in &contestants {
            let server = Server::start(contestant, &place, &files)?;
            document.facts.push((contestant.name.clone(), format!("version {}", server.version)));
            let (target, meters) = (server.target.clone(), vec![server.meter.clone()]);
            one_server(&contestant.name, target, meters, &plan, &mut document, &mut text)?;
        }
    }
    session.write(&text, &document)
}

fn plan(matches: &Matches) -> Result<Plan, Failure> {
    let positive = |flag: Flag<u64>, max: u64| match matches.get(flag) {
        value if (1..=max).contains(&value) => Ok(value),
        value => Err(Failure::error(format!("expected --{} of 1 to {max}, got ({value})", flag.name()))),
    };
    let lasting = |flag: Flag<Duration>| match matches.get(flag) {
        value if value.is_zero() => Err(Failure::error(format!("--{} must not be 0s", flag.name()))),
        value => Ok(value),
    };
    let sizes = |min: Flag<i64>, max: Flag<i64>, least: usize| {
        let sizes = Sizes { min: given::size(matches, min)?, max: given::size(matches, max)? };
        if sizes.min < least || sizes.max < sizes.min || sizes.max > 1 << 20 {
            return Err(Failure::error(format!(
                "--{} and --{} must be {least} to 1048576 bytes, and the first must not exceed the second",
                min.name(),
                max.name()
            )));
        }
        Ok(sizes)
    };
    let pods_per_node = matches.get(PODS_PER_NODE);
    if !(0.0..=1000.0).contains(&pods_per_node) {
        return Err(Failure::error(format!("expected --pods-per-node of 0 to 1000, got ({pods_per_node})")));
    }
    let contents = match matches.get(CONTENTS) {
        "realistic" => Contents::Realistic,
        "incompressible" => Contents::Incompressible,
        other => {
            return Err(Failure::usage(format!(
                "--contents must be realistic or incompressible, not {other:?}"
            )));
        }
    };
    let event_ttl = matches.get(EVENT_TTL);
    if event_ttl < Duration::from_secs(20) {
        return Err(Failure::error(
            "--event-ttl must be at least 20s: events share leases for a twentieth of it",
        ));
    }
    let nodes = positive(NODES, 10_000_000)?;
    let find_max = positive(FIND_MAX, 10_000_000)?;
    let find = matches.get(FIND);
    if !find && matches.is_given(FIND_MAX.row()) {
        return Err(Failure::usage("--find-max has no meaning without --find"));
    }
    if find && find_max < nodes {
        return Err(Failure::error(format!("--find-max of {find_max} is less than --nodes of {nodes}")));
    }
    Ok(Plan {
        cluster: Cluster {
            api_servers: positive(API_SERVERS, 1000)? as usize,
            pods_per_node,
            lease_interval: lasting(LEASE_INTERVAL)?,
            status_interval: lasting(STATUS_INTERVAL)?,
            pod_lifetime: matches.get(POD_LIFETIME),
            event_ttl,
            compaction_interval: matches.get(COMPACTION_INTERVAL),
            progress_interval: matches.get(PROGRESS_INTERVAL),
            page_keys: positive(LIST_PAGE, 1_000_000)?,
            watches_events: matches.get(WATCH_EVENTS),
            seed: matches.get(SEED),
            contents,
            node_sizes: sizes(NODE_BYTES_MIN, NODE_BYTES_MAX, 2048)?,
            pod_sizes: sizes(POD_BYTES_MIN, POD_BYTES_MAX, 2048)?,
        },
        nodes,
        warm_up: matches.get(WARMUP),
        duration: lasting(DURATION)?,
        p99_max: lasting(P99)?,
        find_max: find.then_some(find_max),
    })
}

/// Measures one server, and appends what was found to the document and to the text.
fn one_server(
    name: &str,
    target: Target,
    meters: Vec<Meter>,
    plan: &Plan,
    document: &mut Document,
    text: &mut String,
) -> Result<(), Failure> {
    let mut fleet = Fleet::connect(target.clone(), plan.cluster.clone())?;
    let mut gauges = Gauges::new(meters);
    let mut measure = |nodes: u64| {
        let window = Window {
            nodes,
            warm_up: plan.warm_up,
            duration: plan.duration,
            late: plan.p99_max,
            catch_up_max: CATCH_UP_MAX,
        };
        gauges.nodes = nodes;
        fleet.measure(window, &mut gauges).map(|measured| (measured, gauges.take()))
    };
    let (measured, used) = match plan.find_max {
        None => measure(plan.nodes)?,
        Some(max) => {
            let mut best = None;
            let mut tried = 0;
            let found = search::largest(plan.nodes, max, |nodes| {
                tried = nodes;
                let (measured, used) = measure(nodes)?;
                let shortfalls = measured.shortfalls(plan.p99_max);
                let outcome = match shortfalls.as_slice() {
                    [] => "carried".to_owned(),
                    reasons => format!("not carried: {}", reasons.join("; ")),
                };
                let _ = writeln!(text, "{}", labelled(name, &format!("{nodes} nodes: {outcome}")));
                document.facts.push((labelled(name, &format!("{nodes} nodes")), outcome));
                let passes = shortfalls.is_empty();
                // If nothing passes, the last attempt is reported, which had the fewest nodes.
                let is_better = best.as_ref().is_none_or(|(old, _, passed)| {
                    let old: &Measured = old;
                    if passes { !passed || nodes > old.nodes } else { !passed }
                });
                if is_better {
                    best = Some((measured, used, passes));
                }
                Ok::<bool, crate::Error>(passes)
            });
            // After an error, such as a full database, the server is not usable for another attempt. What was
            // found before stays true.
            let conclusion = match (&found, &best) {
                (Ok(found), _) => sentence(*found),
                (Err(error), Some((measured, _, true))) => {
                    format!("{} nodes are carried, and {tried} are not: {error}", measured.nodes)
                }
                (Err(error), _) => {
                    return Err(Failure::error(labelled(name, &format!("{tried} nodes: {error}"))));
                }
            };
            document.conclusions.push(labelled(name, &conclusion));
            let _ = writeln!(text, "{}\n", labelled(name, &conclusion));
            let Some((measured, used, _)) = best else { return Err(Failure::error("nothing was measured")) };
            (measured, used)
        }
    };
    let stored = target.endpoints.iter().find_map(|endpoint| {
        let mut one = target.clone();
        one.endpoints = vec![endpoint.clone()];
        Asker::new(one).and_then(|mut asker| asker.status()).ok().map(|(_, bytes)| bytes)
    });
    report(name, plan, &measured, &used, stored, document, text);
    Ok(())
}

fn labelled(server: &str, text: &str) -> String {
    if server.is_empty() { text.to_owned() } else { format!("{server}: {text}") }
}

fn sentence(found: Found) -> String {
    match (found.passed, found.failed) {
        (0, _) => "no number of nodes is carried".to_owned(),
        (passed, None) => format!("{passed} nodes are carried, the most that were tried"),
        (passed, Some(failed)) => format!("{passed} nodes are carried, and {failed} are not"),
    }
}

/// Resources that the servers used in a window.
#[derive(Clone, Debug, Default)]
struct Used {
    /// Sums over all servers.
    all: Usage,
    /// Highest resident memory of all servers together that was seen, in bytes.
    rss_max: Option<u64>,
    /// Number of servers whose process was found.
    processes: usize,
    /// For each name of a thread: the CPU time of all such threads, and of the busiest of them.
    threads: BTreeMap<String, (f64, f64)>,
}

/// Measures all servers in the window, and shows the progress.
struct Gauges {
    meters: Vec<Meter>,
    before: Vec<(Usage, Vec<ThreadTime>)>,
    used: Used,
    progress: cli::Progress,
    nodes: u64,
    began: Instant,
}

impl Gauges {
    fn new(meters: Vec<Meter>) -> Self {
        let progress = cli::Progress::of_things("kubernetes", None);
        Self { meters, before: Vec::new(), used: Used::default(), progress, nodes: 0, began: Instant::now() }
    }

    fn take(&mut self) -> Used {
        std::mem::take(&mut self.used)
    }

    fn look_at_memory(&mut self) {
        let all: Vec<u64> = self.meters.iter().filter_map(Meter::rss_bytes).collect();
        if !all.is_empty() {
            self.used.rss_max = self.used.rss_max.max(Some(all.iter().sum()));
        }
    }
}

impl Observer for Gauges {
    fn begins(&mut self, _: usize) {
        self.used = Used::default();
        self.before = self.meters.iter().map(|meter| (meter.before(), meter.threads())).collect();
        self.began = Instant::now();
        self.look_at_memory();
    }

    fn ends(&mut self, _: usize) {
        let threads: Vec<Vec<ThreadTime>> = self.meters.iter().map(Meter::threads).collect();
        let sum = |a: Option<u64>, b: Option<u64>| a.zip(b).map(|(a, b)| a + b).or(a).or(b);
        let sum_f = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a + b).or(a).or(b);
        self.look_at_memory();
        for ((meter, (before, threads_before)), threads) in self.meters.iter().zip(&self.before).zip(&threads)
        {
            let usage = meter.since(*before);
            let all = &mut self.used.all;
            *all = Usage {
                cpu_s: sum_f(all.cpu_s, usage.cpu_s),
                rss_bytes: sum(all.rss_bytes, usage.rss_bytes),
                written_bytes: sum(all.written_bytes, usage.written_bytes),
                fsyncs: sum_f(all.fsyncs, usage.fsyncs),
                log_bytes: sum(all.log_bytes, usage.log_bytes),
            };
            self.used.processes += usize::from(meter.pid().is_some());
            for thread in threads_since(threads, threads_before) {
                let of_name = self.used.threads.entry(thread.name).or_default();
                of_name.0 += thread.cpu_s;
                of_name.1 = of_name.1.max(thread.cpu_s);
            }
        }
        self.progress.finish();
    }

    fn progress(&mut self, _: usize, recent: &Histogram, over: Duration, done: u64) {
        self.look_at_memory();
        let rate = recent.count() as f64 / over.as_secs_f64().max(1e-9);
        let p99 = short(recent.percentile(99.0) as f64 / 1e6);
        self.progress.at(done, &format!("{} nodes, now {rate:.0}/s, p99 {p99} ms", self.nodes));
    }
}

/// Returns the numbers of a measurement that are not latencies, with their units in their names.
fn numbers(plan: &Plan, measured: &Measured, used: &Used, stored: Option<u64>) -> Vec<(String, f64)> {
    let seconds = measured.duration.as_secs_f64();
    let node_seconds = measured.nodes as f64 * seconds;
    let mut all = vec![
        ("nodes".to_owned(), measured.nodes as f64),
        ("pods".to_owned(), plan.cluster.pods(measured.nodes) as f64),
        ("api_servers".to_owned(), plan.cluster.api_servers as f64),
        ("window_s".to_owned(), seconds),
        ("populated_s".to_owned(), measured.populated.as_secs_f64()),
        ("populated_objects".to_owned(), measured.population.0 as f64),
        ("populated_bytes".to_owned(), measured.population.1 as f64),
        ("listed_keys".to_owned(), measured.lists.keys as f64),
        ("listed_bytes".to_owned(), measured.lists.bytes as f64),
        ("listed_s".to_owned(), measured.lists.took.as_secs_f64()),
        ("catch_up_s".to_owned(), measured.catch_up.as_secs_f64()),
        ("unanswered".to_owned(), measured.unanswered as f64),
        ("conflicts".to_owned(), measured.conflicts as f64),
        ("differences".to_owned(), measured.differences.len() as f64),
        ("disordered_events".to_owned(), measured.disordered as f64),
        ("shortfalls".to_owned(), measured.shortfalls(plan.p99_max).len() as f64),
    ];
    for (kind, (late, skipped)) in KINDS.iter().zip(measured.late.iter().zip(measured.skipped)) {
        all.push((format!("late {kind}"), *late as f64));
        all.push((format!("skipped {kind}"), skipped as f64));
    }
    let mut maybe = |name: &str, value: Option<f64>| all.extend(value.map(|value| (name.to_owned(), value)));
    let usage = used.all;
    maybe("server_cpu_cores", usage.cpu_s.map(|cpu| cpu / seconds));
    maybe("server_cpu_us_per_node_per_s", usage.cpu_s.map(|cpu| cpu * 1e6 / node_seconds));
    maybe("server_rss_bytes_max", used.rss_max.or(usage.rss_bytes).map(|bytes| bytes as f64));
    maybe("server_rss_bytes_per_node", used.rss_max.map(|bytes| bytes as f64 / measured.nodes as f64));
    maybe("log_bytes_per_node_per_s", usage.log_bytes.map(|bytes| bytes as f64 / node_seconds));
    maybe("disk_bytes_per_node_per_s", usage.written_bytes.map(|bytes| bytes as f64 / node_seconds));
    maybe("fsyncs_per_s", usage.fsyncs.map(|fsyncs| fsyncs / seconds));
    maybe("stored_bytes", stored.map(|bytes| bytes as f64));
    for (name, (sum, most)) in &used.threads {
        all.push((format!("thread {name} cpu_cores"), sum / seconds));
        all.push((format!("thread {name} busiest_cores"), most / seconds));
    }
    all.push(("generator_cpu_cores".to_owned(), measured.generator.busiest));
    all
}

#[allow(clippy::too_many_arguments)]
fn report(
    name: &str,
    plan: &Plan,
    measured: &Measured,
    used: &Used,
    stored: Option<u64>,
    document: &mut Document,
    text: &mut String,
) {
    let seconds = measured.duration.as_secs_f64();
    let run = drive::Run {
        series: measured.series.clone(),
        began: measured.began.unwrap_or_else(SystemTime::now),
        elapsed: measured.duration,
        generator: measured.generator,
    };
    let runs = [run];
    let mut lines = String::new();
    for (at, (kind, series)) in KINDS.iter().zip(&measured.series).enumerate() {
        if series.count() + series.failed() + measured.skipped[at] == 0 {
            continue;
        }
        let row = Row::new(kind, name, &runs, at, &[None]);
        let figures = &row.median;
        let _ = writeln!(
            lines,
            "| {kind} | {} | {} | {} | {} | {} | {} | {} |",
            short(figures.rate),
            short(figures.percentile("p50")),
            short(figures.percentile("p99")),
            short(figures.max_ms),
            measured.late[at],
            figures.failed,
            measured.skipped[at],
        );
        if document.rows.iter().all(|row| row.server != name) {
            // The generator is the same for all kinds.
            document
                .warnings
                .extend(machine::run_checks(&row).into_iter().chain(machine::starved_check(&row)));
        }
        document.rows.push(row);
    }
    let numbers = numbers(plan, measured, used, stored);
    let value = |name: &str| numbers.iter().find(|(known, _)| known == name).map(|(_, value)| *value);
    let shown = |name: &str, scale: f64| value(name).map_or("?".to_owned(), |value| short(value / scale));
    if !text.is_empty() {
        text.push('\n');
    }
    let _ = writeln!(
        text,
        "{}",
        labelled(
            name,
            &format!(
                "{} nodes with {} pods, {} API servers, {} s",
                measured.nodes,
                plan.cluster.pods(measured.nodes),
                plan.cluster.api_servers,
                short(seconds)
            )
        )
    );
    let _ = writeln!(
        text,
        "Written before: {} objects, {} MB, in {} s. Lists: {} keys, {} MB, in {} s, by {}.",
        measured.population.0,
        shown("populated_bytes", 1e6),
        shown("populated_s", 1.0),
        measured.lists.keys,
        shown("listed_bytes", 1e6),
        shown("listed_s", 1.0),
        measured.lists.method(),
    );
    let _ = write!(
        text,
        "\n| operation | per s | p50 ms | p99 ms | max ms | later than {} ms | failed | skipped |\n|---|---|---|---|---|---|---|---|\n{lines}\n",
        plan.p99_max.as_millis()
    );
    let _ = writeln!(
        text,
        "Server{}: CPU {} us per node per second, {} cores; memory {} MB; log {} and disk {} bytes per node per second; \
         {} syncs per second; stored {} MB.",
        if used.processes > 1 { format!("s ({} processes)", used.processes) } else { String::new() },
        shown("server_cpu_us_per_node_per_s", 1.0),
        shown("server_cpu_cores", 1.0),
        shown("server_rss_bytes_max", 1e6),
        shown("log_bytes_per_node_per_s", 1.0),
        shown("disk_bytes_per_node_per_s", 1.0),
        shown("fsyncs_per_s", 1.0),
        shown("stored_bytes", 1e6),
    );
    let mut threads: Vec<(&String, &(f64, f64))> = used.threads.iter().collect();
    threads.sort_by(|a, b| b.1.1.total_cmp(&a.1.1));
    let threads: Vec<String> = threads
        .iter()
        .filter(|(_, (sum, _))| sum / seconds >= 0.001)
        .map(|(name, (_, most))| format!("{name} {:.1} %", most / seconds * 100.0))
        .collect();
    if !threads.is_empty() {
        let _ = writeln!(text, "Busiest thread of each name: {}.", threads.join(", "));
    }
    let _ = writeln!(
        text,
        "Generator: {:.1} % of a core. Answers and events of the window were complete {} s after it.",
        measured.generator.busiest * 100.0,
        shown("catch_up_s", 1.0)
    );
    let shortfalls = measured.shortfalls(plan.p99_max);
    let verdict = match shortfalls.as_slice() {
        [] => format!(
            "Carried: p99 of all operations is below {} ms, and nothing fell behind.",
            plan.p99_max.as_millis()
        ),
        reasons => format!("Not carried: {}.", reasons.join("; ")),
    };
    let _ = writeln!(text, "{verdict}");
    document.facts.push((labelled(name, "Lists"), measured.lists.method().to_owned()));
    document.conclusions.push(labelled(name, &format!("{} nodes. {verdict}", measured.nodes)));
    document.numbers.push((name.to_owned(), numbers));
}
