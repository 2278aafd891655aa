use std::time::Duration;

use bytes::Bytes;

use crate::error::{ExchangeError, RequestError};

/// Sends one request to the server at `url` (such as `http://10.0.0.1:2380`) and waits for the answer; for
/// use before [`crate::Peers`] is started. The URI of `request` is a path and query. Any status is a
/// successful answer. `tls` is required for `https` URLs. Blocks.
///
/// # Errors
///
/// Returns an error, which names the URL, if no answer arrives in time or the URL cannot be used.
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
    // A pending name look-up does not delay the return.
    runtime.shutdown_background();
    answer.map_err(failed)
}
