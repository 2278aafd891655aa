use std::fmt;
use std::time::Duration;

use crate::preference::Preference;
use crate::tls::{Tls, TlsError, TlsFiles};
use crate::transport::{Keepalive, Transport};

/// Settings of a [`crate::Client`]. The defaults are those of etcd's client.
#[derive(Clone)]
pub struct Settings {
    /// Endpoints of the members; see [`crate::Endpoint`] for the notation.
    pub endpoints: Vec<String>,
    /// Time limit for connecting, and for [`crate::Client::authenticate`]. `None` or zero means no limit.
    pub dial_timeout: Option<Duration>,
    /// Time without received data after which a connection with open calls is pinged; zero means never.
    /// Values below 10 s are raised to 10 s, as in gRPC, because servers close the connections of clients
    /// that ping too often.
    pub keepalive_time: Duration,
    /// Time limit for the response to a ping, after which the connection is closed; zero means 20 s.
    pub keepalive_timeout: Duration,
    /// True if connections without open calls are pinged, too.
    pub keepalive_without_calls: bool,
    /// Size limit of a request in bytes.
    pub send_bytes_max: usize,
    /// Size limit of a response in bytes.
    pub receive_bytes_max: usize,
    /// TLS settings for all endpoints except `http` ones. If `None`, only `https` and `unixs` endpoints use
    /// TLS, with default settings.
    pub tls: Option<Tls>,
    /// User name and password. The client has no user if this is `None`, or if either of the two is empty.
    pub user: Option<(String, String)>,
    /// Token that the caller supplies, such as a JWT; `None` if it supplies none. Cannot be combined with a
    /// user.
    pub token: Option<String>,
    /// Order in which endpoints are preferred; `None` to use all of them in turn. Clients that are created from
    /// clones of the settings share it.
    pub preference: Option<Preference>,
}

impl fmt::Debug for Settings {
    /// The formatted text must contain neither the password nor the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("endpoints", &self.endpoints)
            .field("dial_timeout", &self.dial_timeout)
            .field("user", &self.user.as_ref().map(|(name, _)| name))
            .field("has_token", &self.token.is_some())
            .field("preference", &self.preference)
            .finish_non_exhaustive()
    }
}

impl Default for Settings {
    fn default() -> Settings {
        let transport = Transport::default();
        Settings {
            endpoints: Vec::new(),
            dial_timeout: None,
            keepalive_time: Duration::ZERO,
            keepalive_timeout: Duration::ZERO,
            keepalive_without_calls: false,
            send_bytes_max: transport.send_bytes_max,
            receive_bytes_max: transport.receive_bytes_max,
            tls: None,
            user: None,
            token: None,
            preference: None,
        }
    }
}

impl Settings {
    /// Returns settings with these endpoints, and default values for all other fields.
    pub fn of<T: Into<String>>(endpoints: impl IntoIterator<Item = T>) -> Settings {
        Settings { endpoints: endpoints.into_iter().map(Into::into).collect(), ..Settings::default() }
    }

    /// Configures TLS by the rule of etcd's tools: endpoints without a scheme use TLS if any certificate file
    /// is given or if insecure transport was switched off.
    ///
    /// # Errors
    /// Returns the same errors as [`TlsFiles::load`].
    pub fn secure(&mut self, files: &TlsFiles, insecure_transport: bool) -> Result<(), TlsError> {
        self.tls = if files.is_given() || !insecure_transport { Some(files.load()?) } else { None };
        Ok(())
    }

    pub(crate) fn transport(&self) -> Transport {
        Transport {
            tls: self.tls.clone(),
            dial_timeout: self.dial_timeout,
            keepalive: Keepalive::for_grpc(self.keepalive_time, self.keepalive_timeout)
                .map(|pings| Keepalive { without_calls: self.keepalive_without_calls, ..pings }),
            send_bytes_max: self.send_bytes_max,
            receive_bytes_max: self.receive_bytes_max,
            ..Transport::default()
        }
    }
}

/// Error of settings from which no client can be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingsError {
    /// The list of endpoints is empty.
    NoEndpoints,
    /// Both a user and a token are given.
    UserAndToken,
    /// The size limit for responses (first value) is below that for requests (second value); both in bytes.
    ReceiveBelowSend(usize, usize),
    /// The token contains characters that are not allowed in a header value.
    BadToken,
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingsError::NoEndpoints => f.write_str("etcdclient: no available endpoints"),
            SettingsError::UserAndToken => {
                f.write_str("Username/Password and Token configurations are mutually exclusive")
            }
            SettingsError::ReceiveBelowSend(receive, send) => write!(
                f,
                "gRPC message recv limit ({receive} bytes) must be greater than send limit ({send} bytes)"
            ),
            SettingsError::BadToken => {
                f.write_str("the auth token contains bytes that are not allowed in a header")
            }
        }
    }
}

impl std::error::Error for SettingsError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_is_in_the_output_of_debug() {
        let settings = Settings {
            user: Some(("bob".to_owned(), "pl4nted".to_owned())),
            token: Some("pl4nted".to_owned()),
            ..Settings::of(["host:1"])
        };
        let shown = format!("{settings:?}");
        assert!(!shown.contains("pl4nted") && shown.contains("bob") && shown.contains("host:1"), "{shown}");
    }
}
