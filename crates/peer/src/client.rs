use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::InvalidHeaderValue;
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use transport::http1::{self, IdleLinks};

use crate::dialer::Dialer;
use crate::endpoint::Endpoint;
use crate::error::ExchangeError;
use crate::options::{ANSWER_BYTES_MAX, DIAL_TIMEOUT, IDLE_CONNECTIONS_MAX, IDLE_MAX};
use crate::request_body::RequestBody;

/// Sends single requests to members, and keeps idle connections for reuse. Must be used within a `LocalSet`.
pub(crate) struct Client {
    pub(crate) dialer: Dialer,
    idle: RefCell<HashMap<Endpoint, Rc<IdleLinks<RequestBody>>>>,
}

/// Connection that carries one request at a time.
pub(crate) type Link = http1::Link<RequestBody>;

impl Client {
    pub(crate) fn new(dialer: Dialer) -> Client {
        Client { dialer, idle: RefCell::default() }
    }

    /// Sends a request, whose URI is a path, and returns the complete answer. An answer with any HTTP status
    /// is returned as `Ok`.
    pub(crate) async fn exchange(
        &self,
        endpoint: &Endpoint,
        request: Request<Bytes>,
        timeout: Duration,
    ) -> Result<Response<Bytes>, ExchangeError> {
        match tokio::time::timeout(timeout, self.attempt(endpoint, request.map(RequestBody::from), timeout))
            .await
        {
            Ok(answer) => answer,
            Err(_) => Err(ExchangeError::TimedOut(timeout)),
        }
    }

    async fn attempt(
        &self,
        endpoint: &Endpoint,
        mut request: Request<RequestBody>,
        timeout: Duration,
    ) -> Result<Response<Bytes>, ExchangeError> {
        name_host(&mut request, endpoint)?;
        let idle = self.idle(endpoint);
        let connect = async || dial(&self.dialer, endpoint, timeout).await;
        let sent = http1::send(&idle, request, || None, connect, ExchangeError::Http).await;
        let (link, answer) = sent?;
        self.collect(endpoint, link, answer).await
    }

    async fn collect(
        &self,
        endpoint: &Endpoint,
        link: Link,
        answer: Response<Incoming>,
    ) -> Result<Response<Bytes>, ExchangeError> {
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(ExchangeError::BrokenOff)?.to_bytes();
        self.idle(endpoint).keep(link, Instant::now() + IDLE_MAX);
        Ok(Response::from_parts(head, body))
    }

    fn idle(&self, endpoint: &Endpoint) -> Rc<IdleLinks<RequestBody>> {
        let mut idle = self.idle.borrow_mut();
        if let Some(links) = idle.get(endpoint) {
            return Rc::clone(links);
        }
        let links = Rc::new(IdleLinks::new(IDLE_CONNECTIONS_MAX));
        idle.insert(endpoint.clone(), Rc::clone(&links));
        links
    }

    /// Closes connections that were idle for too long.
    pub(crate) fn sweep(&self) {
        self.idle.borrow_mut().retain(|_, links| links.sweep().is_some());
    }
}

/// Sets the `Host` header, which HTTP/1.1 requires.
pub(crate) fn name_host<B>(request: &mut Request<B>, endpoint: &Endpoint) -> Result<(), InvalidHeaderValue> {
    let host = HeaderValue::from_str(&endpoint.authority)?;
    request.headers_mut().insert(http::header::HOST, host);
    Ok(())
}

/// Opens a connection to a member, for requests.
pub(crate) async fn dial(
    dialer: &Dialer,
    endpoint: &Endpoint,
    write_timeout: Duration,
) -> Result<Link, ExchangeError> {
    let socket =
        dialer.connect(endpoint, DIAL_TIMEOUT, write_timeout).await.map_err(ExchangeError::Connect)?;
    Ok(Link::start(socket, &hyper::client::conn::http1::Builder::new()).await?)
}
