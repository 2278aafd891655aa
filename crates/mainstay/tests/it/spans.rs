//! Spans of calls: those that a collector receives from a member; and a missing collector costs nothing.

use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};

use api::Rpc;
use api::etcdserverpb::request_op::Request as Operation;
use api::etcdserverpb::{LeaseKeepAliveRequest, RangeRequest, RequestOp, TxnRequest, TxnResponse};
use bytes::Bytes;
use front::{Answer, Front, Head, Inbound, Kind, LocalBoxFuture, Method, Outbound, Service, Unary};
use prost::Message;
use testkit::{TempDir, eventually, http1};

use crate::auth;
use crate::cluster::{Cluster, PATIENCE};
use crate::member::Setup;
use crate::run;

/// The messages of OTLP, as far as the tests use them.
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

/// A collector that passes requests on to the test.
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
        // The test may have ended, and dropped the receiver.
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
        for (stage, calls) in [("front", 4), ("fsync", 2), ("encode", 2)] {
            assert_eq!(measured(metrics.text(), stage), Some(calls), "two puts and two ranges: {stage}");
        }
        assert_eq!(measured(metrics.text(), "auth"), None, "without users");
        assert!(metrics.text().contains("mainstay_request_stage_sampling 1\n"));
        // Waiting spans are sent when the member stops.
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
        for stage in ["queue", "append", "fsync", "replicate", "apply", "answer"] {
            assert_eq!(named(stage).parent, named("put").id, "{stage}");
        }
        for stage in ["index", "values", "encode"] {
            assert_eq!(named(stage).parent, named("range").id, "{stage}");
        }
        for call in ["put", "range"] {
            let id = &named(call).id;
            let front = spans.iter().find(|span| span.name == "front" && span.parent == *id);
            assert!(front.is_some_and(|front| front.began == named(call).began), "{call}: {spans:?}");
            let within: u64 =
                spans.iter().filter(|span| span.parent == *id).map(|span| span.ended - span.began).sum();
            assert!(within <= named(call).ended - named(call).began, "{call}: {spans:?}");
        }
        assert_eq!(spans.len(), 15, "{spans:?}");
    });
}

#[test]
fn what_a_stream_asks_for_are_spans_within_the_streams() {
    let dir = TempDir::new("stream-spans");
    run(async {
        let (_front, address, received) = collector();
        let member = Setup::new(dir.path())
            .flag("--enable-distributed-tracing")
            .flag(format!("--distributed-tracing-address={address}"))
            .start();
        let client = member.client().await;
        let traced = client.with_header("traceparent", &format!("00-{TRACE}-{SPAN}-01"));
        let (mut sender, mut receiver) = traced.open(Rpc::LeaseKeepAlive).await.expect("a stream");
        for id in [7, 8] {
            sender.send(LeaseKeepAliveRequest { id }.encode_to_vec().into()).await.expect("it is sent");
            receiver.next().await.expect("an answer").expect("an answer");
        }
        drop((sender, receiver));
        let (mut sender, mut receiver) = traced.open(Rpc::KvRangeStream).await.expect("a stream");
        let request = RangeRequest { key: "k".into(), ..RangeRequest::default() };
        sender.send(request.encode_to_vec().into()).await.expect("it is sent");
        receiver.next().await.expect("an answer").expect("an answer");
        drop((sender, receiver));
        let watch = traced.watch_all(1).await.expect("a watch can be opened");
        let streams = || {
            let metrics = http1::get(member.client_address(), "/metrics");
            metrics.text().contains("etcd_debugging_mvcc_watch_stream_total 1\n")
        };
        assert!(streams());
        drop(watch);
        eventually("the stream ends", PATIENCE, async || (!streams()).then_some(())).await;
        // Waiting spans are sent when the member stops.
        member.stop();
        let mut spans = Vec::new();
        while let Ok(message) = received.try_recv() {
            let request = Request::decode(message).expect("a request");
            spans.extend(request.resources.into_iter().flat_map(|r| r.scopes).flat_map(|scope| scope.spans));
        }
        for (stream, within, count) in [
            ("etcdserverpb.Lease/LeaseKeepAlive", "lease_renew", 2),
            ("etcdserverpb.KV/RangeStream", "range_streaming", 1),
            ("etcdserverpb.Watch/Watch", "watch", 1),
        ] {
            let outer = spans.iter().find(|span| span.name == stream);
            let outer = outer.unwrap_or_else(|| panic!("{stream}: {spans:?}"));
            assert_eq!((hex(&outer.trace).as_str(), hex(&outer.parent).as_str()), (TRACE, SPAN));
            let inner = spans.iter().filter(|span| span.name == within && span.parent == outer.id);
            assert_eq!(inner.count(), count, "{within}: {spans:?}");
        }
        assert_eq!(spans.len(), 7, "{spans:?}");
    });
}

