//! Encodes protobuf fields directly into a buffer, for places where filling a generated message would copy
//! data.
//!
//! All hand-written protobuf encoding of Mainstay uses this module: varints, tags, and fields with numbers or
//! bytes. The output is the same as that of other protobuf encoders, if the caller writes the fields in
//! ascending order: varints are as short as possible, and fields that are 0 or empty are left out. The output
//! must never change, because HashKV hashes such bytes and all members must compute the same hash.
//!
//! Field numbers must be below 16, so that a tag is one byte; [`wide_tag`] is for larger numbers. The
//! functions allocate no memory, unless the buffer to which they append has to grow.

use bytes::BufMut;

/// Largest field number whose tag is one byte.
const FIELD_MAX: u8 = 15;

/// Returns the tag of a field with a number (wire type varint).
#[inline]
pub const fn number_tag(field: u8) -> u8 {
    debug_assert!(field >= 1 && field <= FIELD_MAX, "a tag of one byte");
    field << 3
}

/// Returns the tag of a field with bytes, a string or a message.
#[inline]
pub const fn bytes_tag(field: u8) -> u8 {
    debug_assert!(field >= 1 && field <= FIELD_MAX, "a tag of one byte");
    (field << 3) | 2
}

/// Returns the tag of a field with bytes, a string or a message, for any field number. The caller must write
/// the tag as a varint.
#[inline]
pub const fn wide_tag(field: u32) -> u64 {
    ((field as u64) << 3) | 2
}

/// Returns the length in bytes, 1 to 10, of the shortest varint for a number.
#[inline]
pub const fn varint_len(n: u64) -> usize {
    // One byte per 7 bits, rounded up. For 1 to 64 bits, (bits * 9 + 64) / 64 gives the same result without a
    // division by 7.
    ((64 - (n | 1).leading_zeros() as usize) * 9 + 64) / 64
}

/// Returns the bytes of the shortest varint in little-endian order: the first result contains the first eight
/// bytes, and the second result the last two. Bytes after the end of the varint are 0.
///
/// Groups of 7 bits are moved to their bytes in three steps: the number is split into two groups of 28 bits,
/// then into four of 14 bits, then into eight of 7 bits. This is faster than a loop over the bytes, which
/// matters because ids take up to ten bytes and each response has two ids.
#[inline(always)]
const fn varint(n: u64) -> (u64, u16) {
    let x = n & 0x00ff_ffff_ffff_ffff;
    let x = (x & 0x0fff_ffff) | ((x & 0x00ff_ffff_f000_0000) << 4);
    let x = (x & 0x0000_3fff_0000_3fff) | ((x & 0x0fff_c000_0fff_c000) << 2);
    let x = (x & 0x007f_007f_007f_007f) | ((x & 0x3f80_3f80_3f80_3f80) << 1);
    let len = varint_len(n);
    if len <= 8 {
        // Set the highest bit of all bytes except the last one, since it says that another byte follows.
        let behind = 64 - 8 * (len as u32 - 1);
        let more = if behind == 64 { 0 } else { 0x8080_8080_8080_8080 >> behind };
        return (x | more, 0);
    }
    let (ninth, tenth) = ((n >> 56) as u16 & 0x7f, (n >> 63) as u16);
    let high = if len == 10 { ninth | 0x80 | (tenth << 8) } else { ninth };
    (x | 0x8080_8080_8080_8080, high)
}

/// Passes the bytes of the shortest varint to `put`, one by one.
#[inline(always)]
fn each_varint_byte(mut n: u64, mut put: impl FnMut(u8)) {
    while n >= 0x80 {
        put((n as u8) | 0x80);
        n >>= 7;
    }
    put(n as u8);
}

/// Appends a varint.
#[inline]
pub fn put_varint(out: &mut impl BufMut, n: u64) {
    each_varint_byte(n, |byte| out.put_u8(byte));
}

/// Returns the number of bytes that [`put_number`] appends.
#[inline]
pub const fn number_len(n: i64) -> usize {
    if n == 0 { 0 } else { 1 + varint_len(n as u64) }
}

/// Appends a field with a number; appends nothing for 0.
#[inline]
pub fn put_number(out: &mut impl BufMut, field: u8, n: i64) {
    if n != 0 {
        out.put_u8(number_tag(field));
        put_varint(out, n as u64);
    }
}

/// Returns the number of bytes that [`put_bytes`] appends.
#[inline]
pub const fn bytes_len(len: usize) -> usize {
    if len == 0 { 0 } else { field_len(len) }
}

/// Appends a field with bytes; appends nothing if `bytes` is empty.
#[inline]
pub fn put_bytes(out: &mut impl BufMut, field: u8, bytes: &[u8]) {
    if !bytes.is_empty() {
        put_field(out, field, bytes);
    }
}

