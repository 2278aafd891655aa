//! Certificates for members and clients, as their flags and settings name them.

use std::path::Path;

use client::TlsFiles;
pub use testkit::certificates::{Files, Folder};

/// Returns the TLS files of a client that trusts this authority and shows this certificate.
pub fn files(authority: &Folder, own: Option<&Files>) -> TlsFiles {
    TlsFiles {
        cacert: Some(authority.ca.clone()),
        cert: own.map(|own| own.cert.clone()),
        key: own.map(|own| own.key.clone()),
        ..TlsFiles::default()
    }
}

/// Returns a flag whose value is a path.
pub fn flag(name: &str, path: &Path) -> String {
    format!("--{name}={}", path.display())
}
