use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use crate::app_encoder::AppEncoder;
use crate::decoder::link_heartbeat;
use crate::frame_buffer::{FrameBuffer, Segments};
use crate::local_member::LocalMember;
use crate::peer::{Kind, Peer};

/// Number of bytes after which no more messages are encoded for one write. Only the last message may exceed
/// it.
const WRITE_BYTES: usize = 256 * 1024;
/// Number of link heartbeats that an idle stream sends within one read timeout.
const HEARTBEATS: u32 = 3;

/// Sends messages to a peer on a stream that the peer has dialed. The messages are the body of the answer to
/// the peer's GET request.
pub(crate) struct StreamWriter {
    local: Rc<LocalMember>,
    peer: Rc<Peer>,
    kind: Kind,
    generation: u64,
    apps: AppEncoder,
    buffer: FrameBuffer,
    heartbeat: Pin<Box<Sleep>>,
    written: Instant,
}

impl StreamWriter {
    /// Creates the writer for a new stream, which replaces the peer's previous stream of this kind.
    pub(crate) fn attach(local: Rc<LocalMember>, peer: Rc<Peer>, kind: Kind) -> StreamWriter {
        let generation = peer.attach(&local, kind);
        let heartbeat = Box::pin(tokio::time::sleep(heartbeat_interval(&local)));
        StreamWriter {
            local,
            peer,
            kind,
            generation,
            apps: AppEncoder::default(),
            buffer: FrameBuffer::default(),
            heartbeat,
            written: Instant::now(),
        }
    }

    /// Becomes ready with encoded messages or a link heartbeat; with `None` if the stream has ended or
    /// another one has replaced it.
    pub(crate) fn poll_segments(&mut self, cx: &mut Context<'_>) -> Poll<Option<Segments>> {
        if !self.peer.watch(self.kind, self.generation, cx.waker()) {
            return Poll::Ready(None);
        }
        while self.buffer.len() < WRITE_BYTES {
            let Some(message) = self.peer.next(self.kind) else { break };
            match self.kind {
                Kind::App => self.apps.encode(message, &mut self.buffer),
                Kind::Message => self.buffer.put_sized_message(message),
            }
        }
        if self.buffer.len() == 0 {
            std::task::ready!(self.poll_heartbeat(cx));
        }
        self.written = Instant::now();
        self.peer.account.counters.sent_bytes.add(self.buffer.len() as u64);
        Poll::Ready(Some(self.buffer.take()))
    }

    /// Becomes ready when nothing was written for the heartbeat interval, after a link heartbeat was added to
    /// the buffer.
    fn poll_heartbeat(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let interval = heartbeat_interval(&self.local);
        loop {
            std::task::ready!(self.heartbeat.as_mut().poll(cx));
            let due = self.written + interval;
            if due <= Instant::now() {
                break;
            }
            self.heartbeat.as_mut().reset(due);
        }
        self.heartbeat.as_mut().reset(Instant::now() + interval);
        match self.kind {
            Kind::App => self.apps.encode_heartbeat(&mut self.buffer),
            Kind::Message => self.buffer.put_sized_message(link_heartbeat()),
        }
        Poll::Ready(())
    }
}

fn heartbeat_interval(local: &LocalMember) -> Duration {
    local.read_timeout / HEARTBEATS
}

impl Drop for StreamWriter {
    fn drop(&mut self) {
        self.peer.detach(&self.local, self.kind, self.generation);
    }
}
