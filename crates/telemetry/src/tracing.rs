//! Decides which calls are traced, keeps their spans, and encodes them for a collector (OTLP).
//!
//! A [`Tracer`] decides at the beginning of a call whether the call is traced, and keeps ended spans until
//! the thread that sends them takes them. The tracer never makes a call wait: if spans end faster than they
//! are sent, some are dropped and counted. The crate `server` sends the spans.
//!
//! This module does not know what the calls mean. Tests: beside the code.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clock::Clock;
use prost::Message as _;

use crate::metrics::{Counter, TracingMetrics};

/// Maximum number of spans in the queue; further ones are dropped.
const WAITING_MAX: usize = 2048;
/// Maximum length of a text attribute in bytes; a longer text is truncated.
const TEXT_BYTES_MAX: usize = 256;
/// Value of [`Settings::rate`] with which all calls are traced.
const RATE_OF_ALL: u64 = 1_000_000;

/// Name of the instrumentation scope of the spans of gRPC calls. It is the name that etcd's gRPC library
/// uses, so that existing dashboards find these spans.
pub const GRPC_SCOPE: &str = "go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc";
/// Name of the instrumentation scope of all other spans of the member. It is etcd's.
pub const MEMBER_SCOPE: &str = "go.etcd.io/etcd";

/// Ids that identify a span: that of its trace, and that of the span within the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanContext {
    /// Id of the trace that the span belongs to; not all zeros.
    pub trace: [u8; 16],
    /// Id of the span, unique within the trace; not all zeros.
    pub span: [u8; 8],
}

/// The client's span to which a call belongs, as the call's metadata names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    /// Ids of the client's trace and span.
    pub context: SpanContext,
    /// True if the client records its span. Then the member's spans must be recorded too, to complete the
    /// trace.
    pub is_sampled: bool,
}

impl Parent {
    /// Parses a `traceparent` header: version, trace, span and flags, in hexadecimal. Returns `None` for an
    /// invalid header, because the specification requires ignoring it.
    pub fn read(header: &str) -> Option<Parent> {
        let mut parts = header.split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let [version] = hex(version)?;
        let context = SpanContext { trace: hex(trace)?, span: hex(span)? };
        let [flags] = hex::<1>(flags)?;
        // Version 0 has exactly four fields; later versions may append more, which are ignored. Version 255
        // is invalid.
        let is_known = version != 0xff && (version != 0 || parts.next().is_none());
        let is_set = context.trace != [0; 16] && context.span != [0; 8];
        (is_known && is_set).then_some(Parent { context, is_sampled: flags & 1 == 1 })
    }
}

/// Parses exactly `N` bytes in lower-case hexadecimal.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    let text = text.as_bytes();
    if text.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

/// Value of an attribute of a span.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    /// A text; it is truncated to 256 bytes when it is sent.
    Text(String),
    /// A signed number.
    Int(i64),
    /// True or false.
    Bool(bool),
}

impl Attribute {
    /// Returns a text attribute for a key or other bytes: the first 256 of them, with invalid UTF-8 replaced.
    pub fn bytes(bytes: &[u8]) -> Attribute {
        let beginning = bytes.get(..TEXT_BYTES_MAX).unwrap_or(bytes);
        Attribute::Text(String::from_utf8_lossy(beginning).into_owned())
    }
}

