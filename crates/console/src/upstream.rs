//! Connections to members: [`Target`] is a member with the idle connections that are kept for it, [`Dialer`]
//! opens connections, [`Link`] is one connection. Dropping a link closes the connection at once, which
//! cancels its request.

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

/// Largest number of idle connections kept for one member: as many as a browser opens at a time.
const IDLE_LINKS_MAX: usize = 6;
/// Interval at which the TLS files are read while connections are opened.
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);

/// A member and the way to reach it.
pub(crate) struct Target {
    /// URL that is shown.
    pub(crate) url: String,
    /// URL to which connections are made.
    dial_url: Url,
    /// True if this is a listener of the same process, whose certificate is known.
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

    /// Returns true if the member is on the same machine as the console.
    pub(crate) fn is_local(&self) -> bool {
        self.dial_url.is_local()
    }

    /// Sets the `Host` header to the host that clients use: the member may not accept requests for the
    /// address where it listens (`--host-whitelist`).
    pub(crate) fn set_authority(&self, url: &Url) {
        self.authority.replace(authority(url));
    }

    /// Returns the addresses of the host.
    async fn addresses(&self, names: &Rc<NameLookUps>) -> io::Result<Vec<SocketAddr>> {
        let (host, port) = (reachable(self.dial_url.host()).to_owned(), self.dial_url.port());
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        // Targets with different ports share look-ups.
        let look_up = |host: String| async move { Ok(tokio::net::lookup_host((host, 0)).await?.collect()) };
        let mut addresses = names.find(&host, || look_up(host.clone())).await?;
        addresses.iter_mut().for_each(|address| address.set_port(port));
        Ok(addresses)
    }

    /// Keeps a connection for the next request.
    pub(crate) fn keep(self: &Rc<Target>, link: Link, limits: &Limits) {
        let is_kept = self.idle.keep(link, Instant::now() + limits.idle_link);
        if is_kept && !self.has_reaper.replace(true) {
            spawn_local(Target::reap(Rc::clone(self)));
        }
    }

    /// Closes idle connections whose time has passed, until none is left: an unused console has no timer.
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
    /// No connection could be made.
    Unreachable(String),
    /// Connecting took too long.
    Late(String),
    /// The connection broke before the response began.
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

    /// Sends a request and waits for the head of its response. If the member has closed a kept connection,
    /// the request is sent again on another connection, provided that nothing of the request was sent, or
    /// that the request only reads a page.
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
        // Some servers end a TLS connection without close_notify. HTTP itself shows whether the response is
        // complete.
        let stream = transport::connect(stream, connection, TLS_BUFFERS, Ending::Any).await?;
        Ok(Wire::Tls(Box::new(stream)))
    }
}

/// Reloads changed TLS files when a connection is made, if no thread of a member does it: an unused console
/// reads no files.
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
            // A change takes effect at the second poll that sees it, so the files are polled twice. If the
            // new files cannot be used, the loaded ones stay in use.
            let _ = reloader.poll(now).or_else(|| reloader.poll(now));
        }
    }
}

/// Returns the host of a URL with its port.
fn authority(url: &Url) -> HeaderValue {
    let authority = match url.scheme().is_unix() {
        true => "localhost".to_owned(),
        false if url.host().contains(':') => format!("[{}]:{}", url.host(), url.port()),
        false => format!("{}:{}", url.host(), url.port()),
    };
    HeaderValue::try_from(authority).unwrap_or(HeaderValue::from_static("localhost"))
}

/// Returns the address at which this machine reaches a listener that listens on all addresses.
fn reachable(host: &str) -> &str {
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) if address.is_unspecified() => "127.0.0.1",
        Ok(IpAddr::V6(address)) if address.is_unspecified() => "::1",
        _ => host,
    }
}

/// Returns the name that the certificate must have: the host, or the name of the socket's file.
fn server_name(url: &Url) -> &str {
    match url.scheme().is_unix() {
        true => url.host().rsplit('/').next().unwrap_or_default(),
        false => reachable(url.host()),
    }
}

/// Returns the text of an error of hyper; the cause is more precise if there is one.
pub(crate) fn text(error: &hyper::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// A connection to a member. Dropping it closes the connection.
pub(crate) type Link = http1::Link<UpstreamBody>;
