use std::any::Any;
use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use api::{Rpc, Status};
use bytes::Bytes;
use http::StatusCode;

use crate::exchange::{Exchange, ResponseBody};
use crate::head::Head;
use crate::inbound::Inbound;
use crate::listener::Origin;
use crate::outbound::Outbound;

/// Boxed future that stays on its shard's thread.
pub type LocalBoxFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// Number of messages of a call in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One request, one answer.
    Unary,
    /// One request, many answers.
    ServerStream,
    /// Many requests, many answers.
    Bidi,
}

/// Method of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method {
    /// Number that the service gives the method, below [`crate::Options::methods`]; counters are indexed by
    /// it.
    pub id: u16,
    /// Number of messages of a call in each direction.
    pub kind: Kind,
}

impl From<Rpc> for Method {
    /// Converts a method of etcd's API; the id is its index in [`Rpc::ALL`].
    fn from(rpc: Rpc) -> Method {
        let kind = match rpc.method().kind {
            api::Kind::Unary => Kind::Unary,
            api::Kind::ServerStream => Kind::ServerStream,
            api::Kind::ClientStream | api::Kind::BidiStream => Kind::Bidi,
        };
        Method { id: rpc as u16, kind }
    }
}

/// Returns the next chunk of a large answer, of at most the requested number of bytes; `None` at the end. The
/// chunks together must have exactly the announced length. After `Pending`, the source is called again once
/// its waker was woken, possibly with another number of bytes.
pub type PieceSource = Box<dyn FnMut(usize, &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>>>;

/// Answer message of a unary call.
pub enum Answer {
    /// Complete message, without gRPC's five-byte prefix. It is sent without being copied.
    Whole(Bytes),
    /// Large message that is produced in chunks, as the client's window opens; other calls run between the
    /// chunks. Never compressed.
    Pieces {
        /// Length of the whole message in bytes.
        len: usize,
        /// First bytes of the message, for logs of answers: those that are known before the first chunk is
        /// produced, possibly none. The chunks contain these bytes as well.
        beginning: Box<[u8]>,
        /// Produces the chunks.
        source: PieceSource,
        /// Memory that the source holds now, in bytes, which the front reserves in the memory account of the
        /// client's connection. The number may be too low by a few hundred bytes.
        held: Rc<Cell<usize>>,
    },
}

/// Result of starting a unary call: the answer, or a future.
pub enum Unary {
    /// Answered immediately, inside the connection's turn, which is the cheapest way.
    Done(Result<Answer, Status>),
    /// Answered when the future resolves; dropped when the client or the deadline cancels the call.
    Later(LocalBoxFuture<Result<Answer, Status>>),
}

/// Answers the calls of clients. Each shard has one service, which never leaves that shard's thread.
pub trait Service: 'static {
    /// Returns the method at a path such as `/etcdserverpb.KV/Range`; `None` if there is no such method.
    fn method(&self, path: &str) -> Option<Method>;

    /// Returns true if a gRPC service of this name (such as `etcdserverpb.KV`) exists. The result selects
    /// between two error messages for an unknown path.
    fn has_service(&self, name: &str) -> bool;

    /// Returns true if unary calls of a method may be delayed a little in favor of other calls. A connection
    /// whose open calls are all such calls is throttled while other calls arrive.
    fn may_wait(&self, _method: u16) -> bool {
        false
    }

    /// Returns true if streaming calls of a method do not end by themselves, and clients begin them again
    /// when they end with UNAVAILABLE. They end as soon as their connection is drained
    /// ([`crate::Drains::begin`]).
    fn is_endless(&self, _method: u16) -> bool {
        false
    }

    /// Notifies the service that an HTTP/2 connection begins. The returned value is dropped when the
    /// connection ends, which notifies the service of the end.
    fn connected(&self, _from: &Origin) -> Option<Box<dyn Any>> {
        None
    }

    /// Answers a unary call. Runs inside the connection's turn, so it must not block.
    fn unary(self: Rc<Self>, head: Head, message: Bytes) -> Unary;

    /// Returns the status that replaces an answer which cannot be queued because the client reads no answers.
    /// For a method that changes data, the status must not look like a refusal, because the change was made.
    fn unanswered(&self, _method: u16) -> Status {
        api::error::TOO_MANY_REQUESTS
    }

    /// Answers a streaming call ([`Kind::ServerStream`] or [`Kind::Bidi`]), which ends when the future
    /// resolves.
    fn stream(
        self: Rc<Self>,
        head: Head,
        inbound: Inbound,
        outbound: Outbound,
    ) -> LocalBoxFuture<Result<(), Status>>;

    /// Returns the method of a request that is not a gRPC call, if its path alone determines the method. If
    /// calls of that method may be delayed ([`Service::may_wait`]), the request may be delayed too.
    fn page_method(&self, _path: &str) -> Option<u16> {
        None
    }

    /// Answers a request that is not a gRPC call, over HTTP/1 or HTTP/2. The default implementation reads the
    /// whole body and calls [`Service::http`].
    fn exchange(self: Rc<Self>, exchange: Exchange) -> LocalBoxFuture<http::Response<ResponseBody>> {
        answer_whole(self, exchange)
    }

    /// Answers a request that is not a gRPC call. `request` contains the whole body, and its extensions hold
    /// the peer address as a [`std::net::SocketAddr`], and an [`Origin`].
    fn http(self: Rc<Self>, request: http::Request<Bytes>) -> LocalBoxFuture<http::Response<Bytes>>;
}

/// Reads the whole request body and answers the exchange with [`Service::http`].
fn answer_whole<S: Service + ?Sized + 'static>(
    service: Rc<S>,
    mut exchange: Exchange,
) -> LocalBoxFuture<http::Response<ResponseBody>> {
    Box::pin(async move {
        let body = match exchange.body.gather().await {
            Ok(body) => body,
            Err(status) => return plain(status),
        };
        let mut head = exchange.head;
        head.extensions.insert(exchange.origin.peer);
        head.extensions.insert(exchange.origin);
        service.http(http::Request::from_parts(head, body)).await.map(ResponseBody::from)
    })
}

fn plain(status: StatusCode) -> http::Response<ResponseBody> {
    let mut response = http::Response::new(ResponseBody::from(Bytes::new()));
    *response.status_mut() = status;
    response
}
