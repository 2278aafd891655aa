//! `--experimental-leasing-prefix`: the proxy owns keys that are read through it, and answers reads of them
//! without a member.
//!
//! The owner of a key keeps a leasing key: the prefix followed by the key, attached to a lease. All proxies
//! of this kind, including etcd's, guard a write of the key by the condition that no other proxy has the
//! leasing key. If another proxy has it, they set it to `REVOKE` and wait until the owner has deleted it, or
//! its lease has ended.
//!
//! `owned` decides; `session` keeps the lease and watches the leasing keys. Clients with a token own nothing,
//! because different users may read different keys; their writes follow the same rules.

mod owned;
mod session;

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::response_op::Response;
use api::etcdserverpb::watch_request::RequestUnion;
use api::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RangeResponse, RequestOp, ResponseHeader,
    ResponseOp, TxnRequest, TxnResponse, WatchCreateRequest, WatchRequest, WatchResponse,
};
use api::mvccpb::KeyValue;
use api::mvccpb::event::EventType;
use api::{Code, Rpc, Status, error};
use bytes::Bytes;
use client::CallOptions;
use http::{HeaderName, HeaderValue};
use prost::Message as _;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::cache::{Keys, overlap};
use crate::members::{Headed, Members};
use crate::namespace::{FROM_KEY, decode_answer, decode_request, decode_txn, end_of_prefix, writes_of};
use owned::{Change, Outcome, Owned, Read, Write, answer};

/// Value of a leasing key that asks its owner to give the key back. Source: etcd's leasing.
const REVOKE: Bytes = Bytes::from_static(b"REVOKE");
/// Largest number of leasing keys that one transaction creates or deletes: well below the number of
/// operations that members allow. If a member allows fewer, smaller transactions are sent.
const CHUNK: usize = 50;
/// Largest size of a transaction that creates or deletes leasing keys, in bytes.
const CHUNK_BYTES: usize = 512 << 10;
/// Longest key that is claimed, in bytes: several requests contain its leasing key, up to three times each.
const KEY_BYTES_MAX: usize = 4 << 10;
/// Largest number of operations and conditions of a writing transaction. Each written key adds a condition,
/// of which members allow fewer unless they are configured otherwise.
const WRITING_MAX: usize = 1_024;
/// Number of leasing keys read at a time.
const PAGE: i64 = 1_000;
/// Pause before a write is retried after its wait for an owner was interrupted.
const PAUSE: Duration = Duration::from_millis(50);
/// Longest wait for owners before the leasing keys are read again.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// Ownership of keys, shared by all shards.
pub(crate) struct Leasing {
    /// Prefix of leasing keys; within the namespace.
    prefix: Bytes,
    owned: Mutex<Owned>,
    /// Notified when leasing keys are to be deleted.
    has_left: Notify,
}

/// A claim in flight.
struct Claim<'l> {
    leasing: &'l Leasing,
    key: &'l Bytes,
    is_over: bool,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.leasing.with(|owned| owned.give_up_claim(self.key));
        }
    }
}

/// A write in flight.
struct Writing<'l> {
    leasing: &'l Leasing,
    write: Option<Write>,
}

impl Writing<'_> {
    fn end(mut self, outcome: &Outcome<'_>) {
        self.finish(outcome);
    }

    fn finish(&mut self, outcome: &Outcome<'_>) {
        if let Some(write) = self.write.take() {
            self.leasing.with(|owned| owned.written(write, outcome));
        }
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        // The client has left, or its deadline has passed; the member may still carry the write out.
        self.finish(&Outcome::Lost);
    }
}

impl Leasing {
    pub(crate) fn new(prefix: Bytes) -> Leasing {
        Leasing { prefix, owned: Mutex::default(), has_left: Notify::new() }
    }

