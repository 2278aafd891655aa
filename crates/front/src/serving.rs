//! Implements the task of an HTTP/2 connection: [`serve`] runs the turns of the connection until it ends, and
//! then closes it.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use stdx::race;

use crate::connection::Connection;
use crate::new_connection::NewConnection;
use crate::shard_state::ShardState;
use crate::socket::{Socket, Transport};
use crate::{LocalBoxFuture, Service};

/// Maximum time for which a connection that has ended still writes its last frames, and discards what the
/// client sends, so that these frames reach the client.
const LINGER: Duration = Duration::from_secs(1);

/// Serves a connection whose client has sent the HTTP/2 preface, until it ends. `kept` is dropped when the
/// connection has ended.
pub(crate) fn serve<S: Transport + 'static, K: Unpin + 'static>(
    begun: NewConnection<S>,
    shard: Rc<ShardState>,
    service: Rc<dyn Service>,
    kept: K,
) -> Serving<S, K> {
    let presence = service.connected(&begun.origin);
    let NewConnection { socket, origin, account, secured, .. } = begun;
    let connection = Connection::new(origin, account, secured, shard, service);
    Serving(Stage::Open(Open { connection, socket, presence, kept }))
}

/// Future that serves one HTTP/2 connection.
///
/// Hand-written, because it makes up most of the memory of an idle connection: the connection and its socket
/// are stored in the task itself, and the state for closing is allocated only when the connection ends.
pub(crate) struct Serving<S, K>(Stage<S, K>);

enum Stage<S, K> {
    Open(Open<S, K>),
    Leaving(LocalBoxFuture<io::Result<()>>),
    Over,
}

/// Connection that is being served. The fields are dropped in order of declaration.
struct Open<S, K> {
    connection: Connection,
    socket: Socket<S>,
    presence: Option<Box<dyn Any>>,
    kept: K,
}

impl<S: Transport + 'static, K: Unpin + 'static> Future for Serving<S, K> {
    type Output = io::Result<()>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stage = &mut self.get_mut().0;
        if let Stage::Open(open) = stage {
            let result = ready!(open.connection.poll_turn(&mut open.socket, cx));
            if let Stage::Open(open) = std::mem::replace(stage, Stage::Over) {
                *stage = Stage::Leaving(Box::pin(leave(open, result)));
            }
        }
        match stage {
            Stage::Leaving(leaving) => leaving.as_mut().poll(cx),
            Stage::Open(_) | Stage::Over => unreachable!("a future is not polled after its end"),
        }
    }
}

/// Closes a connection whose last turn returned `result`.
async fn leave<S: Transport, K>(open: Open<S, K>, result: io::Result<()>) -> io::Result<()> {
    let Open { mut connection, mut socket, presence: _presence, kept: _kept } = open;
    let around = connection.around.clone();
    // Waits at the turnstile, which spreads over time the work of thousands of connections that end at the
    // same time. A connection that is closed to free memory does not wait.
    let pass = std::mem::take(&mut connection.pass);
    let through = pass.through(&around.shard.turnstile, around.origin.peer.ip());
    race(poll_fn(|cx| around.account.poll_doomed(cx)), through).await;
    // The calls are dropped in batches, between which other connections run, because a client decides how
    // many calls are open.
    let mut from = Some(0);
    while let Some(slot) = from {
        from = connection.forget_some(slot);
        if from.is_some() {
            tokio::task::yield_now().await;
        }
    }
    let _secured = connection.secured.take();
    drop(connection);
    // Lowers the connection's memory reservation: its calls were dropped, and only the last frames are still
    // queued.
    around.charge_waiting();
    around.account.set_buffers(socket.buffer_bytes() + around.memory_bytes());
    if result.is_ok() {
        let lingering = async {
            poll_fn(|cx| socket.poll_write(cx, around.http2.borrow_mut().output())).await?;
            poll_fn(|cx| socket.poll_close(cx)).await?;
            poll_fn(|cx| socket.poll_discard(cx)).await
        };
        // A timeout or an error is ignored, because the connection has ended anyway.
        let _ = tokio::time::timeout(LINGER, lingering).await;
    }
    result
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::context::ConnectionContext;
    use crate::shard_channels::OpenSlot;
    use transport::Stream;

    #[test]
    fn a_connection_and_its_task_are_small() {
        // With the 96 bytes of the runtime's task header these make 384 bytes; the runtime rounds up to a
        // multiple of 128.
        let serving = size_of::<Serving<Stream, (OpenSlot, mpsc::Sender<()>)>>();
        assert!(serving <= 280, "the future that serves a connection has {serving} bytes");
        let around = size_of::<ConnectionContext>();
        // With the 16 bytes of the `Rc` header these make 448 bytes, which is a size class of the allocator.
        assert!(around <= 432, "what the calls of a connection share has {around} bytes");
    }
}
