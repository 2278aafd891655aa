//! Opens connections to members, and keeps idle ones. [`Target`] is a member with the idle connections that
//! are kept for it, [`Dialer`] opens connections, and [`Link`] is a connection. Dropping a link closes the
//! connection immediately, so that the member cancels the request on it.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use api::url::Url;
use http::header::HOST;
use http::{HeaderValue, Method, Request, Response};
use hyper::body::Incoming;
use rustls::ClientConnection;
use tls::{ClientTls, Reloader};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::spawn_local;
use tokio::time::timeout;
use transport::http1::{self, IdleLinks};
use transport::{Ending, Stream, Wire};

use crate::limits::Limits;
use crate::name_look_ups::NameLookUps;
use crate::request_body::UpstreamBody;
use crate::socket::{SharedSocket, Socket, TLS_BUFFERS, prepare};

/// Maximum number of idle connections that are kept for one member. A browser has as many connections to a
/// server.
const IDLE_LINKS_MAX: usize = 6;
/// Minimum time between two checks whether TLS files have changed.
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);

/// A member, with the address and the host name for connections to it, and its idle connections.
pub(crate) struct Target {
    /// URL of the member that is shown to browsers.
    pub(crate) url: String,
    /// URL to which connections are made.
    dial_url: Url,
    /// True if the target is a listener of this process. In this case its certificate is known, and need not
    /// be verified by name.
    pub(crate) is_own: bool,
    /// Value of the `Host` header of requests.
    authority: RefCell<HeaderValue>,
    idle: IdleLinks<UpstreamBody>,
    has_reaper: Cell<bool>,
}

impl Target {
    /// Creates the target of a member at this URL.
    pub(crate) fn new(url: Url) -> Rc<Target> {
        Rc::new(Target::at(url, false))
    }

    /// Creates the target of a listener of this process.
    pub(crate) fn own(url: Url) -> Rc<Target> {
        Rc::new(Target::at(url, true))
    }

    fn at(dial_url: Url, is_own: bool) -> Target {
        let url = dial_url.as_str().to_owned();
        let authority = RefCell::new(authority(&dial_url));
        let (idle, has_reaper) = (IdleLinks::new(IDLE_LINKS_MAX), Cell::new(false));
        Target { url, dial_url, is_own, authority, idle, has_reaper }
    }

    /// Returns true if the member is reached over TLS.
    pub(crate) fn is_secure(&self) -> bool {
        self.dial_url.scheme().is_secure()
    }

    /// Returns true if the URL is a loopback address or a Unix socket, so the member is on the console's
    /// machine.
    pub(crate) fn is_local(&self) -> bool {
        self.dial_url.is_local()
    }

    /// Sets the host for the `Host` header to that of the URL that clients use. A member may refuse requests
    /// with the address of its listener as the host (`--host-whitelist`).
    pub(crate) fn set_authority(&self, url: &Url) {
        self.authority.replace(authority(url));
    }

    /// Returns the addresses to which connections are made.
    async fn addresses(&self, names: &Rc<NameLookUps>) -> io::Result<Vec<SocketAddr>> {
        let (host, port) = (reachable(self.dial_url.host()).to_owned(), self.dial_url.port());
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        // Look up the name with port 0, so that targets with the same host and different ports share the
        // look-up.
        let look_up = |host: String| async move { Ok(tokio::net::lookup_host((host, 0)).await?.collect()) };
        let mut addresses = names.find(&host, || look_up(host.clone())).await?;
        addresses.iter_mut().for_each(|address| address.set_port(port));
        Ok(addresses)
    }

    /// Keeps a connection for the next request, if there are not too many already.
    pub(crate) fn keep(self: &Rc<Target>, link: Link, limits: &Limits) {
        let is_kept = self.idle.keep(link, Instant::now() + limits.idle_link);
        if is_kept && !self.has_reaper.replace(true) {
            spawn_local(Target::reap(Rc::clone(self)));
        }
    }

    /// Closes idle connections when their time has passed. Ends when there are none, so that a console
    /// without clients has no timer.
    async fn reap(self: Rc<Target>) {
        while let Some(next) = self.idle.sweep() {
            tokio::time::sleep_until(next.into()).await;
        }
        self.has_reaper.set(false);
    }
}

/// Reason why a member did not respond.
#[derive(Debug)]
pub(crate) enum UpstreamError {
    /// No connection could be opened.
    Unreachable(String),
    /// Connecting took too long.
    Late(String),
    /// The connection broke before the response began, so it is unknown whether the member has carried out
    /// the request.
    Broken(String),
}

/// Opens connections to members.
pub(crate) struct Dialer {
    tls: ClientTls,
    pub(crate) files: FileWatch,
    pub(crate) limits: Limits,
    names: Rc<NameLookUps>,
}

impl Dialer {
    pub(crate) fn new(tls: ClientTls, files: Vec<Reloader>, limits: Limits) -> Dialer {
        Dialer { tls, files: FileWatch::new(files), limits, names: Rc::default() }
    }

