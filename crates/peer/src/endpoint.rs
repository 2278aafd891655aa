use std::path::PathBuf;

use api::url::Url;
use http::Uri;

use crate::error::{UrlError, UrlFault};

/// Address of a member with the way to connect to it, parsed from a peer URL.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Endpoint {
    pub(crate) address: Address,
    /// True for an `https` URL.
    pub(crate) is_tls: bool,
    /// Value of the `Host` header.
    pub(crate) authority: String,
}

/// Address at which a member listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Address {
    Tcp {
        /// Host name or address, without the brackets of IPv6.
        host: String,
        port: u16,
    },
    /// A Unix socket.
    Unix {
        /// Path of the socket file, relative to the working directory of this process.
        path: PathBuf,
    },
}

/// Value of the `Host` header for requests through a Unix socket. The header is required, but its value has
/// no meaning there.
const UNIX_AUTHORITY: &str = "localhost";

impl Endpoint {
    /// Parses a peer URL. It must consist of scheme, host and port only, or of `unix` and the path of a
    /// socket.
    pub(crate) fn parse(url: &str) -> Result<Endpoint, UrlError> {
        let refused = |fault| UrlError { url: url.to_owned(), fault };
        if let Ok(socket) = Url::parse(url)
            && socket.scheme().is_unix()
        {
            if socket.scheme().is_secure() {
                return Err(refused(UrlFault::Form("members do not use TLS over a Unix socket")));
            }
            let address = Address::Unix { path: socket.host().into() };
            return Ok(Endpoint { address, is_tls: false, authority: UNIX_AUTHORITY.to_owned() });
        }
        let uri: Uri = url.parse().map_err(|error| refused(UrlFault::Syntax(error)))?;
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(refused(UrlFault::Form("only http://, https:// and unix:// are supported"))),
        };
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'));
        let Some(authority) = authority else {
            return Err(refused(UrlFault::Form("it must consist of a host and a port only")));
        };
        if uri.path() != "/" || uri.query().is_some() {
            return Err(refused(UrlFault::Form("it must not have a path")));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        // `port_u16` returns `None` both without a port and for an invalid one (empty, or above 65535). So
        // that an invalid port does not become the default port, the presence of a port is checked
        // separately.
        let says_port = authority.as_str().len() > authority.host().len();
        let default = if is_tls { 443 } else { 80 };
        let port = authority.port_u16().filter(|port| *port > 0).or((!says_port).then_some(default));
        let Some(port) = port else {
            return Err(refused(UrlFault::Form("its port is invalid")));
        };
        if host.is_empty() {
            return Err(refused(UrlFault::Form("it has no host")));
        }
        Ok(Endpoint {
            address: Address::Tcp { host, port },
            is_tls,
            authority: authority.as_str().to_owned(),
        })
    }

    /// Parses a peer URL that this member will connect to. `has_tls` is true if this member can connect to
    /// `https` URLs.
    pub(crate) fn dialable(url: &str, has_tls: bool) -> Result<Endpoint, UrlError> {
        let endpoint = Endpoint::parse(url)?;
        if endpoint.is_tls && !has_tls {
            return Err(UrlError { url: url.to_owned(), fault: UrlFault::Tls });
        }
        Ok(endpoint)
    }
}

/// Checks that a URL is a peer URL. It must consist of `http` or `https`, a host and a port only, or of
/// `unix` and the path of a socket.
///
/// # Errors
///
/// Returns an error that names the URL if it is not a peer URL.
pub fn check_url(url: &str) -> Result<(), UrlError> {
    Endpoint::parse(url).map(|_| ())
}

/// Endpoints of one peer, and the one that is used for the next connection.
#[derive(Debug, Default)]
pub(crate) struct Endpoints {
    all: Vec<Endpoint>,
    picked: usize,
}

impl Endpoints {
    /// Parses the URLs. Returns the endpoints of those that can be used, and an error for each of the others.
    pub(crate) fn parse(urls: &[String], has_tls: bool) -> (Endpoints, Vec<UrlError>) {
        let mut complaints = Vec::new();
        let mut all = Vec::new();
        for url in urls {
            match Endpoint::dialable(url, has_tls) {
                Ok(endpoint) => all.push(endpoint),
                Err(complaint) => complaints.push(complaint),
            }
        }
        (Endpoints { all, picked: 0 }, complaints)
    }

    pub(crate) fn pick(&self) -> Option<Endpoint> {
        self.all.get(self.picked).cloned()
    }

    /// Records that an endpoint did not answer. If it is the current one, the next endpoint becomes the
    /// current one.
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
        let tcp = |host: &str, port| Address::Tcp { host: host.to_owned(), port };
        assert_eq!(endpoint.address, tcp("::1", 2380));
        assert_eq!(endpoint.authority, "[::1]:2380");
        assert_eq!(Endpoint::parse("http://a.example").unwrap().address, tcp("a.example", 80));
        let secure = Endpoint::parse("https://a.example").unwrap();
        assert_eq!((&secure.address, secure.is_tls), (&tcp("a.example", 443), true));
        assert_eq!(Endpoint::dialable("https://a.example", true).unwrap(), secure);
        assert_eq!(
            Endpoint::dialable("https://a:2380", false).unwrap_err().to_string(),
            "peer URL \"https://a:2380\": this member has no TLS settings to dial it"
        );
        assert!(check_url("https://a:2380").is_ok());
        for (url, path) in
            [("unix://m1:0", "m1:0"), ("unix:///run/m.sock", "/run/m.sock"), ("unix:m.sock", "m.sock")]
        {
            let endpoint = Endpoint::dialable(url, false).unwrap();
            assert_eq!(endpoint.address, Address::Unix { path: path.into() }, "{url}");
        }
        for bad in [
            "",
            "a:2380",
            "http://",
            "http://a:2380/x",
            "http://u@a:1",
            "unix://",
            "unixs://x",
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
        let (mut endpoints, complaints) = Endpoints::parse(&urls, false);
        assert_eq!(complaints.len(), 1);
        let first = endpoints.pick().unwrap();
        endpoints.unreachable(&first);
        endpoints.unreachable(&first);
        assert_eq!(endpoints.pick().unwrap().authority, "c:1");
        let second = endpoints.pick().unwrap();
        endpoints.unreachable(&second);
        assert_eq!(endpoints.pick(), Some(first));
    }
}
