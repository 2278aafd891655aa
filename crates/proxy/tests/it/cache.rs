//! Serializable reads through a proxy, in front of a member that counts its requests.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::Duration;

use api::etcdserverpb::{PutRequest, PutResponse, RangeRequest, RangeResponse};
use api::{Rpc, Status};
use bytes::Bytes;
use client::{Client, Settings};
use front::{Answer, Head, Inbound, Kind, LocalBoxFuture, Method, Outbound, Service, Unary};
use prost::Message as _;
use proxy::{GrpcProxy, ProxyOptions};
use telemetry::logging::{Format, Level, Logger};

/// Answers reads with the number of reads so far, and writes with an empty response.
struct Counting(Arc<AtomicI64>);

impl Service for Counting {
    fn method(&self, path: &str) -> Option<Method> {
        let known = [Rpc::KvRange, Rpc::KvPut].into_iter().find(|rpc| rpc.path() == path)?;
        Some(Method { id: known as u16, kind: Kind::Unary })
    }

    fn has_service(&self, _: &str) -> bool {
        true
    }

    fn unary(self: Rc<Self>, head: Head, _: Bytes) -> Unary {
        let answer = match head.method == Rpc::KvRange as u16 {
            true => RangeResponse { count: self.0.fetch_add(1, Relaxed) + 1, ..Default::default() }
                .encode_to_vec(),
            false => PutResponse::default().encode_to_vec(),
        };
        Unary::Done(Ok(Answer::Whole(answer.into())))
    }

    fn stream(self: Rc<Self>, _: Head, _: Inbound, _: Outbound) -> LocalBoxFuture<Result<(), Status>> {
        Box::pin(async { Ok(()) })
    }

    fn http(self: Rc<Self>, _: http::Request<Bytes>) -> LocalBoxFuture<http::Response<Bytes>> {
        Box::pin(async { http::Response::default() })
    }
}

#[test]
fn serializable_reads_without_a_token_come_from_the_cache_until_their_keys_are_written() {
    let (socket, member) = testkit::ports::listen();
    socket.set_nonblocking(true).unwrap();
    let options = front::Options { shards: 1, ..front::Options::default() };
    let make = Arc::new(|_| -> Rc<dyn Service> { Rc::new(Counting(Arc::default())) });
    let _member = front::start(options, vec![socket.into()], make).unwrap();
    let logger = Logger::to(Level::Error, Format::Json, Vec::new());
    let proxy = GrpcProxy::start(&ProxyOptions::of(vec![member.to_string()]), &logger).unwrap();
    testkit::block_on(Duration::from_secs(30), async {
        let address = proxy.address.to_string();
        let anybody = Client::new(Settings::of([address.clone()])).unwrap();
        let token = Some("t".to_owned());
        let somebody = Client::new(Settings { token, ..Settings::of([address]) }).unwrap();
        // The response contains the number of reads that the member has seen.
        let read = async |client: &Client, key: &'static str, serializable| {
            let request = RangeRequest { key: key.into(), serializable, ..RangeRequest::default() };
            client.call::<_, RangeResponse>(Rpc::KvRange, &request).await.unwrap().count
        };
        let put = async |key: &'static str| {
            let request = PutRequest { key: key.into(), ..PutRequest::default() };
            anybody.call::<_, PutResponse>(Rpc::KvPut, &request).await.unwrap()
        };
        assert_eq!(read(&anybody, "k", false).await, 1);
        assert_eq!(read(&anybody, "k", true).await, 1);
        assert_eq!(read(&anybody, "k", false).await, 2, "linearizable reads are the member's");
        put("other").await;
        assert_eq!(read(&anybody, "k", true).await, 2);
        put("k").await;
        assert_eq!(read(&anybody, "k", true).await, 3);
        // Only the member knows what the user of a token may read.
        assert_eq!(read(&somebody, "k", true).await, 4);
        assert_eq!(read(&somebody, "k", true).await, 5);
        assert_eq!(read(&anybody, "k", true).await, 3);
    });
    proxy.stop(Duration::ZERO);
}
