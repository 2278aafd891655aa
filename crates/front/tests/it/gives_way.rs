//! Work that may wait must not delay other calls. The tests count how much of such work runs before another
//! call.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::sync::atomic::Ordering::SeqCst;

use testkit::http1;
use testkit::http2::{Connection, DATA, message};

use crate::echo::{Running, block_on, run, until};

const CLIENTS: usize = 200;
/// Number of turns that may run before a pending call: some of the shard's steps, and work that was already
/// under way.
const FIRST_MAX: usize = 40;

fn call(client: &mut Connection, stream: u32, path: &str) {
    client.call(stream, path, &[], &message(0, b"a"));
}

/// Opens connections whose newest and only call may wait and has been answered.
fn patient(running: &Running) -> Vec<Connection> {
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| Connection::h2(running.address, &[])).collect();
    for client in &mut clients {
        call(client, 1, "/test.Echo/Patient");
        assert_eq!(client.next_of(DATA).payload, message(0, b"a"));
    }
    clients
}

/// Returns the names that the service recorded since the last call of this function.
fn told(running: &Running) -> Vec<&'static str> {
    std::mem::take(&mut running.seen.told.lock().unwrap())
}

/// Blocks the shard until the input caused by `arrive` and, after it, a call of another client have arrived.
/// Returns what the service recorded from then on.
fn behind(running: &Running, arrive: impl FnOnce()) -> Vec<&'static str> {
    let (mut blocker, mut other) =
        (Connection::h2(running.address, &[]), Connection::h2(running.address, &[]));
    call(&mut other, 1, "/test.Echo/Unary");
    other.next_of(DATA);
    let blocked = running.seen.block.lock().unwrap();
    call(&mut blocker, 1, "/test.Echo/Block");
    block_on(until("the shard stands still", || told_last(running) == Some("/test.Echo/Block")));
    told(running);
    arrive();
    call(&mut other, 3, "/test.Echo/Unary");
    drop(blocked);
    other.next_of(DATA);
    told(running)
}

fn told_last(running: &Running) -> Option<&'static str> {
    running.seen.told.lock().unwrap().last().copied()
}

fn before_the_call(told: &[&str]) -> usize {
    told.iter().position(|what| *what == "/test.Echo/Unary").expect("the other's call")
}

#[test]
fn a_call_waits_for_a_few_logins_and_not_for_all() {
    let running = run();
    let mut clients = patient(&running);
    let told = behind(&running, || {
        clients.iter_mut().for_each(|client| call(client, 3, "/test.Echo/Patient"));
    });
    assert!(before_the_call(&told) <= FIRST_MAX, "{} came first", before_the_call(&told));
    // All clients are served in the end.
    for client in &mut clients {
        assert_eq!(client.next_of(DATA).payload, message(0, b"a"));
    }
}

#[test]
fn a_call_waits_for_the_end_of_a_few_connections_and_not_of_all() {
    let running = run();
    let clients = patient(&running);
    let told = behind(&running, || drop(clients));
    let ended = before_the_call(&told);
    assert!(ended <= FIRST_MAX, "{ended} came first");
    block_on(until("all have ended", || running.seen.connected.load(SeqCst) == 0));
}

#[test]
fn requests_of_http1_that_may_wait_do() {
    const REQUEST: &[u8] = b"POST /patient HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n";
    let running = run();
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| http1::connect(running.address)).collect();
    for client in &mut clients {
        client.write_all(REQUEST).unwrap();
        assert_eq!(http1::read_answer(client).status, 200);
    }
    let told = behind(&running, || {
        clients.iter_mut().for_each(|client| client.write_all(REQUEST).unwrap());
    });
    assert!(before_the_call(&told) <= FIRST_MAX, "{} came first", before_the_call(&told));
    for client in &mut clients {
        assert_eq!(http1::read_answer(client).status, 200);
    }
}

#[test]
fn a_client_that_does_anything_else_does_not_wait() {
    let running = run();
    let mut clients = patient(&running);
    // This client has a call that may not wait, and a login on the same connection.
    let mut mixed = Connection::h2(running.address, &[]);
    call(&mut mixed, 1, "/test.Echo/Never");
    call(&mut mixed, 3, "/test.Echo/Patient");
    assert_eq!(mixed.next_of(DATA).payload, message(0, b"a"));
    let told = behind(&running, || {
        clients.iter_mut().for_each(|client| call(client, 3, "/test.Echo/Patient"));
        call(&mut mixed, 5, "/test.Echo/Big");
    });
    let came = told.iter().position(|what| *what == "/test.Echo/Big");
    assert!(came.is_some_and(|came| came <= FIRST_MAX), "{came:?}");
}

