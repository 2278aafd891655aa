//! What the client listener and the metrics listeners answer besides calls: health, version, metrics.
//!
//! Statuses, headers and bodies are those of etcd 3.7. Everything is answered from the newest published
//! state; only health waits, until the cluster has confirmed that this state is new enough for a linearizable read.
//!
//! Checks of health are logged as etcd logs them; nothing else is logged here.
//!
//! It does not know sockets or what the JSON gateway answers.
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
/// etcd's answer to a client whose certificate names a user, which a gateway cannot honour.
const NAMED: &str =
    "CommonName of client sending a request against gateway will be ignored and not used as expected";

/// A request for a page, and the state it is answered from.
struct Asked<'a> {
    shared: &'a Shared,
    values: &'a LogValues,
    logger: &'a Logger,
    state: &'a Published,
    query: Query<'a>,
    /// Result of asking for a linearizable read, if the page needs one.
    confirmed: Option<&'a Confirmed>,
}

/// The answer to whether the published state is as new as a linearizable read needs; travels with the request.
#[derive(Clone, Debug)]
struct Confirmed(Result<(), Status>);

/// Asks the cluster, if this request is answered by a linearizable read and this member alone cannot tell.
pub async fn confirm(shared: &Shared, request: &mut Request<Bytes>) {
    let Target::Path(path) = target::of(request) else { return };
    let reads = path == "/health" || path == "/readyz" || path == "/readyz/linearizable_read";
    let reads_local = shared.state.load().reads_local;
    if !reads || reads_local || Query::of(request.uri()).first("serializable") == Some(b"true") {
        return;
    }
    let late = shared.clock.sleep(shared.limits.request_timeout);
    let confirmed = match front::race(shared.ask(ClientRequest::Read), late).await {
        First::Left(reply) => match reply.map(|reply| reply.body) {
            Ok(ReplyBody::Readable(_)) => Ok(()),
            Ok(ReplyBody::Outcome(Err(status), _)) | Err(status) => Err(status),
            Ok(_) => Err(error::STOPPED),
        },
        First::Right(()) => Err(error::TIMEOUT),
    };
    request.extensions_mut().insert(Confirmed(confirmed));
}

/// How a call is made that is a plain request.
pub(crate) enum CallForm {
    /// By the JSON gateway, of which this is the path.
    Json(String),
    /// In gRPC-Web.
    GrpcWeb,
}

