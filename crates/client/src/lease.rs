//! Grants, revokes and renews leases, and keeps a lease alive by a background task.

use std::time::Duration;

use api::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseRevokeRequest,
    LeaseRevokeResponse,
};
use api::{Code, Rpc, Status, error};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout_at};

use crate::client::Client;
use crate::stream::Stream;

/// Longest TTL of a lease in etcd, in seconds. A longer TTL in a response is treated as this one.
const TTL_SECONDS_MAX: u64 = 9_000_000_000;

/// Pause before a broken stream is opened again. Source: clientv3.
const PAUSE: Duration = Duration::from_millis(500);

/// Maximum number of responses in the queue to the caller. Further responses are dropped, as in clientv3.
const ANSWERS_MAX: usize = 16;

/// Grants a lease. With an `id` of 0, the server chooses the id.
///
/// # Errors
/// Returns the same errors as [`Client::call`].
pub async fn grant(client: &Client, ttl_seconds: i64, id: i64) -> Result<LeaseGrantResponse, Status> {
    client.call(Rpc::LeaseGrant, &LeaseGrantRequest { ttl: ttl_seconds, id }).await
}

/// Revokes a lease, which deletes its keys.
///
/// # Errors
/// Returns the same errors as [`Client::call`].
pub async fn revoke(client: &Client, id: i64) -> Result<LeaseRevokeResponse, Status> {
    client.call(Rpc::LeaseRevoke, &LeaseRevokeRequest { id }).await
}

/// Renews a lease once.
///
/// # Errors
/// Returns `etcdserver: requested lease not found` if the lease does not exist, or an error of
/// [`Client::open`].
pub async fn keep_alive_once(client: &Client, id: i64) -> Result<LeaseKeepAliveResponse, Status> {
    loop {
        let once = async {
            let mut stream: Stream<LeaseKeepAliveRequest, LeaseKeepAliveResponse> =
                client.open(Rpc::LeaseKeepAlive).await?;
            stream.send(&LeaseKeepAliveRequest { id }).await?;
            let answer = stream.next().await?;
            answer.ok_or(Status::new(Code::Unavailable, "the server ended the stream of keep-alives"))
        };
        match once.await {
            Ok(answer) if answer.ttl <= 0 => return Err(error::LEASE_NOT_FOUND),
            Ok(answer) => return Ok(answer),
            Err(status) if is_passing(&status) => sleep(PAUSE / 10).await,
            Err(status) => return Err(status),
        }
    }
}

/// Returns true if the stream may be opened again after this status. Source: `isHaltErr` of clientv3.
pub(crate) fn is_passing(status: &Status) -> bool {
    matches!(status.code, Code::Unavailable | Code::Internal)
}

/// Keeps a lease alive. A task renews the lease every third of its TTL, and connects again if the connection
/// breaks. The task ends when this object is dropped, the lease no longer exists, the server refuses the
/// renewal, or no response has arrived within the TTL.
pub struct KeepAlive {
    answers: mpsc::Receiver<LeaseKeepAliveResponse>,
    keeper: JoinHandle<Status>,
    ended: Option<Status>,
}

impl KeepAlive {
    /// Starts to renew the lease. The TTL is not known before the first response, so `first_answer` is the
    /// time limit for the first response; etcd's client uses its dial timeout plus one second.
    pub fn start(client: &Client, id: i64, first_answer: Duration) -> KeepAlive {
        let (sender, answers) = mpsc::channel(ANSWERS_MAX);
        let keeper = tokio::spawn(keep(client.clone(), id, first_answer, sender));
        KeepAlive { answers, keeper, ended: None }
    }

    /// Returns the next renewal, or `None` when the lease is no longer kept alive; after that,
    /// [`KeepAlive::ended`] returns the reason. If the future is dropped, no response is lost; the method may
    /// be called again.
    pub async fn next(&mut self) -> Option<LeaseKeepAliveResponse> {
        let answer = self.answers.recv().await;
        if answer.is_none() && self.ended.is_none() {
            let ended = (&mut self.keeper).await;
            self.ended = Some(ended.unwrap_or(Status::new(Code::Canceled, "the keep-alive was stopped")));
        }
        answer
    }

    /// Returns the reason why the lease is no longer kept alive, after [`KeepAlive::next`] has returned
    /// `None`: `etcdserver: requested lease not found` if the lease does not exist, `DeadlineExceeded` if the
    /// lease may have expired, or another status from the server.
    pub fn ended(&self) -> Option<&Status> {
        self.ended.as_ref()
    }
}

impl Drop for KeepAlive {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

async fn keep(
    client: Client,
    id: i64,
    first_answer: Duration,
    answers: mpsc::Sender<LeaseKeepAliveResponse>,
) -> Status {
    let mut expires = Instant::now() + first_answer;
    loop {
        let late = Status::new(Code::DeadlineExceeded, "the lease was not renewed in time");
        let stream = client.open::<LeaseKeepAliveRequest, LeaseKeepAliveResponse>(Rpc::LeaseKeepAlive);
        let Ok(opened) = timeout_at(expires, stream).await else { return late };
        let ended = match opened {
            Ok(stream) => renew(stream, id, &mut expires, &answers).await,
            Err(status) => status,
        };
        if Instant::now() >= expires {
            return late;
        }
        if !is_passing(&ended) {
            return ended;
        }
        sleep(PAUSE.min(expires.saturating_duration_since(Instant::now()))).await;
    }
}

/// Renews the lease over one stream until the stream fails or the lease is gone. Returns the reason.
async fn renew(
    mut stream: Stream<LeaseKeepAliveRequest, LeaseKeepAliveResponse>,
    id: i64,
    expires: &mut Instant,
    answers: &mpsc::Sender<LeaseKeepAliveResponse>,
) -> Status {
    loop {
        if let Err(status) = stream.send(&LeaseKeepAliveRequest { id }).await {
            return status;
        }
        let answer = match timeout_at(*expires, stream.next()).await {
            Err(_) => return Status::new(Code::DeadlineExceeded, "the lease was not renewed in time"),
            Ok(Err(status)) => return status,
            Ok(Ok(None)) => {
                return Status::new(Code::Unavailable, "the server ended the stream of keep-alives");
            }
            Ok(Ok(Some(answer))) => answer,
        };
        let Some(ttl) = u64::try_from(answer.ttl).ok().filter(|ttl| *ttl > 0) else {
            return error::LEASE_NOT_FOUND;
        };
        // Limit the TTL, so that the time below is representable. A longer TTL can come only from a faulty
        // server.
        let ttl = Duration::from_secs(ttl.min(TTL_SECONDS_MAX));
        *expires = Instant::now() + ttl;
        // Ignore an error: if the queue is full, the response is dropped, and if the receiver was dropped,
        // this task will soon be aborted.
        let _ = answers.try_send(answer);
        sleep(ttl / 3).await;
    }
}
