//! Elections by keys under leases, laid out as in etcd's `clientv3/concurrency`: [`Election`] campaigns, proclaims and
//! resigns, [`Observer`] follows the leaders. It asks the server nothing that KV and Watch do not offer.

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

/// An election under a prefix. Each candidate has the key `<prefix>/<lease in hexadecimal>` with its value; the oldest
/// key leads.
pub struct Election {
    client: Client,
    lease: i64,
    prefix: Bytes,
    candidacy: Option<Candidacy>,
}

/// Our key, waiting or leading.
struct Candidacy {
    key: Bytes,
    revision: i64,
}

/// Why an election does not do what was asked.
#[derive(Debug)]
pub enum ElectionError {
    /// We do not lead.
    NotLeader,
    /// There is no leader.
    NoLeader,
    /// The server's status.
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
    /// Header of the answer or event that reported the leader.
    pub header: ResponseHeader,
    /// The leader's key and what it proclaims.
    pub kv: KeyValue,
}

impl Election {
    /// An election in which we are no candidate yet.
    pub fn new(session: &Session, prefix: impl AsRef<[u8]>) -> Election {
        let prefix = [prefix.as_ref(), b"/"].concat().into();
        Election { client: session.client().clone(), lease: session.lease(), prefix, candidacy: None }
    }

    /// Waits until we lead, with this value. Dropped while it waits, it leaves our candidacy: [`Election::resign`]
    /// withdraws it.
    ///
    /// # Errors
    /// The server's status; our candidacy is withdrawn then, as far as the server can be reached.
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
            let found = found.ok_or(Status::new(api::Code::Internal, "an answer without our key"))?;
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

    /// Announces another value as the leader.
    ///
    /// # Errors
    /// We do not lead any more, or the server's status.
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

    /// Gives up leadership or candidacy; without one, nothing happens.
    ///
    /// # Errors
    /// The server's status; it may be tried again.
    pub async fn resign(&mut self) -> Result<(), ElectionError> {
        if let Some(ours) = &self.candidacy {
            let held = vec![is_created_at(&ours.key, ours.revision)];
            txn(&self.client, held, vec![delete_op(&ours.key)], vec![]).await?;
            self.candidacy = None;
        }
        Ok(())
    }

    /// Returns the present leader.
    ///
    /// # Errors
    ///
    /// There is none, or the server's status.
    pub async fn leader(&self) -> Result<Leadership, ElectionError> {
        look(&self.client, &self.prefix).await?.0.ok_or(ElectionError::NoLeader)
    }

    /// Follows who leads, from now on.
    pub fn observe(&self) -> Observer {
        Observer::new(&self.client, self.prefix.clone())
    }

    /// Follows an election without taking part, and so without a session.
    pub fn observe_prefix(client: &Client, prefix: impl AsRef<[u8]>) -> Observer {
        Observer::new(client, [prefix.as_ref(), b"/"].concat().into())
    }

    /// Our key while we are a candidate or lead.
    pub fn key(&self) -> Option<&Bytes> {
        self.candidacy.as_ref().map(|ours| &ours.key)
    }

    /// The revision our key was created at, while we are a candidate or lead.
    pub fn revision(&self) -> Option<i64> {
        self.candidacy.as_ref().map(|ours| ours.revision)
    }
}

/// The leader, if there is one, and the revision looked at.
async fn look(client: &Client, prefix: &Bytes) -> Result<(Option<Leadership>, i64), Status> {
    let found: RangeResponse = client.call(Rpc::KvRange, &oldest(prefix)).await?;
    let header = found.header.unwrap_or_default();
    Ok((found.kvs.into_iter().next().map(|kv| Leadership { header, kv }), header.revision))
}

/// Follows the leaders and their proclaimed values: each value of a leader in order, and always the newest; leaders that
/// came and went between two looks may be missed.
pub struct Observer {
    client: Client,
    prefix: Bytes,
    watching: Option<Watching>,
    untold: VecDeque<Leadership>,
}

enum Watching {
    /// Waits for the first candidate.
    Prefix(Watcher),
    /// The leader's key.
    Leader(Watcher),
}

impl Observer {
    fn new(client: &Client, prefix: Bytes) -> Observer {
        Observer { client: client.clone(), prefix, watching: None, untold: VecDeque::new() }
    }

    /// The next leader or value. May be dropped and called again without loss.
    ///
    /// # Errors
    /// The server's status; it may be tried again.
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
                    // A candidate that came and went is of no interest, and neither is who came behind it.
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

    /// Tells of a leader and watches its key from after this revision.
    fn follow(&mut self, found: Leadership, seen: i64) {
        let key = found.kv.key.clone();
        let request = WatchCreateRequest { key, start_revision: seen + 1, ..WatchCreateRequest::default() };
        self.watching = Some(Watching::Leader(Watcher::new(&self.client, request)));
        self.untold.push_back(found);
    }
}
