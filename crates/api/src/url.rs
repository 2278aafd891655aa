//! Parses the URLs of listeners, members and clients, with etcd's errors. [`Url::parse`] is used for all URLs
//! in flags and requests. [`check_peer_url`] is the check that etcd's Go client makes before it sends peer
//! URLs.

use std::fmt;
use std::net::IpAddr;

/// Scheme of a URL.
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

/// One URL of a listener, or one that a member advertises. The text of the URL is kept as it was given,
/// because member ids are computed from the text of peer URLs. Two URLs are equal if their texts are equal.
#[derive(Clone, Debug)]
pub struct Url {
    scheme: Scheme,
    host: String,
    port: u16,
    text: String,
}

/// Reason why a text is not a URL that members can use. It displays as etcd's error message, or as the
/// message of Go's `net/url` if that package refuses the URL. Each message contains the URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UrlError {
    /// The scheme is missing, or none of `http`, `https`, `unix` and `unixs`.
    Scheme(String),
    /// The text begins with a colon. The string is the URL in quotes, as in all variants whose message begins
    /// with `parse`.
    NoScheme(String),
    /// The text has no scheme, and the first segment of its path contains a colon.
    ColonInPath(String),
    /// The text contains a control character.
    ControlCharacter(String),
    /// An IPv6 address has only the opening bracket.
    MissingBracket(String),
    /// The URL of a Unix socket has no path.
    NoSocket(String),
    /// The URL has no host with a port.
    NoHostPort(String),
    /// Host and port are followed by other text.
    Path(String),
    /// The host contains a character that is not allowed.
    Host(String),
    /// The port is not a number.
    PortText {
        /// The URL in quotes.
        url: String,
        /// The port with its colon, in quotes.
        port: String,
    },
    /// The port is larger than 65535.
    PortNumber(String),
}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UrlError::Scheme(url) => write!(f, "URL scheme must be http, https, unix, or unixs: {url}"),
            UrlError::NoScheme(url) => write!(f, "parse {url}: missing protocol scheme"),
            UrlError::ColonInPath(url) => {
                write!(f, "parse {url}: first path segment in URL cannot contain colon")
            }
            UrlError::ControlCharacter(url) => {
                write!(f, "parse {url}: net/url: invalid control character in URL")
            }
            UrlError::MissingBracket(url) => write!(f, "parse {url}: missing ']' in host"),
            UrlError::NoSocket(url) => write!(f, "URL names no socket: {url}"),
            UrlError::NoHostPort(url) => {
                write!(f, "URL address does not have the form \"host:port\": {url}")
            }
            UrlError::Path(url) => write!(f, "URL must not contain a path: {url}"),
            UrlError::Host(url) => write!(f, "URL has an invalid host: {url}"),
            UrlError::PortText { url, port } => {
                write!(f, "parse {url}: invalid port {port} after host")
            }
            UrlError::PortNumber(url) => write!(f, "URL has an invalid port: {url}"),
        }
    }
}

impl std::error::Error for UrlError {}

/// Converts the error to its message, for callers whose errors are strings.
impl From<UrlError> for String {
    fn from(error: UrlError) -> String {
        error.to_string()
    }
}

impl Url {
    /// Parses one URL. White space around it is ignored.
    pub fn parse(input: &str) -> Result<Url, UrlError> {
        let input = input.trim();
        let Some((scheme, rest)) = split_scheme(input, in_quotes)? else {
            return Err(UrlError::Scheme(input.to_owned()));
        };
        let scheme = Scheme::named(scheme).ok_or_else(|| UrlError::Scheme(input.to_owned()))?;
        let text = format!("{scheme}:{rest}");
        let after_slashes = rest.strip_prefix("//");
        if scheme.is_unix() {
            return Ok(Url { scheme, host: socket_path(input, rest)?, port: 0, text });
        }
        let no_host_port = || UrlError::NoHostPort(input.to_owned());
        let Some(after_slashes) = after_slashes else {
            return Err(no_host_port());
        };
        let authority_len = after_slashes.find(['/', '?', '#']).unwrap_or(after_slashes.len());
        let (authority, path) = after_slashes.split_at(authority_len);
        let (host, port) = split_host_port(authority).ok_or_else(no_host_port)?;
        if !path.is_empty() {
            return Err(UrlError::Path(input.to_owned()));
        }
        if host.contains(['@', '%', ' ', '"', '<', '>', '\\']) {
            return Err(UrlError::Host(input.to_owned()));
        }
        if !port.bytes().all(|b| b.is_ascii_digit()) {
            return Err(UrlError::PortText { url: in_quotes(input), port: in_quotes(&format!(":{port}")) });
        }
        let port = port.parse().map_err(|_| UrlError::PortNumber(input.to_owned()))?;
        Ok(Url { scheme, host: host.to_string(), port, text })
    }

