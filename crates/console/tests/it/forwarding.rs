use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::mpsc::channel;
use std::time::Duration;

use testkit::ports::{free_address, listen};
use testkit::{TIMEOUT, http1, wait_until};

use crate::fake_member::{FakeMember, MemberRequest};
use crate::harness::{OWN, Setup, read_to_close};

/// Head of a chunked response.
const STREAM: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";

/// Reads a chunked body until these bytes have arrived.
fn read_chunks(stream: &mut TcpStream, expected: &str) {
    let mut read = Vec::new();
    while read.len() < expected.len() {
        read.extend(http1::read_chunk(stream).expect("the stream goes on"));
    }
    assert_eq!(String::from_utf8_lossy(&read), expected);
}

#[test]
fn a_member_sees_of_a_browser_what_it_needs() {
    let (member, requests) = FakeMember::by_hand();
    let console = Setup::endpoints(&[member.address]).start();
    let headers = [
        OWN,
        ("Authorization", "token.1"),
        ("Content-Type", "application/json"),
        ("Accept", "application/json"),
        ("Cookie", "secret=1"),
        ("Origin", &format!("http://{}", console.address)),
        ("Referer", "http://127.0.0.1/"),
        ("Sec-Fetch-Site", "same-origin"),
        ("X-Forwarded-For", "10.0.0.1"),
        ("Accept-Encoding", "gzip"),
        ("User-Agent", "browser"),
    ];
    let mut stream = console.ask("POST", "/api/endpoint/0/v3/kv/range?x=y", &headers, b"{\"key\":\"Zm9v\"}");
    let mut asked = requests.next();
    assert_eq!(asked.line, "POST /v3/kv/range");
    assert_eq!(asked.body(), b"{\"key\":\"Zm9v\"}");
    let mut names: Vec<&str> = asked.headers.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["accept", "authorization", "content-length", "content-type", "host", "user-agent"]);
    assert_eq!(asked.header("host"), Some(member.address.to_string().as_str()));
    assert_eq!(asked.header("authorization"), Some("token.1"));
    asked.write(
        "HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\nSet-Cookie: a=b\r\nLocation: http://evil.example\r\n\
         Access-Control-Allow-Origin: *\r\nContent-Security-Policy: default-src *\r\nContent-Length: 2\r\n\r\n{}",
    );
    let answer = http1::read_answer(&mut stream);
    assert_eq!((answer.status, answer.text()), (403, "{}"));
    assert_eq!(answer.header("content-type"), Some("application/json"));
    for name in ["set-cookie", "location", "access-control-allow-origin"] {
        assert_eq!(answer.header(name), None, "{name}");
    }
    let policies = answer.headers.iter().filter(|(name, _)| name == "content-security-policy");
    assert_eq!(policies.count(), 1);
}