/// Returns how a request makes a call, or the answer that refuses it; `None` for requests that make none.
pub(crate) fn for_call(
    shared: &Shared,
    request: &Request<Bytes>,
) -> Option<Result<CallForm, Response<Bytes>>> {
    let form = if shared.gateway && Form::is_asked(request.method(), request.headers()) {
        CallForm::GrpcWeb
    } else {
        let is_asked = |path: &str| path.starts_with("/v3/") || path.starts_with("/v3beta/");
        let Target::Path(path) = target::of(request) else { return None };
        if !shared.gateway || !is_asked(&path) || request.method() == Method::OPTIONS {
            return None;
        }
        CallForm::Json(gateway_path(request.uri().path(), path))
    };
    if let Some(refusal) = browsers::refusal(&shared.browsers, request) {
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

/// The gateway's paths are looked up unescaped: an escaped slash separates too.
fn gateway_path(raw: &str, unescaped: String) -> String {
    if raw.contains("%00") { unescaped } else { unescaped.replace('\0', "/") }
}

/// Bytes as which a byte of metrics counts in the work of a turn: it takes longer to write numbers than to copy them.
const TEXT_WORK: usize = 8;

/// Returns true if the page at this path is made in one go and takes long: all metrics, or what the member has found out.
pub(crate) fn is_long(path: &str) -> bool {
    let unescaped = path.contains('%').then(|| target::unescape_path(path)).flatten();
    let path = unescaped.as_deref().unwrap_or(path);
    path == "/metrics" || path.starts_with("/debug/")
}

/// Returns the RPC that the JSON gateway makes of a request for this path.
pub(crate) fn gateway_rpc(path: &str) -> Option<Rpc> {
    if !path.contains('%') {
        return gateway::route(path);
    }
    gateway::route(&gateway_path(path, target::unescape_path(path)?))
}

/// Returns the token of a request for a page that tells root more than others.
pub(crate) fn token_of_root(request: &Request<Bytes>) -> Option<&HeaderValue> {
    let Target::Path(path) = target::of(request) else { return None };
    let is_one = names_keys(&path);
    is_one.then(|| request.headers().get(AUTHORIZATION)).flatten()
}

/// Notes that root asks.
pub(crate) fn by_root(request: &mut Request<Bytes>) {
    request.extensions_mut().insert(diagnosis::ByRoot);
}

/// Says that the page which sent the request may read the answer, if it may.
pub(crate) fn allow_origin(shared: &Shared, request: &Request<Bytes>, headers: &mut HeaderMap) {
    browsers::allow(&shared.browsers, request, headers);
}

/// An answer that is nothing but a status.
pub(crate) fn of_status(status: StatusCode) -> Response<Bytes> {
    reply(status, &[], Bytes::new())
}

/// What a client of API version 2 is told, behind etcd's own words for a path that is not there.
const V2_IS_GONE: &str = "404 page not found: API version 2 is not served here, nor by etcd from 3.6 on; `mainstay utl import \
                          --migrate-v2` moves its keys from a data directory of etcd 3.4 or 3.5 to version 3";

/// Answers a request that came to a client listener.
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
    if let Some(refusal) = browsers::refusal(&shared.browsers, request) {
        return refusal;
    }
    let is_diagnosis = matches!(&target, Target::Path(path)
        if names_keys(path) || path.starts_with(profiles::PREFIX));
    let mut response = match target {
        // As etcd answers a browser that asks whether it may call; it does so whatever the path is.
        _ if request.method() == Method::OPTIONS => reply(StatusCode::OK, &[], Bytes::new()),
        Target::Malformed => bad_request(None),
        Target::Elsewhere(location) => redirect(request, &location),
        Target::Path(path) => match path.as_str() {
            "/version" => version(shared, request),
            path if shared.pprof && path.starts_with(profiles::PREFIX) => {
                profiles::answer(shared, path, request)
            }
            "/debug/vars" => only_get(request, || variables::answer(shared)),
            "/v3" if shared.gateway => {
                let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
                redirect(request, &format!("/v3/{query}"))
            }
            // COMPAT-173.
            path if path == "/v2" || path.starts_with("/v2/") => refused(StatusCode::NOT_FOUND, V2_IS_GONE),
            path => common(path, (shared, values, counters), logger, request),
        },
    };
    if !is_diagnosis {
        // Those pages tell the names of keys, the addresses of clients and the command line: no page from elsewhere may read
        // them.
        browsers::allow(&shared.browsers, request, response.headers_mut());
    }
    response
}

/// Answers a request that came to a metrics listener, which serves less.
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

/// Returns true for the pages that name keys and clients.
fn names_keys(path: &str) -> bool {
    path == diagnosis::PATH || path == requests::PATH
}

/// The paths of both kinds of listener.
fn common(
    path: &str,
    (shared, values, counters): (&Shared, &LogValues, &FrontCounters),
    logger: &Logger,
    request: &Request<Bytes>,
) -> Response<Bytes> {
    if path == "/metrics" {
        // etcd answers every method here.
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

/// Answers a request for `/version`, which clients and other members ask for alike.
pub fn version(shared: &Shared, request: &Request<Bytes>) -> Response<Bytes> {
    only_get(request, || {
        let state = shared.state.load();
        // etcd's storage version follows the cluster version.
        let (cluster, storage) = match state.members.cluster_version.as_str() {
            "" => ("not_decided", "unknown"),
            decided => (decided, state.members.storage_version().unwrap_or("unknown")),
        };
        let [server, cluster, storage] = [shared.api_version, cluster, storage].map(Value::from);
        // Releases before 3.6 have no storage version.
        let storage = match shared.api_version.starts_with("3.5.") {
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

/// Sends a client to the path it meant.
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

/// A request line, or for this reason a header, that Go's server does not take.
fn bad_request(why: Option<&'static str>) -> Response<Bytes> {
    let headers = [(CONTENT_TYPE, PLAIN), (CONNECTION, "close")];
    let text = why.map_or("400 Bad Request".to_owned(), |why| format!("400 Bad Request: {why}"));
    reply(StatusCode::BAD_REQUEST, &headers, text.into())
}

/// An error in plain text.
fn refused(status: StatusCode, text: &str) -> Response<Bytes> {
    plain(status, format!("{text}\n"))
}

/// Plain text that no browser is to guess another type for.
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
