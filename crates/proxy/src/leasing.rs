//! `--experimental-leasing-prefix`: the proxy takes ownership of keys that are read through it, and answers
//! further reads of these keys without a member.
//!
//! The owner of a key has created a leasing key: the prefix followed by the key, attached to a lease of the
//! proxy. All proxies of this kind, including etcd's, write a key only under the condition that no leasing
//! key of another proxy exists for it. If one exists, the writing proxy sets this leasing key to `REVOKE`,
//! and waits until the owner has deleted it or the owner's lease has ended.
//!
//! The module `owned` makes the decisions; `session` keeps the lease and watches the leasing keys. A read by
//! a client with a token never makes the proxy the owner, because different users may read different keys.
//! Writes of clients with a token follow the same rules as all other writes.

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

/// Value of a leasing key by which another proxy asks the owner to give up the key. Source: etcd's leasing.
const REVOKE: Bytes = Bytes::from_static(b"REVOKE");
/// Maximum number of leasing keys that one transaction sets to `REVOKE` or deletes. It is well below 128, the
/// members' default limit on the operations of a transaction. If a member has a lower limit and refuses the
/// transaction, smaller transactions are sent.
const CHUNK: usize = 50;
/// Maximum size of a transaction that sets leasing keys to `REVOKE` or deletes them, in bytes.
const CHUNK_BYTES: usize = 512 << 10;
/// Maximum length, in bytes, of a key that the proxy may come to own. Reads of longer keys are forwarded to a
/// member. The limit keeps the transaction small that claims a key: it contains the leasing key three times.
const KEY_BYTES_MAX: usize = 4 << 10;
/// Maximum length of each list of a transaction with writes: its conditions, the operations of each branch,
/// and the keys and ranges that it writes. The proxy refuses a transaction with a longer list, because it
/// would have to add one condition for each written key or range. Members with default options refuse lists
/// of more than 128 anyway.
const WRITING_MAX: usize = 1_024;
/// Maximum number of leasing keys that the proxy reads with one request.
const PAGE: i64 = 1_000;
/// Pause of a write that waits until another proxy has deleted a leasing key, after the watch of this leasing
/// key has broken. After the pause, the write checks the leasing keys again.
const PAUSE: Duration = Duration::from_millis(50);
/// Maximum time for which a write waits until other proxies have deleted their leasing keys. After this time,
/// the write checks the leasing keys again.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// Ownership of keys: reads and writes keys by the rules of leasing. All shards (the proxy's threads) share
/// it.
pub(crate) struct Leasing {
    /// Prefix of the leasing keys. It is relative to the namespace of `--namespace`.
    prefix: Bytes,
    owned: Mutex<Owned>,
    /// Wakes the task that deletes leasing keys. Notified when the proxy has given up the ownership of keys,
    /// so that their leasing keys have to be deleted.
    has_left: Notify,
}

/// A claim that is in flight: an attempt to become the owner of a key. If this value is dropped before the
/// outcome is known, the claim is given up, and the session deletes the leasing key, which may exist.
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

/// A write that is in flight. If this value is dropped before the outcome is known, the write counts as
/// possibly carried out, and the ownership of the written keys is given up.
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
        // Has no effect after `end`. Without `end`, the client has gone away, its deadline has passed, or the
        // call has failed with an error that does not prove that the write was refused. The member may still
        // carry out the write, so its outcome is not known.
        self.finish(&Outcome::Lost);
    }
}

impl Leasing {
    pub(crate) fn new(prefix: Bytes) -> Leasing {
        Leasing { prefix, owned: Mutex::default(), has_left: Notify::new() }
    }

    /// Handles a call of a client: applies the rules of leasing to ranges, puts, deletes and transactions,
    /// and forwards all other calls to a member. `may_own` is true if the caller has no credentials. Only in
    /// that case, a read may make the proxy the owner of the key.
    ///
    /// # Errors
    /// Returns the member's error, or an error if the request is malformed, if a transaction with writes is
    /// too long, or if the member's response does not match the request.
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

    /// Gives up the ownership of all keys, and stops answering reads of them. Called when permissions may
    /// have changed.
    pub(crate) fn leave_all(&self) {
        self.with(Owned::leave_all);
    }