/// A span that has ended, as it is sent to the collector.
#[derive(Clone, Debug)]
pub struct Span {
    /// Name of the instrumentation scope: [`GRPC_SCOPE`] or [`MEMBER_SCOPE`].
    pub scope: &'static str,
    /// Ids of the span and of its trace.
    pub context: SpanContext,
    /// Id of the span that contains this span; `None` for the first span of a trace.
    pub parent: Option<[u8; 8]>,
    /// True if the parent is a span of another process, such as the client.
    pub is_parent_remote: bool,
    /// Name of the operation, such as `etcdserverpb.KV/Put` or `fsync`.
    pub name: String,
    /// Wall clock time when the operation began.
    pub began: SystemTime,
    /// Duration of the operation.
    pub took: Duration,
    /// Names and values of the span's attributes.
    pub attributes: Vec<(&'static str, Attribute)>,
    /// Names of events during the operation, each with the time since the operation began.
    pub events: Vec<(&'static str, Duration)>,
    /// Message of the error, if the operation failed with an error that etcd's gRPC library counts as a fault
    /// of the server.
    pub error: Option<String>,
}

/// Options of a [`Tracer`].
#[derive(Clone, Debug)]
pub struct Settings {
    /// Value of the resource attribute `service.name`.
    pub service_name: String,
    /// Value of the resource attribute `service.instance.id`; empty for none.
    pub instance_id: String,
    /// Sampling rate: of a million calls without a parent span, the number that are traced; from 0 to
    /// 1,000,000.
    pub rate: u64,
}

/// Decides which calls are traced, and queues their spans until the thread that sends spans takes them.
pub struct Tracer {
    settings: Settings,
    /// Counters of spans that were sent and dropped.
    metrics: TracingMetrics,
    /// Spans that are queued to be sent.
    waiting: Mutex<Waiting>,
    /// Notified when a span is queued, and when tracing ends.
    has_some: Condvar,
    /// Seeds of the hashes that produce ids: one for the ids of spans and the first half of the ids of
    /// traces, one for the second half.
    seeds: [RandomState; 2],
    /// Number of ids drawn so far. The next id is a hash of this number.
    ids: AtomicU64,
}

#[derive(Default)]
struct Waiting {
    /// Spans that have ended, in the order in which they ended; at most [`WAITING_MAX`].
    spans: VecDeque<Span>,
    /// True after [`Tracer::end`] was called.
    is_over: bool,
}

impl Tracer {
    /// Returns a tracer with no spans queued.
    pub fn new(settings: Settings, metrics: TracingMetrics) -> Tracer {
        Tracer {
            settings,
            metrics,
            waiting: Mutex::default(),
            has_some: Condvar::new(),
            seeds: [RandomState::new(), RandomState::new()],
            ids: AtomicU64::new(0),
        }
    }

    /// Draws the next id with the seed of this index: 8 random bytes, not all zeros.
    fn id(&self, seed: usize) -> [u8; 8] {
        let count = self.ids.fetch_add(1, Ordering::Relaxed);
        // Replace 0 by 1, because an id of all zeros is invalid.
        self.seeds[seed].hash_one(count).max(1).to_be_bytes()
    }

    /// Decides whether a call is traced. If the call has a parent span, the client has decided this already;
    /// otherwise the member traces calls at its own rate. Returns the ids for the call's span; `None` if the
    /// call is not traced.
    pub fn begin(&self, parent: Option<&Parent>) -> Option<SpanContext> {
        let trace = match parent {
            Some(parent) if !parent.is_sampled => return None,
            Some(parent) => parent.context.trace,
            None if self.settings.rate == 0 => return None,
            None => {
                let (first, last) = (self.id(0), self.id(1));
                if !is_sampled(last, self.settings.rate) {
                    return None;
                }
                let mut trace = [0; 16];
                trace[..8].copy_from_slice(&first);
                trace[8..].copy_from_slice(&last);
                trace
            }
        };
        Some(SpanContext { trace, span: self.id(0) })
    }

    /// Returns the ids for a new span within the span `outer`.
    pub fn within(&self, outer: &SpanContext) -> SpanContext {
        SpanContext { trace: outer.trace, span: self.id(0) }
    }

    /// Queues ended spans to be sent. If the queue has 2,048 spans, or tracing has ended, they are dropped
    /// and counted.
    pub fn ended(&self, spans: impl IntoIterator<Item = Span>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        for span in spans {
            if waiting.spans.len() < WAITING_MAX && !waiting.is_over {
                waiting.spans.push_back(span);
            } else {
                self.metrics.dropped.inc();
            }
        }
        drop(waiting);
        self.has_some.notify_one();
    }

    /// Blocks the thread until `enough` spans are queued, but at most for `patience`, and then takes up to
    /// `max` spans. Returns `None` if [`Tracer::end`] was called and all spans have been taken.
    pub fn take(&self, enough: usize, max: usize, patience: Duration) -> Option<Vec<Span>> {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let has_few = |waiting: &mut Waiting| waiting.spans.len() < enough && !waiting.is_over;
        let (mut waiting, _) = self
            .has_some
            .wait_timeout_while(waiting, patience, has_few)
            .unwrap_or_else(PoisonError::into_inner);
        if waiting.is_over && waiting.spans.is_empty() {
            return None;
        }
        let count = waiting.spans.len().min(max);
        Some(waiting.spans.drain(..count).collect())
    }

    /// Ends tracing. Spans that are queued can still be taken; further ones are dropped.
    pub fn end(&self) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).is_over = true;
        self.has_some.notify_all();
    }

