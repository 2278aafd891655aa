use std::io::Write as _;

use testkit::http1;

use crate::fake_member::FakeMember;
use crate::harness::{OWN, Running, Setup, read_to_close};

fn console() -> (FakeMember, Running) {
    let member = FakeMember::start(|asked| {
        asked.body();
        asked.answer("200 OK", "{}");
    });
    let mut setup = Setup::endpoints(&[member.address]);
    setup.hosts = vec!["listed.example".to_owned()];
    let console = setup.start();
    (member, console)
}

#[test]
fn a_name_that_somebody_made_lead_here_is_not_served() {
    let (member, console) = console();
    for (host, status) in [
        (console.address.to_string().as_str(), 200),
        ("localhost:1", 200),
        ("listed.example:2382", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example:2382", 421),
        ("", 421),
        ("x y", 421),
    ] {
        assert_eq!(console.request("GET", "/", &[("Host", host)], b"").status, status, "{host}");
        let called = console.request("POST", "/api/endpoint/0/v3/kv/put", &[("Host", host), OWN], b"{}");
        assert_eq!(called.status, status, "{host}");
    }
    assert_eq!(member.lines().len(), 3, "nothing of the others came through");
}

#[test]
fn a_request_has_one_host_and_is_for_no_proxy() {
    let (member, console) = console();
    let requests = [
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        "GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: \u{e9}\r\n\r\n",
    ];
    for request in requests {
        let mut stream = http1::connect(console.address);
        stream.write_all(request.as_bytes()).expect("the console reads");
        assert_eq!(http1::read_head(&mut stream).status, 400, "{request}");
    }
    assert_eq!(member.connections(), 0);
}

#[test]
fn pages_from_elsewhere_call_nothing() {
    let (member, console) = console();
    let own_origin = format!("http://{}", console.address);
    let secure_origin = format!("https://{}", console.address);
    let call = |headers: &[(&str, &str)]| {
        console.request("POST", "/api/endpoint/0/v3/kv/put", headers, b"{}").status
    };
    // Headers that the console's own pages and programs send.
    for headers in [
        &[OWN][..],
        &[OWN, ("Sec-Fetch-Site", "same-origin"), ("Origin", &own_origin)],
        &[OWN, ("Origin", &secure_origin)],
    ] {
        assert_eq!(call(headers), 200, "{headers:?}");
    }
    let asked = member.lines().len();
    for headers in [
        // Forms and simple requests cannot have the header.
        &[][..],
        &[("Content-Type", "text/plain")],
        &[("X-Mainstay-Console", "")],
        &[("X-Mainstay-Console", "2")],
        &[OWN, ("Sec-Fetch-Site", "cross-site")],
        &[OWN, ("Sec-Fetch-Site", "same-site")],
        &[OWN, ("Sec-Fetch-Site", "none")],
        &[OWN, ("Origin", "https://evil.example")],
        &[OWN, ("Origin", "null")],
        &[OWN, ("Origin", "http://127.0.0.1:1")],
        &[OWN, ("Origin", "http://127.0.0.1")],
        &[OWN, ("Origin", &own_origin), ("Origin", "https://evil.example")],
    ] {
        assert_eq!(call(headers), 403, "{headers:?}");
        assert_eq!(console.request("GET", "/api/members", headers, b"").status, 403, "{headers:?}");
    }
    // A browser's CORS preflight gets no permission.
    let asks = [("Origin", "https://evil.example"), ("Access-Control-Request-Headers", "x-mainstay-console")];
    let answer = console.request("OPTIONS", "/api/endpoint/0/v3/kv/put", &asks, b"");
    assert_eq!(answer.status, 403);
    assert_eq!(answer.header("access-control-allow-origin"), None);
    assert_eq!(member.lines().len(), asked, "nothing of it came through");
}

#[test]
fn garbage_closes_its_own_connection() {
    let (_member, console) = console();
    let mut random = testkit::Random::new(7);
    let mut inputs: Vec<Vec<u8>> = (1..200).map(|length| random.bytes(length * 7)).collect();
    inputs.extend(
        [
            &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
            b"POST /api/endpoint/0/v3/kv/put HTTP/1.1\r\nHost: localhost\r\nX-Mainstay-Console: 1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
            b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"\r\n\r\n\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
            b"GET / HTTP/1.1\nHost: localhost\n\n",
        ]
        .map(<[u8]>::to_vec),
    );
    for input in inputs {
        let mut stream = http1::connect(console.address);
        // The connection may be closed before everything is written.
        let _ = stream.write_all(&input);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let answer = read_to_close(&mut stream);
        let is_success = answer.starts_with(b"HTTP/1.1 2");
        assert!(!is_success || input.starts_with(b"GET / HTTP/1.1\n"), "{}", String::from_utf8_lossy(&input));
    }
    console.serves();
}

#[test]
fn a_request_that_hides_in_another_is_not_seen() {
    let (member, console) = console();
    // Two lengths: a proxy and the console could disagree about where the request ends.
    let head = |length: &str| {
        format!(
            "POST /api/endpoint/0/v3/kv/put HTTP/1.1\r\nHost: localhost\r\nX-Mainstay-Console: 1\r\n{length}\r\n\
             0\r\n\r\nPOST /api/endpoint/0/v3/kv/deleterange HTTP/1.1\r\nHost: localhost\r\nX-Mainstay-Console: 1\r\n\r\n"
        )
    };
    for length in [
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "Content-Length: +5\r\n",
    ] {
        let mut stream = http1::connect(console.address);
        let _ = stream.write_all(head(length).as_bytes());
        let _ = stream.shutdown(std::net::Shutdown::Write);
        read_to_close(&mut stream);
    }
    assert!(member.lines().iter().all(|line| !line.contains("deleterange")), "{:?}", member.lines());
    console.serves();
}
