//! Answers plain HTTP requests on the client and metrics listeners: health, version, metrics and diagnosis
//! pages.
//!
//! Statuses, headers and bodies are those of etcd 3.7. Everything is answered from the newest published
//! state. Only health checks wait: until the cluster has confirmed that this state is new enough for a
//! linearizable read.
//!
//! Health checks are logged as in etcd; nothing else is logged here.
//!
//! This module does not handle sockets or the JSON gateway.
//!
//! Tests: beside the code, and `tests/it/http.rs`.

mod browsers;
mod diagnosis;
mod health;
mod metrics_listener;
mod profiles;
mod requests;
mod scrape;
mod target;
mod variables;

use ::http::header::{ALLOW, AUTHORIZATION, CONNECTION, CONTENT_TYPE, LOCATION, X_CONTENT_TYPE_OPTIONS};
use ::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use api::{Rpc, Status, error};
use bytes::Bytes;
use front::First;
use serde_json::Value;

use crate::grpc_web::frames::Form;
use replica::core::{ClientRequest, ReplyBody};
use replica::shared::{Published, Shared};
use storage::values::LogValues;
use target::{Query, Target};
use telemetry::logging::Logger;
use telemetry::metrics;

pub use metrics_listener::MetricsListener;
pub use profiles::collect;
pub use scrape::{FrontCounters, scrape};

const PLAIN: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
/// etcd's response when the client's certificate contains a common name: the gateway refuses the request,
/// because it could not use that name as the user.
const NAMED: &str =
    "CommonName of client sending a request against gateway will be ignored and not used as expected";

/// A request for a page, with the state that answers it.
struct Asked<'a> {
    shared: &'a Shared,
    values: &'a LogValues,
    logger: &'a Logger,
    state: &'a Published,
    query: Query<'a>,
    /// Result of the confirmation that the state is new enough; `None` if the request needs no confirmation.
    confirmed: Option<&'a Confirmed>,
}

/// Result of the check that the published state is new enough for a linearizable read. It is attached to the
/// request.
#[derive(Clone, Debug)]
struct Confirmed(Result<(), Status>);

/// If the request needs a linearizable read and this member cannot answer it locally, asks the cluster for a
/// confirmation, and attaches the result to the request.
pub async fn confirm(shared: &Shared, request: &mut Request<Bytes>) {
    let Target::Path(path) = target::of(request) else { return };
    let reads = path == "/health" || path == "/readyz" || path == "/readyz/linearizable_read";
    let reads_local = shared.state.load().reads_local;
    if !reads || reads_local || Query::of(request.uri()).first("serializable") == Some(b"true") {
        return;
    }
    let late = shared.member.clock.sleep(shared.member.limits.request_timeout);
    let confirmed = match front::race(shared.core.ask(ClientRequest::Read), late).await {
        First::Left(reply) => match reply.map(|reply| reply.body) {
            Ok(ReplyBody::Readable(_)) => Ok(()),
            Ok(ReplyBody::Outcome(Err(status), _)) | Err(status) => Err(status),
            Ok(_) => Err(error::STOPPED),
        },
        First::Right(()) => Err(error::TIMEOUT),
    };
    request.extensions_mut().insert(Confirmed(confirmed));
}

/// Form of a call that arrives as a plain HTTP request.
pub(crate) enum CallForm {
    /// A call to the JSON gateway, with its path.
    Json(String),
    /// A call in gRPC-Web.
    GrpcWeb,
}

/// Returns the form in which a request makes a call, or the response that refuses the call; `None` if the
/// request is not a call.
pub(crate) fn for_call(
    shared: &Shared,
    request: &Request<Bytes>,
) -> Option<Result<CallForm, Response<Bytes>>> {
    let form = if shared.clients.gateway && Form::is_asked(request.method(), request.headers()) {
        CallForm::GrpcWeb
    } else {
        let is_asked = |path: &str| path.starts_with("/v3/") || path.starts_with("/v3beta/");
        let Target::Path(path) = target::of(request) else { return None };
        if !shared.clients.gateway || !is_asked(&path) || request.method() == Method::OPTIONS {
            return None;
        }
        CallForm::Json(gateway_path(request.uri().path(), path))
    };
    if let Some(refusal) = browsers::refusal(&shared.clients.browsers, request) {
        return Some(Err(refusal));
    }
    let origin = request.extensions().get::<front::Origin>();
    let is_named =
        origin.is_some_and(|origin| origin.common_name.as_ref().is_some_and(|name| !name.is_empty()));
    if is_named && shared.state.load().auth.is_enabled() {
        return Some(Err(refused(StatusCode::BAD_REQUEST, NAMED)));
    }
    Some(Ok(form))
}

