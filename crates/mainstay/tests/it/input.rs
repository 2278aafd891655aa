//! Invalid or oversized input: it is refused with etcd's text where etcd has one, the member survives, and
//! other clients are not affected.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::Duration;

use api::etcdserverpb::*;
use api::{Code, Kind, METHODS, Rpc, Status, error};
use bytes::Bytes;
use client::CallOptions;
use prost::Message as _;

use testkit::{Random, TempDir, eventually, http2};

use crate::client::{ALL, Client, put_op};
use crate::member::{Member, Setup};
use crate::{filler, run};

const MIB: usize = 1 << 20;

/// Asserts that a client with valid requests gets correct responses.
async fn assert_serves(client: &Client, number: u32) {
    let value = filler(number, 100);
    client.put("good", value.clone()).await.expect("puts are served");
    assert_eq!(client.get("good").await.expect("reads are served").expect("it is there").value, value);
}

#[test]
fn what_is_too_large_is_refused_as_etcd_does() {
    let dir = TempDir::new("large");
    let member = Setup::new(dir.path()).start();
    run(async {
        let client = member.client().await;
        let most = 1_572_864;
        client.put("k", filler(1, most - 100)).await.expect("1.5 MiB are taken");
        assert_eq!(client.put("k", filler(1, most + 1)).await, Err(error::REQUEST_TOO_LARGE));
        let halves: Vec<RequestOp> = (0..4).map(|n| put_op(format!("h{n}"), filler(n, most / 3))).collect();
        let request = TxnRequest { success: halves, ..TxnRequest::default() };
        let refused = client.call::<TxnResponse>(Rpc::KvTxn, &request).await;
        assert!(refused.is_err(), "{refused:?}");
        // A message above gRPC's limit is not read.
        let status = client.put("k", filler(1, 4 * MIB)).await.expect_err("too large");
        assert_eq!(status.code, Code::ResourceExhausted);
        let text = "grpc: received message larger than max (";
        assert!(status.message.starts_with(text) && status.message.ends_with(" vs. 2097152)"), "{status}");
        let many: Vec<RequestOp> = (0..129).map(|n| put_op(format!("m{n}"), "x")).collect();
        let request = TxnRequest { success: many, ..TxnRequest::default() };
        assert_eq!(client.call::<TxnResponse>(Rpc::KvTxn, &request).await, Err(error::TOO_MANY_OPS));
        assert_serves(&client, 1).await;
    });
    member.stop();
}

#[test]
fn what_makes_no_sense_is_refused_as_etcd_does() {
    let dir = TempDir::new("nonsense");
    let member = Setup::new(dir.path()).start();
    run(async {
        let client = member.client().await;
        let revision = client.put("k", "v").await.expect("puts are served");
        let range = |change: &dyn Fn(&mut RangeRequest)| {
            let mut request = RangeRequest { key: "k".into(), ..RangeRequest::default() };
            change(&mut request);
            request
        };
        let refused: [(RangeRequest, Status); 5] = [
            (range(&|r| r.key = Bytes::new()), error::EMPTY_KEY),
            (range(&|r| r.sort_order = 99), error::INVALID_SORT_OPTION),
            (range(&|r| r.sort_target = 99), error::INVALID_SORT_OPTION),
            (range(&|r| r.sort_order = -1), error::INVALID_SORT_OPTION),
            (range(&|r| r.revision = revision + 1), error::FUTURE_REV),
        ];
        for (request, expected) in refused {
            let got = client.call::<RangeResponse>(Rpc::KvRange, &request).await;
            assert_eq!(got, Err(expected), "{request:?}");
        }
        // A range end before the key, or a negative limit, gives an empty range or no limit.
        for request in [range(&|r| r.range_end = "a".into()), range(&|r| r.limit = -7)] {
            let got = client.call::<RangeResponse>(Rpc::KvRange, &request).await;
            assert!(got.is_ok(), "{request:?}: {got:?}");
        }
        assert_eq!(client.compact(revision + 10, false).await, Err(error::FUTURE_REV));
        assert_eq!(client.put_leased("k", "v", 4711).await, Err(error::LEASE_NOT_FOUND));
        assert_eq!(client.grant(9_000_000_001).await, Err(error::LEASE_TTL_TOO_LARGE));

        // Enum values that no version defines.
        for (action, alarm) in [(99, 0), (-1, 1), (1, 99), (2, 99), (0, 99)] {
            let request = AlarmRequest { action, member_id: 0, alarm };
            // Any response is allowed, but there must be one, and later calls must be answered.
            let got = client.call::<AlarmResponse>(Rpc::MaintenanceAlarm, &request).await;
            assert!((0..3).contains(&action) || got.is_err(), "{request:?}: {got:?}");
            assert_serves(&client, 7).await;
        }
        for (result, target) in [(99, 0), (0, 99), (-1, -1)] {
            let compare = Compare { result, target, key: "k".into(), ..Compare::default() };
            let request = TxnRequest { compare: vec![compare], ..TxnRequest::default() };
            let _: Result<TxnResponse, Status> = client.call(Rpc::KvTxn, &request).await;
            assert_serves(&client, 8).await;
        }
        for action in [99, -1] {
            let request = DowngradeRequest { action, version: "3.6".into() };
            let rpc = Rpc::MaintenanceDowngrade;
            assert!(client.call::<DowngradeResponse>(rpc, &request).await.is_err());
        }
        let create = WatchCreateRequest { key: "good".into(), filters: vec![99, -1], ..Default::default() };
        let mut watch = client.watch(create).await.expect("unknown filters filter nothing");
        assert_serves(&client, 9).await;
        assert_eq!(watch.next().await.expect("the watch goes on").events.len(), 1);
    });
    member.stop();
}

