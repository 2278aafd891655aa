//! Makes calls that consist of other calls: the locks and elections of `lock` and `election`. etcd makes
//! these steps through its own client inside the server. Here, each step is a call on behalf of the client,
//! and is checked, proposed and counted like any other call.

use std::cell::{Cell, RefCell};
use std::future::{Future as _, poll_fn};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use accounting::Account;
use api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use api::etcdserverpb::range_request::{SortOrder, SortTarget};
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::watch_create_request::FilterType;
use api::etcdserverpb::watch_request::RequestUnion;
use api::etcdserverpb::{
    Compare, DeleteRangeRequest, LeaseGrantRequest, LeaseGrantResponse, PutRequest, RangeRequest,
    RangeResponse, RequestOp, TxnRequest, TxnResponse, WatchCreateRequest, WatchRequest, WatchResponse,
};
use api::mvccpb::event::EventType;
use api::{Code, Rpc, Status, error};
use bytes::{Bytes, BytesMut};
use front::{Answer, LocalBoxFuture, TrySend};
use prost::Message;

use super::call::{Call, without_code};
use super::principal::{Asker, UserPermit};
use super::{Services, decode, kv, lease, range};
use crate::watch::{Requests, Responses};

/// TTL in seconds of a lease that the server grants for a lock or a campaign without a lease. The server does
/// not renew it.
const SESSION_TTL: i64 = 60;

/// Makes the steps of one call, on behalf of its client.
pub(super) struct Steps {
    pub services: Rc<Services>,
    rpc: Rpc,
    /// Client of the call. It is identified again for each step, since a step may run long after the previous
    /// one.
    asker: Asker,
    /// Memory account of the call's connection, in which memory for the call's watches is reserved. `None` if
    /// the call did not arrive over a connection.
    pub account: Option<Rc<Account>>,
    /// True after a step that may have written.
    has_written: Cell<bool>,
}

impl Steps {
    /// Returns the steps of a call; `asker` is the client of the call.
    pub fn new(services: &Rc<Services>, rpc: Rpc, asker: Asker) -> Steps {
        Steps {
            services: Rc::clone(services),
            rpc,
            asker,
            account: Account::of_turn(),
            has_written: Cell::new(false),
        }
    }

    /// Makes one step. A step is not measured on its own, only as part of the whole call.
    async fn call<A: Message + Default>(
        &self,
        handler: impl AsyncFnOnce(&mut Call, Bytes) -> Result<Answer, Status>,
        request: &impl Message,
    ) -> Result<A, Status> {
        let message = request.encode_to_vec().into();
        let principal = Box::pin(self.services.identified(&self.asker)).await;
        let step = Call::step(&self.services, (self.rpc, self.asker.peer), principal);
        let answer = Box::pin(step.answer(handler, message)).await?;
        decode(gathered(answer).await?)
    }

    pub async fn txn(&self, request: &TxnRequest) -> Result<TxnResponse, Status> {
        self.write(kv::txn, request).await
    }

    async fn write<A: Message + Default>(
        &self,
        handler: impl AsyncFnOnce(&mut Call, Bytes) -> Result<Answer, Status>,
        request: &impl Message,
    ) -> Result<A, Status> {
        let answer = self.call(handler, request).await?;
        self.has_written.set(true);
        Ok(answer)
    }

    /// Returns the error of a call whose step failed with `status`. If no earlier step has written, the error
    /// keeps its status code, by which the audit log recognizes that the call was refused. After a write, the
    /// call was partly carried out and is not recorded as refused, so the code is removed here. For the
    /// client, [`Call::end`] removes the code in both cases.
    pub fn failed(&self, status: Status) -> Status {
        if self.has_written.get() { without_code(status) } else { status }
    }

    pub async fn range(&self, request: &RangeRequest) -> Result<RangeResponse, Status> {
        self.call(range::range, request).await
    }

    pub async fn delete(&self, key: Bytes) -> Result<api::etcdserverpb::DeleteRangeResponse, Status> {
        self.write(kv::delete_range, &DeleteRangeRequest { key, ..DeleteRangeRequest::default() }).await
    }

    /// Returns the lease for a lock or a campaign: `lease`, or a newly granted lease if `lease` is 0. As in
    /// etcd, only the client renews the lease.
    pub async fn session(&self, lease: i64) -> Result<i64, Status> {
        if lease != 0 {
            return Ok(lease);
        }
        let grant = LeaseGrantRequest { ttl: SESSION_TTL, id: 0 };
        let granted: LeaseGrantResponse = self.write(lease::grant, &grant).await?;
        Ok(granted.id)
    }

