//! Contains the state of this member that every task of the peer thread uses, whichever peer it communicates
//! with: [`LocalMember`].

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::client::Client;
use crate::handler::Handler;
use crate::identity::Identity;
use crate::options::{Field, Level, Log};
use crate::sessions::Finding;

/// Maximum number of peers of which it is remembered that they have reported this member's removal.
const REPORTERS_MAX: usize = 1024;

/// State of this member that the tasks of the peer thread share: its identity, the handler of messages and
/// events, the client for requests, the time limits and the log.
///
/// The tasks have a reference to this struct and not to the hub, so that the modules of the tasks do not
/// depend on the hub, which starts them.
pub(crate) struct LocalMember {
    pub(crate) identity: Identity,
    pub(crate) handler: Arc<dyn Handler>,
    pub(crate) client: Client,
    pub(crate) read_timeout: Duration,
    pub(crate) write_timeout: Duration,
    log: Log,
    /// True once the handler was told that this member was removed, which is reported only once.
    removal_reported_by: RefCell<BTreeSet<u64>>,
    stopping: Cell<bool>,
}

impl LocalMember {
    /// Creates the state of this member. The pair of durations is [`crate::Options::read_timeout`] and
    /// [`crate::Options::write_timeout`].
    pub(crate) fn new(
        identity: Identity,
        handler: Arc<dyn Handler>,
        log: Log,
        (read_timeout, write_timeout): (Duration, Duration),
        client: Client,
    ) -> LocalMember {
        LocalMember {
            identity,
            handler,
            client,
            read_timeout,
            write_timeout,
            log,
            removal_reported_by: RefCell::default(),
            stopping: Cell::new(false),
        }
    }

    /// Writes a log line.
    pub(crate) fn log(&self, level: Level, message: &str, fields: &[(&str, Field<'_>)]) {
        (self.log)(level, message, fields);
    }

    /// Writes a log line about a peer.
    pub(crate) fn log_peer(&self, level: Level, message: &str, peer: u64, detail: &str) {
        let id = format!("{peer:x}");
        let fields = [("remote-peer-id", Field::Text(&id)), ("detail", Field::Text(detail))];
        self.log(level, message, if detail.is_empty() { &fields[..1] } else { &fields });
    }

    /// Reports that messages to a peer were lost, unless this member is stopping.
    pub(crate) fn report_unreachable(&self, id: u64) {
        if !self.stopping.get() {
            self.handler.unreachable(id);
        }
    }

    /// Reports that this member was removed from the cluster, according to the peer `by`. The first report of each
    /// peer is logged.
    pub(crate) fn report_removal(&self, by: u64) {
        let mut reported_by = self.removal_reported_by.borrow_mut();
        let is_new = reported_by.len() < REPORTERS_MAX && reported_by.insert(by);
        drop(reported_by);
        if is_new {
            self.log_peer(
                Level::Error,
                "a peer reports that this member was removed from the cluster",
                by,
                "",
            );
        }
        self.handler.removed(by);
    }

    /// Records that the peer thread ends. From now on, dropped messages are not reported as lost.
    pub(crate) fn stop(&self) {
        self.stopping.set(true);
    }

    /// Closes the TLS connections whose peers are no longer trusted.
    pub(crate) fn check_sessions(&self) {
        self.client.dialer.sessions.end_untrusted(|finding, remote, refusal| {
            let error = refusal.to_string();
            let fields = [("remote-addr", Field::Text(remote)), ("error", Field::Text(&error))];
            let (level, text) = match finding {
                Finding::Closed => (Level::Warn, "closed a TLS connection between members"),
                Finding::Expired => (
                    Level::Error,
                    "the certificate of a connected member has expired; its open connections stay, but new \
                     ones are refused; replace the certificate",
                ),
            };
            self.log(level, text, &fields);
        });
    }
}