    /// Parses a comma-separated list of URLs. Returns the URLs sorted by text, without duplicates.
    pub fn parse_list(input: &str) -> Result<Vec<Url>, UrlError> {
        let mut urls = input.split(',').map(Url::parse).collect::<Result<Vec<Url>, UrlError>>()?;
        urls.sort();
        urls.dedup();
        Ok(urls)
    }

    /// Returns the scheme.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Returns the host name or IP address, without the brackets of an IPv6 address. For a Unix socket,
    /// returns the path of its file, which may be relative.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the TCP port. Returns 0 for a Unix socket, and for a URL with port 0, for which the kernel
    /// chooses a port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the URL as given, with the scheme in lower case.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns true if a listener can bind to the URL without resolving a host name: the host is an IP
    /// address or `localhost`, or the URL names a Unix socket.
    pub fn is_bindable(&self) -> bool {
        self.scheme.is_unix() || self.host == "localhost" || self.host.parse::<IpAddr>().is_ok()
    }

    /// Returns true if only this machine can reach the URL: the host is `localhost` or a loopback address, or
    /// the URL names a Unix socket.
    pub fn is_local(&self) -> bool {
        let is_loopback = || self.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        self.scheme.is_unix() || self.host == "localhost" || is_loopback()
    }
}

/// Removes the port from `host:port`, as in a `Host` header or a URL. The brackets of an IPv6 address are
/// kept.
pub fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !name.is_empty() => name,
        _ => host,
    }
}

/// Returns the path of a Unix socket from `rest`, the text after the scheme's colon. As in Go's `net/url` and
/// etcd, user, query and fragment are ignored, a port must be a number, and percent escapes are decoded in
/// the path after the first segment.
///
/// COMPAT-130: for `unix:name`, etcd's clients connect to one file and etcd's server listens on another. This
/// function returns the path of the clients.
fn socket_path(input: &str, rest: &str) -> Result<String, UrlError> {
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (host, path) = match rest.strip_prefix("//") {
        Some(after) => after.split_at(after.find('/').unwrap_or(after.len())),
        None => ("", rest),
    };
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    if let Some((_, port)) = host.rsplit_once(':')
        && !port.bytes().all(|b| b.is_ascii_digit())
    {
        return Err(UrlError::PortText { url: in_quotes(input), port: in_quotes(&format!(":{port}")) });
    }
    let is_wrong = |c: char| c.is_control() || matches!(c, '%' | ' ' | '"' | '<' | '>' | '\\');
    let path = unescaped(path).filter(|_| !host.contains(is_wrong));
    let socket = format!("{host}{}", path.ok_or_else(|| UrlError::Host(input.to_owned()))?);
    if socket.contains('\0') {
        return Err(UrlError::ControlCharacter(in_quotes(input)));
    }
    if socket.is_empty() {
        return Err(UrlError::NoSocket(input.to_owned()));
    }
    Ok(socket)
}

/// Decodes percent escapes: `%` and two hexadecimal digits are replaced by the byte with this value. Returns
/// `None` if digits are missing, or if the result is not UTF-8.
fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let value = digit(digits[0])? << 4 | digit(digits[1])?;
        bytes.push(u8::try_from(value).ok()?);
        rest = after;
    }
    String::from_utf8(bytes).ok()
}

/// Returns the scheme and the text after its colon; `None` if there is no scheme. A colon in the first
/// segment of a path is an error, as in Go.
fn split_scheme(input: &str, quote: impl Fn(&str) -> String) -> Result<Option<(&str, &str)>, UrlError> {
    let Some(colon) = input.find(':') else {
        return Ok(None);
    };
    let (scheme, rest) = input.split_at(colon);
    let rest = &rest[1..];
    if scheme.is_empty() {
        return Err(UrlError::NoScheme(quote(input)));
    }
    let starts_with_letter = scheme.starts_with(|c: char| c.is_ascii_alphabetic());
    let valid = starts_with_letter && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    if valid {
        return Ok(Some((scheme, rest)));
    }
    if scheme.contains('/') {
        return Ok(None);
    }
    Err(UrlError::ColonInPath(quote(input)))
}

/// Splits `host:port` or `[v6]:port` into host and port; returns `None` for any other text.
fn split_host_port(authority: &str) -> Option<(&str, &str)> {
    if let Some(bracketed) = authority.strip_prefix('[') {
        let (host, rest) = bracketed.split_once(']')?;
        return Some((host, rest.strip_prefix(':')?));
    }
    let (host, port) = authority.rsplit_once(':')?;
    if host.contains([':', ']', '[']) { None } else { Some((host, port)) }
}

