use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use api::{Code, Status};
use bytes::Bytes;
use client::{CallOptions, Channel};
use http::{HeaderName, HeaderValue};

use crate::echo::{block_on, id_of, run, run_with, until};

#[test]
fn answers_come_back_at_once_and_later_and_many_on_one_connection() {
    let running = run();
    block_on(async {
        let channel = Channel::connect(running.address).await.expect("a connection");
        for len in [0, 1, 1000, 16_379, 16_380, 70_000, 2_000_000] {
            let message = Bytes::from(vec![len as u8; len]);
            for path in ["/test.Echo/Unary", "/test.Echo/Later"] {
                assert_eq!(channel.unary(path, message.clone()).await, Ok(message.clone()), "{path} {len}");
            }
        }
        let calls: Vec<_> = (0..500)
            .map(|call| {
                let channel = channel.clone();
                let path = if call % 2 == 0 { "/test.Echo/Unary" } else { "/test.Echo/Later" };
                tokio::spawn(async move { channel.unary(path, call.to_string().into()).await })
            })
            .collect();
        for (call, answer) in calls.into_iter().enumerate() {
            assert_eq!(answer.await.expect("the call's task"), Ok(Bytes::from(call.to_string())));
        }
    });
}

#[test]
fn a_status_reaches_the_client_whole() {
    let running = run();
    block_on(async {
        let channel = Channel::connect(running.address).await.expect("a connection");
        let status = channel.unary("/test.Echo/Fail", "etcdserver: 100% ü".into()).await;
        assert_eq!(status, Err(Status::new(Code::OutOfRange, "etcdserver: 100% ü")));
        for (path, text) in [
            ("/test.Echo/Nothing", "unknown method Nothing for service test.Echo"),
            ("/no.Service/Nothing", "unknown service no.Service"),
            ("/nothing", "malformed method name: \"/nothing\""),
        ] {
            let status = channel.unary(path, Bytes::new()).await;
            assert_eq!(status, Err(Status::new(Code::Unimplemented, text)));
        }
    });
}

#[test]
fn a_message_over_the_limit_is_refused_with_grpcs_text() {
    let running = run();
    block_on(async {
        let channel = Channel::connect(running.address).await.expect("a connection");
        let status = channel.unary("/test.Echo/Unary", vec![0; 2 * 1024 * 1024 + 1].into()).await;
        let text = "grpc: received message larger than max (2097153 vs. 2097152)";
        assert_eq!(status, Err(Status::new(Code::ResourceExhausted, text)));
        assert_eq!(channel.unary("/test.Echo/Unary", "a".into()).await, Ok("a".into()));
    });
}

#[test]
fn metadata_reaches_the_service() {
    let running = run();
    block_on(async {
        let channel = Channel::connect(running.address).await.expect("a connection");
        let put = |options: CallOptions, key, value| {
            options.with(HeaderName::from_static(key), HeaderValue::from_static(value))
        };
        let options = put(CallOptions::default(), "token", "abc.1");
        let options = put(put(options, "hasleader", "true"), "client-api-version", "3.6.0");
        let options = options.within(Duration::from_secs(60));
        let answer = channel.unary_with("/test.Echo/Metadata", &options, Bytes::new()).await;
        assert_eq!(answer, Ok("Some(\"abc.1\") true Some(\"3.6.0\") true".into()));
        let answer = channel.unary("/test.Echo/Metadata", Bytes::new()).await;
        assert_eq!(answer, Ok("None false None false".into()));
    });
}

