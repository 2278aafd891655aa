//! Serves the files of the web pages, which are compiled into the binary: those of `crates/console/assets/`,
//! which `cargo xtask console` lists, and the stylesheets and charts in `html_report` that reports use too.

use std::io::Write as _;
use std::sync::OnceLock;

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use html_report::SHARED;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, ETAG, IF_NONE_MATCH, VARY};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use sha2::{Digest as _, Sha256};

use crate::answer;
use crate::response_body::AnswerBody;
use crate::table::FILES;

/// Size in bytes below which a file is not compressed, because compression would save too little.
const COMPRESSED_BYTES_MIN: usize = 1024;
/// Value of `Cache-Control` for files: browsers must ask with each request whether their copy is current,
/// because after an upgrade the member has newer pages.
const CACHE: &str = "no-cache";

/// Data that is computed from the contents of a file, at the first request for the file.
struct AssetData {
    etag: String,
    /// The compressed contents; `None` for a file that is small or not text.
    compressed: Option<Bytes>,
}

const FILES_COUNT: usize = FILES.len() + SHARED.len();

static PREPARED: [OnceLock<AssetData>; FILES_COUNT] = [const { OnceLock::new() }; FILES_COUNT];

/// Returns the names and contents of all files.
fn files() -> impl Iterator<Item = (&'static str, &'static [u8])> {
    FILES.iter().copied().chain(SHARED.iter().map(|(name, text)| (*name, text.as_bytes())))
}

/// Returns the index of the file with this path below the assets folder. The path is only compared with the
/// names in the table, and never used to access the file system.
pub(crate) fn find(name: &str) -> Option<usize> {
    files().position(|(listed, _)| listed == name)
}

/// Returns the response to a request for the file with this index.
pub(crate) fn answer(at: usize, headers: &HeaderMap) -> Response<AnswerBody> {
    let (name, contents) = match at.checked_sub(FILES.len()) {
        None => FILES[at],
        Some(at) => (SHARED[at].0, SHARED[at].1.as_bytes()),
    };
    let prepared = PREPARED[at].get_or_init(|| prepare(name, contents));
    let compressed = prepared.compressed.as_ref().filter(|_| takes_gzip(headers));
    let has_current = headers.get_all(IF_NONE_MATCH).iter().any(|tags| {
        let tags = tags.to_str().unwrap_or_default().split(',');
        tags.map(|tag| tag.trim().trim_start_matches("W/")).any(|tag| tag == prepared.etag || tag == "*")
    });
    let (status, body) = match (has_current, compressed) {
        (true, _) => (StatusCode::NOT_MODIFIED, Bytes::new()),
        (false, Some(compressed)) => (StatusCode::OK, compressed.clone()),
        (false, None) => (StatusCode::OK, Bytes::from_static(contents)),
    };
    let mut response = answer::whole(status, content_type(name), CACHE, body);
    let headers = response.headers_mut();
    headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    // Mark the tag as weak, because it is the same for the compressed and the uncompressed contents.
    if let Ok(tag) = HeaderValue::try_from(format!("W/{}", prepared.etag)) {
        headers.insert(ETAG, tag);
    }
    if compressed.is_some() && !has_current {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

fn prepare(name: &str, contents: &[u8]) -> AssetData {
    let digest = Sha256::digest(contents);
    let etag = digest.iter().take(12).map(|byte| format!("{byte:02x}")).collect::<String>();
    let is_worth_it = contents.len() >= COMPRESSED_BYTES_MIN && is_text(content_type(name));
    let compressed = is_worth_it.then(|| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        // Writing to memory does not fail. If it did, the file would be sent uncompressed.
        encoder.write_all(contents).and_then(|()| encoder.finish()).ok().map(Bytes::from)
    });
    AssetData { etag: format!("\"{etag}\""), compressed: compressed.flatten() }
}

fn is_text(content_type: &str) -> bool {
    content_type.contains("charset=utf-8") || content_type == "image/svg+xml"
}

/// Returns the content type of a file, by its name extension.
fn content_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, ending)| ending) {
        Some("html") => "text/html; charset=utf-8",
        Some("js" | "mjs") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("json" | "map") => "application/json; charset=utf-8",
        Some("webmanifest") => "application/manifest+json; charset=utf-8",
        Some("txt" | "md") => "text/plain; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("ico") => "image/x-icon",
        Some("woff2") => "font/woff2",
        _ => "application/octet-stream",
    }
}

/// Returns true if the browser accepts responses that are compressed with gzip.
fn takes_gzip(headers: &HeaderMap) -> bool {
    headers.get_all(ACCEPT_ENCODING).iter().any(|accepted| {
        accepted.to_str().unwrap_or_default().split(',').any(|one| {
            let (name, weight) = one.split_once(';').unwrap_or((one, ""));
            let weight = weight.trim().strip_prefix("q=").map_or(Ok(1.0), str::parse::<f32>);
            name.trim().eq_ignore_ascii_case("gzip") && weight.is_ok_and(|weight| weight > 0.0)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_are_taken_as_they_are_offered() {
        let takes = |accepted: &'static str| {
            takes_gzip(&HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(accepted))]))
        };
        for accepted in ["gzip", "br, GZIP;q=0.5", "gzip , br"] {
            assert!(takes(accepted), "{accepted}");
        }
        for accepted in ["", "br", "gzip;q=0", "xgzip", "gzip;q=x"] {
            assert!(!takes(accepted), "{accepted}");
        }
    }

    #[test]
    fn every_file_has_a_type_that_browsers_know() {
        for (at, (name, _)) in files().enumerate() {
            assert_ne!(content_type(name), "application/octet-stream", "{name}");
            assert_eq!(find(name), Some(at), "{name} is there once");
        }
        assert!(find("index.html").is_some());
        for name in ["", "/index.html", "../Cargo.toml", "./index.html", "index.html/", "INDEX.html"] {
            assert_eq!(find(name), None, "{name}");
        }
    }
}
