//! Answers `/debug/mainstay`, which the command `mainstay doctor` reads: active clients, expensive requests
//! and disk stalls.
//!
//! The page names keys and clients, so a browser must not let a page of another origin read it. The response
//! has no CORS headers. Requests are refused if a browser marks them as coming from another origin, or if
//! their host is a name that anyone could have pointed at this member (DNS rebinding).

use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use ::http::header::{CONTENT_TYPE, HOST, ORIGIN, X_CONTENT_TYPE_OPTIONS};
use ::http::{HeaderValue, Request, Response, StatusCode};
use bytes::Bytes;
use serde_json::{Value, json};

use super::{JSON, reply};
use api::url::without_port;
use replica::shared::Shared;
use storage::formats::{Format, Formats};
use telemetry::heavy_hitters::{Measure, Subject};

/// Path of the page.
pub(super) const PATH: &str = "/debug/mainstay";

/// Returns the reason why a request for the page is refused, or `None` if it is allowed.
pub(super) fn refusal(shared: &Shared, request: &Request<Bytes>) -> Option<&'static str> {
    let headers = request.headers();
    let host = match headers.get(HOST) {
        Some(host) => host.to_str().unwrap_or("."),
        None => request.uri().authority().map_or("", |authority| authority.as_str()),
    };
    if headers.get("sec-fetch-site").is_some_and(|site| site != "same-origin" && site != "none") {
        return Some("this page cannot be read by pages of other origins");
    }
    let foreign = |origin: &HeaderValue| {
        let origin = origin.to_str().unwrap_or_default();
        origin.split_once("://").is_none_or(|(_, authority)| authority != host)
    };
    if headers.get_all(ORIGIN).iter().any(foreign) {
        return Some("this page cannot be read by pages of other origins");
    }
    (!is_own_host(shared, host)).then_some(
        "this page is served under an IP address, localhost, a name without dots, or a name in the member's client URLs",
    )
}

/// Returns true if no third party can have made this host name resolve to the member: the host is an address,
/// a name without dots, which public DNS does not have, or a name in the members' client URLs.
fn is_own_host(shared: &Shared, host: &str) -> bool {
    let name = without_port(host);
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    if address.parse::<IpAddr>().is_ok() || !name.contains('.') {
        return true;
    }
    let is_name = |url: &String| {
        let authority = url.split_once("://").map_or(url.as_str(), |(_, rest)| rest);
        let authority = authority.split('/').next().unwrap_or_default();
        without_port(authority).eq_ignore_ascii_case(name)
    };
    shared.state.load().members.by_id.values().any(|member| member.client_urls.iter().any(is_name))
}

/// Marks a request by root, who may see the names of keys and users.
#[derive(Clone, Copy, Debug)]
pub(super) struct ByRoot;

/// Marks a request to a metrics listener without the certificate that client listeners require.
#[derive(Clone, Copy, Debug)]
pub(super) struct ByStranger;

/// Returns true if the response may contain names of keys and users: authentication is disabled, or root sent
/// the request, and the request is not marked with [`ByStranger`].
pub(super) fn tells_names(shared: &Shared, request: &Request<Bytes>) -> bool {
    if request.extensions().get::<ByStranger>().is_some() {
        return false;
    }
    !shared.state.load().auth.is_enabled() || request.extensions().get::<ByRoot>().is_some()
}

