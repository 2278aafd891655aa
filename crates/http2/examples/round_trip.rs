//! CPU time of a unary gRPC call at each end, without a network: a request of 300 bytes and a response of 30,
//! ten calls at once; first for two ends of this crate, then for two of `h2`. Prints medians over rounds of
//! ten calls, so that other processes have little influence.
//!
//! `cargo run --release -p mainstay-http2 --example round_trip`

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http2::{Connection, Event, Input, Options, Payload, Role, Template};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const ROUNDS: u32 = 30_000;
const AT_ONCE: u32 = 10;
const REQUEST_BYTES: usize = 300;
const ANSWER_BYTES: usize = 30;
const PATH: &str = "/etcdserverpb.KV/Put";

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    for _ in 0..3 {
        show("http2", ours()?);
        show("h2", theirs()?);
    }
    Ok(())
}

/// Times of each round at the client and at the server.
type Times = (Vec<Duration>, Vec<Duration>);

fn show(name: &str, (mut client, mut server): Times) {
    let each = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        times[times.len() / 2].as_nanos() / u128::from(AT_ONCE)
    };
    println!("{name:6} client {:5} ns  server {:5} ns", each(&mut client), each(&mut server));
}

/// Moves output to the other end's input, in place of the kernel.
fn carry(from: &mut Connection, to: &mut Input) {
    from.gather();
    let output = from.output();
    while !output.is_empty() {
        let mut slices = [IoSlice::new(&[]); 16];
        let count = output.slices(&mut slices);
        let (mut n, space) = (0, to.space());
        for slice in &slices[..count] {
            let part = slice.len().min(space.len() - n);
            space[n..n + part].copy_from_slice(&slice[..part]);
            n += part;
        }
        to.filled(n);
        output.advance(n);
    }
}

fn ours() -> Result<Times, Failure> {
    let request = Template::new([
        (":method", "POST"),
        (":scheme", "http"),
        (":path", PATH),
        (":authority", "127.0.0.1:2379"),
        ("content-type", "application/grpc"),
        ("user-agent", "grpc-go/1.71.1"),
        ("te", "trailers"),
    ])?;
    let head = Template::new([(":status", "200"), ("content-type", "application/grpc")])?;
    let trailers = Template::new([("grpc-status", "0")])?;
    let options = Arc::new(Options::default());
    let now = Instant::now();
    let mut client = Connection::new(Role::Client, &options, now);
    let mut server = Connection::new(Role::Server, &options, now);
    let (mut to_client, mut to_server) = (Input::default(), Input::default());
    let body = Bytes::from(vec![7; REQUEST_BYTES]);
    let (mut of_client, mut of_server, mut done) = (Vec::new(), Vec::new(), 0);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        client.begin_turn(start);
        for _ in 0..AT_ONCE {
            let key = client.open(&request, &[], false)?;
            client.send_data(key, Payload::message(body.clone(), false), true)?;
        }
        carry(&mut client, &mut to_server);
        let middle = Instant::now();
        server.begin_turn(middle);
        let mut at = 0;
        while let Some(event) = server.next(to_server.unread(), &mut at)? {
            match event {
                Event::Head { fields, .. } => assert_eq!(fields.path(), PATH.as_bytes()),
                Event::Data { stream, bytes, end: true } => {
                    let message = Bytes::copy_from_slice(&bytes[5..]);
                    server.release(stream, bytes.len());
                    server.send_head(stream, &head, &[], false)?;
                    server.send_message(stream, ANSWER_BYTES, false, |out| {
                        out.extend_from_slice(&message[..ANSWER_BYTES]);
                    })?;
                    server.send_trailers(stream, &trailers, &[])?;
                }
                _ => {}
            }
        }
        to_server.consume(at);
        carry(&mut server, &mut to_client);
        let last = Instant::now();
        let mut at = 0;
        while let Some(event) = client.next(to_client.unread(), &mut at)? {
            match event {
                Event::Data { stream, bytes, .. } => client.release(stream, bytes.len()),
                Event::Trailers { fields, .. } => {
                    assert_eq!(fields.get(b"grpc-status"), Some(&b"0"[..]));
                    done += 1;
                }
                _ => {}
            }
        }
        to_client.consume(at);
        of_server.push(last - middle);
        of_client.push((middle - start) + last.elapsed());
    }
    assert_eq!(done, ROUNDS * AT_ONCE);
    Ok((of_client, of_server))
}

/// One end of an in-memory pipe that always accepts bytes.
struct Pipe {
    from: Rc<RefCell<VecDeque<u8>>>,
    to: Rc<RefCell<VecDeque<u8>>>,
}

