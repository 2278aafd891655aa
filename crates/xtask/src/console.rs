//! Generates the table of the console's files, which the build compiles into the binary.

use std::fs;
use std::path::Path;

use crate::generated::{Files, root};

/// Returns the generated table, with its path from the root of the repository.
pub fn generate() -> Result<Files, String> {
    Ok(Files::from([("crates/console/src/table.rs".to_owned(), table()?)]))
}

fn table() -> Result<String, String> {
    let mut names = Vec::new();
    collect(&root().join("crates/console/assets"), "", &mut names)?;
    names.sort();
    let rows: Vec<String> = names
        .iter()
        .map(|name| format!("    ({name:?}, include_bytes!({:?})),\n", format!("../assets/{name}")))
        .collect();
    Ok(format!(
        "//! Written by `cargo xtask console`: the files of `crates/console/assets/`.\n\n\
         /// Paths below the folder, and contents.\n\
         #[rustfmt::skip] // One row per file.\n\
         pub(crate) const FILES: &[(&str, &[u8])] = &[\n{}];\n",
        rows.concat()
    ))
}

/// Adds the names of all files below a folder. `prefix` is the path of the folder below `assets`, and each
/// name begins with it. Skips hidden files, because editors create them.
fn collect(folder: &Path, prefix: &str, names: &mut Vec<String>) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("{}: {e}", folder.display());
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name =
            entry.file_name().into_string().map_err(|name| format!("{name:?} is no name for a page"))?;
        if name.starts_with('.') {
            continue;
        }
        if !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)) {
            return Err(format!(
                "{name:?}: names of pages have letters, digits, dots, hyphens and underscores"
            ));
        }
        match entry.file_type().map_err(failed)?.is_dir() {
            true => collect(&entry.path(), &format!("{prefix}{name}/"), names)?,
            false => names.push(format!("{prefix}{name}")),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_table_is_up_to_date() {
        crate::generated::check(&super::generate().unwrap(), "console").unwrap();
    }
}
