//! A server that answers every unary call with the same 1 KiB, to measure the cost of the front: `cargo run
//! --release -p mainstay-front --example echo -- 127.0.0.1:2379 [shards]`. A path that ends in `Later` is
//! answered from another task, as a write is; a path that ends in `Big` is answered with 4 MiB in pieces.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use api::{Code, Status};
use bytes::Bytes;
use mainstay_front::{
    Answer, Head, Inbound, Kind, LocalBoxFuture, Method, Options, Outbound, Service, Unary,
};
use tokio::sync::{mpsc, oneshot};

/// The allocator of a member, so that memory measurements are comparable.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Asked = oneshot::Sender<Bytes>;

struct Echo {
    answer: Bytes,
    later: mpsc::UnboundedSender<Asked>,
}

impl Echo {
    fn new() -> Echo {
        let answer = Bytes::from(vec![7; 1024]);
        let (later, mut asked) = mpsc::unbounded_channel::<Asked>();
        let ready = answer.clone();
        // Answers requests in batches, like a log after an fsync.
        drop(tokio::task::spawn_local(async move {
            let mut batch = Vec::new();
            while asked.recv_many(&mut batch, 1024).await > 0 {
                for asked in batch.drain(..) {
                    // If the caller was dropped, nobody needs the answer.
                    let _ = asked.send(ready.clone());
                }
            }
        }));
        Echo { answer, later }
    }
}

impl Service for Echo {
    fn method(&self, path: &str) -> Option<Method> {
        let id = if path.ends_with("Later") {
            1
        } else if path.ends_with("Big") {
            2
        } else {
            0
        };
        Some(Method { id, kind: Kind::Unary })
    }

    fn has_service(&self, _: &str) -> bool {
        true
    }

    fn unary(self: Rc<Self>, head: Head, _: Bytes) -> Unary {
        match head.method {
            0 => Unary::Done(Ok(Answer::Whole(self.answer.clone()))),
            1 => {
                let (asked, answer) = oneshot::channel();
                let sent = self.later.send(asked).is_ok();
                Unary::Later(Box::pin(async move {
                    match answer.await {
                        Ok(answer) if sent => Ok(Answer::Whole(answer)),
                        _ => Err(Status::new(Code::Unavailable, "the answering task is gone")),
                    }
                }))
            }
            _ => {
                let left = RefCell::new(4 << 20);
                let zeros = Bytes::from(vec![0; 64 * 1024]);
                Unary::Done(Ok(Answer::Pieces {
                    len: 4 << 20,
                    beginning: Box::default(),
                    held: Rc::default(),
                    source: Box::new(move |wanted, _| {
                        let n = wanted.min(*left.borrow()).min(zeros.len());
                        *left.borrow_mut() -= n;
                        Poll::Ready(Ok(Some(zeros.slice(..n))))
                    }),
                }))
            }
        }
    }

    fn stream(
        self: Rc<Self>,
        _: Head,
        mut inbound: Inbound,
        mut outbound: Outbound,
    ) -> LocalBoxFuture<Result<(), Status>> {
        Box::pin(async move {
            while let Some(message) = inbound.next().await? {
                outbound.send(message).await?;
            }
            Ok(())
        })
    }

    fn http(self: Rc<Self>, _: http::Request<Bytes>) -> LocalBoxFuture<http::Response<Bytes>> {
        Box::pin(async { http::Response::new(Bytes::from_static(b"ok\n")) })
    }
}

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let shards = arguments.next().and_then(|shards| shards.parse().ok()).unwrap_or(0);
    let listener = std::net::TcpListener::bind(address)?;
    eprintln!("listening on {}", listener.local_addr()?);
    let options = Options { shards, methods: 3, ..Options::default() };
    let _front = mainstay_front::start(options, vec![listener.into()], Arc::new(|_| Rc::new(Echo::new())))?;
    loop {
        std::thread::park();
    }
}
