//! Sends arbitrary bytes to the client port: as gRPC frames, and as whole connections of HTTP/2 and HTTP/1.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use api::{Code, Status};
use bytes::Bytes;
use front::{
    Answer, Head, Inbound, Kind, LocalBoxFuture, Method, Options, Outbound, Service, Unary, fuzzing,
};
use tokio::io::AsyncWriteExt as _;

use crate::script::{Scribe, Script, pieces};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Time within which a connection must end after its client has closed it. The limit is far above the usual
/// time.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum number of bytes in flight from the client to the server.
pub(crate) const PIPE_BYTES: usize = 16 * 1024;
/// Maximum size of a gRPC message in bytes. It is small, so that inputs can exceed it.
const MESSAGE_BYTES_MAX: usize = 4096;

/// Fuzz target for gRPC framing: the decoded messages must be the same however the bytes are divided into
/// pieces.
pub fn run_frames(data: &[u8]) {
    let mut script = Script::new(data);
    let (cut, gzip) = (script.u8(), script.flip());
    let bytes = script.rest();
    let whole = fuzzing::messages(pieces(bytes, 0), MESSAGE_BYTES_MAX, gzip);
    let cut = fuzzing::messages(pieces(bytes, cut), MESSAGE_BYTES_MAX, gzip);
    assert_eq!(whole, cut);
    assert!(whole.0.iter().all(|message| message.len() <= MESSAGE_BYTES_MAX));
}

/// Returns seeds with uncompressed and compressed messages.
pub fn seeds_frames() -> Vec<Vec<u8>> {
    // The text "hello", compressed with `gzip`.
    let packed = b"\x1f\x8b\x08\0\0\0\0\0\0\x03\xcb\x48\xcd\xc9\xc9\x07\0\x86\xa6\x10\x36\x05\0\0\0";
    let packed = [b"\x01\0\0\0\x19".as_slice(), packed].concat();
    vec![
        b"\x03\0\0\0\0\0\x03abc\0\0\0\0\0\0\0\0\0\x01d".to_vec(),
        [b"\x02\x01".as_slice(), &packed].concat(),
        [b"\x07\x01".as_slice(), &packed, b"\0\0\0\0\x01x"].concat(),
    ]
}

/// Service that answers calls of every kind and does no other work.
struct Echo;

const METHODS: [(&str, Kind); 6] = [
    ("/t.E/Unary", Kind::Unary),
    ("/t.E/Later", Kind::Unary),
    ("/t.E/Never", Kind::Unary),
    ("/t.E/Pieces", Kind::Unary),
    ("/t.E/Repeat", Kind::ServerStream),
    ("/t.E/Bidi", Kind::Bidi),
];

impl Service for Echo {
    fn method(&self, path: &str) -> Option<Method> {
        let id = METHODS.iter().position(|(name, _)| *name == path)?;
        Some(Method { id: id as u16, kind: METHODS[id].1 })
    }

    fn has_service(&self, name: &str) -> bool {
        name == "t.E"
    }

    fn unary(self: Rc<Self>, head: Head, message: Bytes) -> Unary {
        assert!(message.len() <= MESSAGE_BYTES_MAX);
        let _ = (head.get("token"), head.requires_leader, head.client_api_version().is_some());
        match head.method {
            0 => Unary::Done(Ok(Answer::Whole(message))),
            1 => Unary::Later(Box::pin(async move {
                tokio::task::yield_now().await;
                Err(Status::with(Code::NotFound, String::from_utf8_lossy(&message).into_owned()))
            })),
            2 => Unary::Later(Box::pin(std::future::pending())),
            _ => {
                let (len, mut left) = (20_000, 20_000);
                let source = Box::new(move |room: usize, _: &mut Context<'_>| {
                    let part = left.min(room.max(1));
                    left -= part;
                    Poll::Ready(Ok((part > 0).then(|| Bytes::from(vec![7; part]))))
                });
                let (beginning, held) = (Box::default(), Rc::default());
                Unary::Done(Ok(Answer::Pieces { len, beginning, source, held }))
            }
        }
    }

    fn stream(
        self: Rc<Self>,
        head: Head,
        mut inbound: Inbound,
        mut outbound: Outbound,
    ) -> LocalBoxFuture<Result<(), Status>> {
        Box::pin(async move {
            while let Some(message) = inbound.next().await? {
                for _ in 0..if head.method == 4 { 3 } else { 1 } {
                    outbound.send(message.clone()).await?;
                }
            }
            Ok(())
        })
    }

    fn http(self: Rc<Self>, request: http::Request<Bytes>) -> LocalBoxFuture<http::Response<Bytes>> {
        Box::pin(async move { http::Response::new(request.into_body()) })
    }
}

thread_local! {
    static RUNTIME: tokio::runtime::Runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
}

/// Returns server options with such low limits that small inputs can exceed them.
pub(crate) fn options() -> Options {
    Options {
        methods: METHODS.len(),
        message_bytes_max: MESSAGE_BYTES_MAX,
        request_bytes_max: 64 * 1024,
        ..Options::default()
    }
}

pub(crate) fn service() -> Rc<dyn Service> {
    Rc::new(Echo)
}

/// Runs a future on this thread's runtime, with its own set of tasks.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    RUNTIME.with(|runtime| tokio::task::LocalSet::new().block_on(runtime, future))
}

/// Waits until a connection ends. Panics if it does not end within [`PATIENCE`].
pub(crate) async fn served(connection: impl Future<Output = io::Result<()>>) {
    let served = tokio::time::timeout(PATIENCE, connection).await;
    assert!(served.is_ok(), "the connection outlives its client");
}