    /// Returns true if [`Tracer::end`] was called.
    pub fn is_over(&self) -> bool {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).is_over
    }

    /// Counts `spans` spans as sent to the collector, or as dropped if `success` is false.
    pub fn sent(&self, spans: usize, success: bool) {
        let counter: &Counter = if success { &self.metrics.sent } else { &self.metrics.dropped };
        counter.add(spans as u64);
    }

    /// Encodes the request that sends these spans to a collector: OTLP's `ExportTraceServiceRequest`.
    pub fn encode(&self, spans: Vec<Span>) -> Vec<u8> {
        let text = |key: &str, value: &str| otlp::KeyValue::of(key, Attribute::Text(value.to_owned()));
        let mut attributes = vec![text("service.name", &self.settings.service_name)];
        if !self.settings.instance_id.is_empty() {
            attributes.push(text("service.instance.id", &self.settings.instance_id));
        }
        let mut scopes: Vec<otlp::ScopeSpans> = Vec::new();
        for span in spans {
            let name = span.scope;
            let is_its = |scope: &&mut otlp::ScopeSpans| scope.scope.as_ref().is_some_and(|s| s.name == name);
            let span = otlp::Span::of(span);
            match scopes.iter_mut().find(is_its) {
                Some(scope) => scope.spans.push(span),
                None => {
                    let scope = Some(otlp::Scope { name: name.to_owned() });
                    scopes.push(otlp::ScopeSpans { scope, spans: vec![span] });
                }
            }
        }
        let resource = Some(otlp::Resource { attributes });
        let spans = otlp::ResourceSpans { resource, scope_spans: scopes };
        otlp::ExportRequest { resource_spans: vec![spans] }.encode_to_vec()
    }
}

/// Begins spans inside an open span. Streams use it, because each of their requests has its own span.
#[derive(Clone)]
pub struct Within {
    tracer: Arc<Tracer>,
    clock: Clock,
    context: SpanContext,
}

impl Within {
    /// Returns a value that begins spans inside the span `context`, with times from this clock.
    pub fn new(tracer: Arc<Tracer>, clock: Clock, context: SpanContext) -> Within {
        Within { tracer, clock, context }
    }

    /// Begins a span inside the open span. It ends when the returned value is dropped.
    pub fn begin(&self, name: &'static str, attributes: Vec<(&'static str, Attribute)>) -> OpenSpan {
        OpenSpan { within: self.clone(), name, attributes, began: self.clock.now(), wall: self.clock.wall() }
    }
}

/// An open span. When this value is dropped, the span ends and is queued to be sent.
pub struct OpenSpan {
    within: Within,
    name: &'static str,
    attributes: Vec<(&'static str, Attribute)>,
    began: Instant,
    wall: SystemTime,
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        let Within { tracer, clock, context } = &self.within;
        tracer.ended([Span {
            scope: MEMBER_SCOPE,
            context: tracer.within(context),
            parent: Some(context.span),
            is_parent_remote: false,
            name: self.name.to_owned(),
            began: self.wall,
            took: clock.now().saturating_duration_since(self.began),
            attributes: std::mem::take(&mut self.attributes),
            events: Vec::new(),
            error: None,
        }]);
    }
}

/// Decides from the second half of a trace's id whether the trace is sampled. So all processes with the same
/// rate decide in the same way.
fn is_sampled(lower: [u8; 8], rate: u64) -> bool {
    let bound = u128::from(rate.min(RATE_OF_ALL)) * (1 << 63) / u128::from(RATE_OF_ALL);
    u128::from(u64::from_be_bytes(lower) >> 1) < bound
}

