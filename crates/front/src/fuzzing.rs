//! One connection over any byte stream, without threads, listeners and sockets: what fuzzing feeds.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use api::Status;
use bytes::Bytes;
use slab::Slab;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use crate::assembler::Assembler;
use crate::frame_scanner::FrameScanner;
use crate::rejections::Rejections;
use crate::shard::{self, Closing, ShardState};
use crate::socket::BufferPool;
use crate::turnstile::Turnstile;
use crate::wire::Wire;
use crate::{Options, Origin, Service, ShardCounters};

/// Serves one connection, of either protocol, until it ends. To be called within a `LocalSet`.
///
/// # Errors
///
/// As the connection ended.
pub async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    options: Options,
    service: Rc<dyn Service>,
) -> io::Result<()> {
    let (_closing, seen) = watch::channel(false);
    let options = Arc::new(options);
    let state = Rc::new(ShardState {
        counters: Arc::new(ShardCounters::new(options.methods)),
        options: options.clone(),
        pool: Rc::new(BufferPool::default()),
        closing: Cell::new(false),
        connections: RefCell::new(Slab::new()),
        admitted: RefCell::new(Slab::new()),
        turnstile: Turnstile::open(),
        rejections: Arc::new(Rejections::new(options.rejected.clone())),
    });
    let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    shard::serve(Wire::Plain(stream), Origin::plain(peer), None, state, service, Closing(seen)).await
}

/// The frames in a stream: kind, flags and stream of each.
pub fn frames<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<(u8, u8, u32)> {
    let (mut scanner, mut seen) = (FrameScanner::after(0), Vec::new());
    for piece in pieces {
        scanner.scan(piece, |frame| seen.push((frame.kind, frame.flags, frame.stream)));
    }
    seen
}

/// The messages in payloads, and how they end: a refusal, or whether one is left unfinished.
pub fn messages<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    bytes_max: usize,
    gzip: bool,
) -> (Vec<Bytes>, Result<bool, Status>) {
    let (mut assembler, mut messages) = (Assembler::new(bytes_max, gzip), Vec::new());
    for piece in pieces {
        assembler.push(Bytes::copy_from_slice(piece));
        loop {
            match assembler.next() {
                Ok(Some(assembled)) => messages.push(assembled.message),
                Ok(None) => break,
                Err(status) => return (messages, Err(status)),
            }
        }
    }
    (messages, Ok(assembler.is_mid_message()))
}