/// Starts clients with practically endless answers, each in a thread that reads until the server ends.
fn endless(running: &Running, begin: impl Fn(SocketAddr) -> std::net::TcpStream) {
    for _ in 0..8 {
        let mut stream = begin(running.address);
        std::thread::spawn(move || {
            let mut buffer = vec![0; 1 << 20];
            while stream.read(&mut buffer).is_ok_and(|n| n > 0) {}
        });
    }
}

/// Returns the number of answer pieces made before a call that was pending when the shard continued.
fn pieces_before_a_call(running: &Running) -> usize {
    let mut other = Connection::h2(running.address, &[]);
    call(&mut other, 1, "/test.Echo/Pieced");
    other.next_of(DATA);
    let mut before = 0;
    behind(running, || {
        call(&mut other, 3, "/test.Echo/Pieced");
        before = running.seen.pieces.load(SeqCst);
    });
    let answer = other.next_of(DATA).payload;
    let made: usize = String::from_utf8_lossy(&answer[5..]).parse().expect("a number");
    made - before
}

/// Checks that a call usually waits for at most `most` pieces. On a busy machine the network may report a
/// call one turn late, so some exceptions are allowed; if all turns ran before the call, every measurement
/// would be too high.
fn mostly_wait_for(running: &Running, most: usize, of: &str) {
    let waits: Vec<usize> = (0..20).map(|_| pieces_before_a_call(running)).collect();
    let late = waits.iter().filter(|pieces| **pieces > most).count();
    assert!(late <= 5, "pieces of {of} that came first: {waits:?}");
}

#[test]
fn a_call_waits_for_a_turn_or_two_of_long_answers_and_not_for_all() {
    let running = run();
    endless(&running, |address| {
        let mut client = Connection::greedy(address);
        client.call(1, "/test.Echo/Pieces", &[], &message(0, b"2000000000"));
        client.into_stream()
    });
    // Pieces of 10,000 bytes each.
    mostly_wait_for(&running, 80, "answers");
}

#[test]
fn a_call_waits_for_a_turn_or_two_of_long_pages_and_not_for_all() {
    // Reading from the client while a stream is written must not bypass the limit.
    for path in ["endless", "streamed"] {
        let running = run();
        endless(&running, |address| {
            let mut client = http1::connect(address);
            client.write_all(format!("GET /{path}/10000 HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).unwrap();
            client
        });
        mostly_wait_for(&running, 10, path);
    }
}

/// Returns the bytes examined for a crowd of simultaneous requests before a call that arrived after them.
fn looked_at_before_a_call(running: &Running, begin: impl FnOnce()) -> usize {
    let mut other = Connection::h2(running.address, &[]);
    call(&mut other, 1, "/test.Echo/Pieced");
    other.next_of(DATA);
    behind(running, || {
        begin();
        call(&mut other, 3, "/test.Echo/Pieced");
    });
    let answer = other.next_of(DATA).payload;
    String::from_utf8_lossy(&answer[5..]).parse().expect("a number")
}

/// Number of connections that begin long work at the same time.
const CROWD: usize = 60;
/// Limit in bytes: an eighth of a long turn for each connection, plus several long turns.
const LOOKED_AT_MAX: usize = CROWD * (8 << 10) + (512 << 10);

#[test]
fn first_slices_of_a_crowd_are_small() {
    let running = run();
    let mut crowd: Vec<_> = (0..CROWD).map(|_| Connection::h2(running.address, &[])).collect();
    crowd.iter_mut().for_each(|client| {
        call(client, 1, "/test.Echo/Unary");
        client.next_of(DATA);
    });
    let looked_at = looked_at_before_a_call(&running, || {
        crowd.iter_mut().for_each(|client| call(client, 3, "/test.Echo/LooksInSlices"));
    });
    assert!(looked_at <= LOOKED_AT_MAX, "{looked_at} bytes came first");
    crowd.iter_mut().for_each(|client| drop(client.next_of(DATA)));
}

#[test]
fn first_slices_of_a_crowd_of_http1_are_small() {
    let running = run();
    let mut crowd: Vec<_> = (0..CROWD).map(|_| http1::connect(running.address)).collect();
    let mut ask = |path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
        crowd.iter_mut().for_each(|client| client.write_all(request.as_bytes()).unwrap());
        crowd.iter_mut().map(|client| client.try_clone().unwrap()).collect::<Vec<_>>()
    };
    ask("/health").iter_mut().for_each(|client| assert_eq!(http1::read_answer(client).status, 200));
    let mut waiting = Vec::new();
    let looked_at = looked_at_before_a_call(&running, || waiting = ask("/looks"));
    assert!(looked_at <= LOOKED_AT_MAX, "{looked_at} bytes came first");
    waiting.iter_mut().for_each(|client| assert_eq!(http1::read_answer(client).status, 200));
}
