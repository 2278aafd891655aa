use std::io::Write as _;
use std::net::TcpStream;
use std::time::Instant;

use testkit::{TIMEOUT, http1, wait_until};

use crate::fake_member::{FakeMember, MemberRequest, Requests};
use crate::harness::{OWN, Running, SHORT, Setup, read_to_close};

/// Opens a watch; the member receives the whole request.
fn watch(console: &Running, requests: &Requests) -> (TcpStream, MemberRequest) {
    let stream = console.ask("POST", "/api/endpoint/0/v3/watch", &[OWN], b"{}");
    let mut asked = requests.next();
    asked.body();
    (stream, asked)
}

#[test]
fn who_sends_a_head_slowly_is_closed() {
    let (member, _requests) = FakeMember::by_hand();
    let console =
        Setup::endpoints(&[member.address]).limits(|limits| limits.head_timeout = 10 * SHORT).start();
    // Connections that send nothing, one byte, or a byte from time to time.
    let mut silent = http1::connect(console.address);
    let mut begun = http1::connect(console.address);
    begun.write_all(b"GET / HT").expect("the console reads");
    let began = Instant::now();
    let dripping = http1::connect(console.address);
    let mut drips = dripping.try_clone().expect("a socket");
    wait_until("it takes no more", TIMEOUT, || drips.write_all(b"x").is_err().then_some(()));
    assert!(began.elapsed() >= 5 * SHORT, "it was given its time");
    assert_eq!(read_to_close(&mut silent), b"");
    read_to_close(&mut begun);
    // A connection that has had a response.
    let mut idle = http1::connect(console.address);
    console.send(&mut idle, "GET", "/", &[]);
    assert_eq!(http1::read_answer(&mut idle).status, 200);
    assert_eq!(read_to_close(&mut idle), b"");
    console.serves();
}

#[test]
fn who_sends_a_body_slowly_is_closed() {
    let (member, requests) = FakeMember::by_hand();
    let console =
        Setup::endpoints(&[member.address]).limits(|limits| limits.body_timeout = 10 * SHORT).start();
    let mut stream = http1::connect(console.address);
    console.send(&mut stream, "POST", "/api/endpoint/0/v3/kv/put", &[OWN, ("Content-Length", "100000")]);
    let mut asked = requests.next();
    wait_until("it takes no more", TIMEOUT, || stream.write_all(b"x").is_err().then_some(()));
    asked.wait_for_close();
    // A request that has arrived completely may wait for its response as long as it likes.
    let mut stream = console.ask("POST", "/api/endpoint/0/v3/lock/lock", &[OWN], b"{}");
    let mut asked = requests.next();
    asked.body();
    // A body that started later, and does not arrive, times out before.
    let mut late = http1::connect(console.address);
    console.send(&mut late, "POST", "/api/endpoint/0/v3/kv/put", &[OWN, ("Content-Length", "100000")]);
    let mut given_up = requests.next();
    wait_until("it takes no more", TIMEOUT, || late.write_all(b"x").is_err().then_some(()));
    given_up.wait_for_close();
    asked.answer("200 OK", "{}");
    assert_eq!(http1::read_answer(&mut stream).status, 200);
}

#[test]
fn heads_are_bounded() {
    let (member, _requests) = FakeMember::by_hand();
    let console = Setup::endpoints(&[member.address]).start();
    let long = "x".repeat(40 << 10);
    for head in [
        format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {long}\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "X: y\r\n".repeat(500)),
        format!("GET /{long} HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    ] {
        let mut stream = http1::connect(console.address);
        let _ = stream.write_all(head.as_bytes());
        let answer = read_to_close(&mut stream);
        let refused = answer.starts_with(b"HTTP/1.1 431") || answer.starts_with(b"HTTP/1.1 414");
        assert!(refused || answer.is_empty(), "{}", String::from_utf8_lossy(&answer));
    }
    // A request head that never ends.
    let mut stream = http1::connect(console.address);
    let mut sent = 0;
    while sent < 64 << 20 && stream.write_all(&[b'x'; 4096]).is_ok() {
        sent += 4096;
    }
    assert!(sent < 16 << 20, "{sent} bytes went somewhere");
    console.serves();
}

