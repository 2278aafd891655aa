use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use api::{Code, Status};
use client::Channel;

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
    let mut raw = crate::raw::Raw::h2(address, &[]);
    raw.call(1, "/test.Echo/Unary", &[], &crate::raw::message(0, b"a"));
    raw.next_of(crate::raw::DATA);
    front.shutdown_blocking(Duration::from_millis(100));
    raw.closed();
}
