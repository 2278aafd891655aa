//! gRPC server for tests. Each test supplies the function that handles its calls.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use api::Status;
use bytes::{BufMut, Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Response};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// One call, on the server's side.
pub struct Call {
    pub path: String,
    pub headers: HeaderMap,
    pub requests: Requests,
    answer: SendResponse<Bytes>,
    stream: Option<SendStream<Bytes>>,
    hang_up: Arc<Notify>,
    go_away: Arc<Notify>,
}

/// Requests that the client sends in a call.
pub struct Requests {
    body: RecvStream,
    buffer: BytesMut,
}

impl Requests {
    pub async fn next<M: Message + Default>(&mut self) -> Option<M> {
        loop {
            if let [_, a, b, c, d, ..] = self.buffer[..] {
                let len = u32::from_be_bytes([a, b, c, d]) as usize;
                if self.buffer.len() >= 5 + len {
                    let frame = self.buffer.split_to(5 + len);
                    return Some(M::decode(&frame[5..]).unwrap());
                }
            }
            let payload = self.body.data().await?.ok()?;
            let _ = self.body.flow_control().release_capacity(payload.len());
            self.buffer.extend_from_slice(&payload);
        }
    }
}

impl Call {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Sends one response. The call stays open.
    pub fn send(&mut self, message: &impl Message) {
        let mut frame = BytesMut::new();
        frame.put_u8(0);
        frame.put_u32(message.encoded_len() as u32);
        message.encode(&mut frame).unwrap();
        let stream = self.stream.get_or_insert_with(|| {
            let head = Response::builder().header("content-type", "application/grpc").body(()).unwrap();
            self.answer.send_response(head, false).unwrap()
        });
        // An error means that the client is gone, which is not an error of the test.
        let _ = stream.send_data(frame.freeze(), false);
    }

    /// Ends the call with OK or with a status.
    pub fn end(mut self, result: Result<(), Status>) {
        let mut trailers = HeaderMap::new();
        let status = result.err();
        let code = status.as_ref().map_or(0, |status| status.code as u32);
        trailers.insert("grpc-status", code.into());
        if let Some(status) = status {
            trailers.insert("grpc-message", status.message.parse().unwrap());
        }
        match &mut self.stream {
            Some(stream) => _ = stream.send_trailers(trailers),
            None => {
                let mut head = Response::new(());
                *head.headers_mut() = trailers;
                let _ = self.answer.send_response(head, true);
            }
        }
    }

    pub fn reply(mut self, result: Result<impl Message, Status>) {
        let result = result.map(|message| self.send(&message));
        self.end(result);
    }

    /// Resets the stream with REFUSED_STREAM: the server did not process the call.
    pub fn refuse(mut self) {
        self.answer.send_reset(Reason::REFUSED_STREAM);
    }

    /// Closes the connection of this call immediately.
    pub fn hang_up(self) {
        self.hang_up.notify_one();
    }

    /// Sends GOAWAY: calls that have started on this connection may finish, and no new calls are accepted.
    pub fn go_away(&self) {
        self.go_away.notify_one();
    }

    /// Waits until the client cancels the call.
    pub async fn cancelled(&mut self) {
        match &mut self.stream {
            Some(stream) => _ = poll_fn(|cx| stream.poll_reset(cx)).await,
            None => _ = poll_fn(|cx| self.answer.poll_reset(cx)).await,
        }
    }
}

/// gRPC server that passes every call to the same function.
pub struct Server {
    pub address: SocketAddr,
    task: JoinHandle<()>,
    calls: Arc<Mutex<Vec<String>>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

type Handler<F> = Arc<dyn Fn(Call) -> F + Send + Sync>;

impl Server {
    pub async fn start<F: Future<Output = ()> + Send + 'static>(
        handle: impl Fn(Call) -> F + Send + Sync + 'static,
    ) -> Server {
        Server::start_with(None, handle).await
    }

    pub async fn start_with<F: Future<Output = ()> + Send + 'static>(
        tls: Option<TlsAcceptor>,
        handle: impl Fn(Call) -> F + Send + Sync + 'static,
    ) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Server::on(listener, tls, handle)
    }

    pub fn on<F: Future<Output = ()> + Send + 'static>(
        listener: TcpListener,
        tls: Option<TlsAcceptor>,
        handle: impl Fn(Call) -> F + Send + Sync + 'static,
    ) -> Server {
        let address = listener.local_addr().unwrap();
        let calls = Arc::new(Mutex::new(Vec::new()));
        let handle: Handler<F> = Arc::new(handle);
        let seen = calls.clone();
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (tls, handle, seen) = (tls.clone(), handle.clone(), seen.clone());
                connections.spawn(async move {
                    match tls {
                        None => serve(stream, handle, seen).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                serve(stream, handle, seen).await;
                            }
                        }
                    }
                });
            }
        });
        Server { address, task, calls }
    }

    /// Paths of all calls so far.
    pub fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }

    pub fn endpoint(&self) -> String {
        self.address.to_string()
    }
}

/// Serves one connection of a Unix socket.
pub async fn serve_unix<F: Future<Output = ()> + Send + 'static>(
    listener: UnixListener,
    handle: impl Fn(Call) -> F + Send + Sync + 'static,
) {
    let (stream, _) = listener.accept().await.unwrap();
    serve(stream, Arc::new(handle), Arc::default()).await;
}

async fn serve<F: Future<Output = ()> + Send + 'static>(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    handle: Handler<F>,
    seen: Arc<Mutex<Vec<String>>>,
) {
    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
    let hang_up = Arc::new(Notify::new());
    let go_away = Arc::new(Notify::new());
    let mut going = std::pin::pin!(go_away.notified());
    let mut is_going = false;
    let mut calls = tokio::task::JoinSet::new();
    let mut hung_up = std::pin::pin!(hang_up.notified());
    loop {
        let next = poll_fn(|cx| {
            if hung_up.as_mut().poll(cx).is_ready() {
                return std::task::Poll::Ready(None);
            }
            if !is_going && going.as_mut().poll(cx).is_ready() {
                is_going = true;
                connection.graceful_shutdown();
            }
            connection.poll_accept(cx)
        });
        let Some(Ok((request, answer))) = next.await else { return };
        let (parts, body) = request.into_parts();
        let path = parts.uri.path().to_owned();
        seen.lock().unwrap().push(path.clone());
        let requests = Requests { body, buffer: BytesMut::new() };
        let (hang_up, go_away) = (hang_up.clone(), go_away.clone());
        calls.spawn(handle(Call {
            path,
            headers: parts.headers,
            requests,
            answer,
            stream: None,
            hang_up,
            go_away,
        }));
    }
}
