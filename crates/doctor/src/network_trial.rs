//! Measures the network between this machine and one endpoint: round-trip times, bandwidth, packet loss and
//! MTU.

use std::time::Duration;

use crate::evidence::Unseen;
use api::etcdserverpb::{RangeRequest, RangeResponse};
use api::{Code, Rpc, Status};
use bytes::Bytes;

use client::{Address, CallOptions, Channel, Client, Endpoint, Transport};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::quantiles::Quantiles;
use crate::socket::{Observer, TcpFigures, connect_with_segments};

/// Parameters of a network trial.
#[derive(Clone, Debug)]
pub struct NetworkTrial {
    /// Settings for the connections of the trial.
    pub transport: Transport,
    /// Timeout of a request.
    pub within: Duration,
    /// Number of round trips that are measured.
    pub round_trips: usize,
    /// Time for which data is sent, and after that the same time again for which data is received.
    pub time: Duration,
}

/// Result of a network trial.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NetworkResult {
    /// Endpoint of the trial.
    pub endpoint: String,
    /// TLS version; `None` without TLS.
    pub tls: Option<&'static str>,
    /// Times to open a TCP connection, in seconds.
    pub connect: Quantiles,
    /// Duration of the TLS and HTTP/2 handshakes together, in seconds.
    pub handshake: f64,
    /// Durations of health checks, which the server answers without other work, in seconds.
    pub call: Quantiles,
    /// Bytes sent per second, or the reason why they could not be measured; `None` if the trial ended before
    /// the upload.
    pub upload: Option<Result<f64, Unseen>>,
    /// Bytes received per second, or the reason why they could not be measured; `None` if the trial ended
    /// before the download.
    pub download: Option<Result<f64, Unseen>>,
    /// The kernel's counters for the connection, read after the upload.
    pub figures: TcpFigures,
    /// MTU of the route in bytes, as far as the kernel knows it; `None` if the kernel does not report it, or
    /// the trial ended before.
    pub mtu: Option<u32>,
    /// True if large segments are lost on the path while small ones arrive.
    pub is_black_hole: bool,
    /// Reason why the trial ended early.
    pub error: Option<Unseen>,
}

/// Size of an uploaded message in bytes, below the limit of any server. The messages are requests to the
/// health service, because it requires no user and ignores their contents.
const SENT_BYTES: usize = 1024 * 1024;
/// Number of concurrent calls that upload, so that some still send while others wait for their responses.
const SENDERS: usize = 4;
/// Maximum number of bytes that each of the concurrent calls sends. On a fast network, the rate is known
/// after much less.
const SENT_BYTES_MAX: usize = 128 * 1024 * 1024;
/// Number of TCP connections that are opened to measure the time that this takes.
const CONNECTIONS: usize = 20;
/// Two sizes of a response in bytes. Below the first, no download rate is measured, because it would mostly
/// depend on the round-trip time. The number of keys per read is doubled until the next doubling would exceed
/// the second.
const READ_BYTES: (usize, usize) = (64 * 1024, 1024 * 1024);
/// Segment size in bytes that practically every network path lets through. 536 is TCP's default for IPv4.
const SMALL_SEGMENT: i32 = 536;

impl NetworkResult {
    /// Returns the share of segments that were retransmitted; `None` if the kernel does not count them, or
    /// fewer than 20 segments were sent.
    pub fn loss(&self) -> Option<f64> {
        let sent = self.figures.data_segments_sent;
        (sent >= 20).then(|| f64::from(self.figures.resent) / f64::from(sent))
    }
}

impl NetworkTrial {
    /// Runs the trial. The client `client`, which may be logged in as a user, is used only for reads.
    pub async fn run(&self, endpoint: &Endpoint, client: &Client) -> NetworkResult {
        let mut result = NetworkResult { endpoint: endpoint.text.clone(), ..NetworkResult::default() };
        if let Err(why) = self.measure(endpoint, client, &mut result).await {
            result.error = Some(why);
        }
        result
    }

    async fn measure(
        &self,
        endpoint: &Endpoint,
        client: &Client,
        result: &mut NetworkResult,
    ) -> Result<(), Unseen> {
        let Address::Tcp(address) = &endpoint.address else {
            return Err("a Unix socket has no network".into());
        };
        let found =
            tokio::net::lookup_host(address).await.map_err(|error| format!("{address}: {error}"))?.next();
        let to = found.ok_or_else(|| format!("{address}: no such host"))?;
        let patience = self.transport.dial_timeout.unwrap_or(self.within);
        let mut times = Vec::new();
        let mut stream = None;
        for _ in 0..CONNECTIONS {
            let begun = Instant::now();
            let connected = timeout(patience, TcpStream::connect(to)).await;
            let connected = connected.map_err(|_| format!("no connection to {to} in time"))?;
            stream = Some(connected.map_err(|error| format!("{to}: {error}"))?);
            times.push(begun.elapsed().as_secs_f64());
        }
        result.connect = Quantiles::of(times);
        let stream = stream.ok_or("no connection")?;
        stream.set_nodelay(true).map_err(Unseen::because)?;
        let observer = Observer::of(&stream).map_err(Unseen::because)?;
        let begun = Instant::now();
        let channel = Channel::over(stream, endpoint, &self.transport).await.map_err(Unseen::because)?;
        result.handshake = begun.elapsed().as_secs_f64();
        result.tls = channel.peer().map(|peer| peer.version);

        let mut times = Vec::new();
        for _ in 0..self.round_trips {
            let begun = Instant::now();
            answered(ask(&channel, Bytes::new(), self.within).await)?;
            times.push(begun.elapsed().as_secs_f64());
        }
        result.call = Quantiles::of(times);

        let sent = self.upload(&channel).await;
        result.figures = observer.figures().unwrap_or_default();
        result.mtu = observer.mtu().ok();
        if sent.is_err() {
            result.is_black_hole = self.passes_in_small_segments(endpoint, to).await;
        }
        result.upload = Some(sent);
        result.download = Some(self.download(client).await);
        Ok(())
    }

