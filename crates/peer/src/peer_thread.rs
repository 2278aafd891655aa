//! Runs the peer thread, which communicates with the other members: [`start`] starts the thread, which runs
//! until the inbox is stopped.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::thread::JoinHandle;

use transport::end_turn;

use crate::acceptor::Acceptor;
use crate::client::Client;
use crate::dialer::Dialer;
use crate::handler::Handler;
use crate::handshakes::Handshakes;
use crate::hub::Hub;
use crate::identity::Identity;
use crate::inbox::Inbox;
use crate::local_member::LocalMember;
use crate::options::{IDLE_MAX, Log, Options, SESSION_CHECK_INTERVAL};
use crate::server::Server;

/// Maximum number of times that the thread takes messages and commands from the inbox before it serves its
/// connections.
const BATCHES_PER_TURN: usize = 8;

/// Starts the peer thread.
///
/// # Errors
///
/// Returns an error if the thread or its runtime cannot be started, if a listener cannot be set up, or if a
/// version or a peer URL in the options is not valid.
pub(crate) fn start(
    options: Options,
    handler: Arc<dyn Handler>,
    log: Log,
    inbox: Arc<Inbox>,
) -> io::Result<JoinHandle<()>> {
    let identity = Identity::new(&options)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let entered = runtime.enter();
    let mut listeners = Vec::with_capacity(options.listeners.len());
    for listener in options.listeners {
        listeners.push(Acceptor::new(listener)?);
    }
    drop(entered);
    let (read_timeout, write_timeout) = (options.read_timeout, options.write_timeout);
    let (tls, local_address) = (options.tls, options.local_address);
    std::thread::Builder::new().name("peer".to_owned()).spawn(move || {
        let dialer = Dialer::new(tls, Some(Handshakes::default())).bound_to(local_address);
        let local =
            LocalMember::new(identity, handler, log, (read_timeout, write_timeout), Client::new(dialer));
        let hub = Rc::new(Hub::new(local, inbox));
        let tasks = tokio::task::LocalSet::new();
        tasks.block_on(&runtime, run(Rc::clone(&hub), listeners));
        hub.local.stop();
        // Drop the tasks here, on this thread. That closes all connections.
        drop(tasks);
        // End the runtime without waiting for blocked name look-ups, so that they do not delay the shutdown.
        runtime.shutdown_background();
    })
}

/// Serves the listeners, and carries out what other threads put into the inbox, until the inbox is stopped.
async fn run(hub: Rc<Hub>, listeners: Vec<Acceptor>) {
    let server = Rc::new(Server::new(Rc::clone(&hub)));
    for listener in listeners {
        tokio::task::spawn_local(Rc::clone(&server).run(listener));
    }
    let checker = Rc::clone(&hub.local);
    tokio::task::spawn_local(async move {
        loop {
            tokio::time::sleep(SESSION_CHECK_INTERVAL).await;
            checker.check_sessions();
        }
    });
    let sweeper = Rc::clone(&hub.local);
    tokio::task::spawn_local(async move {
        loop {
            tokio::time::sleep(IDLE_MAX).await;
            sweeper.client.sweep();
        }
    });
    poll_fn(|cx| {
        for _ in 0..BATCHES_PER_TURN {
            match std::task::ready!(hub.inbox.poll_arrivals(cx)) {
                Some(arrivals) => hub.take(arrivals),
                None => return Poll::Ready(()),
            }
        }
        end_turn(cx);
        Poll::Pending
    })
    .await;
}
