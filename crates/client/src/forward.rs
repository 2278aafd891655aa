//! Forwards calls for a proxy, which makes them on behalf of its own callers. Messages stay opaque bytes.
//! Each call carries the token and the deadline of the proxy's caller; the user and the token in the settings
//! of the [`Client`] are not used.

use std::sync::Arc;
use std::time::Duration;

use api::{Code, Rpc, Status};
use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout};

use crate::call::{CallOptions, Receiver, Sender};
use crate::channel::Channel;
use crate::client::{Client, Route};
use crate::link::Link;
use crate::retry::{ATTEMPTS, Credentials, Verdict, pause, verdict};

/// Maximum time that a call waits for a connection, even without a deadline. Source: the dial timeout of
/// etcd's proxy.
const CONNECTION_WAIT: Duration = Duration::from_secs(5);

impl Client {
    /// Calls a unary method with the metadata and the timeout of `options`. Retries by the rules of
    /// [`Client::call`], except that no token is renewed.
    ///
    /// # Errors
    /// Returns the status that the server sent, `Unavailable` if no endpoint could be reached within 5
    /// seconds, `DeadlineExceeded` after the timeout of `options`, or `ResourceExhausted` for a message above
    /// a size limit.
    pub async fn forward(&self, rpc: Rpc, options: &CallOptions, message: Bytes) -> Result<Bytes, Status> {
        let deadline = options.timeout.map(|timeout| Instant::now() + timeout);
        let endpoints = self.endpoint_count();
        let mut route = self.route(options.passed_over);
        let mut last = Status::new(Code::Unavailable, "no attempt was made");
        for attempt in 0..ATTEMPTS {
            sleep_unless_zero(pause(attempt, endpoints)).await;
            let (channel, _) = self.reachable(deadline, &mut route).await?;
            let timeout = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let options = CallOptions { timeout, ..options.clone() };
            let failure = match channel.attempt(rpc.path(), &options, message.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            if !matches!(verdict(rpc, &failure, endpoints, Credentials::Token), Verdict::Repeat) {
                return Err(failure.status);
            }
            last = failure.status;
        }
        Err(last)
    }

    /// Opens a streaming call with the metadata of `options`. Retries only while the stream cannot be opened.
    ///
    /// # Errors
    /// Returns `Unavailable` if no endpoint could be reached within 5 seconds, `DeadlineExceeded` if no
    /// connection was open within the timeout of `options`, or `InvalidArgument` if a header field is not
    /// allowed.
    pub async fn forward_stream(
        &self,
        rpc: Rpc,
        options: &CallOptions,
    ) -> Result<(Sender, Receiver), Status> {
        self.forward_stream_somewhere(rpc, options).await.map(|(sides, _)| sides)
    }

    /// Opens a streaming call as [`Client::forward_stream`] does, and also returns its endpoint.
    ///
    /// # Errors
    /// Returns the errors of [`Client::forward_stream`].
    pub async fn forward_stream_somewhere(
        &self,
        rpc: Rpc,
        options: &CallOptions,
    ) -> Result<((Sender, Receiver), String), Status> {
        let deadline = options.timeout.map(|timeout| Instant::now() + timeout);
        let endpoints = self.endpoint_count();
        let mut route = self.route(options.passed_over);
        let mut last = Status::new(Code::Unavailable, "no attempt was made");
        for attempt in 0..ATTEMPTS {
            sleep_unless_zero(pause(attempt, endpoints)).await;
            let (channel, link) = self.reachable(deadline, &mut route).await?;
            match channel.stream_with(rpc.path(), options).await {
                // The connection broke after `reachable` had returned it. Try again, because the task that
                // maintains the connection will soon open another one.
                Err(status) if status.code == Code::Unavailable => last = status,
                opened => return opened.map(|sides| (sides, link.endpoint.text.clone())),
            }
        }
        Err(last)
    }

    /// Returns an open connection. Waits for one until the deadline, but at most for [`CONNECTION_WAIT`].
    async fn reachable(
        &self,
        deadline: Option<Instant>,
        route: &mut Route,
    ) -> Result<(Channel, Arc<Link>), Status> {
        match timeout(CONNECTION_WAIT, self.channel(deadline, route)).await {
            Ok(found) => found,
            Err(_) => {
                let why = self.dial_errors().into_iter().next().map(|(_, error)| error);
                let text = why.unwrap_or_else(|| "connection error: no endpoint answers".to_owned());
                Err(Status::with(Code::Unavailable, text))
            }
        }
    }
}

async fn sleep_unless_zero(pause: Duration) {
    if !pause.is_zero() {
        sleep(pause).await;
    }
}