#[test]
fn what_members_refuse_is_refused_in_their_words() {
    let member = FakeMember::start(|asked| {
        let (status, body) = match asked.line.as_str() {
            "POST /v3/auth/authenticate" => (
                "400 Bad Request",
                r#"{"code":3,"message":"etcdserver: authentication failed, invalid user ID or password"}"#,
            ),
            "POST /v3/kv/range" => {
                ("401 Unauthorized", r#"{"code":16,"message":"etcdserver: invalid auth token"}"#)
            }
            _ => ("403 Forbidden", r#"{"code":7,"message":"etcdserver: permission denied"}"#),
        };
        asked.body();
        asked.answer(status, body);
    });
    let console = Setup::endpoints(&[member.address]).start();
    for (call, status, words) in [
        ("auth/authenticate", 400, "authentication failed"),
        ("kv/range", 401, "invalid auth token"),
        ("kv/put", 403, "permission denied"),
    ] {
        let answer = console.call(call, "{}");
        assert_eq!(answer.status, status);
        assert!(answer.text().contains(words), "{}", answer.text());
    }
}

#[test]
fn only_calls_and_pages_are_passed_on() {
    let member = FakeMember::start(|asked| {
        asked.body();
        asked.answer("200 OK", "\"it\"");
    });
    let console = Setup::endpoints(&[member.address]).start();
    for page in [
        "metrics",
        "health?serializable=true",
        "livez",
        "readyz?verbose",
        "readyz/linearizable_read",
        "version",
        "debug/mainstay",
        "debug/requests",
    ] {
        assert_eq!((console.page(page).status, console.page(page).text()), (200, "\"it\""), "{page}");
        assert_eq!(member.lines().last().map(String::as_str), Some(format!("GET /{page}").as_str()));
    }
    let passed_on = member.lines().len();
    for (method, path, status) in [
        ("GET", "v3/kv/range", 405),
        ("POST", "metrics", 405),
        ("DELETE", "v3/kv/range", 405),
        ("POST", "v3/../metrics", 404),
        ("POST", "v3/%2e%2e/x", 404),
        ("GET", "debug/pprof/profile", 404),
        ("GET", "", 404),
        ("POST", "v2/keys", 404),
        ("GET", "http://evil.example/", 404),
        ("GET", "metrics/", 404),
    ] {
        let answer = console.request(method, &format!("/api/endpoint/0/{path}"), &[OWN], b"");
        assert_eq!(answer.status, status, "{method} {path}");
    }
    for path in ["/api/endpoint/1/metrics", "/api/endpoint/00x/metrics", "/api/endpoint/", "/api/endpoint/0"]
    {
        assert_eq!(console.request("GET", path, &[OWN], b"").status, 404, "{path}");
    }
    assert_eq!(member.lines().len(), passed_on);
}

#[test]
fn a_connection_to_a_member_serves_one_request_after_the_other() {
    let member = FakeMember::start(|asked| {
        asked.body();
        asked.answer("200 OK", "{}");
    });
    let console = Setup::endpoints(&[member.address]).start();
    for _ in 0..20 {
        assert_eq!(console.call("kv/range", "{}").status, 200);
        assert_eq!(console.page("metrics").status, 200);
    }
    assert_eq!((member.lines().len(), member.connections()), (40, 1));
}

#[test]
fn a_connection_that_a_member_has_closed_is_not_used_again() {
    let (member, requests) = FakeMember::by_hand();
    let console = Setup::endpoints(&[member.address]).start();
    for _ in 0..5 {
        let mut stream = console.ask("GET", "/api/endpoint/0/metrics", &[OWN], b"");
        let mut asked = requests.next();
        asked.answer("200 OK", "{}");
        // The member closes a kept connection without notice.
        drop(asked);
        assert_eq!(http1::read_answer(&mut stream).status, 200);
    }
}

#[test]
fn an_idle_connection_to_a_member_is_closed() {
    let (member, requests) = FakeMember::by_hand();
    let console =
        Setup::endpoints(&[member.address]).limits(|limits| limits.idle_link = crate::harness::SHORT).start();
    let mut stream = console.ask("GET", "/api/endpoint/0/metrics", &[OWN], b"");
    let mut asked = requests.next();
    asked.answer("200 OK", "{}");
    assert_eq!(http1::read_answer(&mut stream).status, 200);
    asked.wait_for_close();
}

#[test]
fn a_body_goes_on_as_it_comes() {
    let (member, requests) = FakeMember::by_hand();
    let console = Setup::endpoints(&[member.address]).start();
    let mut stream = http1::connect(console.address);
    console.send(&mut stream, "POST", "/api/endpoint/0/v3/kv/put", &[OWN, ("Transfer-Encoding", "chunked")]);
    stream.write_all(&http1::chunk(b"{\"key\":")).expect("the console reads");
    let mut asked = requests.next();
    read_chunks(&mut asked.stream, "{\"key\":");
    stream.write_all(&http1::chunk(b"\"Zm9v\"}")).expect("the console reads");
    read_chunks(&mut asked.stream, "\"Zm9v\"}");
    stream.write_all(&http1::chunk(b"")).expect("the console reads");
    assert_eq!(http1::read_chunk(&mut asked.stream), Some(Vec::new()));
    asked.answer("200 OK", "{}");
    assert_eq!(http1::read_answer(&mut stream).status, 200);
}

#[test]
fn a_watch_arrives_event_by_event() {
    let (member, requests) = FakeMember::by_hand();
    let console = Setup::endpoints(&[member.address]).start();
    let mut stream = console.ask("POST", "/api/endpoint/0/v3/watch", &[OWN], b"{\"create_request\":{}}");
    let mut asked = requests.next();
    asked.body();
    asked.write(STREAM);
    assert_eq!(http1::read_head(&mut stream).status, 200);
    for number in 0..50 {
        let event = format!("{{\"result\":{{\"header\":{{\"revision\":\"{number}\"}}}}}}\n");
        asked.stream.write_all(&http1::chunk(event.as_bytes())).expect("the console reads");
        // Each event arrives before the next is sent.
        read_chunks(&mut stream, &event);
    }
    asked.stream.write_all(&http1::chunk(b"")).expect("the console reads");
    assert_eq!(http1::read_chunk(&mut stream), Some(Vec::new()));
}

#[test]
fn who_does_not_read_holds_the_member_back() {
    let (member, requests) = FakeMember::by_hand();
    let console = Setup::endpoints(&[member.address]).start();
    let mut stream = console.ask("POST", "/api/endpoint/0/v3/maintenance/snapshot", &[OWN], b"{}");
    let mut asked = requests.next();
    asked.body();
    asked.write(STREAM);
    assert_eq!(http1::read_head(&mut stream).status, 200);
    let piece = http1::chunk(&vec![7; 64 << 10]);
    // The kernel's buffers of four sockets hold some megabytes.
    asked.stream.set_write_timeout(Some(Duration::from_millis(500))).expect("a time-out");
    let mut sent = 0;
    while sent < 256 << 20 && asked.stream.write_all(&piece).is_ok() {
        sent += piece.len();
    }
    assert!(sent < 64 << 20, "{sent} bytes went somewhere");
    // The last piece may be incomplete.
    drop(asked);
    let mut read = 0;
    while let Some(chunk) = http1::read_chunk(&mut stream) {
        read += chunk.len();
    }
    assert!(read + 2 * piece.len() >= sent, "{read} of {sent} bytes came through");
}

/// Begins a stream through the console; returns both ends.
fn begun_stream(
    console: &crate::harness::Running,
    requests: &crate::fake_member::Requests,
) -> (TcpStream, MemberRequest) {
    let mut stream = console.ask("POST", "/api/endpoint/0/v3/watch", &[OWN], b"{}");
    let mut asked = requests.next();
    asked.body();
    asked.write(STREAM);
    assert_eq!(http1::read_head(&mut stream).status, 200);
    (stream, asked)
}

#[test]
fn what_a_browser_asked_for_ends_when_it_leaves() {
    let (member, requests) = FakeMember::by_hand();
    let console = Setup::endpoints(&[member.address]).start();
    // The browser disconnects during a stream without events.
    let (stream, mut asked) = begun_stream(&console, &requests);
    drop(stream);
    asked.wait_for_close();
    // The browser disconnects after it has sent more bytes during a stream.
    let (mut stream, mut asked) = begun_stream(&console, &requests);
    stream.write_all(b"GET / HTTP/1.1\r\n").expect("the console reads");
    drop(stream);
    asked.wait_for_close();
    // The browser disconnects before the response has begun.
    let stream = console.ask("POST", "/api/endpoint/0/v3/lock/lock", &[OWN], b"{}");
    let mut asked = requests.next();
    asked.body();
    drop(stream);
    asked.wait_for_close();
    // The browser disconnects during its own request.
    let mut stream = http1::connect(console.address);
    console.send(&mut stream, "POST", "/api/endpoint/0/v3/kv/put", &[OWN, ("Content-Length", "100")]);
    stream.write_all(b"{").expect("the console reads");
    let mut asked = requests.next();
    drop(stream);
    asked.wait_for_close();
    console.serves();
}

#[test]
fn what_waits_behind_a_stream_is_answered_after_it() {
    let (member, requests) = FakeMember::by_hand();
    let console = Setup::endpoints(&[member.address]).start();
    let (mut stream, mut asked) = begun_stream(&console, &requests);
    console.send(&mut stream, "GET", "/", &[]);
    asked.stream.write_all(&http1::chunk(b"x")).expect("the console reads");
    asked.stream.write_all(&http1::chunk(b"")).expect("the console reads");
    read_chunks(&mut stream, "x");
    assert_eq!(http1::read_chunk(&mut stream), Some(Vec::new()));
    assert_eq!(http1::read_answer(&mut stream).status, 200);
}

#[test]
fn a_member_that_is_down_is_said_to_be() {
    let address = free_address();
    let console = Setup::endpoints(&[address]).start();
    let answer = console.call("kv/range", "{}");
    assert_eq!((answer.status, answer.header("content-type")), (502, Some("application/json")));
    let body = answer.text();
    assert!(body.starts_with("{\"code\":14,\"message\":"), "{body}");
    assert!(body.contains(&address.to_string()), "{body}");
}

#[test]
fn a_member_that_does_not_take_a_connection_is_given_up() {
    // The server accepts connections without TLS handshakes.
    let (socket, address) = listen();
    let (taken, connections) = channel();
    std::thread::spawn(move || socket.incoming().for_each(|stream| _ = taken.send(stream)));
    let source = console::Source::Endpoints(vec![crate::harness::url(&format!("https://{address}"))]);
    let console = Setup::of(source).limits(|limits| limits.dial_timeout = crate::harness::SHORT).start();
    let answer = console.call("kv/range", "{}");
    assert_eq!(answer.status, 504);
    assert!(answer.text().starts_with("{\"code\":14,"), "{}", answer.text());
    let mut stream = connections.recv_timeout(TIMEOUT).expect("it was dialed").expect("a connection");
    read_to_close(&mut http1::with_timeouts(stream.try_clone().expect("a socket")));
    drop(stream.write_all(b"x"));
}

#[test]
fn an_answer_that_breaks_off_is_not_whole() {
    let (member, requests) = FakeMember::by_hand();
    let console = Setup::endpoints(&[member.address]).start();
    // The member breaks off a chunked response.
    let (mut stream, mut asked) = begun_stream(&console, &requests);
    asked.stream.write_all(&http1::chunk(b"first")).expect("the console reads");
    drop(asked);
    read_chunks(&mut stream, "first");
    assert_eq!(http1::read_chunk(&mut stream), None, "no chunk says that it is over");
    // The member breaks off a response with a Content-Length.
    let mut stream = console.ask("GET", "/api/endpoint/0/metrics", &[OWN], b"");
    let mut asked = requests.next();
    asked.write("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nfirst");
    drop(asked);
    let answer = http1::read_head(&mut stream);
    assert_eq!((answer.status, answer.header("content-length")), (200, Some("10")));
    assert_eq!(read_to_close(&mut stream), b"first");
    // The member closes the connection before the response has begun.
    let mut stream = console.ask("POST", "/api/endpoint/0/v3/kv/put", &[OWN], b"{}");
    requests.next().body();
    let answer = http1::read_answer(&mut stream);
    assert_eq!(answer.status, 502);
    assert!(answer.text().contains("may or may not have carried out the request"), "{}", answer.text());
    assert_eq!(member.lines().iter().filter(|line| line.contains("put")).count(), 1, "it is not asked twice");
    console.serves();
}

#[test]
fn a_member_that_speaks_no_http_gives_no_answer() {
    let (member, requests) = FakeMember::by_hand();
    let console = Setup::endpoints(&[member.address]).start();
    let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(100 << 10));
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(1000));
    for answer in ["SSH-2.0-x\r\n\r\n", "HTTP/1.1 x y\r\n\r\n", "\0\0\0\0\0\0\0\0", &long, &many] {
        let mut stream = console.ask("GET", "/api/endpoint/0/metrics", &[OWN], b"");
        let mut asked = requests.next();
        // The connection may be closed before everything is written.
        let _ = asked.stream.write_all(answer.as_bytes());
        drop(asked);
        assert_eq!(http1::read_answer(&mut stream).status, 502, "{}", &answer[..20.min(answer.len())]);
    }
    console.serves();
}

