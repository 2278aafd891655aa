//! Rules for the clients of a member ([`Clients`]): how clients are authenticated, and which of their
//! requests are refused.

use std::sync::{Arc, OnceLock};

use clock::Clock;
use stdx::zones::{ZoneMemberList, ZoneNetworks};

use crate::browsers::Browsers;
use crate::credentials::Credentials;
use crate::expensive::ExpensiveCalls;

/// Rules for clients, and the memory that all of them together may use.
pub struct Clients {
    /// Tokens and passwords of users.
    pub credentials: Arc<Credentials>,
    /// True if clients have to present a certificate on listeners with TLS. In that case, the responses of a
    /// metrics listener without TLS contain no names of keys and users.
    pub show_certificates: bool,
    /// Hosts that requests may name, and origins whose web pages may read responses.
    pub browsers: Browsers,
    /// True if calls with JSON bodies are served under `/v3/`.
    pub gateway: bool,
    /// Limits the rate of expensive calls of each client.
    pub expensive: ExpensiveCalls,
    /// Networks of clients by zone, and what their clients get from MemberList.
    pub zones: (ZoneNetworks, ZoneMemberList),
    /// Memory budget for all clients together. Not set while no front end serves clients, as in a simulation
    /// and during a start. Boot sets it once, just before it starts the front end.
    pub memory: OnceLock<accounting::Budget>,
}

impl Default for Clients {
    /// Returns rules without limits. Tokens are simple tokens, which expire by the system's clock.
    fn default() -> Clients {
        let credentials = Credentials::simple(Clock::real(), Box::new(identity::system_entropy()));
        Clients {
            credentials: Arc::new(credentials),
            show_certificates: false,
            browsers: Browsers::default(),
            gateway: true,
            expensive: ExpensiveCalls::default(),
            zones: Default::default(),
            memory: OnceLock::new(),
        }
    }
}
