//! The members as the proxy's clients see them: settings of connections, and what of a call goes along with it.

use std::time::{Duration, Instant};

use api::{Kind, Rpc};
use client::{CallOptions, Settings, Tls};
use front::Head;
use http::{HeaderName, HeaderValue};

use crate::ProxyOptions;

/// Time limit of connecting to a member.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Metadata that says who the client is.
pub(crate) const CREDENTIALS: [&str; 2] = ["token", "authorization"];

/// Metadata that goes to the member as it came: who the client is, and what it insists on.
const PASSED_ON: [&str; 4] = [CREDENTIALS[0], CREDENTIALS[1], "hasleader", "client-api-version"];

/// Settings of the connections to members.
pub(crate) fn settings(options: &ProxyOptions, endpoints: Vec<String>, tls: Option<Tls>) -> Settings {
    Settings {
        dial_timeout: Some(DIAL_TIMEOUT),
        keepalive_time: options.dial_keepalive_time,
        keepalive_timeout: options.dial_keepalive_timeout,
        keepalive_without_calls: options.permit_without_stream,
        send_bytes_max: options.send_bytes_max,
        receive_bytes_max: options.receive_bytes_max,
        tls,
        ..Settings::of(endpoints)
    }
}

/// What a call to a member carries of the client's call.
pub(crate) fn call_options(rpc: Rpc, head: &Head) -> CallOptions {
    let mut options = CallOptions::default();
    for name in PASSED_ON {
        // As on a member, a call for a token has none of its own.
        if rpc == Rpc::Authenticate && CREDENTIALS.contains(&name) {
            continue;
        }
        // What came as a value can be sent as one.
        if let Some(Ok(value)) = head.metadata.get(name).map(HeaderValue::from_bytes) {
            options.metadata.push((HeaderName::from_static(name), value));
        }
    }
    let time = head.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    // The deadline of a stream is kept by the front, which drops the call.
    options.timeout = time.filter(|_| rpc.method().kind == Kind::Unary);
    options
}
