//! Holds the metrics of each gRPC method, such as its number of calls, with the names that gRPC servers in Go
//! use. All series exist from the start with the value 0, as in etcd. The code of the connections counts the
//! calls, separately in each shard; a scrape copies the sums to this module.

use std::sync::Arc;
use std::time::Duration;

use api::{Code, Kind, Rpc};

use super::family::Descriptor;
use super::registry::{Registry, Render};
use super::series::{Histogram, Total};
use super::text::{MetricType, Writer};

/// Bounds of `grpc_server_handling_seconds` in seconds. They are the defaults of Prometheus' Go client.
const HANDLING_BOUNDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

const METHOD_LABELS: &[&str] = &["grpc_method", "grpc_service", "grpc_type"];
const HANDLED_LABELS: &[&str] = &["grpc_code", "grpc_method", "grpc_service", "grpc_type"];

/// Counts of the calls of one method, summed over all shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MethodTotals {
    /// Number of calls that have begun.
    pub started: u64,
    /// Number of messages received from clients.
    pub received: u64,
    /// Number of messages sent to clients.
    pub sent: u64,
    /// Number of calls that have ended, indexed by their [`Code`].
    pub handled: [u64; Code::ALL.len()],
}

/// The series of one method. Clones refer to the same series.
#[derive(Clone)]
pub struct MethodMetrics {
    rpc: Rpc,
    started: Total,
    received: Total,
    sent: Total,
    handled: Arc<[Total; Code::ALL.len()]>,
    handling: Option<Histogram>,
}

/// The metrics of all methods, in the order in which the methods were given.
#[derive(Clone)]
pub struct GrpcMetrics {
    methods: Arc<[MethodMetrics]>,
}

/// Returns the value of the label `grpc_type`.
fn type_label(kind: Kind) -> &'static str {
    match kind {
        Kind::Unary => "unary",
        Kind::ClientStream => "client_stream",
        Kind::ServerStream => "server_stream",
        Kind::BidiStream => "bidi_stream",
    }
}

impl MethodMetrics {
    /// Raises each series to its number in `totals`. Series never decrease.
    pub fn raise_to(&self, totals: &MethodTotals) {
        self.started.raise_to(totals.started);
        self.received.raise_to(totals.received);
        self.sent.raise_to(totals.sent);
        for (series, count) in self.handled.iter().zip(totals.handled) {
            series.raise_to(count);
        }
    }

    /// Records the duration of a call that has ended. Has no effect unless `--metrics extensive` is set.
    #[inline]
    pub fn took(&self, elapsed: Duration) {
        if let Some(handling) = &self.handling {
            handling.observe_seconds(elapsed);
        }
    }

    /// Returns the labels of the method's series, sorted by name as Prometheus' Go client does.
    fn labels(&self) -> [(&'static str, &'static str); 3] {
        let method = self.rpc.method();
        let values = [method.name, method.service, type_label(method.kind)];
        std::array::from_fn(|i| (METHOD_LABELS[i], values[i]))
    }
}

impl GrpcMetrics {
    pub(super) fn register(registry: &mut Registry, rpcs: &[Rpc], extensive: bool) -> GrpcMetrics {
        let methods = rpcs.iter().map(|rpc| MethodMetrics {
            rpc: *rpc,
            started: Total::default(),
            received: Total::default(),
            sent: Total::default(),
            handled: Arc::new(std::array::from_fn(|_| Total::default())),
            handling: extensive.then(|| Histogram::new(&HANDLING_BOUNDS)),
        });
        let metrics = GrpcMetrics { methods: methods.collect() };
        let counter = MetricType::Counter;
        let rows = [
            ("grpc_server_started_total", counter, "Calls begun.", Part::Started),
            ("grpc_server_msg_received_total", counter, "Messages received.", Part::Received),
            ("grpc_server_msg_sent_total", counter, "Messages sent.", Part::Sent),
            ("grpc_server_handled_total", counter, "Calls completed, by code.", Part::Handled),
            ("grpc_server_handling_seconds", MetricType::Histogram, "Duration of calls.", Part::Handling),
        ];
        for (name, kind, help, part) in rows {
            if part == Part::Handling && !extensive {
                continue;
            }
            let labels = if part == Part::Handled { HANDLED_LABELS } else { METHOD_LABELS };
            let descriptor = Descriptor { name, kind, help, labels, buckets: None };
            registry.add_rendered(descriptor, Box::new(View { metrics: metrics.clone(), part }));
        }
        metrics
    }

    /// Returns the metrics of the methods, in the order in which the methods were given.
    pub fn methods(&self) -> &[MethodMetrics] {
        &self.methods
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Started,
    Received,
    Sent,
    Handled,
    Handling,
}

/// Renders one family of metrics with the series of all methods.
struct View {
    metrics: GrpcMetrics,
    part: Part,
}

impl Render for View {
    fn render(&self, descriptor: &Descriptor, writer: &mut Writer<'_>) {
        if self.metrics.methods.is_empty() {
            return;
        }
        writer.family(descriptor.name, descriptor.kind, descriptor.help);
        for method in self.metrics.methods.iter() {
            let labels = method.labels();
            match (self.part, &method.handling) {
                (Part::Started, _) => writer.sample(&labels, method.started.value() as f64),
                (Part::Received, _) => writer.sample(&labels, method.received.value() as f64),
                (Part::Sent, _) => writer.sample(&labels, method.sent.value() as f64),
                (Part::Handled, _) => {
                    for (code, count) in Code::ALL.into_iter().zip(method.handled.iter()) {
                        let [a, b, c] = labels;
                        let labels = [(HANDLED_LABELS[0], code.name()), a, b, c];
                        writer.sample(&labels, count.value() as f64);
                    }
                }
                (Part::Handling, Some(handling)) => {
                    writer.distribution(&labels, &handling.cumulative(), handling.sum());
                }
                (Part::Handling, None) => {}
            }
        }
    }
}