/// Answers with the diagnosis as JSON. While authentication is enabled, only root gets the lists with names
/// of keys or users. For others these lists are left out, since empty lists would mean that there are no such
/// keys or users. Keys are quoted as in Go and Rust, with bytes that are not text as `\xff`.
pub(super) fn answer(shared: &Shared, request: &Request<Bytes>) -> Response<Bytes> {
    let clock = &shared.member.clock;
    let names_keys = tells_names(shared, request);
    let clients: Vec<Value> = shared
        .diagnostics
        .callers
        .list()
        .into_iter()
        .map(|(address, caller)| {
            json!({
                "address": shown(address),
                "connections": caller.connections.load(Relaxed),
                "requests": caller.requests.load(Relaxed),
                "watches": caller.watches.load(Relaxed),
                "slow_watches": caller.slow_watches.load(Relaxed),
                "leases": caller.leases.load(Relaxed),
                "authentications": caller.authentications.load(Relaxed),
            })
        })
        .collect();
    let (now, wall) = (clock.now(), clock.wall());
    let stalls: Vec<Value> = shared
        .data
        .values
        .figures()
        .stalls()
        .into_iter()
        .map(|stall| {
            let ended = wall.checked_sub(now.saturating_duration_since(stall.ended)).unwrap_or(wall);
            json!({ "unix_ms": unix_ms(ended), "seconds": stall.took.as_secs_f64() })
        })
        .collect();
    let heavy = heavy(shared, now, names_keys);
    let segments = shared.data.values.segments();
    let sum = |bytes: fn(&log::SegmentState) -> u64| segments.iter().map(bytes).sum::<u64>();
    let log = json!({
        "segments": segments.len(),
        "file_bytes": sum(|segment| segment.file_bytes),
        "used_bytes": sum(|segment| segment.used_bytes),
    });
    let formats =
        Formats::of_this_release(shared.data.has_compressed_values(), shared.data.index_cache().is_some());
    let format = |format: &Format| json!({ "reads": [format.reads.start(), format.reads.end()], "writes": format.writes });
    let mut page = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "commit": shared.member.commit,
        "formats": { "log": format(&formats.log), "checkpoint": format(&formats.checkpoint) },
        "member_id": format!("{:x}", shared.member.identity.member_id),
        "name": shared.state.load().members.by_id.get(&shared.member.identity.member_id).map(|member| member.name.clone()),
        "clock_unix_ns": u64::try_from(since_epoch(wall).as_nanos()).unwrap_or(u64::MAX),
        "uptime_seconds": now.saturating_duration_since(shared.member.began).as_secs_f64(),
        "clients": clients,
        "heavy": heavy,
        "fsync_stalls": stalls,
        "log": log,
    });
    if names_keys {
        let (ranges, values) = notable(shared);
        page["expensive_ranges"] = ranges.into();
        page["large_values"] = values.into();
    }
    let headers = [(CONTENT_TYPE, JSON), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
    reply(StatusCode::OK, &headers, format!("{page}\n").into())
}

/// Returns the expensive ranges and the large values, each with its key, as JSON.
fn notable(shared: &Shared) -> (Vec<Value>, Vec<Value>) {
    let notable = &shared.diagnostics.slow_requests;
    let ranges = notable
        .ranges()
        .into_iter()
        .map(|note| {
            json!({
                "client": client(note.client),
                "key": quoted(&note.key),
                "range_end": quoted(&note.range_end),
                "count": note.count,
                "keys_max": note.keys_max,
                "bytes_total": note.bytes_total,
                "seconds_max": note.took_max.as_secs_f64(),
                "last_unix_ms": unix_ms(note.last),
            })
        })
        .collect();
    let values = notable
        .values()
        .into_iter()
        .map(|note| {
            json!({
                "client": client(note.client),
                "key": quoted(&note.key),
                "bytes": note.bytes,
                "last_unix_ms": unix_ms(note.last),
            })
        })
        .collect();
    (ranges, values)
}

/// Returns the most active prefixes, users and clients: lists by subject, then by measure.
fn heavy(shared: &Shared, now: Instant, names_keys: bool) -> Value {
    let list = |subject, measure| -> Value {
        let top = shared.diagnostics.heavy_hitters.top(subject, measure, now);
        top.into_iter()
            .map(|heavy| {
                let name = if subject == Subject::Prefix {
                    quoted(&heavy.name)
                } else {
                    String::from_utf8_lossy(&heavy.name).into_owned()
                };
                json!({ "name": name, "per_second": heavy.per_second, "error": heavy.error })
            })
            .collect()
    };
    let subjects = Subject::ALL.into_iter().filter(|subject| names_keys || *subject == Subject::Client);
    subjects
        .map(|subject| {
            let lists: serde_json::Map<String, Value> = Measure::ALL
                .into_iter()
                .map(|measure| (measure.name().to_owned(), list(subject, measure)))
                .collect();
            (subject.name().to_owned(), Value::Object(lists))
        })
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn quoted(key: &[u8]) -> String {
    format!("\"{}\"", key.escape_ascii())
}

/// Returns the address as text; `unix` for clients of Unix sockets, which have no IP address.
fn client(address: IpAddr) -> String {
    if address.is_unspecified() { "unix".to_owned() } else { address.to_string() }
}

/// Returns the address as text. Returns `others` for the unspecified address, under which clients of Unix
/// sockets and all clients without an entry of their own are counted.
fn shown(address: IpAddr) -> String {
    if address.is_unspecified() { "others".to_owned() } else { address.to_string() }
}

fn since_epoch(time: SystemTime) -> std::time::Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn unix_ms(time: SystemTime) -> u64 {
    u64::try_from(since_epoch(time).as_millis()).unwrap_or(u64::MAX)
}
