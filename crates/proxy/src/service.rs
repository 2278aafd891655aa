//! The gRPC proxy as a service: each call of a client is answered by a call to a member.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use api::etcdserverpb::{Member, MemberListResponse};
use api::{Code, Rpc, Status};
use bytes::Bytes;
use client::{Client, Receiver, Sender};
use front::{
    Answer, First, Head, Inbound, Kind, LocalBoxFuture, Method, Origin, Outbound, Service, Unary, race,
};
use prost::Message as _;
use telemetry::logging::{Logger, Value};

use crate::metrics::Metrics;
use crate::pages::Pages;
use crate::upstream;

/// What all shards of the proxy share.
pub(crate) struct Shared {
    pub(crate) logger: Logger,
    pub(crate) metrics: Metrics,
    /// The URL that the member list shows; empty: the list is that of the cluster.
    pub(crate) advertise: String,
    /// Name of this machine.
    pub(crate) host: String,
    /// Write each call to the log.
    pub(crate) logs_calls: bool,
}

/// The service of one shard, with connections of its own to the members.
pub(crate) struct Proxy {
    shared: Arc<Shared>,
    client: Client,
    pages: Pages,
    rpcs: HashMap<&'static str, Rpc>,
}

impl Proxy {
    pub(crate) fn new(shared: Arc<Shared>, pages: Pages) -> Proxy {
        let rpcs = Rpc::ALL.into_iter().map(|rpc| (rpc.path(), rpc)).collect();
        Proxy { shared, client: pages.client.clone(), pages, rpcs }
    }

    async fn answer(&self, rpc: Rpc, head: &Head, message: Bytes) -> Result<Bytes, Status> {
        match rpc {
            Rpc::ClusterMemberList if !self.shared.advertise.is_empty() => Ok(self.own_members()),
            _ => self.client.forward(rpc, &upstream::call_options(rpc, head), message).await,
        }
    }

    /// The member list that keeps clients at this proxy.
    fn own_members(&self) -> Bytes {
        let member = Member {
            name: self.shared.host.clone(),
            client_urls: vec![self.shared.advertise.clone()],
            ..Member::default()
        };
        MemberListResponse { header: None, members: vec![member] }.encode_to_vec().into()
    }

    /// Passes a call with one request and many answers on.
    async fn pass_on_answers(
        &self,
        rpc: Rpc,
        head: &Head,
        inbound: &mut Inbound,
        outbound: &mut Outbound,
    ) -> Result<(), Status> {
        let missing = || Status::new(Code::Internal, "no request in a call with one");
        let request = inbound.next().await?.ok_or_else(missing)?;
        let options = upstream::call_options(rpc, head);
        let (mut sender, mut receiver) = self.client.forward_stream(rpc, &options).await?;
        sender.send_last(request).await?;
        answers(&mut receiver, outbound).await
    }

    /// Passes a call with many requests and many answers on.
    async fn pass_on_both(
        &self,
        rpc: Rpc,
        head: &Head,
        inbound: &mut Inbound,
        outbound: &mut Outbound,
    ) -> Result<(), Status> {
        let options = upstream::call_options(rpc, head);
        let (mut sender, mut receiver) = self.client.forward_stream(rpc, &options).await?;
        let ended = {
            let up = std::pin::pin!(requests(inbound, &mut sender));
            let down = std::pin::pin!(answers(&mut receiver, outbound));
            race(up, down).await
        };
        match ended {
            First::Left(sent) => {
                sent?;
                answers(&mut receiver, outbound).await
            }
            First::Right(answered) => answered,
        }
    }

    fn log(&self, rpc: Rpc, head: &Head, began: Instant, failure: Option<&Status>) {
        let (code, error) = failure.map_or((Code::Ok, ""), |status| (status.code, status.message.as_ref()));
        let method = rpc.method();
        let peer = front::shown_peer(head.peer);
        self.shared.logger.info(
            "finished call",
            &[
                ("grpc.service", Value::Str(method.service)),
                ("grpc.method", Value::Str(method.name)),
                ("grpc.code", Value::Str(code.name())),
                ("grpc.error", Value::Str(error)),
                ("peer.address", Value::Display(&peer)),
                ("grpc.duration", Value::Duration(began.elapsed())),
            ],
        );
    }
}

/// Passes messages of a member on until it ends the call.
async fn answers(receiver: &mut Receiver, outbound: &mut Outbound) -> Result<(), Status> {
    while let Some(message) = receiver.next().await? {
        outbound.send(message).await?;
    }
    Ok(())
}

/// Passes messages of a client on until it closes its side.
async fn requests(inbound: &mut Inbound, sender: &mut Sender) -> Result<(), Status> {
    while let Some(message) = inbound.next().await? {
        sender.send(message).await?;
    }
    sender.finish();
    Ok(())
}

fn numbered(method: u16) -> Rpc {
    Rpc::ALL[usize::from(method)]
}

impl Service for Proxy {
    fn method(&self, path: &str) -> Option<Method> {
        let rpc = *self.rpcs.get(path)?;
        let kind = match rpc.method().kind {
            api::Kind::Unary => Kind::Unary,
            api::Kind::ServerStream => Kind::ServerStream,
            api::Kind::ClientStream | api::Kind::BidiStream => Kind::Bidi,
        };
        Some(Method { id: rpc as u16, kind })
    }

    fn has_service(&self, name: &str) -> bool {
        api::METHODS.iter().any(|method| method.service == name)
    }

    fn unary(self: Rc<Self>, head: Head, message: Bytes) -> Unary {
        let rpc = numbered(head.method);
        Unary::Later(Box::pin(async move {
            let began = Instant::now();
            let answer = self.answer(rpc, &head, message).await;
            if self.shared.logs_calls {
                self.log(rpc, &head, began, answer.as_ref().err());
            }
            answer.map(Answer::Whole)
        }))
    }

    fn stream(
        self: Rc<Self>,
        head: Head,
        mut inbound: Inbound,
        mut outbound: Outbound,
    ) -> LocalBoxFuture<Result<(), Status>> {
        let rpc = numbered(head.method);
        Box::pin(async move {
            let began = Instant::now();
            let outcome = match rpc.method().kind {
                api::Kind::ServerStream => {
                    self.pass_on_answers(rpc, &head, &mut inbound, &mut outbound).await
                }
                _ => self.pass_on_both(rpc, &head, &mut inbound, &mut outbound).await,
            };
            if self.shared.logs_calls {
                self.log(rpc, &head, began, outcome.as_ref().err());
            }
            outcome
        })
    }

    fn http(self: Rc<Self>, request: http::Request<Bytes>) -> LocalBoxFuture<http::Response<Bytes>> {
        Box::pin(async move {
            let is_tls = request.extensions().get::<Origin>().is_some_and(|origin| origin.is_tls);
            self.pages.answer(&self.shared.metrics, &request, is_tls).await
        })
    }
}
