//! Accepts connections of other members and clients: [`Server`] performs their TLS handshakes and limits
//! their number. `routes` answers their requests.

use std::cell::Cell;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stdx::race;

use tls::{PeerNames, ServerTls, SystemResolver};
use tokio::sync::Semaphore;
use transport::{Clock, Stream};

use crate::acceptor::Acceptor;
use crate::fair_stream::FairStream;
use crate::handshakes::{Failure, LOOK_UPS_MAX, Rejection, SharedResolver};
use crate::hub::Hub;
use crate::local_member::LocalMember;
use crate::options::{CONNECTIONS_MAX, Field, Level, REJECTIONS_SAID_MAX};
use crate::routes;
use crate::sessions::Side;
use crate::slots::{ConnectionSlot, ConnectionSlots};
use crate::socket::Socket;

/// Pause after a failed accept, for example when no file descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Rate limit for log lines about rejected connections.
#[derive(Clone, Copy, Default)]
struct RejectionLimit {
    second: Option<Instant>,
    said: u32,
    left_out: u64,
}

impl RejectionLimit {
    /// Counts a rejection. Returns `None` if this rejection must not be logged; otherwise the number of
    /// rejections that were not logged since the last logged one.
    fn note(&mut self, now: Instant) -> Option<u64> {
        if self.second.is_none_or(|second| now.duration_since(second) >= Duration::from_secs(1)) {
            self.second = Some(now);
            self.said = 0;
        }
        if self.said == REJECTIONS_SAID_MAX {
            self.left_out += 1;
            return None;
        }
        self.said += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

/// Serves the connections of all peer listeners.
pub(crate) struct Server {
    hub: Rc<Hub>,
    local: Rc<LocalMember>,
    slots: ConnectionSlots,
    /// Resolver for the names in clients' certificates.
    resolver: SharedResolver,
    look_ups: Arc<Semaphore>,
    rejections: Cell<RejectionLimit>,
    /// Time of the last log line about too many connections.
    crowded: Cell<Option<Instant>>,
}

impl Server {
    pub(crate) fn new(hub: Rc<Hub>) -> Server {
        Server {
            local: Rc::clone(&hub.local),
            hub,
            slots: ConnectionSlots::new(CONNECTIONS_MAX),
            resolver: Arc::new(SystemResolver),
            look_ups: Arc::new(Semaphore::new(LOOK_UPS_MAX)),
            rejections: Cell::default(),
            crowded: Cell::new(None),
        }
    }

    /// Accepts the connections of a listener and serves each in a separate task. Runs until the task is
    /// aborted.
    pub(crate) async fn run(self: Rc<Self>, listener: Acceptor) {
        loop {
            match listener.accept().await {
                Ok((stream, from)) => match self.slots.take(from.map(|from| from.ip().to_canonical())) {
                    Some((slot, made_way)) => {
                        if made_way {
                            self.log_crowded(
                                "closed a connection of an unidentified peer: too many are open",
                            );
                        }
                        let (server, tls) = (Rc::clone(&self), listener.tls.clone());
                        tokio::task::spawn_local(async move {
                            race(server.serve(&slot, stream, from, tls), slot.cut.notified()).await;
                            server.slots.leave(&slot);
                        });
                    }
                    None => self.log_crowded("closed a connection: too many are open"),
                },
                Err(error) => {
                    self.local.log(
                        Level::Warn,
                        "cannot accept a connection",
                        &[("error", Field::Text(&error.to_string()))],
                    );
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn serve(
        &self,
        slot: &Rc<ConnectionSlot>,
        stream: Stream,
        from: Option<SocketAddr>,
        tls: Option<ServerTls>,
    ) {
        let socket = match (tls, from) {
            (Some(tls), Some(from)) => self.shake_hands(slot, stream, from, tls).await,
            (None, _) => FairStream::new(stream, self.local.write_timeout).map(Socket::plain),
            // TLS on a Unix socket. Does not happen, because `Acceptor::new` refuses it: the client has no
            // address with which its certificate could be compared.
            (Some(_), None) => return,
        };
        // On an error the connection is closed. A failed handshake was already logged.
        if let Ok(socket) = socket {
            answer_requests(&self.hub, slot, socket).await;
        }
    }

    /// Performs the TLS handshake of an accepted connection. If the handshake fails or the client is not
    /// admitted, this is logged and an error is returned.
    async fn shake_hands(
        &self,
        slot: &Rc<ConnectionSlot>,
        stream: Stream,
        from: SocketAddr,
        tls: ServerTls,
    ) -> io::Result<Socket> {
        let stream = stream.detach()?;
        let Some(handshakes) = &self.local.client.dialer.handshakes else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let (resolver, look_ups) = (Arc::clone(&self.resolver), Arc::clone(&self.look_ups));
        let met =
            handshakes.accept(stream, from, tls.clone(), self.local.write_timeout, resolver, look_ups).await;
        let met = met.map_err(|rejected| {
            self.log_rejection(from, &rejected);
            rejected.failure
        })?;
        slot.is_verified.set(met.session.not_after().is_some());
        let (wire, session) = met.attach(self.local.write_timeout)?;
        let side = Side::Accepted(tls, Rc::clone(slot));
        let watched =
            self.local.client.dialer.sessions.watch(side, session, from.to_string()).map_err(|refusal| {
                let failure = Failure::Refused(refusal);
                self.log_rejection(from, &Rejection { failure, server_name: String::new(), names: None });
                io::ErrorKind::PermissionDenied
            })?;
        Ok(Socket::secured(wire, watched))
    }

    /// Logs that connections are closed because there are too many, at most once a second.
    fn log_crowded(&self, text: &str) {
        let now = Instant::now();
        if self.crowded.get().is_none_or(|at| now.duration_since(at) >= Duration::from_secs(1)) {
            self.crowded.set(Some(now));
            self.local.log(Level::Warn, text, &[]);
        }
    }

    /// Reports a rejected connection to the handler, and logs it with etcd's message. Logs at most a few per
    /// second; further ones are only counted.
    fn log_rejection(&self, from: SocketAddr, rejected: &Rejection) {
        self.local.handler.rejected();
        // Port probes, which connect and send nothing, are logged at level debug, as in etcd. They would
        // otherwise fill the log.
        let is_probe = rejected.failure.is_end_of_file();
        let left_out = if is_probe {
            0
        } else {
            let mut rejections = self.rejections.get();
            let left_out = rejections.note(Instant::now());
            self.rejections.set(rejections);
            let Some(left_out) = left_out else { return };
            left_out
        };
        let (from, error, left_out) = (from.to_string(), rejected.failure.to_string(), left_out.to_string());
        let mut fields =
            vec![("remote-addr", Field::Text(&from)), ("server-name", Field::Text(&rejected.server_name))];
        let PeerNames { ip_addresses, dns_names } = rejected.names.clone().unwrap_or_default();
        let ip_addresses: Vec<String> = ip_addresses.iter().map(IpAddr::to_string).collect();
        let ip_addresses: Vec<&str> = ip_addresses.iter().map(String::as_str).collect();
        let dns_names: Vec<&str> = dns_names.iter().map(String::as_str).collect();
        if rejected.names.is_some() {
            fields.push(("ip-addresses", Field::List(&ip_addresses)));
            fields.push(("dns-names", Field::List(&dns_names)));
        }
        fields.push(("error", Field::Text(&error)));
        if left_out != "0" {
            fields.push(("rejections-left-out", Field::Text(&left_out)));
        }
        let level = if is_probe { Level::Debug } else { Level::Warn };
        self.local.log(level, "rejected connection on peer endpoint", &fields);
    }
}

/// Answers the requests of one connection until it ends.
pub(crate) async fn answer_requests(
    hub: &Rc<Hub>,
    slot: &Rc<ConnectionSlot>,
    socket: impl hyper::rt::Read + hyper::rt::Write + Unpin + 'static,
) {
    let answer = hyper::service::service_fn(|request| {
        let (hub, slot) = (Rc::clone(hub), Rc::clone(slot));
        async move { Ok::<_, Infallible>(routes::answer(hub, &slot, request).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(Clock)
        .header_read_timeout(hub.local.read_timeout)
        .title_case_headers(true)
        .serve_connection(socket, answer);
    // The error is ignored, because a broken connection also ends the stream or the snapshot on it, which is
    // reported there.
    let _ = connection.await;
}
