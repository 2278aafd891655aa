//! Responses of etcd that are hard to guess. The numbers are those of etcd 3.7.3.

use api::Rpc;
use api::etcdserverpb::range_request::SortTarget;
use api::etcdserverpb::{RangeRequest, RangeStreamResponse, SnapshotRequest, SnapshotResponse};
use api::etcdserverpb::{WatchCancelRequest, WatchProgressRequest};
use api::etcdserverpb::{WatchCreateRequest, WatchRequest, WatchResponse, watch_request::RequestUnion};
use client::{Receiver, Sender};
use numbers::Revision;
use prost::Message;

use testkit::TempDir;

use crate::client::{ALL, Client};
use crate::member::Setup;
use crate::run;

/// Returns all messages with which a server stream answers one request.
pub async fn all<A: Message + Default>(client: &Client, rpc: Rpc, request: &impl Message) -> Vec<A> {
    let (mut sender, mut receiver) = client.channel.stream(rpc.path()).await.expect("it opens");
    sender.send_last(request.encode_to_vec().into()).await.expect("it is sent");
    let mut answers = Vec::new();
    while let Some(message) = receiver.next().await.expect("it ends well") {
        answers.push(A::decode(message).expect("an answer"));
    }
    answers
}

#[test]
fn hashes_of_compactions_are_remembered_until_a_restart() {
    let dir = TempDir::new("hashes");
    let member = Setup::new(dir.path()).start();
    run(async {
        let client = member.client().await;
        let hash = async |revision: i64| {
            let answer = client.hash_kv(revision).await.expect("a hash");
            (answer.hash, answer.compact_revision, answer.hash_revision)
        };
        client.put("a", "1").await.expect("is written");
        client.put("b", "22").await.expect("is written");
        client.delete("a").await.expect("is deleted");
        assert_eq!(hash(0).await, (2_304_249_277, -1, 4));
        assert_eq!(hash(-7).await, (1_084_519_789, -1, -7));
        client.put("c", "3").await.expect("is written");
        client.compact(3, true).await.expect("is compacted");
        assert_eq!(hash(3).await, (2_627_027_711, -1, 3));
        client.delete("b").await.expect("is deleted");
        client.delete("c").await.expect("is deleted");
        client.compact(7, false).await.expect("is compacted");
        assert_eq!(hash(3).await, (2_627_027_711, -1, 3), "compacted, and still known");
        assert_eq!((hash(7).await.1, hash(0).await.1), (3, 7));
        assert!(client.hash_kv(6).await.is_err(), "only at the very revision");
    });
    member.stop();
    let member = Setup::new(dir.path()).start();
    run(async {
        let client = member.client().await;
        assert!(client.hash_kv(3).await.is_err());
        assert_eq!(client.hash_kv(7).await.expect("a hash").compact_revision, 7);
    });
}

#[test]
fn a_compaction_at_zero_hides_the_present_hash() {
    let dir = TempDir::new("zero");
    let member = Setup::new(dir.path()).start();
    run(async {
        let client = member.client().await;
        client.put("a", "1").await.expect("is written");
        client.compact(0, true).await.expect("is compacted");
        let answer = client.hash_kv(0).await.expect("a hash");
        assert_eq!((answer.hash, answer.compact_revision, answer.hash_revision), (1_084_519_789, -1, 0));
    });
}

#[test]
fn a_streamed_range_sorts_the_whole_by_its_target() {
    let dir = TempDir::new("sorted");
    let member = Setup::new(dir.path()).start();
    run(async {
        let client = member.client().await;
        // The first key is written most often, so etcd's paging returns to it again and again.
        for n in 0..1200u32 {
            let key = format!("k{n:04}");
            client.put(key.clone(), "1").await.expect("is written");
            if n % 400 == 0 {
                client.put(key, "2").await.expect("is written");
            }
        }
        for (limit, count) in [(0, 1200), (5, 5)] {
            let request = RangeRequest {
                key: ALL.into(),
                range_end: ALL.into(),
                limit,
                sort_target: SortTarget::Version as i32,
                ..RangeRequest::default()
            };
            let pieces: Vec<RangeStreamResponse> = all(&client, Rpc::KvRangeStream, &request).await;
            let pieces: Vec<_> = pieces.into_iter().filter_map(|piece| piece.range_response).collect();
            let kvs: Vec<_> = pieces.iter().flat_map(|piece| &piece.kvs).collect();
            assert_eq!(kvs.len(), count);
            assert!(kvs.windows(2).all(|pair| pair[0].version <= pair[1].version));
            let last = pieces.last().expect("a last one");
            assert_eq!((last.count, last.more, last.header.is_some()), (1200, count < 1200, true));
        }
    });
}

