//! Accepts connections to the console.

use std::rc::Rc;
use std::time::Duration;

use telemetry::logging::Value;
use tls::ServerTls;
use transport::{ListenerSocket, Stream};

use crate::connection;
use crate::listener_settings::ListenerSettings;
use crate::service::Service;
use crate::slots::Slots;
use crate::socket::prepare;

/// Pause after accepting a connection has failed, for example because there are no free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listener of the console. Its socket is listening already.
#[derive(Debug)]
pub struct Listener {
    /// Socket that listens.
    pub socket: ListenerSocket,
    /// TLS settings; `None` for plain HTTP.
    pub tls: Option<ServerTls>,
    /// Host in the listener's URL.
    pub host: String,
}

/// Accepts connections, and spawns a task that serves each, until the future is dropped.
pub(crate) async fn accept(
    socket: transport::Listener,
    settings: Rc<ListenerSettings>,
    service: Rc<Service>,
    slots: Rc<Slots>,
) {
    loop {
        match socket.accept().await {
            Ok((stream, address)) => match slots.take(address.map(|address| address.ip().to_canonical())) {
                Some(slot) => {
                    if let Stream::Tcp(stream) = &stream {
                        prepare(stream);
                    }
                    let serving = connection::serve(stream, Rc::clone(&settings), Rc::clone(&service), slot);
                    tokio::task::spawn_local(serving);
                }
                None => service.logger.warn_of_strangers(
                    "closed a connection to the console: all others have requests in progress",
                    &[("connections", Value::Uint(service.dialer.limits.connections_max as u64))],
                ),
            },
            Err(error) => {
                let error = error.to_string();
                let fields = [("error", Value::Str(&error))];
                service.logger.warn_of_strangers("failed to accept a connection to the console", &fields);
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
