//! Counts the elements of a request's repeated fields on the wire, before the request is decoded.
//!
//! An empty element takes two bytes on the wire, but some hundred bytes of memory once it is decoded, and two
//! bytes of gzip expand to a thousand such elements. Without a limit a small request could therefore exhaust
//! the memory. The limit must be checked before decoding, so the elements are counted on the wire.
//!
//! Counting allocates no memory, and its time is proportional to the number of fields. An invalid message is
//! counted up to the first error that a decoder would find.

use crate::{Code, Status};
use prost::encoding::{WireType, decode_key, decode_varint};

/// Maximum number of URLs of a member in one request; a request with more is refused. etcd has no limit
/// (COMPAT-421).
pub const MEMBER_URLS_MAX: usize = 128;
/// Maximum number of filters of a watch; a watch with more is refused. Only two kinds of filters exist. etcd
/// has no limit (COMPAT-421).
pub const WATCH_FILTERS_MAX: usize = 128;
/// Error for a watch with more filters than [`WATCH_FILTERS_MAX`].
pub const TOO_MANY_FILTERS: Status =
    Status::new(Code::InvalidArgument, "mainstay: too many filters of a watch");
/// Maximum nesting depth of transactions; deeper ones are refused without counting their contents.
const DEPTH_MAX: usize = 256;

/// One field of a message: its number and its value.
pub type Field<'a> = (u32, Value<'a>);

/// Value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// A number of any size, or a protobuf group. No message of the API has groups.
    Other,
    /// Bytes, a string, a message, or packed numbers.
    Bytes(&'a [u8]),
}

/// Iterator over the fields of a message in wire order. It ends where a decoder would find an error.
#[derive(Clone, Debug)]
pub struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// Creates an iterator over the fields of an encoded message.
    pub fn of(message: &'a [u8]) -> Fields<'a> {
        Fields(message)
    }

    fn advance(&mut self, bytes: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(bytes).ok()?)?;
        self.0 = rest;
        Some(taken)
    }

    /// Takes the next field, or the next group with its contents. Nested groups are skipped in a loop, so
    /// they cannot overflow the stack.
    fn take(&mut self) -> Option<Field<'a>> {
        let mut open = 0_u64;
        loop {
            let (number, wire) = decode_key(&mut self.0).ok()?;
            let mut value = Value::Other;
            match wire {
                WireType::Varint => drop(decode_varint(&mut self.0).ok()?),
                WireType::SixtyFourBit => drop(self.advance(8)?),
                WireType::ThirtyTwoBit => drop(self.advance(4)?),
                WireType::LengthDelimited => {
                    let bytes = decode_varint(&mut self.0).ok()?;
                    value = Value::Bytes(self.advance(bytes)?);
                }
                WireType::StartGroup => open += 1,
                WireType::EndGroup => open = open.checked_sub(1)?,
            }
            if open == 0 {
                return Some((number, value));
            }
        }
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Field<'a>;

    fn next(&mut self) -> Option<Field<'a>> {
        if self.0.is_empty() { None } else { self.take() }
    }
}

/// Counts the comparisons and operations of a `TxnRequest` in both branches and in nested transactions.
/// Returns `None` if there are more than `max`, or if transactions are nested deeper than `DEPTH_MAX`.
pub fn of_txn(message: &[u8], max: usize) -> Option<usize> {
    let mut left = max;
    count_txn(message, &mut left, DEPTH_MAX)?;
    Some(max - left)
}

fn count_txn(message: &[u8], left: &mut usize, depth: usize) -> Option<()> {
    let depth = depth.checked_sub(1)?;
    for (list, value) in Fields::of(message) {
        let (1..=3, Value::Bytes(element)) = (list, value) else { continue };
        *left = left.checked_sub(1)?;
        if list == 1 {
            continue;
        }
        for (kind, value) in Fields::of(element) {
            if let (4, Value::Bytes(nested)) = (kind, value) {
                count_txn(nested, left, depth)?;
            }
        }
    }
    Some(())
}

/// Returns true if a request names more than [`MEMBER_URLS_MAX`] URLs in this field.
pub fn has_too_many_urls(message: &[u8], field: u32) -> bool {
    Fields::of(message).filter(|(number, _)| *number == field).nth(MEMBER_URLS_MAX).is_some()
}