/// Returns the number of bytes that [`put_field`] appends for a field with `len` bytes: tag, length and
/// bytes.
///
/// Used for fields that must be written even if they are empty: messages, elements of repeated fields, and
/// members of a `oneof`.
#[inline]
pub const fn field_len(len: usize) -> usize {
    1 + varint_len(len as u64) + len
}

/// Appends a field with bytes, even if `bytes` is empty.
#[inline]
pub fn put_field(out: &mut impl BufMut, field: u8, bytes: &[u8]) {
    put_field_head(out, field, bytes.len());
    out.put_slice(bytes);
}

/// Appends the tag and the length of a field whose `len` bytes the caller appends next.
#[inline]
pub fn put_field_head(out: &mut impl BufMut, field: u8, len: usize) {
    out.put_u8(bytes_tag(field));
    put_varint(out, len as u64);
}

/// Encoder on the stack for a message that consists of a few fields with numbers.
///
/// Appending the whole message to a buffer checks the buffer's capacity once, while [`put_number`] checks it
/// for every byte. Used for the header of every response. `N` is the capacity in bytes: 11 per field (a tag
/// and a varint of at most ten bytes).
pub struct NumberFields<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Default for NumberFields<N> {
    #[inline]
    fn default() -> NumberFields<N> {
        NumberFields { bytes: [0; N], len: 0 }
    }
}

impl<const N: usize> NumberFields<N> {
    /// Adds a field with a number; adds nothing for 0.
    ///
    /// # Panics
    ///
    /// Panics if fewer than 11 bytes of the `N` bytes are free, which cannot happen if `N` has 11 bytes per
    /// field.
    #[inline]
    pub fn push(&mut self, field: u8, n: u64) {
        if n != 0 {
            let (low, high) = varint(n);
            let place = &mut self.bytes[self.len..self.len + 11];
            place[0] = number_tag(field);
            place[1..9].copy_from_slice(&low.to_le_bytes());
            place[9..].copy_from_slice(&high.to_le_bytes());
            self.len += 1 + varint_len(n);
        }
    }

    /// Returns the encoded message.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcdserverpb::{InternalRaftRequest, PutRequest, ResponseHeader};
    use prost::Message as _;

    /// Returns the numbers at which the length of a varint changes, and both ends of the range.
    fn numbers() -> impl Iterator<Item = u64> {
        (0..64).flat_map(|bits| [(1 << bits) - 1, 1 << bits]).chain([u64::MAX])
    }

    #[test]
    fn varints_are_prost_s_and_as_long_as_they_say() {
        for n in numbers() {
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            put_varint(&mut ours, n);
            prost::encoding::encode_varint(n, &mut theirs);
            assert_eq!(ours, theirs);
            assert_eq!(ours.len(), varint_len(n), "{n}");
        }
    }

    #[test]
    fn fields_are_prost_s_and_as_long_as_they_say() {
        for (n, len) in numbers().zip([0, 1, 127, 128, 20_000].into_iter().cycle()) {
            let (key, n) = (vec![7; len], n as i64);
            let mut out = Vec::new();
            put_bytes(&mut out, 1, &key);
            assert_eq!(out.len(), bytes_len(len));
            put_number(&mut out, 3, n);
            assert_eq!(out.len(), bytes_len(len) + number_len(n));
            let put = PutRequest { key: key.into(), lease: n, ..PutRequest::default() };
            assert_eq!(out, put.encode_to_vec());
            let mut wrapped = Vec::new();
            put_field(&mut wrapped, 4, &out);
            assert_eq!(wrapped.len(), field_len(out.len()));
            let request = InternalRaftRequest { put: Some(put), ..InternalRaftRequest::default() };
            assert_eq!(wrapped, request.encode_to_vec());
        }
    }

    #[test]
    fn a_wide_tag_is_a_narrow_one_s_number() {
        assert_eq!(wide_tag(15), u64::from(bytes_tag(15)));
        let header = crate::etcdserverpb::RequestHeader::default();
        let request = InternalRaftRequest { header: Some(header), ..InternalRaftRequest::default() };
        let mut out = Vec::new();
        put_varint(&mut out, wide_tag(100));
        put_varint(&mut out, 0);
        assert_eq!(out, request.encode_to_vec());
    }

    #[test]
    fn numbers_on_the_stack_are_a_message() {
        for n in numbers() {
            let header = ResponseHeader { cluster_id: n, member_id: 0, revision: 3, raft_term: n };
            let mut fields = NumberFields::<44>::default();
            fields.push(1, header.cluster_id);
            fields.push(2, header.member_id);
            fields.push(3, header.revision as u64);
            fields.push(4, header.raft_term);
            assert_eq!(fields.as_slice(), header.encode_to_vec());
        }
    }
}