    /// Measures the upload: returns the bytes sent per second in large messages that the server reads and
    /// discards.
    async fn upload(&self, channel: &Channel) -> Result<f64, Unseen> {
        // A health check of a service with a very long name. No such service exists, so the server only
        // rejects it. Field 1 is the service's name.
        let mut message = Vec::new();
        api::wire::put_field_head(&mut message, 1, SENT_BYTES);
        message.resize(message.len() + SENT_BYTES, b'x');
        let message = Bytes::from(message);
        let begun = Instant::now();
        let (time, within) = (self.time, self.within);
        let senders: Vec<_> = (0..SENDERS)
            .map(|_| {
                let (channel, message) = (channel.clone(), message.clone());
                tokio::spawn(async move {
                    let mut sent = 0;
                    while begun.elapsed() < time && sent < SENT_BYTES_MAX {
                        answered(ask(&channel, message.clone(), within).await)?;
                        sent += message.len();
                    }
                    Ok::<usize, Unseen>(sent)
                })
            })
            .collect();
        let mut sent = 0;
        for sender in senders {
            sent += sender.await.map_err(Unseen::because)??;
        }
        Ok(sent as f64 / begun.elapsed().as_secs_f64())
    }

    /// Measures the download: returns the bytes received per second while the same few keys are read
    /// repeatedly. The reads are serializable, so that no other member is involved.
    async fn download(&self, client: &Client) -> Result<f64, Unseen> {
        let mut request = RangeRequest {
            key: vec![0].into(),
            range_end: vec![0].into(),
            limit: 1,
            serializable: true,
            ..RangeRequest::default()
        };
        let said = |status: Status| Unseen::because(client::shown(&status));
        let mut page_bytes = 0;
        // Double the number of keys until the response is large enough, or there are no more keys.
        for _ in 0..12 {
            let answer: RangeResponse = client.call(Rpc::KvRange, &request).await.map_err(said)?;
            page_bytes = answer.kvs.iter().map(|kv| kv.key.len() + kv.value.len()).sum();
            if page_bytes * 2 > READ_BYTES.1 || !answer.more {
                // End the range directly after the last key that was read. Otherwise etcd would walk all
                // later keys at each read, to count them.
                if let Some(last) = answer.kvs.last() {
                    request.range_end = [&last.key[..], &[0]].concat().into();
                }
                break;
            }
            request.limit *= 2;
        }
        if page_bytes < READ_BYTES.0 {
            let why = format!("the store's first keys have only {page_bytes} bytes, too few to measure");
            return Err(why.into());
        }
        let begun = Instant::now();
        let mut received = 0;
        while begun.elapsed() < self.time {
            let answer: RangeResponse = client.call(Rpc::KvRange, &request).await.map_err(said)?;
            received += answer.kvs.iter().map(|kv| kv.key.len() + kv.value.len()).sum::<usize>();
        }
        Ok(received as f64 / begun.elapsed().as_secs_f64())
    }

    /// Returns true if a message sent in small segments gets a response. If one in large segments did not, a
    /// device on the path drops large packets without reporting an error.
    async fn passes_in_small_segments(&self, endpoint: &Endpoint, to: std::net::SocketAddr) -> bool {
        let passes = async {
            let stream = connect_with_segments(to, SMALL_SEGMENT).await.ok()?;
            let channel = Channel::over(stream, endpoint, &self.transport).await.ok()?;
            let message = Bytes::from([&[0x0a, 0x80, 0x80, 0x04][..], &[b'x'; 64 * 1024]].concat());
            answered(ask(&channel, message, self.within).await).ok()
        };
        passes.await.is_some()
    }
}

async fn ask(channel: &Channel, message: Bytes, within: Duration) -> Result<Bytes, Status> {
    channel.unary_with(Rpc::HealthCheck.path(), &CallOptions::default().within(within), message).await
}

/// Returns `Ok` if the server responded at all. An error such as an unknown service or method also counts as
/// a response.
fn answered(answer: Result<Bytes, Status>) -> Result<(), Unseen> {
    match answer {
        Err(status) if matches!(status.code, Code::Unavailable | Code::DeadlineExceeded | Code::Internal) => {
            Err(Unseen::because(client::shown(&status)))
        }
        _ => Ok(()),
    }
}
