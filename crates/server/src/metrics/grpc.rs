//! What every gRPC server counts per method. All series exist from the start, at 0.

use std::sync::Arc;
use std::time::Duration;

use api::Code;

use super::family::Descriptor;
use super::registry::{Registry, Render};
use super::series::{Block, Histogram};
use super::text::{MetricType, Writer};

/// Bounds of `grpc_server_handling_seconds`: the Prometheus client's default.
const HANDLING_BOUNDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

const METHOD_LABELS: &[&str] = &["grpc_method", "grpc_service", "grpc_type"];
const HANDLED_LABELS: &[&str] = &["grpc_code", "grpc_method", "grpc_service", "grpc_type"];

/// Cells of a method's block.
const STARTED: usize = 0;
const RECEIVED: usize = 1;
const SENT: usize = 2;
const HANDLED: usize = 3;

/// Kind of a method, as the label `grpc_type` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MethodType {
    /// One message each way.
    Unary,
    /// Many messages from the client.
    ClientStream,
    /// Many messages to the client.
    ServerStream,
    /// Many messages both ways.
    BidiStream,
}

/// A method that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrpcMethod {
    /// Full name of the service: `etcdserverpb.KV`.
    pub service: &'static str,
    /// Name of the method: `Range`.
    pub method: &'static str,
    /// Its kind.
    pub kind: MethodType,
}

/// What is counted of one method. Clones count together.
#[derive(Clone)]
pub struct MethodMetrics {
    method: GrpcMethod,
    block: Arc<Block>,
    handling: Option<Histogram>,
}

/// The methods, in the order they were given in.
#[derive(Clone)]
pub struct GrpcMetrics {
    methods: Arc<[MethodMetrics]>,
}

impl MethodType {
    /// Value of the label `grpc_type`.
    pub fn as_str(self) -> &'static str {
        match self {
            MethodType::Unary => "unary",
            MethodType::ClientStream => "client_stream",
            MethodType::ServerStream => "server_stream",
            MethodType::BidiStream => "bidi_stream",
        }
    }
}

impl MethodMetrics {
    /// Counts a call that begins.
    #[inline]
    pub fn started(&self) {
        self.block.add(STARTED, 1);
    }

    /// Counts messages from the client.
    #[inline]
    pub fn received(&self, messages: u64) {
        self.block.add(RECEIVED, messages);
    }

    /// Counts messages to the client.
    #[inline]
    pub fn sent(&self, messages: u64) {
        self.block.add(SENT, messages);
    }

    /// Counts a call that ended with `code` after `elapsed`.
    #[inline]
    pub fn handled(&self, code: Code, elapsed: Duration) {
        self.block.add(HANDLED + code as usize, 1);
        if let Some(handling) = &self.handling {
            handling.observe_seconds(elapsed);
        }
    }

    /// Labels in the order Prometheus' Go client exports them: by name.
    fn labels(&self) -> [(&'static str, &'static str); 3] {
        let values = [self.method.method, self.method.service, self.method.kind.as_str()];
        std::array::from_fn(|i| (METHOD_LABELS[i], values[i]))
    }
}

impl GrpcMetrics {
    pub(super) fn register(registry: &mut Registry, methods: &[GrpcMethod], extensive: bool) -> GrpcMetrics {
        let methods = methods.iter().map(|method| MethodMetrics {
            method: *method,
            block: Block::new(HANDLED + Code::ALL.len()),
            handling: extensive.then(|| Histogram::new(&HANDLING_BOUNDS)),
        });
        let metrics = GrpcMetrics { methods: methods.collect() };
        let counter = MetricType::Counter;
        let rows = [
            ("grpc_server_started_total", counter, "Calls begun.", Part::Cell(STARTED)),
            ("grpc_server_msg_received_total", counter, "Messages received.", Part::Cell(RECEIVED)),
            ("grpc_server_msg_sent_total", counter, "Messages sent.", Part::Cell(SENT)),
            ("grpc_server_handled_total", counter, "Calls ended, by code.", Part::Handled),
            ("grpc_server_handling_seconds", MetricType::Histogram, "Time of calls.", Part::Handling),
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

    /// The method at this place of the list the metrics were made with.
    ///
    /// # Panics
    /// When there is no such place: the list is the caller's own.
    pub fn method(&self, index: usize) -> &MethodMetrics {
        &self.methods[index]
    }

    /// The method called so.
    pub fn find(&self, service: &str, method: &str) -> Option<&MethodMetrics> {
        self.methods.iter().find(|each| each.method.service == service && each.method.method == method)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Cell(usize),
    Handled,
    Handling,
}

/// One family seen across all methods.
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
                (Part::Cell(cell), _) => writer.sample(&labels, method.block.total(cell) as f64),
                (Part::Handled, _) => {
                    for code in Code::ALL {
                        let [a, b, c] = labels;
                        let labels = [(HANDLED_LABELS[0], code.name()), a, b, c];
                        writer.sample(&labels, method.block.total(HANDLED + code as usize) as f64);
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
