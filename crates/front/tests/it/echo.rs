//! The service under test and a front that runs it.

use std::any::Any;
use std::cell::Cell;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use accounting::{Account, ShardCounters, note_work, work_left};
use api::{Code, Status};
use bytes::Bytes;
use mainstay_front::{
    Answer, Closing, Drains, Exchange, Front, Head, Inbound, Kind, Listener, LocalBoxFuture, Messages,
    Method, Options, Origin, Outbound, ResponseBody, Service, Shard, ShardId, TrySend, Unary, fuzzing,
};
use testkit::TIMEOUT;
use tokio::io::DuplexStream;
use tokio::task::JoinHandle;

/// Method names and kinds; the index of a method is its id.
const METHODS: [(&str, Kind); 26] = [
    ("/test.Echo/Holds", Kind::Unary),
    ("/test.Echo/Unary", Kind::Unary),
    ("/test.Echo/Later", Kind::Unary),
    ("/test.Echo/Never", Kind::Unary),
    ("/test.Echo/Fail", Kind::Unary),
    ("/test.Echo/Pieces", Kind::Unary),
    ("/test.Echo/Metadata", Kind::Unary),
    ("/test.Echo/Big", Kind::Unary),
    ("/test.Echo/Repeat", Kind::ServerStream),
    ("/test.Echo/Bidi", Kind::Bidi),
    ("/test.Echo/UntilClosing", Kind::Bidi),
    ("/test.Echo/Flood", Kind::ServerStream),
    ("/test.Echo/Slow", Kind::Unary),
    ("/test.Echo/LaterBig", Kind::Unary),
    ("/test.Echo/Gate", Kind::Unary),
    ("/test.Echo/GateWrite", Kind::Unary),
    ("/test.Echo/WhoAmI", Kind::Unary),
    ("/test.Echo/Patient", Kind::Unary),
    ("/test.Echo/Block", Kind::Unary),
    ("/test.Echo/Looks", Kind::Unary),
    ("/test.Echo/LooksAtOnce", Kind::Unary),
    ("/test.Echo/LooksLater", Kind::Unary),
    ("/test.Echo/LooksInSlices", Kind::Unary),
    ("/test.Echo/Memory", Kind::Unary),
    ("/test.Echo/Pieced", Kind::Unary),
    ("/test.Echo/Fitting", Kind::ServerStream),
];

/// Sends messages without end, each as long as the client can take, up to 10,000 bytes.
async fn send_fitting(seen: Arc<Seen>, mut outbound: Outbound) -> Result<(), Status> {
    let (piece, room) = (Bytes::from(vec![0; 10_000]), outbound.room());
    loop {
        std::future::poll_fn(|cx| outbound.poll_room(cx)).await?;
        let len = room().soon.saturating_sub(5).clamp(1, piece.len());
        outbound.send(piece.slice(..len)).await?;
        seen.pieces.fetch_add(1, SeqCst);
        seen.queued_max.fetch_max(outbound.queued_bytes(), SeqCst);
    }
}

/// Examines two megabytes in slices, each as large as the work left in the turn. Counts bytes as pieces.
async fn look_in_slices(seen: Arc<Seen>) {
    let mut left: usize = 2 << 20;
    while left > 0 {
        let slice = work_left().clamp(4 << 10, 256 << 10).min(left);
        note_work(0, slice as u64);
        seen.pieces.fetch_add(slice, SeqCst);
        left -= slice;
        tokio::task::yield_now().await;
    }
}

/// Sends numbers padded with spaces, several per call of `try_send_messages`.
async fn send_together(
    outbound: &mut Outbound,
    count: usize,
    len: usize,
    together: usize,
) -> Result<(), Status> {
    for from in (0..count).step_by(together) {
        let mut messages = Messages::default();
        for at in from..count.min(from + together) {
            messages.push([at.to_string().as_bytes(), " ".repeat(len).as_bytes()]);
        }
        loop {
            outbound.ready().await?;
            match outbound.try_send_messages(messages) {
                Ok(()) => break,
                Err(TrySend::Full(left)) => messages = left,
                Err(TrySend::TooLong(status)) => return Err(status),
                Err(TrySend::Closed) => return Err(Status::new(Code::Canceled, "closed")),
            }
        }
    }
    Ok(())
}

