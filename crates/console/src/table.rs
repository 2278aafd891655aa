//! Written by `cargo xtask console`: the files of `crates/console/assets/`.

/// Paths below the folder, and contents.
#[rustfmt::skip] // One row per file.
pub(crate) const FILES: &[(&str, &[u8])] = &[
    ("index.html", include_bytes!("../assets/index.html")),
];