    /// Handles a call of the KV service: range, put, delete or transaction. `may_own`: the caller has no credentials.
    ///
    /// # Errors
    /// The errors of the members.
    pub(crate) async fn call(
        &self,
        members: &Members,
        rpc: Rpc,
        options: &CallOptions,
        message: Bytes,
        may_own: bool,
    ) -> Result<Bytes, Status> {
        match rpc {
            Rpc::KvRange if may_own => self.read(members, options, message).await,
            Rpc::KvRange => self.ask(members, rpc, options, message).await,
            Rpc::KvPut => {
                let request: PutRequest = decode_request(&message)?;
                let written = vec![(request.key.clone(), Bytes::new())];
                let op = RequestOp { request: Some(Request::RequestPut(request)) };
                let (header, response) = self.write_one(members, options, written, op).await?;
                match response {
                    Response::ResponsePut(mut put) => {
                        put.header = Some(header);
                        Ok(put.encode_to_vec().into())
                    }
                    _ => Err(MISFIT),
                }
            }
            Rpc::KvDeleteRange => {
                let request: DeleteRangeRequest = decode_request(&message)?;
                let written = vec![(request.key.clone(), request.range_end.clone())];
                let op = RequestOp { request: Some(Request::RequestDeleteRange(request)) };
                let (header, response) = self.write_one(members, options, written, op).await?;
                match response {
                    Response::ResponseDeleteRange(mut deleted) => {
                        deleted.header = Some(header);
                        Ok(deleted.encode_to_vec().into())
                    }
                    _ => Err(MISFIT),
                }
            }
            Rpc::KvTxn => self.transaction(members, options, message, may_own).await,
            _ => members.call(rpc, options, message).await,
        }
    }

    /// Gives all keys back and stops answering reads of them, because permissions have changed.
    pub(crate) fn leave_all(&self) {
        self.with(Owned::leave_all);
    }

    /// Decides how a read is answered.
    fn how(&self, request: &RangeRequest, now: Instant) -> Read {
        // Leasing keys are not claimed: they are already owned by the proxies that created them.
        if request.key.len() > KEY_BYTES_MAX || request.key.starts_with(&self.prefix) {
            return Read::Member;
        }
        self.with(|owned| owned.read(request, now))
    }

    async fn read(&self, members: &Members, options: &CallOptions, message: Bytes) -> Result<Bytes, Status> {
        let request: RangeRequest = decode_request(&message)?;
        let key = &request.key;
        let plain = || RangeRequest { key: key.clone(), ..RangeRequest::default() };
        match self.how(&request, Instant::now()) {
            Read::Known(answer) => Ok(answer.encode_to_vec().into()),
            Read::Member => self.ask(members, Rpc::KvRange, options, message).await,
            Read::Again(moment) => {
                let found = self.ask(members, Rpc::KvRange, options, plain().encode_to_vec().into()).await?;
                let found: RangeResponse = decode_answer(&found)?;
                let kv = found.kvs.into_iter().next();
                let answer = answer(&request, kv.as_ref(), found.header.unwrap_or_default());
                self.with(|owned| owned.read_again(key, moment, kv));
                Ok(answer.encode_to_vec().into())
            }
            Read::Claim(lease) => match self.claim(members, options, lease, key).await {
                Ok((header, kv)) => Ok(answer(&request, kv.as_ref(), header).encode_to_vec().into()),
                // The claim is a write, and a member may refuse writes now; a plain read may still work.
                Err(status) if is_refusal(&status) => self.ask(members, Rpc::KvRange, options, message).await,
                Err(status) => Err(status),
            },
        }
    }

