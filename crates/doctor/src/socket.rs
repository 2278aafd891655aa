//! Reads Linux's statistics about a TCP connection. This crate's only unsafe code is the calls of
//! `getsockopt` and `setsockopt` here.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use tokio::net::{TcpSocket, TcpStream};

/// A duplicate of a connection's file descriptor. It allows reading the statistics while another owner uses
/// the stream.
#[derive(Debug)]
pub struct Observer {
    socket: OwnedFd,
    is_v6: bool,
}

/// Statistics of a TCP connection, read from `struct tcp_info` of linux/tcp.h. New kernels only append fields
/// to it. A field that the kernel does not have is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpFigures {
    /// Largest payload of a sent segment (MSS), in bytes.
    pub segment_bytes: u32,
    /// MTU of the path, as far as the kernel has learned it, in bytes.
    pub path_mtu: u32,
    /// Smoothed round trip time, in microseconds.
    pub rtt_micros: u32,
    /// Number of segments that were retransmitted since the connection was opened.
    pub resent: u32,
    /// Number of segments with data that were sent, including retransmitted ones; 0 if the kernel does not
    /// report it.
    pub data_segments_sent: u32,
}

impl Observer {
    /// Returns an observer of this connection.
    ///
    /// # Errors
    ///
    /// Returns an error if the process has no free file descriptor.
    pub fn of(stream: &TcpStream) -> io::Result<Observer> {
        let is_v6 = stream.local_addr()?.is_ipv6();
        Ok(Observer { socket: stream.as_fd().try_clone_to_owned()?, is_v6 })
    }

    /// Returns the current statistics of the connection.
    ///
    /// # Errors
    /// Returns an error if the kernel does not provide any statistics.
    pub fn figures(&self) -> io::Result<TcpFigures> {
        let mut bytes = [0u8; 256];
        let filled = option(self.socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, &mut bytes)?;
        Ok(read_figures(&bytes[..filled]))
    }

    /// Returns the MTU of the route, which the kernel lowers when it learns that the path's MTU is smaller.
    ///
    /// # Errors
    /// Returns an error if the kernel does not provide the MTU.
    pub fn mtu(&self) -> io::Result<u32> {
        let (level, name) = match self.is_v6 {
            true => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
            false => (libc::IPPROTO_IP, libc::IP_MTU),
        };
        let mut bytes = [0u8; 4];
        option(self.socket.as_fd(), level, name, &mut bytes)?;
        Ok(u32::from_ne_bytes(bytes))
    }
}

/// Opens a TCP connection whose segments have at most `segment_bytes` bytes of payload.
///
/// # Errors
/// Returns an error if connecting or setting the segment size fails.
pub async fn connect_with_segments(to: SocketAddr, segment_bytes: i32) -> io::Result<TcpStream> {
    let socket = if to.is_ipv6() { TcpSocket::new_v6()? } else { TcpSocket::new_v4()? };
    let value = segment_bytes.to_ne_bytes();
    // SAFETY: the descriptor is open, because `socket` is alive. Pointer and length describe an array that is
    // alive and has the size of a C int; the kernel only reads it.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_MAXSEG,
            value.as_ptr().cast(),
            value.len() as libc::socklen_t,
        )
    };
    if set != 0 {
        return Err(io::Error::last_os_error());
    }
    socket.connect(to).await
}

/// Reads a socket option into `into`. Returns the number of bytes that the kernel has written.
fn option(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    into: &mut [u8],
) -> io::Result<usize> {
    let mut length = into.len() as libc::socklen_t;
    // SAFETY: the descriptor is open, because `socket` borrows it. The kernel writes at most `length` bytes,
    // which is the length of the slice, and then sets `length` to the number of bytes written.
    let got = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, name, into.as_mut_ptr().cast(), &raw mut length)
    };
    if got == 0 { Ok((length as usize).min(into.len())) } else { Err(io::Error::last_os_error()) }
}

fn read_figures(bytes: &[u8]) -> TcpFigures {
    let field = |at: usize| {
        let four = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
        four.map_or(0, u32::from_ne_bytes)
    };
    TcpFigures {
        segment_bytes: field(16),
        path_mtu: field(60),
        rtt_micros: field(68),
        resent: field(100),
        data_segments_sent: field(156),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt as _;

    #[test]
    fn old_kernels_fill_less() {
        let mut bytes = [0u8; 104];
        bytes[60..64].copy_from_slice(&1500u32.to_ne_bytes());
        let figures = read_figures(&bytes);
        assert_eq!((figures.path_mtu, figures.data_segments_sent), (1500, 0));
        assert_eq!(read_figures(&[]), TcpFigures::default());
    }

    #[test]
    fn a_connection_over_loopback() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut stream = connect_with_segments(listener.local_addr().unwrap(), 536).await.unwrap();
            stream.write_all(b"hello").await.unwrap();
            let observer = Observer::of(&stream).unwrap();
            let figures = observer.figures().unwrap();
            assert!(figures.segment_bytes <= 536 && figures.path_mtu >= 536, "{figures:?}");
            assert!(observer.mtu().unwrap() >= 536);
            // After the stream is dropped, the observer can still read figures.
            drop(stream);
            assert!(observer.figures().is_ok());
        });
    }
}
