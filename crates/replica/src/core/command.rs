//! The bytes of a command.

use api::wire::{number_tag, put_varint, varint_len, wide_tag};
use bytes::{BufMut as _, Bytes, BytesMut};

/// Bytes of a command that carries a client's request unchanged: the header with its id, and the request as field
/// `number` of the `InternalRaftRequest`.
pub fn command(id: u64, number: u32, request: &[u8]) -> Bytes {
    const HEADER: u64 = wide_tag(100);
    // Also an id of 0 is written.
    let id_len = 1 + varint_len(id);
    let tag = wide_tag(number);
    let len = varint_len(HEADER)
        + varint_len(id_len as u64)
        + id_len
        + varint_len(tag)
        + varint_len(request.len() as u64)
        + request.len();
    let mut out = BytesMut::with_capacity(len);
    put_varint(&mut out, tag);
    put_varint(&mut out, request.len() as u64);
    out.put_slice(request);
    put_varint(&mut out, HEADER);
    put_varint(&mut out, id_len as u64);
    out.put_u8(number_tag(1));
    put_varint(&mut out, id);
    debug_assert_eq!(out.len(), len);
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::etcdserverpb::{InternalRaftRequest, PutRequest};
    use prost::Message as _;

    #[test]
    fn a_command_is_an_internal_raft_request() {
        let put = PutRequest { key: "k".into(), value: "v".into(), ..PutRequest::default() };
        let bytes = command(u64::MAX, 4, &put.encode_to_vec());
        let decoded = InternalRaftRequest::decode(bytes).expect("decodes");
        assert_eq!(decoded.put, Some(put));
        assert_eq!(decoded.header.map(|h| h.id), Some(u64::MAX));
    }
}
