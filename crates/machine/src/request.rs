//! Decodes requests of clients and requests in log entries.
//!
//! prost decodes at most 100 nested levels of messages and unknown groups, counted from the outermost
//! message. This limit is too low for entries in two cases. In an entry, a client's request is one level
//! deeper than in the client's message. And a member that runs etcd, which does not count levels, may have
//! proposed a much deeper request. So a message that prost refuses because of its depth is decoded here,
//! level by level. [`command`] accepts every request that was accepted from a client, by [`txn`] or, for
//! messages without nested ones, by prost.
//!
//! Decoding depends only on the bytes of the entry: if one member cannot decode an entry, no member can.

use api::elements;
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{
    Compare, DeleteRangeRequest, InternalRaftRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
};
use bytes::{Buf as _, Bytes};
use numbers::LeaseId;
use planted::Bug;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use prost::{DecodeError, Message};

/// Maximum depth of nested transactions in an entry. A deeper entry is undecodable and changes nothing. etcd
/// with its default of 128 for max-txn-ops allows at most half of this depth. For transactions of clients,
/// Mainstay's limit is lower; see [`crate::check::txn`].
pub const TXN_DEPTH_MAX: usize = 256;
/// Depth of a message, as prost counts it, below which prost never refuses the message because of its depth.
const PROST_DEPTH: usize = 100;

/// Reason why bytes cannot be decoded as a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undecodable {
    /// Transactions nest deeper than [`TXN_DEPTH_MAX`].
    TooDeep,
    /// A transaction has more comparisons and operations, in all branches together, than the caller allows.
    TooMany,
    /// The bytes are not valid protobuf.
    Malformed(DecodeError),
}

impl std::fmt::Display for Undecodable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Undecodable::TooDeep => write!(f, "transactions nest deeper than {TXN_DEPTH_MAX} levels"),
            Undecodable::TooMany => f.write_str("a transaction has too many comparisons and operations"),
            Undecodable::Malformed(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Undecodable {}

impl From<DecodeError> for Undecodable {
    fn from(error: DecodeError) -> Undecodable {
        Undecodable::Malformed(error)
    }
}

/// Decodes the data of an entry into `request`, which must have the default value. The request is filled in
/// place, because moving its several hundred bytes is slow. After an error, the content of `request` is
/// undefined.
///
/// # Errors
///
/// Returns an error for the reasons that [`Undecodable`] lists.
#[inline]
pub fn command(request: &mut InternalRaftRequest, data: &Bytes) -> Result<(), Undecodable> {
    match request.merge(data.clone()) {
        Ok(()) => Ok(()),
        Err(error) if planted::is(Bug::ApplyCountsLevels) => Err(error.into()),
        Err(refused) => {
            *request = deep_command(data.clone(), refused)?;
            Ok(())
        }
    }
}

/// Decodes the data of an entry that prost has refused with the error `refused`, which may have been caused
/// by the depth or by another fault.
#[cold]
fn deep_command(data: Bytes, refused: DecodeError) -> Result<InternalRaftRequest, Undecodable> {
    let mut deep = Deep::default();
    let mut request = InternalRaftRequest::default();
    deep.each_field(data, 0, &mut |deep, tag, wire, data| {
        // A request that occurs twice is merged, as in prost.
        match (tag, wire) {
            (TXN, WireType::LengthDelimited) => {
                deep.txn(request.txn.get_or_insert_default(), message(data)?, 1, 1)
            }
            (PUT, WireType::LengthDelimited) => {
                deep.flat(request.put.get_or_insert_default(), message(data)?, 1)
            }
            (DELETE_RANGE, WireType::LengthDelimited) => {
                deep.flat(request.delete_range.get_or_insert_default(), message(data)?, 1)
            }
            (COMPACTION, WireType::LengthDelimited) => {
                deep.flat(request.compaction.get_or_insert_default(), message(data)?, 1)
            }
            (LEASE_GRANT, WireType::LengthDelimited) => {
                deep.flat(request.lease_grant.get_or_insert_default(), message(data)?, 1)
            }
            (LEASE_REVOKE, WireType::LengthDelimited) => {
                deep.flat(request.lease_revoke.get_or_insert_default(), message(data)?, 1)
            }
            (ALARM, WireType::LengthDelimited) => {
                deep.flat(request.alarm.get_or_insert_default(), message(data)?, 1)
            }
            _ => Ok(request.merge_field(tag, wire, data, DecodeContext::default())?),
        }
    })?;
    deep.unless_shallow(request, refused)
}

/// Field numbers of the client requests in `InternalRaftRequest`.
const PUT: u32 = 4;
const DELETE_RANGE: u32 = 5;
const TXN: u32 = 6;
const COMPACTION: u32 = 7;
const LEASE_GRANT: u32 = 8;
const LEASE_REVOKE: u32 = 9;
const ALARM: u32 = 10;

/// A grant or revocation of a lease by an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseChange {
    /// The entry grants the lease, if no lease has this id.
    Granted(LeaseId),
    /// The entry revokes the lease.
    Revoked(LeaseId),
}