/// Returns true if a `WatchRequest` has more than [`WATCH_FILTERS_MAX`] filters. Packed filters are counted
/// by their bytes, of which a valid filter takes one.
pub fn has_too_many_filters(message: &[u8]) -> bool {
    // A filter takes at least one byte, so a short request, as most requests are, need not be read.
    if message.len() <= WATCH_FILTERS_MAX {
        return false;
    }
    let mut left = WATCH_FILTERS_MAX;
    for (union, value) in Fields::of(message) {
        let (1, Value::Bytes(create)) = (union, value) else { continue };
        for (_, value) in Fields::of(create).filter(|(number, _)| *number == 5) {
            // A packed number takes at least one byte, so the number of bytes is the maximum number of
            // filters.
            let values = match value {
                Value::Bytes(packed) => packed.len(),
                Value::Other => 1,
            };
            match left.checked_sub(values) {
                Some(fewer) => left = fewer,
                None => return true,
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcdserverpb::request_op::Request;
    use crate::etcdserverpb::watch_request::RequestUnion;
    use crate::etcdserverpb::{
        Compare, MemberAddRequest, MemberUpdateRequest, PutRequest, RequestOp, TxnRequest,
        WatchCreateRequest, WatchRequest,
    };
    use prost::Message as _;

    fn op(request: Request) -> RequestOp {
        RequestOp { request: Some(request) }
    }

    fn put() -> RequestOp {
        op(Request::RequestPut(PutRequest {
            key: "k".into(),
            value: vec![8; 300].into(),
            ..Default::default()
        }))
    }

    #[test]
    fn comparisons_and_operations_are_counted_in_all_branches() {
        let inner =
            TxnRequest { compare: vec![Compare::default(); 2], success: vec![put()], failure: vec![] };
        let txn = TxnRequest {
            compare: vec![Compare { key: "k".into(), ..Compare::default() }; 3],
            success: vec![put(), op(Request::RequestTxn(inner.clone()))],
            failure: vec![op(Request::RequestTxn(inner)), RequestOp::default()],
        };
        let bytes = txn.encode_to_vec();
        assert_eq!(of_txn(&bytes, 1000), Some(3 + 2 + 2 + 3 + 3));
        assert_eq!((of_txn(&bytes, 13), of_txn(&bytes, 12)), (Some(13), None));
        assert_eq!(of_txn(&[], 0), Some(0));
    }

    #[test]
    fn a_million_of_two_bytes_are_not_looked_at_beyond_the_bound() {
        for list in [0x0a_u8, 0x12, 0x1a] {
            let bytes = [list, 0].repeat(1_000_000);
            assert_eq!(of_txn(&bytes, 8192), None);
            assert_eq!(of_txn(&bytes[..2 * 8192], 8192), Some(8192));
        }
        // The same in a nested transaction that is split into several occurrences of its field.
        let pieces = [0x22, 2, 0x0a, 0].repeat(10_000);
        let mut txn = Vec::new();
        crate::wire::put_field(&mut txn, 2, &pieces);
        assert_eq!((of_txn(&txn, 8192), of_txn(&txn, 10_001)), (None, Some(10_001)));
    }

    #[test]
    fn what_is_wrong_is_counted_as_far_as_a_decoder_comes() {
        for (bytes, counted) in [
            (&b"\x0a\x00\x0a\x05a"[..], 1),
            (b"\x0a\x00\xff", 1),
            (b"\x0a\x00\x0f\x0a\x00", 1),
            (b"\x0a\x00\x7c\x0a\x00", 1),
            (b"\x0a\x00\x7b\x0a\x00", 1),
            // Numbers, and groups with contents, are skipped.
            (b"\x08\x01\x0a\x00", 1),
            (b"\x0d1234\x09 1234567\x0a\x00", 1),
            (b"\x7b\x0a\x00\x0a\x01a\x7b\x7c\x7c\x0a\x00", 1),
        ] {
            assert_eq!(of_txn(bytes, 9), Some(counted), "{bytes:?}");
        }
        // Nested groups use no stack.
        assert_eq!(
            of_txn(&[vec![0x7b; 1_000_000], vec![0x7c; 1_000_000], vec![0x0a, 0]].concat(), 9),
            Some(1)
        );
        let mut deep = vec![0x0a, 0];
        for _ in 0..300 {
            let (mut nested, mut op) = (Vec::new(), Vec::new());
            crate::wire::put_field(&mut nested, 4, &deep);
            crate::wire::put_field(&mut op, 2, &nested);
            deep = op;
        }
        assert_eq!(of_txn(&deep, 1_000_000), None);
    }

    #[test]
    fn urls_and_filters_are_counted() {
        let urls = |n: usize| vec![String::new(); n];
        for (n, is_much) in [(0, false), (MEMBER_URLS_MAX, false), (MEMBER_URLS_MAX + 1, true)] {
            let add = MemberAddRequest { peer_urls: urls(n), is_learner: true, is_witness: false };
            assert_eq!(has_too_many_urls(&add.encode_to_vec(), 1), is_much);
            let update = MemberUpdateRequest { id: 7, peer_urls: urls(n) };
            assert_eq!(has_too_many_urls(&update.encode_to_vec(), 2), is_much);
        }
        for (n, is_much) in [(0, false), (WATCH_FILTERS_MAX, false), (WATCH_FILTERS_MAX + 1, true)] {
            let create =
                WatchCreateRequest { key: vec![1; 500].into(), filters: vec![1; n], ..Default::default() };
            let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
            assert_eq!(has_too_many_filters(&request.encode_to_vec()), is_much);
            // The filters as single values, each in a separate occurrence of the field `create_request`.
            let pieces = [0x0a, 2, 0x28, 1].repeat(n);
            assert_eq!(has_too_many_filters(&pieces), is_much);
        }
    }
}
