//! Locks by keys under leases, laid out as in etcd's `clientv3/concurrency`: [`Mutex`]. The lock service of the API is
//! not used.

use std::fmt;

use api::etcdserverpb::{
    Compare, DeleteRangeRequest, DeleteRangeResponse, RangeResponse, ResponseHeader, TxnResponse, request_op,
};
use api::{Rpc, Status};
use bytes::Bytes;

use super::{Session, get, is_created_at, oldest, op, put_op, range_at, revision, txn, wait_for_deletes};
use crate::client::Client;

/// A lock that one session at a time holds, under a prefix. Each session that wants it has the key `<prefix>/<lease in
/// hexadecimal>`; the oldest key holds the lock.
pub struct Mutex {
    client: Client,
    lease: i64,
    prefix: Bytes,
    mine: Option<Mine>,
}

/// Our key, waiting or holding.
struct Mine {
    key: Bytes,
    revision: i64,
}

/// Why a lock is not held, or not released.
#[derive(Debug)]
pub enum MutexError {
    /// Another session holds the lock.
    Locked,
    /// Our key is gone: the session's lease expired.
    SessionExpired,
    /// There is no lock to release.
    Released,
    /// The server's status.
    Status(Status),
}

impl fmt::Display for MutexError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MutexError::Locked => f.write_str("mutex: Locked by another session"),
            MutexError::SessionExpired => f.write_str("mutex: session is expired"),
            MutexError::Released => f.write_str("mutex: lock has already been released"),
            MutexError::Status(status) => f.write_str(&crate::client::shown(status)),
        }
    }
}

impl std::error::Error for MutexError {}

impl From<Status> for MutexError {
    fn from(status: Status) -> MutexError {
        MutexError::Status(status)
    }
}

impl Mutex {
    /// A lock, not held yet.
    pub fn new(session: &Session, prefix: impl AsRef<[u8]>) -> Mutex {
        let prefix = [prefix.as_ref(), b"/"].concat().into();
        Mutex { client: session.client().clone(), lease: session.lease(), prefix, mine: None }
    }

    /// Waits until the lock is held. Dropped while it waits, it leaves our key in the queue: [`Mutex::unlock`]
    /// withdraws it.
    ///
    /// # Errors
    /// The session expired, or the server's status; our key is withdrawn then, as far as the server can be reached.
    pub async fn lock(&mut self) -> Result<ResponseHeader, MutexError> {
        let answer = self.queue().await?;
        let mine = self.mine.as_ref().ok_or(MutexError::Released)?;
        if is_first(&answer, mine.revision) {
            return Ok(answer.header.unwrap_or_default());
        }
        let waited = async {
            wait_for_deletes(&self.client, &self.prefix, mine.revision - 1).await?;
            // The wait may have been longer than the lease lived.
            self.client.call::<_, RangeResponse>(Rpc::KvRange, &get(&mine.key)).await
        };
        match waited.await {
            Ok(found) if found.kvs.is_empty() => Err(MutexError::SessionExpired),
            Ok(found) => Ok(found.header.unwrap_or_default()),
            Err(status) => {
                let _ = self.unlock().await;
                Err(status.into())
            }
        }
    }

    /// Takes the lock if nobody holds it.
    ///
    /// # Errors
    /// `Locked`, or the server's status.
    pub async fn try_lock(&mut self) -> Result<ResponseHeader, MutexError> {
        let answer = self.queue().await?;
        if self.mine.as_ref().is_some_and(|mine| is_first(&answer, mine.revision)) {
            return Ok(answer.header.unwrap_or_default());
        }
        self.unlock().await?;
        Err(MutexError::Locked)
    }

    /// Releases the lock, or leaves the queue.
    ///
    /// # Errors
    /// There is nothing to release, or the server's status; with the latter it may be tried again.
    pub async fn unlock(&mut self) -> Result<(), MutexError> {
        let mine = self.mine.as_ref().ok_or(MutexError::Released)?;
        let delete = DeleteRangeRequest { key: mine.key.clone(), ..DeleteRangeRequest::default() };
        let _: DeleteRangeResponse = self.client.call(Rpc::KvDeleteRange, &delete).await?;
        self.mine = None;
        Ok(())
    }

    /// Our key while it is in the queue or holds the lock.
    pub fn key(&self) -> Option<&Bytes> {
        self.mine.as_ref().map(|mine| &mine.key)
    }

    /// A condition for a transaction that is only to happen while we hold the lock.
    pub fn is_owner(&self) -> Option<Compare> {
        // Revision 0 is that of a key that the server did not confirm.
        let mine = self.mine.as_ref().filter(|mine| mine.revision > 0)?;
        Some(is_created_at(&mine.key, mine.revision))
    }

    /// Puts our key, unless it is there already, and looks for the holder at the same time.
    async fn queue(&mut self) -> Result<TxnResponse, Status> {
        let key: Bytes = [&self.prefix[..], format!("{:x}", self.lease).as_bytes()].concat().into();
        let holder = || op(request_op::Request::RequestRange(oldest(&self.prefix)));
        let ours = op(request_op::Request::RequestRange(get(&key)));
        let put = put_op(&key, &Bytes::new(), self.lease);
        // Before it is known to be there, so that a call that is dropped or breaks leaves something to withdraw.
        self.mine = Some(Mine { key: key.clone(), revision: 0 });
        let free = vec![is_created_at(&key, 0)];
        let answer = txn(&self.client, free, vec![put, holder()], vec![ours, holder()]).await?;
        let found = range_at(&answer, 0).and_then(|range| range.kvs.first());
        let revision =
            if answer.succeeded { Some(revision(&answer)) } else { found.map(|kv| kv.create_revision) };
        let revision = revision.ok_or(Status::new(api::Code::Internal, "an answer without our key"))?;
        self.mine = Some(Mine { key, revision });
        Ok(answer)
    }
}

/// Returns true if the oldest key of the prefix is ours.
fn is_first(answer: &TxnResponse, revision: i64) -> bool {
    let holder = range_at(answer, 1).and_then(|range| range.kvs.first());
    holder.is_none_or(|holder| holder.create_revision == revision)
}
