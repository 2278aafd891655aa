//! The addresses members and clients are reached at.

use std::fmt;
use std::net::IpAddr;

/// How an address is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Plain HTTP over TCP.
    Http,
    /// HTTP over TLS over TCP.
    Https,
    /// Plain HTTP over a Unix socket.
    Unix,
    /// HTTP over TLS over a Unix socket.
    Unixs,
}

/// One URL of a listener or of an advertisement. It prints exactly as it was given, because the text of peer
/// URLs goes into member ids; two URLs are equal when their texts are.
#[derive(Clone, Debug)]
pub struct Url {
    scheme: Scheme,
    host: String,
    port: u16,
    text: String,
}

impl Url {
    /// Reads one URL, ignoring blanks around it. The error is etcd's text.
    pub fn parse(input: &str) -> Result<Url, String> {
        let input = input.trim();
        let Some((scheme, rest)) = split_scheme(input)? else {
            return Err(format!("URL scheme must be http, https, unix, or unixs: {input}"));
        };
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            "unix" => Scheme::Unix,
            "unixs" => Scheme::Unixs,
            _ => return Err(format!("URL scheme must be http, https, unix, or unixs: {input}")),
        };
        let text = format!("{scheme}:{rest}");
        let after_slashes = rest.strip_prefix("//");
        if matches!(scheme, Scheme::Unix | Scheme::Unixs) {
            let path = after_slashes.unwrap_or(rest);
            if path.is_empty() {
                return Err(format!("URL names no socket: {input}"));
            }
            return Ok(Url { scheme, host: path.to_string(), port: 0, text });
        }
        let no_host_port = || format!("URL address does not have the form \"host:port\": {input}");
        let Some(after_slashes) = after_slashes else {
            return Err(no_host_port());
        };
        let authority_len = after_slashes.find(['/', '?', '#']).unwrap_or(after_slashes.len());
        let (authority, path) = after_slashes.split_at(authority_len);
        let (host, port) = split_host_port(authority).ok_or_else(no_host_port)?;
        if !path.is_empty() {
            return Err(format!("URL must not contain a path: {input}"));
        }
        if host.contains(['@', '%', ' ', '"', '<', '>', '\\']) {
            return Err(format!("URL has an invalid host: {input}"));
        }
        if !port.bytes().all(|b| b.is_ascii_digit()) {
            return Err(format!("parse \"{input}\": invalid port \":{port}\" after host"));
        }
        let port = port.parse().map_err(|_| format!("URL has an invalid port: {input}"))?;
        Ok(Url { scheme, host: host.to_string(), port, text })
    }

    /// Reads a comma list: every URL valid, sorted by text, each once.
    pub fn parse_list(input: &str) -> Result<Vec<Url>, String> {
        let mut urls = input.split(',').map(Url::parse).collect::<Result<Vec<Url>, String>>()?;
        urls.sort();
        urls.dedup();
        Ok(urls)
    }

    /// How to speak to it.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Host name or address without the brackets of IPv6; for a Unix socket, what names it: a path when it
    /// begins with `/`.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// TCP port; 0 for a Unix socket, and for TCP when the kernel is to choose.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL as given, the scheme in lower case.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// True when a listener can bind to it without asking a resolver: an IP address, `localhost` or a socket.
    pub fn is_bindable(&self) -> bool {
        matches!(self.scheme, Scheme::Unix | Scheme::Unixs)
            || self.host == "localhost"
            || self.host.parse::<IpAddr>().is_ok()
    }
}

/// The scheme and what follows its colon; `None` when there is no scheme. A colon in the first segment of what
/// would then be a path is an error, as in Go.
fn split_scheme(input: &str) -> Result<Option<(&str, &str)>, String> {
    let Some(colon) = input.find(':') else {
        return Ok(None);
    };
    let (scheme, rest) = input.split_at(colon);
    let rest = &rest[1..];
    if scheme.is_empty() {
        return Err(format!("parse \"{input}\": missing protocol scheme"));
    }
    let starts_with_letter = scheme.starts_with(|c: char| c.is_ascii_alphabetic());
    let valid = starts_with_letter && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    if valid {
        return Ok(Some((scheme, rest)));
    }
    if scheme.contains('/') {
        return Ok(None);
    }
    Err(format!("parse \"{input}\": first path segment in URL cannot contain colon"))
}

