//! One figure from a server's metrics page.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const NAME: &str = "process_resident_memory_bytes";

/// How long a metrics page may take.
const LIMIT: Duration = Duration::from_secs(10);

/// Largest page taken, in bytes.
const PAGE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// How much memory the server at an endpoint has resident, in bytes.
///
/// # Errors
/// Its page cannot be read, or lacks the figure.
pub(crate) async fn resident_bytes(endpoint: &str) -> Result<f64, String> {
    let address = endpoint.strip_prefix("http://").unwrap_or(endpoint).trim_end_matches('/');
    if address.contains("://") {
        return Err(format!(
            "fetch error: {endpoint}/metrics: only plain http is read here; give the endpoint of a plain listener \
             (--listen-client-http-urls or --listen-metrics-urls of the server)"
        ));
    }
    let page = tokio::time::timeout(LIMIT, fetch(address)).await;
    let page = page
        .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
        .map_err(|error| format!("fetch error: Get \"http://{address}/metrics\": {error}"))?;
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

fn figure(page: &str) -> Result<f64, String> {
    let line = page.lines().find(|line| line.starts_with(NAME));
    let text = line.and_then(|line| line.strip_prefix(NAME)).map(str::trim).unwrap_or_default();
    if text.is_empty() {
        return Err(format!("could not find: {NAME}"));
    }
    let value: f64 = text.parse().map_err(|_| format!("parse error: {text}"))?;
    if value > 0.0 { Ok(value) } else { Err(format!("could not find: {NAME}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figure_is_found_in_a_page() {
        let page = "# TYPE process_resident_memory_bytes gauge\nprocess_resident_memory_bytes 4.5e+07\n";
        assert_eq!(figure(page), Ok(4.5e7));
        assert_eq!(figure("x 1\n").unwrap_err(), "could not find: process_resident_memory_bytes");
        assert_eq!(figure("process_resident_memory_bytes x\n").unwrap_err(), "parse error: x");
    }
}