/// kube-apiserver reads only up to the last key that it wants, and takes the revision of the list from what
/// it has read.
#[test]
fn the_last_keys_of_a_streamed_range_come_with_its_revision() {
    let dir = TempDir::new("stream-end");
    let member = Setup::new(dir.path()).start();
    run(async {
        let client = member.client().await;
        for n in 0..30u32 {
            client.put(format!("k{n:02}"), vec![7; 200_000]).await.expect("is written");
        }
        for (limit, sort_target) in [
            (0, SortTarget::Key),
            (1, SortTarget::Key),
            (30, SortTarget::Key),
            (20, SortTarget::Key),
            (20, SortTarget::Version),
        ] {
            let request = RangeRequest {
                key: ALL.into(),
                range_end: ALL.into(),
                limit,
                sort_target: sort_target as i32,
                ..RangeRequest::default()
            };
            let pieces: Vec<RangeStreamResponse> = all(&client, Rpc::KvRangeStream, &request).await;
            let mut pieces: Vec<_> = pieces.into_iter().filter_map(|piece| piece.range_response).collect();
            let count: usize = pieces.iter().map(|piece| piece.kvs.len()).sum();
            assert_eq!(count, if limit == 0 { 30 } else { limit as usize });
            assert!(pieces.len() > 1 || limit == 1, "{} pieces", pieces.len());
            let last = pieces.pop().expect("a last one");
            assert!(!last.kvs.is_empty(), "limit {limit}");
            assert_eq!(last.header.map(|header| header.revision), Some(31));
            assert_eq!((last.count, last.more), (30, count < 30));
            assert!(
                pieces
                    .iter()
                    .all(|piece| piece.header.is_none() && piece.count == 0 && !piece.kvs.is_empty())
            );
        }
    });
}

#[test]
fn a_snapshot_counts_down() {
    let dir = TempDir::new("countdown");
    let member = Setup::new(dir.path()).start();
    run(async {
        let client = member.client().await;
        for n in 0..60u32 {
            client.put(format!("{n}"), vec![n as u8; 20_000]).await.expect("is written");
        }
        client.compact(40, true).await.expect("is compacted");
        let pieces: Vec<SnapshotResponse> = all(&client, Rpc::MaintenanceSnapshot, &SnapshotRequest {}).await;
        assert!(pieces.len() > 10);
        let (digest, data) = pieces.split_last().expect("a digest");
        assert_eq!((digest.remaining_bytes, digest.blob.len()), (0, 32));
        for pair in data.windows(2) {
            let sent = pair[1].blob.len() as u64;
            assert_eq!(pair[0].remaining_bytes, pair[1].remaining_bytes + sent);
        }
        // As in etcd, the digest does not count as part of the snapshot.
        assert_eq!(data.last().map(|piece| piece.remaining_bytes), Some(0));
        let sent: u64 = data.iter().map(|piece| piece.blob.len() as u64).sum();
        assert_eq!(data[0].remaining_bytes + data[0].blob.len() as u64, sent);
        let file: Vec<u8> = pieces.iter().flat_map(|piece| piece.blob.to_vec()).collect();
        let (backend, parts) = interchange::snapshot::open(file).expect("etcd's database and its digest");
        assert!(parts.has_digest);
        let found = interchange::hash_kv(&backend, Revision(0)).expect("can be hashed");
        let expected = client.hash_kv(0).await.expect("a hash can be had");
        assert_eq!(
            (found.hash, found.compact_revision),
            (expected.hash, Revision(expected.compact_revision))
        );
    });
}

