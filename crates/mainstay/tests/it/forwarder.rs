//! A server in front of a member: forwards calls, records requests, and changes responses where a test says so.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use api::{Code, Status};
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use client::{CallOptions, Channel};
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use stdx::{First, race};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Decision about one request message.
pub enum Verdict {
    Pass,
    /// Forward the message directly before the next message of its call.
    Keep,
    /// Delay this message, and all messages after it, until the value is true.
    When(watch::Receiver<bool>),
    /// Do not forward the message; end the call with this status.
    Fail(Status),
    Answer(Vec<u8>),
}

/// A request message of a call.
#[derive(Clone)]
pub struct Asked {
    pub path: String,
    pub message: Bytes,
    pub requires_leader: bool,
}

type Rule = Arc<dyn Fn(&Asked) -> Verdict + Send + Sync>;

/// A forwarder that serves until the runtime ends.
pub struct Forwarder {
    pub url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Forwarder {
    /// Starts a forwarder in front of this member.
    pub async fn start(
        member: SocketAddr,
        rule: impl Fn(&Asked) -> Verdict + Send + Sync + 'static,
    ) -> Forwarder {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let asked = Arc::<Mutex<Vec<Asked>>>::default();
        let (rule, log): (Rule, _) = (Arc::new(rule), Arc::clone(&asked));
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serve(socket, member, Arc::clone(&rule), Arc::clone(&log)));
            }
        });
        Forwarder { url, asked }
    }

    /// Returns all requests so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("no panic").clone()
    }
}

async fn serve(socket: TcpStream, member: SocketAddr, rule: Rule, log: Arc<Mutex<Vec<Asked>>>) {
    let (Ok(mut connection), Ok(channel)) =
        (h2::server::handshake(socket).await, Channel::connect(member).await)
    else {
        return;
    };
    while let Some(Ok((request, respond))) = connection.accept().await {
        tokio::spawn(pass(request, respond, channel.clone(), Arc::clone(&rule), Arc::clone(&log)));
    }
}

async fn pass(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    channel: Channel,
    rule: Rule,
    log: Arc<Mutex<Vec<Asked>>>,
) {
    let path = request.uri().path().to_owned();
    let requires_leader = request.headers().contains_key("hasleader");
    let mut options = CallOptions::default();
    if requires_leader {
        options = options.with(HeaderName::from_static("hasleader"), HeaderValue::from_static("true"));
    }
    let head = Response::builder().header("content-type", "application/grpc").body(()).expect("a head");
    let Ok(mut stream) = respond.send_response(head, false) else { return };
    let (mut sender, mut receiver) = match channel.stream_with(&path, &options).await {
        Ok(opened) => opened,
        Err(status) => return end(&mut stream, &status),
    };
    let mut body = request.into_body();
    let mut buffer = BytesMut::new();
    let up = async {
        let mut kept = Vec::new();
        while let Some(data) = body.data().await {
            let Ok(data) = data else { return (Status::new(Code::Canceled, "gone"), None) };
            let _ = body.flow_control().release_capacity(data.len());
            buffer.extend_from_slice(&data);
            while let Some(message) = next_message(&mut buffer) {
                let asked = Asked { path: path.clone(), message: message.clone(), requires_leader };
                let verdict = rule(&asked);
                log.lock().expect("no panic").push(asked);
                match verdict {
                    Verdict::Pass => {}
                    Verdict::Keep => {
                        kept.push(message);
                        continue;
                    }
                    Verdict::When(mut signal) => {
                        let _ = signal.wait_for(|is_so| *is_so).await;
                    }
                    Verdict::Fail(status) => return (status, None),
                    Verdict::Answer(message) => return (Status::new(Code::Ok, ""), Some(message)),
                }
                kept.push(message);
                for message in kept.drain(..) {
                    if let Err(status) = sender.send(message).await {
                        return (status, None);
                    }
                }
            }
        }
        sender.finish();
        std::future::pending().await
    };
    let down = async {
        loop {
            match receiver.next().await {
                Ok(Some(message)) => send(&mut stream, &message),
                Ok(None) => return Status::new(Code::Ok, ""),
                Err(status) => return status,
            }
        }
    };
    match race(up, down).await {
        First::Left((status, answer)) => {
            if let Some(answer) = answer {
                send(&mut stream, &answer);
            }
            end(&mut stream, &status);
        }
        First::Right(status) => end(&mut stream, &status),
    }
}

fn next_message(buffer: &mut BytesMut) -> Option<Bytes> {
    let length = u32::from_be_bytes(buffer.get(1..5)?.try_into().ok()?) as usize;
    if buffer.len() < 5 + length {
        return None;
    }
    buffer.advance(5);
    Some(buffer.split_to(length).freeze())
}

fn send(stream: &mut SendStream<Bytes>, message: &[u8]) {
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).expect("a small message"));
    frame.put_slice(message);
    // The client may have closed the call.
    let _ = stream.send_data(frame.freeze(), false);
}

fn end(stream: &mut SendStream<Bytes>, status: &Status) {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from(status.code as u8 as u16));
    trailers.insert("grpc-message", HeaderValue::from_str(&status.message).expect("a plain text"));
    let _ = stream.send_trailers(trailers);
}
