//! Answers HTTP requests for the gRPC proxy's pages: the health of the cluster and of the proxy, the metrics
//! of a member and of the proxy, and profiles of the proxy.

use std::io;
use std::time::Duration;

use api::etcdserverpb::{RangeRequest, RangeResponse, WatchCreateRequest};
use api::{Rpc, error};
use bytes::Bytes;
use client::{Client, Endpoint, RawConnection, Security, Transport, Watcher, shown};
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderValue, Method, Response, StatusCode};
use profiling::pages as profiles;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::metrics::Metrics;

/// Timeout of the read that checks the cluster's health.
const READ_LIMIT: Duration = Duration::from_secs(1);
/// Timeout of the watch that checks the proxy's health.
const WATCH_LIMIT: Duration = Duration::from_secs(3);
/// Timeout of fetching a member's metrics.
const METRICS_LIMIT: Duration = Duration::from_secs(10);
/// Maximum number of bytes that the proxy reads from a member's response with the metrics page. The rest is
/// cut off.
const METRICS_BYTES_MAX: u64 = 16 << 20;

/// Clients and settings with which the pages are made.
pub(crate) struct Pages {
    /// Client of the members, for the page `/health`.
    pub(crate) client: Client,
    /// Client of the proxy itself, at the address that the proxy advertises; `None` if it advertises none.
    pub(crate) own: Option<Client>,
    /// Settings of the connection on which a member's metrics page is fetched.
    pub(crate) transport: Transport,
    /// Endpoint of the member whose metrics the page shows.
    pub(crate) metrics_of: String,
    /// True if profiles of this process are served.
    pub(crate) has_profiles: bool,
}

impl Pages {
    /// Answers a request for a page.
    pub(crate) async fn answer(
        &self,
        metrics: &Metrics,
        request: &http::Request<Bytes>,
        is_tls: bool,
    ) -> Response<Bytes> {
        let path = request.uri().path();
        match path {
            "/health" | "/proxy/health" => {
                if request.method() != Method::GET {
                    let mut answer = page(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed\n".to_owned());
                    answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
                    return answer;
                }
                let outcome = match (path, &self.own) {
                    ("/health", _) => check(&self.client).await,
                    (_, None) => Err("no connection to proxy".to_owned()),
                    (_, Some(own)) => check_with_watch(own).await,
                };
                health(outcome)
            }
            "/metrics" => match timeout(METRICS_LIMIT, self.member_metrics(is_tls)).await {
                Ok(Ok(body)) => metrics_page(body),
                _ => page(StatusCode::INTERNAL_SERVER_ERROR, "Internal server error\n".to_owned()),
            },
            "/proxy/metrics" => metrics_page(metrics.page().into()),
            profiles::CPU if self.has_profiles => {
                profiles::cpu(parameter(request, "seconds"), tokio::time::sleep).await
            }
            _ if self.has_profiles && path.starts_with(profiles::PREFIX) => {
                let (debug, seconds) = (parameter(request, "debug"), parameter(request, "seconds"));
                // The last argument returns the memory in use by purpose. The proxy does not count this
                // memory, so the list is empty, and a memory profile shows only the kernel's numbers.
                profiles::answer(path, profiles::Parameters { debug, seconds }, Vec::new)
            }
            _ => page(StatusCode::NOT_FOUND, "404 page not found\n".to_owned()),
        }
    }

    /// Fetches a member's metrics page. Uses HTTP/1.0, so that the member neither uses the chunked encoding
    /// nor keeps the connection open after the response.
    async fn member_metrics(&self, is_tls: bool) -> io::Result<Bytes> {
        let mut endpoint = Endpoint::new(self.metrics_of.clone());
        if endpoint.security == Security::AsConfigured && !is_tls {
            // An endpoint without a scheme gets the scheme of the request for the page, as in etcd.
            endpoint.security = Security::Plain;
        }
        let mut connection = RawConnection::open(&endpoint, &self.transport).await?;
        let stream = connection.stream();
        let request = format!("GET /metrics HTTP/1.0\r\nHost: {}\r\n\r\n", endpoint.host);
        stream.write_all(request.as_bytes()).await?;
        stream.flush().await?;
        let mut answer = Vec::new();
        stream.take(METRICS_BYTES_MAX + 1).read_to_end(&mut answer).await?;
        if answer.len() as u64 > METRICS_BYTES_MAX {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        let malformed = || io::Error::from(io::ErrorKind::InvalidData);
        let body = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").ok_or_else(malformed)? + 4;
        let is_ok = answer.get(9..12) == Some(b"200") && answer.starts_with(b"HTTP/1.");
        if !is_ok {
            return Err(malformed());
        }
        Ok(Bytes::from(answer).slice(body..))
    }
}

/// Returns the first value of a query parameter. The value is not decoded, because parameters of profiles are
/// numbers.
fn parameter<'r>(request: &'r http::Request<Bytes>, name: &str) -> Option<&'r [u8]> {
    let mut all = request.uri().query().unwrap_or_default().split('&');
    all.find_map(|each| each.strip_prefix(name)?.strip_prefix('=').map(str::as_bytes))
}

/// Checks the health of the cluster by reading a key, as etcd's proxy does. A missing permission counts as
/// healthy.
async fn check(client: &Client) -> Result<(), String> {
    let request = RangeRequest { key: Bytes::from_static(b"a"), ..RangeRequest::default() };
    let read = client.within(READ_LIMIT).call::<_, RangeResponse>(Rpc::KvRange, &request).await;
    match read {
        Ok(_) => Ok(()),
        Err(status) if status.message == error::PERMISSION_DENIED.message => Ok(()),
        Err(status) => Err(format!("GET ERROR:{}", shown(&status))),
    }
}

/// Checks the health like [`check`], and also checks that a watch can be created in time.
async fn check_with_watch(client: &Client) -> Result<(), String> {
    check(client).await?;
    let request = WatchCreateRequest { key: Bytes::from_static(b"a"), ..WatchCreateRequest::default() };
    let mut watcher = Watcher::new(client, request);
    match timeout(WATCH_LIMIT, watcher.next()).await {
        Ok(_) => Ok(()),
        Err(_) => Err("WATCH TIMEOUT".to_owned()),
    }
}

fn health(outcome: Result<(), String>) -> Response<Bytes> {
    let (status, health, reason) = match outcome {
        Ok(()) => (StatusCode::OK, "true", String::new()),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, "false", reason),
    };
    // The fields are in the same order as in etcd.
    let text = |text: &str| serde_json::Value::String(text.to_owned()).to_string();
    page(status, format!("{{\"health\":{},\"reason\":{}}}", text(health), text(&reason)))
}

fn metrics_page(body: Bytes) -> Response<Bytes> {
    let mut answer = Response::new(body);
    let kind = HeaderValue::from_static("text/plain; version=0.0.4");
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}

fn page(status: StatusCode, text: String) -> Response<Bytes> {
    let mut answer = Response::new(Bytes::from(text));
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}