#[test]
fn a_snapshot_is_of_one_moment_whatever_is_written_while_it_is_taken() {
    let dir = TempDir::new("slow-snapshot");
    let member = Setup::new(dir.path()).start();
    run(async {
        let client = member.client().await;
        for n in 0..100u32 {
            client.put(format!("{n}"), vec![n as u8; 100_000]).await.expect("is written");
        }
        client.compact(40, true).await.expect("is compacted");
        let expected = client.hash_kv(0).await.expect("a hash can be had");
        let (mut sender, mut receiver) =
            client.channel.stream(Rpc::MaintenanceSnapshot.path()).await.expect("it opens");
        sender.send_last(SnapshotRequest {}.encode_to_vec().into()).await.expect("it is sent");
        let mut pieces = Vec::new();
        for _ in 0..3 {
            let piece = receiver.next().await.expect("it goes on").expect("there is more");
            pieces.push(SnapshotResponse::decode(piece).expect("an answer"));
        }
        // Keys are overwritten, deleted, added and compacted; these requests do not wait for the snapshot.
        let other = member.client().await;
        for n in 0..100u32 {
            match n % 3 {
                0 => _ = other.put(format!("{n}"), "new").await.expect("is written"),
                1 => _ = other.delete(format!("{n}")).await.expect("is deleted"),
                _ => _ = other.put(format!("{n}x"), "another").await.expect("is written"),
            }
        }
        let revision = other.put("last", "one").await.expect("is written");
        other.compact(revision, true).await.expect("is compacted");
        while let Some(piece) = receiver.next().await.expect("it ends well") {
            pieces.push(SnapshotResponse::decode(piece).expect("an answer"));
        }
        let file: Vec<u8> = pieces.iter().flat_map(|piece| piece.blob.to_vec()).collect();
        let (backend, parts) = interchange::snapshot::open(file).expect("etcd's database and its digest");
        assert!(parts.has_digest);
        let found = interchange::hash_kv(&backend, Revision(0)).expect("can be hashed");
        assert_eq!(
            (found.hash, found.compact_revision),
            (expected.hash, Revision(expected.compact_revision))
        );
    });
    member.stop();
}

async fn ask(sender: &mut Sender, union: RequestUnion) {
    let request = WatchRequest { request_union: Some(union) };
    sender.send(request.encode_to_vec().into()).await.expect("it is sent");
}

async fn hear(receiver: &mut Receiver) -> WatchResponse {
    let message = receiver.next().await.expect("the stream lives").expect("an answer");
    WatchResponse::decode(message).expect("an answer")
}

#[test]
fn a_compacted_watch_is_known_until_it_is_cancelled() {
    let dir = TempDir::new("cancel");
    let member = Setup::new(dir.path()).start();
    run(async {
        let client = member.client().await;
        for n in 0..5 {
            client.put("k", vec![n]).await.expect("is written");
        }
        client.compact(4, true).await.expect("is compacted");
        let (mut sender, mut receiver) = client.channel.stream(Rpc::Watch.path()).await.expect("it opens");
        let create = WatchCreateRequest { key: "k".into(), start_revision: 2, ..Default::default() };
        ask(&mut sender, RequestUnion::CreateRequest(create)).await;
        assert!(hear(&mut receiver).await.created);
        let ended = hear(&mut receiver).await;
        assert_eq!((ended.canceled, ended.compact_revision), (true, 4));
        ask(&mut sender, RequestUnion::ProgressRequest(WatchProgressRequest {})).await;
        ask(&mut sender, RequestUnion::CancelRequest(WatchCancelRequest { watch_id: 0 })).await;
        let answer = hear(&mut receiver).await;
        assert_eq!((answer.watch_id, answer.canceled, answer.compact_revision), (0, true, 0));
        assert_eq!(answer.header.map(|header| header.revision), Some(6));

        // A client that has closed its sending side still receives events.
        let create = WatchCreateRequest { key: "k".into(), ..Default::default() };
        ask(&mut sender, RequestUnion::CreateRequest(create)).await;
        let created = hear(&mut receiver).await;
        let created = if created.created { created } else { hear(&mut receiver).await };
        assert!(created.created, "{created:?}");
        sender.finish();
        client.put("k", "late").await.expect("is written");
        assert_eq!(hear(&mut receiver).await.events.len(), 1);
    });
}
