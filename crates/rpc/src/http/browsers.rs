//! Checks requests that web pages send through a browser: which hosts they may name, and which pages may read
//! a response.

use ::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, HOST, ORIGIN,
};
use ::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use bytes::Bytes;
use replica::browsers::Browsers;

use super::{bad_request, plain};

/// Refuses a request whose host is not allowed. An attacker can make the host name of a web page resolve to
/// this member (DNS rebinding); the browser then sends that name as the host. Requests over TLS are allowed,
/// because that name would not be in the member's certificate.
pub(super) fn refusal(browsers: &Browsers, request: &Request<Bytes>) -> Option<Response<Bytes>> {
    let host = match host(request) {
        Ok(host) => host,
        Err(why) => return Some(bad_request(Some(why))),
    };
    let is_tls = request.extensions().get::<front::Origin>().is_some_and(|origin| origin.is_tls);
    if is_tls || browsers.is_host_allowed(without_port(host)) {
        return None;
    }
    // The host can be inserted as it is: Go quotes it, but a valid host contains no character that quoting
    // would change.
    let host = without_port(host);
    let text = format!(
        "\netcd received your request, but the Host header was unrecognized.\n\n\
         To fix this, choose one of the following options:\n\
         - Enable TLS, then any HTTPS request will be allowed.\n\
         - Add the hostname you want to use to the whitelist in settings.\n  \
         - e.g. etcd --host-whitelist \"{host}\"\n\n\
         This requirement has been added to help prevent \"DNS Rebinding\" attacks (CVE-2018-5702).\n\n"
    );
    Some(plain(StatusCode::MISDIRECTED_REQUEST, text))
}

/// Adds the CORS headers to a response if the page that sent the request may read it.
pub(super) fn allow(browsers: &Browsers, request: &Request<Bytes>, headers: &mut HeaderMap) {
    let origin = match &browsers.origins {
        None => HeaderValue::from_static("*"),
        Some(allowed) => {
            let of = request.headers().get(ORIGIN);
            match of.filter(|origin| allowed.iter().any(|allowed| allowed.as_bytes() == origin.as_bytes())) {
                Some(origin) => origin.clone(),
                None => return,
            }
        }
    };
    // Before a gRPC-Web call, a browser sends a preflight request that asks for the headers of the call,
    // which carry its metadata (COMPAT-185).
    let asks_for_call = request.method() == Method::OPTIONS
        && api::METHODS.iter().any(|method| method.path == request.uri().path());
    let allowed = match asks_for_call {
        true => {
            "accept, content-type, authorization, grpc-timeout, x-grpc-web, x-user-agent, token, hasleader, \
                 client-api-version"
        }
        false => "accept, content-type, authorization",
    };
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(allowed));
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("POST, GET, OPTIONS, PUT, DELETE"));
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
}

/// Returns the host of a request, with its port, as Go's server reads it; or Go's error message.
fn host(request: &Request<Bytes>) -> Result<&str, &'static str> {
    let mut given = request.headers().get_all(HOST).iter();
    let header = given.next();
    if header.is_none() && request.version() == Version::HTTP_11 && request.method() != Method::CONNECT {
        return Err("missing required Host header");
    }
    if given.next().is_some() {
        return Err("too many Host headers");
    }
    let header = header.map_or(&b""[..], HeaderValue::as_bytes);
    let is_valid = |byte: &u8| byte.is_ascii_alphanumeric() || b"!$%&'()*+,-.:;=[]_~".contains(byte);
    let header = std::str::from_utf8(header)
        .ok()
        .filter(|host| host.as_bytes().iter().all(is_valid))
        .ok_or(MALFORMED)?;
    match request.uri().authority() {
        Some(authority) if authority.as_str().as_bytes().iter().all(is_valid) => Ok(authority.as_str()),
        Some(_) => Err(MALFORMED),
        None => Ok(header),
    }
}

const MALFORMED: &str = "malformed Host header";

/// Returns a host without its port. A string that is not host and port is returned unchanged, as by Go's
/// `net.SplitHostPort`.
fn without_port(given: &str) -> &str {
    let Some((host, port)) = given.rsplit_once(':') else { return given };
    let bare = match host.strip_prefix('[') {
        Some(inside) => inside.strip_suffix(']').filter(|inside| !inside.contains(['[', ']'])),
        None => Some(host).filter(|host| !host.contains([':', '[', ']'])),
    };
    bare.filter(|_| !port.contains(['[', ']'])).unwrap_or(given)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_cut_off_as_go_cuts_them() {
        for (given, host) in [
            ("", ""),
            ("a", "a"),
            ("a:1", "a"),
            ("a:", "a"),
            (":80", ""),
            ("a:b:c", "a:b:c"),
            ("[::1]:8", "::1"),
            ("[::1]", "[::1]"),
            ("::1", "::1"),
            ("[::1]x:8", "[::1]x:8"),
            ("[::1:8", "[::1:8"),
            ("x[::1]:8", "x[::1]:8"),
            ("[[::1]]:8", "[[::1]]:8"),
            ("a:[8]", "a:[8]"),
        ] {
            assert_eq!(without_port(given), host, "{given}");
        }
    }
}
