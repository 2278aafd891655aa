//! `--namespace`: in the cluster, all keys of clients begin with a prefix. The proxy adds the prefix to the
//! keys of requests, and removes it from the keys of responses.

use accounting::{Account, Held};
use api::etcdserverpb::{
    Compare, DeleteRangeRequest, DeleteRangeResponse, LeaseTimeToLiveResponse, PutRequest, PutResponse,
    RangeRequest, RangeResponse, RangeStreamResponse, RequestOp, ResponseOp, TxnRequest, TxnResponse,
    request_op::Request, response_op::Response,
};
use api::mvccpb::{Event, KeyValue};
use api::v3electionpb::{
    CampaignRequest, CampaignResponse, LeaderKey, LeaderRequest, LeaderResponse, ProclaimRequest,
    ResignRequest,
};
use api::v3lockpb::{LockRequest, LockResponse, UnlockRequest};
use api::{Code, Rpc, Status, elements, error};
use bytes::Bytes;
use prost::Message;

/// Range end that means all keys from the given key on.
pub(crate) const FROM_KEY: &[u8] = b"\0";

/// The prefix that the proxy adds to the keys of all clients.
#[derive(Clone, Debug)]
pub(crate) struct Namespace {
    prefix: Bytes,
    /// End of the range of all keys with the prefix; `\0` if the range has no end.
    end: Bytes,
}

impl Namespace {
    /// Creates a namespace with this prefix. Returns `None` for an empty prefix.
    pub(crate) fn new(prefix: &[u8]) -> Option<Namespace> {
        (!prefix.is_empty())
            .then(|| Namespace { prefix: Bytes::copy_from_slice(prefix), end: end_of_prefix(prefix) })
    }

    /// Adds the prefix to a key.
    pub(crate) fn key(&self, key: &mut Bytes) {
        *key = [self.prefix.as_ref(), key.as_ref()].concat().into();
    }

    /// Adds the prefix to the end of a range. An empty end (for a single key) stays empty, and `\0` (for all
    /// further keys) becomes the end of the namespace.
    pub(crate) fn range_end(&self, end: &mut Bytes) {
        match end.as_ref() {
            b"" => {}
            FROM_KEY => *end = self.end.clone(),
            _ => self.key(end),
        }
    }

    /// Removes the prefix from a key, if the key begins with it.
    fn strip(&self, key: &mut Bytes) {
        if key.starts_with(&self.prefix) {
            *key = key.slice(self.prefix.len()..);
        }
    }

    fn strip_kv(&self, kv: &mut Option<KeyValue>) {
        if let Some(kv) = kv {
            self.strip(&mut kv.key);
        }
    }

    /// Removes the prefix from the keys of an event.
    pub(crate) fn strip_event(&self, event: &mut Event) {
        self.strip_kv(&mut event.kv);
        self.strip_kv(&mut event.prev_kv);
    }

    /// Translates a client's request for the cluster, by adding the prefix to its keys.
    ///
    /// # Errors
    /// Returns an error if the request is malformed, has no key, or is a transaction with too many
    /// operations.
    pub(crate) fn request(&self, rpc: Rpc, message: Bytes) -> Result<Bytes, Status> {
        Ok(match rpc {
            Rpc::KvRange | Rpc::KvRangeStream => self.mapped(&message, Namespace::range)?,
            Rpc::KvPut => self.mapped(&message, Namespace::put)?,
            Rpc::KvDeleteRange => self.mapped(&message, Namespace::delete_range)?,
            Rpc::KvTxn => {
                let (mut request, _) = decode_txn(&message)?;
                self.txn(&mut request)?;
                request.encode_to_vec().into()
            }
            Rpc::Lock => {
                self.mapped(&message, |ns, request: &mut LockRequest| ns.nonempty(&mut request.name))?
            }
            Rpc::LockUnlock => {
                self.mapped(&message, |ns, request: &mut UnlockRequest| ns.nonempty(&mut request.key))?
            }
            Rpc::ElectionCampaign => {
                self.mapped(&message, |ns, request: &mut CampaignRequest| ns.nonempty(&mut request.name))?
            }
            Rpc::ElectionProclaim => {
                self.mapped(&message, |ns, request: &mut ProclaimRequest| ns.leader(&mut request.leader))?
            }
            Rpc::ElectionResign => {
                self.mapped(&message, |ns, request: &mut ResignRequest| ns.leader(&mut request.leader))?
            }
            Rpc::ElectionLeader | Rpc::ElectionObserve => {
                self.mapped(&message, |ns, request: &mut LeaderRequest| ns.nonempty(&mut request.name))?
            }
            _ => message,
        })
    }

