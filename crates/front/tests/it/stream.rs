use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use api::{Code, Status};
use bytes::Bytes;
use client::{CallOptions, Channel};
use http::{HeaderName, HeaderValue};

use crate::echo::{block_on, id_of, run, until};

#[test]
fn a_server_stream_gives_all_its_messages_in_order() {
    let running = run();
    block_on(async {
        let channel = Channel::connect(running.address).await.expect("a connection");
        let (mut sender, mut receiver) = channel.stream("/test.Echo/Repeat").await.expect("a call");
        sender.send_last("2000".into()).await.expect("a sent message");
        for at in 0..2000 {
            assert_eq!(receiver.next().await, Ok(Some(Bytes::from(at.to_string()))));
        }
        assert_eq!(receiver.next().await, Ok(None));
        let method = &running.front.counters()[0].methods[id_of("/test.Echo/Repeat")];
        assert_eq!(method.messages_sent.load(Relaxed), 2000);
        assert_eq!(method.handled[0].load(Relaxed), 1);
    });
}

/// Holds for any read size of the client and any total length of the messages.
#[test]
fn messages_that_are_sent_together_arrive_one_by_one() {
    let running = run();
    block_on(async {
        let mut expected = 0;
        for window in [100, 20_000, 1 << 20] {
            let (channel, _driver) =
                Channel::connect_with(running.address, window).await.expect("a connection");
            for (count, len, together) in [(300, 0, 1), (300, 10, 7), (300, 90, 100), (40, 3_000, 5)] {
                let (mut sender, mut receiver) = channel.stream("/test.Echo/Repeat").await.expect("a call");
                let request = format!("{count}/{len}/{together}");
                sender.send_last(request.into()).await.expect("a sent message");
                for at in 0..count {
                    let message = format!("{at}{}", " ".repeat(len));
                    assert_eq!(receiver.next().await, Ok(Some(message.into())), "{window} {len} {together}");
                }
                assert_eq!(receiver.next().await, Ok(None));
                expected += count;
            }
        }
        let method = &running.front.counters()[0].methods[id_of("/test.Echo/Repeat")];
        assert_eq!(method.messages_sent.load(Relaxed), expected as u64);
    });
}

#[test]
fn a_bidi_stream_takes_and_gives_in_turns_and_ends_with_its_status() {
    let running = run();
    block_on(async {
        let channel = Channel::connect(running.address).await.expect("a connection");
        let (mut sender, mut receiver) = channel.stream("/test.Echo/Bidi").await.expect("a call");
        for len in [0, 10, 100_000, 3, 1_500_000] {
            let message = Bytes::from(vec![9; len]);
            sender.send(message.clone()).await.expect("a sent message");
            assert_eq!(receiver.next().await, Ok(Some(message)));
        }
        sender.finish();
        assert_eq!(receiver.next().await, Err(Status::new(Code::Aborted, "done: 100%")));
    });
}

#[test]
fn a_cancelled_or_late_stream_is_dropped() {
    let running = run();
    block_on(async {
        let channel = Channel::connect(running.address).await.expect("a connection");
        let (mut sender, receiver) = channel.stream("/test.Echo/Bidi").await.expect("a call");
        sender.send("a".into()).await.expect("a sent message");
        until("the stream is there", || running.seen.alive.load(SeqCst) == 1).await;
        sender.cancel();
        until("the cancelled stream is dropped", || running.seen.alive.load(SeqCst) == 0).await;
        drop(receiver);

        let options = CallOptions::default()
            .with(HeaderName::from_static("grpc-timeout"), HeaderValue::from_static("20m"));
        let (_sender, mut receiver) = channel.stream_with("/test.Echo/Bidi", &options).await.expect("a call");
        let status = receiver.next().await;
        assert_eq!(status, Err(Status::new(Code::DeadlineExceeded, "context deadline exceeded")));
        until("the late stream is dropped", || running.seen.alive.load(SeqCst) == 0).await;
    });
}

