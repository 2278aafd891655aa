//! Serves one connection of a browser, from its handshake to its end: [`serve`]. The requests are answered by
//! [`Service::answer`].

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use rustls::ServerConnection;
use stdx::race;
use telemetry::logging::Value;
use tls::{ServerTls, Session};
use tokio::time::{Instant, Sleep, sleep_until, timeout};
use transport::{Clock, Ending, Stream, Wire};

use crate::body::BodyError;
use crate::listener_settings::ListenerSettings;
use crate::response_body::AnswerBody;
use crate::service::Service;
use crate::slots::Slot;
use crate::socket::{SharedSocket, Socket, TLS_BUFFERS};

/// Interval between two checks whether the client certificate of a connection has expired.
const CERTIFICATE_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Marks a request as in flight until it is dropped.
struct RequestGuard(Rc<Slot>);

impl RequestGuard {
    fn begin(slot: &Rc<Slot>, body_until: Instant) -> RequestGuard {
        slot.state.begin(body_until);
        RequestGuard(Rc::clone(slot))
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.state.end();
        self.0.mark_idle();
    }
}

/// The body of a response. The request counts as in flight until this body is dropped.
struct GuardedBody {
    body: AnswerBody,
    _guard: RequestGuard,
}

impl Body for GuardedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Serves a connection until it ends, must give its slot to a new connection, or its certificate is no longer
/// valid.
pub(crate) async fn serve(
    stream: Stream,
    settings: Rc<ListenerSettings>,
    service: Rc<Service>,
    slot: Rc<Slot>,
) {
    let limits = service.dialer.limits;
    let evicted = poll_fn(|cx| poll_evicted(&slot, cx));
    let secured = match &settings.tls {
        None => Ok((Wire::Plain(stream), None)),
        Some(tls) => {
            service.dialer.files.reload_changed();
            let shaken = timeout(tls::HANDSHAKE_TIMEOUT, shake_hands(stream, tls));
            match race(shaken, evicted).await {
                stdx::First::Left(shaken) => {
                    shaken.unwrap_or_else(|_| Err("the handshake took too long".to_owned()))
                }
                stdx::First::Right(()) => return,
            }
        }
    };
    let (wire, session) = match secured {
        Ok(secured) => secured,
        Err(why) => {
            let error = ("error", Value::Str(&why));
            service.logger.warn_of_strangers("rejected connection on console endpoint", &[error]);
            return;
        }
    };
    let socket = Rc::new(RefCell::new(Socket::new(wire, limits.buffer_bytes, limits.stall_timeout)));
    let (own_service, own_slot, own_settings) = (Rc::clone(&service), Rc::clone(&slot), Rc::clone(&settings));
    let answer = hyper::service::service_fn(move |request: Request<Incoming>| {
        let (service, slot, settings) =
            (Rc::clone(&own_service), Rc::clone(&own_slot), Rc::clone(&own_settings));
        async move {
            let guard = RequestGuard::begin(&slot, Instant::now() + limits.body_timeout);
            if request.body().is_end_stream() {
                slot.state.body_arrived();
            }
            let state = Rc::clone(&slot.state);
            let response = service.answer(request, &settings, state).await;
            Ok::<_, Infallible>(response.map(|body| GuardedBody { body, _guard: guard }))
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(Clock)
        .max_buf_size(limits.buffer_bytes)
        .header_read_timeout(limits.head_timeout)
        .serve_connection(SharedSocket(Rc::clone(&socket)), answer);
    let mut body_timer: Option<Pin<Box<Sleep>>> = None;
    let ended = poll_fn(|cx| {
        if poll_evicted(&slot, cx).is_ready() {
            return Poll::Ready(());
        }
        let state = &slot.state;
        if !state.has_request() {
            body_timer = None;
            return Poll::Pending;
        }
        match state.body_until() {
            // Read ahead while the response is being sent, to notice that the browser has disconnected. hyper
            // itself reads at most the first bytes of the next request.
            None => socket.borrow_mut().poll_ahead(cx),
            Some(until) => {
                let timer = body_timer.get_or_insert_with(|| Box::pin(sleep_until(until)));
                if timer.deadline() != until {
                    timer.as_mut().reset(until);
                }
                timer.as_mut().poll(cx)
            }
        }
    });
    let expelled = expelled(settings.tls.as_ref(), session, service.reloaded.clone());
    // Ignore the result: an error concerns only the client of this connection.
    let _ = race(pin!(connection), race(ended, expelled)).await;
}

fn poll_evicted(slot: &Slot, cx: &Context<'_>) -> Poll<()> {
    slot.state.wake_on_change(cx);
    if slot.state.is_evicted() { Poll::Ready(()) } else { Poll::Pending }
}

type TlsWire = (Wire<Stream>, Option<Session>);

/// Performs the TLS handshake. Offers only HTTP/1.1, even if other listeners with the same TLS files offer
/// HTTP/2 too.
async fn shake_hands(stream: Stream, tls: &ServerTls) -> Result<TlsWire, String> {
    let mut config = rustls::ServerConfig::clone(&tls.config());
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let secured = async {
        let connection = ServerConnection::new(config.into()).map_err(io::Error::other)?;
        // Accept the end of a TLS connection without `close_notify`: HTTP itself shows whether a message is
        // complete.
        transport::accept(stream, connection, TLS_BUFFERS, Ending::Any).await
    };
    let stream = secured.await.map_err(|error| error.to_string())?;
    let chain = stream.connection().peer_certificates();
    let session = tls.admit(chain).map_err(|refusal| refusal.to_string())?;
    Ok((Wire::Tls(Box::new(stream)), Some(session)))
}

/// Resolves when the browser must be disconnected, because its certificate has expired, or because TLS files
/// were reloaded and no longer admit the certificate.
async fn expelled(
    tls: Option<&ServerTls>,
    session: Option<Session>,
    mut reloaded: tokio::sync::watch::Receiver<()>,
) {
    let (Some(tls), Some(session)) = (tls, session) else { return std::future::pending().await };
    // A session without a client certificate cannot expire, so it is checked only after a reload.
    let has_certificate = session.not_after().is_some();
    loop {
        let due = async {
            match has_certificate {
                true => tokio::time::sleep(CERTIFICATE_CHECK_INTERVAL).await,
                false => std::future::pending().await,
            }
        };
        if let stdx::First::Left(Err(_)) = race(reloaded.changed(), due).await {
            // The sender was dropped, so there will be no more reloads.
            return std::future::pending().await;
        }
        if tls.still_valid(&session).is_err() {
            return;
        }
    }
}
