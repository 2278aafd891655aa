//! Determines the settings of the connections from the proxy to members, and the metadata that is forwarded
//! with each call.

use std::time::{Duration, Instant};

use api::{Kind, Rpc};
use client::{CallOptions, Preference, Settings, Tls};
use front::Head;
use http::{HeaderName, HeaderValue};

use crate::ProxyOptions;

/// Timeout of connecting to a member.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Names of the metadata by which a client proves its identity.
pub(crate) const CREDENTIALS: [&str; 2] = ["token", "authorization"];

/// Names of the metadata that is forwarded to the member unchanged: the client's credentials and
/// requirements.
const PASSED_ON: [&str; 4] = [CREDENTIALS[0], CREDENTIALS[1], "hasleader", "client-api-version"];

/// Returns the settings of the connections to members.
pub(crate) fn settings(
    options: &ProxyOptions,
    endpoints: Vec<String>,
    tls: Option<Tls>,
    preference: Option<Preference>,
) -> Settings {
    Settings {
        dial_timeout: Some(DIAL_TIMEOUT),
        keepalive_time: options.members.keepalive_time,
        keepalive_timeout: options.members.keepalive_timeout,
        keepalive_without_calls: options.members.permit_without_stream,
        send_bytes_max: options.members.send_bytes_max,
        receive_bytes_max: options.members.receive_bytes_max,
        preference,
        tls,
        ..Settings::of(endpoints)
    }
}

/// Returns the options of a call to a member: the metadata to forward and the timeout of the client's call.
pub(crate) fn call_options(rpc: Rpc, head: &Head) -> CallOptions {
    let mut options = CallOptions::default();
    for name in PASSED_ON {
        // `Authenticate` requests a new token. Members ignore any token that comes with this call, so none is
        // forwarded.
        if rpc == Rpc::Authenticate && CREDENTIALS.contains(&name) {
            continue;
        }
        // A header value that was received may also be sent, so the conversion does not fail.
        if let Some(Ok(value)) = head.metadata.get(name).map(HeaderValue::from_bytes) {
            options.metadata.push((HeaderName::from_static(name), value));
        }
    }
    let time = head.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    // Only a unary call gets the timeout. A stream needs none, because the gRPC server drops a stream whose
    // deadline has passed, which also ends the stream to the member.
    options.timeout = time.filter(|_| rpc.method().kind == Kind::Unary);
    options
}