/// Returns the unescaped path under which the gateway looks up a method. Unlike in [`target::unescape_path`],
/// an escaped slash also separates parts of the path.
fn gateway_path(raw: &str, unescaped: String) -> String {
    if raw.contains("%00") { unescaped } else { unescaped.replace('\0', "/") }
}

/// Work in bytes that is counted for one byte of metrics text. Formatting numbers takes longer than copying
/// them.
const TEXT_WORK: usize = 8;

/// Returns true for pages that are made in one long step: metrics and diagnosis pages.
pub(crate) fn is_long(path: &str) -> bool {
    let unescaped = path.contains('%').then(|| target::unescape_path(path)).flatten();
    let path = unescaped.as_deref().unwrap_or(path);
    path == "/metrics" || path.starts_with("/debug/")
}

/// Returns the RPC to which the JSON gateway maps this path.
pub(crate) fn gateway_rpc(path: &str) -> Option<Rpc> {
    if !path.contains('%') {
        return gateway::route(path);
    }
    gateway::route(&gateway_path(path, target::unescape_path(path)?))
}

/// Returns the token of a request, if the request is for a page that shows more to root than to others.
pub(crate) fn token_of_root(request: &Request<Bytes>) -> Option<&HeaderValue> {
    let Target::Path(path) = target::of(request) else { return None };
    let is_one = names_keys(&path);
    is_one.then(|| request.headers().get(AUTHORIZATION)).flatten()
}

/// Marks the request as sent by root.
pub(crate) fn by_root(request: &mut Request<Bytes>) {
    request.extensions_mut().insert(diagnosis::ByRoot);
}

/// Adds the CORS headers to a response if the page that sent the request may read it.
pub(crate) fn allow_origin(shared: &Shared, request: &Request<Bytes>, headers: &mut HeaderMap) {
    browsers::allow(&shared.clients.browsers, request, headers);
}

/// Returns a response that consists only of a status.
pub(crate) fn of_status(status: StatusCode) -> Response<Bytes> {
    reply(status, &[], Bytes::new())
}

/// Response to clients of API version 2: etcd's message for an unknown path, with an explanation.
const V2_IS_GONE: &str = "404 page not found: API version 2 is not served here, nor by etcd from 3.6 on; `mainstay utl import \
                          --migrate-v2` moves its keys from a data directory of etcd 3.4 or 3.5 to version 3";

/// Answers a request that arrived on a client listener.
pub fn answer(
    shared: &Shared,
    values: &LogValues,
    counters: &FrontCounters,
    logger: &Logger,
    request: &Request<Bytes>,
) -> Response<Bytes> {
    let target = target::of(request);
    if let Target::Malformed = target {
        return bad_request(None);
    }
    if let Some(refusal) = browsers::refusal(&shared.clients.browsers, request) {
        return refusal;
    }
    let is_diagnosis = matches!(&target, Target::Path(path)
        if names_keys(path) || path.starts_with(profiles::PREFIX));
    let mut response = match target {
        // As in etcd, the preflight request of a browser gets this response for any path.
        _ if request.method() == Method::OPTIONS => reply(StatusCode::OK, &[], Bytes::new()),
        Target::Malformed => bad_request(None),
        Target::Elsewhere(location) => redirect(request, &location),
        Target::Path(path) => match path.as_str() {
            "/version" => version(shared, request),
            path if shared.diagnostics.pprof && path.starts_with(profiles::PREFIX) => {
                profiles::answer(shared, path, request)
            }
            "/debug/vars" => only_get(request, || variables::answer(shared)),
            "/v3" if shared.clients.gateway => {
                let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
                redirect(request, &format!("/v3/{query}"))
            }
            // COMPAT-173: the message also names the command that migrates keys of API version 2.
            path if path == "/v2" || path.starts_with("/v2/") => refused(StatusCode::NOT_FOUND, V2_IS_GONE),
            path => common(path, (shared, values, counters), logger, request),
        },
    };
    if !is_diagnosis {
        // Adds the CORS headers to all other pages. Diagnosis pages contain names of keys, addresses of
        // clients and the command line, so a browser must not let pages of another origin read them.
        browsers::allow(&shared.clients.browsers, request, response.headers_mut());
    }
    response
}

/// Answers a request that arrived on a metrics listener, which serves fewer paths than a client listener.
fn answer_metrics_listener(
    shared: &Shared,
    values: &LogValues,
    counters: &FrontCounters,
    logger: &Logger,
    request: &Request<Bytes>,
) -> Response<Bytes> {
    match target::of(request) {
        Target::Malformed => bad_request(None),
        Target::Elsewhere(location) => redirect(request, &location),
        Target::Path(path) => common(&path, (shared, values, counters), logger, request),
    }
}

/// Returns true for the pages that contain names of keys and clients.
fn names_keys(path: &str) -> bool {
    path == diagnosis::PATH || path == requests::PATH
}