/// Status of a write whose answer cannot be queued.
pub const WRITTEN: Status = Status::new(Code::Unavailable, "it was written");

pub fn id_of(path: &str) -> usize {
    METHODS.iter().position(|(name, _)| *name == path).expect("a method of the test service")
}

/// Observations by the service, for the tests.
#[derive(Default)]
pub struct Seen {
    /// Number of call futures that are alive.
    pub alive: AtomicUsize,
    /// Largest number of unsent bytes held by any stream.
    pub queued_max: AtomicUsize,
    /// Number of messages taken by streams with `x-listens`.
    pub taken: AtomicUsize,
    /// Number of pieces made.
    pub pieces: AtomicUsize,
    /// Largest number of bytes in the budget when a piece was requested.
    pub held_max: AtomicUsize,
    /// Names of unary calls that arrived, and of connections that ended, in order.
    pub told: Mutex<Vec<&'static str>>,
    /// Lock on which a call to `Block` waits, blocking its shard's thread.
    pub block: Mutex<()>,
    /// Number of open HTTP/2 connections.
    pub connected: AtomicUsize,
    /// True once the gate is open, and the wakers of the calls that wait at it.
    pub gate: Mutex<(bool, Vec<Waker>)>,
}

impl Seen {
    pub fn waits_at_gate(&self) -> bool {
        !self.gate.lock().unwrap().1.is_empty()
    }

    /// Opens the gate and wakes the waiting calls in order of arrival.
    pub fn open_gate(&self) {
        let mut gate = self.gate.lock().unwrap();
        gate.0 = true;
        assert!(!gate.1.is_empty(), "one waits");
        gate.1.drain(..).for_each(Waker::wake);
    }

    fn poll_gate(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut gate = self.gate.lock().unwrap();
        if gate.0 {
            return Poll::Ready(());
        }
        gate.1.push(context.waker().clone());
        Poll::Pending
    }
}

/// Counts an open connection until dropped.
struct Present(Arc<Seen>);

impl Drop for Present {
    fn drop(&mut self) {
        self.0.connected.fetch_sub(1, SeqCst);
        self.0.told.lock().unwrap().push("ended");
    }
}

struct Alive(Arc<Seen>);

impl Alive {
    fn new(seen: &Arc<Seen>) -> Alive {
        seen.alive.fetch_add(1, SeqCst);
        Alive(seen.clone())
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.alive.fetch_sub(1, SeqCst);
    }
}

struct Echo {
    shard: Shard,
    seen: Arc<Seen>,
}