    /// Decides how to answer a read of a client without credentials.
    fn how(&self, request: &RangeRequest, now: Instant) -> Read {
        // Do not claim a key that is too long (see `KEY_BYTES_MAX`) or is itself a leasing key, which belongs
        // to the proxy that created it.
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
                // The claim was refused, perhaps only because it contains a write: a member may refuse writes
                // at the moment, for example for lack of space. So send the plain read.
                Err(status) if is_refusal(&status) => self.ask(members, Rpc::KvRange, options, message).await,
                Err(status) => Err(status),
            },
        }
    }

    /// Reads a key, and tries to become its owner in the same transaction. Returns the header of the
    /// response, and the key with its value; `None` if the key does not exist.
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
                // A key that is attached to a lease is not claimed: the end of that lease would delete the
                // key without waiting for its owner, and the owner would keep returning the deleted value.
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
        // Members limit the number of operations, and a nested transaction counts as one of them. If the
        // client's transaction has no conditions, it needs no nesting: send its operations directly, so that
        // it may have as many as without this proxy.
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

    /// Does the same as [`Leasing::write`] for a single operation, and returns the header and the response to
    /// the operation.
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

    /// Makes other proxies give up the keys and ranges in `written`, and then sends the operations `ops`,
    /// which write these keys and ranges, to a member. Repeats this if another proxy has become an owner in
    /// between.
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
        // A write may also change leasing keys, for example a delete of all keys. Once a leasing key of this
        // proxy is deleted, another proxy can become the owner of the key. So before and after such a write,
        // this proxy gives up all its keys.
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
            // Ask the owners to give up the keys, then try again. The returned flag can be ignored: if some
            // leasing keys still exist, the conditions of the write fail again.
            self.revoke(members, options, &others).await?;
        }
    }

    /// Makes other proxies give up the keys whose leasing keys are in this range. Returns the highest
    /// creation revision of any leasing key found, including this proxy's own ones; 0 if there is none. The
    /// caller's write gets the condition that no leasing key in the range has a higher creation revision. So
    /// the write fails if a proxy has become the owner of a key in the meantime.
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
                // The revision of the first page was compacted in the meantime, so read the range again from
                // the start, at the newest revision.
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
                // The wait has timed out, or its watch has broken. The owners of these leasing keys may still
                // answer reads of the keys, so the write must not begin. Read the range again from the start.
                (request.key, request.revision) = (key.clone(), 0);
                continue;
            }
            if !page.more {
                return Ok(newest);
            }
        }
    }

    /// Returns the leasing keys by which this proxy does not own a key: those of other proxies, of earlier
    /// sessions of this proxy, and of keys whose ownership this proxy is giving up.
    fn of_others(&self, found: impl IntoIterator<Item = KeyValue>) -> Vec<KeyValue> {
        self.with(|owned| {
            let is_others = |kv: &KeyValue| {
                let key = kv.key.slice(self.prefix.len().min(kv.key.len())..);
                owned.granted(&key) != kv.create_revision
            };
            found.into_iter().filter(is_others).collect()
        })
    }

    /// Asks the owners of these leasing keys to give up their keys, and waits until the leasing keys are
    /// deleted. Returns false if some of the leasing keys may still exist.
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

    /// Waits for up to [`WAIT_MAX`] until each of these keys was deleted at `start_revision` or later. The
    /// keys are in ascending order. Returns false if this time passes or the watch breaks first.
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

    /// Watches these keys until each of them was deleted at `start_revision` or later, then returns true. The
    /// keys are in ascending order. Returns false if the watch breaks first, or if history that it needs was
    /// compacted.
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
        // Without a leader, a member learns of no deletions, and the watch would wait in vain. This metadata
        // makes the member end the watch in that case.
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

    /// Combines the first of these transactions into one, at most `limit` of them, and sends the combined
    /// transaction to a member. Returns the revision in the header of the response, and one value for each
    /// combined transaction: true if its conditions held. Lowers `limit` if a member refuses the combined
    /// transaction as too large.
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
                // Send a single transaction without nesting, because a nested transaction counts as one more
                // operation towards the member's limit.
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

    /// Sends a transaction of the proxy itself to a member.
    async fn commit(
        &self,
        members: &Members,
        options: &CallOptions,
        request: &TxnRequest,
    ) -> Result<TxnResponse, Status> {
        let answer = self.ask(members, Rpc::KvTxn, options, request.encode_to_vec().into()).await?;
        decode_answer(&answer)
    }

    /// Sends a call to a member. Records the revision in the header of the response, because later reads of
    /// owned keys must not return a lower one.
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

    /// Returns the range that contains the leasing keys of all keys in a range.
    fn leasing_range(&self, (key, end): &Keys) -> Keys {
        let end = match end.as_ref() {
            FROM_KEY => end_of_prefix(&self.prefix),
            _ => self.leasing_key(end),
        };
        (self.leasing_key(key), end)
    }

    fn with<T>(&self, change: impl FnOnce(&mut Owned) -> T) -> T {
        // No code panics while it holds this lock, so poisoning is ignored.
        let mut owned = self.owned.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut owned);
        if owned.has_to_delete() {
            self.has_left.notify_one();
        }
        result
    }
}

/// Error that is returned if a member's response does not match the request.
const MISFIT: Status = Status::new(Code::Internal, "the member's answer does not match the transaction");

/// Name of the metadata that requires a leader for a watch stream: a member ends the stream when it knows no
/// leader.
const LEADER: &str = "hasleader";

/// Start of the error message with which the client crate refuses to send a request that is too large.
const NOT_SENT: &str = "trying to send message larger than max";

/// Returns true if a status proves that the member has not carried out the request and never will.
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

/// Returns true if a status means that the member might accept a smaller request.
fn is_too_large(status: &Status) -> bool {
    let is_full = status.message == error::NO_SPACE.message;
    [error::TOO_MANY_OPS, error::REQUEST_TOO_LARGE].contains(status)
        || (status.code == Code::ResourceExhausted && !is_full)
}

/// Returns true if a transaction that writes `written` keys and ranges is longer than the proxy's limit.
fn is_too_long(request: &TxnRequest, written: usize) -> bool {
    let lists = [request.compare.len(), request.success.len(), request.failure.len(), written];
    lists.iter().any(|len| *len > WRITING_MAX)
}

/// Returns the number of transactions, from the first on, that can be combined: at most `limit`, and no more
/// than fit into [`CHUNK_BYTES`], but at least one unless the slice is empty.
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

/// Returns a transaction that sets a leasing key to `REVOKE`, which asks the owner to give up its key. The
/// condition is that the leasing key was not deleted or created again since it was read.
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

/// Returns the condition that all existing keys in the range were created before a revision.
fn created_before(key: Bytes, range_end: Bytes, revision: i64) -> Compare {
    Compare {
        result: CompareResult::Less as i32,
        target: CompareTarget::Create as i32,
        key,
        range_end,
        target_union: Some(TargetUnion::CreateRevision(revision)),
    }
}

/// Collects the changes that operations have made, according to the responses. The recursion is bounded,
/// because the decoder limits the nesting depth.
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