    /// Reads a key and claims it in one transaction.
    async fn claim(
        &self,
        members: &Members,
        options: &CallOptions,
        lease: i64,
        key: &Bytes,
    ) -> Result<(ResponseHeader, Option<KeyValue>), Status> {
        let mut claim = Claim { leasing: self, key, is_over: false };
        let leasing_key = self.leasing_key(key);
        let read = |key: &Bytes| {
            let request = RangeRequest { key: key.clone(), ..RangeRequest::default() };
            RequestOp { request: Some(Request::RequestRange(request)) }
        };
        let put = PutRequest { key: leasing_key.clone(), lease, ..PutRequest::default() };
        let request = TxnRequest {
            compare: vec![
                created_before(leasing_key.clone(), Bytes::new(), 1),
                // A lease that ends would delete the key without asking its owner.
                Compare {
                    result: CompareResult::Equal as i32,
                    target: CompareTarget::Lease as i32,
                    key: key.clone(),
                    target_union: Some(TargetUnion::Lease(0)),
                    ..Compare::default()
                },
            ],
            success: vec![read(key), RequestOp { request: Some(Request::RequestPut(put)) }],
            failure: vec![read(key), read(&leasing_key)],
        };
        let outcome = self.commit(members, options, &request).await;
        claim.is_over = outcome.as_ref().map_or_else(is_refusal, |_| true);
        let now = Instant::now();
        let Ok(answer) = outcome else {
            if claim.is_over {
                self.with(|owned| owned.claim_refused(key, None, now));
            }
            return outcome.map(|_| unreachable!("it is an error"));
        };
        let header = answer.header.unwrap_or_default();
        let mut found = answer.responses.into_iter().map(|op| match op.response {
            Some(Response::ResponseRange(range)) => range.kvs.into_iter().next(),
            _ => None,
        });
        let kv = found.next().flatten();
        self.with(|owned| match answer.succeeded {
            true => owned.claimed(key, lease, &header, kv.clone()),
            false => owned.claim_refused(key, found.next().flatten().as_ref(), now),
        });
        Ok((header, kv))
    }

    async fn transaction(
        &self,
        members: &Members,
        options: &CallOptions,
        message: Bytes,
        may_own: bool,
    ) -> Result<Bytes, Status> {
        let (request, _held) = decode_txn(&message)?;
        let mut written = Vec::new();
        writes_of(&request, &mut written);
        if written.is_empty() {
            let known = self.with(|owned| owned.transaction(&request, Instant::now()));
            return match known.filter(|_| may_own) {
                Some(answer) => Ok(answer.encode_to_vec().into()),
                None => self.ask(members, Rpc::KvTxn, options, message).await,
            };
        }
        if is_too_long(&request, written.len()) {
            return Err(error::TOO_MANY_OPS);
        }
        // A nested transaction counts as operations, whose number members limit.
        if request.compare.is_empty() && request.failure.is_empty() {
            let answer = self.write(members, options, written, request.success).await?;
            return Ok(answer.encode_to_vec().into());
        }
        let op = RequestOp { request: Some(Request::RequestTxn(request)) };
        match self.write_one(members, options, written, op).await? {
            (header, Response::ResponseTxn(mut answer)) => {
                answer.header = Some(header);
                Ok(answer.encode_to_vec().into())
            }
            _ => Err(MISFIT),
        }
    }

    /// Sends one write operation to a member.
    async fn write_one(
        &self,
        members: &Members,
        options: &CallOptions,
        written: Vec<Keys>,
        op: RequestOp,
    ) -> Result<(ResponseHeader, Response), Status> {
        let answer = self.write(members, options, written, vec![op]).await?;
        let header = answer.header.unwrap_or_default();
        let response = answer.responses.into_iter().next().and_then(|op| op.response);
        response.map(|response| (header, response)).ok_or(MISFIT)
    }