    /// Translates a member's response for the client, by removing the prefix from its keys.
    ///
    /// # Errors
    /// Returns an error if the response is malformed.
    pub(crate) fn answer(&self, rpc: Rpc, message: Bytes) -> Result<Bytes, Status> {
        Ok(match rpc {
            Rpc::KvRange => self.told(&message, Namespace::ranged)?,
            Rpc::KvRangeStream => self.told(&message, |ns, answer: &mut RangeStreamResponse| {
                if let Some(ranged) = &mut answer.range_response {
                    ns.ranged(ranged);
                }
            })?,
            Rpc::KvPut => {
                self.told(&message, |ns, answer: &mut PutResponse| ns.strip_kv(&mut answer.prev_kv))?
            }
            Rpc::KvDeleteRange => self.told(&message, Namespace::deleted)?,
            Rpc::KvTxn => self.told(&message, Namespace::done)?,
            Rpc::LeaseTimeToLive => self.told(&message, |ns, answer: &mut LeaseTimeToLiveResponse| {
                // Keys outside of the namespace are hidden from the client, as in etcd.
                answer.keys.retain(|key| key.starts_with(&ns.prefix));
                answer.keys.iter_mut().for_each(|key| ns.strip(key));
            })?,
            Rpc::Lock => self.told(&message, |ns, answer: &mut LockResponse| ns.strip(&mut answer.key))?,
            Rpc::ElectionCampaign => self.told(&message, |ns, answer: &mut CampaignResponse| {
                if let Some(leader) = &mut answer.leader {
                    ns.strip(&mut leader.name);
                    ns.strip(&mut leader.key);
                }
            })?,
            Rpc::ElectionLeader | Rpc::ElectionObserve => {
                self.told(&message, |ns, answer: &mut LeaderResponse| ns.strip_kv(&mut answer.kv))?
            }
            _ => message,
        })
    }

    fn mapped<M: Message + Default>(
        &self,
        message: &Bytes,
        map: impl FnOnce(&Namespace, &mut M) -> Result<(), Status>,
    ) -> Result<Bytes, Status> {
        let mut request: M = decode_request(message)?;
        map(self, &mut request)?;
        Ok(request.encode_to_vec().into())
    }

    fn told<M: Message + Default>(
        &self,
        message: &Bytes,
        map: impl FnOnce(&Namespace, &mut M),
    ) -> Result<Bytes, Status> {
        let mut answer: M = decode_answer(message)?;
        map(self, &mut answer);
        Ok(answer.encode_to_vec().into())
    }

    /// Adds the prefix to a key. Returns an error for an empty key, because the prefix alone is not a key of
    /// a client.
    fn nonempty(&self, key: &mut Bytes) -> Result<(), Status> {
        if key.is_empty() {
            return Err(error::EMPTY_KEY);
        }
        self.key(key);
        Ok(())
    }

    fn leader(&self, leader: &mut Option<LeaderKey>) -> Result<(), Status> {
        if let Some(leader) = leader {
            self.nonempty(&mut leader.name)?;
            self.nonempty(&mut leader.key)?;
        }
        Ok(())
    }

    fn range(&self, request: &mut RangeRequest) -> Result<(), Status> {
        self.nonempty(&mut request.key)?;
        self.range_end(&mut request.range_end);
        Ok(())
    }

    fn put(&self, request: &mut PutRequest) -> Result<(), Status> {
        self.nonempty(&mut request.key)
    }

