//! The bytes of a command.

use bytes::Bytes;

/// Bytes of a command that carries a client's request unchanged: the header with its id, and the request as field
/// `number` of the `InternalRaftRequest`.
pub fn command(id: u64, number: u32, request: &[u8]) -> Bytes {
    use bytes::BufMut as _;
    use machine::found::{put_varint, varint_len};
    const HEADER: u64 = (100 << 3) | 2;
    let id_len = 1 + varint_len(id);
    let tag = (u64::from(number) << 3) | 2;
    let len = varint_len(HEADER)
        + varint_len(id_len as u64)
        + id_len
        + varint_len(tag)
        + varint_len(request.len() as u64)
        + request.len();
    let mut out = bytes::BytesMut::with_capacity(len);
    put_varint(&mut out, tag);
    put_varint(&mut out, request.len() as u64);
    out.put_slice(request);
    put_varint(&mut out, HEADER);
    put_varint(&mut out, id_len as u64);
    out.put_u8(0x08);
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
