//! Calls in the name of somebody else: messages stay opaque bytes, and what is known of the caller (token, deadline) comes
//! with each call. For proxies; the client's own user and token take no part.

use std::time::Duration;

use api::{Code, Rpc, Status};
use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout};

use crate::call::{CallOptions, Receiver, Sender};
use crate::channel::Channel;
use crate::client::Client;
use crate::retry::{ATTEMPTS, Credentials, Verdict, pause, verdict};

/// Time limit of waiting for a connection when the caller has no deadline. Source: the dial timeout of etcd's proxy.
const CONNECTION_WAIT: Duration = Duration::from_secs(5);

impl Client {
    /// Calls a unary method with the metadata and within the time of `options`. It is repeated as [`Client::call`] is, save
    /// that no token is renewed.
    ///
    /// # Errors
    /// The server's status; `Unavailable` if no endpoint could be reached within some seconds.
    pub async fn forward(&self, rpc: Rpc, options: &CallOptions, message: Bytes) -> Result<Bytes, Status> {
        let deadline = options.timeout.map(|timeout| Instant::now() + timeout);
        let endpoints = self.endpoint_count();
        let mut last = Status::new(Code::Unavailable, "no attempt was made");
        for attempt in 0..ATTEMPTS {
            sleep_unless_zero(pause(attempt, endpoints)).await;
            let channel = self.reachable(deadline).await?;
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

    /// Opens a streaming call with the metadata of `options`. It is not repeated.
    ///
    /// # Errors
    /// As [`Client::forward`].
    pub async fn forward_stream(
        &self,
        rpc: Rpc,
        options: &CallOptions,
    ) -> Result<(Sender, Receiver), Status> {
        let deadline = options.timeout.map(|timeout| Instant::now() + timeout);
        let endpoints = self.endpoint_count();
        let mut last = Status::new(Code::Unavailable, "no attempt was made");
        for attempt in 0..ATTEMPTS {
            sleep_unless_zero(pause(attempt, endpoints)).await;
            let channel = self.reachable(deadline).await?;
            match channel.stream_with(rpc.path(), options).await {
                // The connection broke in between; its keeper is about to see it.
                Err(status) if status.code == Code::Unavailable => last = status,
                opened => return opened,
            }
        }
        Err(last)
    }

    /// A connection that stands, waited for until the deadline, and for some seconds at most.
    async fn reachable(&self, deadline: Option<Instant>) -> Result<Channel, Status> {
        match timeout(CONNECTION_WAIT, self.channel(deadline)).await {
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
