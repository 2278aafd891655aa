//! What plain HTTP requests are checked against, so that a web page cannot use a browser to reach a member.

/// The flags `--host-whitelist` and `--cors`. `None` is for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Browsers {
    /// Names that a request without TLS may be for, as written in its `Host` header, without a port.
    pub hosts: Option<Vec<String>>,
    /// Origins of pages that may read answers.
    pub origins: Option<Vec<String>>,
}

impl Browsers {
    /// Returns true if a request for this host is answered.
    pub fn is_host_allowed(&self, host: &str) -> bool {
        self.hosts.as_ref().is_none_or(|hosts| hosts.iter().any(|allowed| allowed == host))
    }
}