    fn delete_range(&self, request: &mut DeleteRangeRequest) -> Result<(), Status> {
        self.nonempty(&mut request.key)?;
        self.range_end(&mut request.range_end);
        Ok(())
    }

    /// Adds the prefix to all keys of a transaction. The recursion is bounded, because the decoder limits the
    /// nesting depth.
    fn txn(&self, request: &mut TxnRequest) -> Result<(), Status> {
        for compare in &mut request.compare {
            self.nonempty(&mut compare.key)?;
            self.range_end(&mut compare.range_end);
        }
        request.success.iter_mut().chain(&mut request.failure).try_for_each(|op| self.op(op))
    }

    fn op(&self, op: &mut RequestOp) -> Result<(), Status> {
        match &mut op.request {
            Some(Request::RequestRange(request)) => self.range(request),
            Some(Request::RequestPut(request)) => self.put(request),
            Some(Request::RequestDeleteRange(request)) => self.delete_range(request),
            Some(Request::RequestTxn(request)) => self.txn(request),
            None => Ok(()),
        }
    }

    fn ranged(&self, answer: &mut RangeResponse) {
        answer.kvs.iter_mut().for_each(|kv| self.strip(&mut kv.key));
    }

    fn deleted(&self, answer: &mut DeleteRangeResponse) {
        answer.prev_kvs.iter_mut().for_each(|kv| self.strip(&mut kv.key));
    }

    fn done(&self, answer: &mut TxnResponse) {
        answer.responses.iter_mut().for_each(|op: &mut ResponseOp| match &mut op.response {
            Some(Response::ResponseRange(answer)) => self.ranged(answer),
            Some(Response::ResponsePut(answer)) => self.strip_kv(&mut answer.prev_kv),
            Some(Response::ResponseDeleteRange(answer)) => self.deleted(answer),
            Some(Response::ResponseTxn(answer)) => self.done(answer),
            None => {}
        });
    }
}

/// Returns the end of the range of all keys with this prefix; `\0` (no end) if the prefix consists of bytes
/// 0xff only, because all larger keys also begin with such a prefix.
pub(crate) fn end_of_prefix(prefix: &[u8]) -> Bytes {
    match prefix.iter().rposition(|byte| *byte < 0xff) {
        Some(at) => {
            let mut end = prefix[..=at].to_vec();
            end[at] += 1;
            end.into()
        }
        None => Bytes::from_static(FROM_KEY),
    }
}

/// Decodes a request.
///
/// # Errors
/// Returns grpc-go's error for a malformed request.
pub(crate) fn decode_request<M: Message + Default>(message: &Bytes) -> Result<M, Status> {
    const MALFORMED: Status = Status::new(
        Code::Internal,
        "grpc: error unmarshalling request: proto: cannot parse invalid wire-format data",
    );
    M::decode(message.clone()).map_err(|_| MALFORMED)
}

/// Largest number of comparisons and operations of a transaction, in all branches together: eight times the
/// members' default limit (COMPAT-420). It is higher than that limit because members may be configured with a
/// larger `--max-txn-ops`, which the proxy does not know.
const TXN_ELEMENTS_MAX: usize = 64 << 10;

/// Maximum memory per decoded comparison or operation, in bytes. The factor 2 accounts for unused capacity: a
/// list doubles its capacity when it grows.
const ELEMENT_BYTES: usize = 2 * if size_of::<Compare>() > size_of::<RequestOp>() {
    size_of::<Compare>()
} else {
    size_of::<RequestOp>()
};

/// Decodes a transaction. Counts its comparisons and operations first, and refuses too many: each may take
/// only two bytes in the message but a hundred times as many in memory. Also returns a reservation for the
/// decoded transaction in the memory account of the client's connection, which the caller keeps as long as
/// the transaction; `None` outside of a connection's turn.
///
/// # Errors
/// Returns grpc-go's error for a malformed transaction, or etcd's error for one with too many operations.
pub(crate) fn decode_txn(message: &Bytes) -> Result<(TxnRequest, Option<Held>), Status> {
    let elements = elements::of_txn(message, TXN_ELEMENTS_MAX).ok_or(error::TOO_MANY_OPS)?;
    let held = Account::of_turn().map(|account| account.hold(elements * ELEMENT_BYTES));
    Ok((decode_request(message)?, held))
}

