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

/// Bytes handed to the connection at once, exceeded by at most one message.
const WRITE_BYTES: usize = 256 * 1024;
/// Number of link heartbeats within one read timeout.
const HEARTBEATS: u32 = 3;

/// Writes a stream that a peer dialed, as the body of the answer to its GET.
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
    /// Creates the writer, which replaces the previous stream of this kind.
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

    /// Returns the queued messages, encoded; `None` if another stream has replaced this one.
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

    /// Becomes ready when nothing was written for the heartbeat interval, with a link heartbeat in the
    /// buffer.
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
