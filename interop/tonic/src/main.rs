//! gRPC as the Rust stack of etcd's Rust clients speaks it (tonic, hyper, h2), against any etcd:
//!
//! ```text
//! cargo run --release -- http://127.0.0.1:2379
//! cargo run --release -- https://127.0.0.1:2379 CA.crt [CLIENT.crt CLIENT.key]
//! ```
//!
//! The messages have the few fields that are looked at. All keys begin with `tonic/`. Last line: `N passed, M failed`.

use std::time::Duration;

use prost::Message;
use tokio_stream::StreamExt;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status};

type Error = Box<dyn std::error::Error>;

/// `PutRequest`
#[derive(Clone, PartialEq, Message)]
struct Put {
    #[prost(bytes, tag = "1")]
    key: Vec<u8>,
    #[prost(bytes, tag = "2")]
    value: Vec<u8>,
    #[prost(int64, tag = "3")]
    lease: i64,
}

/// `RangeRequest`, and with the first two fields `DeleteRangeRequest`.
#[derive(Clone, PartialEq, Message)]
struct Range {
    #[prost(bytes, tag = "1")]
    key: Vec<u8>,
    #[prost(bytes, tag = "2")]
    range_end: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(bytes, tag = "1")]
    key: Vec<u8>,
    #[prost(bytes, tag = "5")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Header {
    #[prost(int64, tag = "3")]
    revision: i64,
}

/// Answers of puts and ranges.
#[derive(Clone, PartialEq, Message)]
struct Answer {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
    #[prost(message, repeated, tag = "2")]
    kvs: Vec<KeyValue>,
    #[prost(int64, tag = "4")]
    count: i64,
}

/// Answer of a deletion.
#[derive(Clone, PartialEq, Message)]
struct Deleted {
    #[prost(int64, tag = "2")]
    deleted: i64,
}

/// `LeaseKeepAliveRequest`
#[derive(Clone, PartialEq, Message)]
struct Lease {
    #[prost(int64, tag = "1")]
    id: i64,
}

/// `LeaseGrantRequest`
#[derive(Clone, PartialEq, Message)]
struct Grant {
    #[prost(int64, tag = "1")]
    ttl: i64,
    #[prost(int64, tag = "2")]
    id: i64,
}

