//! Answers the calls of `v3electionpb.Election`. The leader is the owner of the oldest key `name/<lease>`, as
//! with a lock. The value of that key is what the leader proclaims.

use std::rc::Rc;

use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::response_op::Response;
use api::etcdserverpb::{DeleteRangeRequest, ResponseHeader, TxnRequest};
use api::mvccpb::event::EventType;
use api::v3electionpb::{
    CampaignRequest, CampaignResponse, LeaderKey, LeaderRequest, LeaderResponse, ProclaimRequest,
    ProclaimResponse, ResignRequest, ResignResponse,
};
use api::{Code, Rpc, Status, error};
use bytes::Bytes;
use front::{Answer, Head, Inbound, Outbound};
use prost::Message as _;

use super::call::Call;
use super::principal::{Asker, Principal};
use super::steps::{Keys, Line, Place, Steps, get, is_created_at, op, put};
use super::{NO_REQUEST, Services, decode, decode_streamed, whole};
use crate::audit;

const NO_LEADER_FIELD: Status = Status::new(Code::Unknown, r#""leader" field must be provided"#);
const NOT_LEADER: Status = Status::new(Code::Unknown, "election: not leader");
const NO_LEADER: Status = Status::new(Code::Unknown, "election: no leader");

/// Answers a Campaign.
pub(super) async fn campaign(call: &mut Call, asker: Asker, message: Bytes) -> Result<Answer, Status> {
    let CampaignRequest { name, lease, value } = decode(message)?;
    call.expensive()?;
    let steps = Steps::new(&call.services, call.rpc, asker);
    let won = won(&steps, name, lease, value).await.map_err(|status| steps.failed(status))?;
    Ok(whole(&won))
}

/// Answers a Proclaim.
pub(super) async fn proclaim(call: &mut Call, asker: Asker, message: Bytes) -> Result<Answer, Status> {
    let ProclaimRequest { leader, value } = decode(message)?;
    let LeaderKey { key, rev, lease, .. } = leader.ok_or(NO_LEADER_FIELD)?;
    let steps = Steps::new(&call.services, call.rpc, asker);
    let lease = steps.session(lease).await?;
    let proclaimed = proclaimed(&steps, &key, rev, lease, value).await;
    let header = proclaimed.map_err(|status| steps.failed(status))?;
    Ok(whole(&ProclaimResponse { header }))
}

/// Answers a Resign.
pub(super) async fn resign(call: &mut Call, asker: Asker, message: Bytes) -> Result<Answer, Status> {
    let ResignRequest { leader } = decode(message)?;
    let LeaderKey { key, rev, .. } = leader.ok_or(NO_LEADER_FIELD)?;
    let header = resigned(&Steps::new(&call.services, call.rpc, asker), &key, rev).await?;
    Ok(whole(&ResignResponse { header }))
}

/// Answers a Leader.
pub(super) async fn leader(call: &mut Call, asker: Asker, message: Bytes) -> Result<Answer, Status> {
    let LeaderRequest { name } = decode(message)?;
    call.expensive()?;
    let steps = Steps::new(&call.services, call.rpc, asker);
    let found = steps.range(&Line::new(&name).oldest()).await?;
    let kv = Some(found.kvs.into_iter().next().ok_or(NO_LEADER)?);
    Ok(whole(&LeaderResponse { header: found.header, kv }))
}

impl Services {
    /// Streams the current leader, each of its proclamations, and then the next leader. If the stream cannot
    /// continue, it ends without an error, as in etcd; the audit log records the reason.
    pub(super) async fn observe(
        self: &Rc<Self>,
        head: &Head,
        principal: Result<Principal, Status>,
        mut call: Option<audit::Call>,
        mut inbound: Inbound,
        mut outbound: Outbound,
    ) -> Result<(), Status> {
        let ended = match inbound.next().await {
            Ok(Some(message)) => {
                call.iter_mut().for_each(|call| call.asks(&message));
                self.observed(head, principal, message, &mut outbound).await
            }
            Ok(None) => Ended::Call(NO_REQUEST),
            Err(status) => Ended::Call(status),
        };
        let (why, told) = match ended {
            Ended::Call(status) => (status.clone(), Err(status)),
            Ended::Watch(status) => {
                let told = if status == error::CORRUPT {
                    Err(status.clone())
                } else if self.closing.has_begun() {
                    Err(error::STOPPED)
                } else if head.requires_leader && !self.hub.has_leader() {
                    Err(error::NO_LEADER)
                } else {
                    Ok(())
                };
                (status, told)
            }
        };
        call.into_iter().for_each(|call| call.ended(&Err(why.clone())));
        told
    }

    async fn observed(
        self: &Rc<Self>,
        head: &Head,
        principal: Result<Principal, Status>,
        message: Bytes,
        outbound: &mut Outbound,
    ) -> Ended {
        let name = match decode_streamed(message) {
            Ok(LeaderRequest { name }) => name,
            Err(status) => return Ended::Call(status),
        };
        let counted = principal.and_then(|principal| self.expensive(&principal, head.peer.ip()));
        if let Err(status) = counted {
            return Ended::Watch(status);
        }
        let mut steps = Steps::new(self, Rpc::ElectionObserve, Asker::of(head));
        steps.account = Some(outbound.account());
        let line = Line::new(&name);
        drop(name);
        let observed = Observer { steps: &steps, line: &line, needs_leader: head.requires_leader };
        loop {
            if let Err(ended) = observed.one_leader(outbound).await {
                return ended;
            }
        }
    }
}

/// Reason why an observation ends.
enum Ended {
    /// The call failed, or the client reads no more responses.
    Call(Status),
    /// The keys can no longer be read or watched.
    Watch(Status),
}

struct Observer<'a> {
    steps: &'a Steps,
    line: &'a Line,
    needs_leader: bool,
}

