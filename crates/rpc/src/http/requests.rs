//! Answers `/debug/requests` with the latest slow requests and the time of each stage. The page names clients
//! and keys, so the rules of `/debug/mainstay` apply. While authentication is enabled, it shows keys only to
//! root.

use std::fmt::Write as _;

use ::http::{Request, Response, StatusCode};
use bytes::Bytes;
use stdx::calendar::format_rfc3339;

use super::{diagnosis, plain};
use replica::shared::Shared;

/// Path of the page.
pub(super) const PATH: &str = "/debug/requests";

/// Answers with one line per slow request, newest first.
pub(super) fn answer(shared: &Shared, request: &Request<Bytes>) -> Response<Bytes> {
    let names_keys = diagnosis::tells_names(shared, request);
    let limit = shared.member.limits.slow_request;
    let mut page = format!("Requests that took longer than {limit:?}, newest first.\n\n");
    for note in shared.diagnostics.slow_requests.slow_ones() {
        let (at, client) = (format_rfc3339(note.ended), note.client);
        // Writing to a string cannot fail, here and below.
        let _ = write!(page, "{at} {:?} {} from {client}", note.took, note.path);
        for (stage, took) in &note.stages {
            let _ = write!(page, " {}={took:?}", stage.name());
        }
        if names_keys && !note.content.is_empty() {
            let _ = write!(page, " {}", note.content);
        }
        if let Some(error) = &note.error {
            let _ = write!(page, " error={error}");
        }
        page.push('\n');
    }
    plain(StatusCode::OK, page)
}