fn serve(bytes: &[u8], cut: u8) {
    block_on(async {
        let (client, server) = tokio::io::duplex(PIPE_BYTES);
        let (mut answers, mut requests) = tokio::io::split(client);
        let pieces: Vec<Bytes> = pieces(bytes, cut).map(Bytes::copy_from_slice).collect();
        let writing = tokio::task::spawn_local(async move {
            for piece in pieces {
                // An error is not a failure of the target: the server may close the connection, for example
                // after a protocol error.
                if requests.write_all(&piece).await.is_err() {
                    return;
                }
                tokio::task::yield_now().await;
            }
            let _ = requests.shutdown().await;
        });
        let reading = tokio::task::spawn_local(async move {
            let _ = tokio::io::copy(&mut answers, &mut tokio::io::sink()).await;
        });
        served(fuzzing::serve(server, options(), service())).await;
        let _ = (writing.await, reading.await);
    });
}

/// Fuzz target for HTTP/2: sends the preface and then the frames that the input describes. Each frame gets
/// the right length, and a DATA payload may get gRPC's message prefix. If the first byte of the input is 0,
/// all bytes after the second one are sent unchanged.
pub fn run_http2(data: &[u8]) {
    let (bytes, cut) = http2(data);
    serve(&bytes, cut);
}

/// Returns the bytes that are sent on a connection, and the seed that determines the pieces into which they
/// are divided.
pub(crate) fn http2(data: &[u8]) -> (Vec<u8>, u8) {
    let mut script = Script::new(data);
    let (how, cut) = (script.u8(), script.u8());
    let mut bytes = PREFACE.to_vec();
    if how == 0 {
        bytes.extend_from_slice(script.rest());
    }
    while !script.is_done() {
        let (kind, flags) = (script.u8(), script.u8());
        let stream = u32::from(script.u8());
        let mut payload = script.run().to_vec();
        if kind & 0x10 != 0 {
            let prefix = [&[0], (payload.len() as u32).to_be_bytes().as_slice()].concat();
            payload.splice(0..0, prefix);
        }
        bytes.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
        bytes.extend_from_slice(&[kind & 0x0f, flags]);
        bytes.extend_from_slice(&stream.to_be_bytes());
        bytes.extend_from_slice(&payload);
    }
    (bytes, cut)
}

/// Encodes a header as an HPACK literal without indexing.
fn header(name: &str, value: &str) -> Vec<u8> {
    [&[0, name.len() as u8], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat()
}

fn call(path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    let usual = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "a")];
    let grpc = [("content-type", "application/grpc"), ("te", "trailers")];
    for (name, value) in usual.iter().chain(&grpc).chain(more) {
        block.extend(header(name, value));
    }
    block
}

/// Returns calls of every kind.
pub fn seeds_http2() -> Vec<Vec<u8>> {
    let settings = |scribe: Scribe| scribe.u8(4).u8(0).u8(0).run(&[]);
    let mut all = settings(Scribe::default().u8(1).u8(30));
    let mut seeds = Vec::new();
    let metadata: [&[(&str, &str)]; 4] = [
        &[("grpc-timeout", "1S"), ("token", "t")],
        &[("grpc-encoding", "gzip"), ("grpc-accept-encoding", "gzip"), ("hasleader", "true")],
        &[("grpc-timeout", "99999999H"), ("x-bin", "AA=="), ("client-api-version", "3.6")],
        &[("content-encoding", "gzip")],
    ];
    for (number, (path, _)) in
        METHODS.iter().chain(&[("/t.E/None", Kind::Unary), ("/x.Y/Z", Kind::Unary)]).enumerate()
    {
        let block = call(path, metadata[number % metadata.len()]);
        let stream = 2 * number as u8 + 1;
        let one = |scribe: Scribe| {
            scribe.u8(1).u8(4).u8(stream).run(&block).u8(0x10).u8(1).u8(stream).run(b"hello")
        };
        all = one(all);
        seeds.push(one(settings(Scribe::default().u8(1).u8(0))).done());
    }
    // Frames PING, WINDOW_UPDATE, RST_STREAM, PRIORITY, GOAWAY, and CONTINUATION.
    all = all.u8(6).u8(0).u8(0).run(b"12345678").u8(8).u8(0).u8(0).run(&[0, 0, 1, 0]);
    all = all.u8(3).u8(0).u8(5).run(&[0, 0, 0, 8]).u8(2).u8(0).u8(3).run(&[0, 0, 0, 1, 9]);
    let (front, behind) = (call("/t.E/Bidi", &[]), header("a", "b"));
    all = all.u8(1).u8(0).u8(31).run(&front).u8(9).u8(4).u8(31).run(&behind).u8(7).u8(0).u8(0).run(&[0; 8]);
    seeds.push(all.done());
    seeds.push(b"\0\0\0\0\0\x04\0\0\0\0\0".to_vec());
    seeds
}

/// Fuzz target for HTTP/1: sends the bytes after the first one unchanged.
pub fn run_http1(data: &[u8]) {
    let mut script = Script::new(data);
    let cut = script.u8();
    serve(script.rest(), cut);
}

/// Returns requests of every kind.
pub fn seeds_http1() -> Vec<Vec<u8>> {
    [
        "GET /health?serializable=true&exclude=NOSPACE HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST /v3/kv/put HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}GET /metrics HTTP/1.1\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 99999\r\nExpect: 100-continue\r\n\r\n",
        "GET http://a/%2e%2e//version#x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n\r\n",
        "PRI * HTTP/1.1\r\n\r\n",
    ]
    .iter()
    .map(|text| [&[13], text.as_bytes()].concat())
    .collect()
}
