//! Opens the sockets of a member: resolves each URL to an address or a file, and replaces and removes the
//! files of Unix sockets.
//!
//! As in etcd, the umask of the process determines the permissions of a Unix socket's file, a file left
//! behind by a killed member is replaced, and a member removes its own files when it stops. Unlike etcd, no
//! other file is ever removed (COMPAT-132).

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use config::{Config, Url};
use front::{ListenerSocket, Protocols};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tls::ServerTls;

use crate::error::StartError;
use crate::tls::{MemberTls, TlsError};

/// Length of the kernel's queue of connections that the member has not accepted yet.
const BACKLOG: i32 = 4096;
/// Longest path of a Unix socket in bytes: the size of `sun_path` without the terminating zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// The addresses on which a member listens, as URLs.
pub struct Listening {
    /// URLs for clients.
    pub clients: Vec<String>,
    /// URLs for clients that request HTTP pages; empty if no separate addresses are configured.
    pub pages: Vec<String>,
    /// URLs for other members.
    pub peers: Vec<String>,
    /// URLs of the console, for browsers.
    pub console: Vec<String>,
}

/// The sockets of a member, which listen already.
pub(crate) struct Listeners {
    /// Sockets of `--listen-client-urls`, followed by those of `--listen-client-http-urls`: one for each
    /// address.
    pub(crate) clients: Vec<front::Listener>,
    /// Index into `clients` for each URL of both flags, in the order of the flags.
    client_of_url: Vec<usize>,
    pub(crate) peers: Vec<peer::Listener>,
    pub(crate) metrics: Vec<front::Listener>,
    pub(crate) console: Vec<console::Listener>,
    /// Files of the Unix sockets.
    pub(crate) files: Vec<SocketFile>,
}

impl Listeners {
    /// Opens listening sockets for all URLs of the options. The URLs for members come first, as in etcd.
    ///
    /// # Errors
    ///
    /// Returns the URL at which the member cannot listen, and the reason.
    pub(crate) fn bind(config: &Config, tls: &MemberTls) -> Result<Listeners, StartError> {
        let mut files = Vec::new();
        let mut peers = Vec::new();
        for url in &config.listen.peer_urls {
            let tls = tls.for_peers(url)?;
            let socket = listen(url, config, &mut files)?;
            peers.push(peer::Listener { socket, tls });
        }
        let mut bind = |url: &Url, tls: Result<Option<ServerTls>, TlsError>, serves, checks_address| {
            let socket = listen(url, config, &mut files)?;
            Ok::<_, StartError>(front::Listener {
                tls: tls?,
                also_plain: false,
                socket,
                checks_address,
                serves,
            })
        };
        let has_pages_apart = !config.listen.client_http_urls.is_empty();
        let mut clients: Vec<front::Listener> = Vec::new();
        let (mut addresses, mut client_of_url) = (Vec::new(), Vec::new());
        let of_all = if has_pages_apart { Protocols::Grpc } else { Protocols::All };
        let urls = config.listen.client_urls.iter().map(|url| (url, of_all));
        for (url, serves) in
            urls.chain(config.listen.client_http_urls.iter().map(|url| (url, Protocols::Pages)))
        {
            // As in etcd, one socket serves all URLs of one address, even if one URL uses TLS and another
            // does not.
            let address = (url.scheme().is_unix(), url.host(), url.port(), serves);
            if let Some(at) = addresses.iter().position(|other| *other == address) {
                let listener = &mut clients[at];
                listener.also_plain |= url.scheme().is_secure() != listener.tls.is_some();
                if url.scheme().is_secure() {
                    listener.tls = tls.for_clients(url)?;
                }
                client_of_url.push(at);
                continue;
            }
            client_of_url.push(clients.len());
            addresses.push(address);
            clients.push(bind(url, tls.for_clients(url), serves, false)?);
        }
        let mut metrics = Vec::new();
        for url in &config.listen.metrics_urls {
            // As in etcd, only the listeners for metrics compare names in clients' certificates with the
            // client's address.
            metrics.push(bind(url, tls.for_metrics(url), Protocols::All, true)?);
        }
        let mut console = Vec::new();
        for url in &config.listen.console_urls {
            let tls = tls.for_console(url)?;
            let socket = listen(url, config, &mut files)?;
            console.push(console::Listener { socket, tls, host: url.host().to_owned() });
        }
        Ok(Listeners { clients, client_of_url, peers, metrics, console, files })
    }

    /// Returns the addresses with the real ports, which differ from the URLs where port 0 lets the kernel
    /// choose one.
    pub(crate) fn addresses(&self, config: &Config) -> Listening {
        let taken = |url: &Url, socket: &ListenerSocket| match socket {
            ListenerSocket::Tcp(socket) => match socket.local_addr() {
                Ok(address) if url.port() == 0 => format!("{}://{address}", url.scheme()),
                _ => url.as_str().to_owned(),
            },
            ListenerSocket::Unix(_) => url.as_str().to_owned(),
        };
        let of_client = |(url, at): (&Url, &usize)| taken(url, &self.clients[*at].socket);
        let urls = config.listen.client_urls.iter().chain(&config.listen.client_http_urls);
        let mut clients: Vec<String> = urls.zip(&self.client_of_url).map(of_client).collect();
        let pages = clients.split_off(config.listen.client_urls.len().min(clients.len()));
        let of_peer = |(url, listener): (&Url, &peer::Listener)| taken(url, &listener.socket);
        let peers = config.listen.peer_urls.iter().zip(&self.peers).map(of_peer).collect();
        let of_console = |(url, listener): (&Url, &console::Listener)| taken(url, &listener.socket);
        let console = config.listen.console_urls.iter().zip(&self.console).map(of_console).collect();
        Listening { clients, pages, peers, console }
    }
}