#[test]
fn a_deadline_and_a_cancelled_call_drop_the_future() {
    let running = run();
    block_on(async {
        let channel = Channel::connect(running.address).await.expect("a connection");
        let handled = |code: Code| {
            let counters = &running.front.counters()[0].methods[id_of("/test.Echo/Never")];
            counters.handled[code as usize].load(Relaxed)
        };
        // The deadline is sent only to the server, because a deadline on the client's side would expire
        // first.
        let options = CallOptions::default()
            .with(HeaderName::from_static("grpc-timeout"), HeaderValue::from_static("20m"));
        let status = channel.unary_with("/test.Echo/Never", &options, "a".into()).await;
        assert_eq!(status, Err(Status::new(Code::DeadlineExceeded, "context deadline exceeded")));
        until("the late call is dropped", || running.seen.alive.load(SeqCst) == 0).await;
        assert_eq!(handled(Code::DeadlineExceeded), 1);

        let other = channel.clone();
        let call = tokio::spawn(async move { other.unary("/test.Echo/Never", "a".into()).await });
        until("the call is there", || running.seen.alive.load(SeqCst) == 1).await;
        call.abort();
        until("the cancelled call is dropped", || running.seen.alive.load(SeqCst) == 0).await;
        until("it is counted", || handled(Code::Canceled) == 1).await;
    });
}

#[test]
fn a_lost_connection_drops_its_calls() {
    let running = run();
    block_on(async {
        let (channel, driver) = Channel::connect_with(running.address, 65_535).await.expect("a connection");
        let call = tokio::spawn(async move { channel.unary("/test.Echo/Never", "a".into()).await });
        until("the call is there", || running.seen.alive.load(SeqCst) == 1).await;
        driver.abort();
        let _ = call.await;
        until("the call is dropped", || running.seen.alive.load(SeqCst) == 0).await;
        let counters = running.front.counters()[0].clone();
        until("the connection is forgotten", || counters.connections.load(Relaxed) == 0).await;
    });
}

#[test]
fn a_big_answer_comes_in_pieces() {
    let running = run();
    block_on(async {
        let channel = Channel::connect(running.address).await.expect("a connection");
        for len in [0_usize, 1, 9_999, 70_000, 5_000_000] {
            let answer = channel.unary("/test.Echo/Pieces", len.to_string().into()).await.expect("an answer");
            assert_eq!(answer.len(), len);
            assert!(answer.iter().enumerate().all(|(at, byte)| *byte == at as u8));
        }
    });
}

#[test]
fn calls_and_bytes_are_counted() {
    let running = run_with(mainstay_front::Options { shards: 2, ..Default::default() });
    block_on(async {
        let mut open = Vec::new();
        for _ in 0..4 {
            let channel = Channel::connect(running.address).await.expect("a connection");
            assert_eq!(channel.unary("/test.Echo/Unary", "abc".into()).await, Ok("abc".into()));
            assert!(channel.unary("/test.Echo/Fail", "abc".into()).await.is_err());
            open.push(channel);
        }
        let counters = running.front.counters();
        let sum = |read: &dyn Fn(&accounting::ShardCounters) -> u64| -> u64 {
            counters.iter().map(|shard| read(shard)).sum()
        };
        let (unary, fail) = (id_of("/test.Echo/Unary"), id_of("/test.Echo/Fail"));
        assert_eq!(sum(&|shard| shard.methods[unary].started.load(Relaxed)), 4);
        assert_eq!(sum(&|shard| shard.methods[unary].handled[0].load(Relaxed)), 4);
        assert_eq!(sum(&|shard| shard.methods[unary].messages_sent.load(Relaxed)), 4);
        assert_eq!(sum(&|shard| shard.methods[fail].handled[Code::OutOfRange as usize].load(Relaxed)), 4);
        assert_eq!(sum(&|shard| shard.methods[fail].messages_sent.load(Relaxed)), 0);
        assert_eq!(
            (sum(&|shard| shard.bytes_received.load(Relaxed)), sum(&|shard| shard.bytes_sent.load(Relaxed))),
            (24, 12)
        );
        let all_opened: u64 =
            counters.iter().filter(|shard| shard.methods[unary].started.load(Relaxed) > 0).count() as u64;
        assert_eq!(all_opened, 2, "both shards got connections");
    });
}
