//! Checks of plain HTTP requests. They keep a web page from reaching a member through the browser of a person
//! who opens the page.

/// Values of the flags `--host-whitelist` and `--cors`. `None` allows every host or origin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Browsers {
    /// Host names (without a port) that are allowed in the `Host` header of a request without TLS.
    pub hosts: Option<Vec<String>>,
    /// Origins whose pages may read the responses of this member.
    pub origins: Option<Vec<String>>,
}

impl Browsers {
    /// Returns true if requests with this host name are answered.
    pub fn is_host_allowed(&self, host: &str) -> bool {
        self.hosts.as_ref().is_none_or(|hosts| hosts.iter().any(|allowed| allowed == host))
    }
}
