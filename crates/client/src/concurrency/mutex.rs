//! Locks by keys that are attached to leases, in the layout of etcd's `clientv3/concurrency` ([`Mutex`]). The
//! Lock service of the API is not used.

use std::fmt;

use api::etcdserverpb::{
    Compare, DeleteRangeRequest, DeleteRangeResponse, RangeResponse, ResponseHeader, TxnResponse, request_op,
};
use api::{Rpc, Status};
use bytes::Bytes;

use super::{Session, get, is_created_at, oldest, op, put_op, range_at, revision, txn, wait_for_deletes};
use crate::client::Client;

/// Lock under a prefix. One session at a time can hold it. Each session that waits for the lock or holds it
/// has the key `<prefix>/<lease ID in hexadecimal>`; the session with the oldest key holds the lock.
pub struct Mutex {
    client: Client,
    lease: i64,
    prefix: Bytes,
    mine: Option<Mine>,
}

/// Key and create revision of this session, which waits for the lock or holds it.
struct Mine {
    key: Bytes,
    revision: i64,
}

/// Error of a lock operation.
#[derive(Debug)]
pub enum MutexError {
    /// Another session holds the lock.
    Locked,
    /// The key of this session no longer exists, because the session's lease has expired.
    SessionExpired,
    /// This object neither holds the lock nor waits for it.
    Released,
    /// Status that the server returned.
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
    /// Creates an object for acquiring the lock under this prefix. It does not hold the lock yet.
    pub fn new(session: &Session, prefix: impl AsRef<[u8]>) -> Mutex {
        let prefix = [prefix.as_ref(), b"/"].concat().into();
        Mutex { client: session.client().clone(), lease: session.lease(), prefix, mine: None }
    }

    /// Waits until this session holds the lock. If the future is dropped while it waits, the session's key
    /// stays in the queue; [`Mutex::unlock`] removes it.
    ///
    /// # Errors
    /// Returns `SessionExpired` if the session's lease has expired, or the server's status. If the wait fails
    /// with a status, the session's key is removed, if the server can be reached. If the first request fails,
    /// which creates the key, the key may exist; [`Mutex::unlock`] removes it.
    pub async fn lock(&mut self) -> Result<ResponseHeader, MutexError> {
        let answer = self.queue().await?;
        let mine = self.mine.as_ref().ok_or(MutexError::Released)?;
        if is_first(&answer, mine.revision) {
            return Ok(answer.header.unwrap_or_default());
        }
        let waited = async {
            wait_for_deletes(&self.client, &self.prefix, mine.revision - 1).await?;
            // The lease may have expired during the wait, so check that the session's key still exists.
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

    /// Acquires the lock if it is free. Does not wait.
    ///
    /// # Errors
    /// Returns `Locked` if another session holds the lock, or the server's status.
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
    /// Returns `Released` if there is nothing to release, or the server's status. In the second case the call
    /// may be repeated.
    pub async fn unlock(&mut self) -> Result<(), MutexError> {
        let mine = self.mine.as_ref().ok_or(MutexError::Released)?;
        let delete = DeleteRangeRequest { key: mine.key.clone(), ..DeleteRangeRequest::default() };
        let _: DeleteRangeResponse = self.client.call(Rpc::KvDeleteRange, &delete).await?;
        self.mine = None;
        Ok(())
    }

    /// Returns the session's key while it waits in the queue or holds the lock; otherwise `None`.
    pub fn key(&self) -> Option<&Bytes> {
        self.mine.as_ref().map(|mine| &mine.key)
    }

    /// Returns a condition for transactions that must run only while this session holds the lock. Returns
    /// `None` if the lock was not requested, or the server has not confirmed the session's key.
    pub fn is_owner(&self) -> Option<Compare> {
        // The revision is 0 until the server has confirmed the key. A condition with 0 would hold if the key
        // does not exist.
        let mine = self.mine.as_ref().filter(|mine| mine.revision > 0)?;
        Some(is_created_at(&mine.key, mine.revision))
    }

    /// Puts the session's key, unless it exists already, and reads the current holder of the lock in the same
    /// transaction.
    async fn queue(&mut self) -> Result<TxnResponse, Status> {
        let key: Bytes = [&self.prefix[..], format!("{:x}", self.lease).as_bytes()].concat().into();
        let holder = || op(request_op::Request::RequestRange(oldest(&self.prefix)));
        let ours = op(request_op::Request::RequestRange(get(&key)));
        let put = put_op(&key, &Bytes::new(), self.lease);
        // Set this before the request is sent. If the call is dropped or fails, the key may exist
        // nevertheless, and [`Mutex::unlock`] can then remove it.
        self.mine = Some(Mine { key: key.clone(), revision: 0 });
        let free = vec![is_created_at(&key, 0)];
        let answer = txn(&self.client, free, vec![put, holder()], vec![ours, holder()]).await?;
        let found = range_at(&answer, 0).and_then(|range| range.kvs.first());
        let revision =
            if answer.succeeded { Some(revision(&answer)) } else { found.map(|kv| kv.create_revision) };
        let revision =
            revision.ok_or(Status::new(api::Code::Internal, "an answer without the expected key"))?;
        self.mine = Some(Mine { key, revision });
        Ok(answer)
    }
}

/// Returns true if the session holds the lock: the oldest key of the prefix has the create revision of the
/// session's key.
fn is_first(answer: &TxnResponse, revision: i64) -> bool {
    let holder = range_at(answer, 1).and_then(|range| range.kvs.first());
    holder.is_none_or(|holder| holder.create_revision == revision)
}
