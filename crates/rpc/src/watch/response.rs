//! Encodes watch responses.

use std::ops::Range;

use api::etcdserverpb::{ResponseHeader, WatchResponse};
use api::wire::{field_len, number_len, number_tag, put_field_head, put_number};
use bytes::{BufMut as _, Bytes, BytesMut};
use prost::Message as _;

use crate::encode::{header_len, put_header};

/// Encoded field `fragment` with the value true.
const FRAGMENT: [u8; 2] = [number_tag(7), 1];
/// Number of the field `events`.
const EVENTS: u8 = 11;

/// Watch id of a response that belongs to no watch of its stream, or to all.
pub(super) const NO_WATCH: i64 = -1;

/// Returns an encoded response without events.
pub(super) fn control(response: &WatchResponse) -> Bytes {
    response.encode_to_vec().into()
}

/// Returns the length of an encoded response before its events.
pub(super) fn head_len(header: &ResponseHeader, watch_id: i64) -> usize {
    header_len(header) + number_len(watch_id)
}

/// Returns an encoded response with these events, each given as its whole encoded field.
pub(super) fn events<'a>(
    header: &ResponseHeader,
    watch_id: i64,
    fragment: bool,
    fields: impl Iterator<Item = &'a [u8]>,
    fields_len: usize,
) -> Bytes {
    let len = head_len(header, watch_id) + if fragment { FRAGMENT.len() } else { 0 } + fields_len;
    let mut out = BytesMut::with_capacity(len);
    put_header(&mut out, header);
    put_number(&mut out, 2, watch_id);
    if fragment {
        out.put_slice(&FRAGMENT);
    }
    fields.for_each(|field| out.put_slice(field));
    assert_eq!(out.len(), len, "a response has the length that it was measured to have");
    out.freeze()
}

/// Bytes that are reserved before the events of a response: enough for its header, watch id and `fragment`
/// field.
pub(super) const HEAD_ROOM: usize = 64;

/// Returns a response whose events are in `out`, after [`HEAD_ROOM`] bytes of any content. The result takes
/// little more memory than its length.
pub(super) fn sealed(mut out: BytesMut, header: &ResponseHeader, watch_id: i64, fragment: bool) -> Bytes {
    let head = events(header, watch_id, fragment, std::iter::empty(), 0);
    let start = HEAD_ROOM - head.len();
    out[start..HEAD_ROOM].copy_from_slice(&head);
    if out.capacity() - out.len() > HEAD_ROOM {
        return Bytes::copy_from_slice(&out[start..]);
    }
    out.freeze().slice(start..)
}

/// Returns the length of an event's whole field, given the length of its body.
pub(super) fn event_field_len(body_len: usize) -> usize {
    field_len(body_len)
}

/// Appends the part of an event's field before its body.
pub(super) fn put_event_head(out: &mut BytesMut, body_len: usize) {
    put_field_head(out, EVENTS, body_len);
}

/// Cuts a response into fragments as etcd does: each has as many events as fit below `bytes_max`, but at
/// least one. `head_len` is the length of the response without events; `lens` are the lengths of the events'
/// fields.
pub(super) fn fragments(head_len: usize, lens: &[usize], bytes_max: usize) -> Vec<Range<usize>> {
    if lens.len() < 2 || head_len + lens.iter().sum::<usize>() < bytes_max {
        return std::iter::once(0..lens.len()).collect();
    }
    let mut parts = Vec::new();
    let (mut start, mut bytes) = (0, head_len + FRAGMENT.len());
    for (at, len) in lens.iter().enumerate() {
        if at > start && bytes + len >= bytes_max {
            parts.push(start..at);
            (start, bytes) = (at, head_len + FRAGMENT.len());
        }
        bytes += len;
    }
    parts.push(start..lens.len());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::mvccpb::{Event, KeyValue};

    fn header() -> ResponseHeader {
        ResponseHeader { cluster_id: 1 << 60, member_id: 7, revision: 300, raft_term: 2 }
    }

    fn field(event: &Event) -> Vec<u8> {
        let mut out = BytesMut::new();
        put_event_head(&mut out, event.encoded_len());
        out.put_slice(&event.encode_to_vec());
        assert_eq!(out.len(), event_field_len(event.encoded_len()));
        out.to_vec()
    }

    fn event(value_len: usize) -> Event {
        let kv = KeyValue { key: "k".into(), value: vec![1; value_len].into(), ..KeyValue::default() };
        Event { kv: Some(kv), ..Event::default() }
    }

    #[test]
    fn encodes_as_prost_does() {
        for (watch_id, fragment) in [(0, false), (-1, true), (300, true)] {
            let expected = WatchResponse {
                header: Some(header()),
                watch_id,
                fragment,
                events: vec![event(5), event(0), event(400)],
                ..WatchResponse::default()
            };
            let fields: Vec<_> = expected.events.iter().map(field).collect();
            let len = fields.iter().map(Vec::len).sum();
            let bytes = events(&header(), watch_id, fragment, fields.iter().map(Vec::as_slice), len);
            assert_eq!(bytes, expected.encode_to_vec());
            let mut out = BytesMut::zeroed(HEAD_ROOM);
            fields.iter().for_each(|field| out.put_slice(field));
            assert_eq!(sealed(out, &header(), watch_id, fragment), bytes);
        }
    }

    #[test]
    fn there_is_room_for_every_head() {
        let header =
            ResponseHeader { cluster_id: u64::MAX, member_id: u64::MAX, revision: -1, raft_term: u64::MAX };
        assert!(head_len(&header, -1) + FRAGMENT.len() <= HEAD_ROOM);
    }

    /// Fragments a response message by message, as etcd does.
    fn naive(whole: &WatchResponse, bytes_max: usize) -> Vec<WatchResponse> {
        if whole.encoded_len() < bytes_max || whole.events.len() < 2 {
            return vec![whole.clone()];
        }
        let mut parts = Vec::new();
        let mut at = 0;
        while at < whole.events.len() {
            let mut part = WatchResponse { fragment: true, events: Vec::new(), ..whole.clone() };
            while let Some(event) = whole.events.get(at) {
                part.events.push(event.clone());
                if part.events.len() > 1 && part.encoded_len() >= bytes_max {
                    part.events.pop();
                    break;
                }
                at += 1;
            }
            part.fragment = at < whole.events.len();
            parts.push(part);
        }
        parts
    }

    #[test]
    fn cuts_where_etcd_does() {
        for bytes_max in [1, 40, 60, 100, 200, 230, 231, 232, 233, 400, 10_000] {
            let whole = WatchResponse {
                header: Some(header()),
                watch_id: 3,
                events: [10, 90, 0, 0, 50, 49, 48, 200, 1].map(event).to_vec(),
                ..WatchResponse::default()
            };
            let fields: Vec<_> = whole.events.iter().map(field).collect();
            let lens: Vec<_> = fields.iter().map(Vec::len).collect();
            let parts = fragments(head_len(&header(), 3), &lens, bytes_max);
            let cut: Vec<Bytes> = parts
                .iter()
                .map(|part| {
                    let len = lens[part.clone()].iter().sum();
                    let fragment = part.end < lens.len();
                    events(&header(), 3, fragment, fields[part.clone()].iter().map(Vec::as_slice), len)
                })
                .collect();
            let expected: Vec<_> = naive(&whole, bytes_max).iter().map(|part| part.encode_to_vec()).collect();
            assert_eq!(cut, expected, "{bytes_max}");
        }
    }
}