    /// Starts to delete the first of these keys, on the condition that each of the keys still has the given
    /// create revision. The request is sent even if the returned future is dropped. Returns `None` if no
    /// request can be sent, or if there is nothing to wait for.
    fn begin_release(&self, keys: &[(&Bytes, i64)]) -> Option<LocalBoxFuture<Result<Answer, Status>>> {
        let (key, _) = keys.first()?;
        let principal = self.services.identify(&self.asker).ok()?;
        let step = Call::step(&self.services, (self.rpc, self.asker.peer), Ok(principal));
        let request = TxnRequest {
            compare: keys.iter().map(|(key, created)| is_created_at(key, *created)).collect(),
            success: vec![op(Request::RequestDeleteRange(DeleteRangeRequest {
                key: (*key).clone(),
                ..DeleteRangeRequest::default()
            }))],
            failure: Vec::new(),
        };
        let mut deleted = Box::pin(step.answer(kv::txn, request.encode_to_vec().into()));
        // This poll sends the request, even if the future is dropped afterwards. A caller that waits for the
        // reply polls again, with a waker.
        match deleted.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => Some(deleted),
            Poll::Ready(_) => None,
        }
    }

    /// Watches these keys, starting at revision `from`. Memory for the watch and its responses is reserved in
    /// the account of the call's connection.
    pub fn changes(&self, keys: Keys, from: i64, needs_leader: bool) -> Changes {
        let services = &self.services;
        let Keys { key, range_end, deletions_only } = keys;
        let filters = if deletions_only { vec![FilterType::Noput as i32] } else { Vec::new() };
        let create = WatchCreateRequest {
            key,
            range_end,
            start_revision: from,
            filters,
            ..WatchCreateRequest::default()
        };
        let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        let arrived = Rc::default();
        let responses = Sink { arrived: Rc::clone(&arrived), account: self.account.clone() };
        let caller = Arc::clone(&services.caller_of(self.asker.peer));
        let (services, asker) = (Rc::clone(services), self.asker.clone());
        let closed = services.ending.begun();
        let requests = Once(Some(request.encode_to_vec().into()));
        let stream = Box::pin(async move {
            let permit = Box::new(UserPermit::<true>::of(&services, asker).await);
            services.hub.serve(needs_leader, (caller, permit, None), requests, responses, closed).await
        });
        Changes::of(stream, arrived)
    }

    /// Waits until no key of the line (all keys of the lock or election) is older than the key of `place`.
    /// The call watches only the key directly before its own key, so the deletion of a key wakes only one
    /// waiting call.
    pub async fn turn(&self, line: &Line, place: &mut Place<'_>) -> Result<(), Status> {
        loop {
            let before = RangeRequest {
                max_create_revision: place.created - 1,
                sort_order: SortOrder::Descend as i32,
                limit: 1,
                keys_only: true,
                // A serializable read needs no round to the leader and is new enough: this member has applied
                // the transaction that created or found the key, so it knows all older keys.
                serializable: true,
                ..line.all()
            };
            let found = self.range(&before).await?;
            // The request is dropped here, because a call may wait for hours.
            drop(before);
            let Some(last) = found.kvs.into_iter().next() else { return Ok(()) };
            let revision = found.header.unwrap_or_default().revision;
            if !place.is_made {
                place.before = Some((last.key.clone(), last.create_revision));
            }
            self.deleted(last.key, revision + 1).await?;
        }
    }

    /// Waits until this key is deleted at revision `from` or later, or until that deletion may have been
    /// compacted.
    async fn deleted(&self, key: Bytes, from: i64) -> Result<(), Status> {
        let keys = Keys { key, range_end: Bytes::new(), deletions_only: true };
        let mut changes = self.changes(keys, from, false);
        loop {
            let response = changes.next().await?;
            if response.compact_revision != 0 {
                return Ok(());
            }
            if response.canceled {
                return Err(canceled(&response));
            }
            if response.events.iter().any(|event| event.r#type() == EventType::Delete) {
                return Ok(());
            }
        }
    }
}

/// Returns the error of a cancelled watch. The reason in the response contains no status code.
pub(super) fn canceled(response: &WatchResponse) -> Status {
    let reason = &response.cancel_reason;
    let bare = reason.split_once(" desc = ").map_or(reason.as_str(), |(_, text)| text);
    match error::CATALOGUE.iter().find(|known| known.message == bare) {
        Some(known) => known.clone(),
        None => Status::with(Code::Unknown, bare),
    }
}