/// Returns the lease that an entry grants or revokes, if any. Other entries are not decoded.
pub fn lease_change(data: &[u8]) -> Option<LeaseChange> {
    let mut rest = data;
    while !rest.is_empty() {
        let (tag, wire) = decode_key(&mut rest).ok()?;
        if tag == LEASE_GRANT || tag == LEASE_REVOKE {
            let request = InternalRaftRequest::decode(data).ok()?;
            let granted = request.lease_grant.map(|grant| LeaseChange::Granted(LeaseId(grant.id)));
            return granted.or(request.lease_revoke.map(|revoke| LeaseChange::Revoked(LeaseId(revoke.id))));
        }
        skip_field(wire, tag, &mut rest, DecodeContext::default()).ok()?;
    }
    None
}

/// Returns the id of the lease that an entry grants, if any.
pub fn granted_lease(data: &[u8]) -> Option<LeaseId> {
    match lease_change(data)? {
        LeaseChange::Granted(id) => Some(id),
        LeaseChange::Revoked(_) => None,
    }
}

/// Maximum memory in bytes of one comparison or operation, without keys and values, which are slices of the
/// message. The factor 2 is for the spare capacity of lists, which grow by doubling.
pub const ELEMENT_BYTES: usize = 2 * {
    let (compare, op) = (size_of::<Compare>(), size_of::<RequestOp>());
    if compare > op { compare } else { op }
};

/// Decodes a client's transaction, unless it has more than `elements_max` comparisons and operations in all
/// branches. The elements are counted before memory is allocated, because an element may have only two bytes
/// in the message, and takes up to [`ELEMENT_BYTES`] in memory. Returns the transaction and the number of its
/// elements.
///
/// # Errors
///
/// Returns an error for the reasons that [`Undecodable`] lists.
pub fn txn(data: Bytes, elements_max: usize) -> Result<(TxnRequest, usize), Undecodable> {
    let elements = elements::of_txn(&data, elements_max).ok_or(Undecodable::TooMany)?;
    Ok((counted_txn(data)?, elements))
}

/// Decodes a transaction whose elements were counted before.
fn counted_txn(data: Bytes) -> Result<TxnRequest, Undecodable> {
    let refused = match TxnRequest::decode(data.clone()) {
        Ok(request) => return Ok(request),
        Err(error) => error,
    };
    let (mut deep, mut request) = (Deep::default(), TxnRequest::default());
    deep.txn(&mut request, data, 0, 1)?;
    deep.unless_shallow(request, refused)
}

/// Callback that decodes one field of a message.
type Field<'a> = dyn FnMut(&mut Deep, u32, WireType, &mut Bytes) -> Result<(), Undecodable> + 'a;

/// Decoder that limits only the depth of nested transactions, not the depth of messages and groups.
#[derive(Default)]
struct Deep {
    /// Maximum depth seen so far, counted as prost counts it.
    depth: usize,
}

impl Deep {
    /// Returns the decoded message, if its depth can be the reason why prost refused it; otherwise returns
    /// prost's error `refused`.
    fn unless_shallow<M>(&self, message: M, refused: DecodeError) -> Result<M, Undecodable> {
        if self.depth < PROST_DEPTH { Err(refused.into()) } else { Ok(message) }
    }

