use mainstay_front::Options;

use testkit::http2::Connection;

use crate::echo::{run, run_with};

#[test]
fn http1_is_served_on_the_same_port() {
    let running = run();
    let mut raw = Connection::silent(running.address);
    raw.send(b"POST /v3/kv/range HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello");
    raw.send(b"GET /health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    let answer = String::from_utf8(raw.read_to_close()).expect("text");
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert!(answer.contains("POST /v3/kv/range 5 true"), "{answer}");
    assert!(answer.ends_with("GET /health 0 true"), "{answer}");
}

#[test]
fn a_body_over_the_limit_is_refused() {
    let running = run_with(Options { shards: 1, http_body_bytes_max: 4, ..Options::default() });
    let mut raw = Connection::silent(running.address);
    raw.send(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello");
    let answer = String::from_utf8(raw.read_to_close()).expect("text");
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
}