    /// Sends operations that write these keys and ranges to a member, when no other proxy owns any of the keys.
    async fn write(
        &self,
        members: &Members,
        options: &CallOptions,
        mut written: Vec<Keys>,
        ops: Vec<RequestOp>,
    ) -> Result<TxnResponse, Status> {
        written.sort_unstable();
        written.dedup();
        let (singles, ranges): (Vec<&Keys>, Vec<&Keys>) = written.iter().partition(|keys| keys.1.is_empty());
        let leasing_keys = |(key, _): &&Keys| {
            let request = RangeRequest { key: self.leasing_key(key), ..RangeRequest::default() };
            RequestOp { request: Some(Request::RequestRange(request)) }
        };
        // For example a delete of all keys. Once its leasing key is deleted, another proxy may own the key at
        // any time.
        let leasing_keys_all = (self.prefix.clone(), end_of_prefix(&self.prefix));
        let writes_leasing_keys = written.iter().any(|keys| overlap(keys, &leasing_keys_all));
        loop {
            let mut guards = Vec::with_capacity(written.len());
            for keys in &ranges {
                let (key, end) = self.leasing_range(keys);
                let newest = self.clear(members, options, &key, &end).await?;
                guards.push(created_before(key, end, newest.saturating_add(1)));
            }
            let writing = self.with(|owned| {
                if writes_leasing_keys {
                    owned.leave_all();
                }
                for (key, _) in &singles {
                    let granted = owned.granted(key);
                    let before = granted.saturating_add(1);
                    guards.push(created_before(self.leasing_key(key), Bytes::new(), before));
                }
                Writing { leasing: self, write: Some(owned.write(&written)) }
            });
            let request = TxnRequest {
                compare: guards,
                success: ops.clone(),
                failure: singles.iter().map(leasing_keys).collect(),
            };
            let answer = match self.commit(members, options, &request).await {
                Ok(answer) => answer,
                Err(status) => {
                    if is_refusal(&status) {
                        writing.end(&Outcome::Refused);
                    }
                    return Err(status);
                }
            };
            if answer.succeeded {
                let mut changes = Vec::new();
                changes_of(&ops, &answer.responses, &mut changes);
                writing.end(&Outcome::Done(&changes, &answer.header.unwrap_or_default()));
                if writes_leasing_keys {
                    self.with(Owned::leave_all);
                }
                return Ok(answer);
            }
            writing.end(&Outcome::Refused);
            let found = answer.responses.into_iter().flat_map(|op| match op.response {
                Some(Response::ResponseRange(range)) => range.kvs,
                _ => Vec::new(),
            });
            let others = self.of_others(found);
            // If some leasing keys still exist, the next guard fails because of them.
            self.revoke(members, options, &others).await?;
        }
    }

    /// Makes the owners of all keys in a range of leasing keys give them back. Returns the highest creation
    /// revision of any leasing key found, including this proxy's: later leasing keys have a higher creation
    /// revision.
    async fn clear(
        &self,
        members: &Members,
        options: &CallOptions,
        key: &Bytes,
        end: &Bytes,
    ) -> Result<i64, Status> {
        let mut request = RangeRequest {
            key: key.clone(),
            range_end: end.clone(),
            limit: PAGE,
            keys_only: true,
            ..RangeRequest::default()
        };
        let mut newest = 0;
        loop {
            let page = match self.ask(members, Rpc::KvRange, options, request.encode_to_vec().into()).await {
                // The rest of the range is read at the newest revision.
                Err(status) if request.revision > 0 && status == error::COMPACTED => {
                    (request.key, request.revision) = (key.clone(), 0);
                    continue;
                }
                page => decode_answer::<RangeResponse>(&page?)?,
            };
            if request.revision == 0 {
                request.revision = page.header.unwrap_or_default().revision;
            }
            if let Some(last) = page.kvs.last() {
                request.key = [last.key.as_ref(), b"\0"].concat().into();
            }
            newest = page.kvs.iter().map(|kv| kv.create_revision).fold(newest, i64::max);
            let others = self.of_others(page.kvs);
            if !self.revoke(members, options, &others).await? {
                // If the leasing key still exists, its owner may still answer reads of the key.
                (request.key, request.revision) = (key.clone(), 0);
                continue;
            }
            if !page.more {
                return Ok(newest);
            }
        }
    }

    /// Returns those of the leasing keys that belong to another owner, or to an earlier session of this proxy.
    fn of_others(&self, found: impl IntoIterator<Item = KeyValue>) -> Vec<KeyValue> {
        self.with(|owned| {
            let is_others = |kv: &KeyValue| {
                let key = kv.key.slice(self.prefix.len().min(kv.key.len())..);
                owned.granted(&key) != kv.create_revision
            };
            found.into_iter().filter(is_others).collect()
        })
    }

    /// Asks the owners of these leasing keys to give the keys back, and waits until the leasing keys are
    /// deleted. Returns false if some may still exist.
    async fn revoke(
        &self,
        members: &Members,
        options: &CallOptions,
        all: &[KeyValue],
    ) -> Result<bool, Status> {
        let wishes: Vec<TxnRequest> = all.iter().map(wish).collect();
        let (mut all, mut wishes) = (all, &wishes[..]);
        let mut limit = CHUNK;
        while !all.is_empty() {
            let (revision, there) = self.commit_some(members, options, wishes, &mut limit).await?;
            let (some, later) = all.split_at(there.len());
            let mut waited: Vec<Bytes> =
                some.iter().zip(&there).filter(|(_, there)| **there).map(|(kv, _)| kv.key.clone()).collect();
            waited.sort_unstable();
            if !self.wait_for_deletion(members, options, waited, revision + 1).await? {
                return Ok(false);
            }
            wishes = &wishes[there.len()..];
            all = later;
        }
        Ok(true)
    }

