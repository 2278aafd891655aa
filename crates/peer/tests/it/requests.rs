use std::time::{Duration, Instant};

use bytes::Bytes;
use mainstay_peer::{RequestError, Target};

use crate::kit::{self, block_on, introduce};

const TIMEOUT: Duration = Duration::from_secs(5);

fn echo(body: &'static str) -> http::Request<Bytes> {
    http::Request::post("/echo").body(body.into()).unwrap()
}

#[test]
fn requests_reach_members_and_urls() {
    let (one, two) = (kit::member(1), kit::member(2));
    introduce(&[&one, &two]);
    for target in [Target::Member(2), Target::Url(two.url.clone())] {
        for _ in 0..3 {
            let answer = block_on(one.peers.request(target.clone(), echo("hello"), TIMEOUT)).unwrap();
            assert_eq!((answer.status().as_u16(), &answer.body()[..]), (200, &b"hello"[..]));
        }
        let missing = http::Request::get("/nothing").body(Bytes::new()).unwrap();
        let answer = block_on(one.peers.request(target, missing, TIMEOUT)).unwrap();
        assert_eq!(answer.status().as_u16(), 404);
    }
    let unknown = block_on(one.peers.request(Target::Member(9), echo(""), TIMEOUT)).unwrap_err();
    assert!(matches!(unknown, RequestError::UnknownMember(9)));
    assert_eq!(unknown.to_string(), "member 9 is unknown");
}

#[test]
fn many_requests_at_once_are_answered() {
    let (one, two) = (kit::member(1), kit::member(2));
    introduce(&[&one, &two]);
    let all: Vec<_> = (0..100).map(|_| one.peers.request(Target::Member(2), echo("x"), TIMEOUT)).collect();
    for answer in all {
        assert_eq!(&block_on(answer).unwrap().body()[..], b"x");
    }
}

#[test]
fn failures_say_which_url_and_why_and_in_time() {
    let (silent, url) = kit::listen();
    let one = kit::member(1);
    let begun = Instant::now();
    let error = block_on(one.peers.request(Target::Url(url.clone()), echo(""), Duration::from_millis(200)));
    assert_eq!(error.unwrap_err().to_string(), format!("{url}: no answer within 200ms"));
    assert!(begun.elapsed() < Duration::from_secs(3));
    drop(silent);
    let error = block_on(one.peers.request(Target::Url(url.clone()), echo(""), TIMEOUT)).unwrap_err();
    let error = error.to_string();
    assert!(error.starts_with(&format!("{url}: ")) && error.contains("refused"), "{error}");
    let error =
        block_on(one.peers.request(Target::Url("https://a:1".to_owned()), echo(""), TIMEOUT)).unwrap_err();
    assert!(error.to_string().contains("this member has no TLS settings"), "{error}");

    let waiting = one.peers.request(Target::Member(9), echo(""), TIMEOUT);
    let after = {
        one.peers.stop();
        block_on(waiting).unwrap_err().to_string()
    };
    assert!(after == "the member is stopping" || after == "member 9 is unknown", "{after}");
}

#[test]
fn a_fetch_needs_no_peers() {
    let one = kit::member(1);
    let answer = mainstay_peer::fetch(&one.url, echo("boot"), TIMEOUT, None).unwrap();
    assert_eq!((answer.status().as_u16(), &answer.body()[..]), (200, &b"boot"[..]));
    let (silent, url) = kit::listen();
    let error = mainstay_peer::fetch(&url, echo(""), Duration::from_millis(100), None).unwrap_err();
    assert_eq!(error.to_string(), format!("{url}: no answer within 100ms"));
    drop(silent);
    assert!(mainstay_peer::fetch(&url, echo(""), TIMEOUT, None).unwrap_err().to_string().contains("refused"));
    assert!(
        mainstay_peer::fetch("https://a:1", echo(""), TIMEOUT, None).unwrap_err().to_string().contains("TLS")
    );
}

#[test]
fn a_kept_connection_that_the_other_end_closed_is_replaced() {
    let (one, two) = (kit::member(1), kit::member(2));
    let url = two.url.clone();
    let target = Target::Url(url.clone());
    block_on(one.peers.request(target.clone(), echo("a"), TIMEOUT)).unwrap();
    two.peers.stop();
    let _two = kit::member_at(2, kit::CLUSTER, kit::listen_again(&url), &url, kit::TIMEOUTS);
    assert_eq!(&block_on(one.peers.request(target, echo("b"), TIMEOUT)).unwrap().body()[..], b"b");
}

#[test]
fn requests_under_way_are_bounded() {
    let (_silent, url) = kit::listen();
    let one = kit::member(1);
    let target = Target::Url(url);
    let all: Vec<_> = (0..1025).map(|_| one.peers.request(target.clone(), echo(""), TIMEOUT)).collect();
    let last = all.into_iter().next_back().unwrap();
    assert!(matches!(block_on(last).unwrap_err(), RequestError::TooMany));
    // Requests that nobody waits for end, and make room for others.
    kit::until("room", || {
        let error =
            block_on(one.peers.request(target.clone(), echo(""), Duration::from_millis(10))).unwrap_err();
        error.to_string().contains("no answer within 10ms").then_some(())
    });
}

#[test]
fn unknown_senders_that_are_remembered_are_bounded() {
    use prost::Message as _;
    let one = kit::member(1);
    for id in 2..80_u64 {
        let from = format!("{id:x}");
        let headers = [
            ("X-Server-From", from.as_str()),
            ("X-Server-Version", "3.7.1"),
            ("X-Min-Cluster-Version", "3.0.0"),
            ("X-Etcd-Cluster-ID", "c1"),
            ("X-PeerURLs", "http://127.0.0.1:1"),
        ];
        let body = kit::heartbeat(id, 1, 3).encode_to_vec();
        assert_eq!(crate::raw::request(&one.url, "POST", "/raft", &headers, &body).status, 204);
    }
    assert_eq!(one.recorder.wait_messages(78).len(), 78);
    assert_eq!(one.peers.figures().peers.len(), 64);
}
