//! Opens the place that a URL names.

use std::path::Path;
use std::sync::Arc;

use crate::cloud::CloudStore;
use crate::directory::DirectoryStore;
use crate::store::Store;
use crate::trouble::{Fault, Trouble};

/// Schemes of the URLs of places.
const SCHEMES: [&str; 4] = ["s3", "gs", "az", "file"];

/// Returns true if a text is the URL of a place for backups, and not the name of a file.
pub fn is_url(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, _)| SCHEMES.contains(&scheme))
}

/// Opens a place. Credentials are read again each time.
///
/// # Errors
///
/// Returns an error if the URL names no place that is supported, or the credentials cannot be read.
pub fn open(url: &str) -> Result<Arc<dyn Store>, Trouble> {
    match url.split_once("://") {
        Some(("file", path)) if path.starts_with('/') => Ok(Arc::new(DirectoryStore::open(Path::new(path))?)),
        Some(("file", _)) => Err(Trouble::new(
            Fault::Refused,
            format!("{url}: a directory is named by its absolute path: file:///path/to/directory"),
        )),
        Some(("s3" | "gs" | "az", _)) => Ok(Arc::new(CloudStore::open(url)?)),
        _ => Err(Trouble::new(
            Fault::Refused,
            format!(
                "{url} names no place for backups: s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or \
                 file:///directory"
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_that_names_no_place_is_refused() {
        assert!(is_url("s3://bucket") && is_url("file:///x") && !is_url("backup.db") && !is_url("://x"));
        for url in ["backup.db", "ftp://host/dir", "file://relative", "s3://"] {
            assert!(open(url).is_err(), "{url}");
        }
    }
}