/// Returns a valid message of about every kind, as seeds for damaged messages.
fn samples() -> Vec<Vec<u8>> {
    let put = PutRequest { key: "k".into(), value: "v".into(), ..PutRequest::default() };
    let compare = Compare { result: 0, target: 3, key: "k".into(), ..Compare::default() };
    let nested =
        TxnRequest { compare: vec![compare; 3], success: vec![put_op("k", "v"); 3], failure: Vec::new() };
    let nested = RequestOp { request: Some(request_op::Request::RequestTxn(nested)) };
    let txn = TxnRequest { success: vec![nested, put_op("a", "b")], ..TxnRequest::default() };
    let create = WatchCreateRequest { key: ALL.into(), range_end: ALL.into(), ..Default::default() };
    let watch = WatchRequest { request_union: Some(watch_request::RequestUnion::CreateRequest(create)) };
    vec![
        Vec::new(),
        put.encode_to_vec(),
        txn.encode_to_vec(),
        watch.encode_to_vec(),
        RangeRequest { key: "k".into(), limit: i64::MAX, ..Default::default() }.encode_to_vec(),
        LeaseGrantRequest { ttl: 60, id: 77 }.encode_to_vec(),
    ]
}

/// Returns a message that is cut off, has inverted bytes, or is random.
fn damaged(dice: &mut Random, samples: &[Vec<u8>]) -> Bytes {
    let mut message = samples[dice.below(samples.len() as u64) as usize].clone();
    match dice.below(3) {
        0 => message.truncate(dice.below(message.len() as u64 + 1) as usize),
        1 if !message.is_empty() => {
            for _ in 0..=dice.below(3) {
                let at = dice.below(message.len() as u64) as usize;
                message[at] = dice.below(256) as u8;
            }
        }
        _ => message = (0..dice.below(60)).map(|_| dice.below(256) as u8).collect(),
    }
    message.into()
}

#[test]
fn damaged_messages_to_every_method_are_survived() {
    let dir = TempDir::new("messages");
    let member = Setup::new(dir.path()).start();
    let mut dice = Random::new(5);
    run(async {
        let client = member.client().await;
        let samples = samples();
        for method in METHODS {
            // These two calls wait for earlier callers, as long as the client allows.
            let waits = matches!(method.rpc, Rpc::Lock | Rpc::ElectionCampaign);
            let limit = if waits { Duration::from_millis(100) } else { Duration::from_secs(10) };
            let options = CallOptions::default().within(limit);
            for _ in 0..30 {
                let message = damaged(&mut dice, &samples);
                if method.kind == Kind::Unary {
                    match client.channel.unary_with(method.path, &options, message.clone()).await {
                        Ok(_) => {}
                        Err(status) => assert!(
                            status.code != Code::Unavailable
                                && (waits || status.code != Code::DeadlineExceeded),
                            "{} of {message:?}: {status}",
                            method.path
                        ),
                    }
                } else {
                    // Streams may stay open; dropping them cancels them.
                    let call = client.channel.stream_with(method.path, &options).await;
                    let (mut sender, mut receiver) = call.expect("the connection holds");
                    sender.send_last(message).await.expect("the connection holds");
                    let first = tokio::time::timeout(Duration::from_millis(100), receiver.next()).await;
                    if let Ok(Err(status)) = first {
                        assert_ne!(status.code, Code::Unavailable, "{}: {status}", method.path);
                    }
                }
            }
            assert_serves(&client, 3).await;
        }
    });
    assert_quiet(member);
}

