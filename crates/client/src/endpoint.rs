//! Parses an endpoint by the rules of etcd's clients. The module `transport` resolves names and connects.

use std::fmt;
use std::path::PathBuf;

/// Address of a server in the notation of etcd's clients: `host:port`, `http://host:port`,
/// `https://host:port`, `unix://path` or `unixs://path`.
///
/// As in etcd, every string is accepted as an endpoint; connecting to a malformed endpoint fails.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// String from which the endpoint was parsed.
    pub text: String,
    /// Address to connect to.
    pub address: Address,
    /// Host of the endpoint with its port, which is sent as the HTTP/2 `:authority`. The server's certificate
    /// must contain the host name unless the settings give another name.
    pub host: String,
    /// Rule that decides if the connection uses TLS.
    pub security: Security,
}

/// An address to connect to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// `host:port`. The host name is not resolved yet, and the string is possibly malformed.
    Tcp(String),
    /// Path of a Unix socket.
    Unix(PathBuf),
}

/// Rule that decides from the scheme of an endpoint if TLS is used. Source: `client/v3/internal/endpoint` of
/// etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Security {
    /// `https` and `unixs`: always TLS. Without configured certificates, the system's root certificates are
    /// trusted.
    Tls,
    /// `http`: never TLS, even if TLS is configured.
    Plain,
    /// No scheme, or `unix`: TLS if TLS is configured.
    AsConfigured,
}

impl Endpoint {
    /// Parses an endpoint. Never fails.
    pub fn new(text: impl Into<String>) -> Endpoint {
        let text = text.into();
        if let Some((scheme, rest)) = unix(&text) {
            // Remove `//`, if present: `unix:///a` means the absolute path `/a`, and both `unix://a` and
            // `unix:a` mean the relative path `a`.
            let path = PathBuf::from(rest.strip_prefix("//").unwrap_or(rest));
            let host = path.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned());
            let security = if scheme == "unixs" { Security::Tls } else { Security::AsConfigured };
            return Endpoint { address: Address::Unix(path), host, security, text };
        }
        let (security, address) = match text.split_once("://") {
            Some((scheme, rest)) => {
                let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
                let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
                let url_like = !authority.contains(|c: char| c.is_whitespace() || c.is_control());
                match scheme.to_ascii_lowercase().as_str() {
                    "https" if url_like => (Security::Tls, authority.to_owned()),
                    "http" if url_like => (Security::Plain, authority.to_owned()),
                    _ => (Security::AsConfigured, text.clone()),
                }
            }
            None => (Security::AsConfigured, text.clone()),
        };
        let host = address.clone();
        Endpoint { address: Address::Tcp(address), host, security, text }
    }

    /// Returns the host without port and brackets.
    pub fn host_name(&self) -> &str {
        match split_host_port(&self.host) {
            Ok((host, _)) => host,
            Err(_) => &self.host,
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<&str> for Endpoint {
    fn from(text: &str) -> Endpoint {
        Endpoint::new(text)
    }
}

fn unix(text: &str) -> Option<(&str, &str)> {
    text.split_once(':').filter(|(scheme, _)| matches!(*scheme, "unix" | "unixs"))
}

/// Error of an address that is not `host:port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AddressError {
    /// The address is empty.
    Missing,
    /// The address is not of the form `host:port`.
    Form {
        /// The address.
        address: String,
        /// Description of the error, in the words of Go's `net.SplitHostPort`.
        why: &'static str,
    },
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AddressError::Missing => f.write_str("missing address"),
            AddressError::Form { address, why } => write!(f, "address {address}: {why}"),
        }
    }
}

impl std::error::Error for AddressError {}

/// Splits `host:port`. The error messages are those of Go's `net.SplitHostPort`, which users of etcd know.
pub(crate) fn split_host_port(address: &str) -> Result<(&str, &str), AddressError> {
    let fault = |why| Err(AddressError::Form { address: address.to_owned(), why });
    if address.is_empty() {
        return Err(AddressError::Missing);
    }
    let Some((host, port)) = address.rsplit_once(':') else { return fault("missing port in address") };
    if let Some(bracketed) = host.strip_prefix('[') {
        return match bracketed.strip_suffix(']') {
            Some(inner) if !inner.contains(['[', ']']) => Ok((inner, port)),
            _ if address.ends_with(']') => fault("missing port in address"),
            _ => fault("missing ']' in address"),
        };
    }
    if host.contains(':') {
        return fault("too many colons in address");
    }
    if host.contains(']') || address.contains('[') {
        return fault("unexpected '[' in address");
    }
    Ok((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_as_etcd_reads_them() {
        let tcp = |text: &str| Address::Tcp(text.to_owned());
        let path = |text: &str| Address::Unix(PathBuf::from(text));
        let cases = [
            ("127.0.0.1:2379", tcp("127.0.0.1:2379"), "127.0.0.1:2379", Security::AsConfigured),
            ("http://a.example:2379", tcp("a.example:2379"), "a.example:2379", Security::Plain),
            ("https://[::1]:2379/x", tcp("[::1]:2379"), "[::1]:2379", Security::Tls),
            ("foo://a:1", tcp("foo://a:1"), "foo://a:1", Security::AsConfigured),
            ("http://a b:1", tcp("http://a b:1"), "http://a b:1", Security::AsConfigured),
            ("unix:///run/etcd.sock", path("/run/etcd.sock"), "etcd.sock", Security::AsConfigured),
            ("unixs:///run/etcd.sock", path("/run/etcd.sock"), "etcd.sock", Security::Tls),
            ("unix://here:1", path("here:1"), "here:1", Security::AsConfigured),
            ("unix:here", path("here"), "here", Security::AsConfigured),
            ("http://", tcp(""), "", Security::Plain),
        ];
        for (text, address, host, security) in cases {
            let read = Endpoint::new(text);
            assert_eq!(
                (&read.address, read.host.as_str(), read.security),
                (&address, host, security),
                "{text}"
            );
        }
        assert_eq!(Endpoint::new("https://[::1]:2379").host_name(), "::1");
        assert_eq!(Endpoint::new("https://a.example").host_name(), "a.example");
    }

    #[test]
    fn what_is_wrong_with_an_address_is_said_as_go_says_it() {
        for (address, said) in [
            ("", "missing address"),
            ("127.0.0.1", "address 127.0.0.1: missing port in address"),
            ("foo://127.0.0.1:1", "address foo://127.0.0.1:1: too many colons in address"),
            ("::1:2379", "address ::1:2379: too many colons in address"),
            ("[::1]", "address [::1]: missing port in address"),
        ] {
            assert_eq!(split_host_port(address).unwrap_err().to_string(), said);
        }
        assert_eq!(split_host_port("[::1]:2379"), Ok(("::1", "2379")));
    }
}
