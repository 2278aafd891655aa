//! Encoding of commands for the log.

use api::wire::{bytes_tag, number_tag, put_varint, varint_len, wide_tag};
use bytes::{BufMut as _, Bytes, BytesMut};
use machine::auth::Caller;

/// Encodes a command with a client's request as an `InternalRaftRequest`: a header with the command's id and
/// user, and the unchanged request bytes as field `number`.
pub fn command(id: u64, number: u32, request: &[u8], caller: Caller<'_>) -> Bytes {
    const HEADER: u64 = wide_tag(100);
    // The id is always written, even if it is 0, the default value that protobuf encoders omit.
    let mut header_len = 1 + varint_len(id);
    if !caller.user.is_empty() {
        header_len += 1 + varint_len(caller.user.len() as u64) + caller.user.len();
    }
    if caller.revision != 0 {
        header_len += 1 + varint_len(caller.revision);
    }
    let tag = wide_tag(number);
    let len = varint_len(HEADER)
        + varint_len(header_len as u64)
        + header_len
        + varint_len(tag)
        + varint_len(request.len() as u64)
        + request.len();
    let mut out = BytesMut::with_capacity(len);
    put_varint(&mut out, tag);
    put_varint(&mut out, request.len() as u64);
    out.put_slice(request);
    put_varint(&mut out, HEADER);
    put_varint(&mut out, header_len as u64);
    out.put_u8(number_tag(1));
    put_varint(&mut out, id);
    if !caller.user.is_empty() {
        out.put_u8(bytes_tag(2));
        put_varint(&mut out, caller.user.len() as u64);
        out.put_slice(caller.user.as_bytes());
    }
    if caller.revision != 0 {
        out.put_u8(number_tag(3));
        put_varint(&mut out, caller.revision);
    }
    debug_assert_eq!(out.len(), len);
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::etcdserverpb::{InternalRaftRequest, PutRequest, RequestHeader};
    use prost::Message as _;

    #[test]
    fn a_command_is_an_internal_raft_request() {
        let put = PutRequest { key: "k".into(), value: "v".into(), ..PutRequest::default() };
        for (user, revision) in [("", 0), ("bob", 300)] {
            let bytes = command(u64::MAX, 4, &put.encode_to_vec(), Caller { user, revision });
            let decoded = InternalRaftRequest::decode(bytes).expect("decodes");
            assert_eq!(decoded.put.as_ref(), Some(&put));
            let header = RequestHeader { id: u64::MAX, username: user.to_owned(), auth_revision: revision };
            assert_eq!(decoded.header, Some(header));
        }
    }
}
