//! Performs TLS handshakes on a separate thread: [`Handshakes`]. A handshake takes milliseconds of processor
//! time, a hostile one even tens of milliseconds. On the peer thread it would delay raft's heartbeats for
//! this time.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::{ClientConnection, Connection, ServerConnection};
use tls::{
    AddressCheck, ClientTls, HANDSHAKE_TIMEOUT, LookUp, PeerNames, Question, Refusal, Resolver, ServerTls,
    Session,
};
use tokio::sync::Semaphore;
use transport::{
    Detached, Ending, Handshake, HandshakeError, HandshakeThread, RECORD_COST, Received, Records,
    ThreadBuffers, TlsStream, Wire, before_deadline,
};

use crate::fair_stream::FairStream;
use crate::origin::Origin;

/// Maximum number of bytes that are read from a socket with one call.
const READ_BYTES: usize = 128 * 1024;
/// Maximum number of bytes that are encrypted before they are written to the socket.
const WRITE_BYTES: usize = 128 * 1024;

/// Maximum number of concurrent name look-ups, each of which blocks a thread.
pub(crate) const LOOK_UPS_MAX: usize = 8;

/// Resolver for the names in certificates, which several threads share.
pub(crate) type SharedResolver = Arc<dyn Resolver + Send + Sync>;

/// Reason why a connection is not opened or not accepted.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The connection broke.
    Io(io::Error),
    /// The handshake failed, because one end refused the other or violated the protocol.
    Handshake(rustls::Error),
    /// The handshake succeeded, but this member does not admit the other end, for example because of its
    /// certificate.
    Refused(Refusal),
    /// The handshake took too long.
    TimedOut,
    /// The handshake thread cannot be started.
    NoThread(io::Error),
}

impl Failure {
    /// Returns true if the other end closed the connection before or during the handshake.
    pub(crate) fn is_end_of_file(&self) -> bool {
        matches!(self, Failure::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof)
    }
}

impl From<HandshakeError> for Failure {
    fn from(error: HandshakeError) -> Failure {
        match error {
            HandshakeError::EndOfFile | HandshakeError::Closed => {
                Failure::Io(io::ErrorKind::UnexpectedEof.into())
            }
            HandshakeError::Io(error) => Failure::Io(error),
            HandshakeError::Tls(error) => Failure::Handshake(error),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Io(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // This is Go's message for a connection that the other end closed. etcd logs it, so tools that
            // read the log know it.
            failure if failure.is_end_of_file() => f.write_str("EOF"),
            Failure::Io(error) => error.fmt(f),
            Failure::Handshake(error) => f.write_str(&tls::explain(error)),
            Failure::Refused(refusal) => refusal.fmt(f),
            Failure::TimedOut => f.write_str("TLS handshake timeout"),
            Failure::NoThread(error) => write!(f, "cannot start the handshake thread: {error}"),
        }
    }
}

impl From<Failure> for io::Error {
    fn from(failure: Failure) -> io::Error {
        match failure {
            Failure::Io(error) => error,
            Failure::TimedOut => io::Error::new(io::ErrorKind::TimedOut, failure.to_string()),
            failure => io::Error::other(failure.to_string()),
        }
    }
}

/// TLS connection after its handshake, whose other end was admitted. It belongs to no event loop yet.
pub(crate) struct SecureConnection {
    stream: Detached,
    tls: Connection,
    records: Records,
    pub(crate) session: Session,
}

impl SecureConnection {
    fn new(handshake: Handshake<FairStream>, session: Session) -> io::Result<SecureConnection> {
        let Handshake { stream, tls, records, .. } = handshake;
        Ok(SecureConnection { stream: stream.detach()?, tls, records, session })
    }

