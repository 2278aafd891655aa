//! Checks where a request comes from. This protects against pages of other origins that make a browser send
//! requests to the console, under the console's host name or under another name for its address.

use std::net::IpAddr;

use api::url::without_port;
use http::header::{HOST, ORIGIN};
use http::{HeaderMap, Request, StatusCode, Version};

use crate::listener_settings::ListenerSettings;
use crate::refusal::Refusal;

/// Header that every request to `/api/` must have. A page of another origin could send it only after a CORS
/// preflight request, which the console never allows.
const OWN_HEADER: &str = "x-mainstay-console";

/// Returns the host and port to which a request is addressed, from its `Host` header.
///
/// # Errors
/// Returns a refusal if the request has no `Host` header or several, or is addressed to a proxy.
pub(crate) fn host<B>(request: &Request<B>) -> Result<&str, Refusal> {
    let malformed =
        || Refusal::new(StatusCode::BAD_REQUEST, "the request must have exactly one Host header and a path");
    if request.uri().authority().is_some() || request.version() < Version::HTTP_10 {
        return Err(malformed());
    }
    let mut given = request.headers().get_all(HOST).iter();
    match (given.next(), given.next()) {
        (Some(host), None) => host.to_str().map_err(|_| malformed()),
        _ => Err(malformed()),
    }
}

/// Refuses a host name that an attacker could have made resolve to the console's address (DNS rebinding). IP
/// addresses and `localhost` cannot be abused in this way. Over TLS, no check is needed: the browser has
/// found that the certificate is valid for the name.
///
/// # Errors
/// Returns a refusal if the name is neither safe nor one of the console's own.
pub(crate) fn check_host(host: &str, settings: &ListenerSettings, listed: &[String]) -> Result<(), Refusal> {
    if settings.tls.is_some() {
        return Ok(());
    }
    let name = without_port(host);
    let is_address = match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        Some(inside) => inside.parse::<std::net::Ipv6Addr>().is_ok(),
        None => name.parse::<std::net::Ipv4Addr>().is_ok(),
    };
    let is_listed =
        |listed: &String| !listed.is_empty() && listed != "*" && listed.eq_ignore_ascii_case(name);
    // The host of the listener's URL counts only if it is a name: not the path of a Unix socket, and not an
    // IP address, which was checked above.
    let is_name = !settings.host.contains('/') && settings.host.parse::<IpAddr>().is_err();
    let is_own = is_name && settings.host.eq_ignore_ascii_case(name);
    if is_address || is_own || name.eq_ignore_ascii_case("localhost") || listed.iter().any(is_listed) {
        return Ok(());
    }
    let text = "the console is not served under this name: use its address, serve it over https, or allow the name with \
                --host-whitelist";
    Err(Refusal::new(StatusCode::MISDIRECTED_REQUEST, text))
}

/// Accepts only requests from the console's own pages, and from programs other than browsers that send the
/// header.
///
/// # Errors
/// Returns a refusal if the request lacks the console's header, or comes from a page of another origin.
pub(crate) fn check_caller<B>(request: &Request<B>, host: &str) -> Result<(), Refusal> {
    let headers = request.headers();
    let refused = |text: &str| Err(Refusal::new(StatusCode::FORBIDDEN, text));
    if headers.get(OWN_HEADER).is_none_or(|value| value != "1") {
        return refused("requests need the header X-Mainstay-Console: 1");
    }
    if headers.get_all("sec-fetch-site").iter().any(|site| site != "same-origin") {
        return refused("the console does not serve pages of other origins");
    }
    if !is_origin_own(headers, host) {
        return refused("the console does not serve pages of other origins");
    }
    Ok(())
}

/// Returns true if the page that has sent the request was loaded from this console. The schemes are not
/// compared, because they differ behind a proxy that terminates TLS.
fn is_origin_own(headers: &HeaderMap, host: &str) -> bool {
    headers.get_all(ORIGIN).iter().all(|origin| {
        let authority = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        authority.is_some_and(|(scheme, authority)| {
            matches!(scheme, "http" | "https") && authority.eq_ignore_ascii_case(host)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_are_nobody_elses_are_served_without_tls() {
        let listed = ["db.example".to_owned(), "*".to_owned(), String::new()];
        let check = |own: &str, host: &str| {
            let settings = ListenerSettings { tls: None, host: own.to_owned() };
            check_host(host, &settings, &listed).is_ok()
        };
        for host in [
            "127.0.0.1",
            "127.0.0.1:2382",
            "10.1.2.3:80",
            "[::1]:2382",
            "[::1]",
            "localhost",
            "LOCALHOST:2382",
            "db.example",
            "DB.example:2382",
            "own.example:1",
        ] {
            assert!(check("own.example", host), "{host}");
        }
        for host in [
            "",
            ":2382",
            "evil.example",
            "evil.example:2382",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "*",
            "[::1",
            "::1",
            "[127.0.0.1]",
            "1",
            "0x7f.1",
            "2130706433",
            "xlocalhost",
            "localhost.",
        ] {
            assert!(!check("own.example", host), "{host}");
        }
        assert!(!check("/run/console.sock", "/run/console.sock"));
        assert!(check("::1", "[::1]:2382"));
    }

    #[test]
    fn origins_are_compared_with_the_host() {
        let own = |origin: &str, host: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(ORIGIN, origin.parse().unwrap());
            is_origin_own(&headers, host)
        };
        assert!(is_origin_own(&HeaderMap::new(), "h:1"));
        assert!(own("http://h:1", "h:1") && own("https://H", "h"));
        for (origin, host) in [
            ("null", "h"),
            ("http://h:2", "h:1"),
            ("http://h", "h:1"),
            ("ftp://h", "h"),
            ("h", "h"),
            ("http://", "h"),
        ] {
            assert!(!own(origin, host), "{origin}");
        }
    }
}
