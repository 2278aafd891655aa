//! Compares whole outputs with files in the directory `tests/it/expect` of the crate under test. If the
//! environment variable `UPDATE_EXPECT` is set, writes the outputs to the files instead of comparing them.

use std::path::{Path, PathBuf};

/// Returns the content of a file in `tests/it/expect`.
pub fn read(name: &str) -> String {
    let path = folder().join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Compares `actual` with the file `name` in `tests/it/expect`.
pub fn check(name: &str, actual: &str) {
    check_file(&folder().join(name), actual);
}

/// Compares `actual` with a file anywhere in the repository.
pub fn check_file(path: &Path, actual: &str) {
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(path, actual).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        return;
    }
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    if let Some(at) = (0..).zip(expected.lines().zip(actual.lines())).find(|(_, (a, b))| a != b) {
        let (line, (expected, actual)) = at;
        panic!("{}:{}\nexpected: {expected}\n  actual: {actual}", path.display(), line + 1);
    }
    assert_eq!(expected, actual, "{} differs in length; UPDATE_EXPECT=1 rewrites it", path.display());
}

fn folder() -> PathBuf {
    // Cargo sets this variable to the directory of the crate under test when it runs a test.
    let crate_root = std::env::var_os("CARGO_MANIFEST_DIR").expect("tests are run by cargo");
    Path::new(&crate_root).join("tests/it/expect")
}
