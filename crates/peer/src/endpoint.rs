use http::Uri;

use crate::error::{UrlError, UrlFault};

/// The address of a member, from a peer URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// Name or address, without the brackets of IPv6.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Value of the `Host` header.
    pub(crate) authority: String,
}

impl Endpoint {
    /// Reads a peer URL: scheme, host and port, nothing else.
    pub(crate) fn parse(url: &str) -> Result<Endpoint, UrlError> {
        let refused = |fault| UrlError { url: url.to_owned(), fault };
        let uri: Uri = url.parse().map_err(|error| refused(UrlFault::Syntax(error)))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err(refused(UrlFault::Tls));
            }
            _ => return Err(refused(UrlFault::Form("only http:// is supported"))),
        }
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'));
        let Some(authority) = authority else {
            return Err(refused(UrlFault::Form("it must name a host and a port only")));
        };
        if uri.path() != "/" || uri.query().is_some() {
            return Err(refused(UrlFault::Form("it must not have a path")));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        // A port that is none (empty, or above 65535) reads as if there was none.
        let says_port = authority.as_str().len() > authority.host().len();
        let port = authority.port_u16().filter(|port| *port > 0).or((!says_port).then_some(80));
        let Some(port) = port else {
            return Err(refused(UrlFault::Form("its port is none")));
        };
        if host.is_empty() {
            return Err(refused(UrlFault::Form("it names no host")));
        }
        Ok(Endpoint { host, port, authority: authority.as_str().to_owned() })
    }
}

/// Checks that members can talk to a peer at this URL.
///
/// # Errors
///
/// An error that names the URL; `https` is refused, since TLS between members is not supported yet.
pub fn check_url(url: &str) -> Result<(), UrlError> {
    Endpoint::parse(url).map(|_| ())
}

/// The URLs of one peer, and which of them answered last.
#[derive(Debug, Default)]
pub(crate) struct Endpoints {
    all: Vec<Endpoint>,
    picked: usize,
}

impl Endpoints {
    /// Takes the URLs that can be used, and gives the complaints about the others.
    pub(crate) fn parse(urls: &[String]) -> (Endpoints, Vec<UrlError>) {
        let mut complaints = Vec::new();
        let mut all = Vec::new();
        for url in urls {
            match Endpoint::parse(url) {
                Ok(endpoint) => all.push(endpoint),
                Err(complaint) => complaints.push(complaint),
            }
        }
        (Endpoints { all, picked: 0 }, complaints)
    }

    pub(crate) fn pick(&self) -> Option<Endpoint> {
        self.all.get(self.picked).cloned()
    }

    /// One that did not answer: the next is tried next time.
    pub(crate) fn unreachable(&mut self, endpoint: &Endpoint) {
        if self.all.get(self.picked) == Some(endpoint) {
            self.picked = (self.picked + 1) % self.all.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_members_are_read_and_others_refused_by_name() {
        let endpoint = Endpoint::parse("http://[::1]:2380").unwrap();
        assert_eq!((endpoint.host.as_str(), endpoint.port), ("::1", 2380));
        assert_eq!(endpoint.authority, "[::1]:2380");
        assert_eq!(Endpoint::parse("http://a.example").unwrap().port, 80);
        assert!(
            check_url("https://a:2380")
                .unwrap_err()
                .to_string()
                .contains("TLS between members is not supported yet")
        );
        for bad in [
            "",
            "a:2380",
            "http://",
            "http://a:2380/x",
            "http://u@a:1",
            "unix://x",
            "http://a:99999",
            "http://a:",
            "http://a:0",
            "\u{0}",
        ] {
            let error = check_url(bad).unwrap_err().to_string();
            assert!(error.contains("peer URL"), "{error}");
        }
    }

    #[test]
    fn the_next_url_is_picked_after_a_failure() {
        let urls = ["http://a:1".to_owned(), "https://b:1".to_owned(), "http://c:1".to_owned()];
        let (mut endpoints, complaints) = Endpoints::parse(&urls);
        assert_eq!(complaints.len(), 1);
        let first = endpoints.pick().unwrap();
        endpoints.unreachable(&first);
        endpoints.unreachable(&first);
        assert_eq!(endpoints.pick().unwrap().host, "c");
        let second = endpoints.pick().unwrap();
        endpoints.unreachable(&second);
        assert_eq!(endpoints.pick(), Some(first));
    }
}