#[test]
fn who_has_no_request_under_way_makes_room() {
    let (member, requests) = FakeMember::by_hand();
    let console = Setup::endpoints(&[member.address]).limits(|limits| limits.connections_max = 3).start();
    let (mut busy, mut asked) = watch(&console, &requests);
    let mut idle: Vec<_> = (0..10).map(|_| http1::connect(console.address)).collect();
    // Only the ninth and the tenth connection stay open.
    for stream in &mut idle[..8] {
        assert_eq!(read_to_close(stream), b"");
    }
    console.send(&mut idle[9], "GET", "/", &[]);
    assert_eq!(http1::read_answer(&mut idle[9]).status, 200);
    console.serves();
    asked.answer("200 OK", "{}");
    assert_eq!(http1::read_answer(&mut busy).status, 200);
}

#[test]
fn when_all_have_requests_under_way_the_next_is_closed() {
    let (member, requests) = FakeMember::by_hand();
    let console = Setup::endpoints(&[member.address]).limits(|limits| limits.connections_max = 2).start();
    let (mut first, mut first_asked) = watch(&console, &requests);
    let (_second, _second_asked) = watch(&console, &requests);
    assert_eq!(read_to_close(&mut http1::connect(console.address)), b"");
    first_asked.answer("200 OK", "{}");
    assert_eq!(http1::read_answer(&mut first).status, 200);
    console.serves();
}

#[test]
fn the_pages_can_be_loaded_while_too_much_is_asked() {
    let (member, requests) = FakeMember::by_hand();
    let console = Setup::endpoints(&[member.address]).limits(|limits| limits.forwarded_max = 2).start();
    let (mut first, mut first_asked) = watch(&console, &requests);
    let (second, mut second_asked) = watch(&console, &requests);
    let answer = console.page("metrics");
    assert_eq!(answer.status, 503);
    assert!(answer.text().starts_with("{\"code\":8,"), "{}", answer.text());
    console.serves();
    // The permit of each request is returned when the request ends: by a response, or because the browser
    // disconnects.
    first_asked.write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}");
    assert_eq!(http1::read_answer(&mut first).status, 200);
    drop(second);
    second_asked.wait_for_close();
    drop((watch(&console, &requests), watch(&console, &requests)));
}

#[test]
fn who_takes_nothing_is_closed() {
    let (member, requests) = FakeMember::by_hand();
    let console = Setup::endpoints(&[member.address]).limits(|limits| limits.stall_timeout = SHORT).start();
    let stream = console.ask("POST", "/api/endpoint/0/v3/maintenance/snapshot", &[OWN], b"{}");
    let mut asked = requests.next();
    asked.body();
    asked.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    let piece = http1::chunk(&vec![7; 64 << 10]);
    wait_until("the member is told", TIMEOUT, || asked.stream.write_all(&piece).is_err().then_some(()));
    drop(stream);
    console.serves();
}

#[test]
fn what_is_sent_behind_a_stream_is_bounded() {
    let (member, requests) = FakeMember::by_hand();
    let console = Setup::endpoints(&[member.address]).start();
    let (mut stream, mut asked) = watch(&console, &requests);
    asked.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    assert_eq!(http1::read_head(&mut stream).status, 200);
    wait_until("it takes no more", TIMEOUT, || stream.write_all(&[b'x'; 4096]).is_err().then_some(()));
    asked.wait_for_close();
}

#[test]
fn a_member_that_does_not_answer_a_page_is_not_waited_for() {
    let (member, requests) = FakeMember::by_hand();
    let console = Setup::endpoints(&[member.address]).limits(|limits| limits.page_timeout = SHORT).start();
    let answer = console.page("health");
    assert_eq!(answer.status, 504);
    assert!(answer.text().contains("no answer within"), "{}", answer.text());
    requests.next().wait_for_close();
}

#[test]
fn one_address_does_not_take_all_places() {
    let (member, requests) = FakeMember::by_hand();
    let console =
        Setup::endpoints(&[member.address]).limits(|limits| limits.forwarded_per_address = 1).start();
    let (_stream, mut asked) = watch(&console, &requests);
    assert_eq!(console.page("metrics").status, 503);
    asked.answer("200 OK", "{}");
    console.serves();
}