/// Parses a message as a decimal number; 0 if it is none.
fn number(message: &[u8]) -> usize {
    std::str::from_utf8(message).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

impl Service for Echo {
    fn method(&self, path: &str) -> Option<Method> {
        let id = METHODS.iter().position(|(name, _)| *name == path)?;
        Some(Method { id: u16::try_from(id).ok()?, kind: METHODS[id].1 })
    }

    fn has_service(&self, name: &str) -> bool {
        name == "test.Echo"
    }

    fn may_wait(&self, method: u16) -> bool {
        METHODS[usize::from(method)].0 == "/test.Echo/Patient"
    }

    fn is_endless(&self, method: u16) -> bool {
        METHODS[usize::from(method)].0 == "/test.Echo/Bidi"
    }

    fn connected(&self, _from: &Origin) -> Option<Box<dyn Any>> {
        self.seen.connected.fetch_add(1, SeqCst);
        Some(Box::new(Present(self.seen.clone())))
    }

    fn unary(self: Rc<Self>, head: Head, message: Bytes) -> Unary {
        let alive = Alive::new(&self.seen);
        let name = METHODS[usize::from(head.method)].0;
        self.seen.told.lock().unwrap().push(name);
        match name {
            "/test.Echo/Block" => {
                drop(self.seen.block.lock().unwrap());
                Unary::Done(Ok(Answer::Whole(message)))
            }
            "/test.Echo/Unary" | "/test.Echo/Patient" => Unary::Done(Ok(Answer::Whole(message))),
            "/test.Echo/Later" => Unary::Later(Box::pin(async move {
                let _alive = alive;
                tokio::task::yield_now().await;
                Ok(Answer::Whole(message))
            })),
            "/test.Echo/Slow" => Unary::Later(Box::pin(async move {
                let _alive = alive;
                tokio::time::sleep(Duration::from_millis(number(&message) as u64)).await;
                Ok(Answer::Whole(message))
            })),
            "/test.Echo/Never" => Unary::Later(Box::pin(async move {
                let _alive = alive;
                std::future::pending().await
            })),
            // Holds this many bytes for the call. The account is looked up only after the first wait.
            "/test.Echo/Holds" => Unary::Later(Box::pin(async move {
                let _alive = alive;
                tokio::task::yield_now().await;
                let _held = Account::of_turn().map(|account| account.hold(number(&message)));
                std::future::pending().await
            })),
            "/test.Echo/Fail" => Unary::Done(Err(Status::with(
                Code::OutOfRange,
                String::from_utf8_lossy(&message).into_owned(),
            ))),
            "/test.Echo/Pieces" => {
                // The message contains the length of the answer, the bytes that the source claims to hold,
                // and the number of pieces after which the source waits at the gate.
                let mut numbers = message.split(|byte| *byte == b'/').map(number);
                let (len, held) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
                let mut gate = numbers.next();
                let seen = self.seen.clone();
                let (at, mut asked) = (Cell::new(0), 0);
                Unary::Done(Ok(Answer::Pieces {
                    len,
                    beginning: Box::default(),
                    held: Rc::new(Cell::new(held)),
                    source: Box::new(move |wanted, context| {
                        let held = Account::of_turn().map_or(0, |account| account.budget().held_bytes());
                        seen.held_max.fetch_max(held, SeqCst);
                        if let Some(behind) = &mut gate {
                            if *behind == 0 {
                                ready!(seen.poll_gate(context));
                            }
                            *behind = behind.saturating_sub(1);
                            asked = 0;
                        }
                        asked += 1;
                        if asked % 3 == 0 {
                            // Pending once, like a source that has to wait for data.
                            context.waker().wake_by_ref();
                            return Poll::Pending;
                        }
                        seen.pieces.fetch_add(1, SeqCst);
                        let n = wanted.min(len - at.get()).min(10_000);
                        let piece: Vec<u8> = (at.get()..at.get() + n).map(|at| at as u8).collect();
                        at.set(at.get() + n);
                        Poll::Ready(Ok((n > 0).then(|| Bytes::from(piece))))
                    }),
                }))
            }
            // Examines this many bytes for an answer of one byte.
            "/test.Echo/Looks" => {
                let seen = self.seen.clone();
                Unary::Done(Ok(Answer::Pieces {
                    len: 1,
                    beginning: Box::default(),
                    held: Rc::default(),
                    source: Box::new(move |_, _| {
                        if let Some(account) = Account::of_turn() {
                            account.looked_at(number(&message));
                        }
                        seen.pieces.fetch_add(1, SeqCst);
                        Poll::Ready(Ok(Some(Bytes::from_static(b"x"))))
                    }),
                }))
            }
            // Examines this many bytes before it answers.
            "/test.Echo/LooksAtOnce" => {
                note_work(0, number(&message) as u64);
                self.seen.pieces.fetch_add(1, SeqCst);
                Unary::Done(Ok(Answer::Whole(Bytes::from_static(b"x"))))
            }
            // Examines this many bytes ten times in sequence.
            "/test.Echo/LooksLater" => {
                let seen = self.seen.clone();
                Unary::Later(Box::pin(async move {
                    let _alive = alive;
                    for _ in 0..10 {
                        note_work(0, number(&message) as u64);
                        seen.pieces.fetch_add(1, SeqCst);
                        tokio::task::yield_now().await;
                    }
                    Ok(Answer::Whole(Bytes::from_static(b"x")))
                }))
            }
            "/test.Echo/LooksInSlices" => {
                let seen = self.seen.clone();
                Unary::Later(Box::pin(async move {
                    let _alive = alive;
                    look_in_slices(seen).await;
                    Ok(Answer::Whole(Bytes::from_static(b"x")))
                }))
            }
            "/test.Echo/Metadata" => {
                let text = format!(
                    "{:?} {} {:?} {}",
                    head.get("token").or_else(|| head.get("authorization")),
                    head.requires_leader,
                    head.get("client-api-version"),
                    head.deadline.is_some()
                );
                Unary::Done(Ok(Answer::Whole(text.into())))
            }
            // Answers with the number of answer pieces made so far.
            "/test.Echo/Pieced" => {
                Unary::Done(Ok(Answer::Whole(self.seen.pieces.load(SeqCst).to_string().into())))
            }
            "/test.Echo/Memory" => Unary::Done(Ok(Answer::Whole(crate::idle::held().into()))),
            "/test.Echo/WhoAmI" => Unary::Done(Ok(Answer::Whole(format!("{:?}", head.common_name).into()))),
            "/test.Echo/Big" => Unary::Done(Ok(Answer::Whole(vec![1; number(&message)].into()))),
            "/test.Echo/LaterBig" => Unary::Later(Box::pin(async move {
                let _alive = alive;
                tokio::task::yield_now().await;
                Ok(Answer::Whole(vec![1; number(&message)].into()))
            })),
            // Answers with this many bytes, once the gate opens.
            "/test.Echo/Gate" | "/test.Echo/GateWrite" => {
                let seen = self.seen.clone();
                Unary::Later(Box::pin(async move {
                    let _alive = alive;
                    poll_fn(|context| seen.poll_gate(context)).await;
                    Ok(Answer::Whole(vec![1; number(&message)].into()))
                }))
            }
            other => panic!("{other} is no unary method"),
        }
    }

    fn unanswered(&self, method: u16) -> Status {
        match METHODS[usize::from(method)].0 {
            "/test.Echo/GateWrite" => WRITTEN,
            _ => api::error::TOO_MANY_REQUESTS,
        }
    }

    fn stream(
        self: Rc<Self>,
        head: Head,
        mut inbound: Inbound,
        mut outbound: Outbound,
    ) -> LocalBoxFuture<Result<(), Status>> {
        let alive = Alive::new(&self.seen);
        let seen = self.seen.clone();
        let mut closing = self.shard.closing.clone();
        Box::pin(async move {
            let _alive = alive;
            match METHODS[usize::from(head.method)].0 {
                "/test.Echo/Repeat" => {
                    // Number of messages, number of spaces at the end of each, and number of messages sent
                    // together, if any.
                    let request = inbound.next().await?.unwrap_or_default();
                    let mut numbers = request.split(|byte| *byte == b'/').map(number);
                    let (count, len) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
                    if let Some(together) = numbers.next() {
                        return send_together(&mut outbound, count, len, together).await;
                    }
                    for at in 0..count {
                        outbound.send(format!("{at}{}", " ".repeat(len)).into()).await?;
                    }
                    Ok(())
                }
                "/test.Echo/Bidi" => {
                    drop(head);
                    while let Some(message) = inbound.next().await? {
                        outbound.send(message).await?;
                    }
                    Err(Status::new(Code::Aborted, "done: 100%"))
                }
                "/test.Echo/UntilClosing" => {
                    if head.metadata.contains_key("x-listens") {
                        while inbound.next().await?.is_some() {
                            seen.taken.fetch_add(1, SeqCst);
                        }
                    }
                    if head.metadata.contains_key("x-reads-one") {
                        inbound.next().await?;
                    }
                    outbound.open()?;
                    closing.begun().await;
                    Err(Status::new(Code::Unavailable, "etcdserver: server stopped"))
                }
                "/test.Echo/Flood" => {
                    let piece = Bytes::from(vec![0; 10_000]);
                    loop {
                        outbound.send(piece.clone()).await?;
                        seen.queued_max.fetch_max(outbound.queued_bytes(), SeqCst);
                    }
                }
                // Boxed, so that the other methods' calls are no larger.
                "/test.Echo/Fitting" => Box::pin(send_fitting(seen, outbound)).await,
                other => panic!("{other} is no streaming method"),
            }
        })
    }

    fn page_method(&self, path: &str) -> Option<u16> {
        (path == "/patient").then(|| id_of("/test.Echo/Patient") as u16)
    }

    fn exchange(self: Rc<Self>, mut exchange: Exchange) -> LocalBoxFuture<http::Response<ResponseBody>> {
        let path = exchange.head.uri.path().to_owned();
        self.seen.told.lock().unwrap().push(if path == "/patient" { "/test.Echo/Patient" } else { "page" });
        Box::pin(async move {
            let gathered = match path.as_str() {
                "/lasts/unread" => Ok(Bytes::new()),
                _ => exchange.body.gather().await,
            };
            let body = match gathered {
                Ok(body) => body,
                Err(status) => {
                    let mut answer = http::Response::new(ResponseBody::from(Bytes::new()));
                    *answer.status_mut() = status;
                    return answer;
                }
            };
            let seen = self.seen.clone();
            let size = path.rsplit('/').next().map_or(0, |size| number(size.as_bytes()));
            http::Response::new(if path.starts_with("/whole/") {
                ResponseBody::Whole(vec![1; size].into())
            } else if path.starts_with("/chunks/") {
                let mut left = 3;
                ResponseBody::Chunks(Box::new(move |_| {
                    if left == 0 {
                        return Poll::Ready(None);
                    }
                    left -= 1;
                    seen.pieces.fetch_add(1, SeqCst);
                    Poll::Ready(Some(Ok(vec![1; size].into())))
                }))
            } else if path.starts_with("/streamed/") {
                let method = id_of("/test.Echo/UntilClosing") as u16;
                let (_, _, local) = exchange.open_stream(method, |_| Box::new(|_| Poll::Pending));
                ResponseBody::Chunks(Box::new(move |_| {
                    let _open = &local;
                    seen.pieces.fetch_add(1, SeqCst);
                    Poll::Ready(Some(Ok(vec![1; size].into())))
                }))
            } else if path.starts_with("/endless/") {
                ResponseBody::Chunks(Box::new(move |_| {
                    seen.pieces.fetch_add(1, SeqCst);
                    Poll::Ready(Some(Ok(vec![1; size].into())))
                }))
            } else if path == "/waits" {
                let _alive = Alive::new(&self.seen);
                return std::future::pending().await;
            } else if path == "/looks" {
                look_in_slices(seen).await;
                ResponseBody::Whole(Bytes::from_static(b"x"))
            } else if path == "/naps" {
                tokio::time::sleep(Duration::from_millis(3)).await;
                ResponseBody::Whole(Bytes::from_static(b"woken"))
            } else if path.starts_with("/holds/") {
                // The request body stays held beside the answer, which consists of one piece.
                exchange.body.hold(size);
                let (body, mut first) = (exchange.body, Some(Bytes::from_static(&[1; 200])));
                ResponseBody::Chunks(Box::new(move |_| {
                    let _held = &body;
                    seen.pieces.fetch_add(1, SeqCst);
                    first.take().map_or(Poll::Pending, |first| Poll::Ready(Some(Ok(first))))
                }))
            } else if path.starts_with("/lasts") {
                let method = id_of("/test.Echo/UntilClosing") as u16;
                let peer = exchange.origin.peer;
                let (inbound, outbound, local) = exchange.open_stream(method, |body| {
                    Box::new(move |_| {
                        let _unread = &body;
                        Poll::Ready(Ok(None))
                    })
                });
                let mut head = Head::new(method, peer, std::time::Instant::now());
                head.metadata.insert("x-listens", http::HeaderValue::from_static("yes"));
                let mut call = self.stream(head, inbound, outbound);
                ResponseBody::Chunks(Box::new(move |context| {
                    let _open = &local;
                    call.as_mut().poll(context).map(|_| None)
                }))
            } else {
                let mut head = exchange.head;
                head.extensions.insert(exchange.origin.peer);
                return self.http(http::Request::from_parts(head, body)).await.map(ResponseBody::from);
            })
        })
    }

    fn http(self: Rc<Self>, request: http::Request<Bytes>) -> LocalBoxFuture<http::Response<Bytes>> {
        Box::pin(async move {
            let peer = request.extensions().get::<SocketAddr>().is_some();
            let text = format!("{} {} {} {peer}", request.method(), request.uri(), request.body().len());
            http::Response::new(text.into())
        })
    }
}

/// Front that runs the service on its own port.
pub struct Running {
    pub front: Front,
    pub address: SocketAddr,
    pub seen: Arc<Seen>,
}

pub fn run() -> Running {
    run_with(Options { shards: 1, ..Options::default() })
}

pub fn run_with(options: Options) -> Running {
    let (listener, address) = testkit::ports::listen();
    run_on(options, address, vec![listener.into()])
}

/// Starts a front with the service on `listeners`; `address` is the address of one of them.
pub fn run_on(options: Options, address: SocketAddr, listeners: Vec<Listener>) -> Running {
    let seen = Arc::new(Seen::default());
    let for_shards = seen.clone();
    let options = Options { methods: METHODS.len(), ..options };
    let make = move |shard| -> Rc<dyn Service> { Rc::new(Echo { shard, seen: for_shards.clone() }) };
    let front = mainstay_front::start(options, listeners, Arc::new(make)).expect("a started front");
    Running { front, address, seen }
}

/// Serves one connection without threads and sockets, and returns the client's end. The server may write
/// `unread_bytes` bytes beyond what the client has read. Must be called within a `LocalSet`.
pub fn serve_in_memory(options: Options, unread_bytes: usize) -> (DuplexStream, Arc<Seen>, JoinHandle<()>) {
    serve_in_memory_by(options, unread_bytes, fuzzing::serve)
}

/// Serves one connection like [`serve_in_memory`], by the function `serve`.
pub fn serve_in_memory_by(
    options: Options,
    unread_bytes: usize,
    serve: impl AsyncFnOnce(DuplexStream, Options, Rc<dyn Service>) -> std::io::Result<()> + 'static,
) -> (DuplexStream, Arc<Seen>, JoinHandle<()>) {
    let (server, client) = tokio::io::duplex(unread_bytes);
    let seen = Arc::new(Seen::default());
    let (close, closing) = Closing::by_hand();
    let service = Rc::new(Echo {
        shard: Shard {
            id: ShardId(0),
            closing,
            drains: Drains::by_hand(),
            counters: Arc::new(ShardCounters::new(0)),
        },
        seen: seen.clone(),
    });
    let options = Options { methods: METHODS.len(), ..options };
    let served = tokio::task::spawn_local(async move {
        let _close = close;
        // The result is ignored: a connection may also end with an error.
        let _ = serve(server, options, service).await;
    });
    (client, seen, served)
}

/// Waits for a condition.
pub async fn until(what: &str, condition: impl Fn() -> bool) {
    testkit::eventually(what, TIMEOUT, async || condition().then_some(())).await;
}

/// Runs a test's future with a time limit.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    testkit::block_on(TIMEOUT, future)
}
