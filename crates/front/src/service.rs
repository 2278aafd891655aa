use std::any::Any;
use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use api::{Rpc, Status};
use bytes::Bytes;

use crate::{Exchange, Head, Inbound, Origin, Outbound, ResponseBody, exchange};

/// A boxed future that stays on its shard's thread.
pub type LocalBoxFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// The number of messages in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One message in, one out.
    Unary,
    /// One message in, many out.
    ServerStream,
    /// Many messages in, many out.
    Bidi,
}

/// A method of a service, as its path names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method {
    /// The service's own number for it, below [`crate::Options::methods`]; counters are kept under it.
    pub id: u16,
    /// Number of messages in each direction.
    pub kind: Kind,
}

impl From<Rpc> for Method {
    /// The method of etcd's API, under its number in [`Rpc::ALL`].
    fn from(rpc: Rpc) -> Method {
        let kind = match rpc.method().kind {
            api::Kind::Unary => Kind::Unary,
            api::Kind::ServerStream => Kind::ServerStream,
            api::Kind::ClientStream | api::Kind::BidiStream => Kind::Bidi,
        };
        Method { id: rpc as u16, kind }
    }
}

/// Yields the next part of a big answer: at most as many bytes as asked for, `None` when there is no more.
/// The parts together must have exactly the announced length. A part that has to be waited for is asked for again,
/// perhaps with another number of bytes, once the context's waker was woken.
pub type PieceSource = Box<dyn FnMut(usize, &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>>>;

/// The one message that answers a unary call.
pub enum Answer {
    /// A message that is ready, without gRPC's five byte prefix. It is sent without being copied together
    /// with its prefix first.
    Whole(Bytes),
    /// A big message made part by part while the client's window opens; other calls run between parts. It is
    /// never compressed.
    Pieces {
        /// Bytes of the whole message.
        len: usize,
        /// The first bytes of the message, for whoever notes what was answered: some of those that are known before a part is
        /// made, or none. They are in the parts, too.
        beginning: Box<[u8]>,
        /// Makes the parts.
        source: PieceSource,
        /// Bytes that the source holds now, besides some hundred. They are charged to the client.
        held: Rc<Cell<usize>>,
    },
}

/// How a unary call is answered.
pub enum Unary {
    /// Answered at once, inside the connection's turn: the cheapest way.
    Done(Result<Answer, Status>),
    /// Answered when the future resolves; dropped when the client or the deadline cancels the call.
    Later(LocalBoxFuture<Result<Answer, Status>>),
}

/// The service that answers calls. There is one per shard, and it never leaves that shard's thread.
pub trait Service: 'static {
    /// The method at a path such as `/etcdserverpb.KV/Range`.
    fn method(&self, path: &str) -> Option<Method>;

    /// Returns true if a gRPC service of this name (such as `etcdserverpb.KV`) exists; decides between the two texts for
    /// an unknown path.
    fn has_service(&self, name: &str) -> bool;

    /// Returns true if unary calls of a method may wait a little while others are answered. A connection whose client makes
    /// no others gives way.
    fn may_wait(&self, _method: u16) -> bool {
        false
    }

    /// A client's connection has begun to speak HTTP/2. What this gives is dropped when the connection is gone.
    fn connected(&self, _from: &Origin) -> Option<Box<dyn Any>> {
        None
    }

    /// Answers a unary call. Runs inside the connection's turn, so it must not block.
    fn unary(self: Rc<Self>, head: Head, message: Bytes) -> Unary;

    /// Returns the status that replaces an answer for which there is no space, because the client takes none. For a
    /// method that changes something it must not look like a refusal.
    fn unanswered(&self, _method: u16) -> Status {
        api::error::TOO_MANY_REQUESTS
    }

    /// Answers a streaming call of either kind; the call ends with the future.
    fn stream(
        self: Rc<Self>,
        head: Head,
        inbound: Inbound,
        outbound: Outbound,
    ) -> LocalBoxFuture<Result<(), Status>>;

    /// The method that a request which is no gRPC call makes of its path, if it is known by that alone: such requests wait
    /// where calls of the method do, see [`Service::may_wait`].
    fn page_method(&self, _path: &str) -> Option<u16> {
        None
    }

    /// Answers a request that is no gRPC call, over HTTP/1 or HTTP/2. Without a method of its own, a service gets it whole, as
    /// [`Service::http`].
    fn exchange(self: Rc<Self>, exchange: Exchange) -> LocalBoxFuture<http::Response<ResponseBody>> {
        exchange::answer_whole(self, exchange)
    }

    /// Answers a request that is no gRPC call, whose body has arrived whole. The peer's address is in its extensions as
    /// a [`std::net::SocketAddr`], and an [`Origin`] with the rest.
    fn http(self: Rc<Self>, request: http::Request<Bytes>) -> LocalBoxFuture<http::Response<Bytes>>;
}