#[test]
fn a_body_is_no_larger_than_allowed() {
    let (member, requests) = FakeMember::by_hand();
    let console = Setup::endpoints(&[member.address]).limits(|limits| limits.body_bytes_max = 1000).start();
    // The Content-Length exceeds the limit.
    let mut stream = http1::connect(console.address);
    console.send(&mut stream, "POST", "/api/endpoint/0/v3/kv/put", &[OWN, ("Content-Length", "1001")]);
    let answer = http1::read_head(&mut stream);
    assert_eq!(answer.status, 413);
    assert_eq!(member.connections(), 0);
    // A chunked body exceeds the limit while it is forwarded.
    let mut stream = http1::connect(console.address);
    console.send(&mut stream, "POST", "/api/endpoint/0/v3/kv/put", &[OWN, ("Transfer-Encoding", "chunked")]);
    stream.write_all(&http1::chunk(&[b'x'; 600])).expect("the console reads");
    let mut asked = requests.next();
    stream.write_all(&http1::chunk(&[b'x'; 600])).expect("the console reads");
    assert_eq!(http1::read_head(&mut stream).status, 413);
    asked.wait_for_close();
    // A body of exactly the largest size is forwarded.
    let mut stream = console.ask("POST", "/api/endpoint/0/v3/kv/put", &[OWN], &[b'x'; 1000]);
    let mut asked = requests.next();
    assert_eq!(asked.body().len(), 1000);
    asked.answer("200 OK", "{}");
    assert_eq!(http1::read_answer(&mut stream).status, 200);
}

#[test]
fn a_large_answer_comes_through_whole() {
    let body = "x".repeat(20 << 20);
    let answered = body.clone();
    let member = FakeMember::start(move |asked| asked.answer("200 OK", &answered));
    let console = Setup::endpoints(&[member.address]).start();
    let answer = console.page("metrics");
    assert_eq!(answer.header("content-length"), Some(body.len().to_string().as_str()));
    assert!(answer.body == body.as_bytes());
}

#[test]
fn a_console_that_stops_leaves_nothing_open() {
    let (member, requests) = FakeMember::by_hand();
    let console = Setup::endpoints(&[member.address]).start();
    let (mut stream, mut asked) = begun_stream(&console, &requests);
    let address = console.address;
    drop(console);
    asked.wait_for_close();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    wait_until("nobody listens any more", TIMEOUT, || TcpStream::connect(address).is_err().then_some(()));
}
