use std::io::Write;
use std::time::Duration;

use bytes::Bytes;

use crate::kit::{self, Timeouts, app, heartbeat, pair};
use crate::raw::{self, headers, with};

const MESSAGE_BYTES: usize = 1 << 20;

/// Opens a stream and does not read it.
fn unread(one: &kit::Member, path: &str) -> std::net::TcpStream {
    let mut stream = raw::connect(&one.url);
    stream.write_all(&raw::head("GET", path, &with(headers("2"), "X-Raft-To", "1"))).unwrap();
    assert_eq!(raw::read_head(&mut stream).status, 200);
    stream
}

#[test]
fn a_peer_that_does_not_read_costs_a_bounded_queue_and_is_reported() {
    let (listener, url) = kit::listen();
    let timeouts = Timeouts { write: Duration::from_millis(1500), ..kit::TIMEOUTS };
    let one = kit::member_at(1, kit::CLUSTER, listener, &url, timeouts);
    one.peers.set_members(vec![(2, vec![kit::nowhere()])]);
    let _messages = unread(&one, "/raft/stream/message/2");
    let _apps = unread(&one, "/raft/stream/msgapp/2");
    // Limit by number: all messages of one call are dropped in one batch.
    one.peers.send((0..200_000).map(|term| heartbeat(1, 2, term)).collect());
    assert!(one.peers.figures().peers[&2].queued_messages <= 4096);
    kit::until("empty", || (one.peers.figures().peers[&2].queued_messages == 0).then_some(()));
    assert_eq!(one.peers.figures().peers[&2].send_failures, 200_000 - 4096);
    assert_eq!(one.recorder.with(|heard| std::mem::take(&mut heard.unreachable)), [2]);

    // Limit by bytes: the same data 200 times, so that only the counted size is large.
    let data = Bytes::from(vec![7; MESSAGE_BYTES]);
    for index in 1..=200 {
        let mut message = app(1, 2, index, 0);
        message.entries[0].data = Some(data.clone());
        one.peers.send(vec![message]);
        let figures = one.peers.figures().peers[&2].clone();
        assert!(figures.queued_bytes <= 64 << 20 && figures.queued_messages <= 4096, "{figures:?}");
    }
    let failures = one.peers.figures().peers[&2].send_failures;
    assert!(failures > 200_000 - 4096);
    let reports = one.recorder.wait("unreachable", |heard| {
        (!heard.unreachable.is_empty()).then_some(heard.unreachable.len() as u64)
    });
    assert!(reports <= failures);

    // A peer that takes no bytes within the write timeout is disconnected, and the queued messages are
    // dropped.
    kit::wait_log(&one, "lost a remote peer's connection to a stream", 2, "msgapp");
    kit::until("empty", || (one.peers.figures().peers[&2].queued_bytes == 0).then_some(()));
}

#[test]
fn heartbeats_do_not_wait_behind_bulk() {
    let (one, two) = pair(kit::TIMEOUTS);
    two.recorder.with(|heard| heard.forgets_data = true);
    let data = Bytes::from(vec![7; MESSAGE_BYTES]);
    let (mut index, mut heartbeats) = (0, 0);
    while index < 200 {
        // Sends as much as fits, so that the queue is never empty.
        if one.peers.figures().peers[&2].queued_bytes + (2 * MESSAGE_BYTES as u64) < 64 << 20 {
            index += 1;
            let mut message = app(1, 2, index, 0);
            message.entries[0].data = Some(data.clone());
            one.peers.send(vec![message]);
            if index % 4 == 0 {
                heartbeats += 1;
                one.peers.send(vec![heartbeat(1, 2, heartbeats)]);
            }
        }
    }
    two.recorder.wait("all", |heard| (heard.app_bytes == 200 * MESSAGE_BYTES).then_some(()));
    let came = two
        .recorder
        .wait("heartbeats", |heard| (heard.messages.len() == 250).then(|| heard.messages.clone()));
    // For each heartbeat, the number of earlier messages that it has overtaken.
    let mut overtaken = Vec::new();
    for (place, (_, heartbeat)) in came.iter().enumerate().filter(|(_, (_, it))| it.entries.is_empty()) {
        let before = 4 * heartbeat.term.unwrap();
        let later = came[place..]
            .iter()
            .filter(|(_, it)| it.entries.first().is_some_and(|e| e.index.unwrap() <= before));
        overtaken.push(later.count());
    }
    overtaken.sort_unstable();
    println!("messages that heartbeats overtook: {overtaken:?}");
    assert_eq!(overtaken.len(), 50);
    // At first the queue is short, so the first heartbeats overtake few messages. If heartbeats were queued
    // behind MsgApp, none would overtake any.
    assert!(overtaken[25] > 0, "{overtaken:?}");
    assert_eq!(one.recorder.with(|heard| heard.unreachable.clone()), [0; 0]);
}

