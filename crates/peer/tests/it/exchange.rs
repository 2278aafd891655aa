use std::io::Write;
use std::time::{Duration, Instant};

use api::raftpb::{Message, MessageType};
use bytes::Bytes;
use http::Request;
use http::header::AUTHORIZATION;
use mainstay_peer::{RequestError, Target};

use crate::kit::{self, CLUSTER, Timeouts, app, heartbeat, introduce, message, pair};
use crate::raw;

#[test]
fn two_members_exchange_messages_in_order() {
    let (one, two) = pair(kit::TIMEOUTS);
    let mut sent: Vec<Message> =
        (1..=500).map(|index| app(1, 2, index, (index as usize * 37) % 9000)).collect();
    // A repeated index interrupts the short form of the stream.
    sent.push(app(1, 2, 17, 3));
    sent.push(app(1, 2, 18, 70_000));
    for batch in sent.chunks(7) {
        one.peers.send(batch.to_vec());
    }
    assert!(two.recorder.wait_messages(sent.len()) == sent, "MsgApp arrive whole and in order");

    let votes: Vec<Message> = (1..=300).map(|term| message(MessageType::MsgPreVote, 2, 1, term)).collect();
    two.peers.send(votes.clone());
    assert_eq!(one.recorder.wait_messages(votes.len()), votes);
    assert_eq!(one.recorder.with(|heard| heard.unreachable.clone()), [0; 0]);
    assert!(one.peers.active_since(2).is_some() && one.peers.active_since(3).is_none());
    assert_eq!((one.peers.release(2), one.peers.release(3)), (Some((3, 7)), None));
}

#[test]
fn three_members_exchange_messages() {
    let members = [kit::member(1), kit::member(2), kit::member(3)];
    introduce(&[&members[0], &members[1], &members[2]]);
    for (one, other) in [(0, 1), (0, 2), (1, 2)] {
        kit::wait_streams(&members[one], &members[other]);
    }
    for term in 1..=50 {
        for from in 1..=3 {
            let to = (1..=3).filter(|to| *to != from);
            members[from as usize - 1].peers.send(to.map(|to| heartbeat(from, to, term)).collect());
        }
    }
    for member in &members {
        let came = member.recorder.wait_messages(100);
        for from in (1..=3).filter(|from| *from != member.id) {
            let terms = came.iter().filter(|m| m.from == Some(from)).map(|m| m.term.unwrap());
            assert!(terms.eq(1..=50), "from {from} to {}", member.id);
        }
    }
}

#[test]
fn all_fields_of_a_message_arrive() {
    let (one, two) = pair(kit::TIMEOUTS);
    let full = Message {
        log_term: Some(3),
        index: Some(u64::MAX),
        commit: Some(5),
        reject: Some(true),
        reject_hint: Some(6),
        context: Some(Bytes::from_static(b"\0\x01CampaignTransfer")),
        vote: Some(9),
        entries: app(1, 2, 4, 5000).entries,
        ..message(MessageType::MsgAppResp, 1, 2, 8)
    };
    one.peers.send(vec![full.clone()]);
    assert_eq!(two.recorder.wait_messages(1), [full]);
}

#[test]
fn a_member_that_restarts_is_found_again() {
    let (one, two) = pair(kit::TIMEOUTS);
    let url = two.url.clone();
    two.peers.stop();
    one.recorder.wait("unreachable", |heard| heard.unreachable.contains(&2).then_some(()));
    kit::until("inactive", || one.peers.active_since(2).is_none().then_some(()));
    one.recorder.with(|heard| heard.lines.clear());

    let two = kit::member_at(2, CLUSTER, kit::listen_again(&url), &url, kit::TIMEOUTS);
    two.peers.set_members(vec![(1, vec![one.url.clone()])]);
    kit::wait_streams(&one, &two);
    one.peers.send(vec![heartbeat(1, 2, 4), app(1, 2, 5, 10)]);
    two.peers.send(vec![heartbeat(2, 1, 6)]);
    assert_eq!(two.recorder.wait_messages(2).len(), 2);
    assert_eq!(one.recorder.wait_messages(1), [heartbeat(2, 1, 6)]);
    assert!(one.peers.active_since(2).is_some());
    assert_eq!(one.peers.figures().peers[&2].disconnected, 1);
}

