//! The text of an endpoint and its meaning: [`Endpoint`], by the rules of etcd's clients. It resolves and dials nothing;
//! `transport` does.

use std::fmt;
use std::path::PathBuf;

/// The address of a server as etcd's clients spell it: `host:port`, `http://host:port`, `https://host:port`,
/// `unix://path` or `unixs://path`.
///
/// Every text is an endpoint, as in etcd: a malformed one fails when it is dialled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The text as it was given.
    pub text: String,
    /// Address to connect to.
    pub address: Address,
    /// The name its certificate has to bear unless the settings name another, and HTTP/2's authority.
    pub host: String,
    /// Says if TLS is spoken there.
    pub security: Security,
}

/// An address to connect to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// `host:port`, not looked up yet and perhaps malformed.
    Tcp(String),
    /// A socket in the file system.
    Unix(PathBuf),
}

/// The meaning of an endpoint's scheme for TLS. Source: etcd's `client/v3/internal/endpoint`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Security {
    /// `https` and `unixs`: always, with the system's roots when nothing else is configured.
    Tls,
    /// `http`: never, whatever is configured.
    Plain,
    /// No scheme, or `unix`: TLS if it is configured.
    AsConfigured,
}

impl Endpoint {
    /// Reads an endpoint.
    pub fn new(text: impl Into<String>) -> Endpoint {
        let text = text.into();
        if let Some((scheme, rest)) = unix(&text) {
            // Three slashes make an absolute path, two or none a relative one: all the same once they are cut.
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

    /// The host alone, without port and brackets.
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

/// Why an address is not `host:port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AddressError {
    /// It is empty.
    Missing,
    /// It has another form.
    Form {
        /// The address.
        address: String,
        /// What is wrong with it, in Go's words.
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

/// Cuts `host:port`; the texts are those of Go's `net.SplitHostPort`, which etcd's users know.
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