    /// Registers the connection in this thread's event loop. Returns it with the session.
    ///
    /// # Errors
    ///
    /// Returns the error of the operating system if the socket cannot be registered or configured.
    pub(crate) fn attach(self, write_timeout: Duration) -> io::Result<(Wire<FairStream>, Session)> {
        let stream = FairStream::new(self.stream.attach()?, write_timeout)?;
        let stream =
            TlsStream::new(stream, self.tls, self.records, ThreadBuffers(READ_BYTES), Ending::Announced);
        Ok((Wire::Tls(Box::new(stream)), self.session))
    }
}

/// Facts about a rejected connection, for the log.
#[derive(Debug)]
pub(crate) struct Rejection {
    pub(crate) failure: Failure,
    /// Server name that the client asked for (SNI).
    pub(crate) server_name: String,
    /// Names in the certificate that the client presented.
    pub(crate) names: Option<PeerNames>,
}

/// Handle of the handshake thread. The thread is started for the first handshake, and ends when the handle is
/// dropped.
///
/// The number of queued handshakes is not limited here, because the callers limit it: an accepted connection
/// already holds a connection slot, and few dials to one member run concurrently. The thread serves the
/// client addresses in turn, so that one address does not delay the others for long.
#[derive(Default)]
pub(crate) struct Handshakes {
    thread: RefCell<Option<HandshakeThread<Origin>>>,
}

impl Handshakes {
    fn thread(&self) -> io::Result<HandshakeThread<Origin>> {
        let mut thread = self.thread.borrow_mut();
        if let Some(thread) = &*thread {
            return Ok(thread.clone());
        }
        // The join handle is dropped, because the thread ends by itself when its `HandshakeThread` handles
        // are dropped.
        let (started, _) =
            HandshakeThread::start("peer-tls".to_owned(), LOOK_UPS_MAX, std::future::pending())?;
        *thread = Some(started.clone());
        Ok(started)
    }

    /// Runs a future on the handshake thread and returns its result. If the caller stops waiting, the future
    /// is dropped.
    async fn run<T: Send + 'static, F: Future<Output = T> + 'static>(
        &self,
        origin: Origin,
        work: impl FnOnce() -> F + Send + 'static,
    ) -> io::Result<T> {
        self.thread()?.run(origin, work).await
    }

    /// Performs the handshake with a client at `from` on the handshake thread, and checks that the client may
    /// connect.
    pub(crate) async fn accept(
        &self,
        stream: Detached,
        from: SocketAddr,
        tls: ServerTls,
        write_timeout: Duration,
        resolver: SharedResolver,
        look_ups: Arc<Semaphore>,
    ) -> Result<SecureConnection, Rejection> {
        let work = move || async move {
            let mut shown = (String::new(), None);
            let accepted = accept(stream, from, &tls, write_timeout, &resolver, &look_ups, &mut shown);
            in_time(accepted).await.map_err(|failure| Rejection {
                failure,
                server_name: shown.0,
                names: shown.1,
            })
        };
        match self.run(Origin::of(from.ip()), work).await {
            Ok(accepted) => accepted,
            Err(error) => {
                Err(Rejection { failure: Failure::NoThread(error), server_name: String::new(), names: None })
            }
        }
    }

    /// Performs the handshake with a member at `host` on the handshake thread, and checks the member's
    /// certificate.
    pub(crate) async fn connect(
        &self,
        stream: Detached,
        host: String,
        tls: ClientTls,
        write_timeout: Duration,
    ) -> Result<SecureConnection, Failure> {
        let work = move || async move { connect(stream, &host, &tls, write_timeout).await };
        match self.run(Origin::Own, work).await {
            Ok(connected) => connected,
            Err(error) => Err(Failure::NoThread(error)),
        }
    }
}

/// Server name (SNI) and certificate names that a client presented before it was rejected.
type Shown = (String, Option<PeerNames>);

async fn accept(
    stream: Detached,
    from: SocketAddr,
    tls: &ServerTls,
    write_timeout: Duration,
    resolver: &SharedResolver,
    look_ups: &Arc<Semaphore>,
    shown: &mut Shown,
) -> Result<SecureConnection, Failure> {
    let stream = FairStream::new(stream.attach()?, write_timeout)?;
    let connection = ServerConnection::new(tls.config()).map_err(Failure::Handshake)?;
    let mut handshake = Handshake::new(stream, connection, WRITE_BYTES);
    let done = handshake.run(count_records).await;
    shown.0 = handshake.server_name().unwrap_or_default().to_owned();
    done?;
    match let_in(&handshake.tls, from.ip(), tls, resolver, look_ups).await {
        Ok(session) => Ok(SecureConnection::new(handshake, session)?),
        Err(refusal) => {
            shown.1 = PeerNames::of(handshake.tls.peer_certificates());
            handshake.close().await;
            Err(Failure::Refused(refusal))
        }
    }
}

/// Counts some additional bytes as read for each received TLS record. Small records are expensive to process
/// for their size, so a connection that receives many of them lets others proceed earlier.
fn count_records(stream: &mut FairStream, received: Received<'_>) {
    stream.count_as_read(RECORD_COST * received.records);
}

async fn let_in(
    connection: &Connection,
    from: IpAddr,
    tls: &ServerTls,
    resolver: &SharedResolver,
    look_ups: &Arc<Semaphore>,
) -> Result<Session, Refusal> {
    let session = tls.admit(connection.peer_certificates())?;
    match tls.check_address(connection.peer_certificates(), from) {
        AddressCheck::Passed => Ok(session),
        AddressCheck::Refused(refusal) => Err(refusal),
        AddressCheck::Ask(look_up) => resolve(look_up, resolver, look_ups).await.map(|()| session),
    }
}

/// Answers the name look-ups that a check of a certificate requires, one after the other. If the caller stops
/// waiting, no further look-up begins.
async fn resolve(
    mut look_up: LookUp,
    resolver: &SharedResolver,
    look_ups: &Arc<Semaphore>,
) -> Result<(), Refusal> {
    while let Some(question) = look_up.question() {
        look_up.answer(ask(question, resolver, look_ups).await);
    }
    look_up.outcome()
}

/// Performs one name look-up on a blocking thread. Its permit is held until the look-up ends, even if the
/// caller stops waiting. Otherwise look-ups would accumulate while name servers do not answer.
async fn ask(
    question: Question,
    resolver: &SharedResolver,
    look_ups: &Arc<Semaphore>,
) -> Result<Vec<String>, String> {
    let permit = Arc::clone(look_ups).acquire_owned().await.map_err(|error| error.to_string())?;
    let resolver = Arc::clone(resolver);
    let answer = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        match question {
            Question::Names(address) => resolver.names(address),
            Question::Addresses(name) => {
                let addresses = resolver.addresses(&name)?;
                Ok(addresses.iter().map(IpAddr::to_string).collect())
            }
        }
    });
    answer.await.unwrap_or_else(|error| Err(error.to_string()))
}