#[test]
fn a_slow_reader_holds_up_only_its_own_stream() {
    let running = run();
    block_on(async {
        let (channel, _driver) = Channel::connect_with(running.address, 1 << 20).await.expect("a connection");
        let (mut sender, mut receiver) = channel.stream("/test.Echo/Flood").await.expect("a call");
        sender.send_last(Bytes::new()).await.expect("a sent message");
        // The first message proves that the stream runs; the client then stops reading.
        assert!(receiver.next().await.is_ok());
        let other = Channel::connect(running.address).await.expect("a connection");
        let limit = mainstay_front::Options::default().stream_buffer_bytes_max;
        until("the stream is full", || running.seen.queued_max.load(SeqCst) >= limit).await;
        for _ in 0..100 {
            assert_eq!(other.unary("/test.Echo/Later", "a".into()).await, Ok("a".into()));
        }
        assert!(running.seen.queued_max.load(SeqCst) < limit + 20_000);
        // The stream continues when the client reads again.
        for _ in 0..1000 {
            assert!(receiver.next().await.is_ok());
        }
    });
}

#[test]
fn a_service_that_waits_for_room_has_little_queued_for_a_slow_reader() {
    let running = run();
    block_on(async {
        for window in [1000, 100_000] {
            running.seen.queued_max.store(0, SeqCst);
            let (channel, _driver) =
                Channel::connect_with(running.address, window).await.expect("a connection");
            let (mut sender, mut receiver) = channel.stream("/test.Echo/Fitting").await.expect("a call");
            sender.send_last(Bytes::new()).await.expect("a sent message");
            // The client stops reading, and the service waits until it reads again, any number of times.
            let mut taken = 0;
            while taken < 20 * window as usize {
                let message = receiver.next().await.expect("the stream goes on").expect("a message");
                taken += message.len();
            }
            // As much as the next turns of the stream send. A window smaller than the head of a message and one
            // byte is exceeded by that.
            let queued = running.seen.queued_max.load(SeqCst);
            let most = (window as usize).min(64 << 10);
            assert!(queued <= most + 6, "{queued} bytes were queued for a window of {window}");
            sender.cancel();
        }
        // A client that takes nothing at all gets no more than its window.
        let (channel, _driver) = Channel::connect_with(running.address, 100_000).await.expect("a connection");
        let (mut sender, mut receiver) = channel.stream("/test.Echo/Fitting").await.expect("a call");
        let before = running.seen.pieces.load(SeqCst);
        sender.send_last(Bytes::new()).await.expect("a sent message");
        assert!(receiver.next().await.is_ok());
        let other = Channel::connect(running.address).await.expect("a connection");
        for _ in 0..100 {
            assert_eq!(other.unary("/test.Echo/Later", "a".into()).await, Ok("a".into()));
        }
        assert!(running.seen.pieces.load(SeqCst) - before <= 20);
    });
}

#[test]
fn a_service_that_waits_for_room_gets_its_share_beside_streams_that_are_always_full() {
    for floods in [1, 2, 4] {
        let running = run();
        block_on(async {
            let (channel, _driver) =
                Channel::connect_with(running.address, 1 << 20).await.expect("a connection");
            let mut flooded = Vec::new();
            for _ in 0..floods {
                let (mut sender, mut receiver) = channel.stream("/test.Echo/Flood").await.expect("a call");
                sender.send_last(Bytes::new()).await.expect("a sent message");
                flooded.push(tokio::spawn(async move {
                    let _sender = sender;
                    while receiver.next().await.is_ok() {}
                }));
            }
            let limit = mainstay_front::Options::default().stream_buffer_bytes_max;
            until("a stream is full", || running.seen.queued_max.load(SeqCst) >= limit).await;
            let (mut sender, mut receiver) = channel.stream("/test.Echo/Fitting").await.expect("a call");
            sender.send_last(Bytes::new()).await.expect("a sent message");
            let mut taken = 0;
            while taken < 4 << 20 {
                taken += receiver.next().await.expect("the stream goes on").expect("a message").len();
            }
            flooded.iter().for_each(|flooded| flooded.abort());
        });
    }
}