/// Answers the paths that both kinds of listeners serve.
fn common(
    path: &str,
    (shared, values, counters): (&Shared, &LogValues, &FrontCounters),
    logger: &Logger,
    request: &Request<Bytes>,
) -> Response<Bytes> {
    if path == "/metrics" {
        // As in etcd, every HTTP method is answered here.
        let text = scrape(shared, counters, diagnosis::refusal(shared, request).is_none());
        accounting::note_work(0, (TEXT_WORK * text.len()) as u64);
        return reply(StatusCode::OK, &[(CONTENT_TYPE, metrics::CONTENT_TYPE)], text.into());
    }
    if names_keys(path) {
        return only_get(request, || match diagnosis::refusal(shared, request) {
            Some(why) => refused(StatusCode::FORBIDDEN, why),
            None if path == requests::PATH => requests::answer(shared, request),
            None => diagnosis::answer(shared, request),
        });
    }
    let ask = |answer: &dyn Fn(&Asked<'_>) -> Response<Bytes>| {
        only_get(request, || {
            let state = shared.state.load();
            let (query, confirmed) = (Query::of(request.uri()), request.extensions().get());
            answer(&Asked { shared, values, logger, state: &state, query, confirmed })
        })
    };
    let is_get = request.method() == Method::GET;
    if path == "/health" {
        if !is_get {
            health::log_method(logger, None);
        }
        return ask(&health::health);
    }
    match health::find(path) {
        Some(probe) => {
            if !is_get {
                health::log_method(logger, Some(path));
            }
            ask(&|asked| probe.answer(asked, path))
        }
        None => refused(StatusCode::NOT_FOUND, "404 page not found"),
    }
}

/// Answers a request for `/version`, from a client or from another member.
pub fn version(shared: &Shared, request: &Request<Bytes>) -> Response<Bytes> {
    only_get(request, || {
        let state = shared.state.load();
        // As in etcd, the storage version is "unknown" until the members have agreed on a cluster version.
        // From then on it is derived from the cluster version.
        let (cluster, storage) = match state.members.cluster_version.as_str() {
            "" => ("not_decided", "unknown"),
            decided => (decided, state.members.storage_version().unwrap_or("unknown")),
        };
        let [server, cluster, storage] = [shared.member.api_version, cluster, storage].map(Value::from);
        // As in etcd 3.5, a member that reports a 3.5 version leaves out the storage version, which 3.6
        // introduced.
        let storage = match shared.member.api_version.starts_with("3.5.") {
            true => String::new(),
            false => format!(r#","storage":{storage}"#),
        };
        let body = format!(r#"{{"etcdserver":{server},"etcdcluster":{cluster}{storage}}}"#);
        reply(StatusCode::OK, &[(CONTENT_TYPE, JSON)], body.into())
    })
}

fn only_get(request: &Request<Bytes>, answer: impl FnOnce() -> Response<Bytes>) -> Response<Bytes> {
    if request.method() == Method::GET {
        return answer();
    }
    let mut response = refused(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
    response
}

/// Redirects a client to the cleaned path.
fn redirect(request: &Request<Bytes>, location: &str) -> Response<Bytes> {
    let Ok(value) = HeaderValue::from_str(location) else { return bad_request(None) };
    let readable = request.method() == Method::GET || request.method() == Method::HEAD;
    let (headers, body): (&[(HeaderName, &str)], String) = if readable {
        let escaped = target::escape_html(location);
        let body = format!("<a href=\"{escaped}\">Temporary Redirect</a>.\n\n");
        (&[(CONTENT_TYPE, "text/html; charset=utf-8")], body)
    } else {
        (&[], String::new())
    };
    let mut response = reply(StatusCode::TEMPORARY_REDIRECT, headers, body.into());
    response.headers_mut().insert(LOCATION, value);
    response
}

/// Returns the response to a request that Go's server would refuse. `why` is the reason if a header is wrong;
/// `None` if the request line is wrong.
fn bad_request(why: Option<&'static str>) -> Response<Bytes> {
    let headers = [(CONTENT_TYPE, PLAIN), (CONNECTION, "close")];
    let text = why.map_or("400 Bad Request".to_owned(), |why| format!("400 Bad Request: {why}"));
    reply(StatusCode::BAD_REQUEST, &headers, text.into())
}

/// Returns an error response in plain text.
fn refused(status: StatusCode, text: &str) -> Response<Bytes> {
    plain(status, format!("{text}\n"))
}

/// Returns a response in plain text that tells browsers not to guess another content type.
fn plain(status: StatusCode, text: String) -> Response<Bytes> {
    reply(status, &[(CONTENT_TYPE, PLAIN), (X_CONTENT_TYPE_OPTIONS, "nosniff")], text.into())
}

fn reply(status: StatusCode, headers: &[(HeaderName, &'static str)], body: Bytes) -> Response<Bytes> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    for (name, value) in headers {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
