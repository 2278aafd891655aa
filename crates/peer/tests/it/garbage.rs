use std::io::{Read, Write};
use std::time::Duration;

use testkit::Random;

use crate::kit::{self, Timeouts, heartbeat};
use crate::raw::{self, headers, with};

#[test]
fn garbage_on_every_endpoint_closes_at_most_its_connection() {
    let (one, two) = kit::pair(kit::TIMEOUTS);
    let mut garbage = Random::new(1);
    let good = with(with(headers("2"), "X-Raft-To", "1"), "X-Mainstay-Snapshot", "1");
    let paths =
        ["/raft", "/raft/snapshot", "/raft/probing", "/raft/stream/msgapp/9", "/echo", "/raft/stream/"];
    for round in 0..20 {
        // Input that is not HTTP.
        let mut stream = raw::connect(&one.url);
        let _ = stream.write_all(&garbage.bytes(round * 13 + 1));
        drop(stream);
        for path in paths {
            let body = garbage.bytes(round * 31 % 300);
            let answer = raw::request(&one.url, "POST", path, &good, &body);
            assert!((200..=599).contains(&answer.status), "{path}");
            // A header with random bytes, and a body that is cut off.
            let mut stream = raw::connect(&one.url);
            let mut head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nX-Server-Version: ").into_bytes();
            head.extend(garbage.bytes(20));
            head.extend(b"\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab");
            let _ = stream.write_all(&head);
            drop(stream);
        }
    }
    one.peers.send(vec![heartbeat(1, 2, 9)]);
    assert_eq!(two.recorder.wait_messages(1), [heartbeat(1, 2, 9)], "the streams are as they were");
    assert_eq!(one.recorder.with(|heard| heard.messages.len()), 0);
}

#[test]
fn garbage_on_a_stream_ends_it_and_it_is_dialed_again() {
    let one = kit::member(1);
    let (peer, url) = kit::listen();
    one.peers.set_members(vec![(2, vec![url])]);
    let mut garbage = Random::new(99);
    let mut held = Vec::new();
    let mut dials = [0, 0];
    while dials.iter().any(|dials| *dials < 3) {
        let mut stream = kit::accept(&peer);
        let mut request = vec![0; 64 * 1024];
        let n = stream.read(&mut request).unwrap();
        let request = String::from_utf8_lossy(&request[..n]).into_owned();
        for (kind, path) in ["GET /raft/stream/message/1 ", "GET /raft/stream/msgapp/1 "].iter().enumerate() {
            if request.starts_with(path) {
                stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
                // A length of 2^63 or more, or an unknown frame type.
                let mut bytes = garbage.bytes(50);
                bytes[0] |= 0x80;
                stream.write_all(&raw::chunk(&bytes)).unwrap();
                dials[kind] += 1;
            }
        }
        held.push(stream);
    }
    kit::wait_log(&one, "lost TCP streaming connection", 2, "rafthttp: error limit exceeded");
    kit::wait_log(&one, "lost TCP streaming connection", 2, "in msgappv2 stream");
    assert!(one.peers.figures().peers[&2].receive_failures >= 4);
    assert_eq!(one.recorder.with(|heard| heard.messages.len()), 0);
}

#[test]
fn messages_for_others_and_snapshots_without_one_are_dropped_from_a_stream() {
    use prost::Message as _;
    let one = kit::member(1);
    let (peer, url) = kit::listen();
    one.peers.set_members(vec![(2, vec![url])]);
    let snapshot = kit::message(api::raftpb::MessageType::MsgSnap, 2, 1, 3);
    loop {
        let mut stream = kit::accept(&peer);
        let mut request = vec![0; 64 * 1024];
        let n = stream.read(&mut request).unwrap();
        if !request[..n].starts_with(b"GET /raft/stream/message/1 ") {
            continue;
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
        let mut frames = Vec::new();
        for message in [heartbeat(2, 3, 1), snapshot.clone(), heartbeat(0, 0, 0), heartbeat(2, 1, 4)] {
            frames.extend((message.encoded_len() as u64).to_be_bytes());
            message.encode(&mut frames).unwrap();
        }
        // Sent in pieces that end anywhere.
        for piece in frames.chunks(5) {
            stream.write_all(&raw::chunk(piece)).unwrap();
        }
        assert_eq!(one.recorder.wait_messages(1), [heartbeat(2, 1, 4)]);
        assert_eq!(one.peers.figures().peers[&2].receive_failures, 2);
        break;
    }
}

#[test]
fn who_sends_half_a_head_or_half_a_body_is_cut_off() {
    let (listener, url) = kit::listen();
    let timeouts = Timeouts { read: Duration::from_millis(200), ..kit::TIMEOUTS };
    let one = kit::member_at(1, kit::CLUSTER, listener, &url, timeouts);
    for begun in ["", "GET /raft HT", "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc"] {
        let mut stream = raw::connect(&one.url);
        stream.write_all(begun.as_bytes()).unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert!(!rest.starts_with(b"HTTP/1.1 2"), "{}", String::from_utf8_lossy(&rest));
    }
}
