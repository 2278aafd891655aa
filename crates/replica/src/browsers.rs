//! Checks of plain HTTP requests that keep a web page from using a browser to reach a member.

/// Values of the flags `--host-whitelist` and `--cors`; `None` allows all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Browsers {
    /// Host names allowed in the `Host` header of a request without TLS, without a port.
    pub hosts: Option<Vec<String>>,
    /// Origins whose pages may read answers.
    pub origins: Option<Vec<String>>,
}

impl Browsers {
    /// Returns true if requests for this host are answered.
    pub fn is_host_allowed(&self, host: &str) -> bool {
        self.hosts.as_ref().is_none_or(|hosts| hosts.iter().any(|allowed| allowed == host))
    }
}
