//! Checks the host and the origin of plain HTTP requests. A malicious web page could otherwise use the
//! browser of a person who opens the page to reach a member that the page's author cannot reach.

/// Values of the flags `--host-whitelist` and `--cors`. `None` allows every host or origin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Browsers {
    /// Host names (without a port) that are allowed in the `Host` header of a request without TLS. Requests
    /// with other names are refused.
    pub hosts: Option<Vec<String>>,
    /// Origins whose pages may read the responses of this member.
    pub origins: Option<Vec<String>>,
}

impl Browsers {
    /// Returns true if requests whose `Host` header has this name (without a port) are answered.
    pub fn is_host_allowed(&self, host: &str) -> bool {
        self.hosts.as_ref().is_none_or(|hosts| hosts.iter().any(|allowed| allowed == host))
    }
}