    /// Waits for a limited time until all these keys, in order, were deleted at a revision or later. Returns
    /// false if that did not happen, or is not known.
    async fn wait_for_deletion(
        &self,
        members: &Members,
        options: &CallOptions,
        keys: Vec<Bytes>,
        start_revision: i64,
    ) -> Result<bool, Status> {
        match timeout(WAIT_MAX, self.watch_deletion(members, options, keys, start_revision)).await {
            Ok(Ok(false)) => {
                sleep(PAUSE).await;
                Ok(false)
            }
            Ok(outcome) => outcome,
            Err(_) => Ok(false),
        }
    }

    /// Returns true once all these keys, in order, were deleted at a revision or later; false if the watch breaks.
    async fn watch_deletion(
        &self,
        members: &Members,
        options: &CallOptions,
        mut keys: Vec<Bytes>,
        start_revision: i64,
    ) -> Result<bool, Status> {
        let (Some(first), Some(last)) = (keys.first(), keys.last()) else { return Ok(true) };
        let mut create = WatchCreateRequest {
            key: first.clone(),
            range_end: [last.as_ref(), b"\0"].concat().into(),
            start_revision,
            ..WatchCreateRequest::default()
        };
        if let Some(namespace) = &members.namespace {
            namespace.key(&mut create.key);
            namespace.range_end(&mut create.range_end);
        }
        let mut options = CallOptions { timeout: None, ..options.clone() };
        // A member without a leader would not report deletions.
        if options.metadata.iter().all(|(name, _)| name.as_str() != LEADER) {
            options = options.with(HeaderName::from_static(LEADER), HeaderValue::from_static("true"));
        }
        let (mut sender, mut receiver) = members.client.forward_stream(Rpc::Watch, &options).await?;
        let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        sender.send(request.encode_to_vec().into()).await?;
        while !keys.is_empty() {
            let message = match receiver.next().await {
                Ok(Some(message)) => message,
                Ok(None) => return Ok(false),
                Err(status) if is_refusal(&status) => return Err(status),
                Err(_) => return Ok(false),
            };
            let response: WatchResponse = decode_answer(&message)?;
            if response.canceled {
                if response.compact_revision > 0 {
                    return Ok(false);
                }
                return Err(client::status_of_text(&response.cancel_reason));
            }
            for mut event in response.events {
                if let Some(namespace) = &members.namespace {
                    namespace.strip_event(&mut event);
                }
                let deleted = event.kv.filter(|_| event.r#type == EventType::Delete as i32);
                keys.retain(|key| deleted.as_ref().is_none_or(|deleted| deleted.key != *key));
            }
        }
        Ok(true)
    }

    /// Sends the first of these transactions to a member, combined into one, as many as it accepts. Returns
    /// the revision, and for each of them whether its conditions held. `limit` is the number to combine; it
    /// is lowered if a member accepts fewer.
    async fn commit_some(
        &self,
        members: &Members,
        options: &CallOptions,
        all: &[TxnRequest],
        limit: &mut usize,
    ) -> Result<(i64, Vec<bool>), Status> {
        loop {
            let some = &all[..fitting(all, *limit)];
            let outcome = match some {
                // A single transaction has fewer operations than a nested one.
                [one] => self.commit(members, options, one).await,
                _ => {
                    let nested =
                        |one: &TxnRequest| RequestOp { request: Some(Request::RequestTxn(one.clone())) };
                    let success = some.iter().map(nested).collect();
                    self.commit(members, options, &TxnRequest { success, ..TxnRequest::default() }).await
                }
            };
            let answer = match outcome {
                Err(status) if some.len() > 1 && is_too_large(&status) => {
                    *limit = some.len() / 2;
                    continue;
                }
                outcome => outcome?,
            };
            let has_held = |op: &ResponseOp| {
                matches!(&op.response, Some(Response::ResponseTxn(TxnResponse { succeeded: true, .. })))
            };
            let mut held: Vec<bool> = match some {
                [_] => vec![answer.succeeded],
                _ => answer.responses.iter().map(has_held).collect(),
            };
            held.resize(some.len(), false);
            return Ok((answer.header.unwrap_or_default().revision, held));
        }
    }

    /// Sends one of the proxy's own transactions to a member.
    async fn commit(
        &self,
        members: &Members,
        options: &CallOptions,
        request: &TxnRequest,
    ) -> Result<TxnResponse, Status> {
        let answer = self.ask(members, Rpc::KvTxn, options, request.encode_to_vec().into()).await?;
        decode_answer(&answer)
    }

    /// Sends a call to a member, and records the revision in the response.
    async fn ask(
        &self,
        members: &Members,
        rpc: Rpc,
        options: &CallOptions,
        message: Bytes,
    ) -> Result<Bytes, Status> {
        let answer = members.call(rpc, options, message).await?;
        let header = decode_answer::<Headed>(&answer)?.header.unwrap_or_default();
        self.with(|owned| owned.told(&header));
        Ok(answer)
    }

    fn leasing_key(&self, key: &Bytes) -> Bytes {
        [self.prefix.as_ref(), key.as_ref()].concat().into()
    }

    /// Returns the range of leasing keys for a range of keys.
    fn leasing_range(&self, (key, end): &Keys) -> Keys {
        let end = match end.as_ref() {
            FROM_KEY => end_of_prefix(&self.prefix),
            _ => self.leasing_key(end),
        };
        (self.leasing_key(key), end)
    }

    fn with<T>(&self, change: impl FnOnce(&mut Owned) -> T) -> T {
        // No code panics while it holds the lock.
        let mut owned = self.owned.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut owned);
        if owned.has_to_delete() {
            self.has_left.notify_one();
        }
        result
    }
}