/// Keys to watch.
pub(super) struct Keys {
    pub key: Bytes,
    pub range_end: Bytes,
    pub deletions_only: bool,
}

/// The waiting line of one lock or election: the keys `name/<lease>` of all its callers. The owner of the
/// oldest key holds the lock or is the leader.
pub(super) struct Line {
    /// The name with a trailing slash.
    prefix: Bytes,
}

impl Line {
    pub fn new(name: &[u8]) -> Line {
        Line { prefix: [name, b"/"].concat().into() }
    }

    /// Returns the line of this name, and the key in it for this lease. The key ends with the lease id in
    /// Go's hexadecimal format. The line and the key share one buffer, because a call holds both while it
    /// waits.
    pub fn with_key(name: &[u8], lease: i64) -> (Line, Bytes) {
        let sign = if lease < 0 { "-" } else { "" };
        let number = format!("{sign}{:x}", lease.unsigned_abs());
        let key = Bytes::from([name, b"/", number.as_bytes()].concat());
        (Line { prefix: key.slice(..=name.len()) }, key)
    }

    /// Returns the name of the lock or election.
    pub fn name(&self) -> Bytes {
        self.prefix.slice(..self.prefix.len() - 1)
    }

    /// Returns the range of all keys of the line.
    pub fn range(&self) -> Range<Bytes> {
        let mut end = BytesMut::from(&self.prefix[..]);
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        self.prefix.clone()..end.freeze()
    }

    /// Returns a request for all keys of the line, ordered by create revision.
    pub fn all(&self) -> RangeRequest {
        let Range { start, end } = self.range();
        RangeRequest {
            key: start,
            range_end: end,
            sort_target: SortTarget::Create as i32,
            ..RangeRequest::default()
        }
    }

    /// Returns a request for the oldest key of the line.
    pub fn oldest(&self) -> RangeRequest {
        RangeRequest { sort_order: SortOrder::Ascend as i32, limit: 1, ..self.all() }
    }
}

/// Guard of a caller's key in a line. The key is deleted when the guard is dropped, unless [`Place::keep`]
/// was called. The front drops the call, and the guard with it, when the client disconnects.
///
/// A key that existed before the call may already hold the lock for an earlier call of the client. Such a key
/// is deleted only if another key is still before it, so that it cannot be the holder's (COMPAT-153).
pub(super) struct Place<'a> {
    steps: &'a Steps,
    key: &'a Bytes,
    created: i64,
    /// True if this call created the key.
    is_made: bool,
    /// The key directly before the caller's key, and its create revision. Set only if this call did not
    /// create the caller's key.
    before: Option<(Bytes, i64)>,
    is_kept: bool,
}

impl<'a> Place<'a> {
    /// Returns the guard of a key that this call (`is_made`) or an earlier call created at revision
    /// `created`.
    pub fn new(steps: &'a Steps, key: &'a Bytes, (created, is_made): (i64, bool)) -> Place<'a> {
        Place { steps, key, created, is_made, before: None, is_kept: false }
    }

    /// Consumes the place without deleting the key.
    pub fn keep(mut self) {
        self.is_kept = true;
    }

    /// Deletes the key, and waits until that has succeeded or failed.
    pub async fn leave(mut self) {
        self.is_kept = true;
        if let Some(deleted) = self.begin() {
            // The result is not needed: if the deletion failed, the key is deleted when its lease expires.
            drop(deleted.await);
        }
    }

    /// Starts to delete the key. If this member is shutting down, the key is not deleted, because the client
    /// will continue with the same lease on another member.
    fn begin(&self) -> Option<LocalBoxFuture<Result<Answer, Status>>> {
        if self.steps.services.closing.has_begun() {
            return None;
        }
        let own = (self.key, self.created);
        match &self.before {
            _ if self.is_made => self.steps.begin_release(&[own]),
            Some((before, created)) => self.steps.begin_release(&[own, (before, *created)]),
            None => None,
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            drop(self.begin());
        }
    }
}

/// Stream of changes of watched keys.
pub(super) struct Changes {
    stream: LocalBoxFuture<Result<(), Status>>,
    /// Status with which the stream ended. After the end the stream is not polled again; a response that
    /// arrived together with the end is returned before the status.
    over: Option<Status>,
    arrived: Rc<RefCell<Option<Bytes>>>,
}

impl Changes {
    fn of(stream: LocalBoxFuture<Result<(), Status>>, arrived: Rc<RefCell<Option<Bytes>>>) -> Changes {
        Changes { stream, over: None, arrived }
    }

