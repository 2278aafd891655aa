//! Client side of TLS: a plain connection to the tunnel reaches a server over TLS.

use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::JoinHandle;

use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use stdx::{First, race};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio_rustls::TlsConnector;

/// Sizes into which a tunnel splits its output.
#[derive(Clone, Copy)]
pub struct Pieces {
    /// Maximum number of plaintext bytes per record.
    pub plain: usize,
    /// Maximum number of bytes per write.
    pub wire: usize,
}

pub const WHOLE: Pieces = Pieces { plain: 16_384, wire: usize::MAX };

/// Tunnel that is open until dropped.
pub struct Tunnel {
    pub address: SocketAddr,
    close: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Tunnel {
    /// Opens a tunnel to a server on this host.
    pub fn to(server: SocketAddr, config: Arc<ClientConfig>, pieces: Pieces) -> Tunnel {
        let (listener, address) = testkit::ports::listen();
        listener.set_nonblocking(true).unwrap();
        let (close, closed) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let local = tokio::task::LocalSet::new();
            local.block_on(&runtime, async {
                let listener = TcpListener::from_std(listener).unwrap();
                tokio::task::spawn_local(async move {
                    loop {
                        let (inner, _) = listener.accept().await.unwrap();
                        let config = config.clone();
                        // An error closes both ends, which the test observes.
                        tokio::task::spawn_local(async move { pump(inner, server, config, pieces).await });
                    }
                });
                let _ = closed.await;
            });
        });
        Tunnel { address, close: Some(close), thread: Some(thread) }
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        drop(self.close.take());
        self.thread.take().map(JoinHandle::join);
    }
}

async fn pump(
    inner: TcpStream,
    server: SocketAddr,
    config: Arc<ClientConfig>,
    pieces: Pieces,
) -> io::Result<()> {
    let outer = TcpStream::connect(server).await?;
    outer.set_nodelay(true)?;
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let outer = Cut { stream: outer, most: pieces.wire };
    let outer = TlsConnector::from(config).connect(name, outer).await?;
    let (mut from_server, mut to_server) = tokio::io::split(outer);
    let (mut from_client, mut to_client) = tokio::io::split(inner);
    let there = async {
        let mut buffer = vec![0; 65_536];
        loop {
            let n = from_client.read(&mut buffer).await?;
            if n == 0 {
                return to_server.shutdown().await;
            }
            for piece in buffer[..n].chunks(pieces.plain) {
                to_server.write_all(piece).await?;
                to_server.flush().await?;
            }
        }
    };
    let back = async {
        // A server that closes without `close_notify` also counts as closed.
        let _ = tokio::io::copy(&mut from_server, &mut to_client).await;
        to_client.shutdown().await
    };
    let (mut there, mut back) = (pin!(there), pin!(back));
    match race(there.as_mut(), back.as_mut()).await {
        First::Left(Ok(())) => back.await,
        First::Left(Err(error)) => Err(error),
        First::Right(result) => result,
    }
}

/// Stream that accepts few bytes per write.
struct Cut {
    stream: TcpStream,
    most: usize,
}

impl AsyncRead for Cut {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl AsyncWrite for Cut {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let some = &bytes[..bytes.len().min(self.most)];
        Pin::new(&mut self.stream).poll_write(cx, some)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
