//! Serves the web console: pages that are compiled into the binary, and the list of members. Forwards
//! requests to members.
//!
//! Structure: [`Console::start`] runs the console in a thread of its own with a small runtime, so that
//! neither shards nor the core of a member wait for it. The console is part of a member
//! (`--listen-console-urls`), or a separate process ([`run`], `mainstay console`). It makes no access
//! decisions: the user of a browser logs in at a member, and members decide what the user may do. It offers
//! nothing that other clients could not request from a member.
//!
//! The server does not know the meaning of calls, the users, the state of members, or what the pages do.
//!
//! The console does not use the crate `front`, which serves the many clients of a member, because browsers
//! need other rules. An idle connection is closed in favor of a new one ([`Limits::connections_max`]), where
//! a front refuses the new one. A body that arrives too slowly ends the connection. In the middle of any
//! response, the console notices that the browser has disconnected. A response keeps the length that the
//! member has announced. Only HTTP/1.1 is offered. A front also has threads for accepting, for handshakes and
//! for its shard, and a timer that runs even without clients. The crate `transport` has what both need:
//! streams, TLS, and reading ahead of hyper.
//!
//! Invariants:
//! * No page of another origin can make a browser send requests on its behalf (`tests/it/defences.rs`).
//! * Of a request or a response, at most one buffer is in memory: a slow receiver slows down the sender
//!   (`tests/it/forwarding.rs`). The numbers of connections and requests, and the sizes of buffers, are
//!   limited ([`Limits`]; `tests/it/limits.rs`).
//! * When a browser disconnects, its request to a member is cancelled.
//! * Without clients, the console soon has no timers and no connections to members.
//! * No input causes a panic. No path leads to the file system: the files are in a table.
//!
//! Start reading with `service.rs` (routes requests), `forward.rs` and `upstream.rs` (to a member and back).
//! The pages are in `assets/`; `cargo xtask console` writes their list to `table.rs`. Tests: beside the code,
//! in `tests/it` with scripted members, and in `mainstay/tests/it/console.rs` with real members.

#![forbid(unsafe_code)]

mod answer;
mod assets;
mod body;
mod command;
mod connection;
mod connection_state;
mod defences;
mod endpoints;
mod forward;
mod limits;
mod listener;
mod listener_settings;
mod member_list;
mod member_url;
mod name_look_ups;
mod permits;
mod refusal;
mod request_body;
mod response_body;
mod service;
mod slots;
mod socket;
mod source;
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
use crate::listener_settings::ListenerSettings;
use crate::permits::RequestPermits;
use crate::service::Service;
use crate::slots::Slots;
use crate::upstream::Dialer;

pub use command::{PROGRAM, run};
pub use limits::Limits;
pub use listener::Listener;
pub use source::{ListMembers, Member, Source};
pub use transport::ListenerSocket;

/// Maximum number of threads for name look-ups. The same name is looked up by only one thread at a time.
const LOOK_UP_THREADS_MAX: usize = 8;

/// Settings of a console.
#[derive(Debug)]
pub struct Options {
    /// Listeners of the console.
    pub listeners: Vec<Listener>,
    /// Host names under which browsers may reach the console without TLS, in addition to IP addresses,
    /// `localhost` and the hosts of its listeners.
    pub hosts: Vec<String>,
    /// Source of the list of members.
    pub source: Source,
    /// TLS settings of connections to members.
    pub dialing: ClientTls,
    /// Reloaders for TLS files, of connections to members and of the listeners, that no other thread of the
    /// process runs. The console runs them.
    pub reloaders: Vec<Reloader>,
    /// Limits of memory, connections and waiting times.
    pub limits: Limits,
}

/// A running console. It stops when this value is dropped.
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
    /// Starts the console.
    ///
    /// # Errors
    /// Returns an error if the system cannot create a thread, or the event queue of the runtime.
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
                let settings = (listener.tls, listener.host);
                transport::Listener::new(listener.socket).map(|socket| (socket, settings))
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
                    permits: RequestPermits::new(&limits),
                    reloaded: reloads,
                });
                let slots = Slots::new(limits.connections_max);
                for (socket, (tls, host)) in sockets {
                    let settings = Rc::new(ListenerSettings { tls, host });
                    spawn_local(listener::accept(socket, settings, Rc::clone(&service), Rc::clone(&slots)));
                }
                // Wait until the console is stopped. All connections end with the runtime.
                let _ = stopped.await;
            };
            LocalSet::new().block_on(&runtime, serving);
            // Do not wait for name look-ups: they may take long, and their results are not needed any more.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("console".to_owned()).spawn(body)?;
        Ok(Console { stop: Some(stop), reloaded, thread: Some(thread) })
    }

    /// Must be called when TLS files have been reloaded. Disconnects browsers whose certificates are no
    /// longer valid.
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