    /// Calls `field` for each field of a message at this depth. Skips groups, which no known message
    /// contains.
    fn each_field(
        &mut self,
        mut data: Bytes,
        depth: usize,
        field: &mut Field<'_>,
    ) -> Result<(), Undecodable> {
        self.depth = self.depth.max(depth);
        while data.has_remaining() {
            let (tag, wire) = decode_key(&mut data)?;
            if wire == WireType::StartGroup {
                self.skip_group(tag, &mut data, depth)?;
            } else {
                field(self, tag, wire, &mut data)?;
            }
        }
        Ok(())
    }

    fn skip_group(&mut self, tag: u32, data: &mut Bytes, depth: usize) -> Result<(), Undecodable> {
        let mut open = vec![tag];
        while let Some(&innermost) = open.last() {
            self.depth = self.depth.max(depth + open.len());
            let (tag, wire) = decode_key(data)?;
            let len = match wire {
                WireType::Varint => {
                    decode_varint(data)?;
                    0
                }
                WireType::SixtyFourBit => 8,
                WireType::ThirtyTwoBit => 4,
                WireType::LengthDelimited => decode_varint(data)?,
                WireType::StartGroup => {
                    open.push(tag);
                    0
                }
                WireType::EndGroup if tag == innermost => {
                    open.pop();
                    0
                }
                WireType::EndGroup => return Err(invalid()),
            };
            take(data, len)?;
        }
        Ok(())
    }

    /// Decodes a message that contains no other messages.
    fn flat<M: Message>(&mut self, into: &mut M, data: Bytes, depth: usize) -> Result<(), Undecodable> {
        self.each_field(data, depth, &mut |_, tag, wire, data| {
            Ok(into.merge_field(tag, wire, data, DecodeContext::default())?)
        })
    }

    /// Decodes a transaction at nesting level `nested`, where level 1 is the outermost transaction.
    fn txn(
        &mut self,
        into: &mut TxnRequest,
        data: Bytes,
        depth: usize,
        nested: usize,
    ) -> Result<(), Undecodable> {
        if nested > TXN_DEPTH_MAX {
            return Err(Undecodable::TooDeep);
        }
        self.each_field(data, depth, &mut |deep, tag, wire, data| match (tag, wire) {
            (1, WireType::LengthDelimited) => {
                let mut compare = Compare::default();
                deep.flat(&mut compare, message(data)?, depth + 1)?;
                into.compare.push(compare);
                Ok(())
            }
            (2 | 3, WireType::LengthDelimited) => {
                let mut op = RequestOp::default();
                deep.op(&mut op, message(data)?, depth + 1, nested)?;
                if tag == 2 {
                    into.success.push(op)
                } else {
                    into.failure.push(op)
                }
                Ok(())
            }
            _ => Ok(into.merge_field(tag, wire, data, DecodeContext::default())?),
        })
    }

    fn op(
        &mut self,
        into: &mut RequestOp,
        data: Bytes,
        depth: usize,
        nested: usize,
    ) -> Result<(), Undecodable> {
        self.each_field(data, depth, &mut |deep, tag, wire, data| {
            let taken = into.request.take();
            let request = match (tag, wire) {
                (1, WireType::LengthDelimited) => {
                    let mut range = match taken {
                        Some(Request::RequestRange(range)) => range,
                        _ => RangeRequest::default(),
                    };
                    deep.flat(&mut range, message(data)?, depth + 1)?;
                    Request::RequestRange(range)
                }
                (2, WireType::LengthDelimited) => {
                    let mut put = match taken {
                        Some(Request::RequestPut(put)) => put,
                        _ => PutRequest::default(),
                    };
                    deep.flat(&mut put, message(data)?, depth + 1)?;
                    Request::RequestPut(put)
                }
                (3, WireType::LengthDelimited) => {
                    let mut delete = match taken {
                        Some(Request::RequestDeleteRange(delete)) => delete,
                        _ => DeleteRangeRequest::default(),
                    };
                    deep.flat(&mut delete, message(data)?, depth + 1)?;
                    Request::RequestDeleteRange(delete)
                }
                (4, WireType::LengthDelimited) => {
                    let mut txn = match taken {
                        Some(Request::RequestTxn(txn)) => txn,
                        _ => TxnRequest::default(),
                    };
                    deep.txn(&mut txn, message(data)?, depth + 1, nested + 1)?;
                    Request::RequestTxn(txn)
                }
                _ => {
                    into.request = taken;
                    return Ok(into.merge_field(tag, wire, data, DecodeContext::default())?);
                }
            };
            into.request = Some(request);
            Ok(())
        })
    }
}

