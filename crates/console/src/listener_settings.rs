//! Holds the settings of a listener that its connections need: [`ListenerSettings`].

use tls::ServerTls;

/// Settings that the connections of a listener share.
pub(crate) struct ListenerSettings {
    pub(crate) tls: Option<ServerTls>,
    pub(crate) host: String,
}
