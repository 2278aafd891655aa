//! Reads the target of a request, its path and query, as Go's server reads it.

use std::borrow::Cow;

use ::http::{Method, Request, Uri};
use bytes::Bytes;

/// Target of a request, as Go's server resolves it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// The unescaped path.
    Path(String),
    /// A path with empty or dotted parts. The client is redirected to this path without them.
    Elsewhere(String),
    /// The target is invalid.
    Malformed,
}

/// Reads a request's target.
pub(super) fn of(request: &Request<Bytes>) -> Target {
    let raw = request.uri().path();
    if raw == "*" {
        let options = request.method() == Method::OPTIONS;
        return if options { Target::Path(raw.to_owned()) } else { Target::Malformed };
    }
    let Some(path) = unescape_path(raw) else { return Target::Malformed };
    if request.method() != Method::CONNECT {
        let clean = clean(raw);
        if clean != raw {
            let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
            return Target::Elsewhere(format!("{clean}{query}"));
        }
    }
    Target::Path(path)
}

/// Unescapes a path; `None` if an escape is invalid. An escaped slash does not separate parts of the path: it
/// becomes a null character, which occurs in no path that is served.
pub(super) fn unescape_path(raw: &str) -> Option<String> {
    let parts: Option<Vec<String>> = raw
        .split('/')
        .map(|part| Some(String::from_utf8_lossy(&unescape(part, false)?).replace('/', "\0")))
        .collect();
    Some(parts?.join("/"))
}

/// Returns the shortest equivalent path, without empty parts, `.` and `..`; a slash at the end is kept.
fn clean(raw: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in raw.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let mut clean = format!("/{}", parts.join("/"));
    if raw.ends_with('/') && clean != "/" {
        clean.push('/');
    }
    clean
}

/// Unescapes percent escapes, and in a query also plus signs; `None` if an escape is invalid.
fn unescape(text: &str, in_query: bool) -> Option<Cow<'_, [u8]>> {
    let bytes = text.as_bytes();
    if !bytes.iter().any(|byte| matches!(byte, b'%' | b'+')) {
        return Some(Cow::Borrowed(bytes));
    }
    let digit = |byte: Option<u8>| char::from(byte?).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes.iter().copied();
    while let Some(byte) = rest.next() {
        out.push(match byte {
            b'%' => (digit(rest.next())? << 4) | digit(rest.next())?,
            b'+' if in_query => b' ',
            byte => byte,
        });
    }
    Some(Cow::Owned(out))
}

/// Returns a string escaped for HTML.
pub(super) fn escape_html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Parameters of a query. Malformed parameters are skipped, as in Go.
pub(super) struct Query<'a> {
    parameters: Vec<Parameter<'a>>,
}

struct Parameter<'a> {
    name: Cow<'a, [u8]>,
    value: Cow<'a, [u8]>,
}

impl<'a> Query<'a> {
    pub(super) fn of(uri: &'a Uri) -> Query<'a> {
        let parameter = |text: &'a str| {
            if text.is_empty() || text.contains(';') {
                return None;
            }
            let (name, value) = text.split_once('=').unwrap_or((text, ""));
            Some(Parameter { name: unescape(name, true)?, value: unescape(value, true)? })
        };
        Query { parameters: uri.query().unwrap_or_default().split('&').filter_map(parameter).collect() }
    }

    /// Returns all values given for a name, in order.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.parameters.iter().filter(move |each| *each.name == *name.as_bytes()).map(|each| &*each.value)
    }

    /// Returns the first value given for a name.
    pub(super) fn first(&self, name: &str) -> Option<&[u8]> {
        self.all(name).next()
    }

    /// Returns true if the query contains this name, with or without a value.
    pub(super) fn has(&self, name: &str) -> bool {
        self.first(name).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(method: Method, uri: &str) -> Target {
        let mut request = Request::new(Bytes::new());
        *request.method_mut() = method;
        *request.uri_mut() = uri.parse().unwrap();
        of(&request)
    }

    #[test]
    fn the_gateways_paths_are_known_however_they_are_escaped() {
        for path in [
            "/v3/auth/authenticate",
            "/v3/auth%2Fauthenticate",
            "/%763/auth/authenticat%65",
            "/v3beta/auth/authenticate",
        ] {
            assert_eq!(super::super::gateway_rpc(path), Some(api::Rpc::Authenticate), "{path}");
        }
        for path in ["/v3/auth/authenticate%", "/v3/auth%00authenticate", "/v3/auth/", "/", "*"] {
            assert_eq!(super::super::gateway_rpc(path), None, "{path}");
        }
    }

    #[test]
    fn paths_are_read_as_go_reads_them() {
        let path = |text: &str| Target::Path(text.to_owned());
        let elsewhere = |text: &str| Target::Elsewhere(text.to_owned());
        for (uri, expected) in [
            ("/", path("/")),
            ("/health", path("/health")),
            ("/health/", path("/health/")),
            ("/%68ealth?x=%zz", path("/health")),
            ("/livez%2Fserializable_read", path("/livez\0serializable_read")),
            ("/a+b", path("/a+b")),
            ("/%ff", path("/\u{fffd}")),
            ("/health%zz", Target::Malformed),
            ("/health%", Target::Malformed),
            ("/health%4", Target::Malformed),
            ("/%+1", Target::Malformed),
            ("*", Target::Malformed),
            ("//", elsewhere("/")),
            ("///", elsewhere("/")),
            ("//health?exclude=x", elsewhere("/health?exclude=x")),
            ("/health//", elsewhere("/health/")),
            ("/health/.", elsewhere("/health")),
            ("/health/..", elsewhere("/")),
            ("/..", elsewhere("/")),
            ("/a/../../b/./c", elsewhere("/b/c")),
            ("http://foo/health", path("/health")),
        ] {
            assert_eq!(target(Method::GET, uri), expected, "{uri}");
        }
        assert_eq!(target(Method::OPTIONS, "*"), path("*"));
        assert_eq!(target(Method::CONNECT, "foo:1"), path(""));
    }

    #[test]
    fn queries_are_read_as_go_reads_them() {
        let uri: Uri = "/x?exclude=A&exclude=%42+c&&verbose&a;b=1&%zz=1&bad=%4&=v&k=v=w".parse().unwrap();
        let query = Query::of(&uri);
        assert_eq!(query.all("exclude").collect::<Vec<_>>(), [&b"A"[..], b"B c"]);
        assert_eq!(query.first("verbose"), Some(&b""[..]));
        assert_eq!(query.first("k"), Some(&b"v=w"[..]));
        assert_eq!(query.first(""), Some(&b"v"[..]));
        assert!(!query.has("bad") && !query.has("a") && !query.has("a;b"));
        assert!(!Query::of(&"/x".parse().unwrap()).has(""));
    }

    #[test]
    fn html_keeps_nothing_that_could_end_an_attribute() {
        assert_eq!(escape_html("/a?b=\"<'>\"&c"), "/a?b=&#34;&lt;&#39;&gt;&#34;&amp;c");
    }
}
