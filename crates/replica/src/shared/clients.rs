//! Rules for the clients of a member ([`Clients`]): how clients are authenticated, and which of their
//! requests are refused.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use accounting::ShardCounters;
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
    /// Counters of the shards that serve clients. Not set while no front end serves clients, as in a simulation
    /// and during a start. Boot sets them once.
    pub shards: OnceLock<Vec<Arc<ShardCounters>>>,
    /// Until when all clients are sent elsewhere.
    pub draining: Draining,
}

/// The time until which a member sends all its clients elsewhere; `None` if it does not.
#[derive(Debug, Default)]
pub struct Draining(Mutex<Option<Instant>>);

impl Draining {
    /// Sets the time.
    pub fn set(&self, until: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }

    /// Returns true before that time.
    pub fn is_on(&self, now: Instant) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|until| now < until)
    }
}

impl Clients {
    /// Returns the number of open connections of clients.
    pub fn connections(&self) -> u64 {
        let shards = self.shards.get().map(Vec::as_slice).unwrap_or_default();
        shards.iter().map(|shard| shard.connections.load(Ordering::Relaxed) as u64).sum()
    }
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
            shards: OnceLock::new(),
            draining: Draining::default(),
        }
    }
}
