//! Sends HTTP/1 requests to servers, with hyper: [`Link`] is one connection, [`IdleLinks`] keeps idle
//! connections to one server, and [`send`] sends a request over one of them or a new one.

use std::cell::RefCell;
use std::error::Error;
use std::time::{Duration, Instant};

use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper::rt::{Read, Write};
use hyper::{Request, Response};
use tokio::task::{AbortHandle, spawn_local};

/// Maximum time for which a request waits until a kept connection is ready. After that, the request uses
/// another connection.
const READY_MAX: Duration = Duration::from_millis(100);

/// Connection to a server, for one request at a time. Dropping the link closes the connection immediately,
/// even if a request is in flight or the body of a response is being received.
#[derive(Debug)]
pub struct Link<B> {
    sender: SendRequest<B>,
    /// Task that reads and writes the connection; `None` if the task must not be aborted, because it closes
    /// the connection cleanly.
    driver: Option<AbortHandle>,
}

impl<B> Drop for Link<B> {
    fn drop(&mut self) {
        if let Some(driver) = &self.driver {
            driver.abort();
        }
    }
}

impl<B> Link<B> {
    /// Closes an idle connection cleanly: with TLS, the server receives `close_notify`.
    fn close(mut self) {
        self.driver = None;
    }
}

impl<B> Link<B>
where
    B: Body + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    /// Starts HTTP on a connection, which a new task reads and writes. Must be called within a `LocalSet`.
    ///
    /// # Errors
    ///
    /// Returns hyper's error.
    pub async fn start(
        stream: impl Read + Write + Unpin + 'static,
        builder: &Builder,
    ) -> hyper::Result<Link<B>> {
        let (sender, connection) = builder.handshake(stream).await?;
        let driver = spawn_local(async move {
            // The error is ignored here, because the request in flight receives it, too.
            let _ = connection.await;
        });
        Ok(Link { sender, driver: Some(driver.abort_handle()) })
    }

    /// Sends a request, and waits for the head of its response.
    ///
    /// # Errors
    ///
    /// Returns hyper's error.
    pub async fn send(&mut self, request: Request<B>) -> hyper::Result<Response<Incoming>> {
        self.sender.send_request(request).await
    }

    /// Returns true if the connection has ended.
    fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

/// Idle connections to one server, which are kept for further requests.
#[derive(Debug)]
pub struct IdleLinks<B> {
    links_max: usize,
    kept: RefCell<Vec<(Link<B>, Instant)>>,
}

impl<B> IdleLinks<B>
where
    B: Body + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    /// Creates an empty collection of at most `links_max` connections.
    pub fn new(links_max: usize) -> IdleLinks<B> {
        IdleLinks { links_max, kept: RefCell::default() }
    }

    /// Keeps a connection until this time. Its last response must have been read to the end. Returns false if
    /// the connection was closed instead, because it has ended or too many are kept.
    pub fn keep(&self, link: Link<B>, until: Instant) -> bool {
        let mut kept = self.kept.borrow_mut();
        let has_room = kept.len() < self.links_max && !link.is_closed();
        if has_room {
            kept.push((link, until))
        } else {
            link.close()
        }
        has_room
    }

    /// Returns the connection that was kept last, if it is open and becomes ready for a request in time;
    /// otherwise closes it and tries the one before. A connection may never become ready if its server had
    /// responded before it read the whole request.
    async fn take(&self) -> Option<Link<B>> {
        loop {
            let (mut link, until) = self.kept.borrow_mut().pop()?;
            if until > Instant::now()
                && let Ok(Ok(())) = tokio::time::timeout(READY_MAX, link.sender.ready()).await
            {
                return Some(link);
            }
            link.close();
        }
    }

    /// Closes the connections that have ended or whose time has passed. Returns the time at which the next
    /// one must be closed; `None` if none is left.
    pub fn sweep(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut kept = self.kept.borrow_mut();
        for (link, _) in kept.extract_if(.., |(link, until)| *until <= now || link.is_closed()) {
            link.close();
        }
        kept.iter().map(|(_, until)| *until).min()
    }
}

/// Sends a request over a kept connection or, if there is none, over one that `connect` opens, and waits for
/// the head of the response.
///
/// If a kept connection turns out to be closed by the server, the request is sent on another connection,
/// provided that nothing of it was sent before or that `again` returns a copy of it.
///
/// # Errors
///
/// Returns the error of `connect`. If the connection breaks before the response, returns hyper's error,
/// converted by `broken`.
pub async fn send<B, E>(
    idle: &IdleLinks<B>,
    mut request: Request<B>,
    again: impl Fn() -> Option<Request<B>>,
    connect: impl AsyncFn() -> Result<Link<B>, E>,
    broken: impl Fn(hyper::Error) -> E,
) -> Result<(Link<B>, Response<Incoming>), E>
where
    B: Body + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    loop {
        let kept = idle.take().await;
        let is_kept = kept.is_some();
        let mut link = match kept {
            Some(link) => link,
            None => connect().await?,
        };
        let mut error = match link.sender.try_send_request(request).await {
            Ok(response) => return Ok((link, response)),
            Err(error) => error,
        };
        match error.take_message().or_else(&again) {
            Some(unsent) if is_kept => request = unsent,
            _ => return Err(broken(error.into_error())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

    use super::*;
    use crate::wire::Wire;

    const HOUR: Duration = Duration::from_secs(3600);

    /// Answers this many requests, and closes the connection when the next one arrives.
    async fn serve(mut stream: DuplexStream, answers: usize) {
        for left in (0..=answers).rev() {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                if stream.read_buf(&mut head).await.unwrap() == 0 {
                    return;
                }
            }
            if left > 0 {
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
            }
        }
    }

    /// Sends GET requests to servers of which each answers one request; returns the numbers of connections
    /// and of failed requests.
    fn exchange(requests: usize, repeats: bool, idle_for: Duration) -> (usize, usize) {
        let (dialed, mut failed) = (Cell::new(0), 0);
        testkit::block_on(
            testkit::TIMEOUT,
            tokio::task::LocalSet::new().run_until(async {
                let idle = IdleLinks::new(1);
                for _ in 0..requests {
                    let connect = async || {
                        dialed.set(dialed.get() + 1);
                        let (near, far) = tokio::io::duplex(5000);
                        drop(spawn_local(serve(far, 1)));
                        Link::start(Wire::<_>::Plain(near), &Builder::new()).await
                    };
                    let request = || Request::new(String::new());
                    let again = || repeats.then(request);
                    match send(&idle, request(), again, connect, |error| error).await {
                        Ok((link, response)) => {
                            assert_eq!(response.status(), 200);
                            assert!(idle.keep(link, Instant::now() + idle_for));
                        }
                        Err(_) => failed += 1,
                    }
                }
                assert_eq!(idle.sweep().is_some(), idle_for > Duration::ZERO && failed == 0);
                assert!(idle.sweep().is_none() || idle.kept.borrow().len() == 1);
            }),
        );
        (dialed.get(), failed)
    }

    #[test]
    fn a_request_that_a_kept_connection_breaks_is_sent_again_if_it_may_be() {
        assert_eq!(exchange(2, true, HOUR), (2, 0));
        // The server may have served what it received.
        assert_eq!(exchange(2, false, HOUR), (1, 1));
    }

    #[test]
    fn connections_are_kept_for_a_while() {
        assert_eq!(exchange(3, false, Duration::ZERO), (3, 0));
    }
}
