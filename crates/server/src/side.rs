//! The listeners beside the clients': for other members, and for metrics.

use std::net::TcpListener;
use std::rc::Rc;
use std::sync::Arc;

use api::{Code, Status};
use bytes::Bytes;
use front::{Front, Head, Inbound, LocalBoxFuture, Method, Outbound, Service, Unary};
use http::{Method as Verb, Request, Response, StatusCode};
use serde_json::json;

use crate::http::{FrontCounters, MetricsListener};
use crate::shared::Shared;

/// What listens for other members: `/members` and `/version`. The raft protocol between members is not served: there
/// are none.
struct PeerListener {
    shared: Arc<Shared>,
}

/// Starts serving on these listeners.
///
/// # Errors
///
/// When a thread cannot be started.
pub fn start(
    shared: &Arc<Shared>,
    counters: &FrontCounters,
    options: front::Options,
    peers: Vec<TcpListener>,
    metrics: Vec<TcpListener>,
) -> Result<Vec<Front>, String> {
    let failed = |e: std::io::Error| format!("cannot start the threads that serve members and metrics: {e}");
    let mut fronts = Vec::new();
    if !peers.is_empty() {
        let peer_shared = Arc::clone(shared);
        let make =
            move |_| -> Rc<dyn Service> { Rc::new(PeerListener { shared: Arc::clone(&peer_shared) }) };
        let options = front::Options { shards: 1, ..options.clone() };
        fronts.push(front::start(options, peers, Arc::new(make)).map_err(failed)?);
    }
    if !metrics.is_empty() {
        fronts.push(MetricsListener::start(shared, counters, options, metrics).map_err(failed)?);
    }
    Ok(fronts)
}

fn text(status: StatusCode, content_type: &'static str, body: String) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(content_type));
    response
}

impl PeerListener {
    fn members(&self) -> Response<Bytes> {
        let state = self.shared.state.load();
        let members: Vec<serde_json::Value> = state
            .members
            .by_id
            .values()
            .map(|member| serde_json::from_str(&member.to_json()).unwrap_or_else(|_| json!({ "id": member.id })))
            .collect();
        let mut response = text(StatusCode::OK, "application/json", json!(members).to_string() + "\n");
        let cluster = format!("{:x}", self.shared.identity.cluster_id);
        if let Ok(cluster) = http::HeaderValue::from_str(&cluster) {
            response.headers_mut().insert("x-etcd-cluster-id", cluster);
        }
        response
    }

    fn peer_answer(&self, request: &Request<Bytes>) -> Response<Bytes> {
        match (request.method(), request.uri().path()) {
            (&Verb::GET, "/members") => self.members(),
            (_, "/version") => crate::http::version(&self.shared, request),
            (_, "/members") => {
                text(StatusCode::METHOD_NOT_ALLOWED, "text/plain; charset=utf-8", "Method Not Allowed\n".to_owned())
            }
            _ => text(StatusCode::NOT_FOUND, "text/plain; charset=utf-8", "404 page not found\n".to_owned()),
        }
    }
}

impl Service for PeerListener {
    fn method(&self, _path: &str) -> Option<Method> {
        None
    }

    fn has_service(&self, _name: &str) -> bool {
        false
    }

    fn unary(self: Rc<Self>, _head: Head, _message: Bytes) -> Unary {
        Unary::Done(Err(Status::new(Code::Unimplemented, "gRPC is served on the client URLs")))
    }

    fn stream(
        self: Rc<Self>,
        _head: Head,
        _inbound: Inbound,
        _outbound: Outbound,
    ) -> LocalBoxFuture<Result<(), Status>> {
        Box::pin(async { Err(Status::new(Code::Unimplemented, "gRPC is served on the client URLs")) })
    }

    fn http(self: Rc<Self>, request: Request<Bytes>) -> LocalBoxFuture<Response<Bytes>> {
        let response = self.peer_answer(&request);
        Box::pin(std::future::ready(response))
    }
}