#[test]
fn a_peer_that_is_not_there_is_reported_once_per_batch() {
    let one = kit::member(1);
    one.peers.set_members(vec![(2, vec![kit::nowhere()])]);
    kit::wait_log(&one, "cannot dial a stream", 2, "");
    one.peers.send((1..=50).map(|term| heartbeat(1, 2, term)).collect());
    kit::until("dropped", || (one.peers.figures().peers[&2].send_failures == 50).then_some(()));
    assert_eq!(one.recorder.with(|heard| heard.unreachable.clone()), [2]);
    kit::until("given back", || (one.peers.figures().peers[&2].queued_messages == 0).then_some(()));
}

/// Sends one byte every few milliseconds until the other end answers or closes. Returns the number of bytes.
fn trickle(mut stream: std::net::TcpStream) -> usize {
    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    for sent in 0..20_000 {
        let mut byte = [0];
        match std::io::Read::read(&mut stream, &mut byte) {
            Err(error)
                if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
            _ => return sent,
        }
        if stream.write_all(b"1\r\nx\r\n").is_err() {
            return sent;
        }
    }
    panic!("a trickle is taken for ever");
}

#[test]
fn a_body_that_trickles_ends_its_connection() {
    let (listener, url) = kit::listen();
    let timeouts = Timeouts { read: Duration::from_millis(300), ..kit::TIMEOUTS };
    let one = kit::member_at(1, kit::CLUSTER, listener, &url, timeouts);
    one.peers.set_members(vec![(2, vec![kit::nowhere()])]);
    for path in ["/raft", "/raft/snapshot", "/leases"] {
        let mut stream = raw::connect(&one.url);
        let chunked = with(headers("2"), "Transfer-Encoding", "chunked");
        stream.write_all(&raw::head("POST", path, &chunked)).unwrap();
        // At this rate the largest allowed body of 64 MiB would take two weeks.
        assert!(trickle(stream) < 2000, "{path}");
    }
}

#[test]
fn unknown_senders_make_way_for_newer_ones() {
    let (listener, url) = kit::listen();
    let one = kit::member_at(1, kit::CLUSTER, listener, &url, kit::TIMEOUTS);
    for id in 0x100..0x180u64 {
        let from: &'static str = Box::leak(format!("{id:x}").into_boxed_str());
        let urls = with(headers(from), "X-PeerURLs", "http://127.0.0.1:1");
        raw::request(&one.url, "POST", "/raft", &urls, b"");
    }
    let known = one.peers.figures().peers;
    assert!(known.len() <= 64, "{}", known.len());
    assert!(known.contains_key(&0x17f), "the last one can be answered");
}

#[test]
fn messages_that_strangers_send_share_one_room() {
    let (listener, url) = kit::listen();
    let timeouts = Timeouts { read: Duration::from_secs(60), ..kit::TIMEOUTS };
    let one = kit::member_at(1, kit::CLUSTER, listener, &url, timeouts);
    one.peers.set_members(vec![(2, vec![kit::nowhere()])]);
    let part = vec![0; 20 << 20];
    let mut strangers: Vec<_> = (0..5)
        .map(|_| {
            let mut stream = raw::connect(&one.url);
            let long = with(headers("9"), "Content-Length", "104857600");
            stream.write_all(&raw::head("POST", "/raft", &long)).unwrap();
            // The body may be refused before all of it is taken.
            let _ = stream.write_all(&part);
            stream.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
            stream
        })
        .collect();
    kit::until("one is refused", || {
        strangers.iter_mut().find_map(|stream| {
            let mut answer = [0; 64];
            let ended = match std::io::Read::read(stream, &mut answer) {
                Ok(0) => true,
                Ok(count) => answer[..count].windows(3).any(|text| text == b"503"),
                Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
            };
            ended.then_some(())
        })
    });
    // Members are still served.
    let body = prost::Message::encode_to_vec(&heartbeat(2, 1, 1));
    assert_eq!(raw::request(&one.url, "POST", "/raft", &headers("2"), &body).status, 204);
    // A message keeps the bytes that it was received in, so only a few bytes of unknown fields are allowed.
    let unknown = [&body[..], &[0xa2, 0x06, 0x80, 0x80, 0x04], &[0; 65536]].concat();
    assert_eq!(raw::request(&one.url, "POST", "/raft", &headers("2"), &unknown).status, 400);
}
