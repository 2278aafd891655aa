//! Interoperability with the crate `h2` in both roles.

use std::collections::HashMap;
use std::future::poll_fn;
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use bytes::Bytes;
use http2::{Connection, Event, Input, Key, Options, Payload, Role, Template};
use testkit::Random;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};

use crate::ends::{REQUEST, RESPONSE, TRAILERS};

const CALLS: usize = 60;

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        tokio::time::timeout(testkit::TIMEOUT, test).await.expect("the two do not come to an end");
    });
}

/// Runs one end until the other has closed or no work is left.
async fn drive(
    connection: &mut Connection,
    stream: &mut DuplexStream,
    mut take: impl FnMut(&mut Connection, Event<'_>),
    is_done: impl Fn(&Connection) -> bool,
) {
    let mut input = Input::default();
    let mut was_blocked = false;
    loop {
        connection.begin_turn(Instant::now());
        // Reads and writes are polled together: two ends that only write would deadlock.
        let is_open = poll_fn(|cx| {
            let mut moved = false;
            loop {
                connection.gather();
                let output = connection.output();
                let mut slices = [IoSlice::new(&[]); 16];
                let count = output.slices(&mut slices);
                if count == 0 {
                    break;
                }
                match Pin::new(&mut *stream).poll_write_vectored(cx, &slices[..count]) {
                    Poll::Ready(Ok(n)) => output.advance(n),
                    Poll::Ready(Err(_)) => return Poll::Ready(false),
                    Poll::Pending => break,
                }
                moved = true;
            }
            if is_done(connection) || connection.is_over() {
                return Poll::Ready(false);
            }
            moved |= was_blocked && !connection.is_blocked();
            // Input left over from when the connection was blocked must be processed before new input.
            if !connection.is_blocked() && !moved {
                let mut space = ReadBuf::new(input.space());
                if Pin::new(&mut *stream).poll_read(cx, &mut space).is_ready() {
                    let n = space.filled().len();
                    input.filled(n);
                    return Poll::Ready(n > 0);
                }
                input.consume(0);
            }
            if moved { Poll::Ready(true) } else { Poll::Pending }
        })
        .await;
        if !is_open {
            return;
        }
        let mut at = 0;
        while let Some(event) = connection.next(input.unread(), &mut at).expect("h2 makes no mistakes") {
            take(connection, event);
        }
        was_blocked = connection.is_blocked();
        input.consume(at);
    }
}

fn bodies(seed: u64) -> Vec<Vec<u8>> {
    let mut random = Random::new(seed);
    let mut body = |_| {
        let len = [0, 1, 50, 5_000, 70_000, 300_000][random.index(6)];
        random.bytes(len)
    };
    (0..CALLS).map(&mut body).collect()
}

fn options(seed: u64) -> Options {
    match seed % 3 {
        0 => Options::default(),
        1 => Options {
            stream_window_bytes: 1_000,
            stream_window_bytes_max: 0,
            streams_max: 7,
            ..Options::default()
        },
        _ => Options { stream_window_bytes: 1 << 20, output_bytes_max: 1_000, ..Options::default() },
    }
}

/// Sends a body as the flow-control windows of h2 open.
async fn send_all(mut send: h2::SendStream<Bytes>, mut body: Bytes, trailers: Option<http::HeaderMap>) {
    while !body.is_empty() {
        send.reserve_capacity(body.len());
        let granted = poll_fn(|cx| send.poll_capacity(cx)).await.unwrap().unwrap().min(body.len());
        let part = body.split_to(granted);
        send.send_data(part, false).unwrap();
    }
    match trailers {
        Some(trailers) => send.send_trailers(trailers).unwrap(),
        None => send.send_data(Bytes::new(), true).unwrap(),
    }
}

async fn receive_all(body: &mut h2::RecvStream) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(part) = body.data().await {
        let part = part.unwrap();
        body.flow_control().release_capacity(part.len()).unwrap();
        all.extend(part);
    }
    all
}

