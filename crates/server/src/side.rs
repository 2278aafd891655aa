//! The listeners beside the clients': for other members, and for metrics.

use std::net::TcpListener;
use std::rc::Rc;
use std::sync::Arc;

use api::{Code, Status};
use bytes::Bytes;
use front::{Front, Head, Inbound, LocalBoxFuture, Method, Outbound, Service, Unary};
use http::{Method as Verb, Request, Response, StatusCode};
use serde_json::json;

use crate::services::FrontCounters;
use crate::shared::Shared;
use crate::values::LogValues;

/// What one of these listeners answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// `/members` and `/version`. The raft protocol between members is not served: there are none.
    Peers,
    /// `/metrics` and the health checks.
    Metrics,
}

struct SideService {
    side: Side,
    shared: Arc<Shared>,
    counters: FrontCounters,
    values: LogValues,
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
    let mut fronts = Vec::new();
    for (side, listeners) in [(Side::Peers, peers), (Side::Metrics, metrics)] {
        if listeners.is_empty() {
            continue;
        }
        let (shared, counters) = (Arc::clone(shared), counters.clone());
        let make = move |_| -> Rc<dyn Service> {
            Rc::new(SideService {
                side,
                shared: Arc::clone(&shared),
                counters: counters.clone(),
                values: LogValues::new(shared.values.clone()),
            })
        };
        let options = front::Options { shards: 1, ..options.clone() };
        let front = front::start(options, listeners, Arc::new(make))
            .map_err(|e| format!("cannot start the threads that serve members and metrics: {e}"))?;
        fronts.push(front);
    }
    Ok(fronts)
}

fn text(status: StatusCode, content_type: &'static str, body: String) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(content_type));
    response
}

impl SideService {
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
            (&Verb::GET, "/version") => crate::http::answer(&self.shared, &self.values, &self.counters, request),
            (_, "/members" | "/version") => {
                text(StatusCode::METHOD_NOT_ALLOWED, "text/plain; charset=utf-8", "Method Not Allowed\n".to_owned())
            }
            _ => text(StatusCode::NOT_FOUND, "text/plain; charset=utf-8", "404 page not found\n".to_owned()),
        }
    }
}

impl Service for SideService {
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
        let path = request.uri().path();
        let served = ["/metrics", "/health", "/livez", "/readyz"];
        let response = match self.side {
            Side::Peers => self.peer_answer(&request),
            Side::Metrics if served.iter().any(|p| path == *p || path.starts_with(&format!("{p}/"))) => {
                crate::http::answer(&self.shared, &self.values, &self.counters, &request)
            }
            Side::Metrics => text(StatusCode::NOT_FOUND, "text/plain; charset=utf-8", "404 page not found\n".to_owned()),
        };
        Box::pin(std::future::ready(response))
    }
}
