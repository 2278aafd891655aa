use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use mainstay_front::Options;

use testkit::http2::Connection;

use crate::echo::{block_on, run, run_with, until};

const STALLED: Duration = Duration::from_millis(200);

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
    // The limit is twice the largest message, for any size of message.
    for (message_bytes_max, length, status) in [(2, 4, "200"), (2, 5, "413"), (3 << 20, 6 << 20, "200")] {
        let running = run_with(Options { shards: 1, message_bytes_max, ..Options::default() });
        let mut raw = Connection::silent(running.address);
        raw.send(
            format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n")
                .as_bytes(),
        );
        raw.send(&vec![b'x'; length]);
        let answer = String::from_utf8(raw.read_to_close()).expect("text");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
    }
}

#[test]
fn a_call_that_lasts_ends_with_its_client_whatever_it_sent_besides() {
    let running = run();
    let alive = || running.seen.alive.load(SeqCst);
    let begin = |behind: &[u8]| {
        let mut raw = Connection::silent(running.address);
        raw.send(
            &[&b"POST /lasts HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello"[..], behind].concat(),
        );
        block_on(until("it has begun", || alive() == 1));
        raw
    };
    for behind in [&b""[..], b"G", b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n", &[b'x'; 20_000]] {
        drop(begin(behind));
        block_on(until("it has ended", || alive() == 0));
    }
    // No ordinary client sends this many bytes behind an unanswered request.
    let mut raw = begin(b"");
    raw.flood(&[b'x'; 200_000]);
    block_on(until("it has ended", || alive() == 0));
}

#[test]
fn a_call_that_waits_ends_with_its_client_whatever_it_sent_besides() {
    let running = run();
    let alive = || running.seen.alive.load(SeqCst);
    for behind in [&b""[..], b"G", &[b'x'; 20_000]] {
        let mut raw = Connection::silent(running.address);
        raw.send(
            &[&b"POST /waits HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello"[..], behind].concat(),
        );
        block_on(until("it has begun", || alive() == 1));
        drop(raw);
        block_on(until("it has ended", || alive() == 0));
    }
    // Many requests may be sent ahead, but they must be processed within the stall timeout.
    let running = run_with(Options { shards: 1, stall_timeout: STALLED, ..Options::default() });
    let alive = || running.seen.alive.load(SeqCst);
    let mut raw = Connection::silent(running.address);
    raw.send(b"POST /waits HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello");
    block_on(until("it has begun", || alive() == 1));
    raw.flood(&[b'x'; 200_000]);
    block_on(until("it has ended", || alive() == 0));
}

#[test]
fn many_requests_are_sent_ahead_of_their_answers() {
    let running = run();
    let mut raw = Connection::silent(running.address);
    // Far more bytes than are read ahead of a waiting request.
    let request =
        [&b"POST /naps HTTP/1.1\r\nhost: a\r\ncontent-length: 4000\r\n\r\n"[..], &[b'x'; 4000]].concat();
    raw.send(&request.repeat(40));
    raw.send(b"GET /health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    let answer = String::from_utf8(raw.read_to_close()).expect("text");
    assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 41);
    assert!(answer.ends_with("GET /health 0 true"), "{answer}");
}

#[test]
fn a_call_that_lasts_ends_with_its_client_whose_body_nobody_reads_any_more() {
    let running = run();
    let alive = || running.seen.alive.load(SeqCst);
    for behind in [&b"hello"[..], &[b'x'; 20_000]] {
        let mut raw = Connection::silent(running.address);
        raw.send(
            &[&b"POST /lasts/unread HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n\r\n"[..], behind]
                .concat(),
        );
        block_on(until("it has begun", || alive() == 1));
        drop(raw);
        block_on(until("it has ended", || alive() == 0));
    }
}