#[test]
fn the_pipeline_carries_messages_while_the_peer_dials_no_stream() {
    let (one, two) = (kit::member(1), kit::member(2));
    // The second member does not know the first, so it neither dials it nor accepts its streams.
    one.peers.set_members(vec![(2, vec![two.url.clone()])]);
    kit::wait_log(&one, "cannot dial a stream", 2, "error sender not found");
    let sent = [app(1, 2, 3, 5000), heartbeat(1, 2, 9), message(MessageType::MsgVote, 1, 2, 10)];
    one.peers.send(sent.to_vec());
    let came = two.recorder.wait_messages(3);
    for message in sent {
        assert!(came.contains(&message), "{message:?}");
    }
    let since = kit::until("active", || one.peers.active_since(2));

    // The requests named the URL of the first member, which thus became a remote that can be answered.
    two.peers.send(vec![message(MessageType::MsgVoteResp, 2, 1, 10)]);
    assert_eq!(one.recorder.wait_messages(1), [message(MessageType::MsgVoteResp, 2, 1, 10)]);
    assert!(!two.peers.figures().peers[&1].known);

    // A request with a client's token is sent to members only, because the URL of a remote is not verified.
    let asks = |token: Option<&str>| {
        let request = Request::post("/echo");
        let request = token.into_iter().fold(request, |request, token| request.header(AUTHORIZATION, token));
        let request = request.body("hello".into()).unwrap();
        let answered = two.peers.request(Target::Member(1), request, Duration::from_secs(5));
        kit::block_on(answered).map(|answer| answer.status().as_u16())
    };
    assert_eq!(asks(None).unwrap(), 200);
    assert!(matches!(asks(Some("root's")), Err(RequestError::UnknownMember(1))));

    // Dials keep failing, but the pipeline works, so the peer has been active all the time.
    assert_eq!(one.peers.active_since(2), Some(since));

    // The second member adds the first as a member.
    two.peers.set_members(vec![(1, vec![one.url.clone()])]);
    kit::wait_streams(&one, &two);
    assert!(two.peers.figures().peers[&1].known);
    assert_eq!(asks(Some("root's")).unwrap(), 200);
}

#[test]
fn messages_of_all_kinds_share_the_message_stream_while_the_other_is_missing() {
    let one = kit::member_without_beats(1);
    // The raw stream below is the only way to send messages.
    one.peers.set_members(vec![(2, vec![kit::nowhere()])]);
    let mut stream = raw::connect(&one.url);
    let headers = raw::with(raw::headers("2"), "X-Raft-To", "1");
    stream.write_all(&raw::head("GET", "/raft/stream/message/2", &headers)).unwrap();
    let answer = raw::read_head(&mut stream);
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("transfer-encoding"), Some("chunked"));
    assert_eq!(answer.header("x-etcd-cluster-id"), Some("c1"));
    assert_eq!(answer.header("x-server-version"), Some("3.7.1"));

    // Message frames, encoded by hand: the heartbeat overtakes the MsgApp before it.
    one.peers.send(vec![app(1, 2, 5, 3), heartbeat(1, 2, 9)]);
    let mut expected = b"\0\0\0\0\0\0\0\x08\x08\x08\x10\x02\x18\x01\x20\x09".to_vec();
    expected.extend(b"\0\0\0\0\0\0\0\x1b\x08\x03\x10\x02\x18\x01\x20\x07\x28\x07\x30\x04");
    expected.extend(b"\x3a\x0b\x08\x00\x10\x07\x18\x05\x22\x03\x05\x05\x05\x40\x04");
    assert_eq!(raw::read_chunk(&mut stream).unwrap(), expected, "both in one write");
}

#[test]
fn a_stream_of_the_same_kind_takes_over() {
    let one = kit::member_without_beats(1);
    one.peers.set_members(vec![(2, vec![kit::nowhere()])]);
    let dial = || {
        let mut stream = raw::connect(&one.url);
        let headers = raw::with(raw::headers("2"), "X-Raft-To", "1");
        stream.write_all(&raw::head("GET", "/raft/stream/msgapp/2", &headers)).unwrap();
        assert_eq!(raw::read_head(&mut stream).status, 200);
        stream
    };
    let mut first = dial();
    one.peers.send(vec![app(1, 2, 5, 1)]);
    assert_eq!(raw::read_chunk(&mut first).unwrap()[0], 2);
    one.peers.send(vec![app(1, 2, 6, 1)]);
    assert_eq!(raw::read_chunk(&mut first).unwrap()[0], 1, "the short form, since the state fits");
    let mut second = dial();
    assert_eq!(raw::read_chunk(&mut first), Some(vec![]), "the stream before ends");
    one.recorder.wait("unreachable", |heard| (heard.unreachable == [2]).then_some(()));
    one.peers.send(vec![app(1, 2, 7, 1)]);
    assert_eq!(raw::read_chunk(&mut second).unwrap()[0], 2, "a new connection begins with a whole message");
}

