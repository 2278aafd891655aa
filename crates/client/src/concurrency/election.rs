//! Elects leaders by keys that are attached to leases, in the layout of etcd's `clientv3/concurrency`.
//! [`Election`] campaigns, proclaims and resigns; [`Observer`] reports the leaders. Only the KV and Watch
//! services of the API are used.

use std::collections::VecDeque;
use std::fmt;

use api::etcdserverpb::{RangeResponse, ResponseHeader, WatchCreateRequest, request_op};
use api::mvccpb::KeyValue;
use api::mvccpb::event::EventType;
use api::{Rpc, Status};
use bytes::Bytes;

use super::{
    Session, delete_op, get, is_created_at, oldest, op, prefix_end, put_op, range_at, revision, txn,
    wait_for_deletes,
};
use crate::client::{Client, status_of_text};
use crate::watcher::{WatchUpdate, Watcher};

/// Election under a prefix. Each candidate has the key `<prefix>/<lease ID in hexadecimal>` with the
/// candidate's value; the candidate with the oldest key is the leader.
pub struct Election {
    client: Client,
    lease: i64,
    prefix: Bytes,
    candidacy: Option<Candidacy>,
}

/// Key and create revision of this candidate, which is possibly the leader.
struct Candidacy {
    key: Bytes,
    revision: i64,
}

/// Error of an election.
#[derive(Debug)]
pub enum ElectionError {
    /// This candidate is not the leader.
    NotLeader,
    /// The election has no leader.
    NoLeader,
    /// Status that the server returned.
    Status(Status),
}

impl fmt::Display for ElectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ElectionError::NotLeader => f.write_str("election: not leader"),
            ElectionError::NoLeader => f.write_str("election: no leader"),
            ElectionError::Status(status) => f.write_str(&crate::client::shown(status)),
        }
    }
}

impl std::error::Error for ElectionError {}

impl From<Status> for ElectionError {
    fn from(status: Status) -> ElectionError {
        ElectionError::Status(status)
    }
}

/// The leader of an election.
#[derive(Clone, Debug, PartialEq)]
pub struct Leadership {
    /// Header of the response or event that reported the leader.
    pub header: ResponseHeader,
    /// Key of the leader, with the value that the leader proclaims.
    pub kv: KeyValue,
}

impl Election {
    /// Creates an object for taking part in the election under this prefix. It is not a candidate yet.
    pub fn new(session: &Session, prefix: impl AsRef<[u8]>) -> Election {
        let prefix = [prefix.as_ref(), b"/"].concat().into();
        Election { client: session.client().clone(), lease: session.lease(), prefix, candidacy: None }
    }

    /// Becomes a candidate with this value, and waits until this candidate is the leader. If the future is
    /// dropped while it waits for other candidates, the candidacy remains; [`Election::resign`] withdraws it.
    ///
    /// # Errors
    /// Returns the server's status, after the candidacy was withdrawn if the server could be reached. If
    /// already the request fails that creates the candidate's key, nothing is withdrawn, and the key may
    /// exist until the session's lease ends. Returns `NotLeader` if the key existed before the call and was
    /// deleted during it.
    pub async fn campaign(&mut self, value: impl Into<Bytes>) -> Result<ResponseHeader, ElectionError> {
        let value = value.into();
        let key: Bytes = [&self.prefix[..], format!("{:x}", self.lease).as_bytes()].concat().into();
        let ours = op(request_op::Request::RequestRange(get(&key)));
        let put = put_op(&key, &value, self.lease);
        let answer = txn(&self.client, vec![is_created_at(&key, 0)], vec![put], vec![ours]).await?;
        let created = if answer.succeeded {
            self.candidacy = Some(Candidacy { key, revision: revision(&answer) });
            revision(&answer)
        } else {
            let found = range_at(&answer, 0).and_then(|range| range.kvs.first());
            let found =
                found.ok_or(Status::new(api::Code::Internal, "an answer without the expected key"))?;
            let created = found.create_revision;
            self.candidacy = Some(Candidacy { key, revision: created });
            if found.value != value
                && let Err(error) = self.proclaim(value).await
            {
                let _ = self.resign().await;
                return Err(error);
            }
            created
        };
        if let Err(status) = wait_for_deletes(&self.client, &self.prefix, created - 1).await {
            let _ = self.resign().await;
            return Err(status.into());
        }
        Ok(answer.header.unwrap_or_default())
    }

    /// Changes the value that the leader announces.
    ///
    /// # Errors
    /// Returns `NotLeader` if the key of this candidate no longer exists, or the server's status.
    pub async fn proclaim(&mut self, value: impl Into<Bytes>) -> Result<ResponseHeader, ElectionError> {
        let ours = self.candidacy.as_ref().ok_or(ElectionError::NotLeader)?;
        let put = put_op(&ours.key, &value.into(), self.lease);
        let answer =
            txn(&self.client, vec![is_created_at(&ours.key, ours.revision)], vec![put], vec![]).await?;
        if !answer.succeeded {
            self.candidacy = None;
            return Err(ElectionError::NotLeader);
        }
        Ok(answer.header.unwrap_or_default())
    }

