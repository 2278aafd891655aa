//! Provides byte streams over TCP and Unix sockets, with or without TLS. Reads and writes never block once a
//! stream is set up.

use std::io::{self, IoSlice, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use http2::Output;
use socket2::SockRef;

use crate::loadgen::EndpointError;

/// Maximum number of buffers that one write sends.
const PIECES_MAX: usize = 64;

/// Address of a server.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Either `host:port`, or the path of a Unix socket.
    pub address: String,
    /// True if `address` is the path of a Unix socket.
    pub unix: bool,
    /// TLS settings; `None` for plain text.
    pub tls: Option<Arc<rustls::ClientConfig>>,
}

impl Endpoint {
    /// Parses an endpoint as etcd's client does. The scheme determines whether TLS is used. Without a scheme,
    /// TLS is used if `tls` is given.
    pub fn parse(text: &str, tls: Option<&Arc<rustls::ClientConfig>>) -> Result<Self, EndpointError> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
        let (unix, wants_tls) = match scheme {
            "" => (false, tls.is_some()),
            "http" => (false, false),
            "https" => (false, true),
            "unix" => (true, false),
            "unixs" => (true, true),
            _ => {
                return Err(EndpointError::UnknownScheme {
                    endpoint: text.to_owned(),
                    scheme: scheme.to_owned(),
                });
            }
        };
        let address = if unix { rest } else { rest.split('/').next().unwrap_or_default() };
        if address.is_empty() || !unix && !address.contains(':') {
            return Err(EndpointError::NoAddress(text.to_owned()));
        }
        let tls = match (wants_tls, tls) {
            (false, _) => None,
            (true, Some(tls)) => Some(tls.clone()),
            (true, None) => {
                return Err(EndpointError::NoTls(text.to_owned()));
            }
        };
        Ok(Self { address: address.to_owned(), unix, tls })
    }

    /// Returns the host name, without the port and the brackets around an IPv6 address; `localhost` for a
    /// Unix socket.
    pub fn host(&self) -> &str {
        if self.unix {
            return "localhost";
        }
        let host = self.address.rsplit_once(':').map_or(self.address.as_str(), |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// One end of a connection, with its TLS state.
pub struct Socket {
    stream: Stream,
    tls: Option<Box<rustls::Connection>>,
}

impl Socket {
    /// Connects to the server, completes the TLS handshake if there is one, and makes the socket
    /// non-blocking. Connecting may take up to `longest` for each address of the host.
    pub fn connect(endpoint: &Endpoint, longest: Duration) -> io::Result<Self> {
        let stream = if endpoint.unix {
            Stream::Unix(UnixStream::connect(&endpoint.address)?)
        } else {
            let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
            let mut found = None;
            for address in endpoint.address.to_socket_addrs()? {
                match TcpStream::connect_timeout(&address, longest) {
                    Ok(stream) => {
                        found = Some(stream);
                        break;
                    }
                    Err(error) => last = error,
                }
            }
            let stream = found.ok_or(last)?;
            stream.set_nodelay(true)?;
            Stream::Tcp(stream)
        };
        let mut socket = Self { stream, tls: None };
        if let Some(config) = &endpoint.tls {
            let name = rustls::pki_types::ServerName::try_from(endpoint.host().to_owned()).map_err(|_| {
                io::Error::new(io::ErrorKind::InvalidInput, "no name to verify a certificate by")
            })?;
            let mut tls = rustls::ClientConnection::new(config.clone(), name).map_err(io::Error::other)?;
            socket.set_timeout(Some(longest))?;
            while tls.is_handshaking() {
                match &mut socket.stream {
                    Stream::Tcp(stream) => tls.complete_io(stream)?,
                    Stream::Unix(stream) => tls.complete_io(stream)?,
                };
            }
            socket.set_timeout(None)?;
            if tls.alpn_protocol() != Some(b"h2") {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the server does not speak HTTP/2 over TLS",
                ));
            }
            socket.tls = Some(Box::new(rustls::Connection::Client(tls)));
        }
        socket.set_nonblocking()?;
        Ok(socket)
    }

    /// Begins to connect to an address of the server, from an address of this machine if one is given, and does
    /// not wait. The TLS handshake, if any, takes place during later reads and writes.
    pub fn begin(endpoint: &Endpoint, address: SocketAddr, source: Option<IpAddr>) -> io::Result<Self> {
        let socket = socket2::Socket::new(
            socket2::Domain::for_address(address),
            socket2::Type::STREAM.nonblocking().cloexec(),
            Some(socket2::Protocol::TCP),
        )?;
        socket.set_tcp_nodelay(true)?;
        if let Some(source) = source {
            socket.bind(&SocketAddr::new(source, 0).into())?;
        }
        match socket.connect(&address.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {}
            Err(error) => return Err(error),
        }
        let tls = match &endpoint.tls {
            None => None,
            Some(config) => {
                let name = rustls::pki_types::ServerName::try_from(endpoint.host().to_owned())
                    .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
                let tls = rustls::ClientConnection::new(config.clone(), name).map_err(io::Error::other)?;
                Some(Box::new(rustls::Connection::Client(tls)))
            }
        };
        Ok(Self { stream: Stream::Tcp(socket.into()), tls })
    }

    /// Returns how the TLS handshake was done; `None` without TLS, or before the handshake is complete.
    pub fn handshake_kind(&self) -> Option<rustls::HandshakeKind> {
        self.tls.as_ref().filter(|tls| !tls.is_handshaking()).and_then(|tls| tls.handshake_kind())
    }

    /// Creates the server's end of a connection that was accepted. The TLS handshake, if any, takes place
    /// during later reads.
    pub fn accepted(stream: TcpStream, tls: Option<&Arc<rustls::ServerConfig>>) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let tls = tls
            .map(|config| rustls::ServerConnection::new(config.clone()).map_err(io::Error::other))
            .transpose()?
            .map(|tls| Box::new(rustls::Connection::Server(tls)));
        let socket = Self { stream: Stream::Tcp(stream), tls };
        socket.set_nonblocking()?;
        Ok(socket)
    }

    fn set_timeout(&self, time: Option<Duration>) -> io::Result<()> {
        match &self.stream {
            Stream::Tcp(stream) => stream.set_read_timeout(time),
            Stream::Unix(stream) => stream.set_read_timeout(time),
        }
    }

    fn set_nonblocking(&self) -> io::Result<()> {
        match &self.stream {
            Stream::Tcp(stream) => stream.set_nonblocking(true),
            Stream::Unix(stream) => stream.set_nonblocking(true),
        }
    }

    /// Reads bytes that are available. Returns `WouldBlock` if there are none, and 0 at the end of the
    /// stream.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.stream.read(buffer) };
        loop {
            match tls.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Treat the end of a TLS connection without a close_notify alert as a normal end.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                done => return done,
            }
            if tls.read_tls(&mut self.stream)? == 0 {
                return Ok(0);
            }
            let processed = tls.process_new_packets();
            while tls.wants_write() {
                match tls.write_tls(&mut self.stream) {
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
            processed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
    }

    /// Sends all of the output. Returns `WouldBlock` if some of it could not be sent and is left in `output`
    /// or in the TLS buffer.
    pub fn send(&mut self, output: &mut Output) -> io::Result<()> {
        while !output.is_empty() {
            match self.send_some(output) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => done?,
            }
        }
        self.flush()
    }

    fn send_some(&mut self, output: &mut Output) -> io::Result<()> {
        self.flush()?;
        let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
        let count = output.slices(&mut pieces);
        let bytes = match &mut self.tls {
            None => self.stream.write_vectored(&pieces[..count])?,
            Some(tls) => tls.writer().write_vectored(&pieces[..count])?,
        };
        output.advance(bytes);
        Ok(())
    }

    /// Sends the bytes in the TLS buffer. Returns `WouldBlock` if some of them could not be sent.
    fn flush(&mut self) -> io::Result<()> {
        if let Some(tls) = &mut self.tls {
            while tls.wants_write() {
                match tls.write_tls(&mut self.stream) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    done => drop(done?),
                }
            }
        }
        Ok(())
    }

    /// Returns the TCP segment size for sending to the peer, which the kernel derives from the MTU; `None` if
    /// it is unknown or the socket is not TCP.
    pub fn segment_bytes(&self) -> Option<u32> {
        let Stream::Tcp(stream) = &self.stream else { return None };
        SockRef::from(stream).tcp_mss().ok()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.stream {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write_vectored(pieces),
            Stream::Unix(stream) => stream.write_vectored(pieces),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_as_etcds_client_reads_them() {
        let parse = |text| Endpoint::parse(text, None);
        assert_eq!(parse("127.0.0.1:2379").unwrap().address, "127.0.0.1:2379");
        assert_eq!(parse("http://[::1]:2379/").unwrap().host(), "::1");
        assert_eq!(parse("unix:///run/etcd").unwrap().address, "/run/etcd");
        for broken in ["", "host", "ftp://a:1", "https://a:1", "http://"] {
            assert!(parse(broken).is_err(), "{broken}");
        }
    }
}