    /// Returns the next response.
    ///
    /// # Errors
    ///
    /// Returns an error if the watch ended because the member shuts down, has no leader, or is known to have
    /// wrong data.
    pub async fn next(&mut self) -> Result<WatchResponse, Status> {
        let message = poll_fn(|context| {
            if self.over.is_none()
                && let Poll::Ready(over) = self.stream.as_mut().poll(context)
            {
                self.over = Some(over.err().unwrap_or(error::STOPPED));
            }
            match (self.arrived.borrow_mut().take(), &self.over) {
                (Some(message), _) => Poll::Ready(Ok(message)),
                (None, Some(over)) => Poll::Ready(Err(over.clone())),
                (None, None) => Poll::Pending,
            }
        })
        .await?;
        decode(message)
    }
}

/// A request stream with a single request.
struct Once(Option<Bytes>);

impl Requests for Once {
    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        Poll::Ready(Ok(self.0.take()))
    }
}

/// Response stream that holds one response at a time. The task that removes the response polls the stream
/// again, so no waker is stored.
struct Sink {
    arrived: Rc<RefCell<Option<Bytes>>>,
    account: Option<Rc<Account>>,
}

impl Responses for Sink {
    fn open(&mut self) -> Result<(), Status> {
        Ok(())
    }

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        if self.arrived.borrow().is_some() { Poll::Pending } else { Poll::Ready(Ok(())) }
    }

    fn try_send(&mut self, message: Bytes) -> Result<(), TrySend> {
        *self.arrived.borrow_mut() = Some(message);
        Ok(())
    }

    fn account(&self) -> Option<Rc<Account>> {
        self.account.clone()
    }
}

/// Returns all bytes of a response.
async fn gathered(answer: Answer) -> Result<Bytes, Status> {
    let (len, mut source) = match answer {
        Answer::Whole(bytes) => return Ok(bytes),
        Answer::Pieces { len, source, .. } => (len, source),
    };
    let mut out = BytesMut::new();
    while let Some(piece) = poll_fn(|context| source(len, context)).await? {
        out.extend_from_slice(&piece);
    }
    Ok(out.freeze())
}

pub(super) fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

/// Returns a comparison that holds if the key was created at this revision; with revision 0, if the key does
/// not exist.
pub(super) fn is_created_at(key: &Bytes, revision: i64) -> Compare {
    Compare {
        key: key.clone(),
        result: CompareResult::Equal as i32,
        target: CompareTarget::Create as i32,
        target_union: Some(TargetUnion::CreateRevision(revision)),
        ..Compare::default()
    }
}

pub(super) fn put(key: &Bytes, value: Bytes, lease: i64) -> RequestOp {
    op(Request::RequestPut(PutRequest { key: key.clone(), value, lease, ..PutRequest::default() }))
}

pub(super) fn get(key: &Bytes) -> RequestOp {
    op(Request::RequestRange(RangeRequest { key: key.clone(), ..RangeRequest::default() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_named_as_gos_client_names_them() {
        for (name, lease, expected) in [
            ("door", 0x1b59, "door/1b59"),
            ("", 10, "/a"),
            ("a/", -1, "a//-1"),
            ("x", i64::MIN, "x/-8000000000000000"),
        ] {
            let (line, key) = Line::with_key(name.as_bytes(), lease);
            assert_eq!(key, expected);
            assert_eq!(line.name(), name);
            assert_eq!(line.range(), Line::new(name.as_bytes()).range());
            assert_eq!(line.range(), Bytes::from(format!("{name}/"))..Bytes::from(format!("{name}0")));
        }
    }

    /// A message and the end of the stream may arrive in the same poll.
    #[test]
    fn the_end_of_a_watch_is_told_behind_its_last_response_and_not_waited_for_again() {
        let arrived = Rc::new(RefCell::new(None));
        let last = WatchResponse { watch_id: 7, ..WatchResponse::default() };
        let (sink, bytes) = (Rc::clone(&arrived), Bytes::from(last.encode_to_vec()));
        let stream = Box::pin(async move {
            *sink.borrow_mut() = Some(bytes);
            Err(error::NO_LEADER)
        });
        let mut changes = Changes::of(stream, arrived);
        let mut next = || {
            let context = &mut Context::from_waker(std::task::Waker::noop());
            match std::pin::pin!(changes.next()).poll(context) {
                Poll::Ready(next) => next,
                Poll::Pending => panic!("there is nothing to wait for"),
            }
        };
        assert_eq!(next(), Ok(last));
        assert_eq!(next(), Err(error::NO_LEADER));
        assert_eq!(next(), Err(error::NO_LEADER));
    }
}
