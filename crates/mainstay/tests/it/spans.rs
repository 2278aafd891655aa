//! Spans of calls: what a collector gets of a member, and that one that is gone costs nothing.

use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};

use bytes::Bytes;
use front::{Answer, Front, Head, Inbound, Kind, LocalBoxFuture, Method, Outbound, Service, Unary};
use prost::Message;
use testkit::{TempDir, http1};

use crate::member::Setup;
use crate::run;

/// The messages of OTLP, as far as the tests look at them.
#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(message, repeated, tag = "1")]
    resources: Vec<Resource>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "2")]
    scopes: Vec<Scope>,
}

#[derive(Clone, PartialEq, Message)]
struct Scope {
    #[prost(message, repeated, tag = "2")]
    spans: Vec<Span>,
}

#[derive(Clone, PartialEq, Message)]
struct Span {
    #[prost(bytes = "vec", tag = "1")]
    trace: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    parent: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(fixed64, tag = "7")]
    began: u64,
    #[prost(fixed64, tag = "8")]
    ended: u64,
}

/// A collector: hands on what it gets.
struct Collector {
    requests: Sender<Bytes>,
}

const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

impl Service for Collector {
    fn method(&self, path: &str) -> Option<Method> {
        (path == EXPORT).then_some(Method { id: 0, kind: Kind::Unary })
    }

    fn has_service(&self, _: &str) -> bool {
        true
    }

    fn unary(self: Rc<Self>, _: Head, message: Bytes) -> Unary {
        // The test may have ended.
        let _ = self.requests.send(message);
        Unary::Done(Ok(Answer::Whole(Bytes::new())))
    }

    fn stream(self: Rc<Self>, _: Head, _: Inbound, _: Outbound) -> LocalBoxFuture<Result<(), api::Status>> {
        Box::pin(async { Err(api::error::UNKNOWN_METHOD) })
    }

    fn http(self: Rc<Self>, _: http::Request<Bytes>) -> LocalBoxFuture<http::Response<Bytes>> {
        Box::pin(async { http::Response::new(Bytes::new()) })
    }
}

fn collector() -> (Front, SocketAddr, Receiver<Bytes>) {
    let (requests, received) = mpsc::channel();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it has one");
    let make = move |_| -> Rc<dyn Service> { Rc::new(Collector { requests: requests.clone() }) };
    let options = front::Options { shards: 1, methods: 1, ..front::Options::default() };
    let front = front::start(options, vec![listener.into()], Arc::new(make)).expect("a collector");
    (front, address, received)
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_call_of_a_traced_client_is_a_part_of_its_trace() {
    let dir = TempDir::new("spans");
    run(async {
        let (_front, address, received) = collector();
        let member = Setup::new(dir.path())
            .flag("--enable-distributed-tracing")
            .flag(format!("--distributed-tracing-address={address}"))
            .flag("--metrics=extensive")
            .start();
        let client = member.client().await;
        client.put("untraced", "v").await.expect("puts are served");
        client
            .with_header("traceparent", &format!("00-{TRACE}-{SPAN}-00"))
            .get("k")
            .await
            .expect("reads are served");
        let traced = client.with_header("traceparent", &format!("00-{TRACE}-{SPAN}-01"));
        traced.put("k", "v").await.expect("puts are served");
        traced.get("k").await.expect("reads are served");
        let metrics = http1::get(member.client_address(), "/metrics");
        let stages = "mainstay_request_stage_seconds_count{stage=\"fsync\"} 2";
        assert!(metrics.text().contains(stages), "two puts");
        // What waits is sent when it stops.
        member.stop();
        let mut spans = Vec::new();
        while let Ok(message) = received.try_recv() {
            let request = Request::decode(message).expect("a request");
            spans.extend(request.resources.into_iter().flat_map(|r| r.scopes).flat_map(|scope| scope.spans));
        }
        assert!(spans.iter().all(|span| hex(&span.trace) == TRACE && span.began <= span.ended), "{spans:?}");
        let named = |name: &str| {
            let found: Vec<&Span> = spans.iter().filter(|span| span.name == name).collect();
            assert_eq!(found.len(), 1, "{name}: {spans:?}");
            found[0]
        };
        for (call, within) in [("etcdserverpb.KV/Put", "put"), ("etcdserverpb.KV/Range", "range")] {
            assert_eq!(hex(&named(call).parent), SPAN);
            assert_eq!(named(within).parent, named(call).id);
        }
        for stage in ["queue", "fsync", "replicate", "apply", "answer"] {
            assert_eq!(named(stage).parent, named("put").id, "{stage}");
        }
        assert_eq!(spans.len(), 9, "{spans:?}");
    });
}

#[test]
fn a_collector_that_is_gone_costs_no_call_anything() {
    let dir = TempDir::new("no-collector");
    run(async {
        // It accepts, and says nothing.
        let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = silent.local_addr().expect("it has one");
        let member = Setup::new(dir.path())
            .flag("--enable-distributed-tracing")
            .flag(format!("--distributed-tracing-address={address}"))
            .flag("--distributed-tracing-sampling-rate=1000000")
            .start();
        let client = member.client().await;
        // Each put is seven spans: more than may wait, and than are on their way.
        for number in 0..500 {
            client.put(format!("{number}"), "v").await.expect("puts are served");
        }
        let metrics = http1::get(member.client_address(), "/metrics");
        let dropped = metrics
            .text()
            .lines()
            .find_map(|line| line.strip_prefix("mainstay_tracing_spans_dropped_total "));
        assert!(dropped.is_some_and(|dropped| dropped != "0"), "{dropped:?}");
        member.stop();
    });
}
