//! Records sampled calls for the lists of the most active prefixes, users and clients
//! ([`telemetry::heavy_hitters`]). Streams are not sampled; open watches are counted per client in
//! [`telemetry::callers`].

use std::net::IpAddr;
use std::time::Instant;

use api::elements::{Fields, Value};
use api::etcdserverpb as pb;
use api::{Rpc, Status};
use bytes::Bytes;
use front::Answer;
use prost::Message as _;
use telemetry::heavy_hitters::{NAME_BYTES, Noted, prefix_of};

use super::Services;
use crate::audit;

/// A sampled call that is not answered yet. If it is dropped without an answer, it is not recorded.
pub(super) struct Sample {
    prefix: Option<Box<[u8]>>,
    user: Box<str>,
    client: String,
    arrived: Instant,
    bytes: usize,
}

/// Returns the key of a request. For a transaction this is the first key that it compares or uses, in wire
/// order.
fn key_of(rpc: Rpc, message: &Bytes) -> Option<Bytes> {
    let message = message.clone();
    match rpc {
        Rpc::KvPut => Some(pb::PutRequest::decode(message).ok()?.key),
        Rpc::KvRange => Some(pb::RangeRequest::decode(message).ok()?.key),
        Rpc::KvDeleteRange => Some(pb::DeleteRangeRequest::decode(message).ok()?.key),
        Rpc::KvTxn => {
            // Only the first element is decoded, because the number of elements has not been checked yet and
            // may be huge.
            let (list, first) = first_bytes(&message, &message)?;
            if list == 1 {
                return Some(pb::Compare::decode(first).ok()?.key);
            }
            let (kind, request) = first_bytes(&message, &first)?;
            match kind {
                1 => Some(pb::RangeRequest::decode(request).ok()?.key),
                2 => Some(pb::PutRequest::decode(request).ok()?.key),
                3 => Some(pb::DeleteRangeRequest::decode(request).ok()?.key),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Returns the number and the contents of the first field of `part`, if that field is length-delimited.
fn first_bytes(message: &Bytes, part: &[u8]) -> Option<(u32, Bytes)> {
    match Fields::of(part).next()? {
        (number, Value::Bytes(bytes)) => Some((number, message.slice_ref(bytes))),
        (_, Value::Other) => None,
    }
}

impl Sample {
    /// Starts the sample of a call to this method from this client and user; `arrived` is the time of its
    /// arrival.
    pub fn begin((rpc, client, user): (Rpc, IpAddr, &str), arrived: Instant, message: &Bytes) -> Sample {
        let cut = |name: &str| name.chars().take(NAME_BYTES).collect::<String>().into_boxed_str();
        Sample {
            prefix: key_of(rpc, message).map(|key| prefix_of(&key).into()),
            user: cut(user),
            client: client.to_canonical().to_string(),
            arrived,
            bytes: message.len(),
        }
    }
}

impl Services {
    /// Records an answered sample.
    pub(super) fn sampled(&self, sample: &Sample, answer: &Result<Answer, Status>) {
        let answered = match answer {
            Ok(Answer::Whole(bytes)) => bytes.len(),
            Ok(Answer::Pieces { len, .. }) => *len,
            Err(_) => 0,
        };
        let now = self.now();
        // A refused call is no load on its prefix, and callers without rights must not fill the list.
        let is_refused = answer.as_ref().is_err_and(audit::is_refusal);
        let noted = Noted {
            prefix: sample.prefix.as_deref().filter(|_| !is_refused),
            user: &sample.user,
            client: &sample.client,
            bytes: (sample.bytes + answered) as u64,
            took: now.saturating_duration_since(sample.arrived),
        };
        self.shared.diagnostics.heavy_hitters.note(&noted, self.sampler.one_in(), now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::etcdserverpb::request_op::Request;

    #[test]
    fn requests_are_about_their_first_key() {
        let put = pb::PutRequest { key: "/a/b".into(), ..Default::default() };
        let range = pb::RangeRequest { key: "/c".into(), ..Default::default() };
        assert_eq!(key_of(Rpc::KvPut, &put.encode_to_vec().into()), Some("/a/b".into()));
        assert_eq!(key_of(Rpc::KvRange, &range.encode_to_vec().into()), Some("/c".into()));
        let operation = pb::RequestOp { request: Some(Request::RequestPut(put)) };
        let mut txn = pb::TxnRequest { failure: vec![operation], ..Default::default() };
        assert_eq!(key_of(Rpc::KvTxn, &txn.encode_to_vec().into()), Some("/a/b".into()));
        txn.compare.push(pb::Compare { key: "/first".into(), ..Default::default() });
        assert_eq!(key_of(Rpc::KvTxn, &txn.encode_to_vec().into()), Some("/first".into()));
        let nested = pb::RequestOp { request: Some(Request::RequestTxn(txn)) };
        let outer = pb::TxnRequest { success: vec![nested], ..Default::default() };
        assert_eq!(key_of(Rpc::KvTxn, &outer.encode_to_vec().into()), None);
        for message in [&b""[..], b"\x0a\x05", b"\x12\x00", b"\x12\x03\x12\x05a", b"\x08\x01"] {
            assert_eq!(key_of(Rpc::KvTxn, &Bytes::from_static(message)), None, "{message:?}");
        }
        assert_eq!(key_of(Rpc::KvPut, &Bytes::from_static(b"\xff")), None);
        assert_eq!(key_of(Rpc::LeaseGrant, &Bytes::new()), None);
    }
}