/// `host:port` or `[v6]:port`; `None` when it has another form.
fn split_host_port(authority: &str) -> Option<(&str, &str)> {
    if let Some(bracketed) = authority.strip_prefix('[') {
        let (host, rest) = bracketed.split_once(']')?;
        return Some((host, rest.strip_prefix(':')?));
    }
    let (host, port) = authority.rsplit_once(':')?;
    if host.contains([':', ']', '[']) { None } else { Some((host, port)) }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
            Scheme::Unix => "unix",
            Scheme::Unixs => "unixs",
        })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl PartialEq for Url {
    fn eq(&self, other: &Url) -> bool {
        self.text == other.text
    }
}

impl Eq for Url {}

impl PartialOrd for Url {
    fn partial_cmp(&self, other: &Url) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Url {
    fn cmp(&self, other: &Url) -> std::cmp::Ordering {
        self.text.cmp(&other.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_forms_etcd_reads() {
        let url = Url::parse(" HTTP://10.0.0.1:2379 ").unwrap();
        assert_eq!((url.scheme(), url.host(), url.port()), (Scheme::Http, "10.0.0.1", 2379));
        assert_eq!(url.to_string(), "http://10.0.0.1:2379");
        let url = Url::parse("https://[::1]:2380").unwrap();
        assert_eq!((url.scheme(), url.host(), url.port()), (Scheme::Https, "::1", 2380));
        assert_eq!(url.to_string(), "https://[::1]:2380");
        let url = Url::parse("unix:///run/etcd.sock").unwrap();
        assert_eq!((url.scheme(), url.host(), url.port()), (Scheme::Unix, "/run/etcd.sock", 0));
        assert!(url.is_bindable());
        assert!(Url::parse("http://localhost:1").unwrap().is_bindable());
        assert!(!Url::parse("http://example.com:1").unwrap().is_bindable());
    }

    #[test]
    fn refuses_with_the_words_of_etcd() {
        for (input, error) in [
            ("foo", "URL scheme must be http, https, unix, or unixs: foo"),
            ("localhost:2379", "URL scheme must be http, https, unix, or unixs: localhost:2379"),
            ("127.0.0.1:2379", "parse \"127.0.0.1:2379\": first path segment in URL cannot contain colon"),
            (":2379", "parse \":2379\": missing protocol scheme"),
            ("http://foo", "URL address does not have the form \"host:port\": http://foo"),
            ("http://a:b:1", "URL address does not have the form \"host:port\": http://a:b:1"),
            ("http://[::1]", "URL address does not have the form \"host:port\": http://[::1]"),
            ("http://[::1", "URL address does not have the form \"host:port\": http://[::1"),
            ("http:", "URL address does not have the form \"host:port\": http:"),
            ("http://1.2.3.4:1/x", "URL must not contain a path: http://1.2.3.4:1/x"),
            ("http://1.2.3.4:x", "parse \"http://1.2.3.4:x\": invalid port \":x\" after host"),
            ("http://1.2.3.4:65536", "URL has an invalid port: http://1.2.3.4:65536"),
            ("unix://", "URL names no socket: unix://"),
        ] {
            assert_eq!(Url::parse(input).map(|url| url.to_string()), Err(error.to_string()), "{input}");
        }
    }

    #[test]
    fn lists_are_sorted_and_unique() {
        let urls = Url::parse_list("http://b:2,http://a:1,http://b:2").unwrap();
        assert_eq!(urls.iter().map(Url::as_str).collect::<Vec<_>>(), ["http://a:1", "http://b:2"]);
    }
}
