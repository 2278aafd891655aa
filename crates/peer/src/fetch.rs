use std::time::Duration;

use bytes::Bytes;

use crate::error::{ExchangeError, RequestError};

/// Sends one request to the server at `url` (such as `http://10.0.0.1:2380`) and blocks until the answer
/// arrives. For use before [`crate::Peers`] is started. The URI of `request` is a path and query. An answer
/// with any HTTP status is returned as `Ok`. `tls` is required for `https` URLs.
///
/// # Errors
///
/// Returns an error that contains the URL if no answer arrives in time, or if the URL cannot be used.
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
    // End the runtime without waiting for a blocked name look-up, so that it does not delay the return.
    runtime.shutdown_background();
    answer.map_err(failed)
}
