use std::cell::RefCell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::InvalidHeaderValue;
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use tokio::task::AbortHandle;

use crate::body::Body;
use crate::dialer::Dialer;
use crate::endpoint::Endpoint;
use crate::error::ExchangeError;
use crate::options::{ANSWER_BYTES_MAX, DIAL_TIMEOUT, IDLE_CONNECTIONS_MAX, IDLE_MAX};

/// Sends single requests over connections that are kept for a while. Must be used within a `LocalSet`.
pub(crate) struct Client {
    pub(crate) dialer: Dialer,
    idle: RefCell<HashMap<Endpoint, Vec<Idle>>>,
}

struct Idle {
    sender: SendRequest<Body>,
    since: Instant,
}

impl Client {
    pub(crate) fn new(dialer: Dialer) -> Client {
        Client { dialer, idle: RefCell::default() }
    }

    /// Sends a request whose URI is a path, and returns the whole answer, whatever its status.
    pub(crate) async fn exchange(
        &self,
        endpoint: &Endpoint,
        request: Request<Bytes>,
        timeout: Duration,
    ) -> Result<Response<Bytes>, ExchangeError> {
        match tokio::time::timeout(timeout, self.attempt(endpoint, request.map(Body::from), timeout)).await {
            Ok(answer) => answer,
            Err(_) => Err(ExchangeError::TimedOut(timeout)),
        }
    }

    async fn attempt(
        &self,
        endpoint: &Endpoint,
        mut request: Request<Body>,
        timeout: Duration,
    ) -> Result<Response<Bytes>, ExchangeError> {
        name_host(&mut request, endpoint)?;
        while let Some(mut sender) = self.take_idle(endpoint) {
            match sender.try_send_request(request).await {
                Ok(answer) => return self.collect(endpoint, sender, answer).await,
                // The server closed the connection before it took the request, so hyper returns the request.
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(error.into_error().into()),
                },
            }
        }
        let (mut sender, _) = dial(&self.dialer, endpoint, timeout).await?;
        let answer = sender.send_request(request).await?;
        self.collect(endpoint, sender, answer).await
    }

    async fn collect(
        &self,
        endpoint: &Endpoint,
        sender: SendRequest<Body>,
        answer: Response<Incoming>,
    ) -> Result<Response<Bytes>, ExchangeError> {
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(ExchangeError::BrokenOff)?.to_bytes();
        if !sender.is_closed() {
            self.keep(endpoint, sender);
        }
        Ok(Response::from_parts(head, body))
    }

    fn keep(&self, endpoint: &Endpoint, sender: SendRequest<Body>) {
        let mut idle = self.idle.borrow_mut();
        let kept = idle.entry(endpoint.clone()).or_default();
        if kept.len() < IDLE_CONNECTIONS_MAX {
            kept.push(Idle { sender, since: Instant::now() });
        }
    }

    fn take_idle(&self, endpoint: &Endpoint) -> Option<SendRequest<Body>> {
        let mut idle = self.idle.borrow_mut();
        let kept = idle.get_mut(endpoint)?;
        while let Some(Idle { sender, since }) = kept.pop() {
            if since.elapsed() < IDLE_MAX && sender.is_ready() {
                return Some(sender);
            }
        }
        None
    }

    /// Closes connections that were idle for too long.
    pub(crate) fn sweep(&self) {
        let mut idle = self.idle.borrow_mut();
        idle.retain(|_, kept| {
            kept.retain(|idle| idle.since.elapsed() < IDLE_MAX && !idle.sender.is_closed());
            !kept.is_empty()
        });
    }
}

/// Sets the `Host` header, which HTTP/1.1 requires.
pub(crate) fn name_host<B>(request: &mut Request<B>, endpoint: &Endpoint) -> Result<(), InvalidHeaderValue> {
    let host = HeaderValue::from_str(&endpoint.authority)?;
    request.headers_mut().insert(http::header::HOST, host);
    Ok(())
}

/// Opens a connection and runs it in a task, until its last handle is dropped or it is aborted.
pub(crate) async fn dial(
    dialer: &Dialer,
    endpoint: &Endpoint,
    write_timeout: Duration,
) -> Result<(SendRequest<Body>, AbortHandle), ExchangeError> {
    let socket =
        dialer.connect(endpoint, DIAL_TIMEOUT, write_timeout).await.map_err(ExchangeError::Connect)?;
    let (sender, connection) = hyper::client::conn::http1::handshake(socket).await?;
    Ok((sender, tokio::task::spawn_local(connection).abort_handle()))
}

/// Formats an error of hyper with its cause, which contains the actual reason.
pub(crate) fn text(error: &hyper::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