/// Checks a peer URL as etcd's Go client does before it sends the URL to a server: the URL must have a known
/// scheme, a host with a port, and no path. White space around it is ignored.
///
/// `quote` must quote a text like Go's `%q`. This check accepts more than [`Url::parse`], with which the
/// server parses the URL later: for example, credentials before the host.
pub fn check_peer_url(url: &str, quote: impl Fn(&str) -> String) -> Result<(), UrlError> {
    let url = url.trim();
    let text = || url.to_owned();
    if url.bytes().any(|b| b < 0x20 || b == 0x7f) {
        return Err(UrlError::ControlCharacter(quote(url)));
    }
    let Some((scheme, rest)) = split_scheme(url, &quote)? else { return Err(UrlError::Scheme(text())) };
    let scheme = Scheme::named(scheme).ok_or_else(|| UrlError::Scheme(text()))?;
    let authority = rest.strip_prefix("//").unwrap_or("");
    let (host, path) = match authority.find(['/', '?', '#']) {
        Some(at) => authority.split_at(at),
        None => (authority, ""),
    };
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    if host.starts_with('[') && !host.contains(']') {
        return Err(UrlError::MissingBracket(quote(url)));
    }
    if matches!(scheme, Scheme::Http | Scheme::Https) {
        let port = host.rsplit_once(':').filter(|(name, _)| name.ends_with(']') || !name.contains(':'));
        match port {
            Some((_, port)) if port.bytes().all(|b| b.is_ascii_digit()) => {}
            Some((_, port)) => {
                return Err(UrlError::PortText { url: quote(url), port: quote(&format!(":{port}")) });
            }
            None => return Err(UrlError::NoHostPort(text())),
        }
    }
    let path = path.split(['?', '#']).next().unwrap_or("");
    if path.is_empty() { Ok(()) } else { Err(UrlError::Path(text())) }
}

/// Returns a text in double quotes, without escaping anything.
fn in_quotes(text: &str) -> String {
    format!("\"{text}\"")
}

impl Scheme {
    /// Returns true for `unix` and `unixs`.
    pub fn is_unix(self) -> bool {
        matches!(self, Scheme::Unix | Scheme::Unixs)
    }

    /// Returns true if the scheme uses TLS.
    pub fn is_secure(self) -> bool {
        matches!(self, Scheme::Https | Scheme::Unixs)
    }

    /// Returns the scheme with this name, in upper or lower case.
    fn named(name: &str) -> Option<Scheme> {
        match name.to_ascii_lowercase().as_str() {
            "http" => Some(Scheme::Http),
            "https" => Some(Scheme::Https),
            "unix" => Some(Scheme::Unix),
            "unixs" => Some(Scheme::Unixs),
            _ => None,
        }
    }
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
    fn sockets_have_the_paths_that_etcd_gives_them() {
        for (url, path) in [
            ("unix://localhost:1", "localhost:1"),
            ("unixs:///run/etcd.sock", "/run/etcd.sock"),
            ("unix:/run/etcd.sock", "/run/etcd.sock"),
            ("unix:name", "name"),
            ("unix://below/name", "below/name"),
            ("unix://user@name:1?query#fragment", "name:1"),
            ("unix:///run/a%41%20b", "/run/aA b"),
        ] {
            let read = Url::parse(url).unwrap();
            assert_eq!((read.host(), read.port(), read.as_str()), (path, 0, url));
        }
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
            ("unix:?x", "URL names no socket: unix:?x"),
            ("unix://localhost:m1", "parse \"unix://localhost:m1\": invalid port \":m1\" after host"),
            ("unix://a%41b", "URL has an invalid host: unix://a%41b"),
            ("unix:///a%4", "URL has an invalid host: unix:///a%4"),
            ("unix:///a%ffb", "URL has an invalid host: unix:///a%ffb"),
            ("unix:///a%00b", "parse \"unix:///a%00b\": net/url: invalid control character in URL"),
        ] {
            let refused = Url::parse(input).map(|url| url.to_string()).map_err(|error| error.to_string());
            assert_eq!(refused, Err(error.to_string()), "{input}");
        }
    }

    #[test]
    fn lists_are_sorted_and_unique() {
        let urls = Url::parse_list("http://b:2,http://a:1,http://b:2").unwrap();
        assert_eq!(urls.iter().map(Url::as_str).collect::<Vec<_>>(), ["http://a:1", "http://b:2"]);
    }

    #[test]
    fn what_peers_cannot_be_reached_at_is_refused() {
        let wrong = |url: &str| check_peer_url(url, in_quotes).unwrap_err().to_string();
        assert_eq!(check_peer_url("http://a:1", in_quotes), Ok(()));
        assert_eq!(check_peer_url(" https://[::1]:2 ", in_quotes), Ok(()));
        assert_eq!(check_peer_url("unix://a", in_quotes), Ok(()));
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
