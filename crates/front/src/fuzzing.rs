//! Lets fuzzers serve one connection over any byte stream, plain or with TLS, without threads, listeners and
//! sockets.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use api::Status;
use bytes::Bytes;
use rustls::ServerConnection;
use slab::Slab;
use stdx::{First, race};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use transport::Ending;

use crate::admissions::{Admission, Admissions};
use crate::assembler::Assembler;
use crate::clock::Clock;
use crate::closing::Closing;
use crate::drains::Departures;
use crate::handshakes::{ConnectionEnds, Failure, Quota, begin, poll_done};
use crate::long_turns::LongTurns;
use crate::rejections::Rejections;
use crate::shard;
use crate::shard_state::ShardState;
use crate::socket::{SocketShared, Wire};
use crate::turnstile::Turnstile;
use crate::{Options, Origin, Protocols, Service, connection};
use accounting::{Budget, ShardCounters};

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Serves one connection, HTTP/1 or HTTP/2, until it ends. Must be called within a `LocalSet`.
///
/// # Errors
///
/// Returns the error that ended the connection.
pub async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    options: Options,
    service: Rc<dyn Service>,
) -> io::Result<()> {
    let state = state(options, LongTurns::open());
    serve_on(Wire::Plain(stream), Origin::plain(SocketAddr::from((PEER, 1))), None, state, service).await
}

/// Serves one connection like [`serve`], on a shard that never grants this connection a long turn after its
/// first.
///
/// # Errors
///
/// Returns the error that ended the connection.
pub async fn serve_where_others_go_first(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    options: Options,
    service: Rc<dyn Service>,
) -> io::Result<()> {
    // No task runs `LongTurns::keep`, so no connection in the queue for long turns is ever granted one.
    let state = state(options, LongTurns::default());
    serve_on(Wire::Plain(stream), Origin::plain(SocketAddr::from((PEER, 1))), None, state, service).await
}

fn state(options: Options, long_turns: LongTurns) -> Rc<ShardState> {
    let options = Arc::new(options);
    let counters = Arc::new(ShardCounters::new(options.methods).with_zones(options.zones.names().len()));
    Rc::new(ShardState {
        http2: Arc::new(connection::engine_options(&options)),
        options: options.clone(),
        sockets: SocketShared::new(&options, &counters),
        closing: Cell::new(false),
        connections: RefCell::new(Slab::new()),
        clock: Clock::default(),
        departures: Departures::default(),
        admissions: Rc::new(Admissions::new(Arc::new(Rejections::new(options.rejected.clone())))),
        turnstile: Turnstile::open(),
        long_turns,
        counters,
    })
}

async fn serve_on<S: AsyncRead + AsyncWrite + Unpin + 'static>(
    wire: Wire<S>,
    origin: Origin,
    admission: Option<Admission>,
    state: Rc<ShardState>,
    service: Rc<dyn Service>,
) -> io::Result<()> {
    let (_close, closing) = Closing::by_hand();
    let serving = shard::serve(wire, origin, admission, state.clone(), service, closing);
    match race(serving, state.clock.keep(&state.connections)).await {
        First::Left(result) => result,
        First::Right(never) => match never {},
    }
}

/// Connection whose client was admitted by TLS.
pub struct Secure<S> {
    wire: Wire<S>,
    admission: Admission,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Secure<S> {
    /// Performs the handshake, and hands the connection over, like the handshake threads do.
    ///
    /// # Errors
    ///
    /// Returns the reason why the client is not admitted, as it appears in the log. A TLS alert was sent to
    /// the client.
    pub async fn meet(stream: S, listener: &tls::ServerTls) -> Result<Secure<S>, String> {
        let connection = ServerConnection::new(listener.config()).map_err(|error| error.to_string())?;
        let mut handshake = begin(stream, connection);
        let mut share = Quota::new(&Budget::new(64 * 1024 * 1024)).share(PEER).ok_or("no room")?;
        let met = async {
            poll_fn(|cx| poll_done(&mut handshake, cx, &mut share)).await?;
            listener.admit(handshake.tls.peer_certificates()).map_err(Failure::Refused)
        };
        match met.await {
            Ok(session) => {
                let stream = handshake.into_stream(Rc::default(), Ending::Any);
                let admission = Admission { tls: listener.clone(), session };
                Ok(Secure { wire: Wire::Tls(Box::new(stream)), admission })
            }
            Err(failure) => {
                let _ = poll_fn(|cx| handshake.poll_flush(cx)).await;
                Err(failure.text(&ConnectionEnds { local: None, peer: SocketAddr::from((PEER, 1)) }))
            }
        }
    }

    /// Returns the common name of the client's certificate.
    pub fn common_name(&self) -> Option<&str> {
        self.admission.session.common_name()
    }

    /// Reads decrypted bytes of the client, as the socket of a connection would do next.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.wire).poll_read(cx, into)
    }

    /// Serves the connection like [`serve`].
    ///
    /// # Errors
    ///
    /// Returns the error that ended the connection.
    pub async fn serve(self, options: Options, service: Rc<dyn Service>) -> io::Result<()>
    where
        S: 'static,
    {
        let name = self.common_name().map(Arc::from);
        let peer = SocketAddr::from((PEER, 1));
        let origin = Origin { peer, common_name: name, is_tls: true, serves: Protocols::All };
        serve_on(self.wire, origin, Some(self.admission), state(options, LongTurns::open()), service).await
    }
}

/// Cuts payloads into messages. Returns the messages, and the result: the status of an invalid message, or
/// true if the last message is incomplete.
pub fn messages<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    bytes_max: usize,
    gzip: bool,
) -> (Vec<Bytes>, Result<bool, Status>) {
    let (mut assembler, mut messages) = (Assembler::new(bytes_max, gzip), Vec::new());
    for piece in pieces {
        let mut piece = piece;
        loop {
            match assembler.cut(&mut piece, &mut 0) {
                Ok(Some(assembled)) => messages.push(assembled.message),
                Ok(None) => break,
                Err(status) => return (messages, Err(status)),
            }
        }
    }
    (messages, Ok(assembler.is_mid_message()))
}
