//! Memory of an idle connection, as counted by the allocator.

#![allow(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use http2::{Connection, Options, Reason};

use crate::ends::{End, REQUEST, RESPONSE, Seen, TRAILERS, call, exchange, pair};

struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
}

fn add(bytes: isize) {
    // Thread-local storage is not accessible while a thread ends.
    let _ = HELD.try_with(|held| held.set(held.get() + bytes));
}

// SAFETY: all calls are forwarded unchanged to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as isize);
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        add(-(layout.size() as isize));
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the bytes of memory that this thread holds.
fn held() -> isize {
    HELD.with(Cell::get)
}

/// Makes an answered call with a body in each direction.
fn whole_call(client: &mut End, server: &mut End) {
    let (at_client, key) = call(client, server, false);
    client.connection.send_message(at_client, 100, true, |out| out.extend([1; 100])).unwrap();
    exchange(client, server);
    server.connection.send_head(key, &RESPONSE, &[], false).unwrap();
    server.connection.send_message(key, 30, false, |out| out.extend([2; 30])).unwrap();
    server.connection.send_trailers(key, &TRAILERS, &[]).unwrap();
    let (seen, _) = exchange(client, server);
    assert!(matches!(seen.last(), Some(Seen::Trailers(..))));
}

#[test]
fn an_idle_connection_holds_half_a_kilobyte() {
    let options = Options::default();
    // Makes the thread allocate its spare buffers.
    let (mut client, mut server) = pair(&options, &options);
    whole_call(&mut client, &mut server);
    let mut ends = Vec::with_capacity(100);
    let before = held();
    for _ in 0..50 {
        let (mut client, mut server) = pair(&options, &options);
        for _ in 0..10 {
            whole_call(&mut client, &mut server);
        }
        client.connection.rest();
        server.connection.rest();
        ends.extend([client, server]);
    }
    let each = (held() - before) / 100;
    let whole = size_of::<Connection>() as isize + each - size_of::<Arc<Options>>() as isize;
    println!("an idle connection: {} bytes and {each} on the heap", size_of::<Connection>());
    assert!(each < 250 && whole < 600, "{each} bytes on the heap");
    // `heap_bytes` must match the allocator's count, except for the options held by the test.
    let said: usize = ends.iter().map(|end| end.connection.heap_bytes()).sum::<usize>() / 100;
    assert!((each - said as isize).abs() < 250, "{said} bytes, {each} in truth");
    // The connections still work.
    let server = ends.pop();
    let client = ends.pop();
    let (Some(mut client), Some(mut server)) = (client, server) else { panic!("there are a hundred") };
    whole_call(&mut client, &mut server);
}

#[test]
fn a_connection_that_was_busy_gives_its_memory_back() {
    let options = Options::default();
    let (mut client, mut server) = pair(&options, &options);
    let calls: Vec<_> = (0..1_000).map(|_| call(&mut client, &mut server, true).1).collect();
    for key in calls {
        server.connection.send_head(key, &RESPONSE, &[], false).unwrap();
        server.connection.send_message(key, 50_000, false, |out| out.extend([2; 50_000])).unwrap();
        server.connection.send_trailers(key, &TRAILERS, &[]).unwrap();
    }
    let busy = server.connection.heap_bytes();
    assert!(busy > 100_000);
    exchange(&mut client, &mut server);
    assert_eq!((client.connection.open_streams(), server.connection.open_streams()), (0, 0));
    client.connection.rest();
    server.connection.rest();
    assert!(client.connection.heap_bytes() < 700 && server.connection.heap_bytes() < 700);
}

/// The peer may be far away, and a connection goes idle soon; frames in flight may arrive after that.
#[test]
fn a_rest_forgets_no_stream_that_was_just_reset() {
    let (mut client, mut server) = pair(&Options::default(), &Options::default());
    let (at_client, key) = call(&mut client, &mut server, false);
    server.connection.reset(key, Reason::NO_ERROR);
    server.connection.rest();
    // The client sends this before it receives the reset.
    client.connection.send_trailers(at_client, &TRAILERS, &[]).unwrap();
    let under_way = client.sent();
    assert!(server.connection.next(&under_way, &mut 0).unwrap().is_none());
    exchange(&mut client, &mut server);
    whole_call(&mut client, &mut server);
}

#[test]
fn a_call_that_repeats_takes_no_memory_at_the_server() {
    let (mut client, mut server) = pair(&Options::default(), &Options::default());
    for _ in 0..10 {
        whole_call(&mut client, &mut server);
    }
    client.connection.open(&REQUEST, &[], true).unwrap();
    let request = client.sent();
    let mut at = 0;
    let before = held();
    let event = server.connection.next(&request, &mut at).unwrap().unwrap();
    let http2::Event::Head { stream, .. } = &event else { panic!("{event:?}") };
    server.connection.send_head(*stream, &RESPONSE, &[], false).unwrap();
    server.connection.send_message(*stream, 30, false, |out| out.extend([2; 30])).unwrap();
    server.connection.send_trailers(*stream, &TRAILERS, &[]).unwrap();
    drop(event);
    // The output buffer does not count, because it was a spare one.
    assert_eq!(held() - before, 0);
}
