//! Settings of a listener that its connections and their requests need: [`Listening`].

use tls::ServerTls;

/// Settings that the connections of a listener share.
pub(crate) struct Listening {
    pub(crate) tls: Option<ServerTls>,
    pub(crate) host: String,
}
