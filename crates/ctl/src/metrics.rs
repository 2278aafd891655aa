//! Reads a server's resident memory from its metrics page.

use std::fmt;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const NAME: &str = "process_resident_memory_bytes";

/// Timeout of reading a metrics page.
const LIMIT: Duration = Duration::from_secs(10);

/// Maximum size of a page in bytes.
const PAGE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Reason why the resident memory could not be read from a metrics page.
#[derive(Debug)]
pub(crate) enum MetricsError {
    /// The endpoint has a scheme other than `http`, which is not supported.
    NotPlain(String),
    /// The page could not be fetched.
    Fetch {
        /// Host and port of the endpoint.
        address: String,
        /// Error of the operating system.
        error: std::io::Error,
    },
    /// The page does not contain the value.
    Missing,
    /// The value is not a number.
    Parse(String),
}

impl fmt::Display for MetricsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetricsError::NotPlain(endpoint) => write!(
                f,
                "fetch error: {endpoint}/metrics: only plain http is supported here; use the endpoint of a \
                 plain listener (--listen-client-http-urls or --listen-metrics-urls of the server)"
            ),
            MetricsError::Fetch { address, error } => {
                write!(f, "fetch error: Get \"http://{address}/metrics\": {error}")
            }
            MetricsError::Missing => write!(f, "could not find: {NAME}"),
            MetricsError::Parse(text) => write!(f, "parse error: {text}"),
        }
    }
}

/// Returns the resident memory of the server at an endpoint, in bytes.
///
/// # Errors
///
/// Returns an error if the metrics page cannot be read or does not contain the value.
pub(crate) async fn resident_bytes(endpoint: &str) -> Result<f64, MetricsError> {
    let address = endpoint.strip_prefix("http://").unwrap_or(endpoint).trim_end_matches('/');
    if address.contains("://") {
        return Err(MetricsError::NotPlain(endpoint.to_owned()));
    }
    let page = tokio::time::timeout(LIMIT, fetch(address)).await;
    let page = page
        .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
        .map_err(|error| MetricsError::Fetch { address: address.to_owned(), error })?;
    figure(&page)
}

async fn fetch(address: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET /metrics HTTP/1.0\r\nHost: {address}\r\nAccept: text/plain\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut page = Vec::new();
    stream.take(PAGE_BYTES_MAX).read_to_end(&mut page).await?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}

fn figure(page: &str) -> Result<f64, MetricsError> {
    let line = page.lines().find(|line| line.starts_with(NAME));
    let text = line.and_then(|line| line.strip_prefix(NAME)).map(str::trim).unwrap_or_default();
    if text.is_empty() {
        return Err(MetricsError::Missing);
    }
    let value: f64 = text.parse().map_err(|_| MetricsError::Parse(text.to_owned()))?;
    if value > 0.0 { Ok(value) } else { Err(MetricsError::Missing) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figure_is_found_in_a_page() {
        let page = "# TYPE process_resident_memory_bytes gauge\nprocess_resident_memory_bytes 4.5e+07\n";
        assert_eq!(figure(page).unwrap(), 4.5e7);
        assert_eq!(figure("x 1\n").unwrap_err().to_string(), "could not find: process_resident_memory_bytes");
        assert_eq!(figure("process_resident_memory_bytes x\n").unwrap_err().to_string(), "parse error: x");
    }
}
