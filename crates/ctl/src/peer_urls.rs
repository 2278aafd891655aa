//! The check of peer URLs that etcd's Go client makes before it sends them.

use cli::go::quote;

/// Checks that each URL has a scheme that peers speak, a host with a port, and no path.
///
/// # Errors
/// What is wrong with the first bad one.
pub fn check(urls: &[String]) -> Result<(), String> {
    urls.iter().try_for_each(|url| check_one(url.trim()))
}

fn check_one(url: &str) -> Result<(), String> {
    let quoted = quote(url.as_bytes());
    if url.bytes().any(|b| b < 0x20 || b == 0x7f) {
        return Err(format!("parse {quoted}: net/url: invalid control character in URL"));
    }
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(format!("URL scheme must be http, https, unix, or unixs: {url}"));
    };
    if scheme.is_empty() {
        return Err(format!("parse {quoted}: missing protocol scheme"));
    }
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    if !is_scheme {
        return if url.split('/').next().is_some_and(|first| first.contains(':')) {
            Err(format!("parse {quoted}: first path segment in URL cannot contain colon"))
        } else {
            Err(format!("URL scheme must be http, https, unix, or unixs: {url}"))
        };
    }
    let scheme = scheme.to_ascii_lowercase();
    let (is_http, is_unix) =
        (matches!(&scheme[..], "http" | "https"), matches!(&scheme[..], "unix" | "unixs"));
    if !is_http && !is_unix {
        return Err(format!("URL scheme must be http, https, unix, or unixs: {url}"));
    }
    let authority = rest.strip_prefix("//").unwrap_or("");
    let (host, path) = match authority.find(['/', '?', '#']) {
        Some(at) => authority.split_at(at),
        None => (authority, ""),
    };
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    if host.starts_with('[') && !host.contains(']') {
        return Err(format!("parse {quoted}: missing ']' in host"));
    }
    if is_http {
        let port = host.rsplit_once(':').filter(|(name, _)| name.ends_with(']') || !name.contains(':'));
        match port {
            Some((_, port)) if port.bytes().all(|b| b.is_ascii_digit()) => {}
            Some((_, port)) => {
                let port = quote(format!(":{port}").as_bytes());
                return Err(format!("parse {quoted}: invalid port {port} after host"));
            }
            None => return Err(format!("URL address does not have the form \"host:port\": {url}")),
        }
    }
    let path = path.split(['?', '#']).next().unwrap_or("");
    if !path.is_empty() {
        return Err(format!("URL must not contain a path: {url}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_peers_cannot_be_reached_at_is_refused() {
        let wrong = |url: &str| check(&[url.to_owned()]).unwrap_err();
        assert_eq!(check(&["http://a:1".to_owned(), " https://[::1]:2 ".to_owned()]), Ok(()));
        assert_eq!(check(&["unix://a".to_owned()]), Ok(()));
        assert_eq!(wrong("a"), "URL scheme must be http, https, unix, or unixs: a");
        assert_eq!(wrong("ftp://a:1"), "URL scheme must be http, https, unix, or unixs: ftp://a:1");
        assert_eq!(wrong("http://a"), "URL address does not have the form \"host:port\": http://a");
        assert_eq!(wrong("http://a:1/x"), "URL must not contain a path: http://a:1/x");
        assert_eq!(wrong("http://a:x"), "parse \"http://a:x\": invalid port \":x\" after host");
        assert_eq!(wrong("http://[::1"), "parse \"http://[::1\": missing ']' in host");
        assert_eq!(
            wrong("127.0.0.1:1"),
            "parse \"127.0.0.1:1\": first path segment in URL cannot contain colon"
        );
    }
}