/// Error for a member's response that does not match its request.
const MISFIT: Status = Status::new(Code::Internal, "the member's answer does not match the transaction");

/// Metadata with which a watch stream asks to be ended when its member has no leader.
const LEADER: &str = "hasleader";

/// Beginning of the client's error for a request that exceeds its size limit, and was not sent.
const NOT_SENT: &str = "trying to send message larger than max";

/// Returns true if a status proves that nothing was done, and nothing will be.
fn is_refusal(status: &Status) -> bool {
    matches!(
        status.code,
        Code::InvalidArgument
            | Code::NotFound
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented
    ) || [error::NO_SPACE, error::TOO_MANY_REQUESTS].iter().any(|known| known.message == status.message)
        || (status.code == Code::ResourceExhausted && status.message.starts_with(NOT_SENT))
}

/// Returns true if a status means that a smaller request may be accepted.
fn is_too_large(status: &Status) -> bool {
    let is_full = status.message == error::NO_SPACE.message;
    [error::TOO_MANY_OPS, error::REQUEST_TOO_LARGE].contains(status)
        || (status.code == Code::ResourceExhausted && !is_full)
}

/// Returns true if a transaction that writes this many keys and ranges exceeds the proxy's limit.
fn is_too_long(request: &TxnRequest, written: usize) -> bool {
    let lists = [request.compare.len(), request.success.len(), request.failure.len(), written];
    lists.iter().any(|len| *len > WRITING_MAX)
}

/// Returns how many of these transactions, from the first on, are combined: at most `limit`, and as many as
/// fit into [`CHUNK_BYTES`], but always the first.
fn fitting(all: &[TxnRequest], limit: usize) -> usize {
    let mut room = CHUNK_BYTES;
    let fits = |one: &&TxnRequest| match room.checked_sub(one.encoded_len()) {
        Some(rest) => {
            room = rest;
            true
        }
        None => false,
    };
    all.iter().take(limit).take_while(fits).count().max(1).min(all.len())
}

