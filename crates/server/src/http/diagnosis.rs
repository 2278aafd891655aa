//! `/debug/mainstay`: who calls, what was expensive, where the disk stalled. The doctor reads it.

use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{SystemTime, UNIX_EPOCH};

use ::http::header::CONTENT_TYPE;
use ::http::{Response, StatusCode};
use bytes::Bytes;
use serde_json::{Value, json};

use super::{JSON, reply};
use crate::shared::Shared;

/// Answers with what is known, as JSON. Keys are quoted as Go and Rust quote them, bytes that are no text as `\xff`.
pub(super) fn answer(shared: &Shared) -> Response<Bytes> {
    let clock = &shared.clock;
    let notable = &shared.notable;
    let ranges: Vec<Value> = notable
        .ranges()
        .into_iter()
        .map(|note| {
            json!({
                "client": note.client.to_string(),
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
    let values: Vec<Value> = notable
        .values()
        .into_iter()
        .map(|note| {
            json!({
                "client": note.client.to_string(),
                "key": quoted(&note.key),
                "bytes": note.bytes,
                "last_unix_ms": unix_ms(note.last),
            })
        })
        .collect();
    let clients: Vec<Value> = shared
        .callers
        .list()
        .into_iter()
        .map(|(address, caller)| {
            json!({
                "address": shown(address),
                "connections": caller.connections.load(Relaxed),
                "requests": caller.requests.load(Relaxed),
                "watches": caller.watches.load(Relaxed),
                "leases": caller.leases.load(Relaxed),
                "authentications": caller.authentications.load(Relaxed),
            })
        })
        .collect();
    let (now, wall) = (clock.now(), clock.wall());
    let stalls: Vec<Value> = shared
        .values
        .figures()
        .stalls()
        .into_iter()
        .map(|stall| {
            let ended = wall.checked_sub(now.saturating_duration_since(stall.ended)).unwrap_or(wall);
            json!({ "unix_ms": unix_ms(ended), "seconds": stall.took.as_secs_f64() })
        })
        .collect();
    let page = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "member_id": format!("{:x}", shared.identity.member_id),
        "name": shared.state.load().members.by_id.get(&shared.identity.member_id).map(|member| member.name.clone()),
        "clock_unix_ns": u64::try_from(since_epoch(wall).as_nanos()).unwrap_or(u64::MAX),
        "uptime_seconds": now.saturating_duration_since(shared.began).as_secs_f64(),
        "expensive_ranges": ranges,
        "large_values": values,
        "clients": clients,
        "fsync_stalls": stalls,
    });
    reply(StatusCode::OK, &[(CONTENT_TYPE, JSON)], format!("{page}\n").into())
}

fn quoted(key: &[u8]) -> String {
    format!("\"{}\"", key.escape_ascii())
}

/// The address; what is counted of all the others together has none.
fn shown(address: IpAddr) -> String {
    if address.is_unspecified() { "others".to_owned() } else { address.to_string() }
}

fn since_epoch(time: SystemTime) -> std::time::Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn unix_ms(time: SystemTime) -> u64 {
    u64::try_from(since_epoch(time).as_millis()).unwrap_or(u64::MAX)
}
