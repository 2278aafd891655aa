//! Counts what the gRPC proxy does, and writes the counts as a page for Prometheus, with etcd's names.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use accounting::ShardCounters;
use api::{Code, Kind, METHODS};

use crate::probes::Standings;
use crate::proximity::Standing;

/// Counters of the proxy, written by all threads.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// Number of watchers that share another watcher's watch on a member.
    pub(crate) watchers_coalescing: AtomicI64,
    /// Number of responses with events that members did not have to send, because watchers share watches: one
    /// less than the number of sharing watchers for each response that a member has sent.
    pub(crate) events_coalescing: AtomicU64,
    /// Number of responses in the cache.
    pub(crate) cache_keys: AtomicU64,
    /// Number of reads answered from the cache.
    pub(crate) cache_hits: AtomicU64,
    /// Number of serializable reads that the cache could not answer.
    pub(crate) cache_misses: AtomicU64,
    /// Endpoints in their order of preference; `None` for a proxy without a zone.
    pub(crate) standings: Option<Arc<Standings>>,
    /// Counters of the gRPC server that serves clients, one per shard. They are set when the server has
    /// started.
    pub(crate) front: OnceLock<Vec<Arc<ShardCounters>>>,
}

impl Metrics {
    /// Returns the contents of the page `/proxy/metrics`.
    pub(crate) fn page(&self) -> String {
        let mut out = String::new();
        let mut family = |name: &str, kind: &str, help: &str, value: i128| {
            // Writing to a `String` cannot fail. This also applies to the calls below.
            let _ = writeln!(
                out,
                "# HELP etcd_grpc_proxy_{name} {help}\n# TYPE etcd_grpc_proxy_{name} {kind}\netcd_grpc_proxy_{name} {value}"
            );
        };
        let count = |counter: &AtomicU64| i128::from(counter.load(Relaxed));
        family("cache_hits_total", "gauge", "Total number of cache hits", count(&self.cache_hits));
        family("cache_keys_total", "gauge", "Total number of keys/ranges cached", count(&self.cache_keys));
        family("cache_misses_total", "gauge", "Total number of cache misses", count(&self.cache_misses));
        family(
            "events_coalescing_total",
            "counter",
            "Total number of events coalescing",
            count(&self.events_coalescing),
        );
        family(
            "watchers_coalescing_total",
            "gauge",
            "Total number of current watchers coalescing",
            i128::from(self.watchers_coalescing.load(Relaxed)),
        );
        self.calls(&mut out);
        if let Some(standings) = &self.standings {
            endpoints(&mut out, standings);
        }
        out
    }

    /// Appends the numbers of calls and messages by method, with the usual metric names of gRPC servers in
    /// Go.
    fn calls(&self, out: &mut String) {
        let Some(shards) = self.front.get() else { return };
        let sum = |of: &dyn Fn(&ShardCounters) -> u64| shards.iter().map(|shard| of(shard)).sum::<u64>();
        let labels = |method: &api::Method| {
            let kind = match method.kind {
                Kind::Unary => "unary",
                Kind::ServerStream => "server_stream",
                Kind::ClientStream => "client_stream",
                Kind::BidiStream => "bidi_stream",
            };
            format!(
                "grpc_method=\"{}\",grpc_service=\"{}\",grpc_type=\"{kind}\"",
                method.name, method.service
            )
        };
        let (name, help) = (
            "grpc_server_handled_total",
            "Total number of RPCs completed on the server, regardless of success or failure.",
        );
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} counter");
        for (at, method) in METHODS.iter().enumerate() {
            for code in Code::ALL {
                let value = sum(&|shard| shard.methods[at].handled[code as usize].load(Relaxed));
                if value > 0 {
                    let _ =
                        writeln!(out, "{name}{{grpc_code=\"{}\",{}}} {value}", code.name(), labels(method));
                }
            }
        }
        type Field = fn(&accounting::MethodCounters) -> &AtomicU64;
        let fields: [(&str, &str, Field); 3] = [
            (
                "grpc_server_msg_received_total",
                "Total number of RPC stream messages received on the server.",
                |counters| &counters.messages_received,
            ),
            (
                "grpc_server_msg_sent_total",
                "Total number of gRPC stream messages sent by the server.",
                |counters| &counters.messages_sent,
            ),
            ("grpc_server_started_total", "Total number of RPCs started on the server.", |counters| {
                &counters.started
            }),
        ];
        for (name, help, field) in fields {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} counter");
            for (at, method) in METHODS.iter().enumerate() {
                let value = sum(&|shard| field(&shard.methods[at]).load(Relaxed));
                let _ = writeln!(out, "{name}{{{}}} {value}", labels(method));
            }
        }
    }
}

/// Appends the metrics of the endpoints of a proxy with a zone.
fn endpoints(out: &mut String, standings: &Standings) {
    let (last, attempts) = (standings.last(), standings.preference.attempts());
    let mut family = |name: &str, kind: &str, help: &str, value: &dyn Fn(&Standing) -> Option<f64>| {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for standing in &last {
            if let Some(value) = value(standing) {
                let (endpoint, zone) = (escaped(&standing.endpoint), escaped(&standing.zone));
                let _ = writeln!(out, "{name}{{endpoint=\"{endpoint}\",zone=\"{zone}\"}} {value}");
            }
        }
    };
    family(
        "mainstay_grpc_proxy_endpoint_calls_total",
        "counter",
        "Calls and streams for which this endpoint was chosen, with repetitions.",
        &|standing| attempts.get(&standing.endpoint).map(|calls| *calls as f64),
    );
    family(
        "mainstay_grpc_proxy_endpoint_rank",
        "gauge",
        "Place in the order of preference: 0 and 1 in the zone of the proxy, 2 and 3 in others, 4 if it does not serve.",
        &|standing| Some(f64::from(standing.rank)),
    );
    family(
        "mainstay_grpc_proxy_endpoint_round_trip_seconds",
        "gauge",
        "Shortest of the last five round trips.",
        &|standing| standing.round_trip.map(|round_trip| round_trip.as_secs_f64()),
    );
    let name = "mainstay_grpc_proxy_preference_changes_total";
    let changes = standings.changes.load(Relaxed);
    let _ = writeln!(
        out,
        "# HELP {name} Times that the endpoints which are used have changed.\n# TYPE {name} counter\n{name} {changes}"
    );
}

/// Escapes the value of a label.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