impl AsyncRead for Pipe {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut from = self.from.borrow_mut();
        if from.is_empty() {
            return Poll::Pending;
        }
        let n = {
            let (first, _) = from.as_slices();
            let n = first.len().min(into.remaining());
            into.put_slice(&first[..n]);
            n
        };
        from.drain(..n);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.to.borrow_mut().extend(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn theirs() -> Result<Times, Failure> {
    let (one, other) = (Rc::new(RefCell::default()), Rc::new(RefCell::default()));
    let at_client = Pipe { from: Rc::clone(&one), to: Rc::clone(&other) };
    let at_server = Pipe { from: other, to: one };
    let mut cx = Context::from_waker(Waker::noop());
    let (mut greeting, mut greeted) =
        (pin!(h2::client::handshake(at_client)), pin!(h2::server::handshake(at_server)));
    let (mut client, mut server) = (None, None);
    while client.is_none() || server.is_none() {
        if client.is_none()
            && let Poll::Ready(made) = greeting.as_mut().poll(&mut cx)
        {
            client = Some(made?);
        }
        if server.is_none()
            && let Poll::Ready(made) = greeted.as_mut().poll(&mut cx)
        {
            server = Some(made?);
        }
    }
    let (Some((mut send, mut client)), Some(mut server)) = (client, server) else {
        return Err("the two have not greeted each other".into());
    };
    let framed = |len: usize| {
        let mut message = vec![0; 5];
        message[4] = len as u8;
        message.resize(5 + len, 7);
        Bytes::from(message)
    };
    let (request_body, answer) = (framed(REQUEST_BYTES), framed(ANSWER_BYTES));
    let uri: http::Uri = format!("http://127.0.0.1:2379{PATH}").parse()?;
    let grpc = http::HeaderValue::from_static("application/grpc");
    let (mut of_client, mut of_server, mut done) = (Vec::new(), Vec::new(), 0);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let mut calls = Vec::new();
        for _ in 0..AT_ONCE {
            let mut request = http::Request::new(());
            *request.method_mut() = http::Method::POST;
            *request.uri_mut() = uri.clone();
            *request.version_mut() = http::Version::HTTP_2;
            let headers = request.headers_mut();
            headers.insert("content-type", grpc.clone());
            headers.insert("user-agent", http::HeaderValue::from_static("grpc-go/1.71.1"));
            headers.insert("te", http::HeaderValue::from_static("trailers"));
            let (response, mut body) = send.send_request(request, false)?;
            body.send_data(request_body.clone(), true)?;
            calls.push((response, None::<h2::RecvStream>));
        }
        let _ = Pin::new(&mut client).poll(&mut cx)?;
        let middle = Instant::now();
        let mut open = Vec::new();
        while let Poll::Ready(Some(call)) = server.poll_accept(&mut cx) {
            let (request, respond) = call?;
            assert_eq!(request.uri().path(), PATH);
            open.push((request.into_body(), respond));
        }
        for (mut body, mut respond) in open {
            let Poll::Ready(Some(part)) = body.poll_data(&mut cx) else { return Err("no body".into()) };
            let part = part?;
            body.flow_control().release_capacity(part.len())?;
            let mut response = http::Response::new(());
            response.headers_mut().insert("content-type", grpc.clone());
            let mut send = respond.send_response(response, false)?;
            send.send_data(answer.clone(), false)?;
            let mut trailers = http::HeaderMap::with_capacity(1);
            trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
            send.send_trailers(trailers)?;
        }
        let _ = server.poll_accept(&mut cx);
        let last = Instant::now();
        let _ = Pin::new(&mut client).poll(&mut cx)?;
        for (response, body) in &mut calls {
            if let Poll::Ready(made) = Pin::new(response).poll(&mut cx) {
                *body = Some(made?.into_body());
            }
            let Some(body) = body else { return Err("no answer".into()) };
            while let Poll::Ready(Some(part)) = body.poll_data(&mut cx) {
                body.flow_control().release_capacity(part?.len())?;
            }
            let Poll::Ready(Ok(Some(trailers))) = body.poll_trailers(&mut cx) else {
                return Err("no trailers".into());
            };
            assert_eq!(trailers["grpc-status"], "0");
            done += 1;
        }
        drop(calls);
        of_server.push(last - middle);
        of_client.push((middle - start) + last.elapsed());
    }
    assert_eq!(done, ROUNDS * AT_ONCE);
    Ok((of_client, of_server))
}
