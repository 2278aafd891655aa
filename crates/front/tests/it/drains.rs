//! Draining: a share of the connections ends gracefully, in waves, and no call is lost.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use accounting::ShardCounters;
use api::{Code, Status};
use client::Channel;
use mainstay_front::{Drain, Options};
use testkit::http2::{
    Connection, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, call_block, frame, message,
};

use crate::echo::{Running, block_on, run, run_with, until};

const LONG: Duration = Duration::from_secs(600);

/// Status of a call that the server has ended because it drains its connection.
const DRAINED: Status = Status::new(Code::Unavailable, "mainstay: the connection is drained, connect again");

fn now(percent: u8) -> Drain {
    Drain { percent, over: Duration::ZERO, grace: LONG }
}

#[test]
fn a_drained_connection_ends_its_calls_well() {
    let Running { front, address, seen } = run();
    block_on(async {
        let channel = Channel::connect(address).await.expect("a connection");
        let slow = channel.clone();
        let slow = tokio::spawn(async move { slow.unary("/test.Echo/Gate", "x".into()).await });
        let (mut sender, mut receiver) = channel.stream("/test.Echo/Bidi").await.expect("a call");
        sender.send("a".into()).await.expect("it is open");
        assert_eq!(receiver.next().await, Ok(Some("a".into())));
        until("the slow call runs", || seen.waits_at_gate()).await;
        let draining = front.drains().begin(now(100));
        assert_eq!((draining.open, draining.ending), (1, 1));
        assert_eq!(receiver.next().await, Err(DRAINED), "what never ends by itself is ended");
        assert_eq!(seen.connected.load(SeqCst), 1, "the unary call is waited for");
        seen.open_gate();
        assert!(slow.await.expect("the call's task").is_ok());
        until("it is closed", || seen.connected.load(SeqCst) == 0).await;
        // The server goes on serving.
        let again = Channel::connect(address).await.expect("a connection");
        assert_eq!(again.unary("/test.Echo/Unary", "b".into()).await, Ok("b".into()));
        let counters = &front.counters()[0];
        assert_eq!(counters.connections_drained.load(Relaxed), 1);
        assert_eq!(counters.http2_connections.load(Relaxed), 1);
    });
}

#[test]
fn an_endless_call_ends_only_after_the_last_stream_was_announced() {
    let Running { front, address, seen } = run();
    let mut raw = Connection::h2(address, &[]);
    raw.send(&frame(HEADERS, END_HEADERS, 1, &call_block("/test.Echo/Bidi", &[])));
    raw.send(&frame(DATA, 0, 1, &message(0, b"a")));
    assert_eq!(&raw.next_of(DATA).payload[5..], b"a");
    front.drains().begin(now(100));
    // A call that the client has begun before it acknowledges the first GOAWAY is served.
    let first = raw.next_of(GOAWAY);
    assert_eq!(&first.payload[..4], [0x7f, 0xff, 0xff, 0xff]);
    let ping = raw.next_of(PING);
    raw.call(3, "/test.Echo/Unary", &[], &message(0, b"b"));
    let answered = raw.next_of(DATA);
    assert_eq!((answered.stream, &answered.payload[5..]), (3, &b"b"[..]));
    assert_eq!(seen.alive.load(SeqCst), 1, "the endless call is still open");
    raw.send(&frame(PING, 1, 0, &ping.payload));
    let last = raw.next_of(GOAWAY);
    assert_eq!(&last.payload[..4], [0, 0, 0, 3]);
    let ended = raw.next_of(HEADERS);
    assert_eq!((ended.stream, ended.flags & END_STREAM), (1, END_STREAM));
    raw.closed();
}

#[test]
fn what_is_open_after_the_grace_is_cut_off() {
    let Running { front, address, seen } = run();
    block_on(async {
        let channel = Channel::connect(address).await.expect("a connection");
        let never = tokio::spawn(async move { channel.unary("/test.Echo/Never", "a".into()).await });
        until("the call runs", || seen.alive.load(SeqCst) == 1).await;
        front.drains().begin(Drain { grace: Duration::from_millis(20), ..now(100) });
        let failure = never.await.expect("the call's task").expect_err("it is cut off");
        assert_eq!(failure.code, Code::Unavailable);
        until("nothing is left", || seen.alive.load(SeqCst) == 0).await;
    });
    // A client that acknowledges nothing is cut off, too.
    let mut raw = Connection::h2(address, &[]);
    raw.call(1, "/test.Echo/Unary", &[], &message(0, b"a"));
    raw.next_of(DATA);
    front.drains().begin(Drain { grace: Duration::from_millis(20), ..now(100) });
    raw.closed();
}

fn total(counters: &[std::sync::Arc<ShardCounters>], of: fn(&ShardCounters) -> u64) -> u64 {
    counters.iter().map(|shard| of(shard)).sum()
}

#[test]
fn a_share_of_the_connections_of_all_shards_ends_once() {
    let Running { front, address, seen } = run_with(Options { shards: 3, ..Options::default() });
    block_on(async {
        let connect = async || {
            let channel = Channel::connect(address).await.expect("a connection");
            channel.unary("/test.Echo/Unary", "a".into()).await.expect("an answer");
            channel
        };
        let mut open = Vec::new();
        for _ in 0..10 {
            open.push(connect().await);
        }
        let draining = front.drains().begin(now(25));
        assert_eq!((draining.open, draining.ending), (10, 3));
        until("three are closed", || seen.connected.load(SeqCst) == 7).await;
        // Connections that come later are no part of the order.
        for _ in 0..3 {
            open.push(connect().await);
        }
        assert_eq!(seen.connected.load(SeqCst), 10);
        assert_eq!(total(front.counters(), |shard| shard.connections_drained.load(Relaxed)), 3);
    });
}

#[test]
fn the_waves_take_the_time_that_they_are_given_and_a_new_order_ends_them() {
    let Running { front, address, seen } = run();
    block_on(async {
        let mut open = Vec::new();
        for _ in 0..8 {
            let channel = Channel::connect(address).await.expect("a connection");
            channel.unary("/test.Echo/Unary", "a".into()).await.expect("an answer");
            open.push(channel);
        }
        let (begun, over) = (Instant::now(), Duration::from_millis(400));
        assert_eq!(front.drains().begin(Drain { over, ..now(50) }).ending, 4);
        until("four are closed", || seen.connected.load(SeqCst) == 4).await;
        assert!(begun.elapsed() >= Duration::from_millis(300), "the last wave is after three intervals");

        front.drains().begin(Drain { over: LONG, ..now(100) });
        let counters = front.counters();
        let left = || total(counters, |shard| shard.connections_to_drain.load(Relaxed));
        until("the first is closed", || seen.connected.load(SeqCst) == 3).await;
        assert_eq!(left(), 3);
        assert_eq!(front.drains().begin(now(0)).ending, 0);
        until("the order is dropped", || left() == 0).await;
        assert_eq!(seen.connected.load(SeqCst), 3);
    });
}