/// Answers of grants and renewals.
#[derive(Clone, PartialEq, Message)]
struct Granted {
    #[prost(int64, tag = "2")]
    id: i64,
    #[prost(int64, tag = "3")]
    ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Watch {
    #[prost(message, optional, tag = "1")]
    create: Option<Range>,
}

#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(message, optional, tag = "2")]
    kv: Option<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct Watched {
    #[prost(bool, tag = "3")]
    created: bool,
    #[prost(message, repeated, tag = "11")]
    events: Vec<Event>,
}

#[derive(Default)]
struct Tally {
    passed: u32,
    failed: u32,
}

impl Tally {
    fn check(&mut self, holds: bool, what: &str) {
        if holds {
            self.passed += 1;
        } else {
            self.failed += 1;
            println!("FAIL {what}");
        }
    }
}

fn path(method: &'static str) -> PathAndQuery {
    PathAndQuery::from_static(method)
}

async fn unary<Q, A>(channel: &Channel, method: &'static str, request: Q) -> Result<A, Status>
where
    Q: Message + Send + Sync + 'static,
    A: Message + Default + Send + Sync + 'static,
{
    let mut grpc = Grpc::new(channel.clone()).max_decoding_message_size(64 << 20);
    grpc.ready().await.map_err(|error| Status::unknown(error.to_string()))?;
    let codec = tonic_prost::ProstCodec::<Q, A>::default();
    Ok(grpc.unary(Request::new(request), path(method), codec).await?.into_inner())
}

const PUT: &str = "/etcdserverpb.KV/Put";
const RANGE: &str = "/etcdserverpb.KV/Range";

fn put(key: &str, value: Vec<u8>) -> Put {
    Put { key: key.into(), value, lease: 0 }
}

async fn calls(channel: &Channel, tally: &mut Tally) -> Result<(), Error> {
    let large: Vec<u8> = (0..1_000_000u32).map(|n| (n % 251) as u8).collect();
    let _: Answer = unary(channel, PUT, put("tonic/large", large.clone())).await?;
    let read: Answer =
        unary(channel, RANGE, Range { key: b"tonic/large".to_vec(), ..Range::default() }).await?;
    tally.check(read.kvs.len() == 1 && read.kvs[0].value == large, "a value of 1 MB comes back");

    // More at once than a connection has streams for by default.
    let many = (0..2000u32).map(|n| {
        let channel = channel.clone();
        tokio::spawn(async move {
            unary::<_, Answer>(&channel, PUT, put(&format!("tonic/many/{n:04}"), n.to_string().into())).await
        })
    });
    for put in many.collect::<Vec<_>>() {
        put.await??;
    }
    let all = Range { key: b"tonic/many/".to_vec(), range_end: b"tonic/many0".to_vec() };
    let read: Answer = unary(channel, RANGE, all.clone()).await?;
    let in_order = read.kvs.iter().enumerate().all(|(n, kv)| kv.value == n.to_string().into_bytes());
    tally.check(
        read.count == 2000 && read.kvs.len() == 2000 && in_order,
        "2,000 puts at once are all there, in order",
    );
    tally.check(read.header.is_some_and(|header| header.revision > 2000), "the revision counts them");
    let gone: Deleted = unary(channel, "/etcdserverpb.KV/DeleteRange", all).await?;
    tally.check(gone.deleted == 2000, "they are deleted");

    let refused = unary::<_, Answer>(channel, PUT, put("", Vec::new())).await;
    let refused = refused.expect_err("a put without a key was taken");
    tally.check(refused.code() == Code::InvalidArgument, "a put without a key is an invalid argument");
    tally.check(refused.message() == "etcdserver: key is not provided", "and the text says why");
    let unknown = unary::<_, Answer>(channel, "/etcdserverpb.KV/Nothing", Range::default()).await;
    tally.check(
        unknown.is_err_and(|status| status.code() == Code::Unimplemented),
        "an unknown method is unimplemented",
    );
    let huge = unary::<_, Answer>(channel, PUT, put("tonic/huge", vec![0; 2 << 20])).await;
    tally.check(huge.is_err(), "a request of over 1.5 MiB is refused");
    Ok(())
}

async fn streams(channel: &Channel, tally: &mut Tally) -> Result<(), Error> {
    let mut grpc = Grpc::new(channel.clone());
    grpc.ready().await?;
    let (ask, asked) = tokio::sync::mpsc::channel(8);
    let create = Range { key: b"tonic/watched/".to_vec(), range_end: b"tonic/watched0".to_vec() };
    ask.send(Watch { create: Some(create) }).await?;
    let asked = tokio_stream::wrappers::ReceiverStream::new(asked);
    let codec = tonic_prost::ProstCodec::<Watch, Watched>::default();
    let mut watched =
        grpc.streaming(Request::new(asked), path("/etcdserverpb.Watch/Watch"), codec).await?.into_inner();
    let created = watched.message().await?.is_some_and(|first| first.created);
    tally.check(created, "a watch is created");
    for n in 0..500u32 {
        let _: Answer = unary(channel, PUT, put(&format!("tonic/watched/{n}"), n.to_string().into())).await?;
    }
    let mut seen = Vec::new();
    while seen.len() < 500 {
        let Some(message) = watched.message().await? else { break };
        seen.extend(message.events.into_iter().filter_map(|event| event.kv).map(|kv| kv.value));
    }
    let expected: Vec<_> = (0..500).map(|n: u32| n.to_string().into_bytes()).collect();
    tally.check(seen == expected, "the watch sees each of 500 puts once, in order");
    // etcd goes on with the watches of a client that will not ask for more.
    drop(ask);
    let _: Answer = unary(channel, PUT, put("tonic/watched/more", Vec::new())).await?;
    let more = watched.message().await?.is_some_and(|message| message.events.len() == 1);
    tally.check(more, "a watch outlives its client's half of the stream");
    drop(watched);

    let granted: Granted = unary(channel, "/etcdserverpb.Lease/LeaseGrant", Grant { ttl: 60, id: 0 }).await?;
    tally.check(granted.id != 0 && granted.ttl == 60, "a lease is granted");
    let renewals = tokio_stream::iter(vec![Lease { id: granted.id }; 100]);
    let codec = tonic_prost::ProstCodec::<Lease, Granted>::default();
    grpc.ready().await?;
    let renewed =
        grpc.streaming(Request::new(renewals), path("/etcdserverpb.Lease/LeaseKeepAlive"), codec).await?;
    let renewed: Vec<_> = renewed.into_inner().collect().await;
    let all = renewed.iter().all(|one| one.as_ref().is_ok_and(|one| one.id == granted.id && one.ttl == 60));
    tally.check(renewed.len() == 100 && all, "a hundred renewals in one stream are answered");

    let mut late = Request::new(Range { key: b"tonic/large".to_vec(), ..Range::default() });
    late.set_timeout(Duration::from_nanos(1));
    grpc.ready().await?;
    let codec = tonic_prost::ProstCodec::<Range, Answer>::default();
    let late = grpc.unary(late, path(RANGE), codec).await;
    let code = late.err().map(|status| status.code());
    tally.check(
        matches!(code, Some(Code::DeadlineExceeded | Code::Cancelled)),
        "a deadline that has passed ends a call",
    );
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    let url = args.next().ok_or("which server? The URL has to be given")?;
    let mut endpoint = Endpoint::from_shared(url)?;
    if let Some(ca) = args.next() {
        let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(std::fs::read(ca)?));
        if let (Some(cert), Some(key)) = (args.next(), args.next()) {
            tls = tls.identity(Identity::from_pem(std::fs::read(cert)?, std::fs::read(key)?));
        }
        endpoint = endpoint.tls_config(tls)?;
    }
    let channel = endpoint.connect().await?;
    let mut tally = Tally::default();
    calls(&channel, &mut tally).await?;
    streams(&channel, &mut tally).await?;
    println!("{} passed, {} failed", tally.passed, tally.failed);
    std::process::exit(i32::from(tally.failed > 0));
}