impl Observer<'_> {
    /// Sends the current leader and its proclamations until it is no longer the leader. If there is no
    /// leader, waits for one first.
    async fn one_leader(&self, outbound: &mut Outbound) -> Result<(), Ended> {
        let found = self.steps.range(&self.line.oldest()).await.map_err(Ended::Watch)?;
        let mut header = found.header.unwrap_or_default();
        let kv = match found.kvs.into_iter().next() {
            Some(kv) => kv,
            None => {
                let range = self.line.range();
                let keys = Keys { key: range.start, range_end: range.end, deletions_only: false };
                let mut changes = self.steps.changes(keys, header.revision, self.needs_leader);
                loop {
                    let response = changes.next().await.map_err(Ended::Watch)?;
                    if response.canceled {
                        return Err(Ended::Watch(super::steps::canceled(&response)));
                    }
                    let mut events = response.events.into_iter();
                    if let Some(event) = events.find(|event| event.r#type() == EventType::Put) {
                        header = response.header.unwrap_or_default();
                        let kv = event.kv.unwrap_or_default();
                        header.revision = kv.mod_revision;
                        break kv;
                    }
                }
            }
        };
        let key = kv.key.clone();
        let first = LeaderResponse { header: Some(header), kv: Some(kv) };
        outbound.send(first.encode_to_vec().into()).await.map_err(Ended::Call)?;
        let keys = Keys { key, range_end: Bytes::new(), deletions_only: false };
        let mut changes = self.steps.changes(keys, header.revision + 1, self.needs_leader);
        loop {
            let response = changes.next().await.map_err(Ended::Watch)?;
            if response.canceled {
                return Err(Ended::Watch(super::steps::canceled(&response)));
            }
            for event in response.events {
                if event.r#type() == EventType::Delete {
                    return Ok(());
                }
                let next = LeaderResponse { header: response.header, kv: event.kv };
                outbound.send(next.encode_to_vec().into()).await.map_err(Ended::Call)?;
            }
        }
    }
}

/// Creates the key of a candidate with this lease, or with a new one if `lease` is 0, and waits until the
/// candidate leads.
async fn won(steps: &Steps, name: Bytes, lease: i64, value: Bytes) -> Result<CampaignResponse, Status> {
    let lease = steps.session(lease).await?;
    let (line, key) = Line::with_key(&name, lease);
    drop(name);
    let request = TxnRequest {
        compare: vec![is_created_at(&key, 0)],
        success: vec![put(&key, value.clone(), lease)],
        failure: vec![get(&key)],
    };
    let made = steps.txn(&request).await?;
    drop(request);
    let (header, is_made) = (made.header, made.succeeded);
    let mut created = header.unwrap_or_default().revision;
    for response in made.responses.into_iter().filter_map(|op| op.response) {
        let Response::ResponseRange(range) = response else { continue };
        let Some(kv) = range.kvs.into_iter().next() else { continue };
        created = kv.create_revision;
        if kv.value != value
            && let Err(status) = proclaimed(steps, &key, created, lease, value.clone()).await
        {
            drop(resigned(steps, &key, created).await);
            return Err(status);
        }
    }
    drop(value);
    let mut place = Place::new(steps, &key, (created, is_made));
    let waited = steps.turn(&line, &mut place).await;
    // As in etcd, the candidate's key is kept even if the wait has failed. If the client disconnects during
    // the wait, this line is not reached, and dropping `place` deletes the key.
    place.keep();
    waited?;
    let leader = Some(LeaderKey { name: line.name(), key, rev: created, lease });
    Ok(CampaignResponse { header, leader })
}

/// Sets the value of a leader's key, if the key is still the one created at revision `created`.
async fn proclaimed(
    steps: &Steps,
    key: &Bytes,
    created: i64,
    lease: i64,
    value: Bytes,
) -> Result<Option<ResponseHeader>, Status> {
    let request = TxnRequest {
        compare: vec![is_created_at(key, created)],
        success: vec![put(key, value, lease)],
        failure: Vec::new(),
    };
    let answer = steps.txn(&request).await?;
    if answer.succeeded { Ok(answer.header) } else { Err(NOT_LEADER) }
}

/// Deletes the key of a leader, if it is still the one created at revision `created`.
async fn resigned(steps: &Steps, key: &Bytes, created: i64) -> Result<Option<ResponseHeader>, Status> {
    let delete = DeleteRangeRequest { key: key.clone(), ..DeleteRangeRequest::default() };
    let request = TxnRequest {
        compare: vec![is_created_at(key, created)],
        success: vec![op(Request::RequestDeleteRange(delete))],
        failure: Vec::new(),
    };
    Ok(steps.txn(&request).await?.header)
}