/// Performs the handshake with a server, on the current thread.
pub(crate) async fn connect(
    stream: Detached,
    host: &str,
    tls: &ClientTls,
    write_timeout: Duration,
) -> Result<SecureConnection, Failure> {
    let attempt = async {
        let name = tls.server_name(host).map_err(Failure::Refused)?;
        let stream = FairStream::new(stream.attach()?, write_timeout)?;
        let connection = ClientConnection::new(tls.config(), name).map_err(Failure::Handshake)?;
        let mut handshake = Handshake::new(stream, connection, WRITE_BYTES);
        handshake.run(count_records).await?;
        match tls.admit(handshake.tls.peer_certificates()) {
            Ok(session) => Ok(SecureConnection::new(handshake, session)?),
            Err(refusal) => {
                handshake.close().await;
                Err(Failure::Refused(refusal))
            }
        }
    };
    in_time(attempt).await
}

/// Runs a handshake, which fails with [`Failure::TimedOut`] if it takes too long.
async fn in_time<T>(handshake: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
    before_deadline(deadline, handshake).await.unwrap_or(Err(Failure::TimedOut))
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::net::Ipv4Addr;
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::task::Poll;

    use super::*;

    /// Resolver that reports each question and answers it when allowed.
    struct Slow {
        asked: Mutex<Sender<()>>,
        answers: Mutex<Receiver<()>>,
    }

    impl Resolver for Slow {
        fn names(&self, _: IpAddr) -> Result<Vec<String>, String> {
            let _ = self.asked.lock().unwrap().send(());
            let _ = self.answers.lock().unwrap().recv();
            Ok(Vec::new())
        }

        fn addresses(&self, _: &str) -> Result<Vec<IpAddr>, String> {
            Ok(Vec::new())
        }
    }

    #[test]
    fn look_ups_keep_their_places_when_nobody_waits_for_them() {
        let (asked, was_asked) = channel();
        let (answer, answers) = channel();
        let resolver: SharedResolver =
            Arc::new(Slow { asked: Mutex::new(asked), answers: Mutex::new(answers) });
        let look_ups = Arc::new(Semaphore::new(2));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let question = || Question::Names(Ipv4Addr::LOCALHOST.into());
        runtime.block_on(async {
            for _ in 0..10 {
                let mut asking = Box::pin(ask(question(), &resolver, &look_ups));
                poll_fn(|cx| {
                    let _ = asking.as_mut().poll(cx);
                    Poll::Ready(())
                })
                .await;
            }
        });
        assert_eq!(look_ups.available_permits(), 0, "two are under way");
        drop(answer);
        let last = runtime.block_on(ask(question(), &resolver, &look_ups));
        assert_eq!(last, Ok(Vec::new()));
        // The channel ends when all look-ups have ended.
        drop(resolver);
        assert_eq!(was_asked.iter().count(), 3, "the others were never asked");
    }
}