fn listen(url: &Url, config: &Config, files: &mut Vec<SocketFile>) -> Result<ListenerSocket, StartError> {
    if !url.scheme().is_unix() {
        return Ok(ListenerSocket::Tcp(listen_tcp(url, config)?));
    }
    let (socket, file) = listen_unix(Path::new(url.host()))
        .map_err(|error| StartError::Listen { url: url.as_str().to_owned(), error })?;
    files.push(file);
    Ok(ListenerSocket::Unix(socket.into()))
}

fn listen_tcp(url: &Url, config: &Config) -> Result<TcpListener, StartError> {
    let address = resolve(url)?;
    let bind = || -> io::Result<TcpListener> {
        let domain = if address.is_ipv6() { Domain::IPV6 } else { Domain::IPV4 };
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        // As in Go, this option is set for every listener. So the flag `--socket-reuse-address` changes
        // nothing.
        socket.set_reuse_address(true)?;
        if config.listen.reuse_port {
            socket.set_reuse_port(true)?;
        }
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(socket.into())
    };
    bind().map_err(|error| StartError::Listen { url: url.as_str().to_owned(), error })
}

fn resolve(url: &Url) -> Result<SocketAddr, StartError> {
    let failed = |error| StartError::Resolve { url: url.as_str().to_owned(), error };
    (url.host(), url.port())
        .to_socket_addrs()
        .map_err(|error| failed(Some(error)))?
        // IPv4 is preferred, because most clients resolve "localhost" to IPv4 first.
        .min_by_key(|address| address.is_ipv6())
        .ok_or_else(|| failed(None))
}

/// The file of a Unix socket on which this process listens. Dropping this removes the file, unless another
/// file has replaced it.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device number and inode number of the file.
    identity: (u64, u64),
}

impl SocketFile {
    fn new(path: &Path) -> io::Result<SocketFile> {
        // Made absolute, because a relative path would name another file if the process changed its working
        // directory.
        let path = std::path::absolute(path)?;
        Ok(SocketFile { identity: identity(&path)?, path })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|identity| identity == self.identity) {
            // Removal may fail if permissions changed after the file was created; the next start replaces a
            // file that stays.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

fn listen_unix(path: &Path) -> io::Result<(Socket, SocketFile)> {
    let bytes = path.as_os_str().as_bytes().len();
    if bytes > SOCKET_PATH_BYTES_MAX {
        let text = format!(
            "the path of a Unix socket may have at most {SOCKET_PATH_BYTES_MAX} bytes; this one has {bytes}"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let address = SockAddr::unix(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    match socket.bind(&address) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            remove_stale(path, &address)?;
            socket.bind(&address)?;
        }
        bound => bound?,
    }
    let file = SocketFile::new(path)?;
    socket.listen(BACKLOG)?;
    Ok((socket, file))
}

/// Removes the file of a Unix socket on which no process listens any more.
fn remove_stale(path: &Path, address: &SockAddr) -> io::Result<()> {
    let in_use = |text: &str| Err(io::Error::new(io::ErrorKind::AddrInUse, text));
    match fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return in_use("the path is a file that is not a socket: remove it, or choose another path");
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(_) => {}
    }
    let probe = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A process that listens on the socket but does not accept must not block the start of this member.
    probe.set_nonblocking(true)?;
    match probe.connect(address) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        _ => in_use("another process is listening on this socket"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use testkit::TempDir;

    use super::*;

    #[test]
    fn a_socket_file_is_removed_with_its_listener() {
        let dir = TempDir::in_memory("socket-file");
        let path = dir.path().join("s");
        let (socket, file) = listen_unix(&path).unwrap();
        UnixStream::connect(&path).expect("somebody listens");
        drop((socket, file));
        assert!(!path.exists());
    }

    #[test]
    fn the_file_of_a_killed_member_is_replaced() {
        let dir = TempDir::in_memory("socket-stale");
        let path = dir.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "dropping a listener leaves its file");
        let (_socket, _file) = listen_unix(&path).unwrap();
        UnixStream::connect(&path).expect("somebody listens");
    }

    #[test]
    fn what_is_not_a_stale_socket_is_left_alone() {
        let dir = TempDir::in_memory("socket-taken");
        let path = dir.path().join("s");
        fs::write(&path, "precious").unwrap();
        let error = listen_unix(&path).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the path is a file that is not a socket: remove it, or choose another path"
        );
        assert_eq!(fs::read(&path).unwrap(), b"precious");

        let other = dir.path().join("other");
        let listener = UnixListener::bind(&other).unwrap();
        let error = listen_unix(&other).unwrap_err();
        assert_eq!(error.to_string(), "another process is listening on this socket");
        UnixStream::connect(&other).expect("it still does");
        drop(listener);
    }

    #[test]
    fn a_file_that_took_the_place_of_the_socket_is_left_alone() {
        let dir = TempDir::in_memory("socket-replaced");
        let path = dir.path().join("s");
        let (_socket, file) = listen_unix(&path).unwrap();
        fs::rename(&path, dir.path().join("moved")).unwrap();
        fs::write(&path, "").unwrap();
        drop(file);
        assert!(path.exists());
    }

    #[test]
    fn a_path_that_is_too_long_is_refused_with_its_length() {
        let path = PathBuf::from(format!("/{}", "x".repeat(107)));
        let error = listen_unix(&path).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the path of a Unix socket may have at most 107 bytes; this one has 108"
        );
    }
}