    /// Sends a request, and waits for the headers of the response. Prefers a connection that was kept. If the
    /// member has closed it meanwhile, sends the request again on another one, provided that nothing of it
    /// was sent before, or that it only reads a page.
    pub(crate) async fn send(
        &self,
        target: &Target,
        mut request: Request<UpstreamBody>,
    ) -> Result<(Link, Response<Incoming>), UpstreamError> {
        request.headers_mut().insert(HOST, target.authority.borrow().clone());
        let page = Some(&request).filter(|request| request.method() == Method::GET).map(|request| {
            let mut page = Request::new(());
            *page.uri_mut() = request.uri().clone();
            page.headers_mut().clone_from(request.headers());
            page
        });
        let again = || page.as_ref().map(|page| page.clone().map(|()| UpstreamBody::Whole(None)));
        let connect = async || self.connect(target).await;
        let broken = |error| UpstreamError::Broken(format!("{}: {}", target.url, text(&error)));
        http1::send(&target.idle, request, again, connect, broken).await
    }

    async fn connect(&self, target: &Target) -> Result<Link, UpstreamError> {
        let limit = self.limits.dial_timeout;
        let wire = match timeout(limit, self.dial(target)).await {
            Ok(Ok(wire)) => wire,
            Ok(Err(error)) => {
                return Err(UpstreamError::Unreachable(format!("{} cannot be reached: {error}", target.url)));
            }
            Err(_) => {
                let within = cli::go::duration(limit);
                return Err(UpstreamError::Late(format!("{}: no connection within {within}", target.url)));
            }
        };
        let socket = Socket::new(wire, 0, self.limits.stall_timeout);
        let socket = SharedSocket(Rc::new(RefCell::new(socket)));
        let mut builder = hyper::client::conn::http1::Builder::new();
        builder.max_buf_size(self.limits.buffer_bytes);
        let link = Link::start(socket, &builder).await;
        link.map_err(|error| UpstreamError::Broken(format!("{}: {}", target.url, text(&error))))
    }

    async fn dial(&self, target: &Target) -> io::Result<Wire<Stream>> {
        let url = &target.dial_url;
        let stream = if url.scheme().is_unix() {
            Stream::Unix(UnixStream::connect(url.host()).await?)
        } else {
            let stream = TcpStream::connect(target.addresses(&self.names).await?.as_slice()).await?;
            prepare(&stream);
            Stream::Tcp(stream)
        };
        if !url.scheme().is_secure() {
            return Ok(Wire::Plain(stream));
        }
        self.files.reload_changed();
        let name = self.tls.server_name(server_name(url)).map_err(io::Error::other)?;
        let config = if target.is_own { self.tls.config_for_own_listener() } else { self.tls.config() };
        let connection = ClientConnection::new(config, name).map_err(io::Error::other)?;
        // Accept the end of a TLS connection without `close_notify`: HTTP itself shows whether the response
        // is complete.
        let stream = transport::connect(stream, connection, TLS_BUFFERS, Ending::Any).await?;
        Ok(Wire::Tls(Box::new(stream)))
    }
}

/// Reloads changed TLS files when a connection is made, so that a console without clients reads no files. It
/// only has the reloaders that no thread of a member runs.
pub(crate) struct FileWatch {
    reloaders: RefCell<Vec<Reloader>>,
    checked_at: Cell<Instant>,
}

impl FileWatch {
    fn new(reloaders: Vec<Reloader>) -> FileWatch {
        FileWatch { reloaders: RefCell::new(reloaders), checked_at: Cell::new(Instant::now()) }
    }

    pub(crate) fn reload_changed(&self) {
        if self.checked_at.get().elapsed() < RELOAD_INTERVAL {
            return;
        }
        self.checked_at.set(Instant::now());
        let now = SystemTime::now();
        for reloader in self.reloaders.borrow_mut().iter_mut() {
            // Poll twice, because a change takes effect at the second poll that sees it. Ignore the result:
            // if the new files cannot be used, the loaded ones stay in use.
            let _ = reloader.poll(now).or_else(|| reloader.poll(now));
        }
    }
}

/// Returns the value of the `Host` header for a URL: its host and port.
fn authority(url: &Url) -> HeaderValue {
    let authority = match url.scheme().is_unix() {
        true => "localhost".to_owned(),
        false if url.host().contains(':') => format!("[{}]:{}", url.host(), url.port()),
        false => format!("{}:{}", url.host(), url.port()),
    };
    HeaderValue::try_from(authority).unwrap_or(HeaderValue::from_static("localhost"))
}

/// Returns the address at which this machine reaches a listener with this host. This differs from the host
/// only if it means all addresses.
fn reachable(host: &str) -> &str {
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) if address.is_unspecified() => "127.0.0.1",
        Ok(IpAddr::V6(address)) if address.is_unspecified() => "::1",
        _ => host,
    }
}

/// Returns the name for which the member's certificate must be valid: the host, or the file name of the Unix
/// socket.
fn server_name(url: &Url) -> &str {
    match url.scheme().is_unix() {
        true => url.host().rsplit('/').next().unwrap_or_default(),
        false => reachable(url.host()),
    }
}

/// Returns the message of the error's cause, which is more precise, or the error's own message if it has no
/// cause.
pub(crate) fn text(error: &hyper::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// A connection to a member. Dropping it closes the connection.
pub(crate) type Link = http1::Link<UpstreamBody>;
