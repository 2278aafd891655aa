use std::time::Duration;

use api::Status;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::client::Client;
use crate::lease::{self, KeepAlive};

/// TTL in seconds of a session if the caller gives none.
const TTL_SECONDS: i64 = 60;

/// A lease that is kept alive while this value exists. Locks and leaderships are attached to the lease and
/// end with it. If the session is dropped, the lease expires after its TTL; [`Session::close`] revokes it.
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
    /// Returns the server's status if the lease was not granted.
    pub async fn open(client: &Client, ttl_seconds: i64) -> Result<Session, Status> {
        let ttl_seconds = if ttl_seconds > 0 { ttl_seconds } else { TTL_SECONDS };
        let granted = lease::grant(client, ttl_seconds, 0).await?;
        Ok(Session::resume(client, granted.id, ttl_seconds))
    }

    /// Keeps an existing lease alive, for example a lease that an earlier process was granted. The TTL is the
    /// time limit for the first renewal and for [`Session::close`].
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

    /// Returns the client with which the session was created.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the ID of the lease.
    pub fn lease(&self) -> i64 {
        self.lease
    }

    /// Returns true if the lease is no longer kept alive.
    pub fn is_done(&self) -> bool {
        *self.done.borrow() || self.done.has_changed().is_err()
    }

    /// Waits until the lease is no longer kept alive: the lease expired or was revoked, or the session was
    /// dropped.
    pub fn done(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut done = self.done.clone();
        // An error means that the task that keeps the lease alive was aborted, so the session is over, too.
        async move { _ = done.wait_for(|done| *done).await }
    }

    /// Stops keeping the lease alive, without revoking it. The lease expires after its TTL.
    pub fn orphan(self) {}

    /// Stops keeping the lease alive and revokes it, which deletes its keys. The time limit is the TTL,
    /// because the lease has expired after this time anyway.
    ///
    /// # Errors
    /// Returns the server's status or `DeadlineExceeded` if the lease could not be revoked.
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