    /// Gives up the leadership or candidacy. Does nothing if there is none.
    ///
    /// # Errors
    /// Returns the server's status; the call may be repeated.
    pub async fn resign(&mut self) -> Result<(), ElectionError> {
        if let Some(ours) = &self.candidacy {
            let held = vec![is_created_at(&ours.key, ours.revision)];
            txn(&self.client, held, vec![delete_op(&ours.key)], vec![]).await?;
            self.candidacy = None;
        }
        Ok(())
    }

    /// Returns the current leader.
    ///
    /// # Errors
    ///
    /// Returns `NoLeader` if there is no leader, or the server's status.
    pub async fn leader(&self) -> Result<Leadership, ElectionError> {
        look(&self.client, &self.prefix).await?.0.ok_or(ElectionError::NoLeader)
    }

    /// Returns an observer that reports the current leader and all later ones.
    pub fn observe(&self) -> Observer {
        Observer::new(&self.client, self.prefix.clone())
    }

    /// Returns an observer of an election for callers that are not candidates. It needs no session.
    pub fn observe_prefix(client: &Client, prefix: impl AsRef<[u8]>) -> Observer {
        Observer::new(client, [prefix.as_ref(), b"/"].concat().into())
    }

    /// Returns the key of this candidate or leader; `None` if there is no candidacy.
    pub fn key(&self) -> Option<&Bytes> {
        self.candidacy.as_ref().map(|ours| &ours.key)
    }

    /// Returns the create revision of the key of this candidate or leader; `None` if there is no candidacy.
    pub fn revision(&self) -> Option<i64> {
        self.candidacy.as_ref().map(|ours| ours.revision)
    }
}

/// Returns the leader, if there is one, and the revision at which it was read.
async fn look(client: &Client, prefix: &Bytes) -> Result<(Option<Leadership>, i64), Status> {
    let found: RangeResponse = client.call(Rpc::KvRange, &oldest(prefix)).await?;
    let header = found.header.unwrap_or_default();
    Ok((found.kvs.into_iter().next().map(|kv| Leadership { header, kv }), header.revision))
}

/// Reports the leaders and the values that they proclaim, in order, and always ends at the newest one. It may
/// miss values, and even leaders, that were replaced between two of its reads.
pub struct Observer {
    client: Client,
    prefix: Bytes,
    watching: Option<Watching>,
    untold: VecDeque<Leadership>,
}

enum Watching {
    /// Watches the whole prefix, while there is no candidate.
    Prefix(Watcher),
    /// Watches the key of the leader.
    Leader(Watcher),
}

impl Observer {
    fn new(client: &Client, prefix: Bytes) -> Observer {
        Observer { client: client.clone(), prefix, watching: None, untold: VecDeque::new() }
    }

    /// Waits for the next leader or value and returns it. If the future is dropped, nothing is lost; the
    /// method may be called again.
    ///
    /// # Errors
    /// Returns the server's status; the method may be called again.
    pub async fn next(&mut self) -> Result<Leadership, Status> {
        loop {
            if let Some(told) = self.untold.pop_front() {
                return Ok(told);
            }
            let Some(watching) = &mut self.watching else {
                let (found, seen) = look(&self.client, &self.prefix).await?;
                match found {
                    Some(found) => self.follow(found, seen),
                    None => {
                        let request = WatchCreateRequest {
                            key: self.prefix.clone(),
                            range_end: prefix_end(&self.prefix),
                            start_revision: seen + 1,
                            ..WatchCreateRequest::default()
                        };
                        self.watching = Some(Watching::Prefix(Watcher::new(&self.client, request)));
                    }
                }
                continue;
            };
            let (Watching::Prefix(watcher) | Watching::Leader(watcher)) = watching;
            let update = watcher.next().await;
            let response = match update {
                Ok(Some(WatchUpdate::Events(response))) => response,
                Ok(Some(WatchUpdate::Created(_) | WatchUpdate::Progress(_))) => continue,
                Ok(Some(WatchUpdate::Canceled(response))) => {
                    self.watching = None;
                    if response.compact_revision == 0 {
                        return Err(status_of_text(&response.cancel_reason));
                    }
                    continue;
                }
                Ok(None) => {
                    self.watching = None;
                    continue;
                }
                Err(status) => {
                    self.watching = None;
                    return Err(status);
                }
            };
            let header = response.header.unwrap_or_default();
            let is_prefix = matches!(watching, Watching::Prefix(_));
            for event in response.events {
                let Some(kv) = event.kv else { continue };
                let deleted = event.r#type == EventType::Delete as i32;
                if is_prefix {
                    // There was no candidate, so the first key that is put belongs to the new leader. Follow
                    // this key, and ignore deletions and later candidates.
                    if !deleted {
                        let seen = kv.mod_revision;
                        let header = ResponseHeader { revision: seen, ..header };
                        self.follow(Leadership { header, kv }, seen);
                        break;
                    }
                } else if deleted {
                    self.watching = None;
                    break;
                } else {
                    self.untold.push_back(Leadership { header, kv });
                }
            }
        }
    }

    /// Queues a leader for the caller, and watches the leader's key for changes after the revision `seen`.
    fn follow(&mut self, found: Leadership, seen: i64) {
        let key = found.kv.key.clone();
        let request = WatchCreateRequest { key, start_revision: seen + 1, ..WatchCreateRequest::default() };
        self.watching = Some(Watching::Leader(Watcher::new(&self.client, request)));
        self.untold.push_back(found);
    }
}
