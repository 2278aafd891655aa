//! The server of the web console: pages that are compiled into the binary, the list of members, and requests
//! forwarded to members.
//!
//! Structure: [`Console::start`] runs the console in a separate thread with a small runtime, so that neither
//! shards nor the core wait for it. The console is part of a member (`--listen-console-urls`), or a separate
//! process ([`run`], `mainstay console`). The console makes no access decisions: a browser's user logs in at
//! a member, and members decide about permissions. It offers only what any client can request.
//!
//! The server does not know the meaning of calls, the users, the state of a member, or what the pages do.
//!
//! It is no service of the crate `front`, which serves many clients of one member, because browsers need other
//! limits: an idle connection gives way to a new one ([`Limits::connections_max`]), where a front refuses the
//! new one; a body that arrives too slowly ends the connection; a browser that leaves is noticed in the middle
//! of any response; a response keeps the length that the member announced; and only HTTP/1.1 is offered. A
//! front also has a thread each for accepting, for handshakes and for its shard, and a timer that runs without
//! clients. Shared with `front`: the streams, TLS, and reading ahead of hyper, all in `transport`.
//!
//! Invariants:
//! * No page of another origin can make a browser send requests in its name (`tests/it/defences.rs`).
//! * At most a buffer of a request or a response is held in memory: back-pressure reaches the sender
//!   (`tests/it/forwarding.rs`). Connections, requests and buffers are bounded ([`Limits`];
//!   `tests/it/limits.rs`).
//! * Requests of a browser end with the browser's connection.
//! * Without clients nothing runs: no timer, no connection.
//! * No input causes a panic, and no path leads to a file: the files are a table.
//!
//! Start reading with `service.rs` (requests), `forward.rs` and `upstream.rs` (to a member and back). The
//! pages are in `assets/`; `cargo xtask console` lists them in `table.rs`. Tests: beside the code, `tests/it`
//! with scripted members, `mainstay/tests/it/console.rs` with real members.

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

/// Largest number of threads for name look-ups; each name is looked up once at a time.
const LOOK_UP_THREADS_MAX: usize = 8;

/// Settings of a console.
#[derive(Debug)]
pub struct Options {
    /// Listeners of the console.
    pub listeners: Vec<Listener>,
    /// Host names under which the console may be requested without TLS, besides IP addresses, `localhost` and
    /// the hosts of its listeners.
    pub hosts: Vec<String>,
    /// Source of the list of members.
    pub source: Source,
    /// TLS settings of connections to members.
    pub dialing: ClientTls,
    /// Reloaders of TLS files that no other part of the process polls: those of connections to members, and
    /// of the listeners.
    pub reloaders: Vec<Reloader>,
    /// Limits of memory, connections and waiting times.
    pub limits: Limits,
}

/// A running console. It stops when dropped.
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
    /// The system cannot create a thread or the runtime's event queue.
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
                // All connections end with the runtime.
                let _ = stopped.await;
            };
            LocalSet::new().block_on(&runtime, serving);
            // A name look-up may take long, and its result is not needed any more.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("console".to_owned()).spawn(body)?;
        Ok(Console { stop: Some(stop), reloaded, thread: Some(thread) })
    }

    /// Checks all connections again, after TLS files were replaced.
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
