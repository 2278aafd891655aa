//! Sends the spans of traced calls to a collector, on a separate thread: OTLP over gRPC without TLS, as etcd
//! does.
//!
//! Spans wait in the [`Tracer`], which drops those that do not fit. So a slow or missing collector adds no
//! cost to calls.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use client::Channel;
use config::TracingOptions;
use replica::shared::Shared;
use telemetry::logging::{Logger, Value};
use telemetry::tracing::{Settings, Tracer};

use crate::error::StartError;

/// Path of the gRPC method that receives spans.
const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
/// Largest number of spans in a request; a request with this many spans is sent immediately.
const SPANS_MAX: usize = 512;
/// Longest time that a span waits for more spans before it is sent.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time within which a collector must answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time within which a collector must answer when the member stops.
const LAST_TIMEOUT: Duration = Duration::from_secs(1);

/// The thread that sends spans.
pub(crate) struct Exporting {
    tracer: Arc<Tracer>,
    thread: JoinHandle<()>,
}

/// Starts to trace calls if the options say so. Must be called before clients are served.
pub(crate) fn start(
    shared: &Shared,
    options: Option<TracingOptions>,
    logger: &Arc<Logger>,
) -> Result<Option<Exporting>, StartError> {
    let Some(TracingOptions { address, service_name, instance_id, rate }) = options else { return Ok(None) };
    let settings = Settings { service_name, instance_id, rate };
    let tracer = Arc::new(Tracer::new(settings, shared.diagnostics.metrics.tracing.clone()));
    let (exported, logger) = (Arc::clone(&tracer), Arc::clone(logger));
    let thread = std::thread::Builder::new()
        .name("tracing".to_owned())
        .spawn(move || export(&exported, &address, &logger))
        .map_err(|error| StartError::Thread { what: "the thread that sends spans", error })?;
    // `set` cannot fail: the tracer is set only once.
    let _ = shared.diagnostics.tracer.set(Arc::clone(&tracer));
    Ok(Some(Exporting { tracer, thread }))
}

impl Exporting {
    /// Sends the waiting spans, for a short time, and ends the thread.
    pub(crate) fn stop(self) {
        self.tracer.end();
        // The thread ends by itself, at the latest after the collector's timeout.
        let _ = self.thread.join();
    }
}

fn export(tracer: &Tracer, address: &str, logger: &Logger) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
    let mut channel: Option<Channel> = None;
    let mut is_told = false;
    while let Some(spans) = tracer.take(SPANS_MAX, SPANS_MAX, PATIENCE) {
        if spans.is_empty() {
            continue;
        }
        let count = spans.len();
        let message = tracer.encode(spans);
        let timeout = if tracer.is_over() { LAST_TIMEOUT } else { TIMEOUT };
        let sending = async {
            let sent = tokio::time::timeout(timeout, send(&mut channel, address, message)).await;
            sent.unwrap_or_else(|_| Err("the collector did not answer in time".to_owned()))
        };
        let sent = runtime.block_on(sending);
        tracer.sent(count, sent.is_ok());
        match sent {
            Ok(()) => is_told = false,
            Err(why) => {
                channel = None;
                if !is_told {
                    let fields = [("address", Value::Str(address)), ("error", Value::Str(&why))];
                    logger.warn("failed to send spans to the collector; they are dropped", &fields);
                    is_told = true;
                }
            }
        }
    }
}

/// Sends a request over the open connection, or over a new connection if the open one has ended.
async fn send(channel: &mut Option<Channel>, address: &str, message: Vec<u8>) -> Result<(), String> {
    let message = bytes::Bytes::from(message);
    if let Some(standing) = channel.take_if(|standing| !standing.is_closed())
        && standing.unary(EXPORT, message.clone()).await.is_ok()
    {
        *channel = Some(standing);
        return Ok(());
    }
    let opened = Channel::connect(address).await.map_err(|error| error.to_string())?;
    opened.unary(EXPORT, message).await.map_err(|status| status.message.to_string())?;
    *channel = Some(opened);
    Ok(())
}