/// Collects the keys and ranges that a transaction may write. The recursion is bounded, because the decoder
/// limits the nesting depth.
pub(crate) fn writes_of(txn: &TxnRequest, written: &mut Vec<(Bytes, Bytes)>) {
    for RequestOp { request } in txn.success.iter().chain(&txn.failure) {
        match request {
            Some(Request::RequestPut(put)) => written.push((put.key.clone(), Bytes::new())),
            Some(Request::RequestDeleteRange(delete)) => {
                written.push((delete.key.clone(), delete.range_end.clone()));
            }
            Some(Request::RequestTxn(inner)) => writes_of(inner, written),
            Some(Request::RequestRange(_)) | None => {}
        }
    }
}

/// Decodes a response of a member.
///
/// # Errors
/// Returns grpc-go's error for a malformed response.
pub(crate) fn decode_answer<M: Message + Default>(message: &Bytes) -> Result<M, Status> {
    M::decode(message.clone()).map_err(|error| {
        Status::with(Code::Internal, format!("grpc: failed to unmarshal the received message: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_elements_are_refused_before_they_are_made() {
        for message in [[0x0a, 0].repeat(1_000_000), [0x1a, 0].repeat(TXN_ELEMENTS_MAX + 1)] {
            assert_eq!(decode_txn(&message.clone().into()).map(|(txn, _)| txn), Err(error::TOO_MANY_OPS));
            let namespace = Namespace::new(b"a/").unwrap();
            assert_eq!(namespace.request(Rpc::KvTxn, message.into()), Err(error::TOO_MANY_OPS));
        }
        let few = Bytes::from([0x0a, 0].repeat(1_000));
        assert_eq!(decode_txn(&few).map(|(txn, _)| txn.compare.len()), Ok(1_000));
    }

    fn end(prefix: &[u8], end: &'static [u8]) -> Vec<u8> {
        let mut end = Bytes::from_static(end);
        Namespace::new(prefix).unwrap().range_end(&mut end);
        end.to_vec()
    }

    #[test]
    fn ranges_end_within_the_namespace() {
        assert_eq!(end(b"a/", b""), b"");
        assert_eq!(end(b"a/", b"x"), b"a/x");
        assert_eq!(end(b"a/", b"\0"), b"a0");
        assert_eq!(end(b"a\xff\xff", b"\0"), b"b");
        assert_eq!(end(b"\xff", b"\0"), b"\0");
        assert!(Namespace::new(b"").is_none());
    }

    #[test]
    fn nested_transactions_stay_within_the_namespace() {
        let namespace = Namespace::new(b"n/").unwrap();
        let put = PutRequest { key: "k".into(), ..PutRequest::default() };
        let inner = TxnRequest {
            success: vec![RequestOp { request: Some(Request::RequestPut(put)) }],
            ..TxnRequest::default()
        };
        let outer = TxnRequest {
            failure: vec![RequestOp { request: Some(Request::RequestTxn(inner)) }],
            ..TxnRequest::default()
        };
        let mapped = namespace.request(Rpc::KvTxn, outer.encode_to_vec().into()).unwrap();
        let mapped = TxnRequest::decode(mapped).unwrap();
        let Some(Request::RequestTxn(inner)) = &mapped.failure[0].request else { unreachable!() };
        let Some(Request::RequestPut(put)) = &inner.success[0].request else { unreachable!() };
        assert_eq!(put.key, "n/k");
    }

    #[test]
    fn the_prefix_itself_is_nobodys_key() {
        let namespace = Namespace::new(b"n/").unwrap();
        let request = RangeRequest { range_end: "\0".into(), ..RangeRequest::default() };
        let refused = namespace.request(Rpc::KvRange, request.encode_to_vec().into()).unwrap_err();
        assert_eq!(refused, error::EMPTY_KEY);
        assert_eq!(
            namespace.request(Rpc::KvPut, Bytes::from_static(b"\xff")).unwrap_err().code,
            Code::Internal
        );
    }
}
