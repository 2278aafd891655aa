//! Lets fuzzers call the decoders and the request handling of this crate without threads, listeners and
//! sockets.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use stdx::calendar;

use api::raftpb::Message;
use bytes::{Buf, Bytes};
use hyper::rt::ReadBufCursor;
use tokio::task::LocalSet;

use crate::app_encoder::AppEncoder;
use crate::client::Client;
use crate::decoder::Decoder;
use crate::frame_buffer::FrameBuffer;
use crate::hub::Hub;
use crate::identity::Identity;
use crate::inbox::Inbox;
use crate::local_member::LocalMember;
use crate::server;
use crate::slots::ConnectionSlots;
use crate::{Handler, Options};

/// Decodes a stream of whole messages. Returns the messages, and the error if the stream cannot be decoded
/// further.
pub fn read_messages<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Message>, Option<String>) {
    read(Decoder::of_messages(), pieces)
}

/// Decodes a `msgappv2` stream. Returns the messages, and the error if the stream cannot be decoded further.
pub fn read_apps<'a>(
    local: u64,
    remote: u64,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> (Vec<Message>, Option<String>) {
    read(Decoder::of_apps(local, remote), pieces)
}

fn read<'a>(mut decoder: Decoder, pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Message>, Option<String>) {
    let mut messages = Vec::new();
    for piece in pieces {
        if let Err(error) = decoder.decode(Bytes::copy_from_slice(piece), &mut messages) {
            return (messages, Some(error.to_string()));
        }
    }
    (messages, None)
}

/// Encodes a stream of whole messages.
pub fn write_messages(messages: &[Message]) -> Vec<u8> {
    let mut buffer = FrameBuffer::default();
    messages.iter().for_each(|message| buffer.put_sized_message(message.clone()));
    let mut segments = buffer.take();
    segments.copy_to_bytes(segments.remaining()).to_vec()
}

/// Encodes a `msgappv2` stream.
pub fn write_apps(messages: &[Message]) -> Vec<u8> {
    let (mut encoder, mut buffer) = (AppEncoder::default(), FrameBuffer::default());
    messages.iter().for_each(|message| encoder.encode(message.clone(), &mut buffer));
    let mut segments = buffer.take();
    segments.copy_to_bytes(segments.remaining()).to_vec()
}

/// Parses an RFC 3339 time and formats it again; `None` if it is invalid.
pub fn rewrite_time(text: &str) -> Option<String> {
    calendar::parse_rfc3339(text).map(calendar::format_rfc3339)
}

/// Number of writes that a [`Wire`] accepts before it fails.
const WRITES_MAX: usize = 40;

/// Connection whose input is a list of chunks, and which discards what is written.
struct Wire {
    pieces: VecDeque<Bytes>,
    /// True once the reader was told that the input has ended.
    ended: bool,
    writes: usize,
    /// True if the last read was allowed to return a chunk. The next one is then pending, so that the code
    /// under test sees both cases.
    ready: bool,
}

impl hyper::rt::Read for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        self.ready = !self.ready;
        if !self.ready {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.ended = self.pieces.is_empty();
        if let Some(piece) = self.pieces.front_mut() {
            let part = piece.split_to(piece.len().min(into.remaining()));
            into.put_slice(&part);
            if piece.is_empty() {
                self.pieces.pop_front();
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl hyper::rt::Write for Wire {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.writes += 1;
        // Writes fail after the end of the input, and after a number of writes, so that a stream of messages
        // ends, too.
        if self.ended || self.writes > WRITES_MAX {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Serves one connection to a peer listener, on which the client sends `pieces`. `members` are the ids of
/// other members, which are unreachable. Returns true when the connection has ended; false if it is still
/// open after `patience`.
///
/// # Errors
///
/// Returns an error if the options are invalid.
pub fn serve(
    runtime: &tokio::runtime::Runtime,
    options: &Options,
    handler: Arc<dyn Handler>,
    members: &[u64],
    pieces: Vec<Bytes>,
    patience: Duration,
) -> io::Result<bool> {
    let identity = Identity::new(options)?;
    let inbox = Arc::new(Inbox::new());
    inbox.set_members(members.iter().map(|id| (*id, Vec::new())).collect());
    let times = (options.read_timeout, options.write_timeout);
    let dialer = crate::dialer::Dialer::new(None, None);
    let local = LocalMember::new(identity, handler, Arc::new(|_, _, _| {}), times, Client::new(dialer));
    let hub = Rc::new(Hub::new(local, inbox));
    let tasks = LocalSet::new();
    let ended = tasks.block_on(runtime, async {
        hub.set_members(members.iter().map(|id| (*id, Vec::new())).collect());
        let wire = Wire { pieces: pieces.into(), ended: false, writes: 0, ready: false };
        let Some((slot, _)) = ConnectionSlots::new(1).take(None) else { return false };
        tokio::time::timeout(patience, server::answer_requests(&hub, &slot, wire)).await.is_ok()
    });
    drop(tasks);
    Ok(ended)
}
