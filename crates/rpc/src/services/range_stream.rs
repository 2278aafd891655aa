//! Answers streamed ranges (`RangeStream`): each message contains a piece of the range, and clients merge
//! them.

use numbers::ChangeId;
use std::net::IpAddr;
use std::rc::Rc;

use api::error;
use api::etcdserverpb::range_request::{SortOrder, SortTarget};
use api::etcdserverpb::{RangeRequest, RangeResponse, ResponseHeader};
use api::wire::{field_len, put_field};
use api::{Code, Status, mvccpb};
use bytes::{Bytes, BytesMut};
use front::{Inbound, Outbound};
use machine::AsOf;
use machine::check;
use machine::key_value::Projection;
use machine::range::{self};
use prost::Message as _;

use super::freshness::Freshness;
use super::large_range::Opened;
use super::principal::Principal;
use super::traced::told_of_range_stream;
use super::walk::{key_range, keys_per_slice, note_walk, put_kv_field, slice};
use super::{NO_REQUEST, Services, decode_streamed};
use crate::audit;
use storage::values::made;
use telemetry::tracing::Within;

impl Services {
    /// Streams a range in pieces, each a `RangeResponse`; clients merge them. If RangeStream does not support
    /// the request, that error takes precedence over the error for an invalid token.
    pub(super) async fn range_stream(
        self: Rc<Self>,
        principal: Result<Principal, Status>,
        (client, call): (IpAddr, Option<&mut audit::Call>),
        freshness: Result<Option<Freshness>, Status>,
        (mut inbound, mut outbound): (Inbound, Outbound),
        spans: Option<Within>,
    ) -> Result<(), Status> {
        let Some(message) = inbound.next().await? else { return Err(NO_REQUEST) };
        call.into_iter().for_each(|call| call.asks(&message));
        let request: RangeRequest = decode_streamed(message)?;
        let _span = spans.map(|spans| spans.begin("range_streaming", told_of_range_stream(&request)));
        check::range(&request)?;
        check_stream(&request)?;
        let principal = &principal?;
        self.expense(principal, client, |now| check::range_is_expensive(&request, now).into())?;
        let freshness = if request.serializable { freshness? } else { None };
        let as_of = self.shared.confirmed_as_of();
        let is_fresh = |bound: Freshness| bound.allows(as_of, &self.shared.state.load(), self.now());
        let needs_round = freshness.is_some_and(|bound| !is_fresh(bound));
        let waited = self.wait_readable_for(principal, request.serializable && !needs_round).await;
        let state = self.state();
        match (waited, freshness) {
            (Err(status), Some(bound)) => return Err(bound.unconfirmed(&status)),
            (waited, None) => waited?,
            (Ok(()), Some(bound)) => bound.check_confirmed(&state)?,
        }
        self.gate(&state, principal).read(&request.key, &request.range_end)?;
        principal.is_of(&state.auth)?;
        drop(state);
        let Opened { state, header, revision, counted, limit: mut left } = self.open(&request)?;
        let projection = range::projection(&request);
        let target = self.shared.member.limits.request_bytes_max / 2;
        if request.count_only {
            left = 0;
        } else if request.sort_target != SortTarget::Key as i32 {
            let (chosen, more, count, _) = self.choose(&state, &request, revision, left, projection).await?;
            let chosen = (chosen, projection);
            return self.stream_chosen(principal, &state, chosen, header, (more, count), &mut outbound).await;
        }
        let mut behind: Option<Vec<u8>> = None;
        let mut sent = 0i64;
        // The newest piece is kept back until the next piece is ready or the range ends, because the last
        // piece is sent as part of the last message (`end_of_stream`).
        let (mut unsent, held) = (BytesMut::new(), outbound.account().hold(0));
        while left > 0 {
            let looks = keys_per_slice();
            let keys_max = looks.min(usize::try_from(left).unwrap_or(usize::MAX));
            let piece = made(self.values.clone(), |values| {
                let (mut out, mut keys) = (BytesMut::new(), 0);
                let slice = slice(&state)?;
                let range = key_range(&request.key, &request.range_end, behind.as_deref());
                let mut walk = slice.snapshot().range(range, revision).map_err(range::refused)?;
                walk.set_looks(looks as u64);
                let mut last = None;
                for version in walk.by_ref().take(keys_max) {
                    put_kv_field(&mut out, version, projection, values)?;
                    last = Some(version.key());
                    keys += 1;
                    if out.len() >= target {
                        break;
                    }
                }
                note_walk(&walk, looks as u64, out.len());
                Ok::<_, Status>((out, keys, walk.stopped_at().or(last).map(<[u8]>::to_vec)))
            });
            let (out, keys, Some(last)) = piece.await? else { break };
            behind = Some(last);
            sent += keys;
            left -= keys as u64;
            if out.is_empty() {
                tokio::task::yield_now().await;
                continue;
            }
            if !unsent.is_empty() {
                self.still(principal)?;
                outbound.send(piece_of_stream(&unsent)).await?;
            }
            held.set(out.len());
            unsent = out;
            tokio::task::yield_now().await;
        }
        let mut count = counted.map_or(sent, |counted| counted as i64);
        while counted.is_none() {
            let last = {
                let slice = slice(&state)?;
                let range = key_range(&request.key, &request.range_end, behind.as_deref());
                let mut walk = slice.snapshot().range(range, revision).map_err(range::refused)?;
                let looks = keys_per_slice() as u64;
                walk.set_looks(looks);
                count += walk.by_ref().count() as i64;
                note_walk(&walk, looks, 0);
                walk.stopped_at().map(<[u8]>::to_vec)
            };
            match last {
                Some(key) => behind = Some(key),
                None => break,
            }
            tokio::task::yield_now().await;
        }
        let more = !request.count_only && count > sent;
        self.still(principal)?;
        outbound.send(end_of_stream(&unsent, header, more, count)).await
    }