/// Returns the nanoseconds since 1970, which is the unit of times in OTLP.
fn nanos(time: SystemTime) -> u64 {
    u64::try_from(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
}

/// The OTLP messages of which an export request consists, with the field numbers of the specification
/// (`opentelemetry/proto/trace/v1`).
mod otlp {
    use super::{Attribute, Duration, TEXT_BYTES_MAX, nanos};

    /// OTLP's `ExportTraceServiceRequest`.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct ExportRequest {
        #[prost(message, repeated, tag = "1")]
        pub resource_spans: Vec<ResourceSpans>,
    }

    /// The spans of one process.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct ResourceSpans {
        #[prost(message, optional, tag = "1")]
        pub resource: Option<Resource>,
        #[prost(message, repeated, tag = "2")]
        pub scope_spans: Vec<ScopeSpans>,
    }

    /// Describes the process that the spans come from.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Resource {
        #[prost(message, repeated, tag = "1")]
        pub attributes: Vec<KeyValue>,
    }

    /// The spans of one instrumentation scope of a process.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct ScopeSpans {
        #[prost(message, optional, tag = "1")]
        pub scope: Option<Scope>,
        #[prost(message, repeated, tag = "2")]
        pub spans: Vec<Span>,
    }

    /// Names an instrumentation scope.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Scope {
        #[prost(string, tag = "1")]
        pub name: String,
    }

    /// A span. Times are in nanoseconds since 1970.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Span {
        #[prost(bytes = "vec", tag = "1")]
        pub trace_id: Vec<u8>,
        #[prost(bytes = "vec", tag = "2")]
        pub span_id: Vec<u8>,
        #[prost(bytes = "vec", tag = "4")]
        pub parent_span_id: Vec<u8>,
        #[prost(string, tag = "5")]
        pub name: String,
        /// Kind of the span: [`INTERNAL`] or [`SERVER`].
        #[prost(int32, tag = "6")]
        pub kind: i32,
        #[prost(fixed64, tag = "7")]
        pub start_time_unix_nano: u64,
        #[prost(fixed64, tag = "8")]
        pub end_time_unix_nano: u64,
        #[prost(message, repeated, tag = "9")]
        pub attributes: Vec<KeyValue>,
        #[prost(message, repeated, tag = "11")]
        pub events: Vec<Event>,
        #[prost(message, optional, tag = "15")]
        pub status: Option<Status>,
        /// Flags: always [`IS_TRACED`] and [`KNOWS_IF_REMOTE`], and also [`IS_REMOTE`] if the parent is
        /// remote.
        #[prost(fixed32, tag = "16")]
        pub flags: u32,
    }

    /// An event during a span.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Event {
        #[prost(fixed64, tag = "1")]
        pub time_unix_nano: u64,
        #[prost(string, tag = "2")]
        pub name: String,
    }

    /// Status of a failed span, with the code [`ERROR`]. Spans of successful operations have no status.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Status {
        #[prost(string, tag = "2")]
        pub message: String,
        #[prost(int32, tag = "3")]
        pub code: i32,
    }

    /// Name and value of an attribute.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct KeyValue {
        #[prost(string, tag = "1")]
        pub key: String,
        #[prost(message, optional, tag = "2")]
        pub value: Option<AnyValue>,
    }

    /// The value of an attribute.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct AnyValue {
        #[prost(oneof = "Value", tags = "1, 2, 3")]
        pub value: Option<Value>,
    }

    /// Value of an attribute, of one of the types that Mainstay sends.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Value {
        #[prost(string, tag = "1")]
        Text(String),
        #[prost(bool, tag = "2")]
        Bool(bool),
        #[prost(int64, tag = "3")]
        Int(i64),
    }

    /// [`Span::kind`] of an operation within a process.
    const INTERNAL: i32 = 1;
    /// [`Span::kind`] of the server's side of a call.
    const SERVER: i32 = 2;
    /// [`Status::code`] of a failed operation.
    const ERROR: i32 = 2;
    /// Bit of [`Span::flags`]: the span is traced.
    const IS_TRACED: u32 = 1;
    /// Bit of [`Span::flags`]: [`IS_REMOTE`] is meaningful.
    const KNOWS_IF_REMOTE: u32 = 0x100;
    /// Bit of [`Span::flags`]: the parent is a span of another process.
    const IS_REMOTE: u32 = 0x200;

    impl KeyValue {
        pub fn of(key: &str, value: Attribute) -> KeyValue {
            let value = match value {
                Attribute::Text(mut text) => {
                    let end =
                        (0..=TEXT_BYTES_MAX.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
                    text.truncate(end.unwrap_or(0));
                    Value::Text(text)
                }
                Attribute::Bool(value) => Value::Bool(value),
                Attribute::Int(value) => Value::Int(value),
            };
            KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
        }
    }

    impl Span {
        pub fn of(span: super::Span) -> Span {
            let began = nanos(span.began);
            let after =
                |took: Duration| began.saturating_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
            let event = |(name, at): &(&'static str, Duration)| Event {
                time_unix_nano: after(*at),
                name: (*name).to_owned(),
            };
            Span {
                trace_id: span.context.trace.to_vec(),
                span_id: span.context.span.to_vec(),
                parent_span_id: span.parent.map(|id| id.to_vec()).unwrap_or_default(),
                kind: if span.scope == super::GRPC_SCOPE { SERVER } else { INTERNAL },
                name: span.name,
                start_time_unix_nano: began,
                end_time_unix_nano: after(span.took),
                events: span.events.iter().map(event).collect(),
                attributes: span
                    .attributes
                    .into_iter()
                    .map(|(key, value)| KeyValue::of(key, value))
                    .collect(),
                status: span.error.map(|message| Status { message, code: ERROR }),
                flags: IS_TRACED | KNOWS_IF_REMOTE | if span.is_parent_remote { IS_REMOTE } else { 0 },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use crate::metrics::MetricsDetail;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    fn tracer(rate: u64) -> Tracer {
        let settings = Settings { service_name: "etcd".to_owned(), instance_id: "m1".to_owned(), rate };
        Tracer::new(settings, Metrics::new(&[], MetricsDetail::Basic).tracing)
    }

    fn span(context: SpanContext) -> Span {
        Span {
            scope: MEMBER_SCOPE,
            context,
            parent: Some([1; 8]),
            is_parent_remote: false,
            name: "put".to_owned(),
            began: UNIX_EPOCH + Duration::from_nanos(5),
            took: Duration::from_nanos(7),
            attributes: vec![("key", Attribute::bytes(&[0xff; 1000])), ("rev", Attribute::Int(-1))],
            events: vec![("Send raft proposal", Duration::from_nanos(2))],
            error: None,
        }
    }

    #[test]
    fn a_parent_is_read_as_the_specification_has_it() {
        let parent = Parent::read(&format!("00-{TRACE}-{SPAN}-01")).expect("it is one");
        assert!(parent.is_sampled);
        assert_eq!((parent.context.trace[0], parent.context.span[7]), (0x4b, 0xb7));
        assert!(!Parent::read(&format!("00-{TRACE}-{SPAN}-02")).expect("it is one").is_sampled);
        assert!(Parent::read(&format!("01-{TRACE}-{SPAN}-01-more")).is_some(), "a later version");
        for wrong in [
            String::new(),
            "00".to_owned(),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{}-{SPAN}-01", "0".repeat(32)),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{TRACE}0-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-é"),
        ] {
            assert_eq!(Parent::read(&wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_call_is_traced_as_its_client_is_or_else_at_the_rate() {
        let mut parent = Parent::read(&format!("00-{TRACE}-{SPAN}-01")).expect("it is one");
        for rate in [0, RATE_OF_ALL] {
            let context = tracer(rate).begin(Some(&parent)).expect("its client is traced");
            assert_eq!(context.trace, parent.context.trace);
            assert_ne!(context.span, parent.context.span);
        }
        parent.is_sampled = false;
        assert_eq!(tracer(RATE_OF_ALL).begin(Some(&parent)), None);
        assert_eq!(tracer(0).begin(None), None);
        let all = tracer(RATE_OF_ALL);
        assert!((0..100).all(|_| all.begin(None).is_some()));
        let half = tracer(RATE_OF_ALL / 2);
        let traced = (0..1000).filter(|_| half.begin(None).is_some()).count();
        assert!((300..700).contains(&traced), "{traced} of 1000");
        assert!(is_sampled([0; 8], 1) && !is_sampled([0xff; 8], RATE_OF_ALL - 1));
    }

    #[test]
    fn spans_that_nobody_takes_are_dropped_and_counted() {
        let tracer = tracer(RATE_OF_ALL);
        let context = tracer.begin(None).expect("all are traced");
        tracer.ended((0..WAITING_MAX + 3).map(|_| span(context)));
        assert_eq!(tracer.metrics.dropped.value(), 3);
        assert_eq!(tracer.take(1, 100, Duration::ZERO).map(|taken| taken.len()), Some(100));
        tracer.end();
        tracer.ended([span(context)]);
        assert_eq!(tracer.metrics.dropped.value(), 4);
        assert_eq!(
            tracer.take(1, usize::MAX, Duration::MAX).map(|taken| taken.len()),
            Some(WAITING_MAX - 100)
        );
        assert!(tracer.take(1, 1, Duration::MAX).is_none());
    }

    #[test]
    fn a_span_within_another_ends_when_it_is_dropped() {
        let hand = clock::HandClock::new(Instant::now(), UNIX_EPOCH);
        let tracer = Arc::new(tracer(RATE_OF_ALL));
        let context = tracer.begin(None).expect("all are traced");
        let within = Within::new(Arc::clone(&tracer), Clock::by_hand(&hand), context);
        let span = within.begin("watch", vec![("start_rev", Attribute::Int(3))]);
        hand.advance(Duration::from_secs(2));
        assert!(tracer.take(1, 1, Duration::ZERO).is_some_and(|ended| ended.is_empty()), "it goes on");
        drop(span);
        let ended = tracer.take(1, 1, Duration::ZERO).expect("it is not over");
        let [span] = &ended[..] else { panic!("one span: {ended:?}") };
        assert_eq!((span.name.as_str(), span.took), ("watch", Duration::from_secs(2)));
        assert_eq!((span.context.trace, span.parent), (context.trace, Some(context.span)));
        assert_ne!(span.context.span, context.span);
    }

    #[test]
    fn a_request_holds_what_a_collector_needs() {
        let tracer = tracer(RATE_OF_ALL);
        let context = tracer.begin(None).expect("all are traced");
        let first = Span { scope: GRPC_SCOPE, parent: None, error: Some("why".to_owned()), ..span(context) };
        let bytes = tracer.encode(vec![first, span(tracer.within(&context)), span(tracer.within(&context))]);
        let request = otlp::ExportRequest::decode(&bytes[..]).expect("it is one");
        let [spans] = &request.resource_spans[..] else { panic!("one process") };
        assert_eq!(spans.resource.as_ref().map(|resource| resource.attributes.len()), Some(2));
        let [server, member] = &spans.scope_spans[..] else { panic!("two scopes") };
        assert_eq!((server.spans.len(), member.spans.len()), (1, 2));
        let (outer, inner) = (&server.spans[0], &member.spans[0]);
        assert_eq!(outer.trace_id, inner.trace_id);
        assert_ne!(outer.span_id, inner.span_id);
        assert_eq!((outer.kind, inner.kind), (2, 1));
        assert_eq!((outer.start_time_unix_nano, outer.end_time_unix_nano), (5, 12));
        assert_eq!(outer.events[0].time_unix_nano, 7);
        assert_eq!(outer.status.as_ref().map(|status| status.code), Some(2));
        assert!(inner.status.is_none() && outer.parent_span_id.is_empty() && inner.flags == 0x101);
        let key = inner.attributes[0].value.as_ref().and_then(|value| value.value.clone());
        assert!(matches!(key, Some(otlp::Value::Text(text)) if text.len() <= TEXT_BYTES_MAX));
    }
}
