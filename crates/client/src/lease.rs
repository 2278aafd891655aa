//! Keeping a lease alive.

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

/// Pause before a broken stream is opened again. Source: clientv3.
const PAUSE: Duration = Duration::from_millis(500);

/// Maximum number of answers that wait for their reader; more are dropped, as in clientv3.
const ANSWERS_MAX: usize = 16;

/// Grants a lease; an `id` of 0 lets the server choose.
///
/// # Errors
/// As [`Client::call`].
pub async fn grant(client: &Client, ttl_seconds: i64, id: i64) -> Result<LeaseGrantResponse, Status> {
    client.call(Rpc::LeaseGrant, &LeaseGrantRequest { ttl: ttl_seconds, id }).await
}

/// Revokes a lease and removes its keys.
///
/// # Errors
/// As [`Client::call`].
pub async fn revoke(client: &Client, id: i64) -> Result<LeaseRevokeResponse, Status> {
    client.call(Rpc::LeaseRevoke, &LeaseRevokeRequest { id }).await
}

/// Renews a lease once.
///
/// # Errors
/// The lease is not there (`etcdserver: requested lease not found`), or as [`Client::open`].
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

/// Returns true if a stream may be opened again after this. Source: clientv3's `isHaltErr`.
pub(crate) fn is_passing(status: &Status) -> bool {
    matches!(status.code, Code::Unavailable | Code::Internal)
}

/// A lease that is kept alive by a task, at a third of its TTL, over broken connections, until it is dropped, the
/// lease is gone, or no answer came for as long as the lease lives.
pub struct KeepAlive {
    answers: mpsc::Receiver<LeaseKeepAliveResponse>,
    keeper: JoinHandle<Status>,
    ended: Option<Status>,
}

impl KeepAlive {
    /// Begins. Until the first answer tells the lease's TTL, an answer may take `first_answer`, which etcd's client
    /// sets to its dial timeout and a second.
    pub fn start(client: &Client, id: i64, first_answer: Duration) -> KeepAlive {
        let (sender, answers) = mpsc::channel(ANSWERS_MAX);
        let keeper = tokio::spawn(keep(client.clone(), id, first_answer, sender));
        KeepAlive { answers, keeper, ended: None }
    }

    /// The next renewal; `None` when the lease is no longer kept alive, for [`KeepAlive::ended`]'s reason. May be
    /// dropped and called again without loss.
    pub async fn next(&mut self) -> Option<LeaseKeepAliveResponse> {
        let answer = self.answers.recv().await;
        if answer.is_none() && self.ended.is_none() {
            let ended = (&mut self.keeper).await;
            self.ended = Some(ended.unwrap_or(Status::new(Code::Canceled, "the keep-alive was stopped")));
        }
        answer
    }

    /// Why it ended, once [`KeepAlive::next`] said `None`: `etcdserver: requested lease not found` when the server
    /// does not have the lease, `DeadlineExceeded` when it may have run out meanwhile, or the server's refusal.
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

/// Renews over one stream, and says how that ended.
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
        let Some(ttl) = u64::try_from(answer.ttl).ok().filter(|ttl| *ttl > 0).map(Duration::from_secs) else {
            return error::LEASE_NOT_FOUND;
        };
        let now = Instant::now();
        // The longest TTL is below 300 years.
        *expires = now + ttl;
        // A reader who is behind misses some, and one who is gone drops the whole task.
        let _ = answers.try_send(answer);
        sleep(ttl / 3).await;
    }
}