/// Reads the length of a message and then its bytes.
fn message(data: &mut Bytes) -> Result<Bytes, Undecodable> {
    let len = decode_varint(data)?;
    take(data, len)
}

fn take(data: &mut Bytes, len: u64) -> Result<Bytes, Undecodable> {
    match usize::try_from(len) {
        Ok(len) if len <= data.len() => Ok(data.split_to(len)),
        _ => Err(invalid()),
    }
}

/// Returns an error of prost. prost has no public constructor for its error, so the error is produced by
/// decoding invalid bytes.
fn invalid() -> Undecodable {
    match decode_varint(&mut &[][..]) {
        Err(error) => Undecodable::Malformed(error),
        Ok(_) => Undecodable::TooDeep,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(data: Bytes) -> Result<InternalRaftRequest, Undecodable> {
        let mut request = InternalRaftRequest::default();
        super::command(&mut request, &data).map(|()| request)
    }

    #[test]
    fn an_entry_tells_which_lease_it_grants() {
        use api::etcdserverpb::{LeaseGrantRequest, LeaseRevokeRequest, RequestHeader};
        let header = Some(RequestHeader { id: 9, ..RequestHeader::default() });
        let grant = Some(LeaseGrantRequest { id: 77, ttl: 5 });
        let entry = InternalRaftRequest { header: header.clone(), lease_grant: grant, ..Default::default() };
        assert_eq!(granted_lease(&entry.encode_to_vec()), Some(LeaseId(77)));
        // An entry of a member that encodes the fields in another order.
        let first = InternalRaftRequest { header: header.clone(), ..Default::default() }.encode_to_vec();
        let then = InternalRaftRequest { header: None, ..entry }.encode_to_vec();
        assert_eq!(granted_lease(&[first, then].concat()), Some(LeaseId(77)));
        let lease_revoke = Some(LeaseRevokeRequest { id: 77 });
        let other = InternalRaftRequest { header, lease_revoke, ..Default::default() }.encode_to_vec();
        assert_eq!(granted_lease(&other), None);
        for len in 0..other.len() {
            assert_eq!(granted_lease(&other[..len]), None);
        }
    }

    /// Returns the bytes of a put inside `levels` nested transactions. They are encoded by hand, because
    /// prost encodes by recursion.
    fn nested(levels: usize) -> Vec<u8> {
        let put = PutRequest { key: "k".into(), value: "v".into(), ..PutRequest::default() };
        let mut bytes = field(2, &put.encode_to_vec());
        for level in 0..levels {
            let txn = field(2, &bytes);
            bytes = if level + 1 == levels { txn } else { field(4, &txn) };
        }
        bytes
    }

    fn field(tag: u8, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        api::wire::put_field(&mut out, tag, bytes);
        out
    }

    fn groups(levels: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(std::iter::repeat_n((15 << 3) | 3, levels));
        bytes.extend(std::iter::repeat_n((15 << 3) | 4, levels));
        bytes
    }

    /// Returns an entry that contains the request as field `number`, as a shard proposes it.
    fn entry(number: u8, request: &[u8]) -> Bytes {
        field(number, request).into()
    }

    #[test]
    fn what_a_shard_decodes_apply_decodes() {
        for levels in [1, 2, 48, 49, 50, 51, 64, 65, 100, 255, 256] {
            let bytes = nested(levels);
            let ours = counted_txn(bytes.clone().into()).expect("a shard takes it");
            let applied = command(entry(6, &bytes)).expect("apply takes it");
            assert_eq!(applied.txn.as_ref(), Some(&ours), "{levels}");
            let mut depth = 1;
            let mut at = &ours;
            while let Some(Request::RequestTxn(inner)) = &at.success[0].request {
                (depth, at) = (depth + 1, inner);
            }
            assert_eq!(depth, levels);
        }
        for levels in [1, 98, 99, 100, 101, 50_000] {
            let put = PutRequest { key: "k".into(), value: "v".into(), ..PutRequest::default() };
            let bytes = [put.encode_to_vec(), groups(levels)].concat();
            let applied = command(entry(4, &bytes)).expect("apply takes it");
            assert_eq!(applied.put, Some(put));
            let inside = field(2, &field(2, &bytes));
            let ours = counted_txn(inside.clone().into()).expect("a shard takes it");
            assert_eq!(command(entry(6, &inside)).expect("apply takes it").txn, Some(ours));
        }
    }

    #[test]
    fn what_cannot_be_decoded_is_refused_alike() {
        assert_eq!(counted_txn(nested(257).into()), Err(Undecodable::TooDeep));
        assert_eq!(command(entry(6, &nested(257))), Err(Undecodable::TooDeep));
        assert_eq!(command(entry(6, &nested(20_000))), Err(Undecodable::TooDeep));
        for bytes in [&b"\x0a"[..], b"\x12\x05\x12", b"\x0b", b"\x7b\x0c", b"\x12\x02\x22\x7f", b"\x08\x01"] {
            assert!(
                matches!(counted_txn(Bytes::copy_from_slice(bytes)), Err(Undecodable::Malformed(_))),
                "{bytes:?}"
            );
        }
        let cut = &nested(64)[..300];
        assert!(matches!(counted_txn(Bytes::copy_from_slice(cut)), Err(Undecodable::Malformed(_))));
    }

    #[test]
    fn elements_are_counted_before_they_are_made() {
        let million = Bytes::from([0x0a, 0].repeat(1_000_000));
        assert_eq!(txn(million.clone(), 8192).map(|(_, elements)| elements), Err(Undecodable::TooMany));
        let few = million.slice(..200);
        assert_eq!(txn(few, 100).map(|(txn, elements)| (txn.compare.len(), elements)), Ok((100, 100)));
        // A decoded transaction never has more elements than were counted.
        fn made(txn: &TxnRequest) -> usize {
            let ops = txn.success.iter().chain(&txn.failure);
            let nested = ops.map(|op| match &op.request {
                Some(Request::RequestTxn(nested)) => 1 + made(nested),
                _ => 1,
            });
            txn.compare.len() + nested.sum::<usize>()
        }
        let mut random = testkit::Random::new(2);
        for _ in 0..5_000 {
            let mut bytes = nested(1 + random.below(4) as usize);
            for _ in 0..random.below(4) {
                let at = random.below(bytes.len() as u64 + 1) as usize;
                match random.below(4) {
                    0 => bytes.insert(at, random.below(256) as u8),
                    1 => bytes.extend(nested(2)),
                    2 => drop(bytes.splice(at..at, [0x0a, 0, 0x12, 0])),
                    _ => drop(bytes.splice(at..at, groups(1 + random.below(150) as usize))),
                }
            }
            if let Ok((txn, counted)) = txn(bytes.into(), 1000) {
                assert!(made(&txn) <= counted, "{counted} counted: {txn:?}");
            }
        }
    }

    #[test]
    fn decodes_as_prost_does() {
        // Bytes that prost accepts must be decoded by hand to the same message, even if fields are repeated,
        // out of order or unknown.
        let mut numbers = testkit::Random::new(1);
        let mut random = move |n: u64| numbers.below(n);
        let mut taken = 0;
        for _ in 0..20_000 {
            let mut bytes = nested(1 + random(4) as usize);
            for _ in 0..random(4) {
                let at = random(bytes.len() as u64 + 1) as usize;
                match random(4) {
                    0 => bytes.insert(at, random(256) as u8),
                    1 => bytes = [&bytes[..], &nested(2)].concat(),
                    2 => bytes.splice(at..at, groups(1)).for_each(drop),
                    _ => {
                        if let Some(byte) = bytes.get_mut(at) {
                            *byte ^= 1 << random(8);
                        }
                    }
                }
            }
            let mut by_hand = TxnRequest::default();
            let outcome = Deep::default().txn(&mut by_hand, bytes.clone().into(), 0, 1);
            if let Ok(by_prost) = TxnRequest::decode(&bytes[..]) {
                assert_eq!(outcome, Ok(()));
                assert_eq!(by_hand, by_prost);
                taken += 1;
            }
        }
        assert!(taken > 4_000, "{taken}");
    }
}
