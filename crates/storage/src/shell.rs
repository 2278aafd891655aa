//! Formats paths for the shell commands that error messages recommend.

use std::path::Path;

/// Returns a path as one word of a shell command, quoted if necessary.
pub(crate) fn in_shell(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:,@%".contains(c);
    if text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}
