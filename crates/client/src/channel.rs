use std::io;
use std::time::Duration;

use api::{Code, Status};
use bytes::Bytes;
use h2::client::SendRequest;
use http::{Request, Uri, uri};
use tokio::net::{TcpStream, ToSocketAddrs};
use tokio::task::JoinHandle;

use crate::call::{CallOptions, Receiver, Sender};

/// Receive windows, in bytes: large, so that the client is not what a test waits for.
const WINDOW_BYTES: u32 = 4 * 1024 * 1024;

/// One connection to a server. Clones share it; it closes when the last clone and call are gone.
#[derive(Clone)]
pub struct Channel {
    requests: SendRequest<Bytes>,
    authority: uri::Authority,
}

impl Channel {
    /// Connects over plain TCP. Must run in a tokio runtime, which then drives the connection.
    ///
    /// # Errors
    /// The address cannot be reached, or its server does not speak HTTP/2.
    pub async fn connect(address: impl ToSocketAddrs) -> io::Result<Channel> {
        Channel::connect_with(address, WINDOW_BYTES).await.map(|(channel, _)| channel)
    }

    /// As [`Channel::connect`], with this receive window per stream and connection, in bytes. The task that
    /// drives the connection comes along: it ends with the connection, and aborting it breaks it.
    ///
    /// # Errors
    /// As [`Channel::connect`].
    pub async fn connect_with(
        address: impl ToSocketAddrs,
        window_bytes: u32,
    ) -> io::Result<(Channel, JoinHandle<()>)> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let authority = stream.peer_addr()?.to_string().parse().map_err(io::Error::other)?;
        let (requests, connection) = h2::client::Builder::new()
            .initial_window_size(window_bytes)
            .initial_connection_window_size(window_bytes)
            .handshake(stream)
            .await
            .map_err(io::Error::other)?;
        let driver = tokio::spawn(async move {
            // Every call hears of a broken connection by itself.
            let _ = connection.await;
        });
        Ok((Channel { requests, authority }, driver))
    }

    /// Calls a unary method.
    ///
    /// # Errors
    /// The server's status, or the client's own: `Unavailable` when the connection is broken.
    pub async fn unary(&self, path: &str, message: Bytes) -> Result<Bytes, Status> {
        self.unary_with(path, &CallOptions::default(), message).await
    }

    /// As [`Channel::unary`], with metadata and a deadline.
    ///
    /// # Errors
    /// As [`Channel::unary`], and `DeadlineExceeded`.
    pub async fn unary_with(
        &self,
        path: &str,
        options: &CallOptions,
        message: Bytes,
    ) -> Result<Bytes, Status> {
        let call = async {
            let (mut sender, mut receiver) = self.stream_with(path, options).await?;
            sender.send_last(message).await?;
            let answer = receiver.next().await?;
            match answer {
                Some(answer) => match receiver.next().await? {
                    None => Ok(answer),
                    Some(_) => Err(Status::new(Code::Internal, "more than one answer to a unary call")),
                },
                None => Err(Status::new(Code::Internal, "no answer to a unary call")),
            }
        };
        within(options.timeout, call).await
    }

    /// Opens a streaming call of either kind.
    ///
    /// # Errors
    /// `Unavailable` when the connection is broken.
    pub async fn stream(&self, path: &str) -> Result<(Sender, Receiver), Status> {
        self.stream_with(path, &CallOptions::default()).await
    }

    /// As [`Channel::stream`], with metadata and a deadline, which the server keeps.
    ///
    /// # Errors
    /// As [`Channel::stream`].
    pub async fn stream_with(&self, path: &str, options: &CallOptions) -> Result<(Sender, Receiver), Status> {
        let invalid = |error: http::Error| Status::with(Code::InvalidArgument, error.to_string());
        let uri = Uri::builder()
            .scheme(uri::Scheme::HTTP)
            .authority(self.authority.clone())
            .path_and_query(path)
            .build()
            .map_err(invalid)?;
        let mut request = Request::post(uri)
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("user-agent", concat!("mainstay-client/", env!("CARGO_PKG_VERSION")));
        if let Some(timeout) = options.timeout {
            request = request.header("grpc-timeout", grpc_timeout(timeout));
        }
        for (key, value) in &options.metadata {
            request = request.header(key, value);
        }
        let request = request.body(()).map_err(invalid)?;
        let mut requests = self.requests.clone().ready().await.map_err(broken)?;
        let (response, send) = requests.send_request(request, false).map_err(broken)?;
        Ok((Sender::new(send), Receiver::new(response, options.message_bytes_max)))
    }
}

/// What a call hears when the connection failed under it.
pub(crate) fn broken(error: h2::Error) -> Status {
    let code = match error.reason() {
        Some(h2::Reason::CANCEL) if error.is_reset() => Code::Canceled,
        Some(h2::Reason::REFUSED_STREAM) => Code::Unavailable,
        Some(_) if error.is_reset() => Code::Internal,
        _ => Code::Unavailable,
    };
    Status::with(code, format!("connection error: {error}"))
}

async fn within<T>(
    timeout: Option<Duration>,
    call: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    match timeout {
        None => call.await,
        Some(timeout) => match tokio::time::timeout(timeout, call).await {
            Ok(result) => result,
            Err(_) => Err(Status::new(Code::DeadlineExceeded, "context deadline exceeded")),
        },
    }
}

/// The header's form: at most 8 digits and a unit.
fn grpc_timeout(timeout: Duration) -> String {
    let micros = timeout.as_micros();
    if micros < 100_000_000 {
        format!("{}u", micros.max(1))
    } else if timeout.as_millis() < 100_000_000 {
        format!("{}m", timeout.as_millis())
    } else {
        format!("{}S", timeout.as_secs().min(99_999_999))
    }
}
