//! Lease renewals through a proxy, in front of a member that does not answer at first.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use api::etcdserverpb::{LeaseKeepAliveRequest, LeaseKeepAliveResponse};
use api::{Rpc, Status};
use bytes::Bytes;
use client::{Client, Settings};
use front::{Head, Inbound, LocalBoxFuture, Method, Outbound, Service, Unary};
use prost::Message as _;
use proxy::{GrpcProxy, ProxyOptions};
use telemetry::logging::{Format, Level, Logger};

/// Answers no renewals on its first stream, and all renewals on other streams.
struct Silent(Arc<AtomicUsize>);

impl Service for Silent {
    fn method(&self, path: &str) -> Option<Method> {
        (path == Rpc::LeaseKeepAlive.path()).then(|| Method::from(Rpc::LeaseKeepAlive))
    }

    fn has_service(&self, _: &str) -> bool {
        true
    }

    fn unary(self: Rc<Self>, _: Head, _: Bytes) -> Unary {
        unreachable!("it has no such method")
    }

    fn stream(
        self: Rc<Self>,
        _: Head,
        mut inbound: Inbound,
        mut outbound: Outbound,
    ) -> LocalBoxFuture<Result<(), Status>> {
        Box::pin(async move {
            let is_first = self.0.fetch_add(1, Relaxed) == 0;
            while let Some(message) = inbound.next().await? {
                let LeaseKeepAliveRequest { id } = LeaseKeepAliveRequest::decode(message).unwrap();
                let answer = LeaseKeepAliveResponse { id, ttl: 60, ..LeaseKeepAliveResponse::default() };
                if !is_first {
                    outbound.send(answer.encode_to_vec().into()).await?;
                }
            }
            Ok(())
        })
    }

    fn http(self: Rc<Self>, _: http::Request<Bytes>) -> LocalBoxFuture<http::Response<Bytes>> {
        Box::pin(async { http::Response::default() })
    }
}

#[test]
fn a_member_that_answers_no_renewal_is_given_up() {
    let (socket, member) = testkit::ports::listen();
    socket.set_nonblocking(true).unwrap();
    let options = front::Options { shards: 1, ..front::Options::default() };
    let streams = Arc::new(AtomicUsize::new(0));
    let make = {
        let streams = streams.clone();
        Arc::new(move |_| -> Rc<dyn Service> { Rc::new(Silent(streams.clone())) })
    };
    let _member = front::start(options, vec![socket.into()], make).unwrap();
    let logger = Logger::to(Level::Error, Format::Json, Vec::new());
    let mut options = ProxyOptions::of(vec![member.to_string()]);
    options.members.renewal_limit = Duration::from_millis(100);
    let proxy = GrpcProxy::start(&options, &logger).unwrap();
    testkit::block_on(Duration::from_secs(30), async {
        let client = Client::new(Settings::of([proxy.address.to_string()])).unwrap();
        let answer = client::lease::keep_alive_once(&client, 7).await.unwrap();
        assert_eq!((answer.id, answer.ttl), (7, 60));
    });
    assert_eq!(streams.load(Relaxed), 2);
    proxy.stop(Duration::ZERO);
}