    /// Streams keys that are sorted already; `chosen` holds the last one first.
    ///
    /// etcd sorts each piece separately and continues after the last key of the piece, so with more than ten
    /// keys it repeats some keys and leaves out others. Here the whole range is sorted, as for a Range
    /// (COMPAT-6).
    async fn stream_chosen(
        &self,
        principal: &Principal,
        state: &AsOf,
        (mut chosen, projection): (Vec<ChangeId>, Projection),
        header: ResponseHeader,
        (more, count): (bool, i64),
        outbound: &mut Outbound,
    ) -> Result<(), Status> {
        let target = self.shared.member.limits.request_bytes_max / 2;
        let held = outbound.account().hold(chosen.capacity() * size_of::<ChangeId>());
        let mut unsent = BytesMut::new();
        while !chosen.is_empty() {
            let keys_max = keys_per_slice();
            let piece = made(self.values.clone(), |values| {
                let (mut out, mut keys) = (BytesMut::new(), 0);
                let slice = slice(state)?;
                let snapshot = slice.snapshot();
                for change in chosen.iter().rev().take(keys_max) {
                    let version = snapshot.version_at(*change).ok_or(error::COMPACTED)?;
                    put_kv_field(&mut out, version, projection, values)?;
                    keys += 1;
                    if out.len() >= target {
                        break;
                    }
                }
                accounting::note_work(keys as u64, out.len() as u64);
                Ok::<_, Status>((out, keys))
            });
            let (out, keys) = piece.await?;
            chosen.truncate(chosen.len() - keys);
            if !unsent.is_empty() {
                self.still(principal)?;
                outbound.send(piece_of_stream(&unsent)).await?;
            }
            held.set(chosen.capacity() * size_of::<ChangeId>() + out.len());
            unsent = out;
            tokio::task::yield_now().await;
        }
        self.still(principal)?;
        outbound.send(end_of_stream(&unsent, header, more, count)).await
    }
}

/// Returns a message of a streamed range that contains only keys; `kvs` are their encoded fields.
fn piece_of_stream(kvs: &[u8]) -> Bytes {
    let mut message = BytesMut::with_capacity(kvs.len() + 8);
    debug_assert!(field_len(kvs.len()) <= kvs.len() + 8);
    put_field(&mut message, 1, kvs);
    message.freeze()
}

/// Returns the last message of a streamed range: the keys that were not sent yet, the header, `more` and
/// `count`. As in etcd, the last keys are in this message: kube-apiserver stops reading when it has as many
/// keys as it wants, and takes the revision from what it has read.
fn end_of_stream(kvs: &[u8], header: ResponseHeader, more: bool, count: i64) -> Bytes {
    let end = RangeResponse { header: Some(header), kvs: Vec::<mvccpb::KeyValue>::new(), more, count };
    let fields = [end.encode_to_vec().as_slice(), kvs].concat();
    piece_of_stream(&fields)
}

/// Refuses requests that RangeStream does not support, in the order of etcd's checks. The sort order `NONE`
/// is accepted with any sort target.
fn check_stream(request: &RangeRequest) -> Result<(), Status> {
    let is_plain = request.sort_order == SortOrder::None as i32
        || (request.sort_order == SortOrder::Ascend as i32 && request.sort_target == SortTarget::Key as i32);
    if !is_plain {
        return Err(Status::new(Code::Unimplemented, "RangeStream does not support custom sort orders"));
    }
    if range::is_filtered(request) {
        return Err(Status::new(Code::Unimplemented, "RangeStream does not support revision filters"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_refused_as_etcd_refuses_them() {
        let order = |order: SortOrder, target: SortTarget, min_mod_revision: i64| {
            let request = RangeRequest {
                sort_order: order as i32,
                sort_target: target as i32,
                min_mod_revision,
                ..RangeRequest::default()
            };
            check_stream(&request).map_err(|status| status.message.into_owned())
        };
        let sorted = Err("RangeStream does not support custom sort orders".to_owned());
        let filtered = Err("RangeStream does not support revision filters".to_owned());
        assert_eq!(order(SortOrder::None, SortTarget::Key, 0), Ok(()));
        assert_eq!(order(SortOrder::Ascend, SortTarget::Key, 0), Ok(()));
        assert_eq!(order(SortOrder::None, SortTarget::Version, 0), Ok(()));
        assert_eq!(order(SortOrder::None, SortTarget::Create, -1), filtered);
        assert_eq!(order(SortOrder::Descend, SortTarget::Key, 0), sorted);
        assert_eq!(order(SortOrder::Ascend, SortTarget::Version, 5), sorted);
    }
}