/// Ends a member, and checks that it is undamaged.
fn assert_quiet(mut member: Member) {
    assert!(member.runs(), "{}", member.said());
    assert!(!member.said().contains("panicked"), "{}", member.said());
    member.stop();
}

#[test]
fn garbage_on_both_ports_is_survived() {
    let dir = TempDir::new("garbage");
    let member = Setup::new(dir.path()).start();
    let mut dice = Random::new(3);
    run(async {
        let client = member.client().await;
        for round in 0..100 {
            let noise: Vec<u8> = {
                let len = dice.index(5000);
                dice.bytes(len)
            };
            let mut frames = http2::PREFACE.to_vec();
            for _ in 0..dice.below(20) {
                let payload: Vec<u8> = {
                    let len = dice.index(100);
                    dice.bytes(len)
                };
                let (kind, flags) = (dice.below(12) as u8, dice.below(256) as u8);
                frames.extend(http2::frame(kind, flags, dice.below(5) as u32, &payload));
            }
            let http = [b"GET /".to_vec(), noise.clone(), b" HTTP/1.1\r\n\r\n".to_vec()].concat();
            for address in [member.client_address(), member.peer_address()] {
                for bytes in [&noise, &frames, &http] {
                    http2::send_garbage(address, bytes);
                }
            }
            if round % 10 == 0 {
                assert_serves(&client, round).await;
            }
        }
    });
    assert_quiet(member);
}

#[test]
fn a_thousand_half_open_connections_are_not_noticed() {
    let dir = TempDir::new("half-open");
    let mut setup = Setup::new(dir.path());
    // Fewer than will be open: the member raises the soft limit.
    setup.open_files = Some(500);
    let member = setup.start();
    run(async {
        let client = member.client().await;
        let whole = http2::call(1, Rpc::KvPut.path(), b"\x0a\x01k");
        let half: Vec<TcpStream> = (0..1000usize)
            .map(|number| {
                let mut stream = TcpStream::connect(member.client_address()).expect("a connection");
                // Each connection stops at a different byte of its first call.
                let mut bytes = http2::PREFACE.to_vec();
                bytes.extend(http2::frame(http2::SETTINGS, 0, 0, &[]));
                bytes.extend(&whole);
                stream.write_all(&bytes[..number % bytes.len()]).expect("the server reads");
                stream
            })
            .collect();
        for number in 0..100 {
            assert_serves(&client, number).await;
            // New clients are served, too.
            assert_serves(&member.client().await, number).await;
        }
        assert_eq!(half.len(), 1000);
    });
    assert_quiet(member);
}

#[test]
fn large_answers_that_nobody_reads_take_little_memory() {
    let dir = TempDir::new("unread");
    let member = Setup::new(dir.path()).start();
    run(async {
        let client = member.client().await;
        for number in 0..16u32 {
            client.put(format!("k/{number:02}"), filler(number, MIB)).await.expect("puts are served");
        }
        let everything = client.everything().await.expect("reads are served");
        assert_eq!(everything.kvs.len(), 16);
        drop(everything);
        let before = member.rss_bytes();
        let request = RangeRequest { key: ALL.into(), range_end: ALL.into(), ..Default::default() };
        let request = request.encode_to_vec();
        // 200 responses of 16 MiB, 64 of them on one connection and the rest on others; all flow-control
        // windows are open.
        let connections: Vec<http2::Connection> = [64, 34, 34, 34, 34]
            .into_iter()
            .map(|streams| {
                let mut connection = http2::Connection::greedy(member.client_address());
                for stream in 0..streams {
                    let call = http2::call(stream * 2 + 1, Rpc::KvRange.path(), &request);
                    assert!(connection.send(&call), "the server reads");
                }
                connection
            })
            .collect();
        // Waits until the server has sent as much as the sockets accept.
        let mut most = 0;
        let mut number = 0;
        let mut last = (0, 0);
        eventually("memory settles", Duration::from_secs(60), async || {
            number += 1;
            assert_serves(&client, number).await;
            let now = member.rss_bytes();
            most = most.max(now);
            last = if now.abs_diff(last.0) < MIB as u64 { (last.0, last.1 + 1) } else { (now, 0) };
            (last.1 >= 50).then_some(())
        })
        .await;
        let grown = most.saturating_sub(before) / MIB as u64;
        println!("200 unread answers of 16 MiB: {grown} MiB more");
        assert!(grown < 512, "{grown} MiB");
        let fresh = member.client().await;
        assert_serves(&fresh, 1).await;
        assert_eq!(fresh.get("k/03").await.expect("reads").expect("is there").value, filler(3, MIB));
        drop(connections);
    });
    assert_quiet(member);
}