/// Returns a transaction that asks for a key back, if its leasing key is unchanged.
fn wish(leasing_key: &KeyValue) -> TxnRequest {
    let put = PutRequest {
        key: leasing_key.key.clone(),
        value: REVOKE,
        ignore_lease: true,
        ..PutRequest::default()
    };
    TxnRequest {
        compare: vec![Compare {
            result: CompareResult::Equal as i32,
            target: CompareTarget::Create as i32,
            key: leasing_key.key.clone(),
            target_union: Some(TargetUnion::CreateRevision(leasing_key.create_revision)),
            ..Compare::default()
        }],
        success: vec![RequestOp { request: Some(Request::RequestPut(put)) }],
        ..TxnRequest::default()
    }
}

/// Returns the condition that all keys were created before a revision, or do not exist.
fn created_before(key: Bytes, range_end: Bytes, revision: i64) -> Compare {
    Compare {
        result: CompareResult::Less as i32,
        target: CompareTarget::Create as i32,
        key,
        range_end,
        target_union: Some(TargetUnion::CreateRevision(revision)),
    }
}

/// Collects the changes that operations have made, according to their responses. The decoder limits the
/// nesting depth.
fn changes_of(ops: &[RequestOp], responses: &[ResponseOp], changes: &mut Vec<Change>) {
    for (op, response) in ops.iter().zip(responses) {
        match (&op.request, &response.response) {
            (Some(Request::RequestPut(put)), _) => changes.push(Change::Put(put.clone())),
            (Some(Request::RequestDeleteRange(request)), _) => {
                changes.push(Change::Deleted((request.key.clone(), request.range_end.clone())));
            }
            (Some(Request::RequestTxn(inner)), Some(Response::ResponseTxn(answer))) => {
                let ops = if answer.succeeded { &inner.success } else { &inner.failure };
                changes_of(ops, &answer.responses, changes);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_keys_and_leasing_keys_are_not_claimed() {
        let (leasing, now) = (Leasing::new("l/".into()), Instant::now());
        leasing.with(|owned| owned.begin(7, now + Duration::from_secs(60)));
        let how = |key: &[u8]| {
            let key = Bytes::copy_from_slice(key);
            leasing.how(&RangeRequest { key, ..RangeRequest::default() }, now)
        };
        assert_eq!((how(b"l/k"), how(b"l/")), (Read::Member, Read::Member));
        assert_eq!(how(b"l"), Read::Claim(7));
        assert_eq!(how(&[b'k'; KEY_BYTES_MAX]), Read::Claim(7));
        assert_eq!(how(&[b'k'; KEY_BYTES_MAX + 1]), Read::Member);
    }

    #[test]
    fn transactions_go_into_one_by_number_and_by_size() {
        let wish_for =
            |bytes: usize| wish(&KeyValue { key: vec![b'k'; bytes].into(), ..KeyValue::default() });
        let fits = |bytes: &[usize], limit| {
            fitting(&bytes.iter().map(|bytes| wish_for(*bytes)).collect::<Vec<_>>(), limit)
        };
        assert_eq!((fits(&[], 5), fits(&[10; 9], 5), fits(&[10; 3], 5)), (0, 5, 3));
        // Each request contains its key twice.
        assert_eq!((fits(&[100 << 10; 9], 5), fits(&[1 << 20; 9], 5)), (2, 1));
    }

    #[test]
    fn a_request_that_was_not_sent_is_a_refusal_and_too_large() {
        let exhausted = |text: &'static str| Status::new(Code::ResourceExhausted, text);
        let not_sent = exhausted("trying to send message larger than max (9 vs. 8)");
        assert!(is_refusal(&not_sent) && is_too_large(&not_sent));
        // The response is too large, but the write was carried out.
        let answer = exhausted("grpc: received message larger than max (9 vs. 8)");
        assert!(!is_refusal(&answer));
        let answer = exhausted("grpc: trying to send message larger than max (9 vs. 8)");
        assert!(!is_refusal(&answer));
        assert!(is_too_large(&error::TOO_MANY_OPS) && is_too_large(&error::REQUEST_TOO_LARGE));
        assert!(is_refusal(&error::NO_SPACE) && !is_too_large(&error::NO_SPACE));
        assert!(!is_too_large(&error::NO_LEADER) && !is_refusal(&error::NO_LEADER));
    }
}
