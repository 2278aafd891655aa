//! A gRPC server on loopback that responds from a script and records its requests.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use api::Code;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Request, Response};
use prost::Message;
use tokio::net::{TcpListener, TcpStream};

/// Response to one request message.
#[derive(Clone, Debug)]
pub struct Reply {
    messages: Vec<Vec<u8>>,
    /// Status at the end; `None`: the stream stays open.
    end: Option<(Code, String)>,
}

/// Replies by path, in order; the last reply of a path is repeated.
#[derive(Clone, Debug, Default)]
pub struct Script {
    replies: HashMap<String, VecDeque<Reply>>,
}

impl Script {
    /// Adds a reply of one message and a successful end.
    pub fn says(mut self, path: &str, message: &impl Message) -> Script {
        self.push(
            path,
            Reply { messages: vec![message.encode_to_vec()], end: Some((Code::Ok, String::new())) },
        );
        self
    }

    /// Adds a reply that fails.
    pub fn fails(mut self, path: &str, code: Code, text: &str) -> Script {
        self.push(path, Reply { messages: Vec::new(), end: Some((code, text.to_owned())) });
        self
    }

    /// Adds a reply of messages, after which the stream ends successfully or stays open.
    pub fn streams<M: Message>(mut self, path: &str, messages: &[M], ends: bool) -> Script {
        let messages = messages.iter().map(Message::encode_to_vec).collect();
        self.push(path, Reply { messages, end: ends.then(|| (Code::Ok, String::new())) });
        self
    }

    /// Adds the replies of another script for other paths.
    pub fn and(mut self, other: Script) -> Script {
        for (path, replies) in other.replies {
            self.replies.entry(path).or_insert(replies);
        }
        self
    }

    fn push(&mut self, path: &str, reply: Reply) {
        self.replies.entry(path.to_owned()).or_default().push_back(reply);
    }

    fn take(&mut self, path: &str) -> Reply {
        let replies = self.replies.get_mut(path);
        let reply = replies.and_then(|r| if r.len() > 1 { r.pop_front() } else { r.front().cloned() });
        reply.unwrap_or_else(|| {
            let (service, method) = path[1..].split_once('/').unwrap_or((path, ""));
            let text = format!("unknown method {method} for service {service}");
            Reply { messages: Vec::new(), end: Some((Code::Unimplemented, text)) }
        })
    }
}

/// Path and message of each request.
type Requests = Arc<Mutex<Vec<(String, Vec<u8>)>>>;

/// The running server; it stops when dropped.
pub struct FakeServer {
    pub address: SocketAddr,
    requests: Requests,
    _stop: std::sync::mpsc::Sender<()>,
}

impl FakeServer {
    pub fn start(script: Script) -> FakeServer {
        let requests = Requests::default();
        let (seen, script) = (requests.clone(), Arc::new(Mutex::new(script)));
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        std::thread::spawn(move || {
            let inner = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            inner.block_on(async move {
                let listener = TcpListener::from_std(listener).unwrap();
                tokio::spawn(async move {
                    while let Ok((socket, _)) = listener.accept().await {
                        tokio::spawn(serve(socket, script.clone(), seen.clone()));
                    }
                });
                let over = tokio::task::spawn_blocking(move || stopped.recv());
                // An error means that the sender was dropped, which is the signal to stop.
                let _ = over.await;
            });
        });
        FakeServer { address, requests, _stop: stop }
    }

    /// Returns the path and message of every request so far.
    pub fn requests(&self) -> Vec<(String, Vec<u8>)> {
        self.requests.lock().unwrap().clone()
    }
}

async fn serve(socket: TcpStream, script: Arc<Mutex<Script>>, seen: Requests) {
    let Ok(mut connection) = h2::server::handshake(socket).await else { return };
    while let Some(Ok((request, respond))) = connection.accept().await {
        tokio::spawn(answer(request, respond, script.clone(), seen.clone()));
    }
}

async fn answer(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    script: Arc<Mutex<Script>>,
    seen: Requests,
) {
    let path = request.uri().path().to_owned();
    let mut body = request.into_body();
    let head = Response::builder().header("content-type", "application/grpc").body(()).unwrap();
    let Ok(mut stream) = respond.send_response(head, false) else { return };
    let mut buffer = BytesMut::new();
    while let Some(Ok(data)) = body.data().await {
        let _ = body.flow_control().release_capacity(data.len());
        buffer.extend_from_slice(&data);
        while let Some(message) = next_message(&mut buffer) {
            seen.lock().unwrap().push((path.clone(), message));
            let reply = script.lock().unwrap().take(&path);
            if send(&mut stream, reply).is_none() {
                return;
            }
        }
    }
}

fn next_message(buffer: &mut BytesMut) -> Option<Vec<u8>> {
    let length = u32::from_be_bytes(buffer.get(1..5)?.try_into().ok()?) as usize;
    if buffer.len() < 5 + length {
        return None;
    }
    buffer.advance(5);
    Some(buffer.split_to(length).to_vec())
}

/// Sends a reply; returns `None` if the stream has ended.
fn send(stream: &mut SendStream<Bytes>, reply: Reply) -> Option<()> {
    for message in reply.messages {
        let mut frame = BytesMut::new();
        frame.put_u8(0);
        frame.put_u32(u32::try_from(message.len()).unwrap());
        frame.put_slice(&message);
        stream.send_data(frame.freeze(), false).ok()?;
    }
    let Some((code, text)) = reply.end else { return Some(()) };
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from(code as u8 as u16));
    trailers.insert("grpc-message", HeaderValue::from_str(&text).unwrap());
    let _ = stream.send_trailers(trailers);
    None
}
