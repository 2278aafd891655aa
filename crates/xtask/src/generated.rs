//! Writes the generated files that are committed to the repository, and checks that they are up to date.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The content of each generated file, by its path from the root of the repository.
pub type Files = BTreeMap<String, String>;

/// Returns the root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Reads a file of the repository.
///
/// # Errors
///
/// Returns an error that names the file that cannot be read.
pub fn read(name: &str) -> Result<String, String> {
    fs::read_to_string(root().join(name)).map_err(|e| format!("{name}: {e}"))
}

/// Writes the files.
///
/// # Errors
///
/// Returns an error that names the file that cannot be written.
pub fn write(files: &Files) -> Result<String, String> {
    for (name, text) in files {
        let path = root().join(name);
        let folder = path.parent().unwrap_or(&path);
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&path, text))
            .map_err(|e| format!("{name}: {e}"))?;
    }
    Ok(format!("wrote {} files", files.len()))
}

/// Compares generated files with the files in the repository. `verb` is the xtask command that writes them,
/// for the error message.
///
/// # Errors
///
/// Returns an error that names the file that is not up to date.
pub fn check(files: &Files, verb: &str) -> Result<String, String> {
    for (name, text) in files {
        if read(name).ok().as_deref() != Some(text) {
            return Err(format!("{name} is not up to date: run `cargo xtask {verb}`"));
        }
    }
    Ok(format!("{} generated files are up to date", files.len()))
}