async fn client_of_h2(stream: DuplexStream, seed: u64) {
    let mut builder = h2::client::Builder::new();
    if seed % 2 == 1 {
        builder.initial_window_size(2_000).header_table_size(200).max_frame_size(20_000);
    }
    let (send, connection) = builder.handshake::<_, Bytes>(stream).await.unwrap();
    tokio::task::spawn_local(async move { connection.await.unwrap() });
    let mut calls = Vec::new();
    for (number, body) in bodies(seed).into_iter().enumerate() {
        let send = send.clone();
        calls.push(tokio::task::spawn_local(async move {
            let mut send = send.ready().await.unwrap();
            let request = http::Request::post("http://localhost/path")
                .header("number", number)
                .header("te", "trailers")
                .header(if number % 2 == 0 { "even" } else { "odd" }, "x".repeat(number))
                .body(())
                .unwrap();
            let (response, sender) = send.send_request(request, false).unwrap();
            tokio::task::spawn_local(send_all(sender, Bytes::from(body.clone()), None));
            let response = response.await.unwrap();
            assert_eq!(response.status(), 200);
            assert_eq!(response.headers()["number"], number.to_string());
            let mut answer = response.into_body();
            assert!(receive_all(&mut answer).await == body, "call {number}");
            assert_eq!(answer.trailers().await.unwrap().unwrap()["grpc-status"], "0");
        }));
    }
    for call in calls {
        call.await.unwrap();
    }
}

#[test]
fn a_client_of_h2() {
    for seed in 0..6 {
        run(async {
            let (theirs, mut ours) = tokio::io::duplex(20_000);
            let client = tokio::task::spawn_local(client_of_h2(theirs, seed));
            let mut server = Connection::new(Role::Server, &Arc::new(options(seed)), Instant::now());
            let mut calls = 0;
            let echo = |server: &mut Connection, event: Event<'_>| match event {
                Event::Head { stream, fields, end } => {
                    calls += 1;
                    assert_eq!((fields.method(), fields.path(), end), (&b"POST"[..], &b"/path"[..], false));
                    let number = fields.get(b"number").unwrap();
                    server.send_head(stream, &RESPONSE, &[(b"number", number)], false).unwrap();
                }
                Event::Data { stream, bytes, end } => {
                    let part = Payload::from(Bytes::copy_from_slice(bytes));
                    server.send_data(stream, part, false).unwrap();
                    server.release(stream, bytes.len());
                    if end {
                        server.send_trailers(stream, &TRAILERS, &[]).unwrap();
                    }
                }
                Event::Settings | Event::GoAway { .. } | Event::Pinged | Event::Pong(_) => {}
                other => panic!("{other:?}"),
            };
            drive(&mut server, &mut ours, echo, |_| false).await;
            client.await.unwrap();
            assert_eq!((server.open_streams(), server.unreleased_bytes(), calls), (0, 0, CALLS));
        });
    }
}

async fn server_of_h2(stream: DuplexStream, seed: u64) {
    let mut builder = h2::server::Builder::new();
    if seed % 2 == 1 {
        builder.initial_window_size(2_000).max_concurrent_streams(5).max_frame_size(30_000);
    }
    let mut connection = builder.handshake::<_, Bytes>(stream).await.unwrap();
    while let Some(call) = connection.accept().await {
        let (request, mut respond) = call.unwrap();
        tokio::task::spawn_local(async move {
            let number = request.headers()["number"].clone();
            let mut body = request.into_body();
            let body = receive_all(&mut body).await;
            let response = http::Response::builder().header("number", &number).body(()).unwrap();
            let send = respond.send_response(response, false).unwrap();
            let trailers = [("grpc-status", "0"), ("number", number.to_str().unwrap())];
            let trailers = trailers.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
            send_all(send, Bytes::from(body), Some(http::HeaderMap::from_iter(trailers))).await;
        });
    }
}

#[derive(Default)]
struct Call {
    number: usize,
    came: Vec<u8>,
    trailers: usize,
}

