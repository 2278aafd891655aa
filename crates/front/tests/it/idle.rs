//! Memory of an open, idle connection, as counted by the allocator of its shard's thread.

#![allow(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fmt::Write as _;
use std::net::SocketAddr;

use accounting::Budget;
use mainstay_front::Options;
use testkit::http2::{
    Connection, DATA, END_HEADERS, HEADERS, RST_STREAM, SETTINGS, WINDOW_UPDATE, frame, indexed_block,
    message,
};
use testkit::{TIMEOUT, eventually};

use crate::echo::{block_on, run, run_with};

/// Allocations of this size and above are counted together.
const SIZES: usize = 4096;

struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    /// Number of live allocations of this thread, by size.
    static PIECES: [Cell<isize>; SIZES] = const { [const { Cell::new(0) }; SIZES] };
}

fn add(layout: Layout, pieces: isize) {
    // Thread-local values are not accessible while a thread ends.
    let _ = HELD.try_with(|held| held.set(held.get() + pieces * layout.size() as isize));
    let _ = PIECES.try_with(|all| {
        let of_size = &all[layout.size().min(SIZES - 1)];
        of_size.set(of_size.get() + pieces);
    });
}

// SAFETY: all calls are forwarded unchanged to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout, 1);
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        add(layout, -1);
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the bytes that this thread holds, followed by size and number for each size with live allocations.
pub fn held() -> String {
    let mut text = HELD.with(Cell::get).to_string();
    let pieces: Vec<isize> = PIECES.with(|all| all.iter().map(Cell::get).collect());
    for (size, pieces) in pieces.into_iter().enumerate().filter(|(_, pieces)| *pieces != 0) {
        let _ = write!(text, " {size}:{pieces}");
    }
    text
}

/// Asks a server for the memory of its shard: bytes, and the listing of allocations by size.
fn asked(asking: &mut Connection, stream: &mut u32) -> (isize, String) {
    asking.call(*stream, "/test.Echo/Memory", &[], &message(0, b""));
    *stream += 2;
    let payload = asking.next_of(DATA).payload;
    asking.send(&frame(WINDOW_UPDATE, 0, 0, &(payload.len() as u32).to_be_bytes()));
    let text = String::from_utf8_lossy(&payload[5..]).into_owned();
    let bytes = text.split(' ').next().and_then(|bytes| bytes.parse().ok()).expect("a number");
    (bytes, text)
}

const BIDI: &str = "/test.Echo/Bidi";

/// Encodes the head of a call like a client that sends it for the first time.
fn head(path: &str) -> Vec<u8> {
    indexed_block(&[
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "127.0.0.1:2379"),
        ("content-type", "application/grpc"),
        ("user-agent", "grpc-go/1.71.1"),
        ("te", "trailers"),
        ("grpc-accept-encoding", "gzip"),
    ])
}

fn call(connection: &mut Connection, stream: u32, path: &str, flags: u8) {
    let mut frames = frame(HEADERS, END_HEADERS, stream, &head(path));
    frames.extend(frame(DATA, flags, stream, &message(0, b"a")));
    connection.send(&frames);
    assert_eq!(connection.next_of(DATA).payload, message(0, b"a"));
}

fn connect(address: SocketAddr) -> Connection {
    let mut connection = Connection::h2(address, &[]);
    connection.send(&frame(SETTINGS, 1, 0, &[]));
    connection
}

/// Checks that each of many connections holds at most `bytes_max` bytes once it is idle, after a call on each
/// of `streams`. The streams of a bidirectional call stay open.
fn holds(what: &str, bytes_max: isize, path: &str, streams: &[u32]) {
    let is_open = path == BIDI;
    let begin = |connection: &mut Connection| {
        streams.iter().for_each(|stream| call(connection, *stream, path, u8::from(!is_open)));
    };
    const CONNECTIONS: isize = 500;
    let running = run();
    let mut asking = connect(running.address);
    let mut stream = 1;
    let mut ask = || asked(&mut asking, &mut stream);
    // Makes the shard allocate its buffers and tables.
    let mut first = connect(running.address);
    begin(&mut first);
    let (before, _) = ask();
    let mut open = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut connection = connect(running.address);
        begin(&mut connection);
        open.push(connection);
    }
    let last = Cell::new(0);
    let mut text = String::new();
    block_on(async {
        let end = tokio::time::Instant::now() + TIMEOUT / 2;
        eventually(what, TIMEOUT, async || {
            let (bytes, sizes) = ask();
            last.set((bytes - before) / CONNECTIONS);
            text = sizes;
            (last.get() <= bytes_max || tokio::time::Instant::now() > end).then_some(())
        })
        .await;
    });
    let many: Vec<&str> = text
        .split(' ')
        .skip(1)
        .filter(|of_size| {
            of_size
                .split(':')
                .nth(1)
                .and_then(|n| n.parse::<isize>().ok())
                .is_some_and(|n| n > CONNECTIONS / 2)
        })
        .collect();
    println!("{what}: {} bytes each; pieces by size: {}", last.get(), many.join(" "));
    assert!(last.get() <= bytes_max, "{what} holds {} bytes", last.get());
    // The connections still work.
    let last = open.last_mut().expect("many are open");
    last.call(101, "/test.Echo/Unary", &[], &message(0, b"b"));
    assert_eq!(last.next_of(DATA).payload, message(0, b"b"));
    for stream in streams.iter().filter(|_| is_open) {
        last.send(&frame(DATA, 0, *stream, &message(0, b"c")));
        assert_eq!(last.next_of(DATA).payload, message(0, b"c"));
    }
}

#[test]
fn a_connection_that_is_idle() {
    holds("an idle connection", 1_420, "/test.Echo/Unary", &[1]);
}

#[test]
fn a_connection_with_an_open_stream() {
    holds("a connection with a stream", 2_270, BIDI, &[1]);
}

#[test]
fn a_connection_with_two_open_streams() {
    holds("a connection with two streams", 3_070, BIDI, &[1, 3]);
}

#[test]
fn what_a_rest_leaves_of_many_calls_is_charged() {
    const STREAMS: u32 = 2_000;
    let budget = Budget::new(1 << 30);
    let running = run_with(Options { shards: 1, budget: budget.clone(), ..Options::default() });
    let (mut asking, mut stream) = (connect(running.address), 1);
    let mut connection = connect(running.address);
    call(&mut connection, 1, BIDI, 0);
    let (before, _) = asked(&mut asking, &mut stream);
    let charged_before = budget.held_bytes() as isize;
    for number in 1..STREAMS {
        call(&mut connection, 2 * number + 1, BIDI, 0);
    }
    // Only a call in the middle stays open: going idle frees the slots behind it.
    for number in (0..STREAMS).filter(|number| *number != STREAMS / 2) {
        connection.send(&frame(RST_STREAM, 0, 2 * number + 1, &8u32.to_be_bytes()));
    }
    let charged_open = budget.held_bytes();
    block_on(eventually("the connection rests", TIMEOUT, async || {
        let (bytes, _) = asked(&mut asking, &mut stream);
        let (held, charged) = (bytes - before, budget.held_bytes() as isize - charged_before);
        assert!(held <= charged + (64 << 10), "{held} bytes are held, and {charged} charged");
        // At least one kilobyte per slot.
        (budget.held_bytes() + (512 << 10) < charged_open).then_some(())
    }));
}
