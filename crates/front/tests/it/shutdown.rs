use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use api::{Code, Status};
use client::Channel;

use testkit::http2::{
    Connection, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, WINDOW_UPDATE, call_block, frame, message,
};

use crate::echo::{Running, block_on, run, until};

#[test]
fn calls_in_flight_end_well_and_streams_choose_their_status() {
    let Running { front, address, seen } = run();
    block_on(async {
        let channel = Channel::connect(address).await.expect("a connection");
        let slow = channel.clone();
        let slow = tokio::spawn(async move { slow.unary("/test.Echo/Slow", "200".into()).await });
        let (_sender, mut receiver) = channel.stream("/test.Echo/UntilClosing").await.expect("a call");
        let idle = Channel::connect(address).await.expect("a connection");
        until("both calls run", || seen.alive.load(SeqCst) == 2).await;
        let begun = Instant::now();
        front.shutdown(begun + Duration::from_secs(30)).await;
        assert!(begun.elapsed() < Duration::from_secs(20), "it did not wait for the deadline");
        assert_eq!(slow.await.expect("the call's task"), Ok("200".into()));
        let status = receiver.next().await;
        assert_eq!(status, Err(Status::new(Code::Unavailable, "etcdserver: server stopped")));
        assert!(Channel::connect(address).await.is_err());
        assert!(idle.unary("/test.Echo/Unary", "a".into()).await.is_err());
    });
}

#[test]
fn what_does_not_end_is_closed_at_the_deadline() {
    let Running { front, address, seen } = run();
    block_on(async {
        let channel = Channel::connect(address).await.expect("a connection");
        let call = tokio::spawn(async move { channel.unary("/test.Echo/Never", "a".into()).await });
        until("the call runs", || seen.alive.load(SeqCst) == 1).await;
        front.shutdown(Instant::now() + Duration::from_millis(50)).await;
        assert_eq!(seen.alive.load(SeqCst), 0);
        assert!(call.await.expect("the call's task").is_err());
    });
}

#[test]
fn it_can_be_shut_down_without_a_runtime() {
    let Running { front, address, .. } = run();
    let mut raw = testkit::http2::Connection::h2(address, &[]);
    raw.call(1, "/test.Echo/Unary", &[], &testkit::http2::message(0, b"a"));
    raw.next_of(testkit::http2::DATA);
    front.shutdown_blocking(Duration::from_millis(100));
    raw.closed();
}

#[test]
fn a_connection_that_makes_in_each_turn_what_one_may_is_told_to_go_away() {
    let Running { front, address, .. } = run();
    let open = [0, 4, 0x7f, 0xff, 0xff, 0xff];
    let mut raw = Connection::h2(address, &open);
    raw.send(&frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0, 0, 0]));
    // An endless stream of compressed messages; the messages of one turn fit into the stream's buffer.
    let head = call_block("/test.Echo/Flood", &[("grpc-encoding", "gzip")]);
    raw.send(&frame(HEADERS, END_HEADERS, 1, &head));
    raw.send(&frame(DATA, END_STREAM, 1, &message(0, b"")));
    let first = raw.next_of(DATA);
    assert_eq!(first.payload[0], 1, "it is packed");
    let shutdown = std::thread::spawn(move || front.shutdown_blocking(Duration::from_secs(60)));
    let deadline = Instant::now() + Duration::from_secs(20);
    while raw.next().expect("the server did not close").kind != GOAWAY {
        assert!(Instant::now() < deadline, "it goes on without a word");
    }
    // The front ends when its only connection is closed.
    drop(raw);
    shutdown.join().expect("the front shuts down");
}
