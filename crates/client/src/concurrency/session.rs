use std::time::Duration;

use api::Status;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::client::Client;
use crate::lease::{self, KeepAlive};

/// The TTL of a session that names none, in seconds.
const TTL_SECONDS: i64 = 60;

/// A lease that lives as long as the session: what locks and leadership hang on. Dropping it lets the lease run out;
/// [`Session::close`] revokes it.
pub struct Session {
    client: Client,
    lease: i64,
    ttl: Duration,
    done: watch::Receiver<bool>,
    keeper: JoinHandle<()>,
}

impl Session {
    /// Grants a lease and keeps it alive. A TTL of 0 or less means 60 seconds.
    ///
    /// # Errors
    /// The lease is not granted.
    pub async fn open(client: &Client, ttl_seconds: i64) -> Result<Session, Status> {
        let ttl_seconds = if ttl_seconds > 0 { ttl_seconds } else { TTL_SECONDS };
        let granted = lease::grant(client, ttl_seconds, 0).await?;
        Ok(Session::resume(client, granted.id, ttl_seconds))
    }

    /// Keeps a lease alive that is there already, such as that of an earlier run; its TTL bounds how long
    /// [`Session::close`] may take and a first renewal has.
    pub fn resume(client: &Client, lease: i64, ttl_seconds: i64) -> Session {
        let ttl_seconds = if ttl_seconds > 0 { ttl_seconds } else { TTL_SECONDS };
        let ttl = Duration::from_secs(ttl_seconds.unsigned_abs());
        let mut keep_alive = KeepAlive::start(client, lease, ttl);
        let (over, done) = watch::channel(false);
        let keeper = tokio::spawn(async move {
            while keep_alive.next().await.is_some() {}
            over.send_replace(true);
        });
        Session { client: client.clone(), lease, ttl, done, keeper }
    }

    /// The client it was made with.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The lease's number.
    pub fn lease(&self) -> i64 {
        self.lease
    }

    /// Returns true if the lease is no longer kept alive.
    pub fn is_done(&self) -> bool {
        *self.done.borrow() || self.done.has_changed().is_err()
    }

    /// Returns when the lease is no longer kept alive: it expired, was revoked, or the session was given up.
    pub fn done(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut done = self.done.clone();
        // An error means that the keeper is gone without a word.
        async move { _ = done.wait_for(|done| *done).await }
    }

    /// Stops keeping the lease alive and leaves it to run out.
    pub fn orphan(self) {}

    /// Stops keeping the lease alive and revokes it, and with it goes what it holds. Takes no longer than the TTL, for
    /// then the lease is gone anyway.
    ///
    /// # Errors
    /// The lease could not be revoked.
    pub async fn close(self) -> Result<(), Status> {
        self.keeper.abort();
        match timeout(self.ttl, lease::revoke(&self.client, self.lease)).await {
            Ok(revoked) => revoked.map(|_| ()),
            Err(_) => Err(Status::new(api::Code::DeadlineExceeded, "context deadline exceeded")),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}