#[test]
fn slow_requests_are_listed_with_the_time_of_each_stage() {
    run(async {
        // With this threshold, all calls count as slow.
        let cluster = Cluster::start("slow", 3, &["--warning-unary-request-duration=1ns"]);
        let follower = (cluster.leader().await + 1) % 3;
        let client = cluster.client(follower).await;
        client.put("k", "v").await.expect("puts are served");
        client.get("k").await.expect("reads are served");
        client.get_local("k").await.expect("reads are served");
        let get = RangeRequest { key: "k".into(), ..RangeRequest::default() };
        let get = RequestOp { request: Some(Operation::RequestRange(get)) };
        let txn = TxnRequest { success: vec![get], ..TxnRequest::default() };
        client.call::<TxnResponse>(Rpc::KvTxn, &txn).await.expect("transactions are served");
        let page = http1::get(cluster.member(follower).client_address(), "/debug/requests");
        let stages = |path: &str, content: &str| -> Vec<String> {
            let line = page.text().lines().find(|line| line.contains(path) && line.ends_with(content));
            let line = line.unwrap_or_else(|| panic!("{path} {content}: {}", page.text()));
            line.split(' ').filter_map(|word| Some(word.split_once('=')?.0.to_owned())).collect()
        };
        let put = stages("/etcdserverpb.KV/Put", "");
        assert_eq!(put, ["front", "queue", "append", "fsync", "replicate", "apply", "answer"]);
        // If the call is sampled, the parts of building its response are listed one by one.
        let is_made = |rest: &[String]| *rest == ["range"] || *rest == ["index", "values", "encode"];
        let linearizable = stages("/etcdserverpb.KV/Range", "key:\"k\"");
        let (before, made) = linearizable.split_at(4);
        assert_eq!(before, ["front", "queue", "read_index", "apply_wait"]);
        assert!(is_made(made), "{linearizable:?}");
        let serializable = stages("/etcdserverpb.KV/Range", "serializable:true");
        let txn = stages("/etcdserverpb.KV/Txn", "");
        assert_eq!(txn, ["front", "queue", "read_index", "apply_wait", "range"]);
        assert_eq!(serializable[0], "front");
        assert!(is_made(&serializable[1..]), "{serializable:?}");
    });
}

/// Returns the number of calls for which this metrics page has measured a stage.
fn measured(metrics: &str, stage: &str) -> Option<u64> {
    let series = format!("mainstay_request_stage_seconds_count{{stage=\"{stage}\"}} ");
    metrics.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok())
}

#[test]
fn each_stage_of_puts_and_ranges_has_a_histogram() {
    run(async {
        let cluster = Cluster::start("stages", 3, &["--metrics=extensive", auth::CHEAP]);
        let follower = (cluster.leader().await + 1) % 3;
        let (root, _) = auth::secured(&cluster.client(follower).await).await;
        root.put("k", "v").await.expect("root may");
        root.get("k").await.expect("root may");
        let metrics = http1::get(cluster.member(follower).client_address(), "/metrics");
        let of_all = ["front", "auth", "queue"];
        let of_writes = ["append", "fsync", "replicate", "apply", "answer"];
        let of_reads = ["read_index", "apply_wait", "index", "values", "encode"];
        for stage in [&of_all[..], &of_writes, &of_reads].concat() {
            assert!(measured(metrics.text(), stage) >= Some(1), "{stage}: {}", metrics.text());
        }
        assert_eq!(measured(metrics.text(), "range"), None, "all parts were told apart");
    });
}

#[test]
fn stages_are_measured_of_few_requests() {
    let dir = TempDir::new("sampled");
    run(async {
        let member = Setup::new(dir.path()).start();
        let client = member.client().await;
        for number in 0..1000 {
            client.get_local(format!("{number}")).await.expect("reads are served");
        }
        let metrics = http1::get(member.client_address(), "/metrics");
        assert!(metrics.text().contains("mainstay_request_stage_sampling 64\n"));
        // About 16 sampled calls are expected.
        assert!(measured(metrics.text(), "encode").is_some_and(|calls| (1..60).contains(&calls)));
        member.stop();
    });
}

#[test]
fn a_collector_that_is_gone_costs_no_call_anything() {
    let dir = TempDir::new("no-collector");
    run(async {
        // The listener accepts connections, and never responds.
        let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = silent.local_addr().expect("it has one");
        let member = Setup::new(dir.path())
            .flag("--enable-distributed-tracing")
            .flag(format!("--distributed-tracing-address={address}"))
            .flag("--distributed-tracing-sampling-rate=1000000")
            .start();
        let client = member.client().await;
        // Each put makes nine spans: more than fit into the queue and the request in flight.
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