#[test]
fn an_idle_stream_beats_three_times_within_the_read_timeout() {
    let (listener, url) = kit::listen();
    let timeouts = Timeouts { read: Duration::from_millis(600), ..kit::TIMEOUTS };
    let one = kit::member_at(1, CLUSTER, listener, &url, timeouts);
    one.peers.set_members(vec![(2, vec![kit::nowhere()])]);
    for (path, beat) in [
        ("/raft/stream/message/2", &b"\0\0\0\0\0\0\0\x06\x08\x08\x10\x00\x18\x00"[..]),
        ("/raft/stream/msgapp/2", &b"\0"[..]),
    ] {
        let mut stream = raw::connect(&one.url);
        let headers = raw::with(raw::headers("2"), "X-Raft-To", "1");
        let begun = Instant::now();
        stream.write_all(&raw::head("GET", path, &headers)).unwrap();
        raw::read_head(&mut stream);
        for _ in 0..3 {
            assert_eq!(raw::read_chunk(&mut stream).unwrap(), beat);
        }
        let took = begun.elapsed();
        assert!(took > Duration::from_millis(500), "{took:?}: no more often than needed");
    }
}

#[test]
fn a_silent_peer_is_given_up_after_the_read_timeout() {
    let (listener, url) = kit::listen();
    let timeouts = Timeouts { read: Duration::from_millis(300), ..kit::TIMEOUTS };
    let one = kit::member_at(1, CLUSTER, listener, &url, timeouts);
    // A peer that accepts the streams and sends nothing.
    let (silent, silent_url) = kit::listen();
    one.peers.set_members(vec![(2, vec![silent_url])]);
    let mut held = Vec::new();
    let answered = Instant::now();
    let mut dials = 0;
    while dials < 2 {
        let mut stream = kit::accept(&silent);
        let request = read_request(&mut stream);
        if request.starts_with("GET /raft/stream/message/1 HTTP/1.1\r\n") {
            assert!(request.to_lowercase().contains("\r\nx-raft-to: 2\r\n"), "{request}");
            dials += 1;
            stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
        }
        held.push(stream);
    }
    assert!(answered.elapsed() >= Duration::from_millis(300), "dialed again only after the silence");
    kit::wait_log(&one, "lost TCP streaming connection", 2, "the peer was silent for 300ms");
}

fn read_request(stream: &mut std::net::TcpStream) -> String {
    use std::io::Read;
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        assert_eq!(stream.read(&mut byte).unwrap(), 1);
        bytes.push(byte[0]);
    }
    String::from_utf8(bytes).unwrap()
}

#[test]
fn dials_are_paced() {
    let one = kit::member(1);
    let (refusing, url) = kit::listen();
    let begun = Instant::now();
    one.peers.set_members(vec![(2, vec![url])]);
    let mut dials = 0;
    while dials < 6 {
        let mut stream = kit::accept(&refusing);
        dials += usize::from(read_request(&mut stream).starts_with("GET /raft/stream/message/"));
        drop(stream);
    }
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(450), "{took:?}: more than ten a second");
}

#[test]
fn a_member_that_left_is_neither_dialed_nor_served_nor_sent_to() {
    let (one, two) = pair(kit::TIMEOUTS);
    one.recorder.with(|heard| heard.removed_ids.push(2));
    one.peers.set_members(Vec::new());
    kit::wait_log(&two, "lost TCP streaming connection", 1, "");
    // Each of the two streams may be told.
    two.recorder.wait("removed", |heard| (heard.removed >= 1).then_some(()));
    let before = one.peers.figures().peers[&2].sent_bytes;
    assert!(!one.peers.figures().peers[&2].known && one.peers.active_since(2).is_none());
    one.peers.send(vec![heartbeat(1, 2, 3)]);
    // The member is added again under the same id, for the test only: only messages sent from then on arrive.
    one.recorder.with(|heard| heard.removed_ids.clear());
    introduce(&[&one, &two]);
    kit::until("active", || one.peers.active_since(2).map(|_| ()));
    one.peers.send(vec![heartbeat(1, 2, 4)]);
    assert_eq!(two.recorder.wait_messages(1), [heartbeat(1, 2, 4)]);
    // A request of the pipeline is counted when it is answered.
    kit::until("counted", || (one.peers.figures().peers[&2].sent_bytes > before).then_some(()));
}
