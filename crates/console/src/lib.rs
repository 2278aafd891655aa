//! The server of the web console: pages that are part of the binary, the list of members, and requests passed on to members.
//!
//! What it is: [`Console::start`] runs it in a thread of its own with a small runtime, so that neither shards nor the core wait for
//! it; a member has one (`--listen-console-urls`), or it stands alone ([`run`], `mainstay console`). It makes no decision: a browser's
//! user logs in at a member, and members decide who may do what. Behind it is only what any client can ask for.
//!
//! What it does not know: what calls mean, users, the state of a member, what the pages do.
//!
//! Invariants:
//! * No page from elsewhere makes a browser ask in its name (`tests/it/defences.rs`).
//! * Nothing of a request or an answer is held but a buffer's worth: what is slow to be taken is slow to be asked for
//!   (`tests/it/forwarding.rs`). Connections, requests and buffers are bounded ([`Limits`]; `tests/it/limits.rs`).
//! * What a browser asked for ends with the browser's connection.
//! * Nobody looks, nothing runs: no timer, no connection.
//! * No input panics, and no path leads to a file: the files are a table.
//!
//! Tests: beside the code, `tests/it` with members that are scripts, `mainstay/tests/it/console.rs` with real ones.

#![forbid(unsafe_code)]

mod answer;
mod assets;
mod body;
mod command;
mod connection;
mod defences;
mod endpoints;
mod forward;
mod forwarded;
mod limits;
mod listener;
mod member_list;
mod names;
mod service;
mod slots;
mod socket;
mod table;
mod upstream;

use std::fmt;
use std::io;
use std::rc::Rc;
use std::thread::JoinHandle;

use telemetry::logging::Logger;
use tls::{ClientTls, Reloader};
use tokio::sync::{oneshot, watch};
use tokio::task::{LocalSet, spawn_local};

use crate::endpoints::Endpoints;
use crate::forwarded::ForwardedRequests;
use crate::listener::{Listening, Registered};
use crate::service::Service;
use crate::slots::Slots;
use crate::upstream::Dialer;

pub use command::{PROGRAM, run};
pub use endpoints::{ListMembers, Member, Source};
pub use limits::Limits;
pub use listener::{Listener, ListenerSocket};

/// Threads for looking up names, of which each name has one at a time.
const LOOK_UP_THREADS_MAX: usize = 8;

/// Settings of a console.
#[derive(Debug)]
pub struct Options {
    /// Where it listens.
    pub listeners: Vec<Listener>,
    /// Names under which it may be asked for without TLS, besides addresses, `localhost` and the hosts of its listeners.
    pub hosts: Vec<String>,
    /// The members.
    pub source: Source,
    /// TLS of connections to members.
    pub dialing: ClientTls,
    /// Looks at the files of TLS where nobody else does: those of connections to members, and of the listeners.
    pub reloaders: Vec<Reloader>,
    /// Bounds.
    pub limits: Limits,
}

/// A running console. It stops when this is dropped.
pub struct Console {
    stop: Option<oneshot::Sender<()>>,
    reloaded: watch::Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console").finish_non_exhaustive()
    }
}

impl Console {
    /// Starts it.
    ///
    /// # Errors
    /// The system gives no thread, or no place to wait for sockets.
    pub fn start(options: Options, logger: Logger) -> io::Result<Console> {
        let (stop, stopped) = oneshot::channel();
        let (reloaded, reloads) = watch::channel(());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(LOOK_UP_THREADS_MAX)
            .build()?;
        let sockets: Vec<_> = {
            let _in_runtime = runtime.enter();
            let registered = options.listeners.into_iter().map(|listener| {
                let listening = (listener.tls, listener.host);
                Registered::new(listener.socket).map(|socket| (socket, listening))
            });
            registered.collect::<io::Result<_>>()?
        };
        let (hosts, source, limits) = (options.hosts, options.source, options.limits);
        let (dialing, reloaders) = (options.dialing, options.reloaders);
        let body = move || {
            let serving = async move {
                let service = Rc::new(Service {
                    dialer: Rc::new(Dialer::new(dialing, reloaders, limits)),
                    endpoints: Endpoints::new(source),
                    hosts,
                    logger,
                    forwarded: ForwardedRequests::new(&limits),
                    reloaded: reloads,
                });
                let slots = Slots::new(limits.connections_max);
                for (socket, (tls, host)) in sockets {
                    let listening = Rc::new(Listening { tls, host });
                    spawn_local(listener::accept(socket, listening, Rc::clone(&service), Rc::clone(&slots)));
                }
                // All connections end with the runtime.
                let _ = stopped.await;
            };
            LocalSet::new().block_on(&runtime, serving);
            // A look-up of a name may take long, and nobody waits for it any more.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("console".to_owned()).spawn(body)?;
        Ok(Console { stop: Some(stop), reloaded, thread: Some(thread) })
    }

    /// Has connections looked at again: files for TLS were replaced.
    pub fn tls_reloaded(&self) {
        self.reloaded.send_replace(());
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
