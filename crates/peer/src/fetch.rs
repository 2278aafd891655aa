use std::time::Duration;

use bytes::Bytes;

use crate::error::{ExchangeError, RequestError};

/// Sends one request to the server at `url` (such as `http://10.0.0.1:2380`) and waits for the answer; for the
/// time before [`crate::Peers`] exist. `request`'s URI is a path and query. Any status is an answer. `tls` is for `https`
/// URLs, which cannot be used without it. Blocks.
///
/// # Errors
///
/// When there is no answer in time or the URL cannot be used. The text names the URL.
pub fn fetch(
    url: &str,
    request: http::Request<Bytes>,
    timeout: Duration,
    tls: Option<&tls::ClientTls>,
) -> Result<http::Response<Bytes>, RequestError> {
    let failed = |error| RequestError::Failed { to: url.to_owned(), error };
    let endpoint = crate::endpoint::Endpoint::dialable(url, tls.is_some())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| failed(ExchangeError::Connect(error)))?;
    let client = crate::client::Client::new(crate::dialer::Dialer::new(tls.cloned(), None));
    let local = tokio::task::LocalSet::new();
    let answer = local.block_on(&runtime, client.exchange(&endpoint, request, timeout));
    drop((client, local));
    // A name that is still being looked up holds up nothing.
    runtime.shutdown_background();
    answer.map_err(failed)
}