#[test]
fn a_server_of_h2() {
    for seed in 0..6 {
        run(async {
            let (theirs, mut ours) = tokio::io::duplex(20_000);
            tokio::task::spawn_local(server_of_h2(theirs, seed));
            let mut client = Connection::new(Role::Client, &Arc::new(options(seed)), Instant::now());
            let bodies = bodies(seed);
            let mut next = 0;
            let mut open: HashMap<Key, Call> = HashMap::new();
            let (mut done, mut has_settings) = (0, false);
            let mut fill = |client: &mut Connection, open: &mut HashMap<Key, Call>| {
                while next < CALLS && client.may_open() {
                    let number = next.to_string();
                    let other = Template::new([
                        (":method", "PUT"),
                        (":scheme", "http"),
                        (":path", "/other"),
                        ("x", "y"),
                    ]);
                    let other = other.unwrap();
                    let template = if next % 3 == 0 { &other } else { &*REQUEST };
                    let key = client.open(template, &[(b"number", number.as_bytes())], false).unwrap();
                    let body = Bytes::from(bodies[next].clone());
                    client.send_data(key, Payload::from(body), next % 2 == 0).unwrap();
                    if next % 2 == 1 {
                        client.send_trailers(key, &TRAILERS, &[]).unwrap();
                    }
                    open.insert(key, Call { number: next, ..Call::default() });
                    next += 1;
                }
            };
            // Streams are opened only after the server has announced its limit.
            let finished = std::cell::Cell::new(0);
            let take = |client: &mut Connection, event: Event<'_>| {
                match event {
                    Event::Head { stream, fields, .. } => {
                        assert_eq!(fields.status(), Some(200));
                        assert_eq!(fields.get(b"number"), Some(open[&stream].number.to_string().as_bytes()));
                    }
                    Event::Data { stream, bytes, .. } => {
                        open.get_mut(&stream).unwrap().came.extend(bytes);
                        client.release(stream, bytes.len());
                    }
                    Event::Trailers { stream, fields } => {
                        assert_eq!(fields.get(b"grpc-status"), Some(&b"0"[..]));
                        let mut call = open.remove(&stream).unwrap();
                        call.trailers += 1;
                        assert_eq!(fields.get(b"number"), Some(call.number.to_string().as_bytes()));
                        assert!(call.came == bodies[call.number], "call {}", call.number);
                        done += 1;
                        finished.set(done);
                    }
                    Event::Settings => has_settings = true,
                    Event::Pinged | Event::Pong(_) => {}
                    other => panic!("{other:?}"),
                }
                assert!(has_settings);
                fill(client, &mut open);
            };
            drive(&mut client, &mut ours, take, |_| finished.get() == CALLS).await;
            assert_eq!((finished.get(), client.open_streams(), client.unreleased_bytes()), (CALLS, 0, 0));
        });
    }
}

/// Requests that `h2` refuses are refused here too.
#[test]
fn both_refuse_the_same_requests() {
    use crate::ends::{End, Seen};
    use crate::frames::*;
    let mut random = Random::new(17);
    // `h2` requires authorities and paths to be valid URI parts, which HTTP/2 does not.
    let fields = [
        (":method", "PUT"),
        (":path", "/"),
        (":scheme", "http"),
        (":scheme", ""),
        (":authority", "localhost"),
        (":status", "200"),
        (":unknown", "x"),
        ("x", "a b"),
        ("x", ""),
        ("x", "a\0b"),
        ("X", "y"),
        ("te", "trailers"),
        ("te", "gzip"),
        ("connection", "close"),
        ("transfer-encoding", "chunked"),
        ("host", "localhost"),
        ("content-length", "7"),
    ];
    let mut refused = 0;
    for _ in 0..300 {
        let mut block = if random.percent(70) { GET.to_vec() } else { GET[random.index(3)..].to_vec() };
        for _ in 0..random.index(3) {
            let (name, value) = random.pick(&fields);
            block.extend(field(name, value));
        }
        let shown = String::from_utf8_lossy(&block).into_owned();
        let mut server = End::greeted(&Options::default());
        let ours = server.take(&frame(HEADERS, END_HEADERS, 1, &block)).unwrap();
        let ours = matches!(ours[..], [Seen::Head(..)]);
        let theirs = std::rc::Rc::new(std::cell::Cell::new(false));
        let seen = theirs.clone();
        run(async move {
            let (mut client, server) = tokio::io::duplex(20_000);
            client.write_all(&[greeting(), frame(HEADERS, END_HEADERS, 1, &block)].concat()).await.unwrap();
            let mut server = h2::server::handshake(server).await.unwrap();
            // All input is already available.
            for _ in 0..3 {
                let polled = poll_fn(|cx| Poll::Ready(server.poll_accept(cx))).await;
                seen.set(seen.get() || matches!(polled, Poll::Ready(Some(Ok(_)))));
            }
        });
        refused += usize::from(!ours);
        assert_eq!(ours, theirs.get(), "{shown:?}");
    }
    assert!((50..250).contains(&refused), "{refused}");
}
