//! What the peer listeners answer. The raft protocol between members is not served: there are none to talk to.

use std::net::TcpListener;
use std::rc::Rc;
use std::sync::Arc;

use ::http::{HeaderValue, Method as Verb, Request, Response, StatusCode};
use api::{Code, Status};
use bytes::Bytes;
use front::{Front, Head, Inbound, LocalBoxFuture, Method, Outbound, Service, Unary};
use serde_json::json;

use crate::shared::Shared;

/// Serves `/members` and `/version` on the peer URLs.
struct PeerListener {
    shared: Arc<Shared>,
}

/// Starts serving on the peer listeners, on one thread.
///
/// # Errors
///
/// When the thread cannot be started or a listener cannot be set up.
pub fn start(
    shared: &Arc<Shared>,
    options: front::Options,
    listeners: Vec<TcpListener>,
) -> std::io::Result<Front> {
    let shared = Arc::clone(shared);
    let make = move |_| -> Rc<dyn Service> { Rc::new(PeerListener { shared: Arc::clone(&shared) }) };
    front::start(front::Options { shards: 1, ..options }, listeners, Arc::new(make))
}

fn answer(status: StatusCode, content_type: &'static str, body: String) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(::http::header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn no_calls() -> Status {
    Status::new(Code::Unimplemented, "mainstay: calls are served on the client URLs")
}

impl PeerListener {
    fn members(&self) -> Response<Bytes> {
        let state = self.shared.state.load();
        let members: Vec<serde_json::Value> = state
            .members
            .by_id
            .values()
            .map(|member| {
                serde_json::from_str(&member.to_json()).unwrap_or_else(|_| json!({ "id": member.id }))
            })
            .collect();
        let mut response = answer(StatusCode::OK, "application/json", json!(members).to_string() + "\n");
        let cluster = format!("{:x}", self.shared.identity.cluster_id);
        if let Ok(cluster) = HeaderValue::from_str(&cluster) {
            response.headers_mut().insert("x-etcd-cluster-id", cluster);
        }
        response
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
        Unary::Done(Err(no_calls()))
    }

    fn stream(self: Rc<Self>, _: Head, _: Inbound, _: Outbound) -> LocalBoxFuture<Result<(), Status>> {
        Box::pin(std::future::ready(Err(no_calls())))
    }

    fn http(self: Rc<Self>, request: Request<Bytes>) -> LocalBoxFuture<Response<Bytes>> {
        const PLAIN: &str = "text/plain; charset=utf-8";
        let response = match (request.method(), request.uri().path()) {
            (&Verb::GET, "/members") => self.members(),
            (_, "/version") => crate::http::version(&self.shared, &request),
            (_, "/members") => {
                let mut refused =
                    answer(StatusCode::METHOD_NOT_ALLOWED, PLAIN, "Method Not Allowed\n".to_owned());
                refused.headers_mut().insert(::http::header::ALLOW, HeaderValue::from_static("GET"));
                refused
            }
            _ => answer(StatusCode::NOT_FOUND, PLAIN, "404 page not found\n".to_owned()),
        };
        Box::pin(std::future::ready(response))
    }
}
